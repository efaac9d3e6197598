package main

import (
	v1 "k8s.io/api/core/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/v1/resource"
	podshelper "k8s.io/kubernetes/pkg/apis/core/pods"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/fieldpath"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/qos"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

type totalsInput struct {
	Pod            v1.Pod          `json:"pod"`
	Gates          map[string]bool `json:"gates"`
	MemoryCapacity int64           `json:"memoryCapacity"`
}

type totalsOutput struct {
	Requests map[string]string `json:"requests"`
	Limits   map[string]string `json:"limits"`
	// OOM has the score adjustment of each container by name.
	OOM map[string]int `json:"oom"`
	// Path is the pod's name below a root, under each driver.
	Cgroupfs string `json:"cgroupfs"`
	Systemd  string `json:"systemd"`
}

func texts(list v1.ResourceList) map[string]string {
	out := map[string]string{}
	for name, quantity := range list {
		out[string(name)] = quantity.String()
	}
	return out
}

func resourceTotals(in totalsInput) (totalsOutput, error) {
	out := totalsOutput{OOM: map[string]int{}}
	err := withGates(in.Gates, func() error {
		options := resourcehelper.PodResourcesOptions{
			SkipPodLevelResources: !utilfeature.DefaultFeatureGate.Enabled(features.PodLevelResources),
		}
		out.Requests = texts(resourcehelper.PodRequests(&in.Pod, options))
		out.Limits = texts(resourcehelper.PodLimits(&in.Pod, options))
		for _, list := range [][]v1.Container{in.Pod.Spec.InitContainers, in.Pod.Spec.Containers} {
			for _, container := range list {
				out.OOM[container.Name] = qos.GetContainerOOMScoreAdjust(&in.Pod, &container, in.MemoryCapacity)
			}
		}
		name := cm.NewCgroupName(cm.ParseCgroupfsToCgroupName("/node/kubepods"), cm.GetPodCgroupNameSuffix(in.Pod.UID))
		out.Cgroupfs, out.Systemd = name.ToCgroupfs(), name.ToSystemd()
		return nil
	})
	return out, err
}

type expandInput struct {
	Text string            `json:"text"`
	Vars map[string]string `json:"vars"`
}

func expandText(in expandInput) (string, error) {
	return expansion.Expand(in.Text, expansion.MappingFuncFor(in.Vars)), nil
}

type fieldInput struct {
	Pod  v1.Pod `json:"pod"`
	Path string `json:"path"`
}

type textOutput struct {
	OK   bool   `json:"ok"`
	Text string `json:"text"`
}

// downwardField reads a field of the pod; fields that the kubelet itself knows (addresses, node name) are not here.
func downwardField(in fieldInput) (textOutput, error) {
	path, _, err := podshelper.ConvertDownwardAPIFieldLabel("v1", in.Path, "")
	if err != nil {
		return textOutput{}, nil
	}
	text, err := fieldpath.ExtractFieldPathAsString(&in.Pod, path)
	return textOutput{OK: err == nil, Text: text}, nil
}

type limitInput struct {
	Container   v1.Container             `json:"container"`
	Selector    v1.ResourceFieldSelector `json:"selector"`
	Allocatable v1.ResourceList          `json:"allocatable"`
}

func downwardResource(in limitInput) (textOutput, error) {
	resource.MergeContainerResourceLimits(&in.Container, in.Allocatable)
	text, err := resource.ExtractContainerResourceValue(&in.Selector, &in.Container)
	return textOutput{OK: err == nil, Text: text}, nil
}

type portOutput struct {
	Protocol      string `json:"protocol"`
	ContainerPort int    `json:"containerPort"`
	HostPort      int    `json:"hostPort"`
	HostIP        string `json:"hostIP"`
}

func portMappings(in containerInput) ([]portOutput, error) {
	out := []portOutput{}
	for _, port := range kubecontainer.MakePortMappings(klog.Background(), &in.Container) {
		out = append(out, portOutput{string(port.Protocol), port.ContainerPort, port.HostPort, port.HostIP})
	}
	return out, nil
}
