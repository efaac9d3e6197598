//! The rules, one line each: what is fine, and what is refused at which field.

use rubelet_config::FeatureGates;
use rubelet_config::kubelet_configuration::{
    API_VERSION, HostFacts, KIND, apply_defaults, decode, validate, validate_on_host,
};

/// Paths of all broken rules of a file with this body.
#[track_caller]
fn broken(body: &str) -> Vec<String> {
    let text = format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{body}\n");
    let mut configuration = decode(text.as_bytes(), "test")
        .unwrap_or_else(|error| panic!("{body}: {error}"))
        .configuration;
    let gates = FeatureGates::from_values(&configuration.feature_gates)
        .unwrap_or_else(|problems| panic!("{body}: {problems:?}"));
    apply_defaults(&mut configuration, &gates);
    validate(&configuration, &gates)
        .into_iter()
        .map(|problem| problem.path)
        .collect()
}

#[track_caller]
fn fine(bodies: &[&str]) {
    for body in bodies {
        assert_eq!(broken(body), Vec::<String>::new(), "{body}");
    }
}

#[track_caller]
fn refused(path: &str, bodies: &[&str]) {
    for body in bodies {
        assert_eq!(broken(body), [path], "{body}");
    }
}

#[test]
fn numbers() {
    fine(&[
        "",
        "port: 65535",
        "healthzPort: 0",
        "readOnlyPort: 0",
        "nodeStatusMaxImages: -1",
        "oomScoreAdj: -1000",
        "iptablesDropBit: 31",
    ]);
    refused("nodeLeaseDurationSeconds", &["nodeLeaseDurationSeconds: -1"]);
    refused("eventBurst", &["eventBurst: -1"]);
    refused("eventRecordQPS", &["eventRecordQPS: -1"]);
    refused("kubeAPIBurst", &["kubeAPIBurst: -1"]);
    refused("kubeAPIQPS", &["kubeAPIQPS: -1"]);
    refused("registryBurst", &["registryBurst: -1"]);
    refused("registryPullQPS", &["registryPullQPS: -1"]);
    refused("maxOpenFiles", &["maxOpenFiles: -1"]);
    refused("maxPods", &["maxPods: -1"]);
    refused("podsPerCore", &["podsPerCore: -1"]);
    refused("nodeStatusMaxImages", &["nodeStatusMaxImages: -2"]);
    refused("iptablesDropBit", &["iptablesDropBit: 32", "iptablesDropBit: -1"]);
    refused("iptablesMasqueradeBit", &["iptablesMasqueradeBit: 32"]);
    refused("oomScoreAdj", &["oomScoreAdj: 1001", "oomScoreAdj: -1001"]);
    refused("port", &["port: 65536", "port: -1"]);
    refused("healthzPort", &["healthzPort: 65536", "healthzPort: -1"]);
    refused("readOnlyPort", &["readOnlyPort: 65536", "readOnlyPort: -1"]);
}

#[test]
fn images() {
    fine(&[
        "imageGCHighThresholdPercent: 100\nimageGCLowThresholdPercent: 0",
        "imageMaximumGCAge: 3m",
        "maxParallelImagePulls: 5",
        "maxParallelImagePulls: 1\nserializeImagePulls: true",
        "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [a, registry.io/*, registry.io:5000/a/b]",
    ]);
    refused(
        "imageGCHighThresholdPercent",
        &["imageGCHighThresholdPercent: 101"],
    );
    refused(
        "imageGCLowThresholdPercent",
        &["imageGCLowThresholdPercent: 85", "imageGCLowThresholdPercent: -1"],
    );
    refused("imageMinimumGCAge", &["imageMinimumGCAge: -1s"]);
    refused(
        "imageMaximumGCAge",
        &["imageMaximumGCAge: 2m", "imageMaximumGCAge: -1s"],
    );
    refused(
        "maxParallelImagePulls",
        &[
            "maxParallelImagePulls: 0",
            "maxParallelImagePulls: 2\nserializeImagePulls: true",
        ],
    );
    refused(
        "imagePullCredentialsVerificationPolicy",
        &["imagePullCredentialsVerificationPolicy: Sometimes"],
    );
    refused(
        "preloadedImagesVerificationAllowlist",
        &["preloadedImagesVerificationAllowlist: [a]"],
    );
    for bad in ["'*'", "/*", "a:tag", "' a'", "a*b/*", "A", "''"] {
        let body = format!(
            "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [{bad}]"
        );
        refused("preloadedImagesVerificationAllowlist[0]", &[&body]);
    }
}

#[test]
fn words() {
    fine(&[
        "topologyManagerPolicy: single-numa-node\ntopologyManagerScope: pod",
        "hairpinMode: none",
        "memorySwap: {swapBehavior: LimitedSwap}",
    ]);
    refused("topologyManagerPolicy", &["topologyManagerPolicy: numa"]);
    refused("topologyManagerScope", &["topologyManagerScope: node"]);
    refused("hairpinMode", &["hairpinMode: bridge"]);
    refused(
        "memorySwap.swapBehavior",
        &["memorySwap: {swapBehavior: UnlimitedSwap}"],
    );
    refused("memoryReservationPolicy", &["memoryReservationPolicy: Tiered"]);
    refused("runOnce", &["runOnce: true"]);
    refused(
        "showHiddenMetricsForVersion",
        &["showHiddenMetricsForVersion: '1.35'"],
    );
    fine(&["showHiddenMetricsForVersion: '1.36'"]);
}

#[test]
fn node_allocatable() {
    fine(&[
        "enforceNodeAllocatable: []",
        "enforceNodeAllocatable: [none]",
        "enforceNodeAllocatable: [none]\ncgroupsPerQOS: false",
        "enforceNodeAllocatable: [pods, system-reserved, kube-reserved-compressible]\nsystemReservedCgroup: /s\nkubeReservedCgroup: /k",
        "systemCgroups: /s\ncgroupRoot: /",
        "reservedSystemCPUs: 0-3,8",
    ]);
    refused(
        "enforceNodeAllocatable[0]",
        &[
            "enforceNodeAllocatable: [all]",
            "enforceNodeAllocatable: [system-reserved]",
            "enforceNodeAllocatable: [kube-reserved-compressible]",
            "enforceNodeAllocatable: [none, pods]",
            "cgroupsPerQOS: false",
        ],
    );
    refused(
        "enforceNodeAllocatable[1]",
        &["enforceNodeAllocatable: [pods, pods]"],
    );
    refused(
        "enforceNodeAllocatable",
        &[
            "enforceNodeAllocatable: [system-reserved, system-reserved-compressible]\nsystemReservedCgroup: /s",
            "enforceNodeAllocatable: [kube-reserved, kube-reserved-compressible]\nkubeReservedCgroup: /k",
        ],
    );
    refused("systemCgroups", &["systemCgroups: /s"]);
    refused(
        "reservedSystemCPUs",
        &[
            "reservedSystemCPUs: x",
            "reservedSystemCPUs: 3-1",
            "reservedSystemCPUs: '0'\nkubeReservedCgroup: /k",
        ],
    );
}

#[test]
fn memory() {
    fine(&[
        "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi, hugepages-2Mi: 4Mi}}, {numaNode: 1, limits: {memory: 1Gi}}]",
        "memoryThrottlingFactor: 1.0",
        "featureGates: {MemoryQoS: false}\nmemoryThrottlingFactor: 0.9",
        "memoryReservationPolicy: TieredReservation",
    ]);
    refused(
        "reservedMemory[0].limits.cpu",
        &["reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]"],
    );
    refused(
        "reservedMemory[0].limits.memory",
        &["reservedMemory: [{numaNode: 0, limits: {memory: 0}}]"],
    );
    refused(
        "reservedMemory[1].limits.memory",
        &["reservedMemory: [{numaNode: 0, limits: {memory: 1}}, {numaNode: 0, limits: {memory: 2}}]"],
    );
    refused(
        "memoryThrottlingFactor",
        &[
            "memoryThrottlingFactor: 0",
            "memoryThrottlingFactor: 1.1",
            "featureGates: {MemoryQoS: false}\nmemoryThrottlingFactor: 0.5",
        ],
    );
    refused(
        "memoryReservationPolicy",
        &["featureGates: {MemoryQoS: false}\nmemoryReservationPolicy: TieredReservation"],
    );
}

#[test]
fn gated_settings() {
    fine(&[
        "featureGates: {CustomCPUCFSQuotaPeriod: true}\ncpuCFSQuotaPeriod: 1s",
        "featureGates: {DefaultPodSysctls: true}\ndefaultPodSysctls: {net.core.somaxconn: '1'}",
        "enableSystemLogQuery: true\nfeatureGates: {NodeLogQuery: true}",
        "crashLoopBackOff: {maxContainerRestartPeriod: 1s}",
    ]);
    refused(
        "cpuCFSQuotaPeriod",
        &[
            "featureGates: {CustomCPUCFSQuotaPeriod: false}\ncpuCFSQuotaPeriod: 10ms",
            "featureGates: {CustomCPUCFSQuotaPeriod: true}\ncpuCFSQuotaPeriod: 1001ms",
            "featureGates: {CustomCPUCFSQuotaPeriod: true}\ncpuCFSQuotaPeriod: 999us",
        ],
    );
    refused(
        "defaultPodSysctls",
        &[
            "defaultPodSysctls: {net.core.somaxconn: '1'}",
            "featureGates: {DefaultPodSysctls: true}\ndefaultPodSysctls: {vm.swappiness: '1'}",
            "featureGates: {DefaultPodSysctls: true}\ndefaultPodSysctls: {Net: '1'}",
            "featureGates: {DefaultPodSysctls: true}\ndefaultPodSysctls: {net.a: '1', net/a: '1'}",
        ],
    );
    refused(
        "enableSystemLogQuery",
        &["enableSystemLogQuery: true\nenableSystemLogHandler: false\nfeatureGates: {NodeLogQuery: true}"],
    );
    refused(
        "crashLoopBackOff.maxContainerRestartPeriod",
        &[
            "crashLoopBackOff: {maxContainerRestartPeriod: 999ms}",
            "crashLoopBackOff: {maxContainerRestartPeriod: 301s}",
            "featureGates: {KubeletCrashLoopBackOffMax: false}\ncrashLoopBackOff: {maxContainerRestartPeriod: 5s}",
        ],
    );
}

#[test]
fn settings_whose_gates_are_all_off() {
    let text = format!(
        "apiVersion: {API_VERSION}\nkind: {KIND}\nserverTLSBootstrap: true\nimageMaximumGCAge: 1h\nenableSystemLogQuery: true\n\
         memorySwap: {{swapBehavior: NoSwap}}\nshutdownGracePeriod: 30s\nimagePullCredentialsVerificationPolicy: NeverVerify\n\
         preloadedImagesVerificationAllowlist: [a]\nlogging: {{format: json}}"
    );
    let mut configuration = decode(text.as_bytes(), "test").expect("it is good").configuration;
    apply_defaults(&mut configuration, &FeatureGates::every(false));
    let mut paths: Vec<_> = validate(&configuration, &FeatureGates::every(false))
        .into_iter()
        .map(|problem| problem.path)
        .collect();
    paths.sort();
    let expected = [
        "enableSystemLogQuery",
        "imageMaximumGCAge",
        "imagePullCredentialsVerificationPolicy",
        "logging.format",
        "memorySwap.swapBehavior",
        "preloadedImagesVerificationAllowlist",
        "serverTLSBootstrap",
        "shutdownGracePeriod",
    ];
    assert_eq!(paths, expected);
}

#[test]
fn shutdown() {
    fine(&[
        "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s",
        "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]",
    ]);
    refused(
        "shutdownGracePeriodCriticalPods",
        &[
            "shutdownGracePeriodCriticalPods: 10s",
            "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 500ms",
        ],
    );
    refused("shutdownGracePeriod", &["shutdownGracePeriod: 500ms"]);
    refused(
        "shutdownGracePeriodByPodPriority",
        &[
            "shutdownGracePeriod: 30s\nshutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]",
            "featureGates: {GracefulNodeShutdownBasedOnPodPriority: false}\nshutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]",
        ],
    );
}

#[test]
fn taints() {
    fine(&["registerWithTaints: [{key: example.com/a, value: b, effect: NoSchedule}, {key: a, effect: ''}]"]);
    refused(
        "registerWithTaints[0].key",
        &[
            "registerWithTaints: [{key: '', effect: NoSchedule}]",
            "registerWithTaints: [{key: a/b/c, effect: NoSchedule}]",
        ],
    );
    refused(
        "registerWithTaints[0].value",
        &["registerWithTaints: [{key: a, value: '-', effect: NoSchedule}]"],
    );
    refused(
        "registerWithTaints[0].effect",
        &["registerWithTaints: [{key: a, effect: Never}]"],
    );
    refused(
        "registerWithTaints[0].timeAdded",
        &["registerWithTaints: [{key: a, effect: NoExecute, timeAdded: 2026-01-31T12:00:00Z}]"],
    );
}

#[test]
fn logs() {
    fine(&[
        "containerLogMaxFiles: 2",
        "containerLogMonitorInterval: 3s",
        "podLogsDir: /logs",
        "logging: {format: json}",
        "logging: {verbosity: 2147483647}",
    ]);
    refused("containerLogMaxFiles", &["containerLogMaxFiles: 1"]);
    refused("containerLogMaxWorkers", &["containerLogMaxWorkers: 0"]);
    refused(
        "containerLogMonitorInterval",
        &["containerLogMonitorInterval: 2999ms"],
    );
    refused(
        "podLogsDir",
        &[
            "podLogsDir: /var/log/",
            "podLogsDir: /var//log",
            "podLogsDir: logs",
            "podLogsDir: /logé",
        ],
    );
    refused(
        "logging.format",
        &[
            "logging: {format: xml}",
            "featureGates: {LoggingBetaOptions: false}\nlogging: {format: json}",
        ],
    );
    refused("logging.flushFrequency", &["logging: {flushFrequency: -1s}"]);
    refused("logging.verbosity", &["logging: {verbosity: 2147483648}"]);
    refused(
        "logging.vmodule",
        &["logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}"],
    );
    refused(
        "logging.vmodule[0].filePattern",
        &[
            "logging: {vmodule: [{filePattern: '', verbosity: 1}]}",
            "logging: {vmodule: [{filePattern: a=b, verbosity: 1}]}",
        ],
    );
    refused(
        "logging.vmodule[0].verbosity",
        &["logging: {vmodule: [{filePattern: a, verbosity: 2147483648}]}"],
    );
    refused(
        "logging.options.text.splitStream",
        &["logging: {options: {text: {splitStream: true}}}"],
    );
    refused(
        "logging.options.json.infoBufferSize",
        &["logging: {options: {json: {infoBufferSize: 1Ki}}}"],
    );
    fine(&[
        "featureGates: {LoggingAlphaOptions: true}\nlogging: {options: {json: {infoBufferSize: 1Ki, splitStream: true}}}",
    ]);
}

#[test]
fn tracing() {
    fine(&[
        "tracing: {endpoint: 'localhost:4317', samplingRatePerMillion: 1000000}",
        "tracing: {endpoint: 'unix:///run/x'}",
        "tracing: {}",
    ]);
    refused(
        "tracing.endpoint",
        &[
            "tracing: {endpoint: 'http://x'}",
            "tracing: {endpoint: 'dn%2s://x'}",
            "tracing: {endpoint: 'dns://a:b'}",
        ],
    );
    refused(
        "tracing.samplingRatePerMillion",
        &[
            "tracing: {samplingRatePerMillion: -1}",
            "tracing: {samplingRatePerMillion: 1000001}",
        ],
    );
}

#[test]
fn user_namespaces() {
    fine(&[
        "userNamespaces: {idsPerPod: 65536}",
        "userNamespaces: {idsPerPod: 4294901760}",
        "userNamespaces: {}",
    ]);
    refused(
        "userNamespaces.idsPerPod",
        &[
            "userNamespaces: {idsPerPod: 65535}",
            "userNamespaces: {idsPerPod: 65537}",
            "userNamespaces: {idsPerPod: 4294967296}",
            "userNamespaces: {idsPerPod: -65536}",
        ],
    );
}

#[test]
fn what_the_machine_must_offer() {
    let on = |body: &str, cgroup_v2: bool| {
        let text = format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{body}\n");
        let mut configuration = decode(text.as_bytes(), "test").expect("it is good").configuration;
        apply_defaults(&mut configuration, &FeatureGates::every(true));
        let problems = validate_on_host(&configuration, HostFacts { cgroup_v2 });
        problems
            .into_iter()
            .map(|problem| problem.path)
            .collect::<Vec<_>>()
    };
    assert_eq!(on("", true), Vec::<String>::new());
    assert_eq!(on("", false), ["failCgroupV1"]);
    assert_eq!(on("failCgroupV1: false", false), Vec::<String>::new());
    assert_eq!(
        on("failCgroupV1: false\nsingleProcessOOMKill: false", false),
        ["singleProcessOOMKill"]
    );
    assert_eq!(on("singleProcessOOMKill: false", true), Vec::<String>::new());
}

#[test]
fn ten_wrong_values_are_ten_problems_with_their_paths() {
    let body = "port: 70000\nmaxPods: -1\nhairpinMode: bridge\nimageGCHighThresholdPercent: 101\noomScoreAdj: 2000\ntopologyManagerScope: node\n\
                containerLogMaxFiles: 1\nlogging: {format: xml}\nuserNamespaces: {idsPerPod: 7}\npodLogsDir: relative";
    let mut expected = [
        "port",
        "maxPods",
        "hairpinMode",
        "imageGCHighThresholdPercent",
        "oomScoreAdj",
        "topologyManagerScope",
        "containerLogMaxFiles",
        "logging.format",
        "userNamespaces.idsPerPod",
        "podLogsDir",
    ];
    let mut paths = broken(body);
    paths.sort();
    expected.sort_unstable();
    assert_eq!(paths, expected);
}
