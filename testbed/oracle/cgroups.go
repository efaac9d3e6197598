package main

import (
	v1 "k8s.io/api/core/v1"
	internal "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm"
)

type cgroupInput struct {
	Pod                     v1.Pod          `json:"pod"`
	Gates                   map[string]bool `json:"gates"`
	EnforceCPULimits        bool            `json:"enforceCPULimits"`
	CPUPeriodUs             uint64          `json:"cpuPeriodUs"`
	EnforceMemoryQoS        bool            `json:"enforceMemoryQoS"`
	MemoryReservationPolicy string          `json:"memoryReservationPolicy"`
	// MemoryThrottlingFactor, when set, also asks for the pod's memory.high.
	MemoryThrottlingFactor *float64 `json:"memoryThrottlingFactor"`
}

type cgroupOutput struct {
	Memory        *int64            `json:"memory,omitempty"`
	CPUShares     *uint64           `json:"cpuShares,omitempty"`
	CPUQuota      *int64            `json:"cpuQuota,omitempty"`
	CPUPeriod     *uint64           `json:"cpuPeriod,omitempty"`
	HugePageLimit map[int64]int64   `json:"hugePageLimit,omitempty"`
	Unified       map[string]string `json:"unified,omitempty"`
}

func cgroupResources(in cgroupInput) (cgroupOutput, error) {
	var out cgroupOutput
	err := withGates(in.Gates, func() error {
		policy := internal.MemoryReservationPolicy(in.MemoryReservationPolicy)
		found := cm.ResourceConfigForPod(&in.Pod, in.EnforceCPULimits, in.CPUPeriodUs, in.EnforceMemoryQoS, policy)
		if in.MemoryThrottlingFactor != nil {
			cm.ApplyPodLevelMemoryHigh(&in.Pod, found, *in.MemoryThrottlingFactor)
		}
		out = cgroupOutput{
			Memory:        found.Memory,
			CPUShares:     found.CPUShares,
			CPUQuota:      found.CPUQuota,
			CPUPeriod:     found.CPUPeriod,
			HugePageLimit: found.HugePageLimit,
			Unified:       found.Unified,
		}
		return nil
	})
	return out, err
}

type cpuInput struct {
	MilliCPU int64 `json:"milliCPU"`
	PeriodUs int64 `json:"periodUs"`
}

type cpuOutput struct {
	Shares             uint64 `json:"shares"`
	Quota              int64  `json:"quota"`
	MilliCPUFromShares int64  `json:"milliCPUFromShares"`
	MilliCPUFromQuota  int64  `json:"milliCPUFromQuota"`
}

func cgroupCPU(in cpuInput) (cpuOutput, error) {
	shares := cm.MilliCPUToShares(in.MilliCPU)
	quota := cm.MilliCPUToQuota(in.MilliCPU, in.PeriodUs)
	out := cpuOutput{Shares: shares, Quota: quota, MilliCPUFromShares: cm.SharesToMilliCPU(int64(shares))}
	if in.PeriodUs != 0 {
		out.MilliCPUFromQuota = cm.QuotaToMilliCPU(quota, in.PeriodUs)
	}
	return out, nil
}
