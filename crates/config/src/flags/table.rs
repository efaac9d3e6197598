//! Every flag of the kubelet v1.37 command line, and the one flag of our own: its type, what it sets, and a line of help.
//!
//! Data only. Defaults are not repeated here: a flag's default is the value of what it sets.

use super::definition::Target::{Config, Own};
use super::definition::{Definition, Deprecation, Kind, OwnFlag, Section};

const fn own(
    name: &'static str,
    kind: Kind,
    target: OwnFlag,
    section: Section,
    help: &'static str,
) -> Definition {
    Definition {
        name,
        shorthand: None,
        kind,
        target: Own(target),
        deprecation: Deprecation::None,
        section,
        help,
    }
}

const fn old(
    name: &'static str,
    kind: Kind,
    target: OwnFlag,
    instead: &'static str,
    help: &'static str,
) -> Definition {
    Definition {
        name,
        shorthand: None,
        kind,
        target: Own(target),
        deprecation: Deprecation::Because(instead),
        section: Section::Deprecated,
        help,
    }
}

const fn config(
    name: &'static str,
    kind: Kind,
    path: &'static str,
    section: Section,
    help: &'static str,
) -> Definition {
    Definition {
        name,
        shorthand: None,
        kind,
        target: Config(path),
        deprecation: Deprecation::UseConfigFile,
        section,
        help,
    }
}

/// A flag that sets a configuration field and stays supported all the same.
const fn kept(
    name: &'static str,
    kind: Kind,
    path: &'static str,
    section: Section,
    help: &'static str,
) -> Definition {
    Definition {
        name,
        shorthand: None,
        kind,
        target: Config(path),
        deprecation: Deprecation::None,
        section,
        help,
    }
}

const fn short(letter: char, definition: Definition) -> Definition {
    Definition {
        shorthand: Some(letter),
        ..definition
    }
}

use Kind::{
    Bool, Duration, Int32, Int64, Ip, Level, List, Quantity, ReservedMemory, StringMap, Taints, Text,
    VModule, Version,
};
use Section::{
    Auth, Config as ConfigFiles, Eviction, General, Images, Logging, Network, Node, Pods, Resources, Runtime,
    Server, Tls,
};

const DEAD_CONTAINERS: &str = "eviction thresholds replace it (--eviction-hard, --eviction-soft)";

// One row per line: a table is read down its columns.
#[rustfmt::skip]
pub(super) static TABLE: &[Definition] = &[
    short('h', own("help", Bool, OwnFlag::Help, General, "Print this help and exit")),
    own("version", Version, OwnFlag::Version, General, "Print the version and exit; =raw prints all of its parts; =vX.Y.Z-suffix sets the version reported"),
    own("root-dir", Text, OwnFlag::RootDir, General, "Directory for the node agent's own files and the volumes of pods"),
    own("lock-file", Text, OwnFlag::LockFile, General, "File to lock, so that only one node agent runs"),
    own("exit-on-lock-contention", Bool, OwnFlag::ExitOnLockContention, General, "Exit when another process asks for the lock file"),
    kept("fail-cgroupv1", Bool, "failCgroupV1", General, "Refuse to start on a host with cgroup v1"),
    config("feature-gates", Kind::BoolMap, "featureGates", General, "Feature gates as Name=true|false, separated by commas"),
    config("oom-score-adj", Int32, "oomScoreAdj", General, "OOM score adjustment of this process, -1000 to 1000"),
    config("max-open-files", Int64, "maxOpenFiles", General, "Number of files this process may open"),
    config("runonce", Bool, "runOnce", General, "Start static pods and exit (no longer supported)"),
    own("housekeeping-interval", Duration, OwnFlag::HousekeepingInterval, General, "Interval between container housekeepings"),
    // Where configuration comes from.
    own("config", Text, OwnFlag::Config, ConfigFiles, "KubeletConfiguration file; flags win over it"),
    own("config-dir", Text, OwnFlag::ConfigDir, ConfigFiles, "Directory of drop-in files (*.conf, in lexical order) laid over --config"),
    own("rubelet-config", Text, OwnFlag::RubeletConfig, ConfigFiles, "RubeletConfiguration file (rubelet.dev/v1alpha1): the switches that only rubelet has"),
    // Node.
    own("kubeconfig", Text, OwnFlag::Kubeconfig, Node, "Kubeconfig of the API server; without it the node runs standalone"),
    own("bootstrap-kubeconfig", Text, OwnFlag::BootstrapKubeconfig, Node, "Kubeconfig used to ask for a client certificate when --kubeconfig does not exist yet"),
    own("hostname-override", Text, OwnFlag::HostnameOverride, Node, "Name of the node instead of the host name"),
    own("node-ip", Text, OwnFlag::NodeIp, Node, "Address of the node, or two separated by a comma; 0.0.0.0 or :: prefers a family"),
    own("node-labels", Kind::Labels, OwnFlag::NodeLabels, Node, "Labels to register the node with, key=value separated by commas"),
    own("cloud-provider", Text, OwnFlag::CloudProvider, Node, "Empty, or external for a cloud controller outside"),
    kept("provider-id", Text, "providerID", Node, "Identifier of the machine at its provider"),
    config("register-node", Bool, "registerNode", Node, "Register the node with the API server"),
    config("register-with-taints", Taints, "registerWithTaints", Node, "Taints to register the node with, key=value:effect separated by commas"),
    config("node-status-update-frequency", Duration, "nodeStatusUpdateFrequency", Node, "How often the node's status is computed"),
    config("node-status-max-images", Int32, "nodeStatusMaxImages", Node, "Number of images in the node's status; -1 for all"),
    config("kube-api-content-type", Text, "contentType", Node, "Content type of requests to the API server"),
    config("kube-api-qps", Int32, "kubeAPIQPS", Node, "Requests per second to the API server"),
    config("kube-api-burst", Int32, "kubeAPIBurst", Node, "Burst of requests to the API server"),
    config("event-qps", Int32, "eventRecordQPS", Node, "Events per second; 0 for no limit"),
    config("event-burst", Int32, "eventBurst", Node, "Burst of events"),
    // Container runtime.
    config("container-runtime-endpoint", Text, "containerRuntimeEndpoint", Runtime, "Socket of the container runtime, unix:///path"),
    config("image-service-endpoint", Text, "imageServiceEndpoint", Runtime, "Socket of the image service, when it is another one"),
    config("runtime-request-timeout", Duration, "runtimeRequestTimeout", Runtime, "Deadline of calls to the runtime, except pull, exec, attach and logs"),
    own("runtime-cgroups", Text, OwnFlag::RuntimeCgroups, Runtime, "Absolute name of the cgroup that the runtime runs in"),
    config("container-log-max-size", Text, "containerLogMaxSize", Runtime, "Size at which a container's log is rotated"),
    config("container-log-max-files", Int32, "containerLogMaxFiles", Runtime, "Number of log files kept per container, at least 2"),
    own("seccomp-default", Bool, OwnFlag::SeccompDefault, Runtime, "Use the profile RuntimeDefault where a workload names none"),
    config("hairpin-mode", Text, "hairpinMode", Runtime, "promiscuous-bridge, hairpin-veth or none"),
    // Pods and where they come from.
    config("pod-manifest-path", Text, "staticPodPath", Pods, "File or directory of static pods"),
    config("manifest-url", Text, "staticPodURL", Pods, "URL to fetch static pods from"),
    config("manifest-url-header", Kind::Headers, "staticPodURLHeader", Pods, "HTTP headers for --manifest-url, name:value separated by commas"),
    config("file-check-frequency", Duration, "fileCheckFrequency", Pods, "How often static pod files are read"),
    config("http-check-frequency", Duration, "httpCheckFrequency", Pods, "How often --manifest-url is read"),
    config("sync-frequency", Duration, "syncFrequency", Pods, "Longest time between two looks at a pod"),
    config("max-pods", Int32, "maxPods", Pods, "Number of pods on this node"),
    config("pods-per-core", Int32, "podsPerCore", Pods, "Number of pods per core; 0 for no such limit"),
    config("pod-max-pids", Int64, "podPidsLimit", Pods, "Number of processes per pod; -1 for the node's limit"),
    config("allowed-unsafe-sysctls", List, "allowedUnsafeSysctls", Pods, "Unsafe sysctls, or patterns ending in *, that pods may set"),
    // Network.
    config("cluster-dns", List, "clusterDNS", Network, "Addresses of the cluster's DNS servers"),
    config("cluster-domain", Text, "clusterDomain", Network, "Domain of the cluster"),
    config("pod-cidr", Text, "podCIDR", Network, "Addresses of pods, when standalone"),
    config("resolv-conf", Text, "resolvConf", Network, "Resolver configuration that pods' own is made from"),
    config("make-iptables-util-chains", Bool, "makeIPTablesUtilChains", Network, "Keep the helper chains of iptables"),
    // Images.
    config("serialize-image-pulls", Bool, "serializeImagePulls", Images, "Pull one image at a time"),
    config("registry-qps", Int32, "registryPullQPS", Images, "Pulls per second; 0 for no limit"),
    config("registry-burst", Int32, "registryBurst", Images, "Burst of pulls"),
    config("minimum-image-ttl-duration", Duration, "imageMinimumGCAge", Images, "Age before an unused image may be removed"),
    config("image-gc-high-threshold", Int32, "imageGCHighThresholdPercent", Images, "Disk usage in percent that starts image removal"),
    config("image-gc-low-threshold", Int32, "imageGCLowThresholdPercent", Images, "Disk usage in percent that image removal aims for"),
    own("image-credential-provider-config", Text, OwnFlag::ImageCredentialProviderConfig, Images, "File or directory that configures credential provider plugins"),
    own("image-credential-provider-bin-dir", Text, OwnFlag::ImageCredentialProviderBinDir, Images, "Directory of the credential provider plugins"),
    // HTTP server.
    config("enable-server", Bool, "enableServer", Server, "Serve the HTTP API"),
    config("address", Ip, "address", Server, "Address to serve on"),
    config("port", Int32, "port", Server, "Port to serve on"),
    config("read-only-port", Int32, "readOnlyPort", Server, "Port to serve on without authentication; 0 for none"),
    config("healthz-bind-address", Ip, "healthzBindAddress", Server, "Address of the health endpoint"),
    config("healthz-port", Int32, "healthzPort", Server, "Port of the health endpoint; 0 for none"),
    config("enable-debugging-handlers", Bool, "enableDebuggingHandlers", Server, "Serve logs, exec, attach and port-forward"),
    config("contention-profiling", Bool, "enableContentionProfiling", Server, "Profile lock contention, when profiling is on"),
    config("streaming-connection-idle-timeout", Duration, "streamingConnectionIdleTimeout", Server, "Idle time after which a stream is closed; 0 for never"),
    // Authentication and authorization.
    config("anonymous-auth", Bool, "authentication.anonymous.enabled", Auth, "Let requests without credentials in as system:anonymous"),
    config("authentication-token-webhook", Bool, "authentication.webhook.enabled", Auth, "Ask the API server about bearer tokens"),
    config("authentication-token-webhook-cache-ttl", Duration, "authentication.webhook.cacheTTL", Auth, "How long an answer about a token is kept"),
    config("client-ca-file", Text, "authentication.x509.clientCAFile", Auth, "Authorities that client certificates must be signed by"),
    config("authorization-mode", Text, "authorization.mode", Auth, "AlwaysAllow or Webhook"),
    config("authorization-webhook-cache-authorized-ttl", Duration, "authorization.webhook.cacheAuthorizedTTL", Auth, "How long a yes of the webhook is kept"),
    config("authorization-webhook-cache-unauthorized-ttl", Duration, "authorization.webhook.cacheUnauthorizedTTL", Auth, "How long a no of the webhook is kept"),
    // Certificates.
    own("cert-dir", Text, OwnFlag::CertDir, Tls, "Directory of TLS certificates, when no files are named"),
    config("tls-cert-file", Text, "tlsCertFile", Tls, "Serving certificate"),
    config("tls-private-key-file", Text, "tlsPrivateKeyFile", Tls, "Key of --tls-cert-file"),
    config("tls-cipher-suites", List, "tlsCipherSuites", Tls, "Cipher suites of the server, by Go's names"),
    config("tls-min-version", Text, "tlsMinVersion", Tls, "Lowest TLS version: VersionTLS10 to VersionTLS13"),
    config("rotate-certificates", Bool, "rotateCertificates", Tls, "Renew the client certificate before it expires"),
    config("rotate-server-certificates", Bool, "serverTLSBootstrap", Tls, "Ask the API server for the serving certificate, and renew it"),
    // Resources.
    config("cgroups-per-qos", Bool, "cgroupsPerQOS", Resources, "Keep a cgroup per QoS class and pod"),
    config("cgroup-driver", Text, "cgroupDriver", Resources, "cgroupfs or systemd"),
    config("cgroup-root", Text, "cgroupRoot", Resources, "Root cgroup of pods"),
    config("kubelet-cgroups", Text, "kubeletCgroups", Resources, "Absolute name of the cgroup that this process runs in"),
    config("system-cgroups", Text, "systemCgroups", Resources, "Absolute name of the cgroup for other processes"),
    config("cpu-cfs-quota", Bool, "cpuCFSQuota", Resources, "Enforce CPU limits by quota"),
    config("cpu-cfs-quota-period", Duration, "cpuCFSQuotaPeriod", Resources, "Period of the CPU quota"),
    config("cpu-manager-policy", Text, "cpuManagerPolicy", Resources, "none or static"),
    config("cpu-manager-policy-options", Kind::OnePair, "cpuManagerPolicyOptions", Resources, "One key=value for the CPU manager policy; may be repeated"),
    config("cpu-manager-reconcile-period", Duration, "cpuManagerReconcilePeriod", Resources, "How often CPU sets are compared with the wish"),
    config("memory-manager-policy", Text, "memoryManagerPolicy", Resources, "None or Static"),
    config("topology-manager-policy", Text, "topologyManagerPolicy", Resources, "none, best-effort, restricted or single-numa-node"),
    config("topology-manager-scope", Text, "topologyManagerScope", Resources, "container or pod"),
    config("topology-manager-policy-options", StringMap, "topologyManagerPolicyOptions", Resources, "key=value for the topology manager policy, separated by commas"),
    config("qos-reserved", StringMap, "qosReserved", Resources, "Share of requests reserved per QoS class, as memory=50%"),
    config("enforce-node-allocatable", List, "enforceNodeAllocatable", Resources, "What is enforced: none, pods, system-reserved, kube-reserved, or the latter two with -compressible"),
    config("system-reserved", StringMap, "systemReserved", Resources, "Resources kept for the system, as cpu=200m,memory=500Mi"),
    config("system-reserved-cgroup", Text, "systemReservedCgroup", Resources, "Absolute name of the system's cgroup"),
    config("kube-reserved", StringMap, "kubeReserved", Resources, "Resources kept for node agents, as cpu=200m,memory=500Mi"),
    config("kube-reserved-cgroup", Text, "kubeReservedCgroup", Resources, "Absolute name of the node agents' cgroup"),
    config("reserved-cpus", Text, "reservedSystemCPUs", Resources, "CPUs kept for the system, as 0-1,4; wins over the counts above"),
    config("reserved-memory", ReservedMemory, "reservedMemory", Resources, "Memory kept per NUMA node, as 0:memory=1Gi,hugepages-1M=2Gi; nodes separated by ;"),
    config("fail-swap-on", Bool, "failSwapOn", Resources, "Refuse to start when swap is on"),
    config("protect-kernel-defaults", Bool, "protectKernelDefaults", Resources, "Refuse kernel settings that differ from what is expected"),
    // Eviction.
    config("eviction-hard", Kind::Thresholds, "evictionHard", Eviction, "Thresholds that evict at once, as memory.available<1Gi"),
    config("eviction-soft", Kind::Thresholds, "evictionSoft", Eviction, "Thresholds that evict after a grace period"),
    config("eviction-soft-grace-period", StringMap, "evictionSoftGracePeriod", Eviction, "Grace periods of --eviction-soft, as memory.available=1m30s"),
    config("eviction-pressure-transition-period", Duration, "evictionPressureTransitionPeriod", Eviction, "Time before a pressure condition is taken back"),
    config("eviction-max-pod-grace-period", Int32, "evictionMaxPodGracePeriod", Eviction, "Seconds a pod gets on soft eviction at most"),
    config("eviction-minimum-reclaim", StringMap, "evictionMinimumReclaim", Eviction, "Amount freed at least, as imagefs.available=2Gi"),
    config("kernel-memcg-notification", Bool, "kernelMemcgNotification", Eviction, "Hear of memory thresholds from the kernel"),
    config("local-storage-capacity-isolation", Bool, "localStorageCapacityIsolation", Eviction, "Account and limit local ephemeral storage"),
    // Volumes.
    config("enable-controller-attach-detach", Bool, "enableControllerAttachDetach", Section::Volumes, "Leave attaching volumes to the controller"),
    config("volume-plugin-dir", Text, "volumePluginDir", Section::Volumes, "Directory of Flexvolume plugins"),
    config("volume-stats-agg-period", Duration, "volumeStatsAggPeriod", Section::Volumes, "How often volume usage is computed; negative for never"),
    // Logging.
    short('v', kept("v", Level, "logging.verbosity", Logging, "Log level")),
    kept("vmodule", VModule, "logging.vmodule", Logging, "Log levels per file, as pattern=N separated by commas (text format only)"),
    kept("log-flush-frequency", Duration, "logging.flushFrequency", Logging, "Longest time between two flushes of the log"),
    config("logging-format", Text, "logging.format", Logging, "text or json"),
    config("log-text-split-stream", Bool, "logging.options.text.splitStream", Logging, "In text format, errors to stderr and the rest to stdout (alpha)"),
    config("log-text-info-buffer-size", Quantity, "logging.options.text.infoBufferSize", Logging, "Buffer of the split text stream (alpha)"),
    config("log-json-split-stream", Bool, "logging.options.json.splitStream", Logging, "In JSON format, errors to stderr and the rest to stdout (alpha)"),
    config("log-json-info-buffer-size", Quantity, "logging.options.json.infoBufferSize", Logging, "Buffer of the split JSON stream (alpha)"),
    // On their way out.
    old("minimum-container-ttl-duration", Duration, OwnFlag::MinimumContainerTtl, DEAD_CONTAINERS, "Age before a dead container may be removed"),
    old("maximum-dead-containers-per-container", Int32, OwnFlag::MaximumDeadContainersPerContainer, DEAD_CONTAINERS, "Dead instances kept per container"),
    old("maximum-dead-containers", Int32, OwnFlag::MaximumDeadContainers, DEAD_CONTAINERS, "Dead containers kept on the node; negative for no limit"),
    old("experimental-mounter-path", Text, OwnFlag::ExperimentalMounterPath, "CSI drivers replace it", "Path of a mount program"),
    old("experimental-allocatable-ignore-eviction", Bool, OwnFlag::ExperimentalAllocatableIgnoreEviction, "it will be removed", "Leave hard eviction thresholds out of what is allocatable"),
];
