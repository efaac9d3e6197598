package main

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/tools/record"
	ndf "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/kubernetes/pkg/kubelet/preemption"
	"k8s.io/kubernetes/pkg/kubelet/sysctl"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/security/apparmor"
)

type admissionInput struct {
	Node v1.Node `json:"node"`
	// Fresh is the node at a second look; without one it is the same.
	Fresh *v1.Node `json:"fresh"`
	// Conditions are the node's pressures.
	Conditions []v1.NodeConditionType `json:"conditions"`
	Pod        v1.Pod                 `json:"pod"`
	// Others are in already.
	Others []v1.Pod `json:"others"`
	// Sysctls is the whole list of allowed ones.
	Sysctls []string `json:"sysctls"`
	// Features are what the node declares.
	Features []string        `json:"features"`
	Gates    map[string]bool `json:"gates"`
}

type admissionOutput struct {
	Admit   bool   `json:"admit"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Victims are the names of pods that had to make room.
	Victims []string `json:"victims"`
}

// admission sends a pod through the kubelet's own handlers in the kubelet's order, as far as they need no manager.
func admission(in admissionInput) (admissionOutput, error) {
	out := admissionOutput{Victims: []string{}}
	err := withGates(in.Gates, func() error {
		handlers, err := admitHandlers(in, &out)
		if err != nil {
			return err
		}
		others := []*v1.Pod{}
		for i := range in.Others {
			others = append(others, &in.Others[i])
		}
		attributes := &lifecycle.PodAdmitAttributes{Pod: &in.Pod, OtherPods: others, Operation: lifecycle.AddOperation}
		for _, handler := range handlers {
			result := handler.Admit(context.Background(), attributes)
			out.Admit, out.Reason, out.Message = result.Admit, result.Reason, result.Message
			if !result.Admit {
				return nil
			}
		}
		return nil
	})
	return out, err
}

func admitHandlers(in admissionInput, out *admissionOutput) ([]lifecycle.PodAdmitHandler, error) {
	allowlist, err := sysctl.NewAllowlist(in.Sysctls)
	if err != nil {
		return nil, err
	}
	node := func(_ context.Context, useCache bool) (*v1.Node, error) {
		if !useCache && in.Fresh != nil {
			return in.Fresh, nil
		}
		return &in.Node, nil
	}
	others := func() []*v1.Pod {
		pods := []*v1.Pod{}
		for i := range in.Others {
			pods = append(pods, &in.Others[i])
		}
		return pods
	}
	kill := func(pod *v1.Pod, _ bool, _ *int64, _ func(*v1.PodStatus)) error {
		out.Victims = append(out.Victims, pod.Name)
		return nil
	}
	preempt := preemption.NewCriticalPodAdmissionHandler(others, kill, record.NewFakeRecorder(100))
	plugins := func(*framework.NodeInfo, *lifecycle.PodAdmitAttributes) error { return nil }
	declared := ndf.DefaultFramework
	return []lifecycle.PodAdmitHandler{
		pressureGate(in.Conditions),
		allowlist,
		lifecycle.NewPredicateAdmitHandler(node, preempt, plugins),
		lifecycle.NewAppArmorAdmitHandler(apparmor.NewValidator()),
		lifecycle.NewPodFeaturesAdmitHandler(),
		lifecycle.NewDeclaredFeaturesAdmitHandler(declared, declared.MustMapSorted(in.Features), version.MustParse("1.37.1")),
	}, nil
}

type safeSysctlsInput struct {
	Kernel string `json:"kernel"`
}

func safeSysctls(in safeSysctlsInput) ([]string, error) {
	kernel := func() (*version.Version, error) { return version.ParseGeneric(in.Kernel) }
	return safeSysctlAllowlist(context.Background(), kernel), nil
}

type sysctlPatternInput struct {
	Pattern string `json:"pattern"`
}

// sysctlPattern says whether an entry of allowedUnsafeSysctls is accepted.
func sysctlPattern(in sysctlPatternInput) (bool, error) {
	_, err := sysctl.NewAllowlist([]string{in.Pattern})
	return err == nil, nil
}

type appArmorHostOutput struct {
	Problem string `json:"problem"`
}

// appArmorHost says why this machine cannot enforce profiles, if it cannot.
func appArmorHost(nothing) (appArmorHostOutput, error) {
	if err := apparmor.NewValidator().ValidateHost(); err != nil {
		return appArmorHostOutput{Problem: fmt.Sprint(err)}, nil
	}
	return appArmorHostOutput{}, nil
}
