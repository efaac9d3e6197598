//! The one pod of all rows: as a manifest for kubelets, and as the configuration that a kubelet makes of it for the CRI.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result};
use rubelet_wire::cri::v1;
use serde_json::{Value, json};

use rubelet_testbed::Scope;
use rubelet_testbed::images::PAUSE;

/// Ends at once on SIGTERM, so that stopping it shows the runtime's time and not the grace period.
pub(super) const IMAGE: &str = PAUSE;
pub(super) const NAMESPACE: &str = "default";
pub(super) const GRACE_SECONDS: i64 = 30;
const CONTAINER: &str = "main";
/// The objects that volumes are fed from; the last is the cluster's own.
pub(super) const CONFIG_MAP: &str = "settings";
pub(super) const SECRET: &str = "credentials";
pub(super) const ROOT_CA: &str = "kube-root-ca.crt";
/// Where a pod with objects of its own has their content: the volume's plugin, its name, and the file, which is the object's only key.
pub(super) const OWN_FILES: [(&str, &str, &str); 3] = [
    ("configmap", "config-map", OWN_KEY),
    ("secret", "secret", OWN_KEY),
    ("projected", "access", OWN_KEY),
];
pub(super) const TOKEN_FILE: (&str, &str, &str) = ("projected", "access", "token");
pub(super) const OWN_KEY: &str = "content";
/// As many as the pods with volumes have.
const VOLUMES: usize = 5;
/// The longest that a probe waits for its answer.
const PROBE_SECONDS: u64 = 30;

/// The manifest of a pod of this name.
pub(super) fn manifest(name: &str) -> String {
    format!("{:#}\n", with_containers(name, &[container()]))
}

/// The same pod with five volumes.
pub(super) fn manifest_with_volumes(name: &str) -> String {
    let info = json!([
        { "path": "name", "fieldRef": { "fieldPath": "metadata.name" } },
        { "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } },
    ]);
    let volumes = json!([
        { "name": "disk-1", "emptyDir": {} },
        { "name": "disk-2", "emptyDir": {} },
        { "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } },
        { "name": "info-1", "downwardAPI": { "items": info } },
        { "name": "info-2", "downwardAPI": { "items": info } },
    ]);
    format!("{:#}\n", with_volumes(name, volumes))
}

/// The same pod with a probe of each kind; a server on the node answers them.
pub(super) fn manifest_with_probes(name: &str, server: SocketAddr) -> String {
    let mut container = container();
    for kind in ["startupProbe", "readinessProbe", "livenessProbe"] {
        container[kind] = json!({
            "httpGet": { "host": server.ip(), "port": server.port(), "path": format!("/{name}/{kind}") },
            "periodSeconds": 1,
            "timeoutSeconds": PROBE_SECONDS,
        });
    }
    format!("{:#}\n", with_containers(name, &[container]))
}

fn volume_path(index: usize) -> String {
    format!("/volumes/{index}")
}

fn with_volumes(name: &str, volumes: Value) -> Value {
    let names = volumes
        .as_array()
        .into_iter()
        .flatten()
        .map(|volume| volume["name"].clone());
    let mounts: Vec<Value> = names
        .enumerate()
        .map(|(index, name)| json!({ "name": name, "mountPath": volume_path(index) }))
        .collect();
    let mut container = container();
    container["volumeMounts"] = json!(mounts);
    let mut pod = with_containers(name, &[container]);
    pod["spec"]["volumes"] = volumes;
    pod
}

fn container() -> Value {
    json!({ "name": CONTAINER, "image": IMAGE, "imagePullPolicy": "IfNotPresent" })
}

/// The same pod for a node of a cluster, with what the API server gives to every pod: a volume with a token.
pub(super) fn with_service_account(name: &str, node: &str) -> Value {
    bound(with_containers(name, &[container()]), node)
}

/// The same pod for a node of a cluster, and nothing else.
pub(super) fn without_volumes(name: &str, node: &str) -> Value {
    without_service_account(with_service_account(name, node))
}

/// The same pod for a node of a cluster with five volumes that are fed by the API server, one of them as it gives to every pod.
pub(super) fn with_api_volumes(name: &str, node: &str) -> Value {
    let info = json!([
        { "path": "name", "fieldRef": { "fieldPath": "metadata.name" } },
        { "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } },
    ]);
    let namespace = json!([{ "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } }]);
    let volumes = json!([
        { "name": "config-map", "configMap": { "name": CONFIG_MAP } },
        { "name": "secret", "secret": { "secretName": SECRET } },
        { "name": "info", "downwardAPI": { "items": info } },
        { "name": "both", "projected": { "sources": [
            { "configMap": { "name": CONFIG_MAP, "items": [{ "key": "one", "path": "settings/one" }] } },
            { "secret": { "name": SECRET, "items": [{ "key": "two", "path": "credentials/two" }] } },
        ] } },
        { "name": "access", "projected": { "sources": [
            { "serviceAccountToken": { "path": "token", "expirationSeconds": 3607 } },
            { "configMap": { "name": ROOT_CA, "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
            { "downwardAPI": { "items": namespace } },
        ] } },
    ]);
    without_service_account(bound(with_volumes(name, volumes), node))
}

/// The names of the two ConfigMaps and the Secret that only this pod uses.
pub(super) fn own_objects(name: &str) -> ([String; 2], String) {
    (
        [format!("{name}-settings"), format!("{name}-access")],
        format!("{name}-credentials"),
    )
}

/// The same pod for a node of a cluster with these three objects in volumes; one is in the volume of the token, so that a new
/// content of it shows that the volume was written anew.
pub(super) fn with_own_objects(name: &str, node: &str) -> Value {
    let ([settings, access], credentials) = own_objects(name);
    let namespace = json!([{ "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } }]);
    let volumes = json!([
        { "name": "config-map", "configMap": { "name": settings } },
        { "name": "secret", "secret": { "secretName": credentials } },
        { "name": "access", "projected": { "sources": [
            { "serviceAccountToken": { "path": "token", "expirationSeconds": 3607 } },
            { "configMap": { "name": ROOT_CA, "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
            { "downwardAPI": { "items": namespace } },
            { "configMap": { "name": access } },
        ] } },
    ]);
    without_service_account(bound(with_volumes(name, volumes), node))
}

/// The same pod for a node of a cluster, in the node's network; a server beside it says whether it is ready.
pub(super) fn with_readiness(name: &str, node: &str, server: SocketAddr) -> Value {
    let mut container = container();
    container["readinessProbe"] = json!({
        "httpGet": { "host": server.ip(), "port": server.port(), "path": format!("/{name}") },
        "periodSeconds": 1,
        "failureThreshold": 1,
        "timeoutSeconds": PROBE_SECONDS,
    });
    let mut pod = bound(with_containers(name, &[container]), node);
    pod["spec"]["hostNetwork"] = json!(true);
    without_service_account(pod)
}

pub(super) fn bound(mut pod: Value, node: &str) -> Value {
    pod["spec"]["nodeName"] = json!(node);
    pod
}

pub(super) fn without_service_account(mut pod: Value) -> Value {
    pod["spec"]["automountServiceAccountToken"] = json!(false);
    pod
}

/// The same pod with other containers.
pub(super) fn with_containers(name: &str, containers: &[Value]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": { "app": "bench" } },
        "spec": {
            "dnsPolicy": "Default",
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            "containers": containers,
        },
    })
}

/// The same pod without a kubelet.
#[derive(Clone, Debug)]
pub(super) struct BareConfig {
    pub(super) sandbox: v1::PodSandboxConfig,
    pub(super) container: v1::ContainerConfig,
}

impl BareConfig {
    /// Makes the files that the pod mounts, and the configuration; none of it is in the floor's time.
    pub(super) fn prepare(scope: &Scope, image_id: &str, name: &str) -> Result<Self> {
        let uid = format!("{}-{name}", scope.id());
        let log_dir = scope.path(&format!("floor/logs/{NAMESPACE}_{name}_{uid}"));
        let pod_dir = scope.path(&format!("floor/pods/{uid}"));
        for dir in [&log_dir.join(CONTAINER), &pod_dir] {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let identity = [
            ("io.kubernetes.pod.name", name),
            ("io.kubernetes.pod.namespace", NAMESPACE),
            ("io.kubernetes.pod.uid", uid.as_str()),
        ];
        let mut labels = owned(&identity);
        let mut container_labels = labels.clone();
        labels.insert("app".to_owned(), "bench".to_owned());
        container_labels.insert("io.kubernetes.container.name".to_owned(), CONTAINER.to_owned());
        let sandbox = v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: name.to_owned(),
                uid: uid.clone(),
                namespace: NAMESPACE.to_owned(),
                attempt: 0,
            }),
            hostname: name.to_owned(),
            log_directory: log_dir.display().to_string(),
            dns_config: Some(v1::DnsConfig::default()),
            labels,
            annotations: owned(&[("kubernetes.io/config.source", "file")]),
            linux: Some(sandbox_linux()),
            ..Default::default()
        };
        let container = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata {
                name: CONTAINER.to_owned(),
                attempt: 0,
            }),
            image: Some(v1::ImageSpec {
                image: image_id.to_owned(),
                user_specified_image: IMAGE.to_owned(),
                ..Default::default()
            }),
            labels: container_labels,
            annotations: owned(&[
                ("io.kubernetes.container.restartCount", "0"),
                (
                    "io.kubernetes.container.terminationMessagePath",
                    "/dev/termination-log",
                ),
                ("io.kubernetes.container.terminationMessagePolicy", "File"),
                ("io.kubernetes.pod.terminationGracePeriod", "30"),
            ]),
            mounts: vec![
                mounted_file(&pod_dir.join("etc-hosts"), "/etc/hosts")?,
                mounted_file(&pod_dir.join("termination-log"), "/dev/termination-log")?,
            ],
            log_path: format!("{CONTAINER}/0.log"),
            linux: Some(container_linux()),
            ..Default::default()
        };
        Ok(Self { sandbox, container })
    }

    /// The same with the mounts of five volumes; what is in them was made before.
    pub(super) fn with_volumes(mut self, scope: &Scope) -> Result<Self> {
        for index in 0..VOLUMES {
            let volume = scope.path(&format!("floor/volumes/{index}"));
            fs::create_dir_all(&volume).with_context(|| format!("create {}", volume.display()))?;
            self.container.mounts.push(v1::Mount {
                container_path: volume_path(index),
                host_path: volume.display().to_string(),
                ..Default::default()
            });
        }
        Ok(self)
    }

    /// The container that follows the first one.
    pub(super) fn successor(&self) -> v1::ContainerConfig {
        let mut container = self.container.clone();
        if let Some(metadata) = &mut container.metadata {
            metadata.attempt = 1;
        }
        container.log_path = format!("{CONTAINER}/1.log");
        container
    }
}

fn owned(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn mounted_file(host_path: &Path, container_path: &str) -> Result<v1::Mount> {
    fs::write(host_path, "127.0.0.1\tlocalhost\n")
        .with_context(|| format!("write {}", host_path.display()))?;
    Ok(v1::Mount {
        container_path: container_path.to_owned(),
        host_path: host_path.display().to_string(),
        ..Default::default()
    })
}

fn sandbox_linux() -> v1::LinuxPodSandboxConfig {
    v1::LinuxPodSandboxConfig {
        // A kubelet without cgroups per QoS class leaves the place of the pod's cgroup to the runtime.
        cgroup_parent: String::new(),
        security_context: Some(v1::LinuxSandboxSecurityContext {
            namespace_options: Some(namespaces()),
            seccomp: Some(profile(v1::security_profile::ProfileType::RuntimeDefault)),
            ..Default::default()
        }),
        resources: Some(v1::LinuxContainerResources {
            cpu_period: 100_000,
            cpu_shares: 2,
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn container_linux() -> v1::LinuxContainerConfig {
    let masked = [
        "/proc/asound",
        "/proc/acpi",
        "/proc/interrupts",
        "/proc/kcore",
        "/proc/keys",
        "/proc/latency_stats",
        "/proc/timer_list",
        "/proc/timer_stats",
        "/proc/sched_debug",
        "/proc/scsi",
        "/sys/firmware",
        "/sys/devices/virtual/powercap",
    ];
    let read_only = [
        "/proc/bus",
        "/proc/fs",
        "/proc/irq",
        "/proc/sys",
        "/proc/sysrq-trigger",
    ];
    let paths = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
    v1::LinuxContainerConfig {
        resources: Some(v1::LinuxContainerResources {
            cpu_period: 100_000,
            cpu_shares: 2,
            oom_score_adj: 1000,
            ..Default::default()
        }),
        security_context: Some(v1::LinuxContainerSecurityContext {
            namespace_options: Some(namespaces()),
            run_as_user: Some(v1::Int64Value { value: 0 }),
            seccomp: Some(profile(v1::security_profile::ProfileType::Unconfined)),
            masked_paths: paths(&masked),
            readonly_paths: paths(&read_only),
            ..Default::default()
        }),
    }
}

fn profile(kind: v1::security_profile::ProfileType) -> v1::SecurityProfile {
    v1::SecurityProfile {
        profile_type: kind.into(),
        ..Default::default()
    }
}

/// Network and IPC are the pod's, processes are each container's.
fn namespaces() -> v1::NamespaceOption {
    v1::NamespaceOption {
        pid: v1::NamespaceMode::Container.into(),
        ..Default::default()
    }
}
