//! Every field that is not honoured yet is named.

use rubelet_lifecycle::configuration::unsupported;
use serde_json::{Value, json};

use crate::configuration::pod;

#[track_caller]
fn check(spec: &Value, expected: &[&str]) {
    let found: Vec<String> = unsupported(&pod(spec)).into_iter().map(|one| one.field).collect();
    assert_eq!(found, expected, "{spec}");
}

#[test]
fn plain_pods_are_supported() {
    check(&json!({}), &[]);
    let container = json!({"name": "c", "image": "i", "ports": [{"containerPort": 80}], "env": [{"name": "A", "value": "1"},
        {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}], "lifecycle": {},
        "resources": {"limits": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "2Mi"}}, "volumeMounts": []});
    check(
        &json!({"containers": [container], "volumes": [], "hostUsers": true, "os": {"name": "linux"}}),
        &[],
    );
}

#[test]
fn fields_of_pods() {
    check(
        &json!({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b"}]}),
        &["spec.volumes[0]", "spec.volumes[1]"],
    );
    check(&json!({"hostUsers": false}), &["spec.hostUsers"]);
    check(&json!({"runtimeClassName": "kata"}), &["spec.runtimeClassName"]);
    check(
        &json!({"resourceClaims": [{"name": "x"}]}),
        &["spec.resourceClaims"],
    );
    check(
        &json!({"imagePullSecrets": [{"name": "x"}]}),
        &["spec.imagePullSecrets"],
    );
    check(&json!({"os": {"name": "windows"}}), &["spec.os.name"]);
}

#[test]
fn fields_of_containers() {
    let cases = [
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}),
            "volumeMounts",
        ),
        (
            json!({"volumeDevices": [{"name": "v", "devicePath": "/v"}]}),
            "volumeDevices",
        ),
        (json!({"livenessProbe": {}}), "livenessProbe"),
        (json!({"readinessProbe": {}}), "readinessProbe"),
        (json!({"startupProbe": {}}), "startupProbe"),
        (json!({"lifecycle": {"postStart": {}}}), "lifecycle.postStart"),
        (json!({"lifecycle": {"preStop": {}}}), "lifecycle.preStop"),
        (
            json!({"lifecycle": {"stopSignal": "SIGUSR1"}}),
            "lifecycle.stopSignal",
        ),
        (json!({"envFrom": [{"secretRef": {"name": "s"}}]}), "envFrom[0]"),
        (
            json!({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
            "env[0].valueFrom.secretKeyRef",
        ),
        (
            json!({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "k"}}}]}),
            "env[0].valueFrom.configMapKeyRef",
        ),
        (
            json!({"resources": {"claims": [{"name": "x"}]}}),
            "resources.claims",
        ),
        (
            json!({"resources": {"limits": {"example.com/gpu": "1"}}}),
            "resources.limits[example.com/gpu]",
        ),
    ];
    for (mut container, field) in cases {
        container["name"] = json!("c");
        for list in ["initContainers", "containers", "ephemeralContainers"] {
            check(&json!({list: [container]}), &[&format!("spec.{list}[0].{field}")]);
        }
    }
}
