package main

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	kubepod "k8s.io/kubernetes/pkg/kubelet/pod"
	"k8s.io/kubernetes/pkg/kubelet/status"
)

// observedPod is what a runtime shows of a pod, small enough to be generated.
type observedPod struct {
	Sandboxes  []observedSandbox   `json:"sandboxes"`
	Containers []observedContainer `json:"containers"`
}

type observedSandbox struct {
	ID    string `json:"id"`
	Ready bool   `json:"ready"`
	Host  bool   `json:"host"`
	IP    string `json:"ip"`
}

type observedContainer struct {
	ID           string `json:"id"`
	Name         string `json:"name"`
	Sandbox      string `json:"sandbox"`
	State        string `json:"state"`
	ExitCode     int    `json:"exitCode"`
	Reason       string `json:"reason"`
	Message      string `json:"message"`
	CreatedAt    int64  `json:"createdAt"`
	StartedAt    int64  `json:"startedAt"`
	FinishedAt   int64  `json:"finishedAt"`
	Image        string `json:"image"`
	ImageRef     string `json:"imageRef"`
	RestartCount int    `json:"restartCount"`
}

// podStatus gives upstream's form; both lists come newest first.
func (seen observedPod) podStatus(pod *v1.Pod) *kubecontainer.PodStatus {
	out := &kubecontainer.PodStatus{ID: pod.UID, Name: pod.Name, Namespace: pod.Namespace}
	for _, one := range seen.Sandboxes {
		state, network := runtimeapi.PodSandboxState_SANDBOX_NOTREADY, runtimeapi.NamespaceMode_POD
		if one.Ready {
			state = runtimeapi.PodSandboxState_SANDBOX_READY
		}
		if one.Host {
			network = runtimeapi.NamespaceMode_NODE
		}
		options := &runtimeapi.NamespaceOption{Network: network}
		out.SandboxStatuses = append(out.SandboxStatuses, &runtimeapi.PodSandboxStatus{
			Id:       one.ID,
			State:    state,
			Metadata: &runtimeapi.PodSandboxMetadata{},
			Network:  &runtimeapi.PodSandboxNetworkStatus{Ip: one.IP},
			Linux:    &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: options}},
		})
	}
	for _, one := range seen.Containers {
		converted := &kubecontainer.Status{
			ID:           kubecontainer.ContainerID{Type: "containerd", ID: one.ID},
			Name:         one.Name,
			State:        kubecontainer.State(one.State),
			CreatedAt:    time.Unix(one.CreatedAt, 0),
			StartedAt:    time.Unix(one.StartedAt, 0),
			FinishedAt:   time.Unix(one.FinishedAt, 0),
			ExitCode:     one.ExitCode,
			Reason:       one.Reason,
			Message:      one.Message,
			Image:        one.Image,
			ImageRef:     one.ImageRef,
			RestartCount: one.RestartCount,
		}
		out.ContainerStatuses = append(out.ContainerStatuses, converted)
		if len(seen.Sandboxes) > 0 && seen.Sandboxes[0].Ready && one.Sandbox == seen.Sandboxes[0].ID {
			out.ActiveContainerStatuses = append(out.ActiveContainerStatuses, converted)
		}
	}
	return out
}

type conditionsInput struct {
	Pod         v1.Pod               `json:"pod"`
	Old         v1.PodStatus         `json:"old"`
	Statuses    []v1.ContainerStatus `json:"statuses"`
	Conditions  []v1.PodCondition    `json:"conditions"`
	Phase       v1.PodPhase          `json:"phase"`
	Observation observedPod          `json:"observation"`
}

// statusConditions gives the conditions that a pod's status gets, without transition times.
func statusConditions(in conditionsInput) (map[string]v1.PodCondition, error) {
	seen := in.Observation.podStatus(&in.Pod)
	return map[string]v1.PodCondition{
		"containersReady": status.GenerateContainersReadyCondition(&in.Pod, &in.Old, in.Statuses, in.Phase),
		"ready":           status.GeneratePodReadyCondition(&in.Pod, &in.Old, in.Conditions, in.Statuses, in.Phase),
		"initialized":     status.GeneratePodInitializedCondition(&in.Pod, &in.Old, in.Statuses, in.Phase),
		"readyToStart":    status.GeneratePodReadyToStartContainersCondition(&in.Pod, &in.Old, seen),
		"allRestarting":   status.GenerateAllContainersRestartingCondition(&in.Pod, seen, &in.Old, in.Phase),
	}, nil
}

type settleInput struct {
	Pod v1.Pod `json:"pod"`
	// Old is settled first, New is compared with it.
	Old v1.PodStatus `json:"old"`
	New v1.PodStatus `json:"new"`
}

type settleOutput struct {
	Status  v1.PodStatus `json:"status"`
	Changed bool         `json:"changed"`
}

// statusSettle is what the status manager keeps after two statuses, the second possibly refused.
func statusSettle(in settleInput) (settleOutput, error) {
	in.Pod.UID = "u"
	in.Pod.Status = v1.PodStatus{}
	manager := status.NewManager(nil, kubepod.NewBasicPodManager(), nil, nil)
	if _, changed := manager.SetPodStatus(klog.Background(), &in.Pod, in.Old); !changed {
		return settleOutput{}, fmt.Errorf("the first status was refused")
	}
	kept, changed := manager.SetPodStatus(klog.Background(), &in.Pod, in.New)
	return settleOutput{Status: kept, Changed: changed}, nil
}

type phaseInput struct {
	Pod         v1.Pod               `json:"pod"`
	Statuses    []v1.ContainerStatus `json:"statuses"`
	Terminal    bool                 `json:"terminal"`
	Initialized bool                 `json:"initialized"`
}

func statusPhase(in phaseInput) (v1.PodPhase, error) {
	return getPhase(klog.Background(), &in.Pod, in.Statuses, in.Terminal, in.Initialized), nil
}

type mergeStatusInput struct {
	Pod    v1.Pod       `json:"pod"`
	Old    v1.PodStatus `json:"old"`
	New    v1.PodStatus `json:"new"`
	MayRun bool         `json:"mayRun"`
}

func statusMerge(in mergeStatusInput) (v1.PodStatus, error) {
	return mergePodStatus(&in.Pod, in.Old, in.New, in.MayRun), nil
}

type containersInput struct {
	Pod         v1.Pod               `json:"pod"`
	Previous    []v1.ContainerStatus `json:"previous"`
	Observation observedPod          `json:"observation"`
	// Failures are the reasons of failed starts, by container.
	Failures   map[string]string `json:"failures"`
	Init       bool              `json:"init"`
	Restarting bool              `json:"restarting"`
}

func statusContainers(in containersInput) ([]v1.ContainerStatus, error) {
	in.Pod.UID = types.UID("u")
	return containerStatuses(in), nil
}

type podResourcesInput struct {
	Pod v1.Pod       `json:"pod"`
	Old v1.PodStatus `json:"old"`
	// PageBytes is what the kernel counts memory in.
	PageBytes int64 `json:"pageBytes"`
}

type podResourcesOutput struct {
	Resources *v1.ResourceRequirements `json:"resources"`
	Allocated v1.ResourceList          `json:"allocated,omitempty"`
}

// statusResources gives the resources of a pod as a whole, with a cgroup of version 2 that has what upstream writes to it.
func statusResources(in podResourcesInput) (podResourcesOutput, error) {
	config := cm.ResourceConfigForPod(&in.Pod, true, uint64(cm.QuotaPeriod), false, "")
	return podResourcesOutput{
		Resources: podLevelResources(in, readBack(config, in.PageBytes)),
		Allocated: resourcehelper.PodRequests(&in.Pod, resourcehelper.PodResourcesOptions{}),
	}, nil
}

// readBack is what the files of a cgroup say after the values were written.
func readBack(written *cm.ResourceConfig, pageBytes int64) *cm.ResourceConfig {
	shares := cpuWeightToCPUShares(getCPUWeight(written.CPUShares))
	quota, period, memory := int64(-1), uint64(cm.QuotaPeriod), int64(-1)
	if written.CPUQuota != nil && *written.CPUQuota > 0 {
		quota = *written.CPUQuota
	}
	if written.Memory != nil && *written.Memory > 0 {
		memory = *written.Memory - *written.Memory%pageBytes
	}
	return &cm.ResourceConfig{CPUShares: &shares, CPUQuota: &quota, CPUPeriod: &period, Memory: &memory}
}

// podCgroups has one pod's cgroup.
type podCgroups struct {
	cm.PodContainerManager
	config *cm.ResourceConfig
}

func (c podCgroups) GetPodCgroupConfig(*v1.Pod, v1.ResourceName) (*cm.ResourceConfig, error) {
	return c.config, nil
}

type cgroupsOfNode struct {
	cm.ContainerManager
	pods podCgroups
}

func (c cgroupsOfNode) NewPodContainerManager() cm.PodContainerManager { return c.pods }
