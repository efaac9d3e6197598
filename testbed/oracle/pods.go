package main

import (
	"encoding/json"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	api "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	apiv1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/capabilities"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

type podInput struct {
	Pod   json.RawMessage `json:"pod"`
	Gates map[string]bool `json:"gates"`
}

// defaultedPod decodes a v1 Pod as a manifest is decoded: defaults applied, converted to the internal type.
func defaultedPod(data []byte) (*api.Pod, error) {
	object, err := runtime.Decode(legacyscheme.Codecs.UniversalDecoder(), data)
	if err != nil {
		return nil, err
	}
	pod, ok := object.(*api.Pod)
	if !ok {
		return nil, fmt.Errorf("a %T, not a Pod", object)
	}
	return pod, nil
}

func podDefault(in podInput) (*v1.Pod, error) {
	out := &v1.Pod{}
	err := withGates(in.Gates, func() error {
		pod, err := defaultedPod(in.Pod)
		if err != nil {
			return err
		}
		return apiv1.Convert_core_Pod_To_v1_Pod(pod, out, nil)
	})
	return out, err
}

type fieldError struct {
	Type     string `json:"type"`
	Field    string `json:"field"`
	BadValue string `json:"badValue"`
	Detail   string `json:"detail"`
}

type podVerdict struct {
	OK     bool         `json:"ok"`
	Errors []fieldError `json:"errors"`
	// Reference is the kind of API object that a static pod may not refer to, when it does.
	Reference string `json:"reference,omitempty"`
}

func fieldErrors(list field.ErrorList) []fieldError {
	out := []fieldError{}
	for _, one := range list {
		bad, err := json.Marshal(one.BadValue)
		if err != nil {
			bad = []byte(fmt.Sprintf("%v", one.BadValue))
		}
		out = append(out, fieldError{Type: string(one.Type), Field: one.Field, BadValue: string(bad), Detail: one.Detail})
	}
	return out
}

// podValidate judges a pod that already carries what its source adds (name with node, namespace, node name).
func podValidate(in podInput) (podVerdict, error) {
	verdict := podVerdict{Errors: []fieldError{}}
	err := withGates(in.Gates, func() error {
		pod, err := defaultedPod(in.Pod)
		if err != nil {
			return err
		}
		options := podutil.GetValidationOptionsFromPodSpecAndMeta(&pod.Spec, nil, &pod.ObjectMeta, nil)
		verdict.Errors = fieldErrors(validation.ValidatePodCreate(pod, options))
		_, verdict.Reference, err = podutil.HasAPIObjectReference(pod)
		verdict.OK = len(verdict.Errors) == 0 && verdict.Reference == ""
		return err
	})
	return verdict, err
}

// The kubelet allows privileged containers; that is its process-wide setting.
func init() {
	capabilities.Initialize(capabilities.Capabilities{AllowPrivileged: true})
}

type manifestInput struct {
	Text  string          `json:"text"`
	Gates map[string]bool `json:"gates"`
}

// manifestVerdict says what a manifest becomes: refused while decoding, or a defaulted pod with what is wrong with it.
type manifestVerdict struct {
	Decoded bool    `json:"decoded"`
	Pod     *v1.Pod `json:"pod,omitempty"`
	podVerdict
	Error string `json:"error,omitempty"`
}

// podManifest reads a manifest's text as the file source does, without what the source itself adds to the pod.
func podManifest(in manifestInput) (manifestVerdict, error) {
	verdict := manifestVerdict{podVerdict: podVerdict{Errors: []fieldError{}}}
	err := withGates(in.Gates, func() error {
		data, err := utilyaml.ToJSON([]byte(in.Text))
		if err != nil {
			verdict.Error = err.Error()
			return nil
		}
		pod, err := defaultedPod(data)
		if err != nil {
			verdict.Error = err.Error()
			return nil
		}
		verdict.Decoded = true
		verdict.Pod = &v1.Pod{}
		if err := apiv1.Convert_core_Pod_To_v1_Pod(pod.DeepCopy(), verdict.Pod, nil); err != nil {
			return err
		}
		options := podutil.GetValidationOptionsFromPodSpecAndMeta(&pod.Spec, nil, &pod.ObjectMeta, nil)
		verdict.Errors = fieldErrors(validation.ValidatePodCreate(pod, options))
		_, verdict.Reference, err = podutil.HasAPIObjectReference(pod)
		if err != nil {
			verdict.Reference = strings.TrimSpace("unknown " + verdict.Reference)
		}
		verdict.OK = len(verdict.Errors) == 0 && verdict.Reference == ""
		return nil
	})
	return verdict, err
}

type staticInput struct {
	Text string `json:"text"`
	Node string `json:"node"`
	// File or URL is the source's name; one of them is given.
	File  string          `json:"file"`
	URL   string          `json:"url"`
	Gates map[string]bool `json:"gates"`
}

type staticVerdict struct {
	OK   bool     `json:"ok"`
	Pods []v1.Pod `json:"pods,omitempty"`
}

// podStatic goes the whole way of a static pod source, from text to pods that run.
func podStatic(in staticInput) (staticVerdict, error) {
	verdict := staticVerdict{}
	err := withGates(in.Gates, func() error {
		source, isFile := in.File, in.File != ""
		if !isFile {
			source = in.URL
		}
		addDefaults := func(logger klog.Logger, pod *api.Pod) error {
			return applyStaticDefaults(logger, pod, source, isFile, types.NodeName(in.Node))
		}
		logger, data := klog.Background(), []byte(in.Text)
		parsed, pod, err := tryDecodeSinglePod(logger, data, addDefaults)
		if parsed && err == nil {
			verdict = staticVerdict{OK: true, Pods: []v1.Pod{*pod}}
		}
		if parsed || isFile {
			return nil
		}
		if parsed, list, err := tryDecodePodList(logger, data, addDefaults); parsed && err == nil {
			verdict = staticVerdict{OK: true, Pods: list.Items}
		}
		return nil
	})
	return verdict, err
}

type typedPodInput struct {
	Pod   v1.Pod          `json:"pod"`
	Gates map[string]bool `json:"gates"`
}

func qosClass(in typedPodInput) (v1.PodQOSClass, error) {
	var class v1.PodQOSClass
	err := withGates(in.Gates, func() error {
		class = qos.ComputePodQOS(&in.Pod)
		return nil
	})
	return class, err
}

type containerInput struct {
	Container v1.Container `json:"container"`
}

// containerHash is the hash in hexadecimal, as the kubelet writes it into the container's annotation.
func containerHash(in containerInput) (string, error) {
	return fmt.Sprintf("%x", kubecontainer.HashContainer(&in.Container)), nil
}
