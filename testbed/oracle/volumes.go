package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	apiv1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/configmap"
	"k8s.io/kubernetes/pkg/volume/downwardapi"
	"k8s.io/kubernetes/pkg/volume/emptydir"
	"k8s.io/kubernetes/pkg/volume/projected"
	"k8s.io/kubernetes/pkg/volume/secret"
	volumetest "k8s.io/kubernetes/pkg/volume/testing"
	volumeutil "k8s.io/kubernetes/pkg/volume/util"
)

type volumeInput struct {
	// Pod has one volume; what is not in it is defaulted as an API server does.
	Pod        v1.Pod                  `json:"pod"`
	ConfigMaps map[string]v1.ConfigMap `json:"configMaps"`
	Secrets    map[string]v1.Secret    `json:"secrets"`
	Bundles    map[string]string       `json:"bundles"`
	Gates      map[string]bool         `json:"gates"`
}

type volumeFile struct {
	Mode    string `json:"mode"`
	Owner   uint32 `json:"owner"`
	Group   uint32 `json:"group"`
	Content []byte `json:"content"`
}

type volumeOutput struct {
	Files map[string]volumeFile `json:"files,omitempty"`
	// Names are what a container sees at the top.
	Names []string `json:"names,omitempty"`
	Error string   `json:"error,omitempty"`
}

// volumeHost has the objects of one question.
type volumeHost struct {
	volumetest.FakeVolumeHost
	volume.KubeletVolumeHost
	in *volumeInput
}

func (h volumeHost) GetConfigMapFunc() func(namespace, name string) (*v1.ConfigMap, error) {
	return func(_, name string) (*v1.ConfigMap, error) {
		found, ok := h.in.ConfigMaps[name]
		if !ok {
			return nil, apierrors.NewNotFound(v1.Resource("configmap"), name)
		}
		return &found, nil
	}
}

func (h volumeHost) GetSecretFunc() func(namespace, name string) (*v1.Secret, error) {
	return func(_, name string) (*v1.Secret, error) {
		found, ok := h.in.Secrets[name]
		if !ok {
			return nil, apierrors.NewNotFound(v1.Resource("secret"), name)
		}
		return &found, nil
	}
}

func (h volumeHost) GetServiceAccountTokenFunc() func(string, string, *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	return func(_, _ string, asked *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
		audience := strings.Join(asked.Spec.Audiences, ",")
		if audience == "refused" {
			return nil, errors.New("no token")
		}
		asked.Status.Token = fmt.Sprintf("token for %q of %d s", audience, *asked.Spec.ExpirationSeconds)
		return asked, nil
	}
}

func (h volumeHost) GetTrustAnchorsByName(_ context.Context, name string, allowMissing bool) ([]byte, error) {
	found, ok := h.in.Bundles[name]
	if !ok && !allowMissing {
		return nil, fmt.Errorf("no bundle %q", name)
	}
	return []byte(found), nil
}

func (h volumeHost) GetTrustAnchorsBySigner(ctx context.Context, signer string, _ *metav1.LabelSelector, allowMissing bool) ([]byte, error) {
	return h.GetTrustAnchorsByName(ctx, signer, allowMissing)
}

func (h volumeHost) GetPodCertificateCredentialBundle(_ context.Context, _, _, _, volumeName string, source int) ([]byte, []byte, error) {
	return []byte("key\n"), []byte(fmt.Sprintf("chain of %s %d\n", volumeName, source)), nil
}

// volumeFiles sets a volume up with upstream's plugin in a directory of its own, and says what is in it.
func volumeFiles(in volumeInput) (volumeOutput, error) {
	out := volumeOutput{}
	err := withGates(in.Gates, func() error {
		apiv1.SetObjectDefaults_Pod(&in.Pod)
		root, err := os.MkdirTemp("", "oracle-volume-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(root)
		fake := volumetest.NewFakeKubeletVolumeHost(nil, root, &kubernetes.Clientset{}, emptydir.ProbeVolumePlugins())
		host := volumeHost{fake, fake, &in}
		spec := volume.NewSpecFromVolume(&in.Pod.Spec.Volumes[0])
		for _, probe := range []func() []volume.VolumePlugin{
			configmap.ProbeVolumePlugins, secret.ProbeVolumePlugins, projected.ProbeVolumePlugins, downwardapi.ProbeVolumePlugins,
		} {
			plugin := probe()[0]
			if !plugin.CanSupport(spec) {
				continue
			}
			if err := plugin.Init(host); err != nil {
				return err
			}
			return setUpAndRead(plugin, spec, &in.Pod, &out)
		}
		return errors.New("no plugin for this volume")
	})
	return out, err
}

func setUpAndRead(plugin volume.VolumePlugin, spec *volume.Spec, pod *v1.Pod, out *volumeOutput) error {
	mounter, err := plugin.NewMounter(spec, pod)
	if err != nil {
		return err
	}
	arguments := volume.MounterArgs{FsUser: volumeutil.FsUserFrom(pod)}
	if context := pod.Spec.SecurityContext; context != nil {
		arguments.FsGroup = context.FSGroup
	}
	if err := mounter.SetUp(arguments); err != nil {
		out.Error = err.Error()
		return nil
	}
	entries, err := os.ReadDir(mounter.GetPath())
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), "..") {
			out.Names = append(out.Names, entry.Name())
		}
	}
	data, err := filepath.EvalSymlinks(filepath.Join(mounter.GetPath(), "..data"))
	if err != nil {
		return err
	}
	out.Files = map[string]volumeFile{}
	return filepath.WalkDir(data, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		found := syscall.Stat_t{}
		if err := syscall.Stat(path, &found); err != nil {
			return err
		}
		relative, err := filepath.Rel(data, path)
		mode := fmt.Sprintf("%o", found.Mode&0o7777)
		out.Files[relative] = volumeFile{mode, found.Uid, found.Gid, content}
		return err
	})
}
