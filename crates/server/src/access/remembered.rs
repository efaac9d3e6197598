//! A cache of review answers, with one review however many requests wait for its answer.
//!
//! Owns the memory and its bound: expired answers go first, then refusals, then what was not used for longest. So clients that
//! make up credentials cannot displace the answers about clients that have some. Keys are digests, so that no credential is kept.
//! It must not know what is reviewed, nor for how long an answer holds.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use rubelet_ports::{Clock, Moment};

pub(super) type Key = [u8; 32];

/// Beyond this number of pending reviews those without a waiting request are removed.
const UNDER_WAY_NOTES: usize = 1024;

/// An answer, and for how long it may be given again; zero for never.
pub(super) struct Answered<V> {
    pub(super) value: V,
    pub(super) keep_for: Duration,
    pub(super) worth: Worth,
}

/// Which answers make room for others; the first are dropped first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Worth {
    /// Unauthenticated clients can cause any number of these.
    Refusal,
    Grant,
}

type Question<V> = Shared<BoxFuture<'static, V>>;

pub(super) struct Remembered<V> {
    clock: Arc<dyn Clock>,
    limit: usize,
    // Held for a few look-ups, never across an await.
    state: Mutex<State<V>>,
}

struct State<V> {
    known: BTreeMap<Key, Known<V>>,
    /// The keys of `known` in the order in which they make room.
    by_use: BTreeMap<(Worth, u64), Key>,
    next_use: u64,
    under_way: BTreeMap<Key, WeakShared<BoxFuture<'static, V>>>,
}

struct Known<V> {
    value: V,
    until: Moment,
    used: (Worth, u64),
}

impl<V: Clone + Send + Sync + 'static> Remembered<V> {
    pub(super) fn new(clock: Arc<dyn Clock>, limit: usize) -> Arc<Self> {
        let state = State {
            known: BTreeMap::new(),
            by_use: BTreeMap::new(),
            next_use: 0,
            under_way: BTreeMap::new(),
        };
        Arc::new(Self {
            clock,
            limit,
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State<V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cached answer, that of a pending review, or that of the review that `begin` returns; where `begin` refuses, its own
    /// answer, which is not cached. A pending review goes on while any request waits for it, also when the first one is
    /// cancelled.
    pub(super) async fn get<A>(self: &Arc<Self>, key: Key, begin: impl FnOnce() -> Result<A, V>) -> V
    where
        A: Future<Output = Answered<V>> + Send + 'static,
    {
        let question = {
            let mut state = self.state();
            if let Some(value) = state.fresh(&key, self.clock.moment()) {
                return value;
            }
            match state.under_way.get(&key).and_then(WeakShared::upgrade) {
                Some(question) => question,
                None => {
                    let ask = match begin() {
                        Ok(ask) => ask,
                        Err(refusal) => return refusal,
                    };
                    let memory = Arc::clone(self);
                    let question = async move {
                        let answered = ask.await;
                        memory.keep(key, &answered);
                        answered.value
                    };
                    let question: Question<V> = question.boxed().shared();
                    state.note(key, &question);
                    question
                }
            }
        };
        question.await
    }

    fn keep(&self, key: Key, answered: &Answered<V>) {
        let now = self.clock.moment();
        let mut state = self.state();
        state.under_way.remove(&key);
        if answered.keep_for.is_zero() {
            return;
        }
        state.forget(&key);
        if state.known.len() >= self.limit {
            state.make_room(self.limit, now);
        }
        let used = (answered.worth, state.next_use());
        state.by_use.insert(used, key);
        let known = Known {
            value: answered.value.clone(),
            until: now.plus(answered.keep_for),
            used,
        };
        state.known.insert(key, known);
    }
}

impl<V: Clone> State<V> {
    fn next_use(&mut self) -> u64 {
        self.next_use += 1;
        self.next_use
    }

    fn fresh(&mut self, key: &Key, now: Moment) -> Option<V> {
        let known = self.known.get(key)?;
        if known.until <= now {
            self.forget(key);
            return None;
        }
        let used = (known.used.0, self.next_use());
        let known = self.known.get_mut(key)?;
        self.by_use.remove(&known.used);
        self.by_use.insert(used, *key);
        known.used = used;
        Some(known.value.clone())
    }

    /// For one more answer.
    fn make_room(&mut self, limit: usize, now: Moment) {
        let by_use = &mut self.by_use;
        self.known.retain(|_, known| {
            let is_fresh = known.until > now;
            if !is_fresh {
                by_use.remove(&known.used);
            }
            is_fresh
        });
        while self.known.len() >= limit {
            let Some((_, first)) = self.by_use.pop_first() else {
                break;
            };
            self.known.remove(&first);
        }
    }

    fn forget(&mut self, key: &Key) {
        if let Some(known) = self.known.remove(key) {
            self.by_use.remove(&known.used);
        }
    }

    fn note(&mut self, key: Key, question: &Question<V>) {
        if self.under_way.len() >= UNDER_WAY_NOTES {
            self.under_way.retain(|_, question| question.upgrade().is_some());
        }
        if let Some(question) = question.downgrade() {
            self.under_way.insert(key, question);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use rubelet_fakes::ManualClock;
    use rubelet_model::Timestamp;
    use tokio::sync::oneshot;

    use super::*;

    struct Scene {
        clock: Arc<ManualClock>,
        memory: Arc<Remembered<u64>>,
        asked: Arc<AtomicU64>,
    }

    fn scene(limit: usize) -> Scene {
        let clock = Arc::new(ManualClock::new(Timestamp::EPOCH));
        Scene {
            memory: Remembered::new(Arc::clone(&clock) as Arc<dyn Clock>, limit),
            clock,
            asked: Arc::default(),
        }
    }

    impl Scene {
        /// How many reviews there were in all, after this one.
        async fn ask(&self, key: u8, keep_for_seconds: u64) -> u64 {
            self.ask_worth(key, keep_for_seconds, Worth::Grant).await
        }

        async fn ask_worth(&self, key: u8, keep_for_seconds: u64, worth: Worth) -> u64 {
            let asked = Arc::clone(&self.asked);
            let ask = async move {
                Answered {
                    value: asked.fetch_add(1, Ordering::SeqCst) + 1,
                    keep_for: Duration::from_secs(keep_for_seconds),
                    worth,
                }
            };
            self.memory.get([key; 32], || Ok(ask)).await
        }

        fn wait(&self, seconds: u64) {
            self.clock.advance(Duration::from_secs(seconds));
        }
    }

    #[tokio::test]
    async fn an_answer_is_given_again_until_its_time_is_over() {
        let scene = scene(8);
        assert_eq!(scene.ask(1, 10).await, 1);
        scene.wait(9);
        assert_eq!(scene.ask(1, 10).await, 1);
        assert_eq!(scene.ask(2, 0).await, 2);
        assert_eq!(scene.ask(2, 0).await, 3);
        // Using it did not make it younger.
        scene.wait(1);
        assert_eq!(scene.ask(1, 10).await, 4);
    }

    #[tokio::test]
    async fn what_was_not_used_for_longest_goes_first() {
        let scene = scene(2);
        assert_eq!(scene.ask(1, 10).await, 1);
        assert_eq!(scene.ask(2, 10).await, 2);
        assert_eq!(scene.ask(1, 10).await, 1);
        assert_eq!(scene.ask(3, 10).await, 3);
        assert_eq!(scene.ask(1, 10).await, 1);
        assert_eq!(scene.ask(2, 10).await, 4);
        let state = scene.memory.state();
        assert_eq!((state.known.len(), state.by_use.len()), (2, 2));
        assert!(state.under_way.is_empty());
    }

    #[tokio::test]
    async fn refusals_and_expired_answers_make_room_before_grants() {
        let scene = scene(3);
        assert_eq!(scene.ask(1, 100).await, 1);
        assert_eq!(scene.ask(2, 10).await, 2);
        for (key, asked) in (10..30).zip(3..) {
            assert_eq!(scene.ask_worth(key, 100, Worth::Refusal).await, asked);
        }
        // The latest refusal is the one that is left.
        assert_eq!(scene.ask_worth(29, 100, Worth::Refusal).await, 22);
        assert_eq!((scene.ask(1, 100).await, scene.ask(2, 10).await), (1, 2));
        scene.wait(10);
        assert_eq!(scene.ask_worth(30, 100, Worth::Refusal).await, 23);
        assert_eq!(scene.ask_worth(29, 100, Worth::Refusal).await, 22);
        assert_eq!(scene.ask(1, 100).await, 1);
        let state = scene.memory.state();
        assert_eq!((state.known.len(), state.by_use.len()), (3, 3));
    }

    #[tokio::test]
    async fn a_question_that_is_refused_is_not_remembered() {
        let scene = scene(2);
        let refused = scene
            .memory
            .get([1; 32], || Err::<std::future::Pending<_>, _>(99));
        assert_eq!(refused.await, 99);
        assert_eq!(scene.ask(1, 10).await, 1);
        let known = scene
            .memory
            .get([1; 32], || Err::<std::future::Pending<_>, _>(99));
        assert_eq!(known.await, 1);
    }

    #[tokio::test]
    async fn one_question_serves_all_who_wait_and_outlives_the_first() {
        let scene = scene(2);
        let (answer, waits) = oneshot::channel();
        let mut first = scene
            .memory
            .get([1; 32], || {
                Ok(async move {
                    Answered {
                        value: waits.await.unwrap_or_default(),
                        keep_for: Duration::from_secs(1),
                        worth: Worth::Grant,
                    }
                })
            })
            .boxed();
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = scene.ask(1, 1).boxed();
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        answer.send(77).unwrap();
        assert_eq!(second.await, 77);
        assert_eq!(scene.ask(1, 1).await, 77);
        assert_eq!(scene.asked.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_question_that_all_have_left_is_asked_anew() {
        let scene = scene(2);
        let never = futures_util::future::pending::<Answered<u64>>();
        let mut asked = scene.memory.get([1; 32], || Ok(never)).boxed();
        assert!(asked.as_mut().now_or_never().is_none());
        drop(asked);
        assert_eq!(scene.ask(1, 1).await, 1);
    }
}
