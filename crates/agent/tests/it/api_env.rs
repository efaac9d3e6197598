//! What containers get from API objects.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use rubelet_model::observation::PodUid;
use rubelet_sim::volumes::VolumeFaults;
use serde_json::json;

use crate::bed::{Bed, PodText, SOON};
use crate::cluster::{ApiPod, holds};

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn config_map(name: &str, key: &str, value: &str) -> ConfigMap {
    let mut map = ConfigMap {
        data: Some([(key.to_owned(), value.to_owned())].into()),
        ..ConfigMap::default()
    };
    map.metadata.name = Some(name.to_owned());
    map
}

fn secret(name: &str, key: &str, value: &[u8]) -> Secret {
    let mut secret = Secret {
        data: Some([(key.to_owned(), ByteString(value.to_vec()))].into()),
        ..Secret::default()
    };
    secret.metadata.name = Some(name.to_owned());
    secret
}

fn environment(bed: &Bed, about: &str) -> BTreeMap<String, Vec<u8>> {
    let created = bed.line.created(about);
    let config = created.last().expect("it was created");
    config
        .envs
        .iter()
        .map(|one| (one.key.clone(), one.value.clone()))
        .collect()
}

#[test]
fn variables_come_from_objects() {
    let mut bed = Bed::in_cluster();
    let objects = bed.cluster().objects.clone();
    objects.set_services(vec![
        serde_json::from_value::<Service>(json!({
            "metadata": {"name": "kubernetes", "namespace": "default"},
            "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 443}]},
        }))
        .unwrap(),
    ]);
    let pod = ApiPod::new("web", &[])
        .container("envFrom", json!([{"prefix": "P_", "configMapRef": {"name": "settings"}}, {"secretRef": {"name": "none", "optional": true}}]))
        .container("env", json!([
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "login", "key": "password"}}},
            {"name": "BOTH", "value": "$(P_color)-$(PASSWORD)-$(KUBERNETES_SERVICE_HOST)"},
        ]));
    bed.create(&pod);
    bed.wait("it waits for the first", SOON, |bed| {
        bed.waiting_reason("uid-web").0 == "CreateContainerConfigError"
    });
    assert_eq!(
        bed.waiting_reason("uid-web").1,
        "configmap \"settings\" not found"
    );
    assert_eq!(
        bed.cluster().objects.registered(),
        [PodUid::from("uid-web")].into()
    );
    assert_eq!(
        bed.api_events("web", "Failed")[0].message,
        "Error: configmap \"settings\" not found"
    );
    objects.put_config_map(config_map("settings", "color", "blue"));
    bed.wait("and for the second", seconds(1), |bed| {
        bed.waiting_reason("uid-web").1 == "secret \"login\" not found"
    });
    objects.put_secret(secret("login", "other", b""));
    bed.wait("and for its key", seconds(1), |bed| {
        bed.waiting_reason("uid-web").1 == "couldn't find key password in Secret default/login"
    });
    objects.put_secret(secret("login", "password", b"\xff\x00x"));
    bed.wait("and runs", seconds(1), |bed| {
        holds(&bed.api_status("uid-web"), "Ready")
    });
    let environment = environment(&bed, "web/main");
    assert_eq!(environment["P_color"], b"blue");
    assert_eq!(environment["PASSWORD"], b"\xff\x00x");
    assert_eq!(environment["BOTH"], b"blue-\xff\x00x-10.0.0.1");
    assert_eq!(environment["KUBERNETES_PORT_443_TCP_ADDR"], b"10.0.0.1");

    bed.api().delete("uid-web", None);
    bed.wait_gone("uid-web", SOON);
    assert!(bed.cluster().objects.registered().is_empty());
}

#[test]
fn services_are_waited_for_but_not_by_static_pods() {
    let mut bed = Bed::in_cluster();
    bed.cluster.as_mut().unwrap().objects = rubelet_sim::api::SimObjects::default();
    bed.kill();
    bed.start();
    bed.create(&ApiPod::new("web", &[]));
    bed.put_and_wait(&PodText::new("static", &[]));
    let words = "services have not yet been read at least once, cannot construct envvars";
    bed.wait("it waits", SOON, |bed| bed.waiting_reason("uid-web").1 == words);
    bed.cluster().objects.set_services(Vec::new());
    bed.wait("it runs", SOON, |bed| holds(&bed.api_status("uid-web"), "Ready"));
}

#[test]
fn a_pod_on_the_nodes_network_is_told_the_nodes_address() {
    let mut bed = Bed::in_cluster();
    let address = json!({"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}});
    let pod = ApiPod::new("web", &[])
        .spec("hostNetwork", json!(true))
        .container("env", json!([{"name": "POD_IP", "valueFrom": address}]));
    bed.create(&pod);
    bed.wait("it runs", seconds(1), |bed| {
        holds(&bed.api_status("uid-web"), "Ready")
    });
    assert_eq!(environment(&bed, "web/main")["POD_IP"], b"192.0.2.1");
}

#[test]
fn a_runtime_class_names_the_handler() {
    let mut bed = Bed::in_cluster();
    bed.create(&ApiPod::new("web", &[]).spec("runtimeClassName", json!("sandboxed")));
    bed.wait("it is missed", SOON, |bed| {
        !bed.api_events("web", "FailedCreatePodSandBox").is_empty()
    });
    assert_eq!(
        bed.api_events("web", "FailedCreatePodSandBox")[0].message,
        "Failed to create pod sandbox: runtimeclass.node.k8s.io \"sandboxed\" not found"
    );
    assert!(bed.line.sent_about("RunPodSandbox", "web").is_empty());
    let mut class = RuntimeClass {
        handler: "kata".to_owned(),
        ..RuntimeClass::default()
    };
    class.metadata.name = Some("sandboxed".to_owned());
    bed.cluster().objects.put_class(class);
    bed.wait("it runs", seconds(1), |bed| {
        holds(&bed.api_status("uid-web"), "Ready")
    });
    assert_eq!(bed.line.handlers("web"), ["kata"]);
}

#[test]
fn objects_are_let_go_before_volumes_that_do_not_go() {
    let mut bed = Bed::in_cluster();
    let pod = ApiPod::new("web", &[])
        .container("volumeMounts", json!([{"name": "own", "mountPath": "/own"}]))
        .spec(
            "volumes",
            json!([{"name": "own", "emptyDir": {"medium": "Memory"}}]),
        );
    bed.create_and_wait(&pod);
    assert_eq!(bed.cluster().objects.registered().len(), 1);
    bed.volumes.set_faults(VolumeFaults {
        fails: 10_000,
        ..VolumeFaults::default()
    });
    bed.api().delete("uid-web", None);
    bed.wait("its objects are let go", seconds(60), |bed| {
        bed.cluster().objects.registered().is_empty()
    });
    assert!(!bed.volumes.leftovers().is_empty(), "its volume is still there");
}
