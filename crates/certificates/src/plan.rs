//! Whether to request a certificate now. Pure: time, randomness and the situation are arguments.

use std::fmt;
use std::time::Duration;

use k8s_openapi::jiff;
use rubelet_model::Timestamp;
use rubelet_ports::Randomness;

use crate::facts::CertificateFacts;
use crate::wanted::Wanted;

const FIRST_RETRY: Duration = Duration::from_secs(2);
const LAST_RETRY: Duration = Duration::from_secs(32);
/// The request was denied; a new one every half minute would fill the list of requests.
const LAST_RETRY_REFUSED: Duration = Duration::from_mins(15);

pub(crate) struct Situation<'a> {
    pub(crate) now: Timestamp,
    pub(crate) wanted: &'a Wanted,
    pub(crate) in_use: Option<&'a CertificateFacts>,
    /// Of the certificate in use.
    pub(crate) deadline: Option<Timestamp>,
    /// The contents that were requested for the certificate in use, when it was issued to us.
    pub(crate) issued_for: Option<&'a Wanted>,
    /// The certificate in use is one that came with the kubeconfig.
    pub(crate) is_inline: bool,
    pub(crate) rotates: bool,
    pub(crate) has_bootstrap: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Request(Reason),
    /// For this long.
    Wait(Duration),
    /// A certificate is needed, and the settings allow no way to request one.
    Helpless(Reason),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Missing,
    Expired(Timestamp),
    Lacking(String),
    Inline,
    Due,
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => formatter.write_str("there is none"),
            Self::Expired(at) => write!(formatter, "it expired at {}", spelled(*at)),
            Self::Lacking(what) => formatter.write_str(what),
            Self::Inline => {
                formatter.write_str("it stands in the kubeconfig and is replaced by the node's own")
            }
            Self::Due => formatter.write_str("it is due for rotation"),
        }
    }
}

pub(crate) fn plan(situation: &Situation<'_>) -> Next {
    let now = situation.now;
    let gone = match situation.in_use {
        None => Some(Reason::Missing),
        Some(facts) if facts.is_expired(now) => Some(Reason::Expired(facts.not_after)),
        Some(_) => None,
    };
    let may_request = situation.rotates || situation.has_bootstrap;
    let facts = match (gone, situation.in_use) {
        (Some(reason), _) if may_request => return Next::Request(reason),
        (Some(reason), _) => return Next::Helpless(reason),
        (None, Some(facts)) => facts,
        // Without a certificate it is missing.
        (None, None) => return Next::Helpless(Reason::Missing),
    };
    if !situation.rotates {
        return Next::Wait(facts.not_after.since(now) + Duration::from_secs(1));
    }
    if situation.is_inline {
        return Next::Request(Reason::Inline);
    }
    // A signer that leaves something out does not get the same request again and again.
    if situation.issued_for != Some(situation.wanted)
        && let Some(what) = situation.wanted.lacking(facts)
    {
        return Next::Request(Reason::Lacking(what));
    }
    match situation.deadline {
        Some(deadline) if now < deadline => Next::Wait(deadline.since(now)),
        _ => Next::Request(Reason::Due),
    }
}

/// A random time between 70 and 90 % of the certificate's validity, so that nodes that were made together do not renew together.
///
/// A signer dates certificates back, so that one that is valid for minutes may be due before it arrives. When such a certificate was
/// issued just now, the rest of its validity counts.
pub(crate) fn rotation_deadline(
    facts: &CertificateFacts,
    issued_at: Option<Timestamp>,
    randomness: &dyn Randomness,
) -> Timestamp {
    let within = |from: Timestamp| {
        let validity = facts.not_after.since(from);
        from.plus(validity * 7 / 10)
            .plus(randomness.part_of(validity * 2 / 10))
    };
    let deadline = within(facts.not_before);
    match issued_at {
        Some(now) if deadline <= now => within(now).max(now.plus(Duration::from_secs(1))),
        _ => deadline,
    }
}

/// The pause after this many failures in a row.
pub(crate) fn retry_pause(failures: u32, is_refused: bool, randomness: &dyn Randomness) -> Duration {
    let last = if is_refused {
        LAST_RETRY_REFUSED
    } else {
        LAST_RETRY
    };
    let doublings = failures.saturating_sub(1).min(16);
    let pause = (FIRST_RETRY * (1 << doublings)).min(last);
    pause + randomness.part_of(pause / 10)
}

pub(crate) fn spelled(at: Timestamp) -> String {
    jiff::Timestamp::from_second(at.unix_seconds())
        .map_or_else(|_| "an unknown time".to_owned(), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Dice(u64);

    impl Randomness for Dice {
        fn number(&self) -> u64 {
            self.0
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_seconds(seconds)
    }

    fn facts(from: i64, to: i64) -> CertificateFacts {
        CertificateFacts {
            not_before: at(from),
            not_after: at(to),
            common_name: "system:node:n".to_owned(),
            organizations: ["system:nodes".to_owned()].into(),
            dns_names: std::collections::BTreeSet::new(),
            ip_addresses: std::collections::BTreeSet::new(),
            public_key: Vec::new(),
        }
    }

    fn check(adjust: impl FnOnce(&mut Situation<'_>), expected: &Next) {
        let wanted = Wanted::client("n");
        let valid = facts(0, 1000);
        let mut situation = Situation {
            now: at(100),
            wanted: &wanted,
            in_use: Some(&valid),
            deadline: Some(at(800)),
            issued_for: None,
            is_inline: false,
            rotates: true,
            has_bootstrap: false,
        };
        adjust(&mut situation);
        assert_eq!(plan(&situation), *expected);
    }

    #[test]
    fn a_certificate_is_asked_for_when_it_is_needed_and_may_be_had() {
        let wait = |seconds| Next::Wait(Duration::from_secs(seconds));
        check(|_| {}, &wait(700));
        check(|now| now.now = at(800), &Next::Request(Reason::Due));
        check(|now| now.in_use = None, &Next::Request(Reason::Missing));
        check(
            |now| now.now = at(1001),
            &Next::Request(Reason::Expired(at(1000))),
        );
        check(|now| now.is_inline = true, &Next::Request(Reason::Inline));
        // Without rotation only bootstrap gets one.
        check(|now| now.rotates = false, &wait(901));
        check(|now| (now.rotates, now.is_inline) = (false, true), &wait(901));
        check(
            |now| (now.rotates, now.in_use) = (false, None),
            &Next::Helpless(Reason::Missing),
        );
        check(
            |now| (now.rotates, now.has_bootstrap, now.in_use) = (false, true, None),
            &Next::Request(Reason::Missing),
        );
        check(
            |now| (now.rotates, now.now) = (false, at(1001)),
            &Next::Helpless(Reason::Expired(at(1000))),
        );
    }

    #[test]
    fn a_signer_that_leaves_something_out_is_asked_once() {
        let other = Wanted::client("m");
        let lacking = "it is for \"system:node:n\" and not for \"system:node:m\"";
        let expected = Next::Request(Reason::Lacking(lacking.to_owned()));
        let wanted = &other;
        let valid = facts(0, 1000);
        let situation = |issued_for| Situation {
            now: at(100),
            wanted,
            in_use: Some(&valid),
            deadline: Some(at(800)),
            issued_for,
            is_inline: false,
            rotates: true,
            has_bootstrap: false,
        };
        assert_eq!(plan(&situation(None)), expected);
        assert_eq!(
            plan(&situation(Some(wanted))),
            Next::Wait(Duration::from_secs(700))
        );
    }

    #[test]
    fn retries_double_up_to_a_limit_that_depends_on_who_said_no() {
        let pauses = |is_refused| -> Vec<u64> {
            (1..=11)
                .map(|failures| retry_pause(failures, is_refused, &Dice(0)).as_secs())
                .collect()
        };
        assert_eq!(pauses(false), [2, 4, 8, 16, 32, 32, 32, 32, 32, 32, 32]);
        assert_eq!(pauses(true), [2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900]);
    }

    proptest! {
        #[test]
        fn deadlines_lie_between_70_and_90_percent_of_life(life in 10i64..400_000_000, dice: u64) {
            let deadline = rotation_deadline(&facts(1000, 1000 + life), None, &Dice(dice)).since(at(1000));
            let share = deadline.as_secs_f64() / life as f64;
            prop_assert!((0.6999..=0.9).contains(&share), "{share}");
        }

        #[test]
        fn a_short_lived_one_that_was_dated_back_is_not_due_at_once(left in 2i64..600, dice: u64) {
            // Issued at 300 s, dated back by five minutes.
            let deadline = rotation_deadline(&facts(0, 300 + left), Some(at(300)), &Dice(dice));
            prop_assert!(deadline > at(300) && deadline < at(300 + left));
        }
    }
}
