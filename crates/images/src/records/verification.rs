//! Whether a pod may use an image that is on the node without a check of its credentials by the registry.
//!
//! Owns `imagePullCredentialsVerificationPolicy` and the comparison with a record. It decides; nothing is read or written here.

use std::collections::BTreeSet;

use crate::credential::{Candidate, Source};
use crate::records::record::{Grants, PulledRecord, SecretGrant};
use rubelet_model::image_reference::without_tag;

/// A record that is matched by ever new secrets is not written anew beyond this many.
const MAX_LEARNED_SECRETS: usize = 100;

/// `imagePullCredentialsVerificationPolicy`, with its list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerificationPolicy {
    NeverVerify,
    NeverVerifyPreloadedImages,
    NeverVerifyAllowlistedImages(Allowlist),
    AlwaysVerify,
}

/// `preloadedImagesVerificationAllowlist`: names of images, and beginnings of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowlist {
    names: BTreeSet<String>,
    prefixes: Vec<String>,
}

impl Allowlist {
    /// The patterns were checked with the configuration.
    #[must_use]
    pub fn new(patterns: &[String]) -> Self {
        let mut list = Self::default();
        for pattern in patterns {
            match pattern.strip_suffix('*') {
                Some(prefix) => list.prefixes.push(prefix.to_owned()),
                None => {
                    list.names.insert(pattern.clone());
                }
            }
        }
        list
    }

    fn has(&self, name: &str) -> bool {
        self.names.contains(name) || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

impl VerificationPolicy {
    /// By the names of the configuration; `None` for others.
    #[must_use]
    pub fn new(policy: &str, allowlist: &[String]) -> Option<Self> {
        Some(match policy {
            "NeverVerify" => Self::NeverVerify,
            "NeverVerifyPreloadedImages" => Self::NeverVerifyPreloadedImages,
            "NeverVerifyAllowlistedImages" => Self::NeverVerifyAllowlistedImages(Allowlist::new(allowlist)),
            "AlwaysVerify" => Self::AlwaysVerify,
            _ => return None,
        })
    }

    fn demands(&self, image: &str, is_pulled_by_us: bool) -> bool {
        match self {
            Self::NeverVerify => false,
            Self::NeverVerifyPreloadedImages => is_pulled_by_us,
            Self::NeverVerifyAllowlistedImages(list) => !list.has(without_tag(image)),
            Self::AlwaysVerify => true,
        }
    }
}

/// What is known of an image that is on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known<'r> {
    /// There is no record: it was there before, or was not pulled by the kubelet.
    Nothing,
    /// A pull was begun, or there is a record that cannot be read.
    OnlyThatWePulled,
    Record(&'r PulledRecord),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The policy asks for nothing.
    Exempt,
    /// Every pod of this node may use it.
    Granted,
    /// The registry has to be asked.
    MustPull,
    /// It depends on the pod's credentials.
    Compare(Grants),
}

/// The verdict without the pod's credentials.
pub(crate) fn verdict(policy: &VerificationPolicy, image: &str, known: Known<'_>) -> Verdict {
    let is_pulled_by_us = match known {
        Known::Nothing => false,
        Known::OnlyThatWePulled | Known::Record(_) => true,
    };
    if !policy.demands(image, is_pulled_by_us) {
        return Verdict::Exempt;
    }
    let Known::Record(record) = known else {
        return Verdict::MustPull;
    };
    match record.grants.get(without_tag(image)) {
        Some(grants) if grants.node_pods_accessible => Verdict::Granted,
        Some(grants)
            if grants.kubernetes_secrets.is_empty() && grants.kubernetes_service_accounts.is_empty() =>
        {
            Verdict::MustPull
        }
        Some(grants) => Verdict::Compare(grants.clone()),
        None => Verdict::MustPull,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Granted,
    /// It fits, and the record should know this secret too: next time it is found even if it changes.
    GrantedAndLearned(SecretGrant),
    Refused,
}

/// Whether one of the pod's own credentials stands in the record, by its content or by the object that holds it.
pub(crate) fn compare(grants: &Grants, candidates: &[Candidate]) -> Comparison {
    let may_learn = grants.kubernetes_secrets.len() < MAX_LEARNED_SECRETS;
    for candidate in candidates {
        let Source::Secret(secret) = &candidate.source else {
            continue;
        };
        for known in &grants.kubernetes_secrets {
            let same_content = !known.credential_hash.is_empty() && known.credential_hash == candidate.hash;
            let same_object = known.is_of(secret);
            match (same_content, same_object) {
                (true, true) => return Comparison::Granted,
                (true, false) | (false, true) if may_learn => {
                    return SecretGrant::of(candidate)
                        .map_or(Comparison::Granted, Comparison::GrantedAndLearned);
                }
                (true, false) => return Comparison::Granted,
                // The object's content changed and nothing more is learned: the registry decides.
                (false, _) => {}
            }
        }
    }
    // One service account per pod: the first.
    let account = candidates.iter().find_map(|candidate| match &candidate.source {
        Source::ServiceAccount(account) => Some(account),
        Source::Node | Source::Secret(_) => None,
    });
    let mut known = grants.kubernetes_service_accounts.iter();
    match account {
        Some(account) if known.any(|grant| grant.is_of(account)) => Comparison::Granted,
        Some(_) | None => Comparison::Refused,
    }
}

#[cfg(test)]
mod tests {
    use rubelet_model::Timestamp;

    use super::*;
    use crate::credential::{Coordinates, RegistryUser};

    fn coordinates(name: &str) -> Coordinates {
        Coordinates {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            uid: format!("uid of {name}"),
        }
    }

    fn secret(name: &str, password: &str) -> Candidate {
        Candidate::new(
            RegistryUser::new("u", password),
            Source::Secret(coordinates(name)),
        )
    }

    fn account(name: &str) -> Candidate {
        Candidate::new(
            RegistryUser::new("u", "p"),
            Source::ServiceAccount(coordinates(name)),
        )
    }

    fn record(used: Option<&Candidate>) -> PulledRecord {
        let record = PulledRecord::new("ref", Timestamp::EPOCH);
        record
            .with("r.io/a", &Grants::of(used), Timestamp::EPOCH)
            .unwrap()
    }

    #[test]
    fn policies() {
        let listed = ["r.io/b".to_owned(), "s.io/team/*".to_owned()];
        let check = |policy: &str, image: &str, known: Known<'_>, expected: Verdict| {
            let policy = VerificationPolicy::new(policy, &listed).unwrap();
            assert_eq!(
                verdict(&policy, image, known),
                expected,
                "{policy:?} {image} {known:?}"
            );
        };
        let open = record(None);
        let closed = record(Some(&secret("s", "p")));
        let compare = || Verdict::Compare(Grants::of(Some(&secret("s", "p"))));
        for known in [Known::Nothing, Known::OnlyThatWePulled, Known::Record(&closed)] {
            check("NeverVerify", "r.io/a:1", known, Verdict::Exempt);
        }
        check(
            "NeverVerifyPreloadedImages",
            "r.io/a:1",
            Known::Nothing,
            Verdict::Exempt,
        );
        check("AlwaysVerify", "r.io/a:1", Known::Nothing, Verdict::MustPull);
        check(
            "NeverVerifyAllowlistedImages",
            "r.io/a:1",
            Known::Nothing,
            Verdict::MustPull,
        );
        for image in ["r.io/b", "r.io/b:1", "s.io/team/x:1", "s.io/team/x/y"] {
            check(
                "NeverVerifyAllowlistedImages",
                image,
                Known::OnlyThatWePulled,
                Verdict::Exempt,
            );
        }
        for image in ["r.io/b/c", "s.io/team", "s.io/teams/x"] {
            check(
                "NeverVerifyAllowlistedImages",
                image,
                Known::Nothing,
                Verdict::MustPull,
            );
        }
        for policy in [
            "NeverVerifyPreloadedImages",
            "AlwaysVerify",
            "NeverVerifyAllowlistedImages",
        ] {
            check(policy, "r.io/a:1", Known::OnlyThatWePulled, Verdict::MustPull);
            check(policy, "r.io/a:1", Known::Record(&open), Verdict::Granted);
            check(policy, "r.io/a:1", Known::Record(&closed), compare());
            check(policy, "q.io/a", Known::Record(&open), Verdict::MustPull);
        }
        assert_eq!(VerificationPolicy::new("Sometimes", &[]), None);
    }

    #[test]
    fn a_pods_credentials_are_found_by_content_or_by_object() {
        let grants = Grants::of(Some(&secret("s", "p")));
        let learned =
            |candidate: &Candidate| Comparison::GrantedAndLearned(SecretGrant::of(candidate).unwrap());
        let check = |candidates: &[Candidate], expected: Comparison| {
            assert_eq!(compare(&grants, candidates), expected, "{candidates:?}");
        };
        check(&[], Comparison::Refused);
        check(&[secret("s", "p")], Comparison::Granted);
        check(&[secret("other", "p")], learned(&secret("other", "p")));
        check(&[secret("s", "changed")], learned(&secret("s", "changed")));
        check(&[secret("other", "q")], Comparison::Refused);
        check(&[secret("other", "q"), secret("s", "p")], Comparison::Granted);
        check(&[account("s")], Comparison::Refused);
        check(
            &[Candidate::new(RegistryUser::new("u", "p"), Source::Node)],
            Comparison::Refused,
        );

        let grants = Grants::of(Some(&account("a")));
        assert_eq!(compare(&grants, &[account("a")]), Comparison::Granted);
        assert_eq!(
            compare(&grants, &[account("b"), account("a")]),
            Comparison::Refused
        );
        assert_eq!(compare(&grants, &[secret("a", "p")]), Comparison::Refused);
    }

    #[test]
    fn a_hash_that_is_missing_fits_nothing() {
        let mut grants = Grants::of(Some(&secret("s", "p")));
        grants.kubernetes_secrets[0].credential_hash.clear();
        let mut nameless = secret("other", "p");
        nameless.hash.clear();
        assert_eq!(compare(&grants, &[nameless]), Comparison::Refused);
    }

    #[test]
    fn a_full_record_learns_no_more() {
        let secrets = (0..MAX_LEARNED_SECRETS).map(|number| secret(&format!("s{number}"), "p"));
        let grants = Grants {
            kubernetes_secrets: secrets.filter_map(|secret| SecretGrant::of(&secret)).collect(),
            ..Grants::default()
        };
        assert_eq!(compare(&grants, &[secret("new", "p")]), Comparison::Granted);
        assert_eq!(compare(&grants, &[secret("s1", "changed")]), Comparison::Refused);
    }
}
