//! Variables from ConfigMaps and Secrets.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, EnvVarSource};
use rubelet_lifecycle::configuration::object_variables::{
    EnvObjects, ObjectProblem, config_map_value, env_from, env_references, secret_value,
};
use serde_json::{Value, json};

fn container(value: Value) -> Container {
    let mut value = value;
    value["name"] = json!("c");
    serde_json::from_value(value).expect("a container")
}

fn objects() -> EnvObjects {
    let map = json!({"data": {"a": "1", "b c": "2"}, "binaryData": {"bin": "AAE="}});
    let secret = json!({"data": {"a": "/wA=", "x": ""}});
    let missing = |kind: &str| ObjectProblem::NotFound(format!("{kind} \"none\" not found"));
    let away = ObjectProblem::Unavailable("timed out".to_owned());
    let mut objects = EnvObjects::default();
    let (maps, secrets) = (&mut objects.config_maps, &mut objects.secrets);
    maps.insert(
        "m".to_owned(),
        Ok(Arc::new(serde_json::from_value(map).expect("a map"))),
    );
    maps.insert("none".to_owned(), Err(missing("configmap")));
    maps.insert("away".to_owned(), Err(away.clone()));
    secrets.insert(
        "s".to_owned(),
        Ok(Arc::new(serde_json::from_value(secret).expect("a secret"))),
    );
    secrets.insert("none".to_owned(), Err(missing("secret")));
    secrets.insert("away".to_owned(), Err(away));
    objects
}

/// Names with their values; bytes that are no text are shown as such.
fn shown(variables: &[(String, Vec<u8>)]) -> String {
    let shown: Vec<String> = variables
        .iter()
        .map(|(name, value)| format!("{name}={}", value.escape_ascii()))
        .collect();
    shown.join(",")
}

#[test]
fn whole_objects_become_variables() {
    let check = |sources: Value, expected: Result<&str, &str>| {
        let text = sources.to_string();
        let container = container(json!({ "envFrom": sources }));
        let found = env_from(&container, "ns", &objects());
        let found = found.as_deref().map(shown).map_err(ToString::to_string);
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{text}");
    };
    check(json!([]), Ok(""));
    check(json!([{"configMapRef": {"name": "m"}}]), Ok("a=1,b c=2"));
    check(json!([{"secretRef": {"name": "s"}}]), Ok(r"a=\xff\x00,x="));
    check(
        json!([{"prefix": "P_", "configMapRef": {"name": "m"}}, {"secretRef": {"name": "s"}}]),
        Ok(r"P_a=1,P_b c=2,a=\xff\x00,x="),
    );
    check(json!([{}]), Ok(""));
    check(
        json!([{"configMapRef": {"name": "none"}}]),
        Err("configmap \"none\" not found"),
    );
    check(
        json!([{"configMapRef": {"name": "none", "optional": true}}]),
        Ok(""),
    );
    check(
        json!([{"secretRef": {"name": "none", "optional": false}}]),
        Err("secret \"none\" not found"),
    );
    check(json!([{"secretRef": {"name": "none", "optional": true}}]), Ok(""));
    // Optional is about what does not exist, not about what cannot be had now.
    check(
        json!([{"secretRef": {"name": "away", "optional": true}}]),
        Err("timed out"),
    );
    check(
        json!([{"configMapRef": {"name": "unasked", "optional": true}}]),
        Err("couldn't get configMap ns/unasked, there is no API server"),
    );
}

#[test]
fn single_keys_become_values() {
    let check = |source: Value, expected: Result<Option<&[u8]>, &str>| {
        let text = source.to_string();
        let source: EnvVarSource = serde_json::from_value(source).expect("a source");
        let found = match (&source.config_map_key_ref, &source.secret_key_ref) {
            (Some(selector), _) => config_map_value(selector, "ns", &objects()),
            (None, Some(selector)) => secret_value(selector, "ns", &objects()),
            (None, None) => panic!("a key"),
        };
        let found = found.map_err(|error| error.to_string());
        let found = found.as_ref().map(Option::as_deref).map_err(String::as_str);
        assert_eq!(found, expected, "{text}");
    };
    let map = |name: &str, key: &str, optional: bool| json!({"configMapKeyRef": {"name": name, "key": key, "optional": optional}});
    let secret = |name: &str, key: &str, optional: bool| json!({"secretKeyRef": {"name": name, "key": key, "optional": optional}});
    check(map("m", "a", false), Ok(Some(b"1")));
    check(map("m", "z", true), Ok(None));
    check(map("m", "z", false), Err("couldn't find key z in ConfigMap ns/m"));
    check(
        map("m", "bin", false),
        Err("couldn't find key bin in ConfigMap ns/m"),
    );
    check(map("none", "a", true), Ok(None));
    check(map("none", "a", false), Err("configmap \"none\" not found"));
    check(map("away", "a", true), Err("timed out"));
    check(secret("s", "a", false), Ok(Some(b"\xff\0")));
    check(secret("s", "x", false), Ok(Some(b"")));
    check(secret("s", "z", true), Ok(None));
    check(secret("s", "z", false), Err("couldn't find key z in Secret ns/s"));
    check(secret("none", "a", true), Ok(None));
    check(secret("none", "a", false), Err("secret \"none\" not found"));
    check(
        secret("unasked", "a", true),
        Err("couldn't get secret ns/unasked, there is no API server"),
    );
}

#[test]
fn only_what_is_used_is_asked_for() {
    let check = |spec: Value, config_maps: &[&str], secrets: &[&str]| {
        let text = spec.to_string();
        let found = env_references(&container(spec));
        assert!(found.config_maps.iter().eq(config_maps), "{text}");
        assert!(found.secrets.iter().eq(secrets), "{text}");
        assert_eq!(
            found.is_empty(),
            config_maps.is_empty() && secrets.is_empty(),
            "{text}"
        );
    };
    let reference = json!({"name": "n", "key": "k"});
    let variable = |value: Value| json!({ "env": [value] });
    check(json!({}), &[], &[]);
    check(
        json!({"envFrom": [{"configMapRef": {"name": "b"}}, {"configMapRef": {"name": "a"}}, {"secretRef": {"name": "s"}}]}),
        &["a", "b"],
        &["s"],
    );
    check(
        variable(json!({"name": "A", "valueFrom": {"configMapKeyRef": reference}})),
        &["n"],
        &[],
    );
    check(
        variable(json!({"name": "A", "valueFrom": {"secretKeyRef": reference}})),
        &[],
        &["n"],
    );
    check(
        variable(json!({"name": "A", "value": "x", "valueFrom": {"secretKeyRef": reference}})),
        &[],
        &[],
    );
    check(
        variable(json!({"name": "A", "value": "", "valueFrom": {"secretKeyRef": reference}})),
        &[],
        &["n"],
    );
    check(
        variable(
            json!({"name": "A", "valueFrom": {"secretKeyRef": reference, "fieldRef": {"fieldPath": "metadata.name"}}}),
        ),
        &[],
        &[],
    );
}

#[test]
fn nothing_secret_is_printed() {
    let text = format!("{:?}", objects());
    assert!(
        text.contains("\"s\"") && !text.contains("255") && !text.contains("ff"),
        "{text}"
    );
}
