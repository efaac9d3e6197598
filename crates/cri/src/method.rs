//! The table of CRI calls: name, path on the wire, and upstream's label in metrics.
//!
//! Owns those strings. Tests compare the names with the golden list of the CRI.

/// One call of the interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Method {
    /// As the interface spells it; it names spans and errors.
    pub(crate) name: &'static str,
    /// The HTTP/2 path.
    pub(crate) path: &'static str,
    /// The label `operation_type`. A streamed list counts as its plain twin, as upstream.
    pub(crate) operation: &'static str,
    /// The namespace header, for calls that are not of the CRI.
    pub(crate) namespace: Option<&'static str>,
}

macro_rules! calls {
    ($service:literal: $($constant:ident $name:literal $operation:literal;)*) => {
        $(pub(crate) const $constant: Method = Method {
            name: $name,
            path: concat!("/runtime.v1.", $service, "/", $name),
            operation: $operation,
            namespace: None,
        };)*
    };
}

calls! { "RuntimeService":
    ATTACH "Attach" "attach";
    CHECKPOINT_CONTAINER "CheckpointContainer" "checkpoint_container";
    CHECKPOINT_POD "CheckpointPod" "checkpoint_pod";
    CONTAINER_STATS "ContainerStats" "container_stats";
    CONTAINER_STATUS "ContainerStatus" "container_status";
    CREATE_CONTAINER "CreateContainer" "create_container";
    EXEC "Exec" "exec";
    EXEC_SYNC "ExecSync" "exec_sync";
    GET_CONTAINER_EVENTS "GetContainerEvents" "get_container_events";
    LIST_CONTAINERS "ListContainers" "list_containers";
    LIST_CONTAINER_STATS "ListContainerStats" "list_container_stats";
    LIST_METRIC_DESCRIPTORS "ListMetricDescriptors" "list_metric_descriptors";
    LIST_POD_SANDBOX "ListPodSandbox" "list_podsandbox";
    LIST_POD_SANDBOX_METRICS "ListPodSandboxMetrics" "list_podsandbox_metrics";
    LIST_POD_SANDBOX_STATS "ListPodSandboxStats" "list_podsandbox_stats";
    POD_SANDBOX_STATS "PodSandboxStats" "podsandbox_stats";
    POD_SANDBOX_STATUS "PodSandboxStatus" "podsandbox_status";
    PORT_FORWARD "PortForward" "port_forward";
    REMOVE_CONTAINER "RemoveContainer" "remove_container";
    REMOVE_POD_SANDBOX "RemovePodSandbox" "remove_podsandbox";
    REOPEN_CONTAINER_LOG "ReopenContainerLog" "reopen_container_log";
    RESTORE_POD "RestorePod" "restore_pod";
    RUN_POD_SANDBOX "RunPodSandbox" "run_podsandbox";
    RUNTIME_CONFIG "RuntimeConfig" "runtime_config";
    START_CONTAINER "StartContainer" "start_container";
    STATUS "Status" "status";
    STOP_CONTAINER "StopContainer" "stop_container";
    STOP_POD_SANDBOX "StopPodSandbox" "stop_podsandbox";
    STREAM_CONTAINERS "StreamContainers" "list_containers";
    STREAM_CONTAINER_STATS "StreamContainerStats" "list_container_stats";
    STREAM_POD_SANDBOXES "StreamPodSandboxes" "list_podsandbox";
    STREAM_POD_SANDBOX_METRICS "StreamPodSandboxMetrics" "list_podsandbox_metrics";
    STREAM_POD_SANDBOX_STATS "StreamPodSandboxStats" "list_podsandbox_stats";
    UPDATE_CONTAINER_RESOURCES "UpdateContainerResources" "update_container";
    UPDATE_POD_SANDBOX_RESOURCES "UpdatePodSandboxResources" "update_podsandbox_resources";
    UPDATE_RUNTIME_CONFIG "UpdateRuntimeConfig" "update_runtime_config";
    VERSION "Version" "version";
}

calls! { "ImageService":
    IMAGE_FS_INFO "ImageFsInfo" "image_fs_info";
    IMAGE_STATUS "ImageStatus" "image_status";
    LIST_IMAGES "ListImages" "list_images";
    PULL_IMAGE "PullImage" "pull_image";
    REMOVE_IMAGE "RemoveImage" "remove_image";
    STREAM_IMAGES "StreamImages" "list_images";
}

/// The same call in the CRI's last version before v1, made only for a better error.
pub(crate) const VERSION_V1ALPHA2: Method = Method {
    name: "Version",
    path: "/runtime.v1alpha2.RuntimeService/Version",
    operation: "version",
    namespace: None,
};

/// What containerd is writing to its content store.
pub(crate) const LIST_CONTENT_STATUSES: Method = Method {
    name: "ListStatuses",
    path: "/containerd.services.content.v1.Content/ListStatuses",
    operation: "list_statuses",
    namespace: Some(rubelet_wire::containerd::CRI_NAMESPACE),
};
