//! The state of one certificate of a pod.
//!
//! Owns the states and what follows from a request as the signer left it. It makes no call.
//!
//! ```text
//!           ask              issued
//! waiting ──────► asked ─────────────► held ── refresh time ──► held, asked for the next
//!    ▲              │                    ▲                          │
//!    └──────────────┤ request lost       └──────────────────────────┤ issued, or request lost
//!                   ▼                                               ▼
//!                refused  ◄──────────── denied or failed ────────────┘   (for good)
//! ```

use std::time::Duration;

use k8s_openapi::api::certificates::v1::PodCertificateRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rubelet_model::Timestamp;
use rubelet_ports::PodCertificate;

use crate::trust::clean_chain;

/// Later than this after the refresh time people should know.
const OVERDUE: Duration = Duration::from_secs(10 * 60);
/// At the latest; a change of the request is noticed at once.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// A request that was made.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Asked {
    /// PEM; secret.
    pub(super) key: Vec<u8>,
    pub(super) request: String,
    /// When it is not seen by then, it was deleted.
    pub(super) lost_at: Timestamp,
}

/// A certificate in use.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) certificate: PodCertificate,
    pub(super) refresh_at: Timestamp,
    pub(super) not_after: Timestamp,
    pub(super) next: Option<Asked>,
    recorded: Recorded,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Recorded {
    overdue: bool,
    expired: bool,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Stage {
    Waiting,
    Asked(Asked),
    Held(Held),
    Refused { verdict: Refusal, explanation: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Denied,
    Failed,
}

impl Refusal {
    /// The condition, which is the reason of the event too.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Denied => "Denied",
            Self::Failed => "Failed",
        }
    }

    fn verb(self) -> &'static str {
        match self {
            Self::Denied => "was denied",
            Self::Failed => "failed",
        }
    }

    fn past(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Failed => "failed",
        }
    }
}

/// What a signer made of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Pending,
    Refused {
        refusal: Refusal,
        reason: String,
        message: String,
    },
    Issued {
        chain: String,
        refresh_at: Timestamp,
        not_after: Timestamp,
    },
    /// Issued, but not as the API promises.
    Broken(&'static str),
}

pub(super) fn verdict(request: &PodCertificateRequest) -> Verdict {
    let Some(status) = &request.status else {
        return Verdict::Pending;
    };
    for condition in status.conditions.iter().flatten() {
        let refusal = match condition.type_.as_str() {
            "Denied" => Refusal::Denied,
            "Failed" => Refusal::Failed,
            "Issued" => {
                let chain = status.certificate_chain.as_deref().map(clean_chain);
                return match (chain, &status.begin_refresh_at, &status.not_after) {
                    (Some(Ok(chain)), Some(refresh_at), Some(not_after)) if !chain.is_empty() => {
                        Verdict::Issued {
                            chain,
                            refresh_at: timestamp(refresh_at),
                            not_after: timestamp(not_after),
                        }
                    }
                    (Some(Ok(_)), Some(_), Some(_)) | (None, _, _) => Verdict::Broken("no certificate"),
                    (Some(Err(_)), _, _) => Verdict::Broken("a chain that is no PEM"),
                    (Some(Ok(_)), _, _) => Verdict::Broken("no times"),
                };
            }
            _ => continue,
        };
        return Verdict::Refused {
            refusal,
            reason: condition.reason.clone(),
            message: condition.message.clone(),
        };
    }
    Verdict::Pending
}

fn timestamp(Time(at): &Time) -> Timestamp {
    Timestamp::from_unix_nanos(i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX))
}

/// What has to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Make a key and a request.
    Ask,
    /// Nothing before this time, or before the request changes.
    Wait(Duration),
    /// Nothing any more.
    Rest,
}

/// The events to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    Refused { refusal: Refusal, message: String },
    Overdue,
    Expired,
}

/// What a look at the certificate leads to.
pub(super) struct Look {
    pub(super) next: Next,
    pub(super) news: Vec<News>,
    /// The files have to be written anew, or the reason why there are none has changed.
    pub(super) has_changed: bool,
}

/// What is known of the requests while looking.
pub(super) struct Sight<'a> {
    pub(super) now: Timestamp,
    /// Added to the time of the refresh, so that pods that started together do not ask together.
    pub(super) jitter: Duration,
    pub(super) find: &'a dyn Fn(&str) -> Option<Verdict>,
}

impl Stage {
    /// Takes the stage as far as it goes without a call.
    pub(super) fn look(&mut self, namespace: &str, sight: &Sight<'_>) -> Look {
        let mut look = Look {
            next: Next::Rest,
            news: Vec::new(),
            has_changed: false,
        };
        if let Some(asked) = self.asked() {
            let (request, lost_at) = (asked.request.clone(), asked.lost_at);
            match (sight.find)(&request) {
                None if sight.now >= lost_at => self.lose_request(),
                None => look.next = Next::Wait(wait(lost_at.since(sight.now))),
                Some(Verdict::Pending) => look.next = Next::Wait(LOOK_AGAIN),
                Some(Verdict::Broken(what)) => {
                    let message =
                        format!("PodCertificateRequest {namespace}/{request} was issued with {what}");
                    self.refuse(Refusal::Failed, message.clone(), message, &mut look);
                }
                Some(Verdict::Refused {
                    refusal,
                    reason,
                    message,
                }) => {
                    let past = refusal.past();
                    let explanation = format!(
                        "PodCertificateRequest was permanently {past}: reason={reason:?} message={message:?}"
                    );
                    let verb = refusal.verb();
                    let message = format!(
                        "PodCertificateRequest {namespace}/{request} {verb}, reason={reason:?}, message={message:?}"
                    );
                    self.refuse(refusal, explanation, message, &mut look);
                }
                Some(Verdict::Issued {
                    chain,
                    refresh_at,
                    not_after,
                }) => {
                    self.hold(&chain, refresh_at.plus(sight.jitter), not_after);
                    look.has_changed = true;
                }
            }
        }
        match self {
            Self::Waiting => look.next = Next::Ask,
            Self::Held(held) => held.look(sight.now, &mut look),
            Self::Asked(_) | Self::Refused { .. } => {}
        }
        look
    }

    fn asked(&self) -> Option<&Asked> {
        match self {
            Self::Asked(asked) => Some(asked),
            Self::Held(held) => held.next.as_ref(),
            Self::Waiting | Self::Refused { .. } => None,
        }
    }

    /// A request was made.
    pub(super) fn ask(&mut self, asked: Asked) {
        match self {
            Self::Waiting | Self::Asked(_) => *self = Self::Asked(asked),
            Self::Held(held) => held.next = Some(asked),
            Self::Refused { .. } => {}
        }
    }

    fn lose_request(&mut self) {
        match self {
            Self::Asked(_) => *self = Self::Waiting,
            Self::Held(held) => held.next = None,
            Self::Waiting | Self::Refused { .. } => {}
        }
    }

    fn refuse(&mut self, verdict: Refusal, explanation: String, message: String, look: &mut Look) {
        look.news.push(News::Refused {
            refusal: verdict,
            message,
        });
        look.has_changed = true;
        *self = Self::Refused { verdict, explanation };
    }

    fn hold(&mut self, chain: &str, refresh_at: Timestamp, not_after: Timestamp) {
        let key = match self.asked() {
            Some(asked) => asked.key.clone(),
            None => return,
        };
        *self = Self::Held(Held {
            certificate: PodCertificate {
                key,
                chain: chain.as_bytes().to_vec(),
            },
            refresh_at,
            not_after,
            next: None,
            recorded: Recorded::default(),
        });
    }

    /// As the metric of certificates calls it.
    pub(super) fn metric(&self, now: Timestamp) -> &'static str {
        match self {
            Self::Waiting | Self::Asked(_) => "not_yet_issued",
            Self::Refused { verdict, .. } => verdict.past(),
            Self::Held(held) if now > held.not_after => "expired",
            Self::Held(held) if now > held.refresh_at.plus(OVERDUE) => "overdue_for_refresh",
            Self::Held(_) => "fresh",
        }
    }
}

impl Held {
    fn look(&mut self, now: Timestamp, look: &mut Look) {
        if now > self.refresh_at.plus(OVERDUE) && !self.recorded.overdue {
            self.recorded.overdue = true;
            look.news.push(News::Overdue);
        }
        if now > self.not_after && !self.recorded.expired {
            self.recorded.expired = true;
            look.news.push(News::Expired);
        }
        if self.next.is_some() {
            return;
        }
        look.next = if now >= self.refresh_at {
            Next::Ask
        } else {
            Next::Wait(wait(self.refresh_at.since(now)))
        };
    }
}

/// Looked at again at least every minute: the wall clock may be set meanwhile.
fn wait(duration: Duration) -> Duration {
    duration.min(LOOK_AGAIN)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff;
    use serde_json::json;

    use super::*;

    const HOUR: i64 = 3600;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_seconds(seconds)
    }

    fn asked(request: &str) -> Asked {
        Asked {
            key: request.as_bytes().to_vec(),
            request: request.to_owned(),
            lost_at: at(600),
        }
    }

    fn look(stage: &mut Stage, now: i64, find: &dyn Fn(&str) -> Option<Verdict>) -> Look {
        let sight = Sight {
            now: at(now),
            jitter: Duration::from_secs(5),
            find,
        };
        stage.look("n", &sight)
    }

    fn issued(_: &str) -> Option<Verdict> {
        Some(Verdict::Issued {
            chain: "c".to_owned(),
            refresh_at: at(HOUR),
            not_after: at(2 * HOUR),
        })
    }

    fn pending(_: &str) -> Option<Verdict> {
        Some(Verdict::Pending)
    }

    fn missing(_: &str) -> Option<Verdict> {
        None
    }

    #[test]
    fn a_certificate_is_asked_for_held_and_renewed() {
        let mut stage = Stage::Waiting;
        assert_eq!(look(&mut stage, 0, &missing).next, Next::Ask);
        stage.ask(asked("one"));
        assert_eq!(stage.metric(at(0)), "not_yet_issued");
        assert_eq!(
            look(&mut stage, 0, &missing).next,
            Next::Wait(Duration::from_secs(60))
        );
        assert_eq!(
            look(&mut stage, 599, &missing).next,
            Next::Wait(Duration::from_secs(1))
        );

        let seen = look(&mut stage, 599, &issued);
        assert!(seen.has_changed);
        assert_eq!(seen.next, Next::Wait(Duration::from_secs(60)));
        let Stage::Held(held) = &stage else {
            panic!("not held")
        };
        assert_eq!(
            (&held.certificate.key[..], &held.certificate.chain[..]),
            (&b"one"[..], &b"c"[..])
        );
        assert_eq!(stage.metric(at(600)), "fresh");

        assert_eq!(
            look(&mut stage, HOUR + 4, &issued).next,
            Next::Wait(Duration::from_secs(1))
        );
        assert_eq!(look(&mut stage, HOUR + 5, &issued).next, Next::Ask);
        stage.ask(Asked {
            lost_at: at(HOUR + 600),
            ..asked("two")
        });
        // The old one is in use until the new one is there.
        assert!(!look(&mut stage, HOUR + 6, &pending).has_changed);
        let Stage::Held(held) = &stage else {
            panic!("not held")
        };
        assert_eq!(held.certificate.key, b"one");
        assert!(look(&mut stage, HOUR + 7, &issued).has_changed);
        let Stage::Held(held) = &stage else {
            panic!("not held")
        };
        assert_eq!(held.certificate.key, b"two");
    }

    #[test]
    fn a_lost_request_is_made_again() {
        let mut stage = Stage::Asked(asked("one"));
        assert_eq!(look(&mut stage, 600, &missing).next, Next::Ask);
        assert!(stage == Stage::Waiting);
        // One that is there but pending is not lost, however long it takes.
        let mut stage = Stage::Asked(asked("one"));
        assert_eq!(look(&mut stage, 6000, &pending).next, Next::Wait(LOOK_AGAIN));
    }

    #[test]
    fn people_are_told_once_that_it_is_late() {
        let mut stage = Stage::Asked(asked("one"));
        look(&mut stage, 0, &issued);
        let late = HOUR + 5 + 601;
        assert_eq!(look(&mut stage, late, &issued).news, [News::Overdue]);
        assert_eq!(look(&mut stage, late, &issued).news, []);
        assert_eq!(stage.metric(at(late)), "overdue_for_refresh");
        assert_eq!(look(&mut stage, 2 * HOUR + 1, &issued).news, [News::Expired]);
        assert_eq!(look(&mut stage, 2 * HOUR + 2, &issued).news, []);
        assert_eq!(stage.metric(at(2 * HOUR + 2)), "expired");
    }

    #[test]
    fn what_a_signer_says_is_understood() {
        let check = |status: serde_json::Value, expected: Verdict| {
            let text = status.to_string();
            let request = json!({
                "apiVersion": "certificates.k8s.io/v1", "kind": "PodCertificateRequest",
                "metadata": {"name": "r", "namespace": "n"},
                "spec": {"signerName": "s", "podName": "p", "podUID": "u", "serviceAccountName": "a",
                    "serviceAccountUID": "b", "nodeName": "n", "nodeUID": "m", "stubPKCS10Request": ""},
                "status": status,
            });
            assert_eq!(
                verdict(&serde_json::from_value(request).unwrap()),
                expected,
                "{text}"
            );
        };
        let condition = |kind: &str| {
            json!([{"type": kind, "status": "True", "reason": "R", "message": "M",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}])
        };
        let chain = "noise\n-----BEGIN CERTIFICATE-----\nYWJj\n-----END CERTIFICATE-----\n";
        let refused = |refusal| Verdict::Refused {
            refusal,
            reason: "R".to_owned(),
            message: "M".to_owned(),
        };
        check(json!({}), Verdict::Pending);
        check(json!({"conditions": condition("Other")}), Verdict::Pending);
        check(
            json!({"conditions": condition("Denied")}),
            refused(Refusal::Denied),
        );
        check(
            json!({"conditions": condition("Failed")}),
            refused(Refusal::Failed),
        );
        let second = |text: &str| at(text.parse::<jiff::Timestamp>().unwrap().as_second());
        check(
            json!({"conditions": condition("Issued"), "certificateChain": chain,
                "beginRefreshAt": "2026-01-01T00:00:00Z", "notAfter": "2026-01-02T00:00:00Z"}),
            Verdict::Issued {
                chain: chain.trim_start_matches("noise\n").to_owned(),
                refresh_at: second("2026-01-01T00:00:00Z"),
                not_after: second("2026-01-02T00:00:00Z"),
            },
        );
        check(
            json!({"conditions": condition("Issued")}),
            Verdict::Broken("no certificate"),
        );
        check(
            json!({"conditions": condition("Issued"), "certificateChain": chain}),
            Verdict::Broken("no times"),
        );
    }
}
