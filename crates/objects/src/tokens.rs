//! Service account tokens of pods.
//!
//! Owns what was issued, who is asking for it, and when a new one is due. Nothing here prints a token. Life is counted from the moment
//! of the answer: a node whose clock differs from the API server's still renews in time.
//!
//! ```text
//! asked ──► issued ── 80 % of its life, or 24 h ──► due: its pod is told, and the next question asks for another
//!             ▲                                      │
//!             └──────────────────────────────────────┘  meanwhile, and when that fails, the old one is good until it ends
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_ports::api::{ApiError, ApiErrorKind, LONGEST_CALL, TokenIssuer};
use rubelet_ports::{Clock, Moment, ObjectFailure, Randomness, Token, TokenQuestion, within};
use tokio::sync::Notify;

/// A token is renewed after this time however long it lives.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// So that pods that started together do not ask together.
const MAX_JITTER: Duration = Duration::from_secs(10);
/// After a failure with a token that is still good.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const MAX_RETRY: Duration = Duration::from_secs(60);
/// The API server's own view of pods may be behind the watch that told us of one: a token for a young pod is then "not found".
const VIEW_LAG_PAUSES: [Duration; 5] = [
    Duration::from_millis(25),
    Duration::from_millis(75),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_millis(1200),
];
/// A pod that was told and did not ask is told again.
const TELL_AGAIN: Duration = Duration::from_secs(60);
/// Far more than the pods of a node ask for; what is beyond is issued and not kept.
const MAX_TOKENS: usize = 16_384;

/// A point in time on both clocks: reaching it on one of them is enough. The wall clock goes on while the machine sleeps, and the
/// other one when somebody sets the wall clock back.
#[derive(Clone, Copy)]
struct Due {
    at: Timestamp,
    moment: Moment,
}

#[derive(Clone, Copy)]
struct Now {
    at: Timestamp,
    moment: Moment,
}

impl Now {
    fn of(clock: &dyn Clock) -> Self {
        Self {
            at: clock.now(),
            moment: clock.moment(),
        }
    }

    fn plus(self, duration: Duration) -> Due {
        Due {
            at: self.at.plus(duration),
            moment: self.moment.plus(duration),
        }
    }

    fn is_past(self, due: Due) -> bool {
        self.at >= due.at || self.moment >= due.moment
    }

    fn until(self, due: Due) -> Duration {
        due.at.since(self.at).min(due.moment.since(self.moment))
    }
}

struct Issued {
    text: String,
    /// When another one should be asked for; later after a failure.
    renew: Due,
    end: Due,
    failures: u32,
    /// When its pod was told that it is due.
    told: Option<Moment>,
}

impl Issued {
    fn token(&self) -> Token {
        Token {
            text: self.text.clone(),
            renew_at: self.renew.at,
        }
    }
}

#[derive(Default)]
struct Slot {
    /// Held to look up and to note, never across an await.
    issued: Mutex<Option<Issued>>,
    /// Held by whoever asks the API server.
    turn: tokio::sync::Mutex<()>,
}

impl Slot {
    fn issued(&self) -> MutexGuard<'_, Option<Issued>> {
        // Every change replaces the whole token or one of its marks.
        self.issued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A token that needs not be renewed yet.
    fn fresh(&self, now: Now) -> Option<Token> {
        let issued = self.issued();
        let fresh = issued
            .as_ref()
            .filter(|issued| !now.is_past(issued.renew) && !now.is_past(issued.end));
        fresh.map(Issued::token)
    }
}

pub(crate) struct Tokens {
    issuer: Arc<dyn TokenIssuer>,
    clock: Arc<dyn Clock>,
    randomness: Arc<dyn Randomness>,
    /// Held to look up and to note, never across an await.
    slots: Mutex<BTreeMap<TokenQuestion, Arc<Slot>>>,
    /// There is a token that may be due earlier than all before.
    pub(crate) news: Notify,
}

/// Who has to ask again, and when to look next.
#[derive(Default)]
pub(crate) struct DueTokens {
    pub(crate) pods: Vec<PodUid>,
    pub(crate) next: Option<Duration>,
}

impl Tokens {
    pub(crate) fn new(
        issuer: Arc<dyn TokenIssuer>,
        clock: Arc<dyn Clock>,
        randomness: Arc<dyn Randomness>,
    ) -> Self {
        Self {
            issuer,
            clock,
            randomness,
            slots: Mutex::default(),
            news: Notify::new(),
        }
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<TokenQuestion, Arc<Slot>>> {
        // Every change puts or removes a whole slot.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn token(&self, question: &TokenQuestion) -> Result<Token, ObjectFailure> {
        let slot = self.slot(question);
        if let Some(token) = slot.fresh(Now::of(self.clock.as_ref())) {
            return Ok(token);
        }
        // Several may be before us, each within its own limit; the first that succeeds serves all.
        let Ok(_turn) = within(self.clock.as_ref(), LONGEST_CALL, slot.turn.lock()).await else {
            return self.old_one(&slot, "the API server did not answer in time");
        };
        if let Some(token) = slot.fresh(Now::of(self.clock.as_ref())) {
            return Ok(token);
        }
        match self.issue(question).await {
            Ok(issued) => {
                let token = issued.token();
                *slot.issued() = Some(issued);
                self.news.notify_one();
                Ok(token)
            }
            Err(problem) => self.old_one(&slot, &problem),
        }
    }

    fn slot(&self, question: &TokenQuestion) -> Arc<Slot> {
        let mut slots = self.slots();
        if let Some(slot) = slots.get(question) {
            return Arc::clone(slot);
        }
        let slot = Arc::<Slot>::default();
        if slots.len() < MAX_TOKENS {
            slots.insert(question.clone(), Arc::clone(&slot));
        }
        slot
    }

    async fn issue(&self, question: &TokenQuestion) -> Result<Issued, String> {
        let request = request(question);
        let asked = Now::of(self.clock.as_ref());
        let answer = within(self.clock.as_ref(), LONGEST_CALL, self.ask(question, &request)).await;
        let answer = answer
            .map_err(|elapsed| elapsed.to_string())?
            .map_err(|error| error.to_string())?;
        let life = life(&answer, question.expiration_seconds);
        let text = answer.status.and_then(|status| status.token);
        let Some(text) = text.filter(|text| !text.is_empty()) else {
            return Err("the API server answered without a token".to_owned());
        };
        let jitter = self.randomness.part_of(MAX_JITTER);
        Ok(Issued {
            text,
            renew: asked.plus(renew_after(life, jitter)),
            end: asked.plus(life),
            failures: 0,
            told: None,
        })
    }

    async fn ask(&self, question: &TokenQuestion, request: &TokenRequest) -> Result<TokenRequest, ApiError> {
        let (namespace, account) = (&question.namespace, &question.service_account);
        let mut pauses = VIEW_LAG_PAUSES.into_iter();
        loop {
            let answer = self.issuer.request_token(namespace, account, request).await;
            match answer {
                Err(error) if error.kind == ApiErrorKind::NotFound => match pauses.next() {
                    Some(pause) => self.clock.sleep(pause).await,
                    None => return Err(error),
                },
                answer => return answer,
            }
        }
    }

    /// A token that is due is still good until it ends.
    fn old_one(&self, slot: &Slot, problem: &str) -> Result<Token, ObjectFailure> {
        let now = Now::of(self.clock.as_ref());
        let mut issued = slot.issued();
        let Some(old) = issued.as_mut() else {
            return Err(ObjectFailure::Unavailable(format!(
                "failed to fetch token: {problem}"
            )));
        };
        if now.is_past(old.end) {
            return Err(ObjectFailure::Unavailable(format!(
                "token expired and refresh failed: {problem}"
            )));
        }
        let wait = FIRST_RETRY
            .saturating_mul(1 << old.failures.min(8))
            .min(MAX_RETRY);
        old.failures = old.failures.saturating_add(1);
        old.renew = now.plus(wait);
        old.told = None;
        let token = old.token();
        drop(issued);
        self.news.notify_one();
        tracing::warn!(
            problem,
            "A service account token cannot be renewed; the old one is still good"
        );
        Ok(token)
    }

    /// Forgets the tokens of a pod.
    pub(crate) fn forget(&self, uid: &PodUid) {
        self.slots()
            .retain(|question, _| question.pod_uid != uid.as_str());
    }

    /// Drops what has ended and names the pods whose tokens are due.
    pub(crate) fn take_due(&self) -> DueTokens {
        let now = Now::of(self.clock.as_ref());
        let mut due = DueTokens::default();
        let mut slots = self.slots();
        slots.retain(|question, slot| {
            // Whoever asks now keeps its slot.
            let is_asked = Arc::strong_count(slot) > 1;
            let mut issued = slot.issued();
            let Some(issued) = issued.as_mut() else {
                return is_asked;
            };
            if now.is_past(issued.end) {
                due.pods.push(PodUid::new(question.pod_uid.clone()));
                return is_asked;
            }
            let wait = match issued.told {
                Some(told) => TELL_AGAIN.saturating_sub(now.moment.since(told)),
                None => now.until(issued.renew),
            };
            if wait.is_zero() {
                due.pods.push(PodUid::new(question.pod_uid.clone()));
                issued.told = Some(now.moment);
                due.soon(TELL_AGAIN);
            } else {
                due.soon(wait);
            }
            true
        });
        due
    }
}

impl DueTokens {
    fn soon(&mut self, wait: Duration) {
        self.next = Some(self.next.map_or(wait, |next| next.min(wait)));
    }
}

fn request(question: &TokenQuestion) -> TokenRequest {
    TokenRequest {
        metadata: ObjectMeta::default(),
        spec: Some(TokenRequestSpec {
            // None at all: the API server's own.
            audiences: Some(question.audiences.clone()).filter(|audiences| !audiences.is_empty()),
            bound_object_ref: Some(question.bound_object()),
            expiration_seconds: Some(question.expiration_seconds),
            ..TokenRequestSpec::default()
        }),
        status: None,
    }
}

/// How long a token lives, by the API server's own clock; it may give less than was asked for.
fn life(answer: &TokenRequest, asked_seconds: i64) -> Duration {
    let status = answer.status.as_ref();
    let end = status.and_then(|status| status.expiration_timestamp.as_ref());
    if let (Some(Time(end)), Some(Time(created))) = (end, &answer.metadata.creation_timestamp)
        && end > created
    {
        let seconds = end.as_second() - created.as_second();
        return Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    }
    let given = answer.spec.as_ref().and_then(|spec| spec.expiration_seconds);
    let seconds = given.unwrap_or(asked_seconds);
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn renew_after(life: Duration, jitter: Duration) -> Duration {
    let eighty_percent = life / 5 * 4;
    eighty_percent.min(MAX_AGE).saturating_sub(jitter)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authentication::v1::TokenRequestStatus;
    use k8s_openapi::jiff;

    use super::*;

    #[test]
    fn a_token_is_renewed_at_four_fifths_or_a_day() {
        let check = |life: u64, jitter: u64, expected: u64| {
            let (life, jitter) = (Duration::from_secs(life), Duration::from_secs(jitter));
            assert_eq!(
                renew_after(life, jitter),
                Duration::from_secs(expected),
                "{life:?}"
            );
        };
        check(3600, 0, 2880);
        check(3605, 10, 2874);
        check(600, 10, 470);
        check(30 * 60 * 60, 0, 24 * 60 * 60);
        check(365 * 24 * 60 * 60, 10, 24 * 60 * 60 - 10);
        check(5, 10, 0);
        check(0, 0, 0);
    }

    #[test]
    fn a_life_is_counted_by_the_servers_clock() {
        let time = |seconds: i64| Time(jiff::Timestamp::from_second(seconds).unwrap());
        let check = |created: Option<i64>, end: i64, spec: Option<i64>, expected: u64| {
            let mut answer = TokenRequest::default();
            answer.metadata.creation_timestamp = created.map(time);
            answer.spec = Some(TokenRequestSpec {
                expiration_seconds: spec,
                ..TokenRequestSpec::default()
            });
            answer.status = Some(TokenRequestStatus {
                expiration_timestamp: Some(time(end)),
                token: None,
            });
            assert_eq!(life(&answer, 3607), Duration::from_secs(expected), "{answer:?}");
        };
        check(Some(1000), 1600, Some(3600), 600);
        check(None, 1600, Some(3600), 3600);
        check(None, 1600, None, 3607);
        check(Some(1600), 1600, Some(3600), 3600);
    }
}
