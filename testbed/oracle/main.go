// Command oracle answers questions about Kubernetes by calling its own functions, so that tests can compare
// our code with upstream's on the same input. It reads one JSON request per line and writes one JSON answer per line:
//
//	{"id":1,"op":"quantity","input":{"do":"parse","a":"1Gi"}}
//	{"id":1,"output":{"canonical":"1Gi", ...}}
//
// An answer has either "output" or "error". A panic inside upstream is an answer too, never the end of the process.
// The program decides nothing itself: every op is a thin call. What upstream does not export is reached in linked.go alone.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

type request struct {
	ID    int64           `json:"id"`
	Op    string          `json:"op"`
	Input json.RawMessage `json:"input"`
}

type answer struct {
	ID     int64  `json:"id"`
	Output any    `json:"output,omitempty"`
	Error  string `json:"error,omitempty"`
}

// operation answers one request's input.
type operation func(input json.RawMessage) (any, error)

var operations = map[string]operation{
	"admission":         on(admission),
	"admission.sysctl":  on(sysctlPattern),
	"admission.safe":    on(safeSysctls),
	"admission.host":    on(appArmorHost),
	"credentials":       on(pullCredentials),
	"config.decode":     on(configDecode),
	"config.default":    on(configDefault),
	"config.validate":   on(configValidate),
	"config.merge":      on(configMerge),
	"config.effective":  on(configEffective),
	"flags":             on(flagTable),
	"gates":             on(gateTable),
	"gates.set":         on(gatesSet),
	"pressure":          on(pressure),
	"pod.default":       on(podDefault),
	"pod.validate":      on(podValidate),
	"pod.manifest":      on(podManifest),
	"pod.static":        on(podStatic),
	"qos":               on(qosClass),
	"container.hash":    on(containerHash),
	"cgroup.resources":  on(cgroupResources),
	"cgroup.cpu":        on(cgroupCPU),
	"resources.totals":  on(resourceTotals),
	"expand":            on(expandText),
	"downward.field":    on(downwardField),
	"downward.limit":    on(downwardResource),
	"ports":             on(portMappings),
	"proxy.exceptions":  on(proxyExceptions),
	"quantity":          on(quantity),
	"strategicMerge":    on(strategicMerge),
	"status.conditions": on(statusConditions),
	"status.containers": on(statusContainers),
	"status.merge":      on(statusMerge),
	"status.patch":      on(statusPatch),
	"status.phase":      on(statusPhase),
	"status.resources":  on(statusResources),
	"status.settle":     on(statusSettle),
	"dns":               on(podDNS),
	"name":              on(nameCheck),
	"security":          on(securityContext),
	"env.file":          on(envFile),
	"environment":       on(environment),
	"metrics.page":      on(metricsPage),
	"node.patch":        on(nodePatch),
	"node.status":       on(nodeStatus),
	"nodename":          on(nodename),
	"object":            on(apiObject),
	"object.again":      on(apiObjectAgain),
	"subids":            on(subordinateIDs),
	"selector":          on(labelSelector),
	"cpuset":            on(cpuSet),
	"duration":          on(duration),
	"volume.files":      on(volumeFiles),
}

// on turns a typed function into an operation that refuses unknown input fields, so that a typo in a test is an error.
func on[I any, O any](run func(I) (O, error)) operation {
	return func(raw json.RawMessage) (any, error) {
		var input I
		if len(raw) > 0 {
			decoder := json.NewDecoder(bytes.NewReader(raw))
			decoder.DisallowUnknownFields()
			if err := decoder.Decode(&input); err != nil {
				return nil, fmt.Errorf("request: %w", err)
			}
		}
		return run(input)
	}
}

func respond(line []byte) (reply answer) {
	var asked request
	if err := json.Unmarshal(line, &asked); err != nil {
		return answer{Error: fmt.Sprintf("request: %v", err)}
	}
	reply.ID = asked.ID
	defer func() {
		if cause := recover(); cause != nil {
			reply.Output = nil
			reply.Error = fmt.Sprintf("panic: %v\n%s", cause, debug.Stack())
		}
	}()
	run, known := operations[asked.Op]
	if !known {
		reply.Error = fmt.Sprintf("request: no operation %q", asked.Op)
		return reply
	}
	output, err := run(asked.Input)
	if err != nil {
		reply.Error = err.Error()
		return reply
	}
	reply.Output = output
	return reply
}

func serve(in io.Reader, out io.Writer) error {
	reader := bufio.NewReaderSize(in, 1<<20)
	writer := bufio.NewWriterSize(out, 1<<20)
	encoder := json.NewEncoder(writer)
	encoder.SetEscapeHTML(false)
	for {
		line, err := reader.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			if err := encoder.Encode(respond(line)); err != nil {
				return err
			}
		}
		// Answers leave when nothing more is waiting, so that a pipelined batch costs few writes.
		if reader.Buffered() == 0 || err != nil {
			if err := writer.Flush(); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func main() {
	klog.SetLogger(logr.Discard())
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", err)
		os.Exit(1)
	}
}
