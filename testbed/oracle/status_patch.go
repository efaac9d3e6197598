package main

import (
	"encoding/json"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

type patchStatusInput struct {
	UID types.UID    `json:"uid"`
	Old v1.PodStatus `json:"old"`
	New v1.PodStatus `json:"new"`
	// Patch is somebody else's way from the old status to the new one; null when there is nothing to do.
	Patch json.RawMessage `json:"patch"`
}

type patchStatusOutput struct {
	// Patch is what the status manager would send.
	Patch     json.RawMessage `json:"patch"`
	Unchanged bool            `json:"unchanged"`
	// Reached is the old status after the given patch, Wanted the new one in the same form.
	Reached v1.PodStatus `json:"reached"`
	Wanted  v1.PodStatus `json:"wanted"`
}

// statusPatch gives upstream's patch between two statuses, and what an API server makes of another one.
func statusPatch(in patchStatusInput) (patchStatusOutput, error) {
	theirs, unchanged, err := preparePatchBytesForPodStatus("n", "p", in.UID, in.Old, in.New)
	if err != nil {
		return patchStatusOutput{}, err
	}
	original, err := json.Marshal(v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: in.UID}, Status: in.Old})
	if err != nil {
		return patchStatusOutput{}, err
	}
	if in.Patch != nil && string(in.Patch) != "null" {
		if original, err = strategicpatch.StrategicMergePatch(original, in.Patch, v1.Pod{}); err != nil {
			return patchStatusOutput{}, err
		}
	}
	var reached v1.Pod
	if err := json.Unmarshal(original, &reached); err != nil {
		return patchStatusOutput{}, err
	}
	return patchStatusOutput{Patch: theirs, Unchanged: unchanged, Reached: reached.Status, Wanted: in.New}, nil
}
