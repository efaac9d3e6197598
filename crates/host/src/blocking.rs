//! A small pool of threads for system calls that may block.
//!
//! Owns threads, their number and their queue. A call that never comes back (a dead mount) costs one thread: it is no longer
//! counted as one of the few, so that other paths go on, until the bound on such threads is reached too. Threads are made on
//! demand and end when idle. What the calls do is not known here.
//!
//! A process that is killed while a call hangs in the kernel keeps its open files until that call comes back: its ports and
//! locks stay taken. [`BlockingPool::with_own_files`] is for calls that may hang like that: its threads share no open file
//! with the process, and a thread beside them hands over the results, because that wakes others through one.
//!
//! ```text
//! queued ──► running ──► done
//!    │          └── longer than `stuck_after`: not counted, another thread may start
//!    │          └── as many on one path as may work: further calls on it wait in line, others pass them
//!    └── caller gone: skipped
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::oneshot;

use crate::spawner::panic_message;

/// Calls walk no deep recursion; what is not touched of a stack costs nothing, but the address space is bounded too.
const STACK_BYTES: usize = 256 << 10;

#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Threads that work at the same time; also the calls that run on one path, so that a path that hangs holds no more of
    /// them until its first call is overdue.
    pub threads: usize,
    /// Further threads that may be lost to calls that hang.
    pub stuck_threads: usize,
    /// Calls that wait for a thread.
    pub queue: usize,
    /// An idle thread ends after this time.
    pub idle: Duration,
    /// A call that takes longer is not counted among the threads that work.
    pub stuck_after: Duration,
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self {
            threads: 4,
            stuck_threads: 32,
            queue: 1024,
            idle: Duration::from_secs(10),
            stuck_after: Duration::from_secs(1),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PoolError {
    #[error("no answer within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    #[error("an earlier call on this path still hangs")]
    StillHangs,
    #[error("too many file calls wait already")]
    QueueFull,
    #[error("no thread can be started: {0}")]
    NoThread(String),
    #[error("the call has panicked: {0}")]
    Panicked(String),
}

/// Handles are cheap to copy; the threads end when they are idle.
#[derive(Clone)]
pub struct BlockingPool {
    shared: Arc<Shared>,
}

struct Shared {
    limits: PoolLimits,
    // A std mutex: it is held for a few steps, by threads that are no tasks too.
    state: Mutex<State>,
    work: Condvar,
    /// Where results go when the threads share no open files.
    answers: Option<mpsc::Sender<Delivery>>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    running: BTreeMap<u64, Running>,
    next_id: u64,
}

struct Job {
    path: PathBuf,
    overdue_at: Instant,
    unwanted: Arc<AtomicBool>,
    call: Box<dyn FnOnce() -> Delivery + Send>,
}

/// Hands the result over, after the thread is free for the next call: so a caller that calls again needs no second thread.
type Delivery = Box<dyn FnOnce() + Send>;

struct Running {
    path: PathBuf,
    since: Instant,
    overdue_at: Instant,
}

/// Marks a call as unwanted when its caller has gone.
struct Waiter(Arc<AtomicBool>);

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl BlockingPool {
    #[must_use]
    pub fn new(limits: PoolLimits) -> Self {
        Self::with_answers(limits, None)
    }

    /// A pool whose threads share no open file with the process. Calls must not use, nor drop, what was opened elsewhere; nor
    /// may they log, because the log may go to a file.
    #[must_use]
    pub fn with_own_files(limits: PoolLimits) -> Self {
        let (sender, receiver) = mpsc::channel::<Delivery>();
        let thread = std::thread::Builder::new()
            .name("answers".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || receiver.into_iter().for_each(|delivery| delivery()));
        // Without that thread the others deliver themselves, and share what is open.
        Self::with_answers(limits, thread.is_ok().then_some(sender))
    }

    fn with_answers(limits: PoolLimits, answers: Option<mpsc::Sender<Delivery>>) -> Self {
        Self {
            shared: Arc::new(Shared {
                limits,
                state: Mutex::default(),
                work: Condvar::new(),
                answers,
            }),
        }
    }

    /// Runs a call on a thread of the pool. The deadline covers the wait for a thread. A call that has begun goes on after its
    /// deadline or when this future is dropped; one that has not is skipped.
    ///
    /// # Errors
    /// When the deadline has passed, a call on the same path is overdue already, or the pool is at its limits.
    pub async fn run<T: Send + 'static>(
        &self,
        path: &Path,
        deadline: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, PoolError> {
        let (sender, receiver) = oneshot::channel();
        let unwanted = Arc::new(AtomicBool::new(false));
        let _waiter = Waiter(Arc::clone(&unwanted));
        self.submit(Job {
            path: path.to_owned(),
            overdue_at: Instant::now() + deadline,
            unwanted,
            call: Box::new(move || {
                let result = catch_unwind(AssertUnwindSafe(call));
                // When the caller no longer waits, the result is dropped.
                Box::new(move || drop(sender.send(result)))
            }),
        })?;
        let answer = self.wait(receiver, deadline).await?;
        answer.map_err(|panic| PoolError::Panicked(panic_message(panic.as_ref()).to_owned()))
    }

    async fn wait<T>(&self, mut receiver: oneshot::Receiver<T>, deadline: Duration) -> Result<T, PoolError> {
        let end = tokio::time::Instant::now() + deadline;
        loop {
            let look_again = tokio::time::Instant::now() + self.shared.limits.stuck_after;
            match tokio::time::timeout_at(look_again.min(end), &mut receiver).await {
                Ok(Ok(answer)) => return Ok(answer),
                // The job was dropped unrun, which only happens after its caller has gone.
                Ok(Err(_)) => return Err(PoolError::TimedOut(deadline)),
                Err(_) if tokio::time::Instant::now() >= end => return Err(PoolError::TimedOut(deadline)),
                // What runs may be stuck by now: the queue goes on with another thread.
                Err(_) => self.shared.add_threads(&mut self.shared.lock())?,
            }
        }
    }

    fn submit(&self, job: Job) -> Result<(), PoolError> {
        let shared = &self.shared;
        let mut state = shared.lock();
        if state.is_overdue(&job.path) {
            return Err(PoolError::StillHangs);
        }
        if state.queue.len() >= shared.limits.queue {
            state.queue.retain(|job| !job.unwanted.load(Ordering::Relaxed));
        }
        if state.queue.len() >= shared.limits.queue {
            return Err(PoolError::QueueFull);
        }
        state.queue.push_back(job);
        if let Err(error) = shared.add_threads(&mut state) {
            state.queue.pop_back();
            return Err(error);
        }
        drop(state);
        shared.work.notify_one();
        Ok(())
    }

    #[cfg(test)]
    fn thread_count(&self) -> usize {
        self.shared.lock().threads
    }
}

impl State {
    /// Whether a call on this path should have come back already.
    fn is_overdue(&self, path: &Path) -> bool {
        let now = Instant::now();
        self.running
            .values()
            .any(|running| running.path == path && now >= running.overdue_at)
    }

    /// The calls in line whose path has room for them, by their place.
    fn ready(&self, calls_per_path: usize) -> impl Iterator<Item = usize> {
        let mut calls: BTreeMap<&Path, usize> = BTreeMap::new();
        for running in self.running.values() {
            *calls.entry(&running.path).or_default() += 1;
        }
        let line = self.queue.iter().enumerate();
        line.filter_map(move |(place, job)| {
            let calls = calls.entry(&job.path).or_default();
            *calls += 1;
            (*calls <= calls_per_path).then_some(place)
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Calls run outside of the lock, so that no panic leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread when the queue needs one and the limits allow it.
    fn add_threads(self: &Arc<Self>, state: &mut State) -> Result<(), PoolError> {
        let stuck = state.running.values();
        let stuck = stuck
            .filter(|running| running.since.elapsed() >= self.limits.stuck_after)
            .count();
        let working = state.threads.saturating_sub(stuck);
        let free = state.threads.saturating_sub(state.running.len());
        let wanted = state.ready(self.limits.threads).nth(free).is_some()
            && working < self.limits.threads
            && state.threads < self.limits.threads + self.limits.stuck_threads;
        if !wanted {
            return Ok(());
        }
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name("files".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || shared.work());
        match thread {
            Ok(_) => state.threads += 1,
            // The threads that already work will take from the queue.
            Err(_) if working > 0 => {}
            Err(error) => return Err(PoolError::NoThread(error.to_string())),
        }
        Ok(())
    }

    fn work(&self) {
        if self.answers.is_some() {
            leave_open_files();
        }
        while let Some((id, job)) = self.next_job() {
            let wanted = !job.unwanted.load(Ordering::Relaxed);
            let delivery = wanted.then(|| (job.call)());
            self.lock().running.remove(&id);
            match (delivery, &self.answers) {
                (Some(delivery), Some(answers)) => drop(answers.send(delivery)),
                (Some(delivery), None) => delivery(),
                (None, _) => {}
            }
        }
    }

    /// The next job, or nothing after idling long enough: then the thread is not counted any more.
    fn next_job(&self) -> Option<(u64, Job)> {
        let mut state = self.lock();
        loop {
            let next = state.ready(self.limits.threads).next();
            if let Some(job) = next.and_then(|place| state.queue.remove(place)) {
                let id = state.next_id;
                state.next_id += 1;
                let running = Running {
                    path: job.path.clone(),
                    since: Instant::now(),
                    overdue_at: job.overdue_at,
                };
                state.running.insert(id, running);
                return Some((id, job));
            }
            let (woken, timeout) = self
                .work
                .wait_timeout(state, self.limits.idle)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            // Calls that wait for their path are taken by the threads that are on it.
            if timeout.timed_out() && state.ready(self.limits.threads).next().is_none() {
                state.threads -= 1;
                return None;
            }
        }
    }
}

/// Gives the calling thread a table of open files of its own, with the standard ones only. Kernels before 5.9 cannot do that:
/// there the thread goes on sharing.
fn leave_open_files() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call takes numbers only. It takes a copy of the table before it closes anything, so that what the rest of
    // the process has open stays; and nothing was opened by this thread yet.
    #[expect(unsafe_code, reason = "the call has no safe form")]
    unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_UNSHARE,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn pool(limits: PoolLimits) -> BlockingPool {
        BlockingPool::new(limits)
    }

    /// A call that hangs until the sender is dropped.
    fn hang(
        pool: &BlockingPool,
        path: &str,
        deadline: Duration,
    ) -> (mpsc::Sender<()>, tokio::task::JoinHandle<Result<(), PoolError>>) {
        let (release, wait) = mpsc::channel::<()>();
        let pool = pool.clone();
        let path = PathBuf::from(path);
        let task = tokio::spawn(async move {
            pool.run(&path, deadline, move || {
                let _ = wait.recv();
            })
            .await
        });
        (release, task)
    }

    #[tokio::test]
    async fn results_and_panics_come_back() {
        let pool = pool(PoolLimits::default());
        let path = Path::new("/a");
        assert_eq!(pool.run(path, LONG, || 7).await, Ok(7));
        let panicked = pool.run(path, LONG, || panic!("on purpose")).await;
        assert_eq!(
            panicked,
            Err::<(), _>(PoolError::Panicked("on purpose".to_owned()))
        );
        assert_eq!(pool.run(path, LONG, || 8).await, Ok(8), "the thread goes on");
        assert_eq!(pool.thread_count(), 1);
    }

    #[tokio::test]
    async fn hung_calls_do_not_keep_others_waiting() {
        let limits = PoolLimits {
            threads: 2,
            stuck_threads: 2,
            stuck_after: Duration::from_millis(20),
            ..PoolLimits::default()
        };
        let pool = pool(limits);
        // Long enough for a busy machine to begin with them.
        let (first, first_task) = hang(&pool, "/dead/1", Duration::from_secs(2));
        let (second, second_task) = hang(&pool, "/dead/2", Duration::from_secs(2));
        assert_eq!(pool.run(Path::new("/live"), LONG, || 1).await, Ok(1));
        assert!(matches!(first_task.await.unwrap(), Err(PoolError::TimedOut(_))));
        assert!(matches!(second_task.await.unwrap(), Err(PoolError::TimedOut(_))));
        let again = pool.run(Path::new("/dead/1"), LONG, || ()).await;
        assert_eq!(
            again,
            Err(PoolError::StillHangs),
            "no second thread is lost on one path"
        );
        assert_eq!(pool.run(Path::new("/live"), LONG, || 2).await, Ok(2));
        drop((first, second));
        while pool.run(Path::new("/dead/1"), LONG, || ()).await.is_err() {
            tokio::task::yield_now().await;
        }
    }

    /// Before the first of them is overdue.
    #[tokio::test]
    async fn many_calls_on_one_path_leave_threads_to_others() {
        let limits = PoolLimits {
            threads: 2,
            stuck_threads: 4,
            stuck_after: Duration::from_millis(5),
            ..PoolLimits::default()
        };
        let pool = pool(limits);
        let calls: Vec<_> = (0..20).map(|_| hang(&pool, "/dead", LONG)).collect();
        while pool.shared.lock().queue.len() < 18 {
            tokio::task::yield_now().await;
        }
        // Longer than all of them would need to take every thread.
        let soon = Duration::from_millis(200);
        let waited = pool.run(Path::new("/dead"), soon, || ()).await;
        assert!(matches!(waited, Err(PoolError::TimedOut(_))), "it stands in line");
        assert_eq!(pool.run(Path::new("/live"), LONG, || 1).await, Ok(1));
        assert_eq!(pool.shared.lock().running.len(), 2);
        let (releases, tasks): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        drop(releases);
        for task in tasks {
            assert_eq!(task.await.unwrap(), Ok(()), "the line moves on");
        }
    }

    #[tokio::test]
    async fn the_bounds_hold_and_an_unwanted_call_is_skipped() {
        let limits = PoolLimits {
            threads: 1,
            stuck_threads: 0,
            queue: 1,
            stuck_after: LONG,
            ..PoolLimits::default()
        };
        let pool = pool(limits);
        let (release, hung) = hang(&pool, "/slow", LONG);
        while pool.shared.lock().running.is_empty() {
            tokio::task::yield_now().await;
        }
        let (ran, runs) = mpsc::channel();
        let short = Duration::from_millis(20);
        let unwanted = pool.run(Path::new("/b"), short, move || ran.send(())).await;
        assert!(matches!(unwanted, Err(PoolError::TimedOut(_))));
        let (last, waiting) = hang(&pool, "/c", LONG);
        drop(last);
        while pool
            .shared
            .lock()
            .queue
            .front()
            .is_none_or(|job| job.path != Path::new("/c"))
        {
            tokio::task::yield_now().await;
        }
        let full = pool.run(Path::new("/d"), LONG, || ()).await;
        assert_eq!(full, Err(PoolError::QueueFull));
        drop(release);
        assert_eq!(hung.await.unwrap(), Ok(()));
        assert_eq!(waiting.await.unwrap(), Ok(()));
        assert!(runs.try_recv().is_err(), "its caller no longer waited");
        assert_eq!(pool.thread_count(), 1);
    }

    #[tokio::test]
    async fn idle_threads_end() {
        let limits = PoolLimits {
            idle: Duration::from_millis(1),
            ..PoolLimits::default()
        };
        let pool = pool(limits);
        assert_eq!(pool.run(Path::new("/a"), LONG, || 7).await, Ok(7));
        let ended = tokio::time::timeout(LONG, async {
            while pool.thread_count() > 0 {
                tokio::task::yield_now().await;
            }
        });
        ended.await.unwrap();
        assert_eq!(
            pool.run(Path::new("/a"), LONG, || 8).await,
            Ok(8),
            "and come again"
        );
    }
}
