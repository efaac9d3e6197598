package main

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

var patchTypes = map[string]any{
	"v1.Pod":            v1.Pod{},
	"v1.Node":           v1.Node{},
	"v1.PodStatus":      v1.PodStatus{},
	"v1.NodeStatus":     v1.NodeStatus{},
	"v1.Service":        v1.Service{},
	"v1.ServiceAccount": v1.ServiceAccount{},
}

type mergeInputs struct {
	Type     string          `json:"type"`
	Original json.RawMessage `json:"original"`
	// Patch is applied to the original; Modified asks for the patch that leads there. One of the two.
	Patch    json.RawMessage `json:"patch"`
	Modified json.RawMessage `json:"modified"`
}

func strategicMerge(in mergeInputs) (json.RawMessage, error) {
	shape, known := patchTypes[in.Type]
	if !known {
		return nil, fmt.Errorf("no type %q", in.Type)
	}
	if in.Modified != nil {
		return strategicpatch.CreateTwoWayMergePatch(in.Original, in.Modified, shape)
	}
	return strategicpatch.StrategicMergePatch(in.Original, in.Patch, shape)
}
