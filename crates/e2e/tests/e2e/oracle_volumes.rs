//! Generated volumes that show objects of the API server: files, modes, owners and refusals are upstream's.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use rubelet_model::observation::PodUid;
use rubelet_model::volume_step::{PayloadFile, VolumeAction};
use rubelet_resources::Rules;
use rubelet_storage::{
    Absence, Answer, BundleNeed, Credentials, ObjectAnswers, ObjectNeeds, PodLayout, StorageGates,
    StorageNode, plan_set_up,
};
use rubelet_testbed::oracle::Oracle;
use serde_json::{Map, Value, json};

use crate::oracle_ours::{Differences, Seeded, seeds};
use crate::oracle_resources::node_facts;

const CASES: u64 = 1_500;
const GATE: &str = "AtomicWriteVolumeUserFields";

const KEYS: &[&str] = &["a", "b.conf", "C_d-1", ".hidden", "token"];
const NAMES: &[&str] = &["one", "two", "gone"];
/// None is a directory of another, and no two are different words for one: where they are, upstream takes any of them.
const PATHS: &[&str] = &["a", "b.conf", "d/e", "d//f", "./g", "h/i/j", "token", "x"];
/// Upstream cleans those of fields before it compares paths, and others only after it.
const CLEAN_PATHS: &[&str] = &["a", "b.conf", "d/e", "h/i/j", "token", "x"];
const BAD_PATHS: &[&str] = &["..data", "/root", "p/../q", "..", "", "..data/x"];

/// What one case is made of. Of several wrong paths upstream names any, so that there is one at most.
struct Case<'a> {
    random: &'a mut Seeded,
    has_bad_path: bool,
}

impl Case<'_> {
    fn maybe(&mut self, odds: usize, values: &[i64]) -> Value {
        match self.random.below(odds) {
            0 => json!(self.random.one_of(values)),
            _ => Value::Null,
        }
    }

    fn mode(&mut self) -> Value {
        self.maybe(3, &[0o400, 0o600, 0o644, 0o777, 0])
    }

    fn user(&mut self) -> Value {
        self.maybe(4, &[0, 7, 1000])
    }

    fn optional(&mut self) -> Value {
        self.random
            .one_of(&[json!(true), json!(false), Value::Null])
            .clone()
    }

    fn path(&mut self) -> Value {
        if !self.has_bad_path && self.random.below(60) == 0 {
            self.has_bad_path = true;
            return json!(self.random.one_of(BAD_PATHS));
        }
        json!(self.random.one_of(PATHS))
    }

    fn items(&mut self) -> Value {
        if self.random.below(2) == 0 {
            return Value::Null;
        }
        let items = (0..self.random.below(4)).map(|_| {
            json!({
                "key": self.random.one_of(KEYS), "path": self.path(), "mode": self.mode(), "user": self.user(),
            })
        });
        items.collect()
    }

    fn keys(&mut self, name_field: &str) -> Value {
        let mut keys = json!({ "items": self.items(), "optional": self.optional() });
        keys[name_field] = json!(self.random.one_of(NAMES));
        keys
    }

    fn downward(&mut self) -> Value {
        let fields = [
            "metadata.name",
            "metadata.namespace",
            "metadata.labels",
            "metadata.labels['app']",
        ];
        let items: Value = (0..self.random.below(3))
            .map(|_| {
                json!({
                    "path": self.random.one_of(CLEAN_PATHS), "mode": self.mode(), "user": self.user(),
                    "fieldRef": { "fieldPath": self.random.one_of(&fields) },
                })
            })
            .collect();
        json!({ "items": items })
    }

    fn source(&mut self) -> Value {
        match self.random.below(7) {
            0 | 1 => json!({ "configMap": self.keys("name") }),
            2 => json!({ "secret": self.keys("name") }),
            3 => json!({ "downwardAPI": self.downward() }),
            4 => {
                let audience = *self.random.one_of(&["", "vault", "refused"]);
                let seconds = self.maybe(2, &[600, 3607]);
                json!({ "serviceAccountToken": {
                    "path": self.path(), "audience": audience, "expirationSeconds": seconds, "user": self.user(),
                } })
            }
            5 => {
                let field = *self.random.one_of(&["name", "signerName"]);
                let mut bundle =
                    json!({ "path": self.path(), "optional": self.optional(), "user": self.user() });
                bundle[field] = json!(self.random.one_of(&["root", "gone"]));
                json!({ "clusterTrustBundle": bundle })
            }
            _ => {
                let mut certificate =
                    json!({ "signerName": "x/y", "keyType": "ED25519", "user": self.user() });
                for field in ["keyPath", "certificateChainPath", "credentialBundlePath"] {
                    if self.random.below(2) == 0 {
                        certificate[field] = json!(self.random.one_of(PATHS));
                    }
                }
                json!({ "podCertificate": certificate })
            }
        }
    }

    fn volume(&mut self) -> Value {
        let kind = *self
            .random
            .one_of(&["configMap", "secret", "projected", "projected", "downwardAPI"]);
        let mut source = match kind {
            "configMap" => self.keys("name"),
            "secret" => self.keys("secretName"),
            "downwardAPI" => self.downward(),
            _ => {
                let sources: Value = (0..self.random.below(5)).map(|_| self.source()).collect();
                json!({ "sources": sources })
            }
        };
        source["defaultMode"] = self.mode();
        source["defaultUser"] = self.user();
        let mut volume = json!({ "name": "v" });
        volume[kind] = source;
        volume
    }

    fn container(&mut self, name: &str) -> Value {
        let user = self.maybe(2, &[1000, 7]);
        json!({ "name": name, "image": "i", "securityContext": { "runAsUser": user },
            "volumeMounts": [{ "name": "v", "mountPath": "/v" }] })
    }

    fn pod(&mut self) -> Value {
        let mut containers = vec![self.container("a")];
        if self.random.below(3) == 0 {
            containers.push(self.container("b"));
        }
        let mut spec = json!({
            "containers": containers, "volumes": [self.volume()], "serviceAccountName": "s",
            "securityContext": { "runAsUser": self.maybe(3, &[1000, 7, 0]), "fsGroup": self.maybe(3, &[2000, 0]) },
        });
        if self.random.below(4) == 0 {
            spec["initContainers"] = json!([self.container("i")]);
        }
        if self.random.below(6) == 0 {
            spec["ephemeralContainers"] = json!([self.container("e")]);
        }
        json!({
            "metadata": { "name": "p", "namespace": "n", "uid": "u", "labels": { "app": "web", "b": "" } },
            "spec": spec,
        })
    }

    fn object(&mut self, field: &str, text: impl Fn(&str) -> Value) -> Value {
        let mut data = Map::new();
        for key in KEYS.iter().take(4) {
            if self.random.below(2) == 0 {
                data.insert((*key).to_owned(), text(&format!("{field} {key}")));
            }
        }
        Value::Object(data)
    }

    fn input(&mut self) -> Value {
        let bytes = |text: &str| json!(ByteString(text.as_bytes().to_vec()));
        let mut maps = Map::new();
        let mut secrets = Map::new();
        for name in ["one", "two"] {
            let mut map = json!({ "data": self.object("text", |text| json!(text)) });
            if self.random.below(2) == 0 {
                map["binaryData"] = self.object("binary", bytes);
            }
            maps.insert(name.to_owned(), map);
            secrets.insert(name.to_owned(), json!({ "data": self.object("secret", bytes) }));
        }
        json!({
            "pod": self.pod(), "configMaps": maps, "secrets": secrets, "bundles": { "root": "anchors" },
            "gates": { GATE: self.random.below(3) == 0 },
        })
    }
}

fn not_found<T>(message: String) -> Answer<T> {
    Err(Absence {
        message,
        is_not_found: true,
    })
}

/// The same answers that the oracle gives to upstream.
fn answers(pod: &Pod, input: &Value) -> Result<ObjectAnswers> {
    let needs = ObjectNeeds::of(pod);
    let mut answers = ObjectAnswers::default();
    for name in needs.config_maps {
        let answer = match input["configMaps"].get(&name) {
            Some(map) => Ok(Arc::new(serde_json::from_value::<ConfigMap>(map.clone())?)),
            None => not_found(format!("configmap {name:?} not found")),
        };
        answers.config_maps.insert(name, answer);
    }
    for name in needs.secrets {
        let answer = match input["secrets"].get(&name) {
            Some(secret) => Ok(Arc::new(serde_json::from_value::<Secret>(secret.clone())?)),
            None => not_found(format!("secret {name:?} not found")),
        };
        answers.secrets.insert(name, answer);
    }
    for need in needs.tokens {
        let audience = need.audience.as_deref().unwrap_or_default();
        let answer = match audience {
            "refused" => Err(Absence {
                message: "no token".to_owned(),
                is_not_found: false,
            }),
            _ => Ok(format!("token for {audience:?} of {} s", need.expiration_seconds)),
        };
        answers.tokens.insert(need, answer);
    }
    for need in needs.bundles {
        let (BundleNeed::Named(name) | BundleNeed::Signed { signer: name, .. }) = &need;
        let answer = match input["bundles"].get(name).and_then(Value::as_str) {
            Some(anchors) => Ok(Arc::from(anchors)),
            None => not_found(format!("no bundle {name:?}")),
        };
        answers.bundles.push((need, answer));
    }
    for need in needs.certificates {
        let found = Credentials {
            key: b"key\n".to_vec(),
            chain: format!("chain of {} {}\n", need.volume, need.source).into_bytes(),
        };
        answers.certificates.insert(need, Ok(found));
    }
    Ok(answers)
}

fn node(has_file_users: bool) -> StorageNode {
    StorageNode {
        rules: Rules::default(),
        facts: node_facts(),
        host_ips: Vec::new(),
        is_selinux_enabled: false,
        gates: StorageGates {
            file_users: has_file_users,
            ..StorageGates::default()
        },
    }
}

/// Files as they are on disk once the group has them.
fn written(files: &[PayloadFile], group: Option<u32>) -> Value {
    let mut output = json!({});
    let mut names = BTreeSet::new();
    for file in files {
        let path = file.path.display().to_string();
        let name = path.split('/').next().unwrap_or_default().to_owned();
        names.insert(name);
        let mode = file.mode | group.map_or(0, |_| 0o440);
        output["files"][path] = json!({
            "mode": format!("{mode:o}"), "owner": file.owner.unwrap_or(0), "group": group.unwrap_or(0),
            "content": ByteString(file.content.clone()),
        });
    }
    if !names.is_empty() {
        output["names"] = json!(names);
    }
    output
}

fn ours(input: &Value) -> Result<Value> {
    let pod: Pod = serde_json::from_value(input["pod"].clone())?;
    let node = node(input["gates"][GATE] == json!(true));
    let layout = PodLayout::new(Path::new("/pods"), &PodUid::from("u"));
    let mut volumes = plan_set_up(&pod, &node, &layout, &answers(&pod, input)?).volumes;
    let volume = volumes.pop().context("no volume")?;
    let steps = match volume.plan {
        Ok(steps) => steps,
        Err(error) => return Ok(json!({ "error": error.to_string() })),
    };
    match steps.last().map(|step| &step.action) {
        Some(VolumeAction::WritePayload { files, ownership, .. }) => {
            Ok(written(files, ownership.map(|ownership| ownership.group)))
        }
        other => anyhow::bail!("{other:?} is the last step"),
    }
}

#[test]
fn files_of_volumes_are_upstreams() -> Result<()> {
    let input = |seed| {
        Case {
            random: &mut Seeded::new(seed),
            has_bad_path: false,
        }
        .input()
    };
    let inputs: Vec<Value> = seeds(CASES).map(input).collect();
    let answers = Oracle::start()?.ask_all("volume.files", inputs.clone())?;
    let mut differences = Differences::default();
    let (mut refused, mut with_files) = (0, 0);
    for ((seed, input), answer) in seeds(CASES).zip(&inputs).zip(answers) {
        let upstream = answer?;
        refused += usize::from(upstream.get("error").is_some());
        with_files += usize::from(upstream.get("files").is_some());
        differences.compare(seed, input, &upstream, &ours(input)?);
    }
    differences.assert_none();
    assert!(
        refused > 0 && with_files > 0,
        "{refused} refused, {with_files} with files"
    );
    Ok(())
}
