//! One row per setting. Data only: what is said about a row is the parent's business.

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
const IMAGES: &str = "image pulls and image garbage collection";
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
    // Upstream refuses it as well; validation says so.
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
    not_yet(
        Flag("--housekeeping-interval", F::HousekeepingInterval),
        "container statistics",
    ),
    works(Field("oomScoreAdj"), PROCESS),
    not_yet(Field("maxOpenFiles"), PROCESS),
    // Node and API server.
    not_yet(Flag("--kubeconfig", F::Kubeconfig), API_SERVER),
    not_yet(
        Flag("--bootstrap-kubeconfig", F::BootstrapKubeconfig),
        CERTIFICATES,
    ),
    not_yet(Flag("--node-ip", F::NodeIp), NODE),
    not_yet(Flag("--node-labels", F::NodeLabels), NODE),
    not_yet(Flag("--cloud-provider", F::CloudProvider), NODE),
    not_yet(Field("providerID"), NODE),
    not_yet(Field("registerNode"), NODE),
    not_yet(Field("registerWithTaints"), NODE),
    not_yet(Field("nodeStatusUpdateFrequency"), NODE),
    not_yet(Field("nodeStatusReportFrequency"), NODE),
    not_yet(Field("nodeLeaseDurationSeconds"), NODE),
    not_yet(Field("nodeStatusMaxImages"), NODE),
    not_yet(Field("contentType"), API_SERVER),
    not_yet(Field("kubeAPIQPS"), API_SERVER),
    not_yet(Field("kubeAPIBurst"), API_SERVER),
    not_yet(Field("eventRecordQPS"), "events"),
    not_yet(Field("eventBurst"), "events"),
    not_yet(Field("configMapAndSecretChangeDetectionStrategy"), API_SERVER),
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
    not_yet(Field("hairpinMode"), PODS),
    works(Field("crashLoopBackOff"), PODS),
    works(Field("userNamespaces"), PODS),
    works(Field("seccompDefault"), PODS),
    works(Flag("--seccomp-default", F::SeccompDefault), PODS),
    not_yet(Flag("--runtime-cgroups", F::RuntimeCgroups), CGROUPS),
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
    not_yet(Field("containerLogMaxSize"), LOG_ROTATION),
    not_yet(Field("containerLogMaxFiles"), LOG_ROTATION),
    not_yet(Field("containerLogMaxWorkers"), LOG_ROTATION),
    not_yet(Field("containerLogMonitorInterval"), LOG_ROTATION),
    refused("shutdownGracePeriod", SHUTDOWN, "more than zero"),
    not_yet(Field("shutdownGracePeriodCriticalPods"), SHUTDOWN),
    refused("shutdownGracePeriodByPodPriority", SHUTDOWN, "any entry"),
    // Network of pods.
    works(Field("clusterDNS"), DNS),
    works(Field("clusterDomain"), DNS),
    works(Field("resolvConf"), DNS),
    not_yet(Field("podCIDR"), PODS),
    works(Field("makeIPTablesUtilChains"), "iptables helper chains"),
    works(Field("iptablesMasqueradeBit"), "iptables helper chains"),
    works(Field("iptablesDropBit"), "iptables helper chains"),
    // Images.
    works(Field("serializeImagePulls"), IMAGES),
    works(Field("maxParallelImagePulls"), IMAGES),
    works(Field("registryPullQPS"), IMAGES),
    works(Field("registryBurst"), IMAGES),
    not_yet(Field("imagePullCredentialsVerificationPolicy"), IMAGES),
    not_yet(Field("preloadedImagesVerificationAllowlist"), IMAGES),
    not_yet(Field("imageMinimumGCAge"), IMAGES),
    not_yet(Field("imageMaximumGCAge"), IMAGES),
    not_yet(Field("imageGCHighThresholdPercent"), IMAGES),
    not_yet(Field("imageGCLowThresholdPercent"), IMAGES),
    not_yet(
        Flag(
            "--image-credential-provider-config",
            F::ImageCredentialProviderConfig,
        ),
        IMAGES,
    ),
    not_yet(
        Flag(
            "--image-credential-provider-bin-dir",
            F::ImageCredentialProviderBinDir,
        ),
        IMAGES,
    ),
    // HTTP server.
    works(Field("enableServer"), HTTP),
    works(Field("address"), HTTP),
    works(Field("port"), HTTP),
    works(Field("readOnlyPort"), HTTP),
    works(Field("healthzPort"), HTTP),
    works(Field("healthzBindAddress"), HTTP),
    works(Field("enableDebuggingHandlers"), HTTP),
    not_yet(Field("enableContentionProfiling"), HTTP),
    not_yet(Field("enableProfilingHandler"), HTTP),
    not_yet(Field("enableDebugFlagsHandler"), HTTP),
    not_yet(Field("enableSystemLogHandler"), HTTP),
    not_yet(Field("enableSystemLogQuery"), HTTP),
    not_yet(Field("streamingConnectionIdleTimeout"), HTTP),
    not_yet(Field("showHiddenMetricsForVersion"), "metrics"),
    works(Field("authentication"), AUTH),
    works(Field("authorization"), AUTH),
    works(Field("tlsCertFile"), CERTIFICATES),
    works(Field("tlsPrivateKeyFile"), CERTIFICATES),
    works(Field("tlsCipherSuites"), CERTIFICATES),
    works(Field("tlsCurvePreferences"), CERTIFICATES),
    works(Field("tlsMinVersion"), CERTIFICATES),
    not_yet(Field("rotateCertificates"), CERTIFICATES),
    not_yet(Field("serverTLSBootstrap"), CERTIFICATES),
    works(Flag("--cert-dir", F::CertDir), CERTIFICATES),
    // Resources.
    works(Field("cgroupsPerQOS"), CGROUPS),
    works(Field("cgroupDriver"), CGROUPS),
    works(Field("cgroupRoot"), CGROUPS),
    not_yet(Field("kubeletCgroups"), CGROUPS),
    not_yet(Field("systemCgroups"), CGROUPS),
    works(Field("cpuCFSQuota"), CGROUPS),
    works(Field("cpuCFSQuotaPeriod"), CGROUPS),
    not_yet(Field("qosReserved"), CGROUPS),
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
    not_yet(Field("reservedSystemCPUs"), RESERVED),
    works(Field("failSwapOn"), SWAP),
    works(Field("memorySwap"), SWAP),
    works(Field("protectKernelDefaults"), "checks of kernel settings"),
    // Eviction.
    not_yet(Field("evictionHard"), EVICTION),
    not_yet(Field("evictionSoft"), EVICTION),
    not_yet(Field("evictionSoftGracePeriod"), EVICTION),
    not_yet(Field("evictionPressureTransitionPeriod"), EVICTION),
    not_yet(Field("evictionMaxPodGracePeriod"), EVICTION),
    not_yet(Field("evictionMinimumReclaim"), EVICTION),
    not_yet(Field("mergeDefaultEvictionSettings"), EVICTION),
    not_yet(Field("kernelMemcgNotification"), EVICTION),
    not_yet(Field("localStorageCapacityIsolation"), EVICTION),
    not_yet(
        Flag(
            "--experimental-allocatable-ignore-eviction",
            F::ExperimentalAllocatableIgnoreEviction,
        ),
        EVICTION,
    ),
    // Volumes.
    not_yet(Field("enableControllerAttachDetach"), VOLUMES),
    not_yet(Field("volumePluginDir"), VOLUMES),
    not_yet(Field("volumeStatsAggPeriod"), VOLUMES),
    not_yet(
        Flag("--experimental-mounter-path", F::ExperimentalMounterPath),
        VOLUMES,
    ),
    not_yet(Field("tracing"), TRACING),
];
