package main

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/kubernetes/pkg/kubelet/images/pullmanager"
	"k8s.io/utils/cpuset"
	netutils "k8s.io/utils/net"
)

type quantityInput struct {
	// Do is parse, add, sub or cmp; the last three take b as well.
	Do string `json:"do"`
	A  string `json:"a"`
	B  string `json:"b"`
}

type quantityOutput struct {
	OK        bool   `json:"ok"`
	Error     string `json:"error,omitempty"`
	Canonical string `json:"canonical,omitempty"`
	Format    string `json:"format,omitempty"`
	Value     int64  `json:"value"`
	Milli     int64  `json:"milli"`
	Sign      int    `json:"sign"`
	Cmp       *int   `json:"cmp,omitempty"`
}

func quantity(in quantityInput) (quantityOutput, error) {
	a, err := resource.ParseQuantity(in.A)
	if err != nil {
		return quantityOutput{Error: err.Error()}, nil
	}
	if in.Do == "parse" {
		return describe(a), nil
	}
	b, err := resource.ParseQuantity(in.B)
	if err != nil {
		return quantityOutput{Error: err.Error()}, nil
	}
	switch in.Do {
	case "add":
		a.Add(b)
		return describe(a), nil
	case "sub":
		a.Sub(b)
		return describe(a), nil
	case "cmp":
		out := describe(a)
		order := a.Cmp(b)
		out.Cmp = &order
		return out, nil
	}
	return quantityOutput{}, fmt.Errorf("quantity cannot %q", in.Do)
}

func describe(q resource.Quantity) quantityOutput {
	return quantityOutput{
		OK:        true,
		Canonical: q.String(),
		Format:    string(q.Format),
		Value:     q.Value(),
		Milli:     q.MilliValue(),
		Sign:      q.Sign(),
	}
}

type nameInput struct {
	Kind  string `json:"kind"`
	Value string `json:"value"`
}

var nameChecks = map[string]func(string) []string{
	"qualifiedName":    validation.IsQualifiedName,
	"labelValue":       validation.IsValidLabelValue,
	"dns1123Label":     validation.IsDNS1123Label,
	"dns1123Subdomain": validation.IsDNS1123Subdomain,
	"dns1035Label":     validation.IsDNS1035Label,
	"envVarName":       validation.IsEnvVarName,
	"configMapKey":     validation.IsConfigMapKey,
	"portName":         validation.IsValidPortName,
	"ip":               ipProblems,
	"imagePattern":     imagePatternProblems,
}

// ipProblems reads addresses as the kubelet's address flags do, leading zeros and all.
func ipProblems(text string) []string {
	if netutils.ParseIPSloppy(text) == nil {
		return []string{"not an address"}
	}
	return nil
}

func imagePatternProblems(text string) []string {
	if err := pullmanager.ValidateAllowlistImagesPatterns([]string{text}); err != nil {
		return []string{err.Error()}
	}
	return nil
}

// nameCheck lists what is wrong with a name; an empty list is a good name.
func nameCheck(in nameInput) ([]string, error) {
	check, known := nameChecks[in.Kind]
	if !known {
		return nil, fmt.Errorf("no kind of name %q", in.Kind)
	}
	return append([]string{}, check(in.Value)...), nil
}

type textInput struct {
	Text string `json:"text"`
}

type parsed struct {
	OK        bool   `json:"ok"`
	Error     string `json:"error,omitempty"`
	Canonical string `json:"canonical"`
	CPUs      []int  `json:"cpus,omitempty"`
	Nanos     int64  `json:"nanos,omitempty"`
}

func labelSelector(in textInput) (parsed, error) {
	selector, err := labels.Parse(in.Text)
	if err != nil {
		return parsed{Error: err.Error()}, nil
	}
	return parsed{OK: true, Canonical: selector.String()}, nil
}

func cpuSet(in textInput) (parsed, error) {
	set, err := cpuset.Parse(in.Text)
	if err != nil {
		return parsed{Error: err.Error()}, nil
	}
	return parsed{OK: true, Canonical: set.String(), CPUs: set.List()}, nil
}

func duration(in textInput) (parsed, error) {
	span, err := time.ParseDuration(in.Text)
	if err != nil {
		return parsed{Error: err.Error()}, nil
	}
	return parsed{OK: true, Canonical: span.String(), Nanos: int64(span)}, nil
}
