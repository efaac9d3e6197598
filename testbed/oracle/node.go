package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"slices"
	"sort"
	"time"

	cadvisorapi "github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/nodestatus"
	"k8s.io/kubernetes/pkg/kubelet/util/sliceutils"
	netutils "k8s.io/utils/net"
)

type nodeStatusInput struct {
	Node       v1.Node  `json:"node"`
	NowSeconds int64    `json:"nowSeconds"`
	NodeIPs    []string `json:"nodeIPs"`
	Hostname   string   `json:"hostname"`
	External   bool     `json:"external"`
	// Own are the addresses of the machine, Route is the one of its default route.
	Own             []string              `json:"own"`
	Route           string                `json:"route"`
	Machine         nodeMachine           `json:"machine"`
	RuntimeName     string                `json:"runtimeName"`
	RuntimeVersion  string                `json:"runtimeVersion"`
	Port            int32                 `json:"port"`
	MaxImages       int32                 `json:"maxImages"`
	Images          []nodeImage           `json:"images"`
	Handlers        []nodeHandler         `json:"handlers"`
	GroupsPolicy    bool                  `json:"groupsPolicy"`
	Memory          bool                  `json:"memory"`
	Disk            bool                  `json:"disk"`
	Pid             bool                  `json:"pid"`
	RuntimeProblems []string              `json:"runtimeProblems"`
	NetworkProblem  string                `json:"networkProblem"`
	CountsStorage   bool                  `json:"countsStorage"`
	VolumesInUse    []v1.UniqueVolumeName `json:"volumesInUse"`
}

type nodeMachine struct {
	Cores       int             `json:"cores"`
	Memory      uint64          `json:"memory"`
	Swap        uint64          `json:"swap"`
	Pages       []nodePages     `json:"pages"`
	Storage     v1.ResourceList `json:"storage"`
	Reserved    v1.ResourceList `json:"reserved"`
	MaxPods     int             `json:"maxPods"`
	PodsPerCore int             `json:"podsPerCore"`
	BootID      string          `json:"bootID"`
}

type nodePages struct {
	SizeKiB uint64 `json:"sizeKiB"`
	Count   uint64 `json:"count"`
}

type nodeImage struct {
	ID      string   `json:"id"`
	Tags    []string `json:"tags"`
	Digests []string `json:"digests"`
	Size    int64    `json:"size"`
}

type nodeHandler struct {
	Name     string `json:"name"`
	Mounts   bool   `json:"mounts"`
	UserName bool   `json:"users"`
}

type nodeStatusOutput struct {
	Node   v1.Node  `json:"node"`
	Events []string `json:"events"`
}

func joinedProblems(problems ...string) error {
	var all []error
	for _, problem := range problems {
		if problem != "" {
			all = append(all, errors.New(problem))
		}
	}
	return utilerrors.NewAggregate(all)
}

// nodeStatus runs upstream's setters in upstream's order.
func nodeStatus(in nodeStatusInput) (nodeStatusOutput, error) {
	node := in.Node.DeepCopy()
	events := []string{}
	var nodeIPs []net.IP
	for _, text := range in.NodeIPs {
		nodeIPs = append(nodeIPs, netutils.ParseIPSloppy(text))
	}
	isOwn := func(ip net.IP) error {
		if slices.Contains(in.Own, ip.String()) {
			return nil
		}
		return errors.New("not an address of this machine")
	}
	route := func(net.IP) (net.IP, error) { return netutils.ParseIPSloppy(in.Route), nil }
	info := &cadvisorapi.MachineInfo{
		NumCores: in.Machine.Cores, MemoryCapacity: in.Machine.Memory, SwapCapacity: in.Machine.Swap,
		MachineID: "machine", SystemUUID: "system", BootID: in.Machine.BootID,
	}
	for _, pages := range in.Machine.Pages {
		info.HugePages = append(info.HugePages, cadvisorapi.HugePagesInfo{PageSize: pages.SizeKiB, NumPages: pages.Count})
	}
	var images []kubecontainer.Image
	for _, image := range in.Images {
		images = append(images, kubecontainer.Image{ID: image.ID, RepoTags: image.Tags, RepoDigests: image.Digests, Size: image.Size})
	}
	sort.Sort(sliceutils.ByImageSize(images))
	var handlers []kubecontainer.RuntimeHandler
	for _, handler := range in.Handlers {
		handlers = append(handlers, kubecontainer.RuntimeHandler{
			Name: handler.Name, SupportsRecursiveReadOnlyMounts: handler.Mounts, SupportsUserNamespaces: handler.UserName,
		})
	}
	now := func() time.Time { return time.Unix(in.NowSeconds, 0) }
	status := func(_ klog.Logger, _, event string) { events = append(events, event) }
	pressure := func(is bool) func() bool { return func() bool { return is } }
	isInUserNamespace := false
	setters := []nodestatus.Setter{
		nodestatus.NodeAddress(nodeIPs, isOwn, in.Hostname, in.External, route),
		nodestatus.MachineInfo(node.Name, in.Machine.MaxPods, in.Machine.PodsPerCore,
			func() (*cadvisorapi.MachineInfo, error) { return info, nil },
			func(klog.Logger, bool) v1.ResourceList { return in.Machine.Storage },
			func(klog.Logger) (v1.ResourceList, v1.ResourceList, []string) { return nil, nil, nil },
			func() v1.ResourceList { return in.Machine.Reserved },
			// Told once in the life of a process, which is of no use here.
			func(string, string, string) {},
			func() *bool { return &isInUserNamespace }, in.CountsStorage),
		nodestatus.VersionInfo(
			func() (*cadvisorapi.VersionInfo, error) {
				return &cadvisorapi.VersionInfo{KernelVersion: "kernel", ContainerOsVersion: "os"}, nil
			},
			func() string { return in.RuntimeName },
			func(context.Context) (kubecontainer.Version, error) {
				if version, err := utilversion.ParseSemantic(in.RuntimeVersion); err == nil {
					return version, nil
				}
				return utilversion.ParseGeneric(in.RuntimeVersion)
			}),
		nodestatus.DaemonEndpoints(&v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: in.Port}}),
		nodestatus.Images(in.MaxImages, func() ([]kubecontainer.Image, error) { return images, nil }),
		nodestatus.GoRuntime(),
		nodestatus.RuntimeHandlers(func() []kubecontainer.RuntimeHandler { return handlers }),
		nodestatus.NodeFeatures(func() *kubecontainer.RuntimeFeatures {
			return &kubecontainer.RuntimeFeatures{SupplementalGroupsPolicy: in.GroupsPolicy}
		}),
		nodestatus.MemoryPressureCondition(now, pressure(in.Memory), status),
		nodestatus.DiskPressureCondition(now, pressure(in.Disk), status),
		nodestatus.PIDPressureCondition(now, pressure(in.Pid), status),
		nodestatus.ReadyCondition(now,
			func() error { return joinedProblems(in.RuntimeProblems...) },
			func() error { return joinedProblems(in.NetworkProblem) },
			func() error { return nil },
			func() cm.Status { return cm.Status{} },
			func() error { return nil }, status, in.CountsStorage),
		nodestatus.VolumesInUse(func() bool { return true }, func() []v1.UniqueVolumeName { return in.VolumesInUse }),
	}
	for _, set := range setters {
		// What a setter cannot set stays, and upstream only logs it.
		_ = set(context.Background(), node)
	}
	return nodeStatusOutput{Node: *node, Events: events}, nil
}

type nodePatchInput struct {
	Old v1.Node `json:"old"`
	New v1.Node `json:"new"`
}

type nodePatchOutput struct {
	Patch   json.RawMessage `json:"patch"`
	Changed bool            `json:"changed"`
}

func nodePatch(in nodePatchInput) (nodePatchOutput, error) {
	patch, err := nodePatchBytes("n", &in.Old, &in.New)
	return nodePatchOutput{Patch: patch, Changed: nodeStatusHasChanged(&in.Old.Status, &in.New.Status)}, err
}
