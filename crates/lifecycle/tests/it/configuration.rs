//! Sandbox and container configurations, from whole pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_lifecycle::configuration::security::ImageUser;
use rubelet_lifecycle::configuration::{
    ConfigurationError, ContainerInputs, NodeConfiguration, ResolvConf, SandboxInputs, container_config,
    sandbox_config,
};
use rubelet_model::address::parse_ip;
use rubelet_resources::amounts::Amounts;
use rubelet_resources::cgroup_name::CgroupDriver;
use rubelet_resources::{CgroupVersion, NodeFacts, Rules};
use rubelet_wire::cri::v1::security_profile::ProfileType;
use rubelet_wire::cri::v1::{ContainerConfig, NamespaceMode, PodSandboxConfig, SecurityProfile};
use serde_json::{Value, json};

pub(crate) fn node() -> NodeConfiguration {
    NodeConfiguration {
        pod_logs_dir: "/var/log/pods".to_owned(),
        cluster_domain: "cluster.local".to_owned(),
        cluster_dns: parse_ip("10.96.0.10").into_iter().collect(),
        resolver_file: Some("/etc/resolv.conf".into()),
        node_ips: Vec::new(),
        cgroup_root: "/".to_owned(),
        cgroups_per_qos: true,
        cgroup_driver: CgroupDriver::Cgroupfs,
        default_pod_sysctls: BTreeMap::new(),
        seccomp_default: false,
        seccomp_root: "/var/lib/kubelet/seccomp".to_owned(),
        thermal_throttle_paths: vec!["/sys/devices/system/cpu/cpu0/thermal_throttle".to_owned()],
        is_selinux_enabled: false,
        has_stop_signals: true,
        rules: Rules::default(),
        facts: NodeFacts {
            cgroup: CgroupVersion::V2,
            page_size_bytes: 4096,
            huge_page_sizes: Vec::new(),
            memory_capacity_bytes: 1 << 30,
            swap_capacity_bytes: 0,
            has_swap_controller: false,
            allocatable: Amounts::default(),
        },
    }
}

pub(crate) fn pod(spec: &Value) -> Pod {
    let mut spec = spec.clone();
    if spec["containers"].is_null() {
        spec["containers"] = json!([]);
    }
    let metadata = json!({"name": "web", "namespace": "shop", "uid": "1-2", "labels": {"app": "web"}, "annotations": {"note": "x"}});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a pod")
}

pub(crate) fn resolver() -> Option<ResolvConf> {
    ResolvConf::parse("nameserver 1.1.1.1\nsearch host.example\n").ok()
}

fn sandbox(spec: &Value) -> PodSandboxConfig {
    let inputs = SandboxInputs {
        attempt: 3,
        resolver: resolver(),
        ..SandboxInputs::default()
    };
    sandbox_config(&pod(spec), &node(), &inputs)
        .expect("a good pod")
        .config
}

fn configured(
    container: &Value,
    pod_fields: &Value,
    inputs: &ContainerInputs,
) -> Result<ContainerConfig, ConfigurationError> {
    let mut spec = pod_fields.clone();
    let mut container = container.clone();
    container["name"] = json!("c");
    spec["containers"] = json!([container]);
    let pod = pod(&spec);
    let container: Container = serde_json::from_value(container).expect("a container");
    container_config(&pod, &container, &node(), inputs)
}

fn container(container: &Value) -> ContainerConfig {
    configured(container, &json!({}), &ContainerInputs::default()).expect("a good container")
}

fn texts(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn sandbox_identity() {
    let config = sandbox(&json!({"securityContext": {}}));
    let metadata = config.metadata.expect("metadata");
    assert_eq!(
        (
            metadata.name.as_str(),
            metadata.namespace.as_str(),
            metadata.uid.as_str(),
            metadata.attempt
        ),
        ("web", "shop", "1-2", 3)
    );
    let identity = [
        ("io.kubernetes.pod.name", "web"),
        ("io.kubernetes.pod.namespace", "shop"),
        ("io.kubernetes.pod.uid", "1-2"),
        ("app", "web"),
    ];
    assert_eq!(config.labels, texts(&identity));
    assert_eq!(config.annotations, texts(&[("note", "x")]));
    assert_eq!(config.log_directory, "/var/log/pods/shop_web_1-2");
    assert_eq!(config.hostname, "web");
    let linux = config.linux.expect("linux");
    assert_eq!(linux.cgroup_parent, "/kubepods/besteffort/pod1-2");
    let dns = config.dns_config.expect("dns");
    assert_eq!(dns.servers, ["10.96.0.10"]);
    assert_eq!(
        dns.searches,
        [
            "shop.svc.cluster.local",
            "svc.cluster.local",
            "cluster.local",
            "host.example"
        ]
    );
}

#[test]
fn sandbox_hostnames() {
    let check = |spec: Value, expected: Option<&str>| {
        let found = sandbox_config(&pod(&spec), &node(), &SandboxInputs::default());
        assert_eq!(
            found.ok().map(|found| found.config.hostname).as_deref(),
            expected,
            "{spec}"
        );
    };
    let long = "b".repeat(63);
    check(json!({}), Some("web"));
    check(json!({"hostNetwork": true}), Some(""));
    check(json!({"hostname": "other"}), Some("other"));
    check(json!({"hostname": "Bad"}), None);
    check(json!({"subdomain": "sub"}), Some("web"));
    check(
        json!({"subdomain": "sub", "setHostnameAsFQDN": true}),
        Some("web.sub.shop.svc.cluster.local"),
    );
    check(json!({"subdomain": long, "setHostnameAsFQDN": true}), None);
    check(json!({"setHostnameAsFQDN": true}), Some("web"));
    check(
        json!({"hostnameOverride": "a.b", "subdomain": "sub", "setHostnameAsFQDN": true}),
        Some("a.b"),
    );
    check(
        json!({"hostnameOverride": format!("{}-.{}", "a".repeat(62), "b")}),
        None,
    );
    check(
        json!({"hostnameOverride": format!("{}.{}", "a".repeat(62), "bb")}),
        Some(&"a".repeat(62)),
    );
}

#[test]
fn sandbox_namespaces_and_groups() {
    let check = |spec: Value, expected: [NamespaceMode; 3]| {
        let linux = sandbox(&spec).linux.expect("linux");
        let options = linux
            .security_context
            .and_then(|context| context.namespace_options)
            .expect("options");
        assert_eq!(
            [options.network, options.pid, options.ipc],
            expected.map(i32::from),
            "{spec}"
        );
    };
    use NamespaceMode::{Container, Node, Pod};
    check(json!({"securityContext": {}}), [Pod, Container, Pod]);
    check(
        json!({"securityContext": {}, "hostNetwork": true, "hostPID": true, "hostIPC": true}),
        [Node, Node, Node],
    );
    check(
        json!({"securityContext": {}, "shareProcessNamespace": true}),
        [Pod, Pod, Pod],
    );
    let spec = json!({"securityContext": {"fsGroup": 5, "supplementalGroups": [6], "supplementalGroupsPolicy": "Strict", "runAsUser": 7}});
    let inputs = SandboxInputs {
        extra_groups: vec![9],
        ..SandboxInputs::default()
    };
    let config = sandbox_config(&pod(&spec), &node(), &inputs)
        .expect("good")
        .config;
    let context = config
        .linux
        .and_then(|linux| linux.security_context)
        .expect("context");
    assert_eq!(
        (context.supplemental_groups, context.supplemental_groups_policy),
        (vec![5, 9, 6], 1)
    );
    assert_eq!(context.run_as_user.map(|user| user.value), Some(7));
    assert!(!context.privileged);
    let privileged = json!({"initContainers": [{"name": "i", "securityContext": {"privileged": true}}]});
    let context = sandbox(&privileged)
        .linux
        .and_then(|linux| linux.security_context)
        .expect("context");
    assert!(context.privileged);
}

#[test]
fn sysctls_are_normalised_and_defaults_spare_the_host() {
    let mut node = node();
    node.default_pod_sysctls = texts(&[
        ("net/core/somaxconn", "1"),
        ("kernel.shmmax", "2"),
        ("user.max_x", "3"),
        ("vm.swappiness", "4"),
    ]);
    let check = |spec: Value, expected: &[(&str, &str)]| {
        let found = sandbox_config(&pod(&spec), &node, &SandboxInputs::default())
            .expect("good")
            .config;
        assert_eq!(found.linux.expect("linux").sysctls, texts(expected), "{spec}");
    };
    check(json!({}), &[("net.core.somaxconn", "1"), ("kernel.shmmax", "2")]);
    check(json!({"hostNetwork": true, "hostIPC": true}), &[]);
    let own = json!({"securityContext": {"sysctls": [{"name": "net/core/somaxconn", "value": "9"}]}, "hostIPC": true});
    check(own, &[("net.core.somaxconn", "9")]);
}

#[test]
fn container_identity() {
    let inputs = ContainerInputs {
        image_ref: "sha256:1".to_owned(),
        restart_count: 2,
        hash: 0x11a6_d6d6,
        pod_ips: vec!["10.0.0.5".to_owned()],
        hosts_file: Some("/pods/etc-hosts".to_owned()),
        termination_message_file: Some("/pods/message".to_owned()),
        device_annotations: texts(&[("io.kubernetes.container.hash", "lost"), ("device", "1")]),
        ..ContainerInputs::default()
    };
    let spec = json!({"image": "busybox", "terminationMessagePath": "dev/log", "terminationMessagePolicy": "File", "tty": true,
        "ports": [{"containerPort": 80, "hostPort": 8080, "name": "web", "protocol": "TCP"}, {"containerPort": 81}]});
    let config = configured(&spec, &json!({"terminationGracePeriodSeconds": 30}), &inputs).expect("good");
    let annotations = [
        ("device", "1"),
        ("io.kubernetes.container.hash", "11a6d6d6"),
        ("io.kubernetes.container.restartCount", "2"),
        ("io.kubernetes.container.terminationMessagePath", "dev/log"),
        ("io.kubernetes.container.terminationMessagePolicy", "File"),
        ("io.kubernetes.pod.terminationGracePeriod", "30"),
        (
            "io.kubernetes.container.ports",
            r#"[{"name":"web","hostPort":8080,"containerPort":80,"protocol":"TCP"},{"containerPort":81}]"#,
        ),
    ];
    assert_eq!(config.annotations, texts(&annotations));
    assert_eq!(
        config
            .labels
            .get("io.kubernetes.container.name")
            .map(String::as_str),
        Some("c")
    );
    assert_eq!(
        (config.log_path.as_str(), config.tty, config.stdin),
        ("c/2.log", true, false)
    );
    let image = config.image.expect("image");
    assert_eq!(
        (image.image.as_str(), image.user_specified_image.as_str()),
        ("sha256:1", "busybox")
    );
    let mounts: Vec<&str> = config
        .mounts
        .iter()
        .map(|mount| mount.container_path.as_str())
        .collect();
    assert_eq!(mounts, ["/etc/hosts", "/dev/log"]);
}

#[test]
fn environments() {
    let check = |env: Value, expected: Option<&[(&str, &str)]>| {
        let inputs = ContainerInputs {
            pod_ips: vec!["fd00::5".to_owned(), "10.0.0.5".to_owned()],
            host_ips: ["fd00::1", "192.0.2.1"]
                .into_iter()
                .filter_map(parse_ip)
                .collect(),
            service_environment: texts(&[("SVC", "s"), ("A", "lost")]),
            ..ContainerInputs::default()
        };
        let found = configured(
            &json!({"env": env, "command": ["$(A)", "$(X)"]}),
            &json!({}),
            &inputs,
        )
        .ok();
        let found = found.map(|config| {
            let pairs = config.envs.into_iter();
            pairs
                .map(|pair| (pair.key, String::from_utf8(pair.value).expect("text")))
                .collect::<Vec<_>>()
        });
        let expected = expected.map(|pairs| {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        });
        assert_eq!(found, expected, "{env}");
    };
    check(json!([]), Some(&[("A", "lost"), ("SVC", "s")]));
    check(
        json!([{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$(SVC)$(C)$$(A)"}, {"name": "C", "value": "3"}]),
        Some(&[("A", "1"), ("B", "1s$(C)$(A)"), ("C", "3"), ("SVC", "s")]),
    );
    check(
        json!([{"name": "A", "value": "1"}, {"name": "B"}, {"name": "A", "value": "$(A)2"}]),
        Some(&[("A", "12"), ("B", ""), ("SVC", "s")]),
    );
    let field = |path: &str| json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}]);
    check(
        field("metadata.labels['app']"),
        Some(&[("A", "web"), ("SVC", "s")]),
    );
    check(field("status.podIP"), Some(&[("A", "10.0.0.5"), ("SVC", "s")]));
    check(
        field("status.podIPs"),
        Some(&[("A", "10.0.0.5,fd00::5"), ("SVC", "s")]),
    );
    // The order of the node's own addresses is not the one of the pod's.
    check(field("status.hostIP"), Some(&[("A", "fd00::1"), ("SVC", "s")]));
    check(
        field("status.hostIPs"),
        Some(&[("A", "fd00::1,192.0.2.1"), ("SVC", "s")]),
    );
    check(field("status.phase"), None);
    check(
        json!([{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]),
        None,
    );
}

#[test]
fn commands_see_the_environment() {
    let found = container(
        &json!({"env": [{"name": "A", "value": "1"}], "command": ["run", "$(A)"], "args": ["$(B)", "$$(A)"], "workingDir": "/w"}),
    );
    assert_eq!(
        (found.command, found.args),
        (
            vec!["run".to_owned(), "1".to_owned()],
            vec!["$(B)".to_owned(), "$(A)".to_owned()]
        )
    );
    assert_eq!(found.working_dir, "/w");
}

#[test]
fn api_objects_are_refused_by_name() {
    let from = json!({"envFrom": [{"prefix": "P_", "configMapRef": {"name": "settings"}}]});
    let error = configured(&from, &json!({}), &ContainerInputs::default()).expect_err("no API server");
    let text = error.to_string();
    assert!(
        text.contains("there is no API server") && text.contains("settings"),
        "{text}"
    );
}

#[test]
fn root_is_found_out() {
    let check = |pod: Value, own: Value, user: ImageUser, is_good: bool| {
        let inputs = ContainerInputs {
            image_user: user,
            ..ContainerInputs::default()
        };
        let found = configured(
            &json!({"securityContext": own}),
            &json!({"securityContext": pod}),
            &inputs,
        );
        assert_eq!(found.is_ok(), is_good, "{own} {found:?}");
    };
    let must_not = json!({"runAsNonRoot": true});
    check(json!({}), json!({}), ImageUser::Id(0), true);
    check(must_not.clone(), json!({}), ImageUser::Id(0), false);
    check(must_not.clone(), json!({}), ImageUser::Id(1), true);
    check(must_not.clone(), json!({}), ImageUser::Id(1 << 31), false);
    check(
        must_not.clone(),
        json!({}),
        ImageUser::Name("web".to_owned()),
        false,
    );
    check(
        must_not.clone(),
        json!({"runAsUser": 5}),
        ImageUser::Name("web".to_owned()),
        true,
    );
    check(
        json!({"runAsUser": 5}),
        json!({"runAsNonRoot": true, "runAsUser": 0}),
        ImageUser::Id(5),
        false,
    );
    check(must_not, json!({"runAsNonRoot": false}), ImageUser::Id(0), true);
}

#[test]
fn security_contexts() {
    let context = |own: Value, pod: Value| {
        let config = configured(
            &json!({"securityContext": own}),
            &json!({"securityContext": pod}),
            &ContainerInputs::default(),
        );
        config
            .expect("good")
            .linux
            .and_then(|linux| linux.security_context)
            .expect("context")
    };
    let found = context(
        json!({"privileged": true, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
        "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}, "runAsGroup": 3, "seLinuxOptions": {"level": "s0"}}),
        json!({"runAsUser": 4, "runAsGroup": 9}),
    );
    assert!(found.privileged && found.readonly_rootfs && found.no_new_privs);
    assert_eq!(
        found
            .capabilities
            .map(|all| (all.add_capabilities, all.drop_capabilities)),
        Some((vec!["NET_ADMIN".to_owned()], vec!["ALL".to_owned()]))
    );
    assert_eq!(
        (
            found.run_as_user.map(|one| one.value),
            found.run_as_group.map(|one| one.value)
        ),
        (Some(4), Some(3))
    );
    assert_eq!(
        found.selinux_options.map(|options| options.level).as_deref(),
        Some("s0")
    );
    assert_eq!((found.masked_paths.len(), found.readonly_paths.len()), (13, 5));
    let open = context(json!({"procMount": "Unmasked"}), json!({}));
    assert!(open.masked_paths.is_empty() && open.readonly_paths.is_empty());
    assert_eq!(open.run_as_user.map(|one| one.value), Some(0));
}

#[test]
fn profiles() {
    let profile = |kind: ProfileType, reference: &str| SecurityProfile {
        profile_type: kind.into(),
        localhost_ref: reference.to_owned(),
    };
    let check = |own: Value, pod: Value, seccomp: SecurityProfile, app_armor: Option<SecurityProfile>| {
        let config = configured(
            &json!({"securityContext": own}),
            &json!({"securityContext": pod}),
            &ContainerInputs::default(),
        );
        let context = config
            .expect("good")
            .linux
            .and_then(|linux| linux.security_context)
            .expect("context");
        assert_eq!(
            (context.seccomp, context.apparmor),
            (Some(seccomp), app_armor),
            "{own} {pod}"
        );
    };
    let (default, open) = (
        profile(ProfileType::RuntimeDefault, ""),
        profile(ProfileType::Unconfined, ""),
    );
    let wants = |field: &str, kind: &str| json!({field: {"type": kind, "localhostProfile": "p.json"}});
    check(json!({}), json!({}), open.clone(), None);
    check(
        json!({}),
        wants("seccompProfile", "RuntimeDefault"),
        default.clone(),
        None,
    );
    check(
        wants("seccompProfile", "Unconfined"),
        wants("seccompProfile", "RuntimeDefault"),
        open.clone(),
        None,
    );
    let local = profile(ProfileType::Localhost, "/var/lib/kubelet/seccomp/p.json");
    check(wants("seccompProfile", "Localhost"), json!({}), local, None);
    check(
        json!({}),
        wants("appArmorProfile", "RuntimeDefault"),
        open.clone(),
        Some(default),
    );
    check(
        wants("appArmorProfile", "Localhost"),
        json!({}),
        open,
        Some(profile(ProfileType::Localhost, "p.json")),
    );
    let bare = json!({"securityContext": {"seccompProfile": {"type": "Localhost"}}});
    let error = configured(&bare, &json!({}), &ContainerInputs::default());
    assert_eq!(error, Err(ConfigurationError::SeccompWithoutProfile));
}

#[test]
fn ephemeral_containers_join_their_target() {
    let inputs = ContainerInputs {
        target_container_id: Some("abc".to_owned()),
        ..ContainerInputs::default()
    };
    let check = |pod: Value, expected: (NamespaceMode, &str)| {
        let config = configured(&json!({}), &pod, &inputs).expect("good");
        let options = config
            .linux
            .and_then(|linux| linux.security_context?.namespace_options)
            .expect("options");
        assert_eq!(
            (options.pid, options.target_id.as_str()),
            (expected.0.into(), expected.1)
        );
    };
    check(json!({}), (NamespaceMode::Target, "abc"));
    check(json!({"shareProcessNamespace": true}), (NamespaceMode::Pod, ""));
}
