//! The corpus of configurations: every rule of upstream's validation from both sides, decoding, defaults and drop-ins.

use serde_json::{Map, Value, json};

use super::Set;

pub(super) fn sets() -> Vec<Set> {
    vec![
        Set::new("config_validation.jsonl", "config.validate", validations()),
        Set::new("config_decoding.jsonl", "config.decode", decodings()),
        Set::new("config_defaults.jsonl", "config.default", defaults()),
        Set::new("config_merging.jsonl", "config.merge", mergings()),
    ]
}

/// A configuration with the given fields and nothing else.
pub fn configuration(fields: &Value) -> Value {
    let mut whole = Map::new();
    whole.insert("apiVersion".to_owned(), "kubelet.config.k8s.io/v1beta1".into());
    whole.insert("kind".to_owned(), "KubeletConfiguration".into());
    whole.extend(fields.as_object().cloned().unwrap_or_default());
    Value::Object(whole)
}

/// Every field that has a rule: its name and a list of values on both sides of the rule.
pub fn field_values() -> Vec<(&'static str, Value)> {
    let mut all = numbers();
    all.extend(words());
    all.extend(durations());
    all.extend(structures());
    all
}

fn numbers() -> Vec<(&'static str, Value)> {
    vec![
        ("nodeLeaseDurationSeconds", json!([-1, 0, 1, 40])),
        ("eventBurst", json!([-1, 0, 1])),
        ("eventRecordQPS", json!([-1, 0, 1])),
        ("healthzPort", json!([-1, 0, 1, 65535, 65536])),
        ("imageGCHighThresholdPercent", json!([-1, 0, 80, 81, 100, 101])),
        ("imageGCLowThresholdPercent", json!([-1, 0, 84, 85, 86, 101])),
        ("iptablesDropBit", json!([-1, 0, 31, 32])),
        ("iptablesMasqueradeBit", json!([-1, 0, 31, 32])),
        ("kubeAPIBurst", json!([-1, 0, 1])),
        ("kubeAPIQPS", json!([-1, 0, 1])),
        ("nodeStatusMaxImages", json!([-2, -1, 0, 1])),
        ("maxOpenFiles", json!([-1, 0, 1, 9_223_372_036_854_775_807_i64])),
        ("maxPods", json!([-1, 0, 1, 2_147_483_647, 2_147_483_648_i64])),
        ("oomScoreAdj", json!([-1001, -1000, 0, 1000, 1001])),
        ("podsPerCore", json!([-1, 0, 1])),
        ("port", json!([-1, 0, 1, 65535, 65536])),
        ("readOnlyPort", json!([-1, 0, 1, 65535, 65536])),
        ("registryBurst", json!([-1, 0, 1])),
        ("registryPullQPS", json!([-1, 0, 1])),
        ("maxParallelImagePulls", json!([-1, 0, 1, 2])),
        ("containerLogMaxWorkers", json!([-1, 0, 1])),
        ("containerLogMaxFiles", json!([-1, 0, 1, 2])),
        (
            "memoryThrottlingFactor",
            json!([-0.1, 0, 0.0, 0.1, 0.9, 1, 1.0, 1.1]),
        ),
        ("podPidsLimit", json!([-2, -1, 0, 100])),
    ]
}

fn words() -> Vec<(&'static str, Value)> {
    vec![
        (
            "topologyManagerPolicy",
            json!([
                "",
                "none",
                "best-effort",
                "restricted",
                "single-numa-node",
                "None",
                "other"
            ]),
        ),
        (
            "topologyManagerScope",
            json!(["", "container", "pod", "Pod", "node"]),
        ),
        (
            "hairpinMode",
            json!(["", "none", "hairpin-veth", "promiscuous-bridge", "veth"]),
        ),
        ("cpuManagerPolicy", json!(["", "none", "static", "other"])),
        ("memoryManagerPolicy", json!(["", "None", "Static", "other"])),
        ("cgroupDriver", json!(["", "cgroupfs", "systemd", "other"])),
        (
            "memoryReservationPolicy",
            json!(["", "None", "TieredReservation", "none"]),
        ),
        (
            "imagePullCredentialsVerificationPolicy",
            json!([
                "",
                "NeverVerify",
                "NeverVerifyPreloadedImages",
                "NeverVerifyAllowlistedImages",
                "AlwaysVerify",
                "Never"
            ]),
        ),
        ("containerRuntimeEndpoint", json!(["", "unix:///run/x.sock", "x"])),
        ("reservedSystemCPUs", json!(["", "0", "0-3", "3-0", "a", "0,"])),
        (
            "podLogsDir",
            json!([
                "",
                "/",
                "/var/log/pods",
                "/var/log/pods/",
                "/var/../log",
                "var/log",
                "./x",
                "/var/lög",
                "/a//b"
            ]),
        ),
        (
            "showHiddenMetricsForVersion",
            json!(["", "1.36", "1.35", "1.37", "1.38", "1", "1.36.0", "v1.36", "x"]),
        ),
        ("systemCgroups", json!(["", "/system"])),
        (
            "configMapAndSecretChangeDetectionStrategy",
            json!(["", "Get", "Cache", "Watch", "other"]),
        ),
        (
            "tlsMinVersion",
            json!(["", "VersionTLS12", "VersionTLS13", "VersionTLS9"]),
        ),
        ("containerLogMaxSize", json!(["", "10Mi", "x"])),
        ("address", json!(["", "0.0.0.0", "::", "x"])),
        ("runOnce", json!([true, false])),
        ("serverTLSBootstrap", json!([true, false])),
        ("enableSystemLogQuery", json!([true, false])),
        ("failCgroupV1", json!([true, false])),
        ("singleProcessOOMKill", json!([true, false])),
        ("cgroupsPerQOS", json!([true, false])),
        ("serializeImagePulls", json!([true, false])),
    ]
}

fn durations() -> Vec<(&'static str, Value)> {
    vec![
        (
            "cpuCFSQuotaPeriod",
            json!(["0s", "999us", "1ms", "100ms", "1s", "1001ms", "-1ms"]),
        ),
        ("imageMinimumGCAge", json!(["-1s", "0s", "1s"])),
        ("imageMaximumGCAge", json!(["-1s", "0s", "1s", "2m", "2m1s"])),
        ("shutdownGracePeriod", json!(["-1s", "0s", "999ms", "1s", "30s"])),
        (
            "shutdownGracePeriodCriticalPods",
            json!(["-1s", "0s", "999ms", "1s"]),
        ),
        (
            "containerLogMonitorInterval",
            json!(["-1s", "0s", "2999ms", "3s", "10s"]),
        ),
        ("syncFrequency", json!(["-1s", "0s", "1s", "x", 1, true, ["1s"]])),
        ("evictionPressureTransitionPeriod", json!(["-1s", "0s", "5m"])),
    ]
}

fn structures() -> Vec<(&'static str, Value)> {
    vec![
        (
            "memorySwap",
            json!([{}, {"swapBehavior": ""}, {"swapBehavior": "NoSwap"}, {"swapBehavior": "LimitedSwap"},
            {"swapBehavior": "UnlimitedSwap"}]),
        ),
        (
            "crashLoopBackOff",
            json!([{}, {"maxContainerRestartPeriod": "0s"}, {"maxContainerRestartPeriod": "999ms"},
            {"maxContainerRestartPeriod": "1s"}, {"maxContainerRestartPeriod": "300s"}, {"maxContainerRestartPeriod": "300s1us"},
            {"maxContainerRestartPeriod": "301s"}, {"maxContainerRestartPeriod": null}]),
        ),
        (
            "enforceNodeAllocatable",
            json!([
                [],
                ["none"],
                ["pods"],
                ["none", "pods"],
                ["pods", "none"],
                ["pods", "pods"],
                ["other"],
                ["system-reserved"],
                ["kube-reserved"],
                ["system-reserved-compressible"],
                ["kube-reserved-compressible"],
                ["none", "none"],
                [""],
                null
            ]),
        ),
        (
            "userNamespaces",
            json!([{}, {"idsPerPod": 0}, {"idsPerPod": 65535}, {"idsPerPod": 65536}, {"idsPerPod": 65537},
            {"idsPerPod": 131_072}, {"idsPerPod": 4_294_967_296_i64}, {"idsPerPod": 4_294_901_760_i64}]),
        ),
        (
            "reservedMemory",
            json!([
                [], [{"numaNode": 0, "limits": {"memory": "1Gi"}}], [{"numaNode": 0, "limits": {"memory": "0"}}],
                [{"numaNode": 0, "limits": {"cpu": "1"}}], [{"numaNode": 0, "limits": {"hugepages-2Mi": "4Mi"}}],
                [{"numaNode": 0, "limits": {"memory": "1Gi"}}, {"numaNode": 0, "limits": {"memory": "2Gi"}}],
                [{"numaNode": 0, "limits": {"memory": "1Gi"}}, {"numaNode": 1, "limits": {"memory": "2Gi"}}],
                [{"numaNode": 0, "limits": {"memory": "x"}}], [{"numaNode": -1, "limits": {"memory": "1"}}], [{"numaNode": 0}],
                [{"numaNode": 0, "limits": {"memory": "-1Gi"}}]
            ]),
        ),
        (
            "registerWithTaints",
            json!([
                [], [{"key": "a", "effect": "NoSchedule"}], [{"key": "a", "value": "b", "effect": "NoExecute"}],
                [{"key": "a", "effect": "PreferNoSchedule"}], [{"key": "a", "effect": "Other"}], [{"key": "a", "effect": ""}],
                [{"key": "", "effect": "NoSchedule"}], [{"key": "a b", "effect": "NoSchedule"}],
                [{"key": "a", "value": "b c", "effect": "NoSchedule"}],
                [{"key": "a", "effect": "NoSchedule", "timeAdded": "2020-01-01T00:00:00Z"}],
                [{"key": "a", "effect": "NoSchedule", "timeAdded": null}], [{"key": "a", "effect": "NoSchedule", "timeAdded": "x"}]
            ]),
        ),
        (
            "logging",
            json!([
                {}, {"format": "text"}, {"format": "json"}, {"format": "xml"}, {"format": ""}, {"verbosity": 0}, {"verbosity": 2_147_483_647},
                {"verbosity": 2_147_483_648_i64}, {"verbosity": -1}, {"verbosity": 4_294_967_296_i64}, {"flushFrequency": "5s"},
                {"flushFrequency": "0s"}, {"flushFrequency": "-1s"}, {"flushFrequency": 5_000_000_000_i64}, {"flushFrequency": 0},
                {"vmodule": [{"filePattern": "a", "verbosity": 1}]}, {"vmodule": [{"filePattern": "", "verbosity": 1}]},
                {"vmodule": [{"filePattern": "a=b", "verbosity": 1}]}, {"vmodule": [{"filePattern": "a,b", "verbosity": 1}]},
                {"vmodule": [{"filePattern": "a", "verbosity": 2_147_483_648_i64}]},
                {"format": "json", "vmodule": [{"filePattern": "a", "verbosity": 1}]},
                {"options": {"json": {"splitStream": true}}}, {"options": {"text": {"splitStream": true}}},
                {"options": {"json": {"infoBufferSize": "1Ki"}}}, {"options": {"text": {"infoBufferSize": "1Ki"}}},
                {"format": "json", "options": {"json": {"splitStream": true, "infoBufferSize": "1Ki"}}}
            ]),
        ),
        (
            "tracing",
            json!([
                {}, {"samplingRatePerMillion": 0}, {"samplingRatePerMillion": 1}, {"samplingRatePerMillion": 1_000_000},
                {"samplingRatePerMillion": 1_000_001}, {"samplingRatePerMillion": -1}, {"endpoint": ""}, {"endpoint": "localhost:4317"},
                {"endpoint": "dns://1.2.3.4/x:1"}, {"endpoint": "http://x"}, {"endpoint": "unix:///a"}, {"endpoint": "%zz"},
                {"endpoint": "dns://%zz"}, {"endpoint": "foo:bar:baz"}
            ]),
        ),
        (
            "shutdownGracePeriodByPodPriority",
            json!([[], [{"priority": 0, "shutdownGracePeriodSeconds": 10}],
            [{"priority": 0, "shutdownGracePeriodSeconds": -1}]]),
        ),
        (
            "featureGates",
            json!([{}, {"MemoryQoS": false}, {"Nothing": true}, {"NodeSwap": false}, {"NodeSwap": true},
            {"AllAlpha": true}, {"AllBeta": false}, {"GracefulNodeShutdown": false}, {"MemoryQoS": "yes"}, {"MemoryQoS": null}]),
        ),
        (
            "preloadedImagesVerificationAllowlist",
            json!([[], ["registry.io/a"]]),
        ),
        ("defaultPodSysctls", json!([{}, {"net.core.somaxconn": "1"}])),
        (
            "evictionHard",
            json!([{}, {"memory.available": "1Gi"}, {"memory.available": "x"}, {"other": "1"}, null]),
        ),
        (
            "systemReserved",
            json!([{}, {"cpu": "1"}, {"cpu": "x"}, {"other": "1"}]),
        ),
        ("clusterDNS", json!([[], ["10.0.0.10"], ["x"], "10.0.0.10"])),
    ]
}

/// Rules that need more than one field, or a gate.
fn combined() -> Vec<Value> {
    vec![
        json!({"systemCgroups": "/system", "cgroupRoot": "/"}),
        json!({"imageGCLowThresholdPercent": 90, "imageGCHighThresholdPercent": 90}),
        json!({"imageGCLowThresholdPercent": -1, "imageGCHighThresholdPercent": 101}),
        json!({"maxParallelImagePulls": 2, "serializeImagePulls": true}),
        json!({"maxParallelImagePulls": 2, "serializeImagePulls": false}),
        json!({"shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "10s"}),
        json!({"shutdownGracePeriod": "10s", "shutdownGracePeriodCriticalPods": "30s"}),
        json!({"shutdownGracePeriod": "10s", "shutdownGracePeriodByPodPriority": [{"priority": 1, "shutdownGracePeriodSeconds": 1}]}),
        json!({"shutdownGracePeriod": "30s", "featureGates": {"GracefulNodeShutdown": false}}),
        json!({"shutdownGracePeriod": "30s",
            "featureGates": {"GracefulNodeShutdown": false, "GracefulNodeShutdownBasedOnPodPriority": false}}),
        json!({"shutdownGracePeriodByPodPriority": [{"priority": 1, "shutdownGracePeriodSeconds": 1}],
            "featureGates": {"GracefulNodeShutdownBasedOnPodPriority": false}}),
        json!({"featureGates": {"KubeletCrashLoopBackOffMax": false}}),
        json!({"featureGates": {"KubeletCrashLoopBackOffMax": false}, "crashLoopBackOff": {"maxContainerRestartPeriod": "10s"}}),
        json!({"featureGates": {"CustomCPUCFSQuotaPeriod": false}, "cpuCFSQuotaPeriod": "100ms"}),
        json!({"featureGates": {"CustomCPUCFSQuotaPeriod": false}, "cpuCFSQuotaPeriod": "200ms"}),
        json!({"featureGates": {"CustomCPUCFSQuotaPeriod": false}, "cpuCFSQuotaPeriod": "2s"}),
        json!({"featureGates": {"MemoryQoS": false}, "memoryThrottlingFactor": 0.9}),
        json!({"featureGates": {"MemoryQoS": false}, "memoryThrottlingFactor": 0.8}),
        json!({"featureGates": {"MemoryQoS": false}, "memoryThrottlingFactor": 2}),
        json!({"featureGates": {"MemoryQoS": false}, "memoryReservationPolicy": "TieredReservation"}),
        json!({"featureGates": {"RotateKubeletServerCertificate": false}, "serverTLSBootstrap": true}),
        json!({"featureGates": {"KubeletEnsureSecretPulledImages": false}}),
        json!({"featureGates": {"KubeletEnsureSecretPulledImages": false}, "imagePullCredentialsVerificationPolicy": "NeverVerify"}),
        json!({"featureGates": {"KubeletEnsureSecretPulledImages": false}, "preloadedImagesVerificationAllowlist": ["a"]}),
        json!({"imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages",
            "preloadedImagesVerificationAllowlist": ["registry.io/*", "registry.io/app"]}),
        json!({"imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages",
            "preloadedImagesVerificationAllowlist": ["registry.io/app:1"]}),
        json!({"featureGates": {"DefaultPodSysctls": true}, "defaultPodSysctls": {"net.core.somaxconn": "1"}}),
        json!({"featureGates": {"DefaultPodSysctls": true}, "defaultPodSysctls": {"net.core.somaxconn": "1", "net/core/somaxconn": "2"}}),
        json!({"featureGates": {"DefaultPodSysctls": true}, "defaultPodSysctls": {"vm.swappiness": "1"}}),
        json!({"featureGates": {"DefaultPodSysctls": true}, "defaultPodSysctls": {"Net.core": "1"}}),
        json!({"featureGates": {"DefaultPodSysctls": true}, "defaultPodSysctls": {"kernel.shm_rmid_forced": "1", "fs.mqueue.msg_max": "1"}}),
        json!({"enforceNodeAllocatable": ["pods", "system-reserved"], "systemReservedCgroup": "/system"}),
        json!({"enforceNodeAllocatable": ["pods", "kube-reserved"], "kubeReservedCgroup": "/kube"}),
        json!({"enforceNodeAllocatable": ["system-reserved", "system-reserved-compressible"], "systemReservedCgroup": "/system"}),
        json!({"enforceNodeAllocatable": ["kube-reserved", "kube-reserved-compressible"], "kubeReservedCgroup": "/kube"}),
        json!({"enforceNodeAllocatable": ["pods"], "cgroupsPerQOS": false}),
        json!({"enforceNodeAllocatable": ["none"], "cgroupsPerQOS": false}),
        json!({"enforceNodeAllocatable": [], "cgroupsPerQOS": false}),
        json!({"enforceNodeAllocatable": ["pods", "system-reserved", "other"], "cgroupsPerQOS": false}),
        json!({"reservedSystemCPUs": "0", "systemReservedCgroup": "/system"}),
        json!({"reservedSystemCPUs": "0", "kubeReservedCgroup": "/kube"}),
        json!({"reservedSystemCPUs": "x", "kubeReservedCgroup": "/kube"}),
        json!({"enableSystemLogQuery": true, "enableSystemLogHandler": false}),
        json!({"logging": {"format": "json", "options": {"json": {"splitStream": true}}}, "featureGates": {"LoggingAlphaOptions": true}}),
        json!({"logging": {"options": {"text": {"splitStream": true}}}, "featureGates": {"LoggingAlphaOptions": true}}),
        json!({"logging": {"format": "json"}, "featureGates": {"LoggingBetaOptions": false}}),
        // Ten values that each break a rule of their own.
        json!({"port": 0, "readOnlyPort": -1, "healthzPort": 65536, "maxPods": -1, "oomScoreAdj": 2000, "eventBurst": -1,
            "hairpinMode": "x", "podsPerCore": -1, "containerLogMaxFiles": 1, "nodeLeaseDurationSeconds": -1}),
    ]
}

fn validations() -> Vec<Value> {
    let mut questions = vec![json!({"config": configuration(&json!({}))})];
    for (field, values) in field_values() {
        for value in values.as_array().into_iter().flatten() {
            questions.push(json!({"config": configuration(&json!({field: value}))}));
        }
    }
    questions.extend(
        combined()
            .iter()
            .map(|fields| json!({"config": configuration(fields)})),
    );
    for fields in [
        json!({}),
        json!({"failCgroupV1": true}),
        json!({"failCgroupV1": false}),
        json!({"failCgroupV1": false, "singleProcessOOMKill": false}),
        json!({"failCgroupV1": false, "singleProcessOOMKill": true}),
        json!({"failCgroupV1": false, "userNamespaces": {"idsPerPod": 1}}),
    ] {
        questions.push(json!({"cgroupVersion": 1, "config": configuration(&fields)}));
    }
    questions
}

fn decodings() -> Vec<Value> {
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let mut texts: Vec<String> = [
        "",
        "port: 1234\n",
        "port: \"1234\"\n",
        "port: 1234.0\n",
        "port: 1234.5\n",
        "port: 1e3\n",
        "port: 0x10\n",
        "port: 0o17\n",
        "port: 017\n",
        "port: null\n",
        "port: ~\n",
        "port:\n",
        "port: true\n",
        "port: [1]\n",
        "port: {a: 1}\n",
        "port: 1\nport: 2\n",
        "unknown: 1\n",
        "Port: 5\n",
        "PORT: 5\n",
        "unknown: 1\nother: {a: 1}\n",
        "authentication: {unknown: 1}\n",
        "authentication: {anonymous: {enabled: yes}}\n",
        "authentication: {anonymous: {enabled: \"true\"}}\n",
        "authentication: null\n",
        "authentication: []\n",
        "authentication: x\n",
        "syncFrequency: 10\n",
        "syncFrequency: 10s\n",
        "syncFrequency: \"\"\n",
        "syncFrequency: null\n",
        "clusterDNS: 1.2.3.4\n",
        "clusterDNS: [1.2.3.4]\n",
        "clusterDNS: [1]\n",
        "clusterDNS: [null]\n",
        "clusterDNS: null\n",
        "evictionHard: {memory.available: 1Gi}\n",
        "evictionHard: {memory.available: 100}\n",
        "evictionHard: {memory.available: null}\n",
        "evictionHard: []\n",
        "featureGates: {A: true}\n",
        "featureGates: {MemoryQoS: no}\n",
        "featureGates: {MemoryQoS: \"false\"}\n",
        "maxPods: 99999999999\n",
        "maxPods: -1\n",
        "registerNode: \"x\"\n",
        "memoryThrottlingFactor: 1\n",
        "memoryThrottlingFactor: \"1\"\n",
        "memoryThrottlingFactor: 1e-1\n",
        "address: 127.0.0.1\n",
        "address: 5\n",
        "staticPodURLHeader: {a: [b]}\n",
        "staticPodURLHeader: {a: b}\n",
        "reservedMemory: [{numaNode: 0, limits: {memory: 1}}]\n",
        "reservedMemory: [{numaNode: 0, limits: {memory: 1.5}}]\n",
        "logging: {flushFrequency: 1s}\n",
        "logging: {flushFrequency: 1000}\n",
        "logging: {flushFrequency: x}\n",
        "logging: {options: {json: {infoBufferSize: 1Ki}}}\n",
        "x: &a 1\nport: *a\n",
        "port: 1 # comment\n",
        "%bad\n",
        "port: [\n",
        "\tport: 1\n",
        "? a\n: b\n",
        "1: 2\n",
        "true: 1\n",
        "port: !!str 5\n",
        "port: !!int \"5\"\n",
        "---\nport: 1\n",
    ]
    .iter()
    .map(|body| format!("{head}{body}"))
    .collect();
    for text in [
        "{}",
        "",
        " ",
        "null",
        "[]",
        "x",
        "1",
        "kind: KubeletConfiguration\n",
        "apiVersion: kubelet.config.k8s.io/v1beta1\n",
        "apiVersion: kubelet.config.k8s.io/v1\nkind: KubeletConfiguration\n",
        "apiVersion: kubelet.config.k8s.io/v1beta2\nkind: KubeletConfiguration\n",
        "apiVersion: kubelet.config.k8s.io/v1alpha1\nkind: CredentialProviderConfig\n",
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: SerializedNodeConfigSource\n",
        "apiVersion: v1\nkind: Pod\n",
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: kubeletConfiguration\n",
        "{\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"kind\":\"KubeletConfiguration\",\"port\":5}",
        "{\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"kind\":\"KubeletConfiguration\",\"port\":5,\"port\":6}",
        "{\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"kind\":\"KubeletConfiguration\",\"port\":5",
    ] {
        texts.push(text.to_owned());
    }
    texts.into_iter().map(|text| json!({"text": text})).collect()
}

fn defaults() -> Vec<Value> {
    let mut questions = vec![
        json!({"legacy": true}),
        json!({"legacy": true, "gates": {"KubeletCrashLoopBackOffMax": false}}),
    ];
    for fields in [
        json!({}),
        json!({"nodeStatusUpdateFrequency": "20s"}),
        json!({"nodeStatusReportFrequency": "1m"}),
        json!({"maxParallelImagePulls": 1}),
        json!({"maxParallelImagePulls": 5}),
        json!({"featureGates": {"KubeletCrashLoopBackOffMax": false, "KubeletEnsureSecretPulledImages": false}}),
        json!({"enableServer": false, "healthzPort": 0, "oomScoreAdj": 0, "cgroupsPerQOS": false, "failSwapOn": false}),
        json!({"registryPullQPS": 0, "eventRecordQPS": 0, "kubeAPIQPS": 0, "kubeAPIBurst": 0, "maxPods": 0, "podPidsLimit": 0}),
        json!({"enforceNodeAllocatable": [], "resolvConf": "", "evictionHard": {}, "clusterDNS": []}),
        json!({"authentication": {"anonymous": {"enabled": true}}, "authorization": {"mode": "AlwaysAllow"}}),
        json!({"logging": {"format": "json", "verbosity": 3, "vmodule": [{"filePattern": "a", "verbosity": 4}]}}),
        json!({"tracing": {"endpoint": "localhost:1"}, "memorySwap": {"swapBehavior": "LimitedSwap"}}),
        json!({"reservedMemory": [{"numaNode": 1, "limits": {"memory": "1024Mi", "hugepages-2Mi": "4Mi"}}]}),
        json!({"registerWithTaints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]}),
        json!({"shutdownGracePeriodByPodPriority": [{"priority": 5, "shutdownGracePeriodSeconds": 6}]}),
        json!({"staticPodURLHeader": {"a": ["b", "c"]}, "qosReserved": {"memory": "50%"}, "systemReserved": {"cpu": "1"}}),
        json!({"containerLogMaxSize": "20Mi", "containerLogMaxFiles": 9, "volumePluginDir": "/x", "podLogsDir": "/y"}),
        json!({"userNamespaces": {"idsPerPod": 131_072}, "singleProcessOOMKill": true, "memoryThrottlingFactor": 0.5}),
        json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "10s"}, "featureGates": {"MemoryQoS": false}}),
        json!({"syncFrequency": "90s", "cpuCFSQuotaPeriod": "1500us", "streamingConnectionIdleTimeout": "1.5h"}),
    ] {
        questions.push(json!({"config": configuration(&fields)}));
    }
    questions
}

fn mergings() -> Vec<Value> {
    let text = |fields: &Value| configuration(fields).to_string();
    let base = text(
        &json!({"port": 1000, "evictionHard": {"memory.available": "1Gi"}, "clusterDNS": ["1.1.1.1"],
        "featureGates": {"MemoryQoS": false}, "authentication": {"anonymous": {"enabled": true}}}),
    );
    let mut questions: Vec<Value> = [
        vec![],
        vec![text(&json!({"port": 2000}))],
        vec![text(&json!({"port": 2000})), text(&json!({"port": 3000}))],
        vec![text(&json!({"port": null}))],
        vec![text(&json!({"clusterDNS": ["2.2.2.2"]}))],
        vec![text(&json!({"clusterDNS": null}))],
        vec![text(&json!({"evictionHard": {"nodefs.available": "5%"}}))],
        vec![text(&json!({"evictionHard": {"memory.available": null}}))],
        vec![text(&json!({"evictionHard": null}))],
        vec![text(&json!({"featureGates": {"PodLevelResources": true}}))],
        vec![text(&json!({"authentication": {"webhook": {"enabled": false}}}))],
        vec![text(&json!({"authentication": null}))],
        vec![text(&json!({"unknown": 5}))],
        vec![text(&json!({"port": "x"}))],
        vec![text(&json!({"Port": 2000}))],
        vec![text(&json!({"resolvConf": "relative"}))],
        vec!["port: 5\n".to_owned()],
        vec!["apiVersion: v1\nkind: Pod\n".to_owned()],
        vec!["{".to_owned()],
    ]
    .into_iter()
    .map(|dropins| json!({"text": base, "dropins": dropins}))
    .collect();
    questions
        .push(json!({"text": text(&json!({})), "dropins": [text(&json!({"logging": {"verbosity": 3}}))]}));
    questions
}
