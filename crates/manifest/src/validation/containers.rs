//! Rules for containers of all three kinds.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerResizePolicy, EphemeralContainer, Volume, VolumeDevice, VolumeMount,
};
use rubelet_model::address::is_port;

use super::names::{dns_label, is_port_name};
use super::paths::descending;
use super::probes::{self, Purpose};
use super::{Pod, env, resources, restart, security};
use crate::fields::{flag, list, text};
use crate::problem::{Findings, Path};

const SIDECARS_ONLY: &str = "only for init containers with restartPolicy Always";

/// Containers, init containers and ephemeral containers of one pod.
pub(super) fn all(out: &mut Findings, path: &Path, pod: &Pod<'_>) {
    regular(out, &path.child("containers"), pod);
    init(out, &path.child("initContainers"), pod);
    ephemeral(out, &path.child("ephemeralContainers"), pod);
}

fn regular(out: &mut Findings, path: &Path, pod: &Pod<'_>) {
    let containers = &pod.spec.containers;
    if containers.is_empty() {
        return out.required(path, "");
    }
    let mut names = BTreeSet::new();
    for (position, container) in containers.iter().enumerate() {
        let path = path.index(position);
        common(out, &path, container, pod);
        if !names.insert(&container.name) {
            out.duplicate(&path.child("name"));
        }
        probes_and_hooks(out, &path, container, pod);
        if pod.options.restart_rules {
            restart::policy(out, &path, container, pod.options);
        } else if container.restart_policy.is_some() {
            out.forbidden(&path.child("restartPolicy"), "only for init containers");
        }
    }
    host_ports(out, path, containers.iter().enumerate());
}

fn probes_and_hooks(out: &mut Findings, path: &Path, container: &Container, pod: &Pod<'_>) {
    let grace = pod.spec.termination_grace_period_seconds;
    if let Some(lifecycle) = &container.lifecycle {
        probes::lifecycle(
            out,
            &path.child("lifecycle"),
            lifecycle,
            grace,
            pod.spec.os.as_ref(),
        );
    }
    for (name, probe, purpose) in [
        (
            "livenessProbe",
            &container.liveness_probe,
            Purpose::LivenessOrStartup,
        ),
        ("readinessProbe", &container.readiness_probe, Purpose::Readiness),
        (
            "startupProbe",
            &container.startup_probe,
            Purpose::LivenessOrStartup,
        ),
    ] {
        probes::probe(out, &path.child(name), probe, purpose, grace);
    }
}

fn init(out: &mut Findings, list_path: &Path, pod: &Pod<'_>) {
    let mut names: BTreeSet<&str> = pod
        .spec
        .containers
        .iter()
        .map(|container| container.name.as_str())
        .collect();
    for (position, container) in list(&pod.spec.init_containers).iter().enumerate() {
        let path = list_path.index(position);
        common(out, &path, container, pod);
        restart::init_policy(out, &path, container, pod.options);
        if names.contains(container.name.as_str()) {
            out.duplicate(&path.child("name"));
        } else if !container.name.is_empty() {
            names.insert(&container.name);
        }
        // Each init container runs alone, so only its own ports can clash; upstream counts it as the first.
        host_ports(out, list_path, std::iter::once((0, container)));
        let is_sidecar = text(&container.restart_policy) == "Always";
        if is_sidecar {
            probes_and_hooks(out, &path, container, pod);
        } else {
            for (name, is_set) in [
                ("lifecycle", container.lifecycle.is_some()),
                ("livenessProbe", container.liveness_probe.is_some()),
                ("readinessProbe", container.readiness_probe.is_some()),
                ("startupProbe", container.startup_probe.is_some()),
            ] {
                if is_set {
                    out.forbidden(&path.child(name), SIDECARS_ONLY);
                }
            }
        }
        let policies = list(&container.resize_policy);
        if !pod.options.sidecar_resize && !policies.is_empty() {
            out.invalid(&path.child("resizePolicy"), "not for init containers");
        }
        for (position, policy) in policies.iter().enumerate() {
            if !is_sidecar && policy.restart_policy == "RestartContainer" {
                let path = path.child("resizePolicy").index(position).child("restartPolicy");
                out.invalid(&path, SIDECARS_ONLY);
            }
        }
    }
}

fn ephemeral(out: &mut Findings, path: &Path, pod: &Pod<'_>) {
    let regular = &pod.spec.containers;
    let others: BTreeSet<&str> = regular
        .iter()
        .chain(list(&pod.spec.init_containers))
        .map(|container| container.name.as_str())
        .collect();
    let mut names = others.clone();
    for (position, own) in list(&pod.spec.ephemeral_containers).iter().enumerate() {
        let path = path.index(position);
        let container = as_container(own);
        common(out, &path, &container, pod);
        image_spaces(out, &path, &container);
        if !names.insert(&own.name) {
            out.duplicate(&path.child("name"));
        }
        let target = text(&own.target_container_name);
        if !target.is_empty() && !others.contains(target) {
            out.not_found(&path.child("targetContainerName"), "there is no such container");
        }
        forbid_ephemeral_fields(out, &path, own);
    }
}

fn forbid_ephemeral_fields(out: &mut Findings, path: &Path, own: &EphemeralContainer) {
    let has_resources = own
        .resources
        .as_ref()
        .is_some_and(|resources| *resources != Default::default());
    for (name, is_set) in [
        ("ports", own.ports.is_some()),
        ("resources", has_resources),
        ("resizePolicy", own.resize_policy.is_some()),
        ("restartPolicy", own.restart_policy.is_some()),
        ("restartPolicyRules", own.restart_policy_rules.is_some()),
        ("livenessProbe", own.liveness_probe.is_some()),
        ("readinessProbe", own.readiness_probe.is_some()),
        ("startupProbe", own.startup_probe.is_some()),
        ("lifecycle", own.lifecycle.is_some()),
    ] {
        if is_set {
            out.forbidden(&path.child(name), "not for ephemeral containers");
        }
    }
    for (position, mount) in list(&own.volume_mounts).iter().enumerate() {
        let path = path.child("volumeMounts").index(position);
        for (name, value) in [
            ("subPath", &mount.sub_path),
            ("subPathExpr", &mount.sub_path_expr),
        ] {
            if !text(value).is_empty() {
                out.forbidden(&path.child(name), "not for ephemeral containers");
            }
        }
    }
}

/// The fields that an ephemeral container shares with the others.
pub(super) fn as_container(own: &EphemeralContainer) -> Container {
    let own = own.clone();
    Container {
        args: own.args,
        command: own.command,
        env: own.env,
        env_from: own.env_from,
        image: own.image,
        image_pull_policy: own.image_pull_policy,
        lifecycle: own.lifecycle,
        liveness_probe: own.liveness_probe,
        name: own.name,
        ports: own.ports,
        readiness_probe: own.readiness_probe,
        resize_policy: own.resize_policy,
        resources: own.resources,
        restart_policy: own.restart_policy,
        restart_policy_rules: own.restart_policy_rules,
        security_context: own.security_context,
        startup_probe: own.startup_probe,
        stdin: own.stdin,
        stdin_once: own.stdin_once,
        termination_message_path: own.termination_message_path,
        termination_message_policy: own.termination_message_policy,
        tty: own.tty,
        volume_devices: own.volume_devices,
        volume_mounts: own.volume_mounts,
        working_dir: own.working_dir,
    }
}

fn common(out: &mut Findings, path: &Path, container: &Container, pod: &Pod<'_>) {
    if container.name.is_empty() {
        out.required(&path.child("name"), "");
    } else {
        dns_label(out, &path.child("name"), &container.name);
    }
    out.required_text(&path.child("image"), text(&container.image));
    let policy = text(&container.termination_message_policy);
    let policies = ["File", "FallbackToLogsOnError"];
    out.required_one_of(&path.child("terminationMessagePolicy"), policy, &policies);
    ports(out, &path.child("ports"), list(&container.ports));
    env::variables(out, &path.child("env"), list(&container.env), pod.options);
    env::from_sources(
        out,
        &path.child("envFrom"),
        list(&container.env_from),
        pod.options,
    );
    mounts(out, &path.child("volumeMounts"), container, &pod.volumes);
    devices(out, &path.child("volumeDevices"), container, &pod.volumes);
    let policy = text(&container.image_pull_policy);
    out.required_one_of(
        &path.child("imagePullPolicy"),
        policy,
        &["Always", "IfNotPresent", "Never"],
    );
    if let Some(own) = &container.resources {
        resources::container_requirements(out, &path.child("resources"), own, &pod.claims);
    }
    resize_policies(
        out,
        &path.child("resizePolicy"),
        list(&container.resize_policy),
        pod,
    );
    if let Some(context) = &container.security_context {
        security::container_context(out, &path.child("securityContext"), context, pod.spec);
    }
}

pub(super) fn image_spaces(out: &mut Findings, path: &Path, container: &Container) {
    let image = text(&container.image);
    out.invalid_unless(
        image.trim() == image,
        &path.child("image"),
        "has spaces around it",
    );
}

fn ports(out: &mut Findings, path: &Path, ports: &[ContainerPort]) {
    let mut names = BTreeSet::new();
    for (position, port) in ports.iter().enumerate() {
        let path = path.index(position);
        let name = text(&port.name);
        if !name.is_empty() {
            if !is_port_name(name) {
                out.invalid(&path.child("name"), "not a port's name");
            } else if !names.insert(name) {
                out.duplicate(&path.child("name"));
            }
        }
        if port.container_port == 0 {
            out.required(&path.child("containerPort"), "");
        } else {
            let fits = is_port(port.container_port.into());
            out.invalid_unless(fits, &path.child("containerPort"), "must be between 1 and 65535");
        }
        let host_port = port.host_port.unwrap_or_default();
        let fits = host_port == 0 || is_port(host_port.into());
        out.invalid_unless(fits, &path.child("hostPort"), "must be between 1 and 65535");
        out.required_one_of(
            &path.child("protocol"),
            text(&port.protocol),
            &["SCTP", "TCP", "UDP"],
        );
    }
}

fn host_ports<'a>(out: &mut Findings, path: &Path, containers: impl Iterator<Item = (usize, &'a Container)>) {
    let mut taken = BTreeSet::new();
    for (position, container) in containers {
        for (number, port) in list(&container.ports).iter().enumerate() {
            let host_port = port.host_port.unwrap_or_default();
            if host_port != 0 && !taken.insert((text(&port.protocol), text(&port.host_ip), host_port)) {
                out.duplicate(
                    &path
                        .index(position)
                        .child("ports")
                        .index(number)
                        .child("hostPort"),
                );
            }
        }
    }
}

fn mounts(out: &mut Findings, path: &Path, container: &Container, volumes: &BTreeMap<&str, &Volume>) {
    let devices = list(&container.volume_devices);
    let privileged = container
        .security_context
        .as_ref()
        .is_some_and(|context| flag(context.privileged));
    let mut places = BTreeSet::new();
    for (position, mount) in list(&container.volume_mounts).iter().enumerate() {
        let item = path.index(position);
        out.required_text(&item.child("name"), &mount.name);
        let volume = volumes.get(mount.name.as_str());
        if volume.is_none() {
            out.not_found(&item.child("name"), "there is no such volume, or it is refused");
        }
        out.required_text(&item.child("mountPath"), &mount.mount_path);
        let unique = places.insert(&mount.mount_path)
            && !last_paths(devices).any(|(_, place)| place == mount.mount_path);
        out.invalid_unless(unique, &item.child("mountPath"), "must be unique");
        let is_device = devices.iter().any(|device| device.name == mount.name);
        out.invalid_unless(!is_device, &item.child("name"), "is a device too");
        let (sub_path, expression) = (text(&mount.sub_path), text(&mount.sub_path_expr));
        descending(out, &path.child("subPath"), sub_path);
        descending(out, &path.child("subPathExpr"), expression);
        if !sub_path.is_empty() && !expression.is_empty() {
            out.invalid(
                &item.child("subPathExpr"),
                "subPath and subPathExpr exclude each other",
            );
        }
        propagation(out, path, mount, privileged);
        bind_options(out, &item.child("bindMountOptions"), mount, volume.copied());
    }
}

/// Of devices with one name only the last counts.
fn last_paths(devices: &[VolumeDevice]) -> impl Iterator<Item = (&str, &str)> {
    let last: BTreeMap<&str, &str> = devices
        .iter()
        .map(|device| (device.name.as_str(), device.device_path.as_str()))
        .collect();
    last.into_iter()
}

fn propagation(out: &mut Findings, path: &Path, mount: &VolumeMount, privileged: bool) {
    if let Some(mode) = &mount.mount_propagation {
        let path = path.child("mountPropagation");
        out.one_of(&path, mode, &["Bidirectional", "HostToContainer", "None"]);
        if mode == "Bidirectional" && !privileged {
            out.forbidden(&path, "only for privileged containers");
        }
    }
    let Some(mode) = &mount.recursive_read_only else {
        return;
    };
    let path = path.child("recursiveReadOnly");
    out.one_of(&path, mode, &["Disabled", "Enabled", "IfPossible"]);
    if mode == "Enabled" || mode == "IfPossible" {
        if !flag(mount.read_only) {
            out.forbidden(&path, "needs readOnly");
        }
        if mount
            .mount_propagation
            .as_ref()
            .is_some_and(|mode| mode != "None")
        {
            out.forbidden(&path, "needs mountPropagation None");
        }
    }
}

fn bind_options(out: &mut Findings, path: &Path, mount: &VolumeMount, volume: Option<&Volume>) {
    let mut seen = BTreeSet::new();
    for (position, option) in list(&mount.bind_mount_options).iter().enumerate() {
        out.one_of(&path.index(position), option, &["nodev", "noexec", "nosuid"]);
        if !seen.insert(option) {
            out.duplicate(&path.index(position));
        }
    }
    if !seen.is_empty() && volume.is_some_and(|volume| volume.image.is_some()) {
        out.invalid(path, "not for image volumes");
    }
}

fn devices(out: &mut Findings, path: &Path, container: &Container, volumes: &BTreeMap<&str, &Volume>) {
    let mounted: BTreeMap<&str, &str> = list(&container.volume_mounts)
        .iter()
        .map(|mount| (mount.name.as_str(), mount.mount_path.as_str()))
        .collect();
    let (mut names, mut places) = (BTreeSet::new(), BTreeSet::new());
    for (position, device) in list(&container.volume_devices).iter().enumerate() {
        let path = path.index(position);
        let (name, place) = (device.name.as_str(), device.device_path.as_str());
        out.required_text(&path.child("name"), name);
        let unique = !names.contains(name) && !mounted.contains_key(name);
        out.invalid_unless(unique, &path.child("name"), "must be unique");
        match volumes.get(name) {
            None => out.not_found(&path.child("name"), "there is no such volume, or it is refused"),
            Some(volume) => {
                let is_claim = volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
                out.invalid_unless(is_claim, &path.child("name"), "only claims can be devices");
            }
        }
        out.required_text(&path.child("devicePath"), place);
        let climbs = place.split('/').any(|part| part == "..");
        let clashes = places.contains(place) || mounted.values().any(|mount| *mount == place);
        out.invalid_unless(
            !climbs && !clashes,
            &path.child("devicePath"),
            "must be unique and without '..'",
        );
        if !climbs {
            places.insert(place);
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
}

fn resize_policies(out: &mut Findings, path: &Path, policies: &[ContainerResizePolicy], pod: &Pod<'_>) {
    let mut seen = BTreeSet::new();
    for (position, policy) in policies.iter().enumerate() {
        if !seen.insert(&policy.resource_name) {
            out.duplicate(&path.index(position));
        }
        out.required_one_of(path, &policy.resource_name, &["cpu", "memory"]);
        out.required_one_of(path, &policy.restart_policy, &["NotRequired", "RestartContainer"]);
        if text(&pod.spec.restart_policy) == "Never" && policy.restart_policy != "NotRequired" {
            out.invalid(path, "must be NotRequired when the pod never restarts");
        }
    }
}
