package main

import (
	"context"
	"reflect"
	"unsafe"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/kubelet"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

type environmentInput struct {
	Pod        v1.Pod         `json:"pod"`
	ConfigMaps []v1.ConfigMap `json:"configMaps"`
	Secrets    []v1.Secret    `json:"secrets"`
	Services   []v1.Service   `json:"services"`
}

type environmentOutput struct {
	// Problem says why there are no variables.
	Problem   string            `json:"problem"`
	Variables map[string][]byte `json:"variables"`
}

// objects is everything a node of the test knows of the API.
type objects struct{ in environmentInput }

func (objects) RegisterPod(*v1.Pod)   {}
func (objects) UnregisterPod(*v1.Pod) {}

func (o objects) GetConfigMap(namespace, name string) (*v1.ConfigMap, error) {
	for i := range o.in.ConfigMaps {
		if one := &o.in.ConfigMaps[i]; one.Namespace == namespace && one.Name == name {
			return one, nil
		}
	}
	return nil, apierrors.NewNotFound(v1.Resource("configmap"), name)
}

func (o objects) GetSecret(namespace, name string) (*v1.Secret, error) {
	for i := range o.in.Secrets {
		if one := &o.in.Secrets[i]; one.Namespace == namespace && one.Name == name {
			return one, nil
		}
	}
	return nil, apierrors.NewNotFound(v1.Resource("secret"), name)
}

func (o objects) List(labels.Selector) ([]*v1.Service, error) {
	services := []*v1.Service{}
	for i := range o.in.Services {
		services = append(services, &o.in.Services[i])
	}
	return services, nil
}

func setField(node *kubelet.Kubelet, name string, value any) {
	place := reflect.ValueOf(node).Elem().FieldByName(name)
	reflect.NewAt(place.Type(), unsafe.Pointer(place.UnsafeAddr())).Elem().Set(reflect.ValueOf(value))
}

// environment answers for the pod's first container.
func environment(in environmentInput) (environmentOutput, error) {
	node := &kubelet.Kubelet{}
	known := objects{in}
	setField(node, "kubeClient", clientset.Interface(&clientset.Clientset{}))
	setField(node, "configMapManager", known)
	setField(node, "secretManager", known)
	setField(node, "serviceLister", known)
	setField(node, "serviceHasSynced", cache.InformerSynced(func() bool { return true }))
	made, err := makeEnvironmentVariables(node, context.Background(), &in.Pod, &in.Pod.Spec.Containers[0], "", nil, kubecontainer.VolumeMap{})
	if err != nil {
		return environmentOutput{Problem: err.Error()}, nil
	}
	out := environmentOutput{Variables: map[string][]byte{}}
	for _, variable := range made {
		out.Variables[variable.Name] = []byte(variable.Value)
	}
	return out, nil
}
