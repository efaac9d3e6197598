//! Generated pods, ConfigMaps, Secrets and services: a container's environment is upstream's, byte by byte, and so is the refusal.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use rubelet_lifecycle::configuration::environment::{EnvFiles, Sources, environment};
use rubelet_lifecycle::configuration::object_variables::{EnvObjects, ObjectProblem, env_references};
use rubelet_lifecycle::configuration::service_variables::service_variables;
use rubelet_resources::PodDemand;
use serde_json::{Value, json};

use crate::oracle_configuration::{compare, plain_node};
use crate::oracle_ours::Seeded;

const NAMES: [&str; 5] = ["A", "B", "WEB_SERVICE_HOST", "odd name-.", "k"];
const OBJECTS: [&str; 3] = ["one", "two", "missing"];
const TEXTS: [&str; 6] = [
    "",
    "x",
    "$(A) and $(B)",
    "$(WEB_SERVICE_HOST)$$(A)",
    "é$(k)",
    "$(none)",
];

fn optional(random: &mut Seeded) -> Value {
    match random.below(3) {
        0 => Value::Null,
        1 => json!(true),
        _ => json!(false),
    }
}

fn variable(random: &mut Seeded) -> Value {
    let name = *random.one_of(&NAMES);
    let reference = json!({"name": random.one_of(&OBJECTS), "key": random.one_of(&NAMES),
        "optional": optional(random)});
    match random.below(5) {
        0 => json!({"name": name, "valueFrom": {"configMapKeyRef": reference}}),
        1 => json!({"name": name, "valueFrom": {"secretKeyRef": reference}}),
        // A text wins, unless it is empty.
        2 => json!({"name": name, "value": random.one_of(&TEXTS),
            "valueFrom": {"configMapKeyRef": reference}}),
        3 => json!({"name": name}),
        _ => json!({"name": name, "value": random.one_of(&TEXTS)}),
    }
}

fn source(random: &mut Seeded) -> Value {
    let reference = json!({"name": random.one_of(&OBJECTS), "optional": optional(random)});
    let prefix = *random.one_of(&["", "", "P_", "1-"]);
    match random.below(2) {
        0 => json!({"prefix": prefix, "configMapRef": reference}),
        _ => json!({"prefix": prefix, "secretRef": reference}),
    }
}

fn many(random: &mut Seeded, most: usize, one: impl Fn(&mut Seeded) -> Value) -> Vec<Value> {
    (0..random.below(most + 1)).map(|_| one(random)).collect()
}

fn config_map(random: &mut Seeded, name: &str) -> Value {
    let mut data = BTreeMap::new();
    for _ in 0..random.below(4) {
        data.insert(*random.one_of(&NAMES), *random.one_of(&TEXTS));
    }
    json!({"metadata": {"name": name, "namespace": "ns"}, "data": data,
        "binaryData": {"binary": "AAEC"}})
}

fn secret(random: &mut Seeded, name: &str) -> Value {
    let mut data = BTreeMap::new();
    for _ in 0..random.below(4) {
        let bytes: Vec<u8> = (0..random.below(5))
            .map(|_| *random.one_of(&[b'a', b'$', 0, 0xff]))
            .collect();
        data.insert(*random.one_of(&NAMES), ByteString(bytes));
    }
    json!({"metadata": {"name": name, "namespace": "ns"}, "data": data})
}

fn service(random: &mut Seeded, namespace: &str, name: &str) -> Value {
    let address = *random.one_of(&["10.0.0.1", "10.0.0.2", "fd00::1", "None", ""]);
    let port = |random: &mut Seeded, number: usize| {
        json!({"port": 80 + number, "name": random.one_of(&["", "http", "my-port"]),
            "protocol": random.one_of(&["TCP", "UDP", "SCTP", ""])})
    };
    let ports: Vec<Value> = (0..=random.below(3)).map(|number| port(random, number)).collect();
    json!({"metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": address, "ports": ports}})
}

fn input(random: &mut Seeded) -> Value {
    let places = [
        ("ns", "web"),
        ("ns", "db-main"),
        ("ns", "kubernetes"),
        ("default", "kubernetes"),
        ("default", "other"),
    ];
    let mut services = Vec::new();
    for (namespace, name) in places {
        if random.below(3) > 0 {
            services.push(service(random, namespace, name));
        }
    }
    if random.below(2) == 0 {
        services.reverse();
    }
    let env = many(random, 6, variable);
    let env_from = many(random, 3, source);
    json!({
        "pod": {"metadata": {"name": "pod", "namespace": "ns", "uid": "uid"},
            "spec": {"enableServiceLinks": random.below(2) == 0,
                "containers": [{"name": "c", "image": "i", "env": env, "envFrom": env_from}]}},
        "configMaps": [config_map(random, "one"), config_map(random, "two")],
        "secrets": [secret(random, "one"), secret(random, "two")],
        "services": services,
    })
}

/// The objects by name; the one that is missing is answered as the API server does.
fn known<T: serde::de::DeserializeOwned>(
    input: &Value,
    kind: &str,
    names: impl IntoIterator<Item = String>,
) -> Result<BTreeMap<String, Result<Arc<T>, ObjectProblem>>> {
    let list = input.as_array().context("a list")?;
    names
        .into_iter()
        .map(|name| {
            let found = list.iter().find(|object| object["metadata"]["name"] == *name);
            let found = match found {
                Some(object) => Ok(Arc::new(serde_json::from_value(object.clone())?)),
                None => Err(ObjectProblem::NotFound(format!("{kind} {name:?} not found"))),
            };
            Ok((name, found))
        })
        .collect()
}

fn ours(input: &Value) -> Result<Value> {
    let pod: Pod = serde_json::from_value(input["pod"].clone())?;
    let spec = pod.spec.as_ref().context("a spec")?;
    let container = &spec.containers[0];
    let references = env_references(container);
    let objects = EnvObjects {
        config_maps: known::<ConfigMap>(&input["configMaps"], "configmap", references.config_maps)?,
        secrets: known::<Secret>(&input["secrets"], "secret", references.secrets)?,
    };
    let services: Vec<Arc<Service>> = serde_json::from_value::<Vec<Service>>(input["services"].clone())?
        .into_iter()
        .map(Arc::new)
        .collect();
    let links = spec.enable_service_links.context("links")?;
    let services = service_variables(&services, "ns", links);
    let demand = PodDemand::read(&pod)?;
    let (node, files) = (plain_node(), EnvFiles::new());
    let sources = Sources {
        pod: &pod,
        demand: &demand,
        container_demand: demand.container("c").context("the container")?,
        node: &node,
        pod_ips: &[],
        host_ips: &[],
        services: &services,
        files: &files,
        objects: &objects,
    };
    Ok(match environment(container, sources) {
        Ok(made) => {
            let variables: BTreeMap<&str, ByteString> = made
                .iter()
                .map(|(name, value)| (name, ByteString(value.to_vec())))
                .collect();
            json!({"problem": "", "variables": variables})
        }
        Err(error) => json!({"problem": error.to_string(), "variables": null}),
    })
}

#[test]
fn environments_are_alike() -> Result<()> {
    compare("environment", input, ours, |answer| answer)
}
