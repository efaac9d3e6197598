//! A single-threaded executor on virtual time.
//!
//! Owns the tasks, which of the ready ones is polled next (the seed decides), the timers and both clocks. When nothing is
//! ready, time jumps to the next timer. It must not read a real clock, and the order in which tasks are woken must not
//! matter: only the set of ready tasks does, because libraries wake in orders of their own.
//!
//! One real thing is measured: the processor time of each poll. The program has two workers; a task of rubelet's that computes
//! for long without yielding delays every pod, so such a poll fails the run as a panic does.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures_util::future::BoxFuture;
use rubelet_model::Timestamp;
use rubelet_ports::{Clock, Moment, Spawner};
use rustix::time::{ClockId, clock_gettime};

use crate::dice::Dice;

/// When the virtual wall clock begins: 2026-01-01T00:00:00Z.
const WALL_START_SECONDS: i64 = 1_767_225_600;

/// How the text of a poll that took too long names it.
pub const STALLED: &str = "held its worker for";
/// The longest processor time that one poll of rubelet's may take, also in a debug build.
const STALL: Duration = Duration::from_millis(100);

/// Whose task it is. A crash of rubelet drops its tasks; the world goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Rubelet,
    World,
}

struct Task {
    group: Group,
    name: String,
    /// Taken out while it is polled.
    future: Option<BoxFuture<'static, ()>>,
    waker: Waker,
}

struct State {
    tasks: BTreeMap<u64, Task>,
    ready: BTreeSet<u64>,
    timers: BTreeMap<(Duration, u64), Waker>,
    next_task: u64,
    next_timer: u64,
    elapsed: Duration,
    wall: Timestamp,
    dice: Dice,
    panics: Vec<String>,
    polls: u64,
    meter: Option<Meter>,
    /// What the meter counted while tasks of rubelet's were polled, by their names.
    work: Work,
}

/// A number that only grows, with what a thread does.
pub type Meter = fn() -> u64;

/// Amounts of work by the names of the tasks that did it.
pub type Work = BTreeMap<String, u64>;

struct Shared {
    state: Mutex<State>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // One thread runs a simulation; the lock only makes handles shareable, and is never held across a poll or a drop.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct TaskWaker {
    id: u64,
    shared: Weak<Shared>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.shared.upgrade() {
            let mut state = shared.lock();
            if state.tasks.contains_key(&self.id) {
                state.ready.insert(self.id);
            }
        }
    }
}

/// A handle; all handles are of one executor.
#[derive(Clone)]
pub struct Executor {
    shared: Arc<Shared>,
}

/// What one step did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Polled(Group),
    /// Nothing was ready.
    Idle,
}

impl Executor {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    tasks: BTreeMap::new(),
                    ready: BTreeSet::new(),
                    timers: BTreeMap::new(),
                    next_task: 0,
                    next_timer: 0,
                    elapsed: Duration::ZERO,
                    wall: Timestamp::from_unix_seconds(WALL_START_SECONDS),
                    dice: Dice::new(seed, "executor"),
                    panics: Vec::new(),
                    polls: 0,
                    meter: None,
                    work: Work::new(),
                }),
            }),
        }
    }

    pub fn spawn(&self, group: Group, name: &str, future: BoxFuture<'static, ()>) {
        let mut state = self.shared.lock();
        let id = state.next_task;
        state.next_task += 1;
        let waker = Waker::from(Arc::new(TaskWaker {
            id,
            shared: Arc::downgrade(&self.shared),
        }));
        let task = Task {
            group,
            name: name.to_owned(),
            future: Some(future),
            waker,
        };
        state.tasks.insert(id, task);
        state.ready.insert(id);
    }

    /// Polls one of the ready tasks.
    pub fn step(&self) -> Step {
        let (id, group, mut future, waker, meter) = {
            let mut guard = self.shared.lock();
            let state = &mut *guard;
            let place = state.dice.below(state.ready.len());
            let Some(id) = state.ready.iter().nth(place).copied() else {
                return Step::Idle;
            };
            state.ready.remove(&id);
            state.polls += 1;
            let Some(task) = state.tasks.get_mut(&id) else {
                return Step::Polled(Group::World);
            };
            let Some(future) = task.future.take() else {
                return Step::Polled(task.group);
            };
            (id, task.group, future, task.waker.clone(), state.meter)
        };
        let mut context = Context::from_waker(&waker);
        let begun = thread_time();
        let counted = meter.map(|meter| meter());
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut context)));
        if group == Group::Rubelet {
            if let (Some(meter), Some(counted)) = (meter, counted) {
                self.note_work(id, meter() - counted);
            }
            self.check_stall(id, thread_time().saturating_sub(begun));
        }
        let done = match polled {
            Ok(Poll::Pending) => {
                let mut state = self.shared.lock();
                if let Some(task) = state.tasks.get_mut(&id) {
                    task.future = Some(future);
                    return Step::Polled(group);
                }
                None
            }
            Ok(Poll::Ready(())) => None,
            Err(panic) => Some(panic_text(panic.as_ref())),
        };
        let mut state = self.shared.lock();
        let task = state.tasks.remove(&id);
        state.ready.remove(&id);
        if let Some(text) = done {
            let name = task.as_ref().map_or("", |task| task.name.as_str());
            state.panics.push(format!("task {name:?} panicked: {text}"));
        }
        drop(state);
        drop(task);
        Step::Polled(group)
    }

    fn note_work(&self, id: u64, amount: u64) {
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let name = state.tasks.get(&id).map_or("", |task| task.name.as_str());
        *state.work.entry(name.to_owned()).or_default() += amount;
    }

    /// From now on the work of rubelet's tasks is counted.
    pub fn set_meter(&self, meter: Meter) {
        self.shared.lock().meter = Some(meter);
    }

    /// What was counted since the last question.
    pub fn take_work(&self) -> Work {
        std::mem::take(&mut self.shared.lock().work)
    }

    fn check_stall(&self, id: u64, busy: Duration) {
        if busy < STALL {
            return;
        }
        let mut state = self.shared.lock();
        let name = state.tasks.get(&id).map_or("", |task| task.name.as_str());
        let stall = format!("task {name:?} {STALLED} {} ms", busy.as_millis());
        state.panics.push(stall);
    }

    /// Lets time pass until the next timer, at most until `limit`. False when the limit was reached and nothing is due.
    pub fn advance(&self, limit: Duration) -> bool {
        let mut due = Vec::new();
        {
            let mut guard = self.shared.lock();
            let state = &mut *guard;
            let next = state.timers.first_key_value().map(|((at, _), _)| *at);
            let target = next.map_or(limit, |at| at.min(limit)).max(state.elapsed);
            state.wall = state.wall.plus(target.saturating_sub(state.elapsed));
            state.elapsed = target;
            while let Some(entry) = state.timers.first_entry() {
                if entry.key().0 > target {
                    break;
                }
                due.push(entry.remove());
            }
        }
        let any = !due.is_empty();
        for waker in due {
            waker.wake();
        }
        any
    }

    /// Drops all tasks of a group at once: nothing of them runs any more, not even to their next await.
    pub fn drop_group(&self, group: Group) {
        loop {
            let dropped: Vec<Task> = {
                let mut guard = self.shared.lock();
                let state = &mut *guard;
                let ids: Vec<u64> = state
                    .tasks
                    .iter()
                    .filter(|(_, task)| task.group == group)
                    .map(|(id, _)| *id)
                    .collect();
                for id in &ids {
                    state.ready.remove(id);
                }
                ids.iter().filter_map(|id| state.tasks.remove(id)).collect()
            };
            // Dropping runs destructors, which may wake others and even spawn.
            if dropped.is_empty() {
                return;
            }
            drop(dropped);
        }
    }

    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.shared.lock().elapsed
    }

    #[must_use]
    pub fn polls(&self) -> u64 {
        self.shared.lock().polls
    }

    /// Sets the wall clock; monotonic time and timers do not notice.
    pub fn move_wall(&self, seconds: i64) {
        let mut state = self.shared.lock();
        let step = Duration::from_secs(seconds.unsigned_abs());
        state.wall = if seconds < 0 {
            state.wall.minus(step)
        } else {
            state.wall.plus(step)
        };
    }

    /// How many tasks a group has.
    #[must_use]
    pub fn tasks(&self, group: Group) -> usize {
        let state = self.shared.lock();
        state.tasks.values().filter(|task| task.group == group).count()
    }

    /// Names of the tasks of a group, in order of their birth.
    #[must_use]
    pub fn task_names(&self, group: Group) -> Vec<String> {
        let state = self.shared.lock();
        let tasks = state.tasks.values().filter(|task| task.group == group);
        tasks.map(|task| task.name.clone()).collect()
    }

    /// Panics since the last question.
    pub fn take_panics(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.lock().panics)
    }

    /// A spawner for one life of rubelet.
    #[must_use]
    pub fn life(&self) -> Life {
        Life {
            executor: self.clone(),
            is_over: Arc::new(AtomicBool::new(false)),
        }
    }
}

/// The processor time of this thread: what other programs take does not count.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanoseconds)
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no text".to_owned())
}

/// One run of rubelet from its start to its crash.
#[derive(Clone)]
pub struct Life {
    executor: Executor,
    is_over: Arc<AtomicBool>,
}

impl Life {
    /// Everything that this life has under way is dropped where it is.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.executor.drop_group(Group::Rubelet);
    }
}

impl Spawner for Life {
    fn spawn(&self, name: &str, future: BoxFuture<'static, ()>) {
        // A destructor may spawn while the process dies: that never runs.
        if !self.is_over.load(Ordering::Relaxed) {
            self.executor.spawn(Group::Rubelet, name, future);
        }
    }
}

impl Clock for Executor {
    fn now(&self) -> Timestamp {
        self.shared.lock().wall
    }

    fn moment(&self) -> Moment {
        Moment::from_start(self.elapsed())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let mut state = self.shared.lock();
        // Real timers fire a little late, and not in the order in which they were set.
        let late = Duration::from_micros(state.dice.between(0, 900));
        let until = state.elapsed.saturating_add(duration).saturating_add(late);
        Box::pin(Sleep {
            shared: self.shared.clone(),
            until,
            key: None,
        })
    }
}

struct Sleep {
    shared: Arc<Shared>,
    until: Duration,
    key: Option<(Duration, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        if state.elapsed >= self.until {
            return Poll::Ready(());
        }
        let key = match self.key {
            Some(key) => key,
            None => {
                let key = (self.until, state.next_timer);
                state.next_timer += 1;
                self.key = Some(key);
                key
            }
        };
        state.timers.insert(key, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let old = self.shared.lock().timers.remove(&key);
            drop(old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn run(executor: &Executor, limit: Duration) {
        loop {
            match executor.step() {
                Step::Polled(_) => {}
                Step::Idle => {
                    if !executor.advance(limit) {
                        return;
                    }
                }
            }
        }
    }

    fn order(seed: u64) -> Vec<u64> {
        let executor = Executor::new(seed);
        let seen = Arc::new(Mutex::new(Vec::new()));
        for number in 0..6 {
            let (clock, seen) = (executor.clone(), seen.clone());
            executor.spawn(
                Group::Rubelet,
                "task",
                Box::pin(async move {
                    seen.lock().unwrap().push(number);
                    clock.sleep(Duration::from_secs(10 - number)).await;
                    seen.lock().unwrap().push(number + 10);
                }),
            );
        }
        run(&executor, Duration::from_secs(60));
        assert_eq!(executor.elapsed(), Duration::from_secs(60));
        std::mem::take(&mut *seen.lock().unwrap())
    }

    #[test]
    fn the_seed_decides_the_order_and_time_the_rest() {
        assert_eq!(order(3), order(3));
        assert!((0..20).any(|seed| order(seed)[..6] != order(seed + 1)[..6]));
        assert_eq!(order(5)[6..], [15, 14, 13, 12, 11, 10]);
    }

    #[test]
    fn a_crash_drops_everything_at_once() {
        struct Counter(Arc<AtomicU64>);
        impl Drop for Counter {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let executor = Executor::new(1);
        let dropped = Arc::new(AtomicU64::new(0));
        let life = executor.life();
        for _ in 0..3 {
            let (clock, counter) = (executor.clone(), Counter(dropped.clone()));
            life.spawn(
                "task",
                Box::pin(async move {
                    clock.sleep(Duration::from_secs(1)).await;
                    std::mem::forget(counter);
                }),
            );
        }
        executor.step();
        life.end();
        life.spawn("late", Box::pin(async { panic!("must not run") }));
        run(&executor, Duration::from_secs(5));
        assert_eq!(dropped.load(Ordering::Relaxed), 3);
        assert!(executor.take_panics().is_empty());
        assert!(executor.task_names(Group::Rubelet).is_empty());
    }

    #[test]
    fn a_panic_ends_its_task_only() {
        let executor = Executor::new(1);
        executor.spawn(Group::World, "bad", Box::pin(async { panic!("on purpose") }));
        let clock = executor.clone();
        executor.spawn(
            Group::World,
            "good",
            Box::pin(async move { clock.sleep(Duration::from_secs(1)).await }),
        );
        run(&executor, Duration::from_secs(5));
        assert_eq!(executor.take_panics(), ["task \"bad\" panicked: on purpose"]);
    }

    #[test]
    fn a_poll_that_holds_its_worker_is_a_failure() {
        let executor = Executor::new(1);
        let compute = || {
            let begun = thread_time();
            while thread_time().saturating_sub(begun) < STALL {
                std::hint::spin_loop();
            }
        };
        executor.spawn(Group::World, "the world", Box::pin(async move { compute() }));
        executor.spawn(Group::Rubelet, "quick", Box::pin(async {}));
        executor.spawn(Group::Rubelet, "slow", Box::pin(async move { compute() }));
        run(&executor, Duration::from_secs(1));
        let failures = executor.take_panics();
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(
            failures[0].starts_with("task \"slow\" held its worker for "),
            "{failures:?}"
        );
    }

    #[test]
    fn the_wall_clock_moves_alone() {
        let executor = Executor::new(1);
        let before = executor.now();
        executor.advance(Duration::from_secs(10));
        assert_eq!(executor.now().since(before), Duration::from_secs(10));
        executor.move_wall(-3600);
        assert_eq!(before.since(executor.now()), Duration::from_secs(3590));
        assert_eq!(executor.elapsed(), Duration::from_secs(10));
    }
}
