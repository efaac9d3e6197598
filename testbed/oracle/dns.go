package main

import (
	"context"
	"fmt"
	"net"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/kubelet/network/dns"
)

type dnsInput struct {
	Pod           v1.Pod   `json:"pod"`
	NodeIPs       []string `json:"nodeIPs"`
	ClusterDNS    []string `json:"clusterDNS"`
	ClusterDomain string   `json:"clusterDomain"`
	// ResolvConf is the text of the node's file; absent means that none is configured.
	ResolvConf *string `json:"resolvConf"`
}

type dnsOutput struct {
	Servers  []string `json:"servers"`
	Searches []string `json:"searches"`
	Options  []string `json:"options"`
	Events   []string `json:"events"`
}

const maxEvents = 64

func podDNS(in dnsInput) (dnsOutput, error) {
	var out dnsOutput
	path := ""
	if in.ResolvConf != nil {
		file, err := os.CreateTemp("", "oracle-resolv-*")
		if err != nil {
			return out, err
		}
		defer os.Remove(file.Name())
		if _, err := file.WriteString(*in.ResolvConf); err != nil {
			return out, err
		}
		if err := file.Close(); err != nil {
			return out, err
		}
		path = file.Name()
	}
	nodeIPs, err := addresses(in.NodeIPs)
	if err != nil {
		return out, err
	}
	clusterDNS, err := addresses(in.ClusterDNS)
	if err != nil {
		return out, err
	}
	recorder := record.NewFakeRecorder(maxEvents)
	node := &v1.ObjectReference{Kind: "Node", Name: "node"}
	configurer := dns.NewConfigurer(recorder, node, nodeIPs, clusterDNS, in.ClusterDomain, path)
	found, err := configurer.GetPodDNS(context.Background(), &in.Pod)
	if err != nil {
		return out, err
	}
	out = dnsOutput{Servers: found.Servers, Searches: found.Searches, Options: found.Options, Events: []string{}}
	close(recorder.Events)
	for event := range recorder.Events {
		out.Events = append(out.Events, event)
	}
	return out, nil
}

func addresses(texts []string) ([]net.IP, error) {
	found := []net.IP{}
	for _, text := range texts {
		address := net.ParseIP(text)
		if address == nil {
			return nil, fmt.Errorf("%q is not an address", text)
		}
		found = append(found, address)
	}
	return found, nil
}
