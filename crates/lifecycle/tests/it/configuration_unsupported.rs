//! Every field that is not honoured yet is named.

use rubelet_lifecycle::configuration::unsupported_volumes::without_plugin_volumes;
use rubelet_lifecycle::configuration::{NodeConfiguration, unprovided, unsupported};
use serde_json::{Value, json};

use crate::configuration::{node, pod};

#[track_caller]
fn check(spec: &Value, expected: &[&str]) {
    let node = NodeConfiguration {
        has_stop_signals: false,
        ..node()
    };
    let found = unsupported(&pod(spec), &node).into_iter();
    let found: Vec<String> = found.map(|one| one.field).collect();
    assert_eq!(found, expected, "{spec}");
}

#[test]
fn plain_pods_are_supported() {
    check(&json!({}), &[]);
    let container = json!({"name": "c", "image": "i", "ports": [{"containerPort": 80}], "env": [{"name": "A", "value": "1"},
        {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}], "lifecycle": {"postStart": {"sleep": {"seconds": 1}}, "preStop": {"exec": {"command": ["x"]}}},
        "resources": {"limits": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "2Mi"}}, "volumeMounts": []});
    check(
        &json!({"containers": [container], "volumes": [], "hostUsers": false, "os": {"name": "linux"}}),
        &[],
    );
}

#[test]
fn resources_that_a_claim_stands_for() {
    let container = json!({"name": "c", "image": "i", "resources": {"limits": {"example.com/gpu": "1", "example.com/dongle": "1"}}});
    let mut pod = pod(&json!({"containers": [container]}));
    assert_eq!(unsupported(&pod, &node()), []);
    pod.status = serde_json::from_value(json!({"extendedResourceClaimStatus": {"resourceClaimName": "x",
        "requestMappings": [{"containerName": "c", "resourceName": "example.com/gpu", "requestName": "r"}]}}))
    .unwrap();
    let found = unsupported(&pod, &node());
    let found: Vec<&str> = found.iter().map(|one| one.field.as_str()).collect();
    assert_eq!(found, ["spec.containers[0].resources.limits[example.com/gpu]"]);
}

#[test]
fn fields_of_pods() {
    check(&json!({"runtimeClassName": "kata"}), &["spec.runtimeClassName"]);
    check(
        &json!({"resourceClaims": [{"name": "x"}]}),
        &["spec.resourceClaims"],
    );
    check(
        &json!({"imagePullSecrets": [{"name": "x"}]}),
        &["spec.imagePullSecrets"],
    );
}

#[test]
fn kinds_of_volumes() {
    let spec = |volumes: &Value, mounted: bool| {
        let mounts: Vec<Value> = volumes
            .as_array()
            .unwrap()
            .iter()
            .filter(|_| mounted)
            .map(|volume| json!({"name": volume["name"], "mountPath": "/v"}))
            .collect();
        json!({"volumes": volumes, "containers": [{"name": "c", "image": "i", "volumeMounts": mounts}]})
    };
    let of = |kind: &str, source: Value| json!([{"name": "v", kind: source}]);
    for kind in ["emptyDir", "hostPath", "downwardAPI", "image"] {
        check(&spec(&of(kind, json!({"path": "/x"})), true), &[]);
    }
    for kind in [
        "configMap",
        "secret",
        "csi",
        "nfs",
        "iscsi",
        "fc",
        "flexVolume",
        "ephemeral",
        "gitRepo",
        "cephfs",
        "rbd",
        "persistentVolumeClaim",
        "awsElasticBlockStore",
        "azureDisk",
        "azureFile",
        "cinder",
        "flocker",
        "gcePersistentDisk",
        "glusterfs",
        "photonPersistentDisk",
        "portworxVolume",
        "quobyte",
        "scaleIO",
        "storageos",
        "vsphereVolume",
    ] {
        let volumes = of(kind, json!({}));
        check(&spec(&volumes, true), &[&format!("spec.volumes[0].{kind}")]);
        check(&spec(&volumes, false), &[]);
    }
    let sources = json!([
        {"downwardAPI": {}}, {"secret": {"name": "s"}}, {"configMap": {"name": "c"}},
        {"serviceAccountToken": {"path": "t"}}, {"clusterTrustBundle": {"path": "b"}},
    ]);
    let field = |index: usize, kind: &str| format!("spec.volumes[0].projected.sources[{index}].{kind}");
    check(
        &spec(&of("projected", json!({"sources": sources})), true),
        &[
            &field(1, "secret"),
            &field(2, "configMap"),
            &field(3, "serviceAccountToken"),
            &field(4, "clusterTrustBundle"),
        ],
    );
}

#[test]
fn fields_of_containers() {
    let cases = [
        (
            json!({"volumeDevices": [{"name": "v", "devicePath": "/v"}]}),
            "volumeDevices",
        ),
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
            json!({"resources": {"limits": {"deviceclass.resource.kubernetes.io/gpu": "1"}}}),
            "resources.limits[deviceclass.resource.kubernetes.io/gpu]",
        ),
    ];
    for (mut container, field) in cases {
        container["name"] = json!("c");
        for list in ["initContainers", "containers", "ephemeralContainers"] {
            check(&json!({list: [container]}), &[&format!("spec.{list}[0].{field}")]);
        }
    }
}

#[test]
fn pods_from_the_api_server_may_refer_to_its_objects() {
    let volumes = json!([
        {"name": "a", "configMap": {"name": "c"}}, {"name": "b", "secret": {"secretName": "s"}},
        {"name": "t", "projected": {"sources": [
            {"serviceAccountToken": {"path": "t"}}, {"configMap": {"name": "c"}}, {"clusterTrustBundle": {"path": "b"}},
        ]}},
        {"name": "d", "persistentVolumeClaim": {"claimName": "d"}},
    ]);
    let mounts: Vec<Value> = ["a", "b", "t", "d"]
        .iter()
        .map(|name| json!({"name": name, "mountPath": format!("/{name}")}))
        .collect();
    let spec = json!({
        "runtimeClassName": "kata", "imagePullSecrets": [{"name": "x"}], "resourceClaims": [{"name": "x"}], "volumes": volumes,
        "containers": [{"name": "c", "image": "i", "volumeMounts": mounts, "envFrom": [{"secretRef": {"name": "s"}}],
            "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "k"}}}]}],
    });
    let mut pod = pod(&spec);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert("kubernetes.io/config.source".to_owned(), "api".to_owned());
    assert_eq!(unsupported(&pod, &node()), [], "a driver may come later");
    let found = unprovided(&pod, &node()).into_iter();
    let found: Vec<String> = found.map(|one| one.field).collect();
    assert_eq!(
        found,
        ["spec.volumes[3].persistentVolumeClaim", "spec.resourceClaims"]
    );
    let rest = without_plugin_volumes(&pod).expect("it has one that needs a plugin");
    let rest: Vec<&str> = rest
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
        .map(|one| one.name.as_str())
        .collect();
    assert_eq!(rest, ["a", "b", "t"]);
}

#[test]
fn static_pods_wait_for_no_driver() {
    let spec = json!({"resourceClaims": [{"name": "x"}]});
    check(&spec, &["spec.resourceClaims"]);
    assert_eq!(unprovided(&pod(&spec), &node()), []);
    assert_eq!(
        without_plugin_volumes(&pod(&json!({"volumes": [{"name": "a"}]}))),
        None
    );
}
