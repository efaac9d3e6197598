package main

import (
	"context"
	"errors"
	"reflect"
	"unsafe"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/version"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	_ "k8s.io/kubernetes/pkg/kubelet/config"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	evictionapi "k8s.io/kubernetes/pkg/kubelet/eviction/api"
)

// The rules of phases, container statuses, merging, static pods, safe sysctls, security contexts and pressure have no exported door. They are reached by name here, and only here; a
// signature that changes upstream breaks the comparison at once. linked.s lets the compiler accept functions without bodies.

//go:linkname getPhase k8s.io/kubernetes/pkg/kubelet.getPhase
func getPhase(logger klog.Logger, pod *v1.Pod, info []v1.ContainerStatus, podIsTerminal, podHasInitialized bool) v1.PodPhase

//go:linkname mergePodStatus k8s.io/kubernetes/pkg/kubelet/status.mergePodStatus
func mergePodStatus(pod *v1.Pod, oldPodStatus, newPodStatus v1.PodStatus, couldHaveRunningContainers bool) v1.PodStatus

//go:linkname preparePatchBytesForPodStatus k8s.io/kubernetes/pkg/util/pod.preparePatchBytesForPodStatus
func preparePatchBytesForPodStatus(namespace, name string, uid types.UID, oldPodStatus, newPodStatus v1.PodStatus) ([]byte, bool, error)

//go:linkname convertToAPIContainerStatuses k8s.io/kubernetes/pkg/kubelet.(*Kubelet).convertToAPIContainerStatuses
func convertToAPIContainerStatuses(kl *kubelet.Kubelet, ctx context.Context, pod *v1.Pod, podStatus *kubecontainer.PodStatus, previousStatus []v1.ContainerStatus, containers []v1.Container, imageVolumeNames sets.Set[string], hasInitContainers, isInitContainer bool, podRestarting bool) []v1.ContainerStatus

//go:linkname convertToAPIPodLevelResourcesStatus k8s.io/kubernetes/pkg/kubelet.(*Kubelet).convertToAPIPodLevelResourcesStatus
func convertToAPIPodLevelResourcesStatus(kl *kubelet.Kubelet, logger klog.Logger, allocatedPod *v1.Pod, oldPodStatus v1.PodStatus) *v1.ResourceRequirements

//go:linkname getCPUWeight k8s.io/kubernetes/pkg/kubelet/cm.getCPUWeight
func getCPUWeight(cpuShares *uint64) uint64

//go:linkname cpuWeightToCPUShares k8s.io/kubernetes/pkg/kubelet/cm.cpuWeightToCPUShares
func cpuWeightToCPUShares(cpuWeight uint64) uint64

//go:linkname addReason k8s.io/kubernetes/pkg/kubelet.(*ReasonCache).add
func addReason(c *kubelet.ReasonCache, uid types.UID, name string, reason error, message string)

//go:linkname tryDecodeSinglePod k8s.io/kubernetes/pkg/kubelet/config.tryDecodeSinglePod
func tryDecodeSinglePod(logger klog.Logger, data []byte, defaultFn func(klog.Logger, *api.Pod) error) (bool, *v1.Pod, error)

//go:linkname tryDecodePodList k8s.io/kubernetes/pkg/kubelet/config.tryDecodePodList
func tryDecodePodList(logger klog.Logger, data []byte, defaultFn func(klog.Logger, *api.Pod) error) (bool, v1.PodList, error)

//go:linkname applyStaticDefaults k8s.io/kubernetes/pkg/kubelet/config.applyDefaults
func applyStaticDefaults(logger klog.Logger, pod *api.Pod, source string, isFile bool, nodeName types.NodeName) error

//go:linkname safeSysctlAllowlist k8s.io/kubernetes/pkg/kubelet/sysctl.getSafeSysctlAllowlist
func safeSysctlAllowlist(ctx context.Context, getVersion func() (*version.Version, error)) []string

//go:linkname verifyRunAsNonRoot k8s.io/kubernetes/pkg/kubelet/kuberuntime.verifyRunAsNonRoot
func verifyRunAsNonRoot(ctx context.Context, pod *v1.Pod, container *v1.Container, uid *int64, username string) error

//go:linkname fieldSeccompProfile k8s.io/kubernetes/pkg/kubelet/kuberuntime.fieldSeccompProfile
func fieldSeccompProfile(scmp *v1.SeccompProfile, profileRootPath string, fallbackToRuntimeDefault bool) (*runtimeapi.SecurityProfile, error)

//go:linkname getAppArmorProfile k8s.io/kubernetes/pkg/kubelet/kuberuntime.getAppArmorProfile
func getAppArmorProfile(pod *v1.Pod, container *v1.Container) (*runtimeapi.SecurityProfile, string, error)

//go:linkname newContainerAnnotations k8s.io/kubernetes/pkg/kubelet/kuberuntime.newContainerAnnotations
func newContainerAnnotations(ctx context.Context, container *v1.Container, pod *v1.Pod, restartCount int, opts *kubecontainer.RunContainerOptions) map[string]string

//go:linkname evictionSynchronize k8s.io/kubernetes/pkg/kubelet/eviction.(*managerImpl).synchronize
func evictionSynchronize(manager unsafe.Pointer, ctx context.Context, disks eviction.DiskInfoProvider, pods eviction.ActivePodsFunc) ([]*v1.Pod, error)

//go:linkname nodePatchBytes k8s.io/component-helpers/node/util.preparePatchBytesforNodeStatus
func nodePatchBytes(name types.NodeName, old, new *v1.Node) ([]byte, error)

//go:linkname nodeStatusHasChanged k8s.io/kubernetes/pkg/kubelet.nodeStatusHasChanged
func nodeStatusHasChanged(old, new *v1.NodeStatus) bool

//go:linkname parseGetSubIdsOutput k8s.io/kubernetes/pkg/kubelet.parseGetSubIdsOutput
func parseGetSubIdsOutput(input string) (uint32, uint32, error)

//go:linkname makeEnvironmentVariables k8s.io/kubernetes/pkg/kubelet.(*Kubelet).makeEnvironmentVariables
func makeEnvironmentVariables(kl *kubelet.Kubelet, ctx context.Context, pod *v1.Pod, container *v1.Container, podIP string, podIPs []string, podVolumes kubecontainer.VolumeMap) ([]kubecontainer.EnvVar, error)

// synchronizePressure has the manager look at the node once.
func synchronizePressure(manager eviction.Manager, disks eviction.DiskInfoProvider) error {
	pods := func() []*v1.Pod { return nil }
	_, err := evictionSynchronize(reflect.ValueOf(manager).UnsafePointer(), context.Background(), disks, pods)
	return err
}

func pressureField[T any](manager eviction.Manager, name string) *T {
	place := reflect.ValueOf(manager).Elem().FieldByName(name)
	return (*T)(unsafe.Pointer(place.UnsafeAddr()))
}

func pressureDue(manager eviction.Manager) []evictionapi.Threshold {
	return *pressureField[[]evictionapi.Threshold](manager, "thresholdsMet")
}

func setNodeConditions(manager eviction.Manager, conditions []v1.NodeConditionType) {
	*pressureField[[]v1.NodeConditionType](manager, "nodeConditions") = conditions
}

func podLevelResources(in podResourcesInput, config *cm.ResourceConfig) *v1.ResourceRequirements {
	node := &kubelet.Kubelet{}
	place := reflect.ValueOf(node).Elem().FieldByName("containerManager")
	*(*cm.ContainerManager)(unsafe.Pointer(place.UnsafeAddr())) = cgroupsOfNode{pods: podCgroups{config: config}}
	return convertToAPIPodLevelResourcesStatus(node, klog.Background(), &in.Pod, in.Old)
}

func containerStatuses(in containersInput) []v1.ContainerStatus {
	reasons := kubelet.NewReasonCache()
	for name, reason := range in.Failures {
		addReason(reasons, in.Pod.UID, name, errors.New(reason), "because of "+name)
	}
	node := &kubelet.Kubelet{}
	place := reflect.ValueOf(node).Elem().FieldByName("reasonCache")
	*(**kubelet.ReasonCache)(unsafe.Pointer(place.UnsafeAddr())) = reasons
	containers := in.Pod.Spec.Containers
	if in.Init {
		containers = in.Pod.Spec.InitContainers
	}
	hasInit := len(in.Pod.Spec.InitContainers) > 0
	seen := in.Observation.podStatus(&in.Pod)
	old := v1.PodStatus{ContainerStatuses: in.Previous}
	if in.Init {
		old = v1.PodStatus{InitContainerStatuses: in.Previous}
	}
	restarting := in.Restarting || kubecontainer.ShouldAllContainersRestart(&in.Pod, seen, &old)
	return convertToAPIContainerStatuses(node, context.Background(), &in.Pod, seen, in.Previous, containers, nil, hasInit, in.Init, restarting)
}
