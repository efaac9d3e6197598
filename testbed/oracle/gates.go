package main

import (
	"sort"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"

	// Registers every gate that the kubelet's own program knows.
	_ "k8s.io/kubernetes/cmd/kubelet/app"
)

type nothing struct{}

type gate struct {
	Name         string   `json:"name"`
	Stage        string   `json:"stage"`
	Default      bool     `json:"default"`
	Locked       bool     `json:"locked"`
	Dependencies []string `json:"dependencies"`
}

var stageNames = map[string]string{"": "GA", "ALPHA": "Alpha", "BETA": "Beta", "DEPRECATED": "Deprecated", "PRE-ALPHA": "PreAlpha"}

func gateTable(nothing) ([]gate, error) {
	known := utilfeature.DefaultMutableFeatureGate.GetAll()
	dependencies := utilfeature.DefaultMutableFeatureGate.Dependencies()
	gates := make([]gate, 0, len(known))
	for name, spec := range known {
		row := gate{
			Name:         string(name),
			Stage:        stageNames[string(spec.PreRelease)],
			Default:      spec.Default,
			Locked:       spec.LockToDefault,
			Dependencies: []string{},
		}
		for _, needed := range dependencies[name] {
			row.Dependencies = append(row.Dependencies, string(needed))
		}
		sort.Strings(row.Dependencies)
		gates = append(gates, row)
	}
	sort.Slice(gates, func(i, j int) bool { return gates[i].Name < gates[j].Name })
	return gates, nil
}

type gatesSetInput struct {
	Value string `json:"value"`
}

type gatesSetOutput struct {
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
	// Changed has every gate whose state is not its default.
	Changed map[string]bool `json:"changed,omitempty"`
}

// gatesSet says what a --feature-gates value does: refused, or the gates that it changes.
func gatesSet(in gatesSetInput) (gatesSetOutput, error) {
	local := utilfeature.DefaultMutableFeatureGate.DeepCopy()
	if err := local.Set(in.Value); err != nil {
		return gatesSetOutput{Error: err.Error()}, nil
	}
	changed := map[string]bool{}
	for name, spec := range local.GetAll() {
		if enabled := local.Enabled(name); enabled != spec.Default {
			changed[string(name)] = enabled
		}
	}
	return gatesSetOutput{OK: true, Changed: changed}, nil
}

// withGates runs f with the given changes of the process-wide gates. f must not change them itself.
func withGates(changes map[string]bool, f func() error) error {
	if len(changes) == 0 {
		return f()
	}
	return withOwnGates(changes, f)
}

// withOwnGates runs f while the process-wide gates are a copy with the given changes, which f may change further.
func withOwnGates(changes map[string]bool, f func() error) error {
	mutable, readable := utilfeature.DefaultMutableFeatureGate, utilfeature.DefaultFeatureGate
	defer func() {
		utilfeature.DefaultMutableFeatureGate, utilfeature.DefaultFeatureGate = mutable, readable
	}()
	var local featuregate.MutableVersionedFeatureGate = mutable.DeepCopy()
	if err := local.SetFromMap(changes); err != nil {
		return err
	}
	utilfeature.DefaultMutableFeatureGate, utilfeature.DefaultFeatureGate = local, local
	return f()
}
