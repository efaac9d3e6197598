//! The corpus of pod manifests: how documents are read, and what is refused for which field.
//!
//! Hand-written documents for what people write by hand, generated ones for breadth.

use std::collections::BTreeSet;

use crate::generate::{manifest, mutated_manifest};
use serde_json::{Value, json};

use super::Set;

const GENERATED: u64 = 60;

/// Whole documents: syntax, kinds, and what YAML makes of plain words.
const DOCUMENTS: &[&str] = &[
    "",
    "\n\n",
    "# only a comment\n",
    "{}",
    "[]",
    "null",
    "7",
    "text",
    "---\n",
    "apiVersion: v1\nkind: Pod\n",
    "kind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n",
    "apiVersion: v1\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n",
    "apiVersion: v2\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n",
    "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n",
    "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n",
    "apiVersion: v1\nkind: PodList\nitems: []\n",
    "apiVersion: v1\nkind: List\nitems: []\n",
    "apiVersion: v1\nkind: pod\nmetadata: {name: web}\n",
    "---\napiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n---\nkind: Other\n",
    "apiVersion: v1\r\nkind: Pod\r\nmetadata:\r\n  name: web\r\nspec:\r\n  containers:\r\n  - name: c\r\n    image: i\r\n",
    "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"web\"},\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"i\"}]}}",
    "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"web\"},\"spec\":{\"containers\":[{\"name\":\"c\",\"image\":\"i\"}]",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]\n",
    "apiVersion: v1\nkind: Pod\nmetadata:\n\tname: web\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web, name: db}\nspec: {containers: [{name: c, image: i}]}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nunknown: {field: 1}\nspec: {containers: [{name: c, image: i, more: 2}]}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: 7\nspec: {containers: [{name: c, image: i}]}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: 7}\nspec: {containers: [{name: c, image: i}]}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: yes}\nspec: {containers: [{name: c, image: i}]}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: 'yes'}\nspec: {containers: [{name: c, image: i}]}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: 1.5}]}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: {name: c, image: i}}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [c]}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: null}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {hostNetwork: 'true', containers: [{name: c, image: i}]}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {hostNetwork: on, containers: [{name: c, image: i}]}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {terminationGracePeriodSeconds: '7', containers: [{name: c, image: i}]}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {terminationGracePeriodSeconds: 7.0, containers: [{name: c, image: i}]}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {terminationGracePeriodSeconds: 0x10, containers: [{name: c, image: i}]}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {terminationGracePeriodSeconds: 1e2, containers: [{name: c, image: i}]}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - &a {name: c, image: i}\n  - {<<: *a, name: d}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: c\n    image: i\n    command:\n    - sh\n    - -c\n    - |\n      one\n      two\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: !!str 7}\nspec: {containers: [{name: c, image: i}]}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web, creationTimestamp: yesterday}\nspec: {containers: [{name: c, image: i}]}\n",
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {a: 1}}\nspec: {containers: [{name: c, image: i}]}\n",
];

/// Fields of the metadata beside the name.
const METADATA: &[&str] = &[
    "namespace: other",
    "namespace: Not_A_Name",
    "labels: {app: web, 'bad key!': x}",
    "labels: {app: 'not ok!'}",
    "annotations: {'bad key!': x}",
    "uid: my-own",
    "generateName: x-",
    "finalizers: [a]",
    "finalizers: [example.com/a]",
    "ownerReferences: [{kind: X, name: y, apiVersion: v1, uid: z}]",
    "ownerReferences: [{kind: X}]",
    "deletionGracePeriodSeconds: 1",
];

/// Fields of the pod's spec beside its containers.
const SPECS: &[&str] = &[
    "restartPolicy: Never",
    "restartPolicy: Sometimes",
    "dnsPolicy: ClusterFirst",
    "dnsPolicy: Nowhere",
    "dnsPolicy: None",
    "dnsPolicy: None, dnsConfig: {nameservers: [1.1.1.1]}",
    "dnsConfig: {nameservers: [a, b, c, d]}",
    "activeDeadlineSeconds: 0",
    "activeDeadlineSeconds: 5",
    "terminationGracePeriodSeconds: -1",
    "hostNetwork: true",
    "hostPID: true, shareProcessNamespace: true",
    "hostname: A_B",
    "subdomain: x.y",
    "setHostnameAsFQDN: true",
    "nodeSelector: {'bad key!': x}",
    "tolerations: [{operator: Exists}]",
    "tolerations: [{operator: Exists, value: x}]",
    "tolerations: [{key: a, operator: Never}]",
    "tolerations: [{effect: NoExecute, operator: Exists, tolerationSeconds: 5}]",
    "priorityClassName: system-node-critical",
    "priority: 2000001000, priorityClassName: system-node-critical",
    "serviceAccountName: default",
    "automountServiceAccountToken: false",
    "imagePullSecrets: [{name: a}]",
    "volumes: [{name: a, emptyDir: {}}]",
    "volumes: [{name: a, emptyDir: {}}, {name: a, emptyDir: {}}]",
    "volumes: [{name: a}]",
    "volumes: [{name: a, emptyDir: {}, hostPath: {path: /}}]",
    "volumes: [{name: A, emptyDir: {}}]",
    "volumes: [{name: a, hostPath: {path: ../x}}]",
    "volumes: [{name: a, hostPath: {path: /x, type: Nothing}}]",
    "volumes: [{name: a, secret: {secretName: s}}]",
    "volumes: [{name: a, configMap: {name: s}}]",
    "volumes: [{name: a, persistentVolumeClaim: {claimName: s}}]",
    "volumes: [{name: a, downwardAPI: {items: [{path: x, fieldRef: {fieldPath: metadata.name}}]}}]",
    "volumes: [{name: a, downwardAPI: {items: [{path: ../x, fieldRef: {fieldPath: metadata.name}}]}}]",
    "volumes: [{name: a, projected: {sources: [{serviceAccountToken: {path: t}}]}}]",
    "volumes: [{name: a, emptyDir: {sizeLimit: -1}}]",
    "volumes: [{name: a, emptyDir: {medium: Nothing}}]",
    "securityContext: {runAsUser: -1}",
    "securityContext: {sysctls: [{name: 'a b', value: x}]}",
    "securityContext: {fsGroupChangePolicy: Never}",
    "hostAliases: [{ip: x, hostnames: [a]}]",
    "readinessGates: [{conditionType: 'a b'}]",
    "topologySpreadConstraints: [{maxSkew: 0, topologyKey: x, whenUnsatisfiable: DoNotSchedule}]",
    "schedulingGates: [{name: a}]",
    "resourceClaims: [{name: a, resourceClaimName: b}]",
    "overhead: {cpu: 1}",
    "runtimeClassName: A_B",
    "preemptionPolicy: Never",
    "os: {name: linux}",
    "os: {name: plan9}",
    "initContainers: [{name: i, image: i}]",
    "initContainers: [{name: c, image: i}]",
    "initContainers: [{name: i, image: i, restartPolicy: Always}]",
    "initContainers: [{name: i, image: i, restartPolicy: Never}]",
    "initContainers: [{name: i, image: i, readinessProbe: {exec: {command: [a]}}}]",
    "ephemeralContainers: [{name: e, image: i}]",
    "resources: {limits: {cpu: 1}}",
    "resources: {limits: {example.com/x: 1}}",
];

/// Fields of a container beside its name.
const CONTAINERS: &[&str] = &[
    "image: ''",
    "image: ' i'",
    "image: i, imagePullPolicy: Always",
    "image: i, imagePullPolicy: Perhaps",
    "image: i, ports: [{containerPort: 80}]",
    "image: i, ports: [{containerPort: 0}]",
    "image: i, ports: [{containerPort: 70000}]",
    "image: i, ports: [{containerPort: 80, hostPort: 80}, {containerPort: 81, hostPort: 80}]",
    "image: i, ports: [{containerPort: 80, protocol: ICMP}]",
    "image: i, ports: [{containerPort: 80, name: a}, {containerPort: 81, name: a}]",
    "image: i, env: [{name: A, value: x}, {name: A, value: y}]",
    "image: i, env: [{name: ''}]",
    "image: i, env: [{name: 'A=B', value: x}]",
    "image: i, env: [{name: A, value: x, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]",
    "image: i, env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.nothing}}}]",
    "image: i, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]",
    "image: i, env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}]",
    "image: i, env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.disks}}}]",
    "image: i, envFrom: [{configMapRef: {name: x}}]",
    "image: i, resources: {limits: {cpu: 1, memory: 1Gi}}",
    "image: i, resources: {limits: {cpu: 1}, requests: {cpu: 2}}",
    "image: i, resources: {limits: {cpu: -1}}",
    "image: i, resources: {limits: {cpu: 1x}}",
    "image: i, resources: {requests: {hugepages-2Mi: 2Mi}}",
    "image: i, resources: {limits: {nothing: 1}}",
    "image: i, volumeMounts: [{name: missing, mountPath: /x}]",
    "image: i, volumeMounts: [{name: '', mountPath: ''}]",
    "image: i, workingDir: relative",
    "image: i, terminationMessagePolicy: Never",
    "image: i, livenessProbe: {httpGet: {port: 80}}",
    "image: i, livenessProbe: {httpGet: {port: 0}}",
    "image: i, livenessProbe: {httpGet: {port: name}, exec: {command: [a]}}",
    "image: i, livenessProbe: {}",
    "image: i, livenessProbe: {exec: {command: []}, successThreshold: 2}",
    "image: i, readinessProbe: {tcpSocket: {port: 80}, periodSeconds: -1}",
    "image: i, lifecycle: {preStop: {sleep: {seconds: 5}}}",
    "image: i, lifecycle: {preStop: {sleep: {seconds: 500}}}",
    "image: i, lifecycle: {postStart: {}}",
    "image: i, securityContext: {privileged: true, allowPrivilegeEscalation: false}",
    "image: i, securityContext: {capabilities: {add: [NET_ADMIN], drop: [ALL]}}",
    "image: i, securityContext: {procMount: Nothing}",
    "image: i, securityContext: {seccompProfile: {type: Localhost}}",
    "image: i, stdin: true, stdinOnce: true, tty: true",
    "image: i, resizePolicy: [{resourceName: cpu, restartPolicy: Perhaps}]",
    "image: i, restartPolicy: Always",
    "image: i, restartPolicy: Never",
    "image: i, restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [1]}}]",
    "image: i, restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [1]}}]",
];

pub(super) fn sets() -> Vec<Set> {
    let texts = manifests();
    let manifests = texts.iter().map(|text| json!({"text": text})).collect();
    let judged = Set {
        keep: only_judgement,
        ..Set::new("pod_manifests.jsonl", "pod.manifest", manifests)
    };
    let sources = texts.iter().flat_map(|text| {
        [
            json!({"text": text, "node": "node-1", "file": "/manifests/a.yaml"}),
            json!({"text": text, "node": "node-1", "url": "http://host/pods"}),
        ]
    });
    // Every third is enough: what differs between the sources differs for all pods.
    let is_kept = |(position, _): &(usize, Value)| position % 3 == 0;
    let sources = sources.enumerate().filter(is_kept).map(|(_, question)| question);
    let stationed = Set {
        keep: with_made_uids,
        ..Set::new("pod_sources.jsonl", "pod.static", sources.collect())
    };
    vec![judged, stationed]
}

fn manifests() -> Vec<String> {
    let pod = |metadata: &str, spec: &str, container: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, {metadata}}}\nspec: {{containers: [{{name: c, {container}}}], {spec}}}\n"
        )
    };
    let mut all: Vec<String> = DOCUMENTS.iter().map(|&text| text.to_owned()).collect();
    // A source gives a namespace to those that have none; here some show what is refused without.
    let namespace = "namespace: default";
    all.extend(METADATA.iter().map(|part| pod(part, "", "image: i")));
    all.extend(SPECS.iter().map(|part| pod(namespace, part, "image: i")));
    all.extend(CONTAINERS.iter().map(|part| pod(namespace, "", part)));
    all.extend((0..GENERATED).map(|seed| manifest(seed).to_string()));
    all.extend((0..GENERATED).map(|seed| mutated_manifest(seed).to_string()));
    all
}

/// Whether a manifest can be read, which fields are wrong and how, and what it refers to.
#[expect(clippy::needless_pass_by_value, reason = "the shape that a set has for all")]
fn only_judgement(answer: Value) -> Value {
    if answer["decoded"] != true {
        return json!({"decoded": false});
    }
    let errors: BTreeSet<String> = answer["errors"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|error| {
            let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
            format!("{} {}", text("field"), text("type"))
        })
        .collect();
    let reference = answer["reference"].as_str().unwrap_or_default();
    json!({"decoded": true, "errors": errors, "reference": reference})
}

/// A UID that the manifest does not give is upstream's own recipe, which is not ours.
fn with_made_uids(mut answer: Value) -> Value {
    for pod in answer["pods"].as_array_mut().into_iter().flatten() {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        if uid.len() == 32 && uid.chars().all(|digit| digit.is_ascii_hexdigit()) {
            pod["metadata"]["uid"] = json!("made");
            pod["metadata"]["annotations"]["kubernetes.io/config.hash"] = json!("made");
        }
    }
    answer
}
