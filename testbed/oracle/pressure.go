package main

import (
	"context"
	"sort"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	testingclock "k8s.io/utils/clock/testing"
)

type pressureInput struct {
	Hard              map[string]string `json:"hard"`
	Soft              map[string]string `json:"soft"`
	SoftGrace         map[string]string `json:"softGrace"`
	MinimumReclaim    map[string]string `json:"minimumReclaim"`
	Enforced          []string          `json:"enforced"`
	TransitionSeconds int64             `json:"transitionSeconds"`
	// ImagesApart and ContainersApart say which filesystems are not the one before.
	ImagesApart     bool            `json:"imagesApart"`
	ContainersApart bool            `json:"containersApart"`
	Rounds          []pressureRound `json:"rounds"`
}

type pressureRound struct {
	AtSeconds    int64    `json:"atSeconds"`
	Memory       memoryIn `json:"memory"`
	Pods         memoryIn `json:"pods"`
	NodeFs       diskIn   `json:"nodefs"`
	ImageFs      diskIn   `json:"imagefs"`
	ContainerFs  diskIn   `json:"containerfs"`
	MaxProcesses int64    `json:"maxProcesses"`
	Processes    int64    `json:"processes"`
}

type memoryIn struct {
	Available  uint64 `json:"available"`
	WorkingSet uint64 `json:"workingSet"`
}

type diskIn struct {
	Available  uint64 `json:"available"`
	Capacity   uint64 `json:"capacity"`
	InodesFree uint64 `json:"inodesFree"`
	Inodes     uint64 `json:"inodes"`
}

type pressureOutput struct {
	Memory bool `json:"memory"`
	Disk   bool `json:"disk"`
	Pid    bool `json:"pid"`
	// Due are the thresholds whose grace period is over, hard ones marked.
	Due []string `json:"due"`
}

func (m memoryIn) stats(at metav1.Time) *statsapi.MemoryStats {
	return &statsapi.MemoryStats{Time: at, AvailableBytes: &m.Available, WorkingSetBytes: &m.WorkingSet}
}

func (d diskIn) stats(at metav1.Time) *statsapi.FsStats {
	return &statsapi.FsStats{Time: at, AvailableBytes: &d.Available, CapacityBytes: &d.Capacity, InodesFree: &d.InodesFree, Inodes: &d.Inodes}
}

// told answers with the round that it was told last.
type told struct {
	round pressureRound
	at    metav1.Time
}

func (t *told) Get(context.Context, bool) (*statsapi.Summary, error) {
	r := t.round
	pods := statsapi.ContainerStats{Name: statsapi.SystemContainerPods, Memory: r.Pods.stats(t.at)}
	return &statsapi.Summary{Node: statsapi.NodeStats{
		Memory:           r.Memory.stats(t.at),
		Fs:               r.NodeFs.stats(t.at),
		Runtime:          &statsapi.RuntimeStats{ImageFs: r.ImageFs.stats(t.at), ContainerFs: r.ContainerFs.stats(t.at)},
		Rlimit:           &statsapi.RlimitStats{Time: t.at, MaxPID: &r.MaxProcesses, NumOfRunningProcesses: &r.Processes},
		SystemContainers: []statsapi.ContainerStats{pods},
	}}, nil
}

func (t *told) GetCPUAndMemoryStats(ctx context.Context) (*statsapi.Summary, error) {
	return t.Get(ctx, false)
}

type disks struct{ images, containers bool }

func (d disks) HasDedicatedImageFs(context.Context) (bool, error)     { return d.images, nil }
func (d disks) HasDedicatedContainerFs(context.Context) (bool, error) { return d.containers, nil }

// collector finds nothing to collect.
type collector struct{}

func (collector) DeleteUnusedImages(context.Context) error        { return nil }
func (collector) DeleteAllUnusedContainers(context.Context) error { return nil }

func evictionManager(config eviction.Config, summary *told, clock *testingclock.FakeClock) (eviction.Manager, lifecycle.PodAdmitHandler) {
	kill := func(*v1.Pod, bool, *int64, func(*v1.PodStatus)) error { return nil }
	node := &v1.ObjectReference{Kind: "Node", Name: "node"}
	return eviction.NewManager(summary, config, kill, collector{}, collector{}, &record.FakeRecorder{}, node, clock, false)
}

// pressure runs the kubelet's own eviction manager through rounds of readings, on a node without pods.
func pressure(in pressureInput) ([]pressureOutput, error) {
	thresholds, err := eviction.ParseThresholdConfig(in.Enforced, in.Hard, in.Soft, in.SoftGrace, in.MinimumReclaim)
	if err != nil {
		return nil, err
	}
	clock := testingclock.NewFakeClock(time.Unix(1, 0))
	summary := &told{}
	config := eviction.Config{Thresholds: thresholds, PressureTransitionPeriod: time.Duration(in.TransitionSeconds) * time.Second}
	manager, _ := evictionManager(config, summary, clock)
	outputs := []pressureOutput{}
	for _, round := range in.Rounds {
		clock.SetTime(time.Unix(1+round.AtSeconds, 0))
		summary.round, summary.at = round, metav1.NewTime(clock.Now())
		if err := synchronizePressure(manager, disks{images: in.ImagesApart, containers: in.ContainersApart}); err != nil {
			return nil, err
		}
		due := []string{}
		for _, threshold := range pressureDue(manager) {
			kind := "soft"
			if threshold.GracePeriod == 0 {
				kind = "hard"
			}
			due = append(due, kind+" "+string(threshold.Signal))
		}
		sort.Strings(due)
		outputs = append(outputs, pressureOutput{
			Memory: manager.IsUnderMemoryPressure(),
			Disk:   manager.IsUnderDiskPressure(),
			Pid:    manager.IsUnderPIDPressure(),
			Due:    due,
		})
	}
	return outputs, nil
}

// pressureGate is the kubelet's own handler on a node with these conditions.
func pressureGate(conditions []v1.NodeConditionType) lifecycle.PodAdmitHandler {
	clock := testingclock.NewFakeClock(time.Unix(1, 0))
	manager, handler := evictionManager(eviction.Config{}, &told{}, clock)
	setNodeConditions(manager, conditions)
	return handler
}
