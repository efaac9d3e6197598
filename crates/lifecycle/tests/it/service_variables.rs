//! Variables of services.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use rubelet_lifecycle::configuration::service_variables::service_variables;
use serde_json::{Value, json};

fn service(namespace: &str, name: &str, address: &str, ports: &Value) -> Arc<Service> {
    let service = json!({"metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": address, "ports": ports}});
    Arc::new(serde_json::from_value(service).expect("a service"))
}

fn shown(services: &[Arc<Service>], namespace: &str, links: bool) -> Vec<String> {
    let variables = service_variables(services, namespace, links);
    variables
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

#[test]
fn a_service_has_names_of_both_kinds() {
    let ports = json!([{"port": 80, "name": "http"}, {"port": 53, "name": "my-dns", "protocol": "UDP"}]);
    let all = [service("ns", "web-front", "10.0.0.1", &ports)];
    let expected = [
        "WEB_FRONT_PORT=tcp://10.0.0.1:80",
        "WEB_FRONT_PORT_53_UDP=udp://10.0.0.1:53",
        "WEB_FRONT_PORT_53_UDP_ADDR=10.0.0.1",
        "WEB_FRONT_PORT_53_UDP_PORT=53",
        "WEB_FRONT_PORT_53_UDP_PROTO=udp",
        "WEB_FRONT_PORT_80_TCP=tcp://10.0.0.1:80",
        "WEB_FRONT_PORT_80_TCP_ADDR=10.0.0.1",
        "WEB_FRONT_PORT_80_TCP_PORT=80",
        "WEB_FRONT_PORT_80_TCP_PROTO=tcp",
        "WEB_FRONT_SERVICE_HOST=10.0.0.1",
        "WEB_FRONT_SERVICE_PORT=80",
        "WEB_FRONT_SERVICE_PORT_HTTP=80",
        "WEB_FRONT_SERVICE_PORT_MY_DNS=53",
    ];
    assert_eq!(shown(&all, "ns", true), expected);
}

#[test]
fn an_address_of_the_newer_kind_is_in_brackets() {
    let all = [service("ns", "a", "fd00::1", &json!([{"port": 80}]))];
    let found = shown(&all, "ns", true);
    assert!(
        found.contains(&"A_PORT=tcp://[fd00::1]:80".to_owned()),
        "{found:?}"
    );
    assert!(found.contains(&"A_SERVICE_HOST=fd00::1".to_owned()), "{found:?}");
}

#[test]
fn a_pod_sees_its_own_namespace_and_the_api_server() {
    let check = |services: &[Arc<Service>], namespace: &str, links: bool, expected: &[&str]| {
        let hosts = shown(services, namespace, links).into_iter();
        let hosts: Vec<String> = hosts.filter(|text| text.contains("_SERVICE_HOST=")).collect();
        assert_eq!(hosts, expected, "{namespace} {links}");
    };
    let one =
        |namespace: &str, name: &str, address: &str| service(namespace, name, address, &json!([{"port": 1}]));
    let api = one("default", "kubernetes", "10.0.0.1");
    let own = one("ns", "a", "10.0.0.2");
    let mine = one("ns", "kubernetes", "10.0.0.3");
    let other = one("default", "b", "10.0.0.4");
    let (api_host, own_host) = ("KUBERNETES_SERVICE_HOST=10.0.0.1", "A_SERVICE_HOST=10.0.0.2");
    let mine_host = "KUBERNETES_SERVICE_HOST=10.0.0.3";
    let all = [api.clone(), own.clone(), other.clone()];
    check(&all, "ns", true, &[own_host, api_host]);
    check(&all, "ns", false, &[api_host]);
    check(&all, "default", true, &["B_SERVICE_HOST=10.0.0.4", api_host]);
    check(&all, "default", false, &[api_host]);
    // One of that name in the own namespace wins, in whatever order they come.
    for services in [[api.clone(), mine.clone()], [mine, api.clone()]] {
        check(&services, "ns", true, &[mine_host]);
        check(&services, "ns", false, &[api_host]);
    }
    for address in ["None", ""] {
        check(&[one("ns", "a", address), api.clone()], "ns", true, &[api_host]);
        check(
            &[one("ns", "kubernetes", address), api.clone()],
            "ns",
            true,
            &[api_host],
        );
    }
    check(&[service("ns", "a", "10.0.0.1", &json!([]))], "ns", true, &[]);
}
