//! Service account tokens of pods.
//!
//! Owns the issued tokens, the requests under way, and when a new token is due. Nothing here prints a token. The lifetime is counted from
//! the moment of the answer: a node whose clock differs from the API server's still renews in time. A pod that ran before rubelet started has a
//! token in its volume: that one is adopted, and while it is fresh the API server is not asked.
//!
//! ```text
//! asked ──► adopted or issued ── 80 % of its lifetime, 24 h ─► due: its pod is synced, which requests another
//!             ▲                                      │
//!             └──────────────────────────────────────┘  meanwhile, and when that fails, the old one is good until it ends
//! ```

mod adopted;
mod due;
mod lifetime;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_model::observation::PodUid;
use rubelet_ports::api::{ApiError, ApiErrorKind, LONGEST_CALL, TokenIssuer};
use rubelet_ports::{Clock, FileReader, Moment, ObjectFailure, Randomness, Token, TokenQuestion, within};
use tokio::sync::Notify;

use due::{Due, Now};
use lifetime::{lifetime, renew_after};

/// So that pods that started together do not ask together.
const MAX_JITTER: Duration = Duration::from_secs(10);
/// After a failure with a token that is still good.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const MAX_RETRY: Duration = Duration::from_secs(60);
/// The API server's own view of pods may be behind the watch that delivered one: a token for a new pod is then "not found".
const VIEW_LAG_PAUSES: [Duration; 5] = [
    Duration::from_millis(25),
    Duration::from_millis(75),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_millis(1200),
];
/// A pod that was queued for a sync and did not request a token is queued again.
const QUEUE_AGAIN: Duration = Duration::from_secs(60);
/// How long a pod without a token waits for a server that asks for a pause.
const LONGEST_QUIET: Duration = Duration::from_secs(30);
/// Volumes with tokens are in memory, where files are read at once.
const READ_DEADLINE: Duration = Duration::from_secs(5);
/// Far longer than any token.
const MAX_FILE_BYTES: u64 = 64 * 1024;
/// Far more than the pods of a node ask for; what is beyond is issued and not kept.
const MAX_TOKENS: usize = 16_384;

struct Issued {
    text: String,
    /// When another one should be asked for; later after a failure.
    renew: Due,
    end: Due,
    failures: u32,
    /// When its pod was queued because the token is due.
    queued: Option<Moment>,
}

impl Issued {
    fn token(&self) -> Token {
        Token {
            text: self.text.clone(),
            renew_at: self.renew.at,
        }
    }
}

/// Why no token was issued.
struct Problem {
    message: String,
    /// How long the API server asks not to be called.
    quiet: Duration,
}

impl Problem {
    fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            quiet: Duration::ZERO,
        }
    }

    fn of(error: &ApiError) -> Self {
        Self {
            message: error.to_string(),
            quiet: error.pause(Duration::ZERO),
        }
    }
}

/// A file of a volume that shows a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenFile {
    /// The volume.
    pub(crate) directory: PathBuf,
    pub(crate) path: PathBuf,
}

#[derive(Default)]
struct Slot {
    /// Files that may hold a token from before rubelet started; none once they have been read.
    unread: Mutex<Vec<TokenFile>>,
    /// Held to look up and to note, never across an await.
    issued: Mutex<Option<Issued>>,
    /// Held by the task that calls the API server.
    turn: tokio::sync::Mutex<()>,
}

impl Slot {
    fn issued(&self) -> MutexGuard<'_, Option<Issued>> {
        // Every change replaces the whole token or one of its marks.
        self.issued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unread(&self) -> MutexGuard<'_, Vec<TokenFile>> {
        // Every change replaces the whole list.
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
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
    files: Arc<dyn FileReader>,
    clock: Arc<dyn Clock>,
    randomness: Arc<dyn Randomness>,
    /// Held to look up and to note, never across an await.
    slots: Mutex<BTreeMap<TokenQuestion, Arc<Slot>>>,
    /// There is a token that may be due earlier than all before.
    pub(crate) news: Notify,
}

/// The pods whose tokens are due, and when to look next.
#[derive(Default)]
pub(crate) struct DueTokens {
    pub(crate) pods: Vec<PodUid>,
    pub(crate) next: Option<Duration>,
}

impl Tokens {
    pub(crate) fn new(
        issuer: Arc<dyn TokenIssuer>,
        files: Arc<dyn FileReader>,
        clock: Arc<dyn Clock>,
        randomness: Arc<dyn Randomness>,
    ) -> Self {
        Self {
            issuer,
            files,
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

    /// The next question of this kind looks into these files first.
    pub(crate) fn look_into(&self, question: &TokenQuestion, files: Vec<TokenFile>) {
        *self.slot(question).unread() = files;
    }

    pub(crate) async fn token(&self, question: &TokenQuestion) -> Result<Token, ObjectFailure> {
        let slot = self.slot(question);
        if let Some(token) = slot.fresh(Now::of(self.clock.as_ref())) {
            return Ok(token);
        }
        // Several may be before us, each within its own limit; the first that succeeds serves all.
        let Ok(_turn) = within(self.clock.as_ref(), LONGEST_CALL, slot.turn.lock()).await else {
            return self.old_one(&slot, &Problem::new("the API server did not answer in time"));
        };
        if let Some(token) = slot.fresh(Now::of(self.clock.as_ref())) {
            return Ok(token);
        }
        self.adopt(question, &slot).await;
        if let Some(token) = slot.fresh(Now::of(self.clock.as_ref())) {
            return Ok(token);
        }
        let has_old = slot.issued().is_some();
        match self.issue(question, has_old).await {
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

    /// Takes over a token that a volume shows, also one that is due: it is good while no other can be had.
    async fn adopt(&self, question: &TokenQuestion, slot: &Slot) {
        // They are unread until all have been read: a question that is given up here leaves them to the next.
        let files = slot.unread().clone();
        let is_known = slot.issued().is_some();
        for file in files.iter().filter(|_| !is_known) {
            let Some(text) = self.read(file).await else {
                continue;
            };
            let now = Now::of(self.clock.as_ref());
            match adopted::judge(&text, question, now.at) {
                Ok(held) => {
                    let renew_after = renew_after(held.lifetime, self.randomness.part_of(MAX_JITTER));
                    *slot.issued() = Some(Issued {
                        text,
                        renew: now.plus(renew_after.saturating_sub(held.age)),
                        end: now.plus(held.remaining),
                        failures: 0,
                        queued: None,
                    });
                    self.news.notify_one();
                    break;
                }
                Err(reason) => tracing::debug!(
                    pod = question.pod_uid, file = %file.directory.join(&file.path).display(), %reason,
                    "A file of a volume has no token to adopt"
                ),
            }
        }
        slot.unread().clear();
    }

    async fn read(&self, file: &TokenFile) -> Option<String> {
        let read = self
            .files
            .read_within(&file.directory, &file.path, MAX_FILE_BYTES);
        let content = within(self.clock.as_ref(), READ_DEADLINE, read).await;
        String::from_utf8(content.ok()?.ok()?).ok()
    }

    /// With an old token a server that asks for a pause is not waited for.
    async fn issue(&self, question: &TokenQuestion, has_old: bool) -> Result<Issued, Problem> {
        let request = request(question);
        let asked = Now::of(self.clock.as_ref());
        let longest_wait = if has_old { Duration::ZERO } else { LONGEST_QUIET };
        let ask = self.ask(question, &request, longest_wait);
        let answer = within(self.clock.as_ref(), LONGEST_CALL, ask).await;
        let answer = answer
            .map_err(|elapsed| Problem::new(elapsed.to_string()))?
            .map_err(|error| Problem::of(&error))?;
        let lifetime = lifetime(&answer, question.expiration_seconds);
        let text = answer.status.and_then(|status| status.token);
        let Some(text) = text.filter(|text| !text.is_empty()) else {
            return Err(Problem::new("the API server answered without a token"));
        };
        let jitter = self.randomness.part_of(MAX_JITTER);
        Ok(Issued {
            text,
            renew: asked.plus(renew_after(lifetime, jitter)),
            end: asked.plus(lifetime),
            failures: 0,
            queued: None,
        })
    }

    async fn ask(
        &self,
        question: &TokenQuestion,
        request: &TokenRequest,
        longest_wait: Duration,
    ) -> Result<TokenRequest, ApiError> {
        let mut waited = Duration::ZERO;
        let (namespace, account) = (&question.namespace, &question.service_account);
        let mut pauses = VIEW_LAG_PAUSES.into_iter();
        loop {
            let answer = self.issuer.request_token(namespace, account, request).await;
            let Err(error) = answer else { return answer };
            let pause = match error.retry_after() {
                // All tokens of a node may be waiting, and must not come back together.
                Some(asked) => {
                    let pause = asked + self.randomness.part_of(asked);
                    waited += pause;
                    Some(pause).filter(|_| waited <= longest_wait)
                }
                None if error.kind == ApiErrorKind::NotFound => pauses.next(),
                None => None,
            };
            match pause {
                Some(pause) => self.clock.sleep(pause).await,
                None => return Err(error),
            }
        }
    }

    /// A token that is due is still good until it ends.
    fn old_one(&self, slot: &Slot, problem: &Problem) -> Result<Token, ObjectFailure> {
        let now = Now::of(self.clock.as_ref());
        let mut issued = slot.issued();
        let Some(old) = issued.as_mut() else {
            let message = &problem.message;
            return Err(ObjectFailure::Unavailable(format!(
                "failed to fetch token: {message}"
            )));
        };
        if now.is_past(old.end) {
            let message = &problem.message;
            return Err(ObjectFailure::Unavailable(format!(
                "token expired and refresh failed: {message}"
            )));
        }
        let wait = FIRST_RETRY
            .saturating_mul(1 << old.failures.min(8))
            .min(MAX_RETRY)
            .max(problem.quiet);
        old.failures = old.failures.saturating_add(1);
        old.renew = now.plus(wait);
        old.queued = None;
        let token = old.token();
        drop(issued);
        self.news.notify_one();
        tracing::warn!(
            problem = problem.message,
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
            // A slot stays for the callers of now, and for files that the next question looks into.
            let is_asked = Arc::strong_count(slot) > 1 || !slot.unread().is_empty();
            let mut issued = slot.issued();
            let Some(issued) = issued.as_mut() else {
                return is_asked;
            };
            if now.is_past(issued.end) {
                due.pods.push(PodUid::new(question.pod_uid.clone()));
                return is_asked;
            }
            let wait = match issued.queued {
                Some(queued) => QUEUE_AGAIN.saturating_sub(now.moment.since(queued)),
                None => now.until(issued.renew),
            };
            if wait.is_zero() {
                due.pods.push(PodUid::new(question.pod_uid.clone()));
                issued.queued = Some(now.moment);
                due.soon(QUEUE_AGAIN);
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
