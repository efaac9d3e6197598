//! One row per setting. Data only: the parent module words the messages.

use super::Setting::{Field, Flag};
use super::{Setting, SettingSupport, Support};
use crate::flags::OwnFlag as F;

const fn works(setting: Setting, feature: &'static str) -> SettingSupport {
    SettingSupport {
        setting,
        feature,
        support: Support::Works,
    }
}

const fn not_yet(setting: Setting, feature: &'static str) -> SettingSupport {
    SettingSupport {
        setting,
        feature,
        support: Support::NotYet,
    }
}

const fn refused(path: &'static str, feature: &'static str, when: &'static str) -> SettingSupport {
    SettingSupport {
        setting: Field(path),
        feature,
        support: Support::Refused { when },
    }
}

const API_SERVER: &str = "the API server connection";
const AUTH: &str = "authentication and authorization of the HTTP server";
const CERTIFICATES: &str = "certificates";
const CGROUPS: &str = "cgroups of pods";
const CONFIG: &str = "configuration";
const DNS: &str = "DNS of pods";
const EVICTION: &str = "eviction";
const HTTP: &str = "the HTTP server";
const CREDENTIALS: &str = "credentials for images";
const IMAGE_GARBAGE: &str = "image garbage collection";
const DEBUGGING: &str = "profiles of waiting for locks";
const FLEX_VOLUMES: &str = "Flexvolumes and statistics of volumes";
const IMAGES: &str = "image pulls";
const LOGGING: &str = "logging";
const LOG_STREAMS: &str = "split log streams";
const LOG_ROTATION: &str = "container log rotation";
const NODE: &str = "node registration and status";
const NUMA: &str = "policies for cpus, memory and topology";
const PODS: &str = "pods";
const PROCESS: &str = "limits of the agent's own process";
const RESERVED: &str = "reserved resources";
const RUNTIME: &str = "the container runtime";
const SHUTDOWN: &str = "graceful node shutdown";
const START: &str = "start-up";
const STATIC_PODS: &str = "static pods";
const SWAP: &str = "swap";
const SYSTEM_CGROUPS: &str = "cgroups of the node's own programs";
const TRACING: &str = "tracing";
const VOLUMES: &str = "volumes";

pub(super) static TABLE: &[SettingSupport] = &[
    works(Flag("--help", F::Help), START),
    works(Flag("--version", F::Version), START),
    works(Flag("--config", F::Config), CONFIG),
    works(Flag("--config-dir", F::ConfigDir), CONFIG),
    works(Flag("--rubelet-config", F::RubeletConfig), CONFIG),
    works(Flag("--root-dir", F::RootDir), START),
    works(Flag("--lock-file", F::LockFile), START),
    works(Flag("--exit-on-lock-contention", F::ExitOnLockContention), START),
    works(Flag("--hostname-override", F::HostnameOverride), START),
    works(Field("failCgroupV1"), START),
    // Upstream refuses it as well; validation reports it.
    works(Field("runOnce"), START),
    // Gates that differ from their defaults get a warning of their own.
    works(Field("featureGates"), "feature gates"),
    works(Field("containerRuntimeEndpoint"), RUNTIME),
    works(Field("imageServiceEndpoint"), RUNTIME),
    works(Field("runtimeRequestTimeout"), RUNTIME),
    works(Field("logging.format"), LOGGING),
    works(Field("logging.verbosity"), LOGGING),
    works(Field("logging.flushFrequency"), LOGGING),
    works(Field("logging.vmodule"), LOGGING),
    not_yet(Field("logging.options"), LOG_STREAMS),
    // Statistics are read when they are asked for: there is no interval that it could change.
    works(
        Flag("--housekeeping-interval", F::HousekeepingInterval),
        "container statistics, read when they are asked for",
    ),
    works(Field("oomScoreAdj"), PROCESS),
    works(Field("maxOpenFiles"), PROCESS),
    // Node and API server.
    works(Flag("--kubeconfig", F::Kubeconfig), API_SERVER),
    works(
        Flag("--bootstrap-kubeconfig", F::BootstrapKubeconfig),
        CERTIFICATES,
    ),
    works(Flag("--node-ip", F::NodeIp), NODE),
    works(Flag("--node-labels", F::NodeLabels), NODE),
    works(Flag("--cloud-provider", F::CloudProvider), NODE),
    works(Field("providerID"), NODE),
    works(Field("registerNode"), NODE),
    works(Field("registerWithTaints"), NODE),
    works(Field("nodeStatusUpdateFrequency"), NODE),
    works(Field("nodeStatusReportFrequency"), NODE),
    works(Field("nodeLeaseDurationSeconds"), NODE),
    works(Field("nodeStatusMaxImages"), NODE),
    not_yet(Field("contentType"), "protobuf towards the API server"),
    works(Field("kubeAPIQPS"), API_SERVER),
    works(Field("kubeAPIBurst"), API_SERVER),
    works(Field("eventRecordQPS"), "events"),
    works(Field("eventBurst"), "events"),
    works(Field("configMapAndSecretChangeDetectionStrategy"), API_SERVER),
    // Pods.
    works(Field("staticPodPath"), STATIC_PODS),
    works(Field("staticPodURL"), STATIC_PODS),
    works(Field("staticPodURLHeader"), STATIC_PODS),
    works(Field("fileCheckFrequency"), STATIC_PODS),
    works(Field("httpCheckFrequency"), STATIC_PODS),
    works(Field("syncFrequency"), PODS),
    works(Field("maxPods"), PODS),
    works(Field("podsPerCore"), PODS),
    works(Field("podPidsLimit"), PODS),
    works(Field("podLogsDir"), PODS),
    works(Field("allowedUnsafeSysctls"), PODS),
    works(Field("defaultPodSysctls"), PODS),
    not_yet(Field("hairpinMode"), "hairpin mode"),
    works(Field("crashLoopBackOff"), PODS),
    works(Field("userNamespaces"), PODS),
    works(Field("seccompDefault"), PODS),
    works(Flag("--seccomp-default", F::SeccompDefault), PODS),
    works(Flag("--runtime-cgroups", F::RuntimeCgroups), SYSTEM_CGROUPS),
    works(
        Flag("--minimum-container-ttl-duration", F::MinimumContainerTtl),
        PODS,
    ),
    works(
        Flag(
            "--maximum-dead-containers-per-container",
            F::MaximumDeadContainersPerContainer,
        ),
        PODS,
    ),
    works(Flag("--maximum-dead-containers", F::MaximumDeadContainers), PODS),
    works(Field("containerLogMaxSize"), LOG_ROTATION),
    works(Field("containerLogMaxFiles"), LOG_ROTATION),
    works(Field("containerLogMaxWorkers"), LOG_ROTATION),
    works(Field("containerLogMonitorInterval"), LOG_ROTATION),
    works(Field("shutdownGracePeriod"), SHUTDOWN),
    works(Field("shutdownGracePeriodCriticalPods"), SHUTDOWN),
    works(Field("shutdownGracePeriodByPodPriority"), SHUTDOWN),
    // Network of pods.
    works(Field("clusterDNS"), DNS),
    works(Field("clusterDomain"), DNS),
    works(Field("resolvConf"), DNS),
    not_yet(Field("podCIDR"), "a pod CIDR without an API server"),
    works(Field("makeIPTablesUtilChains"), "iptables helper chains"),
    works(Field("iptablesMasqueradeBit"), "iptables helper chains"),
    works(Field("iptablesDropBit"), "iptables helper chains"),
    // Images.
    works(Field("serializeImagePulls"), IMAGES),
    works(Field("maxParallelImagePulls"), IMAGES),
    works(Field("registryPullQPS"), IMAGES),
    works(Field("registryBurst"), IMAGES),
    works(Field("imagePullCredentialsVerificationPolicy"), CREDENTIALS),
    works(Field("preloadedImagesVerificationAllowlist"), CREDENTIALS),
    works(Field("imageMinimumGCAge"), IMAGE_GARBAGE),
    works(Field("imageMaximumGCAge"), IMAGE_GARBAGE),
    works(Field("imageGCHighThresholdPercent"), IMAGE_GARBAGE),
    works(Field("imageGCLowThresholdPercent"), IMAGE_GARBAGE),
    works(
        Flag(
            "--image-credential-provider-config",
            F::ImageCredentialProviderConfig,
        ),
        CREDENTIALS,
    ),
    works(
        Flag(
            "--image-credential-provider-bin-dir",
            F::ImageCredentialProviderBinDir,
        ),
        CREDENTIALS,
    ),
    // HTTP server.
    works(Field("enableServer"), HTTP),
    works(Field("address"), HTTP),
    works(Field("port"), HTTP),
    works(Field("readOnlyPort"), HTTP),
    works(Field("healthzPort"), HTTP),
    works(Field("healthzBindAddress"), HTTP),
    works(Field("enableDebuggingHandlers"), HTTP),
    not_yet(Field("enableContentionProfiling"), DEBUGGING),
    works(Field("enableProfilingHandler"), HTTP),
    works(Field("enableDebugFlagsHandler"), HTTP),
    works(Field("enableSystemLogHandler"), HTTP),
    works(Field("enableSystemLogQuery"), HTTP),
    works(Field("streamingConnectionIdleTimeout"), HTTP),
    not_yet(Field("showHiddenMetricsForVersion"), "metrics"),
    works(Field("authentication"), AUTH),
    works(Field("authorization"), AUTH),
    works(Field("tlsCertFile"), CERTIFICATES),
    works(Field("tlsPrivateKeyFile"), CERTIFICATES),
    works(Field("tlsCipherSuites"), CERTIFICATES),
    works(Field("tlsCurvePreferences"), CERTIFICATES),
    works(Field("tlsMinVersion"), CERTIFICATES),
    works(Field("rotateCertificates"), CERTIFICATES),
    works(Field("serverTLSBootstrap"), CERTIFICATES),
    works(Flag("--cert-dir", F::CertDir), CERTIFICATES),
    // Resources.
    works(Field("cgroupsPerQOS"), CGROUPS),
    works(Field("cgroupDriver"), CGROUPS),
    works(Field("cgroupRoot"), CGROUPS),
    works(Field("kubeletCgroups"), SYSTEM_CGROUPS),
    works(Field("systemCgroups"), SYSTEM_CGROUPS),
    works(Field("cpuCFSQuota"), CGROUPS),
    works(Field("cpuCFSQuotaPeriod"), CGROUPS),
    not_yet(
        Field("qosReserved"),
        "memory that is reserved for pods of higher QoS classes",
    ),
    works(Field("memoryThrottlingFactor"), CGROUPS),
    works(Field("memoryReservationPolicy"), CGROUPS),
    works(Field("singleProcessOOMKill"), CGROUPS),
    refused("cpuManagerPolicy", NUMA, "anything but none"),
    not_yet(Field("cpuManagerPolicyOptions"), NUMA),
    not_yet(Field("cpuManagerReconcilePeriod"), NUMA),
    refused("memoryManagerPolicy", NUMA, "anything but None"),
    not_yet(Field("reservedMemory"), NUMA),
    refused("topologyManagerPolicy", NUMA, "anything but none"),
    not_yet(Field("topologyManagerScope"), NUMA),
    not_yet(Field("topologyManagerPolicyOptions"), NUMA),
    works(Field("enforceNodeAllocatable"), RESERVED),
    works(Field("systemReserved"), RESERVED),
    works(Field("systemReservedCgroup"), RESERVED),
    works(Field("kubeReserved"), RESERVED),
    works(Field("kubeReservedCgroup"), RESERVED),
    not_yet(Field("reservedSystemCPUs"), NUMA),
    works(Field("failSwapOn"), SWAP),
    works(Field("memorySwap"), SWAP),
    works(Field("protectKernelDefaults"), "checks of kernel settings"),
    // Eviction.
    works(Field("evictionHard"), EVICTION),
    works(Field("evictionSoft"), EVICTION),
    works(Field("evictionSoftGracePeriod"), EVICTION),
    works(Field("evictionPressureTransitionPeriod"), EVICTION),
    works(Field("evictionMaxPodGracePeriod"), EVICTION),
    works(Field("evictionMinimumReclaim"), EVICTION),
    works(Field("mergeDefaultEvictionSettings"), EVICTION),
    works(
        Field("kernelMemcgNotification"),
        "eviction; the kernel's hints are always used",
    ),
    works(Field("localStorageCapacityIsolation"), EVICTION),
    works(
        Flag(
            "--experimental-allocatable-ignore-eviction",
            F::ExperimentalAllocatableIgnoreEviction,
        ),
        EVICTION,
    ),
    // Volumes.
    works(Field("enableControllerAttachDetach"), VOLUMES),
    not_yet(Field("volumePluginDir"), FLEX_VOLUMES),
    works(Field("volumeStatsAggPeriod"), FLEX_VOLUMES),
    not_yet(
        Flag("--experimental-mounter-path", F::ExperimentalMounterPath),
        FLEX_VOLUMES,
    ),
    not_yet(Field("tracing"), TRACING),
];
