package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	internal "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/apis/config/scheme"
	conversion "k8s.io/kubernetes/pkg/kubelet/apis/config/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/apis/config/validation"
	"k8s.io/kubernetes/pkg/kubelet/kubeletconfig/util/codec"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	// The formats that the kubelet's own program registers; logging.format is validated against them.
	_ "k8s.io/component-base/logs/json/register"
)

var strictCodecs = mustCodecs()

func mustCodecs() *serializer.CodecFactory {
	_, codecs, err := scheme.NewSchemeAndCodecs(serializer.EnableStrict)
	if err != nil {
		panic(err)
	}
	return codecs
}

// document is a configuration as JSON, or as the text of a file when quoting, duplicates or YAML matter.
type document struct {
	Config json.RawMessage `json:"config"`
	Text   *string         `json:"text"`
}

func (d document) bytes() []byte {
	if d.Text != nil {
		return []byte(*d.Text)
	}
	return d.Config
}

type decodeInput struct {
	document
	Gates map[string]bool `json:"gates"`
}

type decodeOutput struct {
	OK           bool                          `json:"ok"`
	Error        string                        `json:"error,omitempty"`
	StrictErrors []string                      `json:"strictErrors"`
	Config       *v1beta1.KubeletConfiguration `json:"config,omitempty"`
}

// decode is the kubelet's way from a file's bytes to the defaulted internal object. Upstream's defaulting panics on gates
// that it cannot set; that ends a kubelet, so here it is a refusal.
func decode(data []byte) (config *internal.KubeletConfiguration, strict []string, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	strict = []string{}
	if _, _, err := strictCodecs.UniversalDecoder().Decode(data, nil, nil); err != nil {
		if found, ok := runtime.AsStrictDecodingError(err); ok {
			for _, one := range found.Errors() {
				strict = append(strict, one.Error())
			}
		}
	}
	config, err = codec.DecodeKubeletConfiguration(context.Background(), strictCodecs, data)
	return config, strict, err
}

// versioned is the object as /configz shows it.
func versioned(config *internal.KubeletConfiguration) (*v1beta1.KubeletConfiguration, error) {
	out := &v1beta1.KubeletConfiguration{}
	if err := conversion.Convert_config_KubeletConfiguration_To_v1beta1_KubeletConfiguration(config, out, nil); err != nil {
		return nil, err
	}
	out.SetGroupVersionKind(v1beta1.SchemeGroupVersion.WithKind("KubeletConfiguration"))
	return out, nil
}

func configDecode(in decodeInput) (decodeOutput, error) {
	var out decodeOutput
	err := withGates(in.Gates, func() error {
		config, strict, err := decode(in.bytes())
		out.StrictErrors = append([]string{}, strict...)
		if err != nil {
			out.Error = err.Error()
			return nil
		}
		out.OK = true
		out.Config, err = versioned(config)
		return err
	})
	return out, err
}

type defaultInput struct {
	document
	Gates map[string]bool `json:"gates"`
	// Legacy asks for the set that holds without --config, and takes no document.
	Legacy bool `json:"legacy"`
}

func configDefault(in defaultInput) (*v1beta1.KubeletConfiguration, error) {
	var out *v1beta1.KubeletConfiguration
	err := withGates(in.Gates, func() error {
		var config *internal.KubeletConfiguration
		var err error
		if in.Legacy {
			config, err = options.NewKubeletConfiguration()
		} else {
			config, _, err = decode(in.bytes())
		}
		if err != nil {
			return err
		}
		out, err = versioned(config)
		return err
	})
	return out, err
}

type validateInput struct {
	document
	Gates         map[string]bool `json:"gates"`
	CgroupVersion int             `json:"cgroupVersion"`
}

type validateOutput struct {
	OK bool `json:"ok"`
	// Stage is where it was refused: decode or validate.
	Stage  string   `json:"stage,omitempty"`
	Errors []string `json:"errors"`
}

func configValidate(in validateInput) (validateOutput, error) {
	out := validateOutput{Errors: []string{}}
	setCgroupVersion(in.CgroupVersion)
	err := withGates(in.Gates, func() error {
		config, _, err := decode(in.bytes())
		if err != nil {
			out.Stage, out.Errors = "decode", []string{err.Error()}
			return nil
		}
		// The logging rules are part of this call.
		if err := validation.ValidateKubeletConfiguration(config, utilfeature.DefaultFeatureGate); err != nil {
			out.Stage, out.Errors = "validate", messages(err)
			return nil
		}
		out.OK = true
		return nil
	})
	return out, err
}

func messages(err error) []string {
	var many utilerrors.Aggregate
	if !errors.As(err, &many) {
		return []string{err.Error()}
	}
	texts := []string{}
	for _, one := range utilerrors.Flatten(many).Errors() {
		texts = append(texts, one.Error())
	}
	return texts
}

type mergeInput struct {
	document
	Gates   map[string]bool `json:"gates"`
	Dropins []string        `json:"dropins"`
}

// configMerge applies drop-in texts, in the given order, to a configuration file's text.
func configMerge(in mergeInput) (decodeOutput, error) {
	var out decodeOutput
	err := withGates(in.Gates, func() error {
		config, strict, err := decode(in.bytes())
		out.StrictErrors = append([]string{}, strict...)
		if err == nil {
			err = applyDropins(config, in.Dropins)
		}
		if err != nil {
			out.Error = err.Error()
			return nil
		}
		out.OK = true
		out.Config, err = versioned(config)
		return err
	})
	return out, err
}

// applyDropins is the merge that upstream keeps private, composed of the same exported parts.
func applyDropins(config *internal.KubeletConfiguration, dropins []string) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	base := &v1beta1.KubeletConfiguration{}
	if err := conversion.Convert_config_KubeletConfiguration_To_v1beta1_KubeletConfiguration(config, base, nil); err != nil {
		return err
	}
	merged, err := json.Marshal(base)
	if err != nil {
		return err
	}
	for index, text := range dropins {
		patch, kind, err := codec.DecodeKubeletConfigurationIntoJSON(strictCodecs, []byte(text))
		if err != nil {
			return fmt.Errorf("drop-in %d: %w", index, err)
		}
		if kind == nil || *kind != v1beta1.SchemeGroupVersion.WithKind("KubeletConfiguration") {
			return fmt.Errorf("drop-in %d: apiVersion/kind %v", index, kind)
		}
		if merged, err = jsonpatch.MergePatch(merged, patch); err != nil {
			return fmt.Errorf("drop-in %d: %w", index, err)
		}
	}
	result := &v1beta1.KubeletConfiguration{}
	if err := json.Unmarshal(merged, result); err != nil {
		return err
	}
	conversion.SetDefaults_KubeletConfiguration(result)
	return conversion.Convert_v1beta1_KubeletConfiguration_To_config_KubeletConfiguration(result, config, nil)
}
