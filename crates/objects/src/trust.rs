//! Trust bundles, put together for the files of pods.
//!
//! Owns which bundles a query selects and the form of the answer: each certificate once, without anything between them, in an order
//! that is the same until the node starts again and differs from node to node, so that no program relies on it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::certificates::v1::ClusterTrustBundle;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use pem::{EncodeConfig, LineEnding, Pem};
use rubelet_ports::api::{Changes, ObjectReader};
use rubelet_ports::{ObjectFailure, TrustQuestion};

use crate::label_selector::{BadOperator, matches};
use crate::pods::Pods;
use crate::table::Key;
use crate::whole_set::{Members, NotListed, Owner, WholeSet};

const FIRST_LIST_LIMIT: Duration = Duration::from_secs(8);
const CERTIFICATE: &str = "CERTIFICATE";
const NONE_MATCHES: &str = "combination of signerName and labelSelector matched zero ClusterTrustBundles";

/// Answers that were given since the last change; they are long, and pods ask for the same ones.
struct Answers {
    kept: Vec<(TrustQuestion, Arc<str>)>,
    limit: usize,
}

impl Answers {
    fn get(&mut self, question: &TrustQuestion) -> Option<Arc<str>> {
        let position = self.kept.iter().position(|(other, _)| other == question)?;
        // The one that was asked for last is the last to go.
        let found = self.kept.remove(position);
        let answer = Arc::clone(&found.1);
        self.kept.push(found);
        Some(answer)
    }

    fn put(&mut self, question: TrustQuestion, answer: Arc<str>) {
        self.kept.retain(|(other, _)| *other != question);
        if self.kept.len() >= self.limit {
            self.kept.remove(0);
        }
        self.kept.push((question, answer));
    }
}

pub(crate) struct TrustBundles {
    reader: Arc<dyn ObjectReader>,
    pods: Arc<Pods>,
    /// Makes the order of certificates this node's own.
    seed: u64,
    /// Held to look up and to note, never across an await.
    answers: Mutex<Answers>,
}

impl TrustBundles {
    /// `limit` is how many different answers are kept.
    pub(crate) fn new(reader: Arc<dyn ObjectReader>, pods: Arc<Pods>, seed: u64, limit: usize) -> Self {
        Self {
            reader,
            pods,
            seed,
            answers: Mutex::new(Answers {
                kept: Vec::new(),
                limit: limit.max(1),
            }),
        }
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        // What is kept is whole after every statement, or missing.
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owner for TrustBundles {
    type Object = ClusterTrustBundle;
    const WORD: &'static str = "trust bundles";

    fn follow(&self) -> Changes<ClusterTrustBundle> {
        self.reader.follow_trust_bundles()
    }

    fn on_change(&self, bundles: &[Arc<ClusterTrustBundle>]) {
        let is_about = |question: &TrustQuestion| bundles.iter().any(|bundle| may_concern(question, bundle));
        self.answers().kept.retain(|(question, _)| !is_about(question));
        self.pods
            .resync_where(|registered| registered.references.trust.iter().any(is_about));
    }
}

/// Labels are not looked at: a bundle may have lost those that were selected.
fn may_concern(question: &TrustQuestion, bundle: &ClusterTrustBundle) -> bool {
    match question {
        TrustQuestion::Named(name) => bundle.metadata.name.as_ref() == Some(name),
        TrustQuestion::Signed { signer, .. } => bundle.spec.signer_name.as_ref() == Some(signer),
    }
}

pub(crate) async fn trust_bundle(
    set: &Arc<WholeSet<TrustBundles>>,
    question: &TrustQuestion,
) -> Result<Arc<str>, ObjectFailure> {
    if let Err(NotListed(error)) = set.listed(FIRST_LIST_LIMIT).await {
        let message = "ClusterTrustBundle informer has not yet synced";
        return Err(ObjectFailure::Unavailable(match error {
            Some(error) => format!("{message}: {error}"),
            None => message.to_owned(),
        }));
    }
    // Under the lock of the members, so that no change comes between looking and keeping.
    set.with(|members| {
        let known = set.owner.answers().get(question);
        if let Some(known) = known {
            return Ok(known);
        }
        let found = select(question, members)?;
        let answer: Arc<str> = normalised(&found, set.owner.seed)
            .map_err(|error| ObjectFailure::Unavailable(format!("while normalizing trust anchors: {error}")))?
            .into();
        set.owner.answers().put(question.clone(), Arc::clone(&answer));
        Ok(answer)
    })
}

fn select<'m>(
    question: &TrustQuestion,
    members: &'m Members<ClusterTrustBundle>,
) -> Result<Vec<&'m str>, ObjectFailure> {
    let found = match question {
        TrustQuestion::Named(name) => {
            let found = members.get(&Key::new("", name)).ok_or_else(|| {
                ObjectFailure::NotFound(format!(
                    "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {name:?} not found"
                ))
            })?;
            vec![found.spec.trust_bundle.as_str()]
        }
        TrustQuestion::Signed { signer, labels } => signed(signer, labels.as_ref(), members)
            .map_err(|error| ObjectFailure::Unavailable(format!("while parsing label selector: {error}")))?,
    };
    if found.is_empty() {
        return Err(ObjectFailure::NotFound(NONE_MATCHES.to_owned()));
    }
    Ok(found)
}

fn signed<'m>(
    signer: &str,
    selector: Option<&LabelSelector>,
    members: &'m Members<ClusterTrustBundle>,
) -> Result<Vec<&'m str>, BadOperator> {
    let none = BTreeMap::new();
    let mut found = Vec::new();
    for bundle in members.values() {
        let labels = bundle.metadata.labels.as_ref().unwrap_or(&none);
        let is_signers = bundle.spec.signer_name.as_deref() == Some(signer);
        if matches(selector, labels)? && is_signers {
            found.push(bundle.spec.trust_bundle.as_str());
        }
    }
    Ok(found)
}

fn normalised(bundles: &[&str], seed: u64) -> Result<String, pem::PemError> {
    let mut certificates = BTreeSet::new();
    for bundle in bundles {
        for block in pem::parse_many(bundle)? {
            if block.tag() == CERTIFICATE {
                certificates.insert(block.into_contents());
            }
        }
    }
    let mut certificates: Vec<Vec<u8>> = certificates.into_iter().collect();
    certificates.sort_by_cached_key(|certificate| {
        let mut hasher = DefaultHasher::new();
        (seed, certificate).hash(&mut hasher);
        hasher.finish()
    });
    Ok(certificate_blocks(certificates))
}

/// Certificates as text, with nothing before, between or after them.
fn certificate_blocks(certificates: impl IntoIterator<Item = Vec<u8>>) -> String {
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    let blocks = certificates.into_iter();
    blocks
        .map(|certificate| pem::encode_config(&Pem::new(CERTIFICATE, certificate), config))
        .collect()
}

/// A chain in its own order, without headers and what stands between the certificates.
pub(crate) fn clean_chain(chain: &str) -> Result<String, pem::PemError> {
    let blocks = pem::parse_many(chain)?;
    Ok(certificate_blocks(blocks.into_iter().map(Pem::into_contents)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(tag: &str, content: &[u8]) -> String {
        let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
        pem::encode_config(&Pem::new(tag, content), config)
    }

    #[test]
    fn each_certificate_is_there_once_and_nothing_else() {
        let check = |bundles: &[&str], expected: &[&[u8]]| {
            let text = normalised(bundles, 7).unwrap();
            let mut found: Vec<Vec<u8>> = pem::parse_many(&text)
                .unwrap()
                .into_iter()
                .map(Pem::into_contents)
                .collect();
            found.sort();
            assert_eq!(found, expected);
            let outside = text.split("-----END CERTIFICATE-----\n");
            assert!(
                outside
                    .into_iter()
                    .all(|part| part.is_empty() || part.starts_with("-----BEGIN"))
            );
        };
        let (a, b) = (block(CERTIFICATE, b"a"), block(CERTIFICATE, b"b"));
        let windows = a.replace('\n', "\r\n");
        let noisy = format!("# a comment\n{b}\ntail without meaning\n{a}");
        let other = block("PRIVATE KEY", b"k");
        let headed = a.replacen("-----\n", "-----\nProc: x\n\n", 1);
        check(&[&a], &[b"a"]);
        check(&[&a, &b], &[b"a", b"b"]);
        check(&[&a, &noisy, &windows], &[b"a", b"b"]);
        check(&[&headed], &[b"a"]);
        check(&[&other, &b], &[b"b"]);
        check(&[""], &[]);
    }

    #[test]
    fn the_order_is_the_nodes_own() {
        let all: String = (0..40u8).map(|number| block(CERTIFICATE, &[number])).collect();
        let once = normalised(&[&all], 1).unwrap();
        assert_eq!(once, normalised(&[&all], 1).unwrap());
        assert_ne!(once, normalised(&[&all], 2).unwrap());
    }

    #[test]
    fn a_chain_keeps_its_order() {
        let (a, b) = (block(CERTIFICATE, b"a"), block(CERTIFICATE, b"b"));
        assert_eq!(
            clean_chain(&format!("x\n{b}\ny\n{a}{b}")).unwrap(),
            format!("{b}{a}{b}")
        );
    }

    #[test]
    fn answers_are_bounded() {
        let question = |name: &str| TrustQuestion::Named(name.to_owned());
        let mut answers = Answers {
            kept: Vec::new(),
            limit: 2,
        };
        answers.put(question("a"), "1".into());
        answers.put(question("b"), "2".into());
        assert_eq!(answers.get(&question("a")).as_deref(), Some("1"));
        answers.put(question("c"), "3".into());
        assert_eq!(answers.get(&question("b")), None);
        assert_eq!(answers.get(&question("a")).as_deref(), Some("1"));
        assert_eq!(answers.get(&question("c")).as_deref(), Some("3"));
        answers.put(question("c"), "4".into());
        assert_eq!(answers.get(&question("c")).as_deref(), Some("4"));
        assert_eq!(answers.kept.len(), 2);
    }
}
