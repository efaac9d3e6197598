//! The files about pulls, as upstream writes them: an intent while a pull is under way, a record of the credentials that could pull an image.
//!
//! Owns the JSON of both, their file names, and how a record grows. Records hold hashes of credentials, never credentials.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff;
use rubelet_model::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::credential::{Candidate, Coordinates, Source, hex_sha256};

const FILE_PREFIX: &str = "sha256-";
const INTENT_KIND: &str = "ImagePullIntent";
const RECORD_KIND: &str = "ImagePulledRecord";
const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// Read and then written anew.
const OLD_API_VERSION: &str = "kubelet.config.k8s.io/v1alpha1";

/// The file of an intent (by the image's name) or of a record (by the runtime's reference).
pub(crate) fn file_name(subject: &str) -> String {
    format!("{FILE_PREFIX}{}", hex_sha256(subject.as_bytes()))
}

pub(crate) fn is_file_name(name: &str) -> bool {
    name.starts_with(FILE_PREFIX) && !name.ends_with(".tmp")
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum RecordError {
    #[error("it is not what this file should hold: {0}")]
    Content(String),
    #[error("it is of the version {0:?}, which is not known")]
    Version(String),
}

/// Something read, and whether the file should be written anew.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decoded<T> {
    pub(crate) value: T,
    pub(crate) is_old: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct IntentFile {
    kind: String,
    api_version: String,
    #[serde(default)]
    image: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RecordFile {
    kind: String,
    api_version: String,
    #[serde(default)]
    last_updated_time: Option<Time>,
    #[serde(default)]
    image_ref: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    credential_mapping: BTreeMap<String, Grants>,
}

/// Who may use an image under one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Grants {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) kubernetes_secrets: Vec<SecretGrant>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) kubernetes_service_accounts: Vec<AccountGrant>,
    /// Every pod of the node.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) node_pods_accessible: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct SecretGrant {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) credential_hash: String,
}

impl SecretGrant {
    pub(crate) fn is_of(&self, secret: &Coordinates) -> bool {
        self.uid == secret.uid && self.namespace == secret.namespace && self.name == secret.name
    }

    pub(crate) fn of(candidate: &Candidate) -> Option<Self> {
        let Source::Secret(secret) = &candidate.source else {
            return None;
        };
        Some(Self {
            uid: secret.uid.clone(),
            namespace: secret.namespace.clone(),
            name: secret.name.clone(),
            credential_hash: candidate.hash.clone(),
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct AccountGrant {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl AccountGrant {
    pub(crate) fn is_of(&self, account: &Coordinates) -> bool {
        self.uid == account.uid && self.namespace == account.namespace && self.name == account.name
    }
}

impl Grants {
    /// The grant of a pull with this credential; a pull without any opens the image to every pod.
    pub(crate) fn of(used: Option<&Candidate>) -> Self {
        let mut grants = Self::default();
        match used.map(|candidate| (&candidate.source, candidate)) {
            None | Some((Source::Node, _)) => grants.node_pods_accessible = true,
            Some((Source::Secret(_), candidate)) => {
                grants.kubernetes_secrets.extend(SecretGrant::of(candidate));
            }
            Some((Source::ServiceAccount(account), _)) => {
                grants.kubernetes_service_accounts.push(AccountGrant {
                    uid: account.uid.clone(),
                    namespace: account.namespace.clone(),
                    name: account.name.clone(),
                });
            }
        }
        grants
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Takes over what is new. A secret that is known gets its new hash.
    fn merge(&mut self, new: &Self) {
        if self.node_pods_accessible {
            return;
        }
        if new.node_pods_accessible {
            *self = new.clone();
            return;
        }
        for grant in &new.kubernetes_secrets {
            let secret = Coordinates {
                namespace: grant.namespace.clone(),
                name: grant.name.clone(),
                uid: grant.uid.clone(),
            };
            self.kubernetes_secrets.retain(|known| !known.is_of(&secret));
            self.kubernetes_secrets.push(grant.clone());
        }
        for grant in &new.kubernetes_service_accounts {
            if !self.kubernetes_service_accounts.contains(grant) {
                self.kubernetes_service_accounts.push(grant.clone());
            }
        }
        let order =
            |namespace: &str, name: &str, uid: &str| (namespace.to_owned(), name.to_owned(), uid.to_owned());
        self.kubernetes_secrets
            .sort_by_key(|grant| order(&grant.namespace, &grant.name, &grant.uid));
        self.kubernetes_service_accounts
            .sort_by_key(|grant| order(&grant.namespace, &grant.name, &grant.uid));
    }
}

/// An image that was pulled by the node's agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PulledRecord {
    pub(crate) image_ref: String,
    pub(crate) updated_at: Timestamp,
    /// By the image's name without tag and digest.
    pub(crate) grants: BTreeMap<String, Grants>,
}

impl PulledRecord {
    pub(crate) fn new(image_ref: &str, now: Timestamp) -> Self {
        Self {
            image_ref: image_ref.to_owned(),
            updated_at: now,
            grants: BTreeMap::new(),
        }
    }

    /// The record with further grants under this name; `None` when they add nothing.
    pub(crate) fn with(&self, name: &str, new: &Grants, now: Timestamp) -> Option<Self> {
        if new.is_empty() {
            return None;
        }
        let mut grown = self.clone();
        grown.grants.entry(name.to_owned()).or_default().merge(new);
        if grown == *self {
            return None;
        }
        grown.updated_at = now;
        Some(grown)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        to_json(&RecordFile {
            kind: RECORD_KIND.to_owned(),
            api_version: API_VERSION.to_owned(),
            last_updated_time: jiff::Timestamp::from_second(self.updated_at.unix_seconds())
                .ok()
                .map(Time),
            image_ref: self.image_ref.clone(),
            credential_mapping: self.grants.clone(),
        })
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Decoded<Self>, RecordError> {
        let file: RecordFile = from_json(bytes)?;
        let is_old = check_header(&file.kind, RECORD_KIND, &file.api_version)?;
        let seconds = file.last_updated_time.map_or(0, |time| time.0.as_second());
        Ok(Decoded {
            value: Self {
                image_ref: file.image_ref,
                updated_at: Timestamp::from_unix_seconds(seconds),
                grants: file.credential_mapping,
            },
            is_old,
        })
    }
}

pub(crate) fn encode_intent(image: &str) -> Vec<u8> {
    to_json(&IntentFile {
        kind: INTENT_KIND.to_owned(),
        api_version: API_VERSION.to_owned(),
        image: image.to_owned(),
    })
}

/// The image of a pull intent.
pub(crate) fn decode_intent(bytes: &[u8]) -> Result<Decoded<String>, RecordError> {
    let file: IntentFile = from_json(bytes)?;
    let is_old = check_header(&file.kind, INTENT_KIND, &file.api_version)?;
    Ok(Decoded {
        value: file.image,
        is_old,
    })
}

fn to_json(file: &impl Serialize) -> Vec<u8> {
    // Texts, lists and maps of texts are always JSON.
    let mut json = serde_json::to_vec(file).unwrap_or_default();
    json.push(b'\n');
    json
}

fn from_json<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Result<T, RecordError> {
    serde_json::from_slice(bytes).map_err(|error| RecordError::Content(error.to_string()))
}

fn check_header(kind: &str, expected: &str, api_version: &str) -> Result<bool, RecordError> {
    if kind != expected {
        return Err(RecordError::Content(format!(
            "its kind is {kind:?}, not {expected}"
        )));
    }
    match api_version {
        API_VERSION => Ok(false),
        OLD_API_VERSION => Ok(true),
        other => Err(RecordError::Version(other.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credential::RegistryUser;

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_729_513_600);

    fn coordinates(name: &str, uid: &str) -> Coordinates {
        Coordinates {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        }
    }

    fn secret(name: &str, password: &str) -> Candidate {
        Candidate::new(
            RegistryUser::new("u", password),
            Source::Secret(coordinates(name, "1")),
        )
    }

    fn record(entries: &[(&str, Option<&Candidate>)]) -> PulledRecord {
        entries
            .iter()
            .fold(PulledRecord::new("sha256:abc", NOW), |record, (name, used)| {
                record.with(name, &Grants::of(*used), NOW).unwrap()
            })
    }

    #[test]
    fn files_are_upstreams() {
        assert_eq!(
            file_name("testimageref"),
            "sha256-b3c0cc4278800b03a308ceb2611161430df571ca733122f0a40ac8b9792a9064"
        );
        assert!(
            is_file_name(&file_name("x"))
                && !is_file_name("sha256-1.tmp")
                && !is_file_name(".sha256-1.0.tmp")
        );
        assert_eq!(
            String::from_utf8(encode_intent("a.io/b:1")).unwrap(),
            "{\"kind\":\"ImagePullIntent\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"image\":\"a.io/b:1\"}\n"
        );
        let record = record(&[("a.io/b", None)]);
        assert_eq!(
            String::from_utf8(record.encode()).unwrap(),
            "{\"kind\":\"ImagePulledRecord\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"lastUpdatedTime\":\
             \"2024-10-21T12:26:40Z\",\"imageRef\":\"sha256:abc\",\"credentialMapping\":{\"a.io/b\":{\"nodePodsAccessible\":true}}}\n"
        );
    }

    #[test]
    fn what_was_written_is_read() {
        let account = Candidate::new(
            RegistryUser::default(),
            Source::ServiceAccount(coordinates("sa", "2")),
        );
        let record = record(&[("a", Some(&secret("s", "p"))), ("a", Some(&account)), ("b", None)]);
        let read = PulledRecord::decode(&record.encode()).unwrap();
        assert_eq!((read.value, read.is_old), (record, false));
        let intent = decode_intent(&encode_intent("x:1")).unwrap();
        assert_eq!((intent.value.as_str(), intent.is_old), ("x:1", false));
        let old = br#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1alpha1","lastUpdatedTime":null,"imageRef":"r"}"#;
        let old = PulledRecord::decode(old).unwrap();
        assert!(old.is_old && old.value.grants.is_empty());
    }

    #[test]
    fn what_is_broken_is_not_guessed() {
        for text in [
            "",
            "{}",
            "garbage",
            r#"{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1"}"#,
            r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v2"}"#,
            r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","unknown":1}"#,
        ] {
            assert!(PulledRecord::decode(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_record_grows_and_everybody_is_the_end_of_it() {
        let one = record(&[("a", Some(&secret("s2", "p")))]);
        assert_eq!(
            one.with("a", &Grants::of(Some(&secret("s2", "p"))), NOW),
            None,
            "nothing new"
        );
        assert_eq!(one.with("a", &Grants::default(), NOW), None, "nothing at all");
        let later = NOW.plus(std::time::Duration::from_secs(5));
        let two = one
            .with("a", &Grants::of(Some(&secret("s1", "q"))), later)
            .unwrap();
        assert_eq!(two.updated_at, later);
        let names: Vec<_> = two.grants["a"]
            .kubernetes_secrets
            .iter()
            .map(|grant| grant.name.as_str())
            .collect();
        assert_eq!(names, ["s1", "s2"], "in order");
        let changed = two
            .with("a", &Grants::of(Some(&secret("s1", "new"))), later)
            .unwrap();
        let grants = &changed.grants["a"].kubernetes_secrets;
        assert_eq!(
            (grants.len(), &grants[0].credential_hash),
            (2, &secret("s1", "new").hash)
        );
        let open = changed.with("a", &Grants::of(None), later).unwrap();
        assert_eq!(open.grants["a"], Grants::of(None));
        assert_eq!(open.with("a", &Grants::of(Some(&secret("s3", "p"))), later), None);
        assert!(!String::from_utf8(changed.encode()).unwrap().contains("new"));
    }
}
