package main

import (
	"context"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/util"
	envutil "k8s.io/kubernetes/pkg/kubelet/util/env"
	"k8s.io/kubernetes/pkg/securitycontext"
)

type securityInput struct {
	Pod v1.Pod `json:"pod"`
	// The image's user: a number, or else a name.
	UID      *int64 `json:"uid"`
	Username string `json:"username"`
	// SeccompDefault is the node's setting of that name.
	SeccompDefault bool `json:"seccompDefault"`
}

type profileOutput struct {
	Type int32  `json:"type"`
	Ref  string `json:"ref"`
}

type securityOutput struct {
	Effective   *v1.SecurityContext `json:"effective"`
	NoNewPrivs  bool                `json:"noNewPrivs"`
	NonRoot     string              `json:"nonRoot"`
	Seccomp     *profileOutput      `json:"seccomp"`
	AppArmor    *profileOutput      `json:"appArmor"`
	AppArmorOld string              `json:"appArmorOld"`
	Annotations map[string]string   `json:"annotations"`
}

// securityContext answers for the pod's first container.
func securityContext(in securityInput) (securityOutput, error) {
	container := &in.Pod.Spec.Containers[0]
	out := securityOutput{Effective: securitycontext.DetermineEffectiveSecurityContext(&in.Pod, container)}
	out.NoNewPrivs = securitycontext.AddNoNewPrivileges(out.Effective)
	if err := verifyRunAsNonRoot(context.Background(), &in.Pod, container, in.UID, in.Username); err != nil {
		out.NonRoot = err.Error()
	}
	wanted := (*v1.SeccompProfile)(nil)
	if in.Pod.Spec.SecurityContext != nil {
		wanted = in.Pod.Spec.SecurityContext.SeccompProfile
	}
	if container.SecurityContext != nil && container.SecurityContext.SeccompProfile != nil {
		wanted = container.SecurityContext.SeccompProfile
	}
	if profile, err := fieldSeccompProfile(wanted, "/seccomp", in.SeccompDefault); err == nil {
		out.Seccomp = &profileOutput{int32(profile.ProfileType), profile.LocalhostRef}
	}
	if profile, old, err := getAppArmorProfile(&in.Pod, container); err == nil && profile != nil {
		out.AppArmor, out.AppArmorOld = &profileOutput{int32(profile.ProfileType), profile.LocalhostRef}, old
	}
	out.Annotations = newContainerAnnotations(context.Background(), container, &in.Pod, 3, &kubecontainer.RunContainerOptions{})
	return out, nil
}

type envFileInput struct {
	Content string `json:"content"`
	Key     string `json:"key"`
}

// envFile reads a variable from a file; upstream's function opens the file itself.
func envFile(in envFileInput) (textOutput, error) {
	directory, err := os.MkdirTemp("", "oracle")
	if err != nil {
		return textOutput{}, err
	}
	defer os.RemoveAll(directory)
	path := filepath.Join(directory, "env")
	if err := os.WriteFile(path, []byte(in.Content), 0o600); err != nil {
		return textOutput{}, err
	}
	text, err := envutil.ParseEnv(path, in.Key)
	return textOutput{OK: err == nil, Text: text}, nil
}

type nodenameInput struct {
	Hostname string `json:"hostname"`
	Domain   string `json:"domain"`
	FQDN     *bool  `json:"fqdn"`
}

// nodename is what the kernel in a pod is told; a refusal is told in words.
func nodename(in nodenameInput) (textOutput, error) {
	text, err := util.GetNodenameForKernel(in.Hostname, in.Domain, in.FQDN)
	if err != nil {
		return textOutput{Text: err.Error()}, nil
	}
	return textOutput{OK: true, Text: text}, nil
}

type subIDsOutput struct {
	OK     bool   `json:"ok"`
	First  uint32 `json:"first"`
	Length uint32 `json:"length"`
}

func subordinateIDs(in string) (subIDsOutput, error) {
	first, length, err := parseGetSubIdsOutput(in)
	if err != nil {
		return subIDsOutput{}, nil
	}
	return subIDsOutput{true, first, length}, nil
}
