//! The queue of looks: at which pod the observer looks next.
//!
//! Owns for each pod whether a look is wanted or under way, the pause after a look that failed, and the jobs that work on the
//! pod. Pure: the observer makes the looks and waits for the pauses.
//!
//! ```text
//!         ask, hint             start                 ended
//!   Idle ───────────► Queued ──────────► Running ───────────────► Idle
//!                       ▲                   │ ask, hint
//!                       │       ended       ▼
//!                       └──────────── RunningAndWanted
//! ```
//!
//! A hint about a pod with a job waits for the job's end, because a job looks at its pod itself. A look that takes longer than
//! [`SLOW_LOOK`] moves from the usual lane to the slow one, and the pod's next looks begin there until one is quick again: pods
//! that hang do not delay the others.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rubelet_model::observation::PodUid;
use rubelet_ports::Moment;

use super::TableSizes;

/// Looks at the same time in the usual lane.
const LOOKS_IN_FLIGHT: usize = 16;
/// A look that takes longer waits for something else than its turn at the runtime.
const SLOW_LOOK: Duration = Duration::from_secs(2);
/// Looks at the same time in the slow lane: more than a node has pods by default.
const SLOW_LOOKS_IN_FLIGHT: usize = 128;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    Queued,
    Running,
    /// A look that begins after the one under way is wanted.
    RunningAndWanted,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Lane {
    #[default]
    Usual,
    Slow,
}

#[derive(Default, PartialEq, Eq)]
struct PodLooks {
    stage: Stage,
    lane: Lane,
    is_retry_pending: bool,
    /// How many jobs work on the pod: the end of one and the start of the next may arrive in any order.
    jobs: usize,
    /// The newest hint that waits for the end of the jobs.
    hinted_at: Option<Moment>,
}

#[derive(Default)]
pub(super) struct LookQueue {
    pods: BTreeMap<PodUid, PodLooks>,
    usual: VecDeque<PodUid>,
    slow: VecDeque<PodUid>,
    /// The looks under way in the usual lane, the oldest first.
    usual_running: VecDeque<(Moment, PodUid)>,
    slow_running: usize,
    is_timer_set: bool,
}

impl LookQueue {
    /// Wants a look at the pod that begins from now on.
    pub(super) fn ask(&mut self, uid: &PodUid) {
        let pod = self.pods.entry(uid.clone()).or_default();
        match pod.stage {
            Stage::Idle => {
                pod.stage = Stage::Queued;
                match pod.lane {
                    Lane::Usual => self.usual.push_back(uid.clone()),
                    Lane::Slow => self.slow.push_back(uid.clone()),
                }
            }
            Stage::Running => pod.stage = Stage::RunningAndWanted,
            Stage::Queued | Stage::RunningAndWanted => {}
        }
    }

    /// Something may have happened to the pod by `at`.
    pub(super) fn hint(&mut self, uid: &PodUid, at: Moment) {
        match self.pods.get_mut(uid).filter(|pod| pod.jobs > 0) {
            Some(pod) => pod.hinted_at = pod.hinted_at.max(Some(at)),
            None => self.ask(uid),
        }
    }

    pub(super) fn job_started(&mut self, uid: &PodUid) {
        self.pods.entry(uid.clone()).or_default().jobs += 1;
    }

    /// Asks for a look when the last one, `looked_at`, is older than a hint. Returns whether the pod has neither a job left nor
    /// such a hint.
    pub(super) fn job_ended(&mut self, uid: &PodUid, looked_at: Option<Moment>) -> bool {
        let Some(pod) = self.pods.get_mut(uid) else {
            return true;
        };
        pod.jobs = pod.jobs.saturating_sub(1);
        if pod.jobs > 0 {
            return false;
        }
        let is_due = pod.hinted_at.take().is_some_and(|hint| looked_at <= Some(hint));
        if is_due {
            self.ask(uid);
        }
        self.tidy(uid);
        !is_due
    }

    pub(super) fn has_job(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|pod| pod.jobs > 0)
    }

    /// Takes the pods whose looks begin now, at most one look per pod.
    pub(super) fn start(&mut self, now: Moment) -> Vec<PodUid> {
        let mut started = Vec::new();
        while self.slow_running < SLOW_LOOKS_IN_FLIGHT
            && let Some(uid) = self.slow.pop_front()
        {
            self.slow_running += 1;
            started.push(uid);
        }
        while !self.usual.is_empty()
            && (self.usual_running.len() < LOOKS_IN_FLIGHT || self.move_to_slow_lane(now))
            && let Some(uid) = self.usual.pop_front()
        {
            self.usual_running.push_back((now, uid.clone()));
            started.push(uid);
        }
        for uid in &started {
            self.pods.entry(uid.clone()).or_default().stage = Stage::Running;
        }
        started
    }

    /// Moves the oldest look of the usual lane, if it is slow by now and the slow lane has room.
    fn move_to_slow_lane(&mut self, now: Moment) -> bool {
        let is_slow = |(began, _): &(Moment, PodUid)| now.since(*began) >= SLOW_LOOK;
        if self.slow_running >= SLOW_LOOKS_IN_FLIGHT || !self.usual_running.front().is_some_and(is_slow) {
            return false;
        }
        let Some((_, uid)) = self.usual_running.pop_front() else {
            return false;
        };
        self.slow_running += 1;
        self.pods.entry(uid).or_default().lane = Lane::Slow;
        true
    }

    /// After which time the oldest look of a full usual lane is slow; `None` while nothing waits for that, or when
    /// the timer is set already.
    pub(super) fn set_timer(&mut self, now: Moment) -> Option<Duration> {
        let (began, _) = self.usual_running.front()?;
        let left = SLOW_LOOK.saturating_sub(now.since(*began));
        // A look that is slow already found the slow lane full, and a look that ends there makes room.
        if self.usual.is_empty() || self.is_timer_set || left.is_zero() {
            return None;
        }
        self.is_timer_set = true;
        Some(left)
    }

    pub(super) fn timer_fired(&mut self) {
        self.is_timer_set = false;
    }

    pub(super) fn ended(&mut self, uid: &PodUid, took: Duration) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        match pod.lane {
            Lane::Usual => self.usual_running.retain(|(_, running)| running != uid),
            Lane::Slow => self.slow_running -= 1,
        }
        if took < SLOW_LOOK {
            pod.lane = Lane::Usual;
        }
        if std::mem::take(&mut pod.stage) == Stage::RunningAndWanted {
            self.ask(uid);
        }
        self.tidy(uid);
    }

    /// The look failed. Returns whether a pause begins; [`Self::retry`] ends it.
    pub(super) fn failed(&mut self, uid: &PodUid) -> bool {
        let pod = self.pods.entry(uid.clone()).or_default();
        !std::mem::replace(&mut pod.is_retry_pending, true)
    }

    pub(super) fn retry(&mut self, uid: &PodUid, now: Moment) {
        if let Some(pod) = self.pods.get_mut(uid) {
            pod.is_retry_pending = false;
        }
        self.hint(uid, now);
    }

    /// Forgets that the pod's looks were slow. A look that is still to come or under way decides that anew.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        if let Some(pod) = self.pods.get_mut(uid).filter(|pod| pod.stage == Stage::Idle) {
            pod.lane = Lane::Usual;
            self.tidy(uid);
        }
    }

    fn tidy(&mut self, uid: &PodUid) {
        if self.pods.get(uid).is_some_and(|pod| *pod == PodLooks::default()) {
            self.pods.remove(uid);
        }
    }

    /// Whether no look is wanted or under way.
    pub(super) fn is_idle(&self) -> bool {
        let running = self.usual_running.len() + self.slow_running;
        self.usual.is_empty() && self.slow.is_empty() && running == 0
    }

    pub(super) fn table_sizes(&self) -> TableSizes {
        let running = self.usual_running.len() + self.slow_running;
        vec![
            ("observer.looks", self.pods.len()),
            ("observer.looks_queued", self.usual.len() + self.slow.len()),
            ("observer.looks_running", running),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_start(Duration::from_secs(seconds))
    }

    fn pod(name: &str) -> PodUid {
        PodUid::from(name)
    }

    fn pods(prefix: &str, count: usize) -> Vec<PodUid> {
        (0..count)
            .map(|number| pod(&format!("{prefix}{number}")))
            .collect()
    }

    fn is_empty(queue: &LookQueue) -> bool {
        queue.is_idle() && queue.table_sizes().iter().all(|(_, size)| *size == 0)
    }

    #[test]
    fn looks_begin_in_order_and_once_per_pod() {
        let mut queue = LookQueue::default();
        for name in ["b", "a", "b"] {
            queue.ask(&pod(name));
        }
        assert_eq!(queue.start(at(0)), [pod("b"), pod("a")]);
        queue.ask(&pod("b"));
        assert!(queue.start(at(0)).is_empty(), "a second look at the same pod");
        queue.ended(&pod("b"), Duration::ZERO);
        assert_eq!(queue.start(at(0)), [pod("b")]);
        assert!(!queue.is_idle());
        for name in ["a", "b"] {
            queue.ended(&pod(name), Duration::ZERO);
        }
        assert!(is_empty(&queue));
    }

    #[test]
    fn hints_wait_for_the_end_of_all_jobs() {
        // The hints, when the last look began, and whether another one is due.
        let check = |hints: &[u64], looked_at: Option<u64>, expected: bool| {
            let mut queue = LookQueue::default();
            let web = pod("web");
            queue.job_started(&web);
            queue.job_started(&web);
            for hint in hints {
                queue.hint(&web, at(*hint));
            }
            assert!(!queue.job_ended(&web, None), "one job is left");
            assert!(queue.has_job(&web) && queue.start(at(9)).is_empty());
            assert_eq!(queue.job_ended(&web, looked_at.map(at)), !expected, "{hints:?}");
            assert_eq!(queue.start(at(9)).len(), usize::from(expected), "{hints:?}");
            queue.ended(&web, Duration::ZERO);
            assert!(is_empty(&queue));
        };
        check(&[], None, false);
        check(&[], Some(1), false);
        check(&[5], None, true);
        check(&[5], Some(5), true);
        check(&[5], Some(4), true);
        check(&[5], Some(6), false);
        // A list that began earlier may arrive later.
        check(&[5, 3], Some(4), true);
    }

    #[test]
    fn slow_looks_give_up_their_place() {
        let mut queue = LookQueue::default();
        let stuck = pods("stuck", LOOKS_IN_FLIGHT);
        stuck.iter().for_each(|uid| queue.ask(uid));
        assert_eq!(queue.start(at(0)), stuck);
        assert_eq!(queue.set_timer(at(0)), None, "nothing waits");
        queue.ask(&pod("web"));
        assert!(queue.start(at(1)).is_empty());
        assert_eq!(queue.set_timer(at(1)), Some(Duration::from_secs(1)));
        assert_eq!(queue.set_timer(at(1)), None, "set already");
        queue.timer_fired();
        assert_eq!(queue.start(at(2)), [pod("web")]);
        assert_eq!(queue.set_timer(at(2)), None);
        queue.ended(&pod("web"), Duration::ZERO);

        // The one that was slow goes to the slow lane at once the next time, and back after a quick look.
        queue.ended(&stuck[0], Duration::from_secs(60));
        for uid in &stuck[1..] {
            queue.ended(uid, Duration::ZERO);
        }
        let others = pods("other", LOOKS_IN_FLIGHT);
        others.iter().chain([&stuck[0]]).for_each(|uid| queue.ask(uid));
        assert_eq!(queue.start(at(60)).len(), LOOKS_IN_FLIGHT + 1);
        queue.ended(&stuck[0], Duration::ZERO);
        queue.ask(&stuck[0]);
        assert!(queue.start(at(60)).is_empty());
        others.iter().for_each(|uid| queue.ended(uid, Duration::ZERO));
        assert_eq!(queue.start(at(61)), [stuck[0].clone()]);
        queue.ended(&stuck[0], Duration::ZERO);
        assert!(is_empty(&queue));
    }

    #[test]
    fn the_slow_lane_is_bounded() {
        let mut queue = LookQueue::default();
        let limit = LOOKS_IN_FLIGHT + SLOW_LOOKS_IN_FLIGHT;
        let stuck = pods("stuck", limit + 1);
        stuck.iter().for_each(|uid| queue.ask(uid));
        let mut started = 0;
        for round in 0..20 {
            started += queue.start(at(round * 2)).len();
        }
        assert_eq!(started, limit);
        assert_eq!(queue.set_timer(at(40)), None, "a timer cannot help");
        queue.ended(&stuck[0], Duration::from_secs(60));
        assert_eq!(queue.start(at(60)), [stuck[limit].clone()]);
    }

    #[test]
    fn a_failed_look_is_retried_after_one_pause() {
        let mut queue = LookQueue::default();
        let web = pod("web");
        queue.ask(&web);
        queue.start(at(0));
        queue.ended(&web, Duration::ZERO);
        assert!(queue.failed(&web));
        queue.ask(&web);
        assert_eq!(queue.start(at(0)).len(), 1, "others may ask meanwhile");
        queue.ended(&web, Duration::ZERO);
        assert!(!queue.failed(&web), "the pause is under way");
        queue.job_started(&web);
        queue.retry(&web, at(1));
        assert!(queue.start(at(1)).is_empty(), "the job looks itself");
        assert!(!queue.job_ended(&web, Some(at(0))));
        assert_eq!(queue.start(at(1)).len(), 1);
        queue.ended(&web, Duration::ZERO);
        assert!(is_empty(&queue));
    }

    #[test]
    fn nothing_is_kept_of_a_forgotten_pod() {
        let mut queue = LookQueue::default();
        let stuck = pods("stuck", LOOKS_IN_FLIGHT + 1);
        stuck.iter().for_each(|uid| queue.ask(uid));
        queue.start(at(0));
        queue.start(at(2));
        // While its look runs the lane stays known, so that its place becomes free.
        queue.forget(&stuck[0]);
        for uid in &stuck {
            queue.ended(uid, Duration::from_secs(5));
            queue.forget(uid);
        }
        assert!(is_empty(&queue));
    }
}
