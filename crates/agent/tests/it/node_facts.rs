//! What pods are told of their node: its addresses, its resolver file, what its runtime handlers can do.

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rubelet_ports::HostIps;
use rubelet_sim::node;
use serde_json::json;

use crate::bed::{Bed, PodText, SOON, known_node};
use crate::cluster::{ApiPod, holds};

/// The node's addresses, which change.
struct Addresses(Mutex<Vec<IpAddr>>);

impl Addresses {
    fn set(&self, texts: &[&str]) {
        *self.0.lock().unwrap() = texts.iter().map(|text| text.parse().unwrap()).collect();
    }
}

impl HostIps for Addresses {
    fn host_ips(&self) -> Vec<IpAddr> {
        self.0.lock().unwrap().clone()
    }
}

fn put_class(bed: &Bed, name: &str, handler: &str) {
    let mut class = RuntimeClass {
        handler: handler.to_owned(),
        ..RuntimeClass::default()
    };
    class.metadata.name = Some(name.to_owned());
    bed.cluster().objects.put_class(class);
}

#[test]
fn addresses_follow_the_node() {
    let mut bed = Bed::in_cluster();
    let addresses = Arc::new(Addresses(Mutex::default()));
    bed.kill();
    bed.node.host_ips = addresses.clone();
    bed.start();
    let host = json!([{"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIPs"}}}]);
    let web = ApiPod::new("web", &["runs=20000:1,20000:1,forever"]);
    bed.create(&web.container("env", host).spec("hostNetwork", json!(true)));
    bed.wait("it is told that there is none", SOON, |bed| {
        bed.waiting_reason("uid-web").0 == "CreateContainerConfigError"
    });
    assert_eq!(bed.api_status("uid-web").host_ip, None);
    let told = |bed: &Bed| {
        let created = bed.line.created("web/main");
        let last = created
            .last()
            .map(|config| config.envs.clone())
            .unwrap_or_default();
        let host = last.into_iter().find(|one| one.key == "HOST");
        host.map(|one| String::from_utf8(one.value).unwrap())
            .unwrap_or_default()
    };
    for texts in [&["10.0.0.1"][..], &["10.0.0.2", "fd00::2"]] {
        addresses.set(texts);
        bed.wait("the container is told", Duration::from_secs(120), |bed| {
            let status = bed.api_status("uid-web");
            let is_shown = status.host_ip.as_deref() == Some(texts[0]);
            told(bed) == texts.join(",") && is_shown && holds(&status, "Ready")
        });
        let status = bed.api_status("uid-web");
        assert_eq!(status.pod_ip, status.host_ip);
        let all = |count: Option<usize>| assert_eq!(count, Some(texts.len()));
        all(status.host_ips.map(|ips| ips.len()));
        all(status.pod_ips.map(|ips| ips.len()));
    }
    let mismatches = |bed: &Bed| bed.api_events("web", "HostIPsIPFamilyMismatch");
    assert!(mismatches(&bed).is_empty());
    addresses.set(&["fd00::2"]);
    bed.wait("the other family is shown", Duration::from_secs(120), |bed| {
        bed.api_status("uid-web").host_ip.as_deref() == Some("fd00::2")
    });
    let told = mismatches(&bed);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(
        told[0].message,
        "Kubelet detected an IPv4 node IP (10.0.0.2), but the cloud provider selected an IPv6 node IP (fd00::2); \
         pass an explicit `--node-ip` to kubelet to fix this."
    );
}

#[test]
fn the_resolver_file_is_read_for_every_sandbox() {
    let mut bed = Bed::started();
    let file = Path::new(node::RESOLVER_FILE);
    let pod = |name: &str| PodText::new(name, &[]).spec("dnsPolicy", json!("Default"));
    bed.put_and_wait(&pod("first"));
    assert_eq!(bed.line.name_servers("first"), [["192.0.2.53"]]);
    bed.files.place(file, b"nameserver 192.0.2.54\n");
    bed.put_and_wait(&pod("second"));
    assert_eq!(bed.line.name_servers("second"), [["192.0.2.54"]]);
    bed.files.take_away(file);
    bed.put(&pod("third"));
    bed.wait("it is missed", SOON, |bed| {
        !bed.events("third", "FailedCreatePodSandBox").is_empty()
    });
    let message = &bed.events("third", "FailedCreatePodSandBox")[0].message;
    assert!(
        message.starts_with("Failed to create pod sandbox: /etc/resolv.conf: "),
        "{message}"
    );
    assert_eq!(bed.line.name_servers("third"), [[""; 0]; 0]);
    bed.files.place(file, b"nameserver 192.0.2.55\n");
    bed.wait("it starts", Duration::from_secs(60), |bed| bed.is_ready("third"));
    assert_eq!(bed.line.name_servers("third"), [["192.0.2.55"]]);
}

#[test]
fn users_of_its_own_need_a_handler_that_can() {
    let mut bed = Bed::in_cluster();
    put_class(&bed, "sandboxed", "kata");
    let pod = ApiPod::new("web", &[]).spec("runtimeClassName", json!("sandboxed"));
    bed.create(&pod.spec("hostUsers", json!(false)));
    bed.wait("it is refused", SOON, |bed| {
        !bed.api_events("web", "FailedCreatePodSandBox").is_empty()
    });
    assert_eq!(
        bed.api_events("web", "FailedCreatePodSandBox")[0].message,
        "Failed to create pod sandbox: can't set `spec.hostUsers: false`, \
         RuntimeClass handler \"kata\" does not support user namespaces"
    );
    assert!(bed.line.handlers("web").is_empty());
}

#[test]
fn the_handler_of_mounts_is_known_again_after_a_restart() {
    let mut bed = Bed::in_cluster();
    put_class(&bed, "sandboxed", "kata");
    let mount = json!({"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "IfPossible"});
    let pod = ApiPod::new("web", &["runs=20000:1,20000:1,forever"])
        .spec("runtimeClassName", json!("sandboxed"))
        .spec("volumes", json!([{"name": "v", "emptyDir": {}}]))
        .container("volumeMounts", json!([mount]));
    bed.create_and_wait(&pod);
    bed.kill();
    bed.start();
    bed.wait("its container is started again", Duration::from_secs(60), |bed| {
        bed.line.created("web/main").len() == 2
    });
    for config in bed.line.created("web/main") {
        let mount = config.mounts.iter().find(|mount| mount.container_path == "/v");
        assert!(!mount.expect("the mount").recursive_read_only);
    }
}

#[test]
fn a_resource_that_only_the_node_object_knows_is_counted() {
    const DONGLE: &str = "example.com/dongle";
    let mut bed = Bed::in_cluster();
    let mut known = known_node();
    let amounts = Some([(DONGLE.to_owned(), Quantity("1".to_owned()))].into());
    known.status.get_or_insert_default().allocatable = amounts;
    bed.cluster().node.send_replace(Some(Arc::new(known)));
    let one = json!({"requests": {DONGLE: "1"}, "limits": {DONGLE: "1"}});
    let pod = |name: &str| ApiPod::new(name, &[]).container("resources", one.clone());
    bed.create_and_wait(&pod("first"));
    bed.create(&pod("second"));
    bed.wait("there is none left", SOON, |bed| {
        bed.api_phase("uid-second") == "Failed"
    });
    let reason = bed.api_status("uid-second").reason;
    assert_eq!(reason.as_deref(), Some("OutOfexample.com/dongle"));
    // What nobody has is nobody's matter.
    let other = json!({"requests": {"example.com/other": "1"}, "limits": {"example.com/other": "1"}});
    bed.create_and_wait(&ApiPod::new("third", &[]).container("resources", other));
}
