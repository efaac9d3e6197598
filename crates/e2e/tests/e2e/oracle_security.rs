//! Generated pods: who a container runs as, what confines it, what is written onto it, and its names are upstream's.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::configuration::NodeConfiguration;
use rubelet_lifecycle::configuration::env_file::value_of;
use rubelet_lifecycle::configuration::hostname::{Hostname, kernel_hostname};
use rubelet_lifecycle::configuration::labels::container_annotations;
use rubelet_lifecycle::configuration::profiles::{app_armor, seccomp};
use rubelet_lifecycle::configuration::security::{ImageUser, check_non_root, effective_security_context};
use rubelet_lifecycle::hash::container_hash;
use rubelet_lifecycle::user_namespaces::IdRange;
use rubelet_wire::cri::v1::SecurityProfile;
use serde_json::{Map, Value, json};

use crate::oracle_configuration::{compare, plain_node};
use crate::oracle_ours::Seeded;

fn maybe(random: &mut Seeded, object: &mut Value, field: &str, values: &[Value]) {
    if random.below(3) == 0 {
        object[field] = random.one_of(values).clone();
    }
}

fn profile_values(random: &mut Seeded) -> Vec<Value> {
    let name = *random.one_of(&["p.json", "a/b.json", "x"]);
    vec![
        json!({"type": "RuntimeDefault"}),
        json!({"type": "Unconfined"}),
        json!({"type": "Localhost", "localhostProfile": name}),
        json!({"type": "Localhost"}),
    ]
}

fn common_fields(random: &mut Seeded, context: &mut Value) {
    let users = [json!(0), json!(1), json!(1000), json!(2_147_483_648_i64)];
    maybe(random, context, "runAsUser", &users);
    maybe(random, context, "runAsGroup", &users);
    maybe(
        random,
        context,
        "runAsNonRoot",
        &[json!(true), json!(true), json!(false)],
    );
    let labels = [
        json!({"level": "s0:c1"}),
        json!({"user": "u", "role": "r", "type": "t"}),
    ];
    maybe(random, context, "seLinuxOptions", &labels);
    let profiles = profile_values(random);
    maybe(random, context, "seccompProfile", &profiles);
    maybe(random, context, "appArmorProfile", &profiles);
}

fn handler(random: &mut Seeded) -> Value {
    match random.below(4) {
        0 => json!({"exec": {"command": ["sh", "-c", *random.one_of(&["true", "echo \"x\"\n", "é"])]}}),
        1 => json!({"sleep": {"seconds": random.below(100)}}),
        2 => json!({"httpGet": {"port": *random.one_of(&[80, 8080]), "path": "/x", "scheme": "HTTPS"}}),
        _ => json!({"httpGet": {"port": "web", "host": "h", "httpHeaders": [{"name": "A", "value": "b"}]}}),
    }
}

fn security_input(random: &mut Seeded) -> Value {
    let mut own = json!({});
    common_fields(random, &mut own);
    let flags = [json!(true), json!(false)];
    for field in ["privileged", "readOnlyRootFilesystem", "allowPrivilegeEscalation"] {
        maybe(random, &mut own, field, &flags);
    }
    maybe(
        random,
        &mut own,
        "procMount",
        &[json!("Default"), json!("Unmasked")],
    );
    let capabilities = [
        json!({"add": ["CHOWN"]}),
        json!({"drop": ["ALL"], "add": ["A", "B"]}),
    ];
    maybe(random, &mut own, "capabilities", &capabilities);
    let mut container = json!({"name": "c", "image": "i", "terminationMessagePath": "/dev/x",
        "terminationMessagePolicy": "File", "ports": [{"name": "web", "containerPort": 80, "protocol": "TCP"}]});
    if random.below(4) != 0 {
        container["securityContext"] = own;
    }
    if random.below(2) == 0 {
        container["lifecycle"] = json!({"preStop": handler(random)});
    }
    let mut spec = json!({"containers": [container]});
    maybe(
        random,
        &mut spec,
        "terminationGracePeriodSeconds",
        &[json!(0), json!(30)],
    );
    if random.below(4) != 0 {
        let mut pod_wide = json!({});
        common_fields(random, &mut pod_wide);
        spec["securityContext"] = pod_wide;
    }
    let mut metadata = json!({"name": "p", "namespace": "n", "uid": "u"});
    if random.below(3) == 0 {
        let profile = *random.one_of(&["runtime/default", "unconfined", "localhost/a", "odd"]);
        metadata["annotations"] = json!({"container.apparmor.security.beta.kubernetes.io/c": profile});
    }
    maybe(random, &mut metadata, "deletionGracePeriodSeconds", &[json!(7)]);
    let mut input =
        json!({"pod": {"metadata": metadata, "spec": spec}, "seccompDefault": random.below(2) == 0});
    match random.below(3) {
        0 => {
            input["uid"] = random
                .one_of(&[json!(0), json!(7), json!(2_147_483_648_i64)])
                .clone();
        }
        1 => input["username"] = json!("web"),
        _ => {}
    }
    input
}

fn profile_value(profile: &SecurityProfile) -> Value {
    json!({"type": profile.profile_type, "ref": profile.localhost_ref})
}

/// Absent, null and empty are the same.
fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields
                .into_iter()
                .map(|(name, value)| (name, without_empty(value)));
            let kept = fields.filter(|(_, value)| {
                !matches!(value, Value::Null)
                    && *value != json!("")
                    && *value != json!([])
                    && *value != json!({})
            });
            Value::Object(kept.collect::<Map<_, _>>())
        }
        other => other,
    }
}

fn our_security(input: &Value) -> Result<Value> {
    let pod: Pod = serde_json::from_value(input["pod"].clone())?;
    let container = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.containers.first())
        .context("a container")?;
    let user = match (input["uid"].as_i64(), input["username"].as_str()) {
        (Some(id), _) => ImageUser::Id(id),
        (None, Some(name)) => ImageUser::Name(name.to_owned()),
        // Upstream asks nobody for the user of an image that says nothing; here that is root, see below.
        (None, None) => ImageUser::default(),
    };
    let node = NodeConfiguration {
        seccomp_default: input["seccompDefault"] == json!(true),
        seccomp_root: "/seccomp".to_owned(),
        ..plain_node()
    };
    let says_nothing = input["uid"].is_null() && input["username"].is_null();
    let effective = effective_security_context(&pod, container);
    let non_root = match check_non_root(&pod, container, &user) {
        Err(_) if says_nothing && effective.run_as_user.is_none() => String::new(),
        Err(error) => error.to_string(),
        Ok(()) => String::new(),
    };
    let armor = app_armor(&pod, container).ok().flatten();
    let mut shown = serde_json::to_value(&effective)?;
    // Upstream keeps profiles out of the effective context and looks them up on their own.
    for apart in ["seccompProfile", "appArmorProfile"] {
        shown.as_object_mut().context("an object")?.remove(apart);
    }
    let annotations = container_annotations(
        &pod,
        container,
        container_hash(container),
        3,
        &std::collections::BTreeMap::new(),
    );
    Ok(without_empty(json!({
        "effective": shown,
        "noNewPrivs": effective.allow_privilege_escalation == Some(false),
        "nonRoot": non_root,
        "seccomp": seccomp(&pod, container, &node).ok().as_ref().map(profile_value),
        "appArmor": armor.as_ref().map(|(profile, _)| profile_value(profile)),
        "appArmorOld": armor.as_ref().map(|(_, text)| text.clone()),
        "annotations": annotations,
    })))
}

#[test]
fn security_contexts_are_alike() -> Result<()> {
    compare("security", security_input, our_security, |mut answer| {
        for apart in ["seccompProfile", "appArmorProfile"] {
            if let Some(effective) = answer["effective"].as_object_mut() {
                effective.remove(apart);
            }
        }
        without_empty(answer)
    })
}

#[test]
fn env_files_are_read_alike() -> Result<()> {
    let input = |random: &mut Seeded| {
        let parts = [
            "KEY",
            "OTHER",
            "=",
            "=",
            "'",
            "'",
            "value",
            " ",
            "\t",
            "\n",
            "\n",
            "#",
            "\r\n",
            "$X",
            "\"",
            "é",
            "KEY='v'\n",
            "A='b\nc'\n",
        ];
        let content: String = (0..random.below(14)).map(|_| *random.one_of(&parts)).collect();
        json!({"content": content, "key": "KEY"})
    };
    let ours = |input: &Value| {
        let content = input["content"].as_str().context("a text")?;
        Ok(match value_of(content.as_bytes(), "KEY") {
            Ok(text) => json!({"ok": true, "text": text}),
            Err(_) => json!({"ok": false, "text": ""}),
        })
    };
    compare("env.file", input, ours, |answer| answer)
}

#[test]
fn hostnames_are_alike() -> Result<()> {
    let input = |random: &mut Seeded| {
        let mut input = json!({"hostname": "h".repeat(1 + random.below(40)), "domain": ""});
        if random.below(3) != 0 {
            input["domain"] = json!(format!(
                "{}.n.svc.cluster.local",
                "s".repeat(1 + random.below(40))
            ));
        }
        maybe(
            random,
            &mut input,
            "fqdn",
            &[json!(true), json!(true), json!(false)],
        );
        input
    };
    let ours = |input: &Value| {
        let text = |field: &str| input[field].as_str().unwrap_or_default().to_owned();
        let hostname = Hostname {
            name: text("hostname"),
            domain: Some(text("domain")).filter(|domain| !domain.is_empty()),
        };
        let spec = k8s_openapi::api::core::v1::PodSpec {
            set_hostname_as_fqdn: input["fqdn"].as_bool(),
            ..Default::default()
        };
        Ok(match kernel_hostname(&spec, &hostname) {
            Ok(name) => json!({"ok": true, "text": name}),
            Err(error) => json!({"ok": false, "text": error.to_string()}),
        })
    };
    compare("nodename", input, ours, |answer| answer)
}

#[test]
fn subordinate_ids_are_read_alike() -> Result<()> {
    let input = |random: &mut Seeded| {
        let words = [
            "0:",
            "kubelet",
            "65536",
            "4294967295",
            "4294967296",
            "-1",
            "x",
            "131072",
            "+5",
        ];
        let line = |random: &mut Seeded| {
            let count = *random.one_of(&[3, 4, 4, 4, 4, 5]);
            let words: Vec<&str> = (0..count).map(|_| *random.one_of(&words)).collect();
            words.join(*random.one_of(&[" ", "  ", "\t"]))
        };
        let count = *random.one_of(&[0, 1, 1, 1, 1, 2]);
        let lines: Vec<String> = (0..count).map(|_| line(random)).collect();
        json!(format!(
            "{}{}",
            lines.join("\n"),
            random.one_of(&["", "\n", "\n\n"])
        ))
    };
    let ours = |input: &Value| {
        let text = input.as_str().context("a text")?;
        Ok(match IdRange::from_subordinate_ids(text, text) {
            Ok(range) => json!({"ok": true, "first": range.first, "length": range.length}),
            Err(_) => json!({"ok": false, "first": 0, "length": 0}),
        })
    };
    compare("subids", input, ours, |answer| answer)
}
