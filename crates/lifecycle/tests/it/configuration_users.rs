//! Users of a pod's own, stop signals and variables from files, as the runtime gets them.

use k8s_openapi::api::core::v1::Container;
use rubelet_lifecycle::configuration::environment::{EnvFileKey, EnvFiles, env_files};
use rubelet_lifecycle::configuration::security::ImageUser;
use rubelet_lifecycle::configuration::{
    ConfigurationError, ContainerInputs, NodeConfiguration, SandboxInputs, container_config, sandbox_config,
};
use rubelet_lifecycle::user_namespaces::Record;
use rubelet_wire::cri::v1::{ContainerConfig, Mount, NamespaceMode, Signal, UserNamespace};
use serde_json::{Value, json};

use crate::configuration::{node, pod};

fn container_of(
    container: &Value,
    spec: &Value,
    inputs: &ContainerInputs,
) -> Result<ContainerConfig, ConfigurationError> {
    let mut spec = spec.clone();
    spec["containers"] = json!([container]);
    let container: Container = serde_json::from_value(container.clone()).expect("a container");
    container_config(&pod(&spec), &container, &node(), inputs)
}

fn range() -> UserNamespace {
    let mapping = json!([{"hostId": 131_072, "containerId": 0, "length": 65_536}]);
    let text = json!({"uidMappings": mapping, "gidMappings": mapping}).to_string();
    Record::read(text.as_bytes()).expect("a record").namespace()
}

#[test]
fn users_of_its_own_reach_sandbox_container_and_mounts() {
    let spec = json!({"hostUsers": false, "securityContext": {}, "containers": [{"name": "c"}]});
    let inputs = SandboxInputs {
        own_users: Some(range()),
        ..SandboxInputs::default()
    };
    let sandbox = sandbox_config(&pod(&spec), &node(), &inputs)
        .expect("good")
        .config;
    let options = sandbox
        .linux
        .and_then(|linux| linux.security_context?.namespace_options)
        .expect("options");
    assert_eq!(options.userns_options, Some(range()));
    let inputs = ContainerInputs {
        own_users: Some(range()),
        mounts: vec![Mount::default()],
        pod_ips: vec!["10.0.0.5".to_owned()],
        hosts_file: Some("/pods/etc-hosts".to_owned()),
        ..ContainerInputs::default()
    };
    let config = container_of(&json!({"name": "c"}), &spec, &inputs).expect("good");
    assert_eq!(config.mounts.len(), 2);
    for mount in &config.mounts {
        assert_eq!(
            (&mount.uid_mappings, &mount.gid_mappings),
            (&range().uids, &range().gids),
            "{mount:?}"
        );
    }
    let options = config
        .linux
        .and_then(|linux| linux.security_context?.namespace_options);
    assert_eq!(options.and_then(|options| options.userns_options), Some(range()));
    // No ids were given: it must not run with the node's.
    let without = sandbox_config(&pod(&spec), &node(), &SandboxInputs::default());
    assert_eq!(without, Err(ConfigurationError::NoUserIds));
}

#[test]
fn the_nodes_users_are_said_to_be_the_nodes() {
    for spec in [
        json!({"securityContext": {}}),
        json!({"securityContext": {}, "hostUsers": true}),
    ] {
        let config = sandbox_config(&pod(&spec), &node(), &SandboxInputs::default())
            .expect("good")
            .config;
        let options = config
            .linux
            .and_then(|linux| linux.security_context?.namespace_options)
            .expect("options");
        let users = options.userns_options.expect("always said");
        assert_eq!(
            (users.mode, users.uids.len()),
            (NamespaceMode::Node.into(), 0),
            "{spec}"
        );
    }
}

#[test]
fn stop_signals_need_their_gate() {
    let check = |lifecycle: Value, has_gate: bool, expected: Signal| {
        let container: Container =
            serde_json::from_value(json!({"name": "c", "lifecycle": lifecycle})).expect("a container");
        let node = NodeConfiguration {
            has_stop_signals: has_gate,
            ..node()
        };
        let pod = pod(&json!({"containers": [{"name": "c"}]}));
        let config = container_config(&pod, &container, &node, &ContainerInputs::default()).expect("good");
        assert_eq!(config.stop_signal, i32::from(expected), "{lifecycle}");
    };
    check(json!({"stopSignal": "SIGUSR1"}), true, Signal::Sigusr1);
    check(json!({"stopSignal": "SIGRTMIN+3"}), true, Signal::Sigrtminplus3);
    check(json!({"stopSignal": "SIGUSR1"}), false, Signal::RuntimeDefault);
    check(json!({}), true, Signal::RuntimeDefault);
}

#[test]
fn a_pre_stop_hook_is_written_onto_the_container() {
    let container = json!({"name": "c", "lifecycle": {"preStop": {"sleep": {"seconds": 3}}}});
    let config = container_of(&container, &json!({}), &ContainerInputs::default()).expect("good");
    let written = config.annotations.get("io.kubernetes.container.preStopHandler");
    assert_eq!(written.map(String::as_str), Some(r#"{"sleep":{"seconds":3}}"#));
    let plain = container_of(&json!({"name": "c"}), &json!({}), &ContainerInputs::default()).expect("good");
    assert!(
        !plain
            .annotations
            .contains_key("io.kubernetes.container.preStopHandler")
    );
}

#[test]
fn root_is_refused_in_upstreams_words() {
    let check = |own: Value, user: ImageUser, expected: &str| {
        let inputs = ContainerInputs {
            image_user: user,
            ..ContainerInputs::default()
        };
        let container = json!({"name": "c", "securityContext": own});
        let error = container_of(&container, &json!({}), &inputs).expect_err("root");
        assert_eq!(
            error.to_string(),
            format!("{expected} (pod: \"web_shop(1-2)\", container: c)")
        );
    };
    let must_not = json!({"runAsNonRoot": true});
    check(
        json!({"runAsNonRoot": true, "runAsUser": 0}),
        ImageUser::Id(5),
        "container's runAsUser breaks non-root policy",
    );
    check(
        must_not.clone(),
        ImageUser::Id(0),
        "container has runAsNonRoot and image will run as root",
    );
    check(
        must_not.clone(),
        ImageUser::Name("web".to_owned()),
        "container has runAsNonRoot and image has non-numeric user (web), cannot verify user is non-root",
    );
    check(
        must_not,
        ImageUser::Id(1 << 31),
        "container has runAsNonRoot and image has an invalid user id (2147483648). (Must be 1-(2147483647)): must be between 0 and 2147483647, inclusive",
    );
}

#[test]
fn variables_come_from_files() {
    let variable = |key: &str, optional: bool| {
        let selector = json!({"volumeName": "v", "path": "a/env", "key": key, "optional": optional});
        json!({"name": "A", "valueFrom": {"fileKeyRef": selector}})
    };
    let key = EnvFileKey {
        volume: "v".to_owned(),
        path: "a/env".to_owned(),
    };
    let check = |variable: Value, files: EnvFiles, expected: Result<&[(&str, &str)], &str>| {
        let container = json!({"name": "c", "env": [variable, {"name": "B", "value": "$(A)"}]});
        let parsed: Container = serde_json::from_value(container.clone()).expect("a container");
        assert!(env_files(&parsed).iter().eq([&key]));
        let inputs = ContainerInputs {
            env_files: files,
            ..ContainerInputs::default()
        };
        let found = container_of(&container, &json!({}), &inputs).map(|config| {
            let text = |bytes| String::from_utf8(bytes).expect("text");
            let all = config.envs.into_iter().map(|pair| (pair.key, text(pair.value)));
            all.collect::<Vec<_>>()
        });
        let expected = expected.map(|pairs| {
            let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            pairs.iter().map(owned).collect::<Vec<_>>()
        });
        assert_eq!(
            found.map_err(|error| error.to_string()),
            expected.map_err(str::to_owned),
            "{variable}"
        );
    };
    let file = |content: &str| EnvFiles::from([(key.clone(), Ok(content.as_bytes().to_vec()))]);
    check(
        variable("K", false),
        file("K='one'"),
        Ok(&[("A", "one"), ("B", "one")]),
    );
    // One that may be missing and is, is not set at all.
    check(variable("K", true), file("X='one'"), Ok(&[("B", "$(A)")]));
    check(
        variable("K", false),
        file("X='one'"),
        Err(r#"environment variable key "K" not found in file "a/env""#),
    );
    check(
        variable("K", true),
        file("K=one"),
        Err(
            r#"couldn't parse env file: environment variable "A": line 1: the value must be enclosed in single quotes"#,
        ),
    );
    check(
        variable("K", true),
        EnvFiles::from([(key.clone(), Err("it is gone".to_owned()))]),
        Err(r#"couldn't parse env file: environment variable "A": it is gone"#),
    );
    check(
        variable("K", true),
        EnvFiles::new(),
        Err(r#"cannot find the volume "v" referenced by FileKeyRef"#),
    );
}
