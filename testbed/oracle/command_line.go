package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	internal "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/apis/config/validation"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	"k8s.io/kubernetes/pkg/kubelet/kubeletconfig/configfiles"
	utilfs "k8s.io/kubernetes/pkg/util/filesystem"
)

// flagSet is the kubelet's whole command line bound to the two given objects. With quiet, flags that write into
// process-wide state (logging, cAdvisor) do nothing, so that a second parse does not count twice.
func flagSet(flags *options.KubeletFlags, config *internal.KubeletConfiguration, quiet bool) *pflag.FlagSet {
	set := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	flags.AddFlags(set)
	options.AddKubeletConfigFlags(set, config)
	if !quiet {
		options.AddGlobalFlags(set)
	} else {
		global := pflag.NewFlagSet("global", pflag.ContinueOnError)
		global.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
		options.AddGlobalFlags(global)
		global.VisitAll(func(one *pflag.Flag) {
			set.VarP(cliflag.NoOp{}, one.Name, one.Shorthand, one.Usage)
			set.Lookup(one.Name).NoOptDefVal = one.NoOptDefVal
		})
	}
	set.BoolP("help", "h", false, "")
	return set
}

type flagRow struct {
	Name       string `json:"name"`
	Shorthand  string `json:"shorthand,omitempty"`
	Type       string `json:"type"`
	Default    string `json:"default"`
	BareValue  string `json:"bareValue,omitempty"`
	Deprecated bool   `json:"deprecated"`
	Hidden     bool   `json:"hidden,omitempty"`
}

func flagTable(nothing) ([]flagRow, error) {
	config, err := options.NewKubeletConfiguration()
	if err != nil {
		return nil, err
	}
	rows := []flagRow{}
	flagSet(options.NewKubeletFlags(), config, false).VisitAll(func(one *pflag.Flag) {
		rows = append(rows, flagRow{
			Name:       one.Name,
			Shorthand:  one.Shorthand,
			Type:       one.Value.Type(),
			Default:    one.DefValue,
			BareValue:  one.NoOptDefVal,
			Deprecated: one.Deprecated != "",
			Hidden:     one.Hidden,
		})
	})
	sort.Slice(rows, func(i, j int) bool { return rows[i].Name < rows[j].Name })
	return rows, nil
}

type effectiveInput struct {
	Args          []string `json:"args"`
	CgroupVersion int      `json:"cgroupVersion"`
}

type effectiveOutput struct {
	OK bool `json:"ok"`
	// Stage is where it was refused: flags, gates, file, dropins, reparse, logging or validate.
	Stage  string                        `json:"stage,omitempty"`
	Errors []string                      `json:"errors"`
	Config *v1beta1.KubeletConfiguration `json:"config,omitempty"`
}

// configEffective is the kubelet's start up to and including validation: what a command line amounts to.
func configEffective(in effectiveInput) (effectiveOutput, error) {
	setCgroupVersion(in.CgroupVersion)
	var out effectiveOutput
	err := withOwnGates(nil, func() error {
		config, stage, err := effective(in.Args)
		if err != nil {
			out.Stage, out.Errors = stage, messages(err)
			return nil
		}
		out.OK, out.Errors = true, []string{}
		out.Config, err = versioned(config)
		return err
	})
	return out, err
}

func effective(args []string) (*internal.KubeletConfiguration, string, error) {
	flags := options.NewKubeletFlags()
	config, err := options.NewKubeletConfiguration()
	if err != nil {
		return nil, "flags", err
	}
	set := flagSet(flags, config, true)
	if err := set.Parse(args); err != nil {
		return nil, "flags", err
	}
	if set.NArg() > 0 {
		return nil, "flags", fmt.Errorf("argument %q is not a flag", set.Arg(0))
	}
	gates := utilfeature.DefaultMutableFeatureGate
	if err := gates.SetFromMap(config.FeatureGates); err != nil {
		return nil, "gates", err
	}
	if err := options.ValidateKubeletFlags(flags); err != nil {
		return nil, "flags", err
	}
	if flags.KubeletConfigFile != "" {
		if config, err = loadFile(flags.KubeletConfigFile); err != nil {
			return nil, "file", err
		}
	}
	if flags.KubeletDropinConfigDirectory != "" {
		texts, err := dropinTexts(flags.KubeletDropinConfigDirectory)
		if err == nil {
			err = applyDropins(config, texts)
		}
		if err != nil {
			return nil, "dropins", err
		}
	}
	if flags.KubeletConfigFile != "" || flags.KubeletDropinConfigDirectory != "" {
		if err := parseAgain(config, args); err != nil {
			return nil, "reparse", err
		}
		if err := gates.SetFromMap(config.FeatureGates); err != nil {
			return nil, "gates", err
		}
	}
	if errs := logsapi.Validate(&config.Logging, gates, field.NewPath("logging")); len(errs) > 0 {
		return nil, "logging", errs.ToAggregate()
	}
	if err := validation.ValidateKubeletConfiguration(config, gates); err != nil {
		return nil, "validate", err
	}
	return config, "", nil
}

// loadFile reads a --config file; hard eviction thresholds have defaults only here.
func loadFile(name string) (config *internal.KubeletConfiguration, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	path, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	loader, err := configfiles.NewFsLoader(&utilfs.DefaultFs{}, path)
	if err != nil {
		return nil, err
	}
	config, err = loader.Load(context.Background())
	if err != nil {
		return nil, err
	}
	absent := config.EvictionHard == nil
	if absent {
		config.EvictionHard = map[string]string{}
	}
	if absent || config.MergeDefaultEvictionSettings {
		for signal, threshold := range eviction.DefaultEvictionHard {
			if _, set := config.EvictionHard[signal]; !set {
				config.EvictionHard[signal] = threshold
			}
		}
	}
	return config, nil
}

func dropinTexts(directory string) ([]string, error) {
	texts := []string{}
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(entry.Name()) != ".conf" {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil && len(text) == 0 {
			err = fmt.Errorf("%s is empty", path)
		}
		texts = append(texts, string(text))
		return err
	})
	return texts, err
}

// parseAgain lets the flags win over the file; gates merge by name instead of being replaced.
func parseAgain(config *internal.KubeletConfiguration, args []string) error {
	fromFile := config.FeatureGates
	if err := flagSet(options.NewKubeletFlags(), config, true).Parse(args); err != nil {
		return err
	}
	for name, value := range fromFile {
		if _, set := config.FeatureGates[name]; !set {
			config.FeatureGates[name] = value
		}
	}
	return nil
}
