//! A simulated container runtime that behaves like containerd, well or badly.
//!
//! Owns the way of a call: it leaves rubelet, the runtime works on it in a task of its own, and the answer comes back or
//! does not. A caller that gives up may or may not stop the work, as with a real runtime. What really happened goes into
//! the history.

mod events;
mod exec;
mod faults;
mod images;
mod process;
mod reader;
mod script;
mod state;
mod writer;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};
use rubelet_ports::{Clock, RuntimeError, RuntimeErrorKind};
use rubelet_wire::cri::v1;
use tokio::sync::{oneshot, watch};

use crate::dice::SharedDice;
use crate::executor::{Executor, Group};
use crate::files::SimFiles;
use crate::history::{Ask, Cause, Fact, History};
use crate::trace::{Actor, Trace};

pub use faults::Faults;
use faults::{Course, Fate};
pub(crate) use images::is_missing;
pub use script::{Answer, Exit, Health, PROBE_KINDS, Script, probe_word};
use state::{Failure, Process, State};

pub(crate) const ENDPOINT: &str = "unix:///sim/runtime.sock";

const EXEC: &str = "ExecSync";
/// A command without a deadline, as that of a hook, may take as long as it likes.
const COMMAND_PATIENCE: Duration = Duration::from_secs(3600);
/// A call without a deadline that the runtime has forgotten ends with its connection.
const CONNECTION_PATIENCE: Duration = Duration::from_secs(300);

/// The deadline that the adapter gives every call.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_secs(120);

struct Inner {
    executor: Executor,
    dice: SharedDice,
    history: History,
    trace: Trace,
    files: SimFiles,
    faults: Mutex<Faults>,
    state: Mutex<State>,
}

/// A handle; all handles are of one runtime.
#[derive(Clone)]
pub struct SimRuntime {
    inner: Arc<Inner>,
}

/// A call as people and the history see it.
struct Call {
    method: &'static str,
    /// What it is about, in words.
    about: String,
    /// The id or uid that it is about, for faults that hit one pod.
    subject: String,
    /// `None` for calls that change nothing.
    ask: Option<Ask>,
    deadline: Option<Duration>,
}

impl Call {
    fn reading(method: &'static str, about: impl Into<String>) -> Self {
        let about = about.into();
        Self {
            method,
            subject: about.clone(),
            about,
            ask: None,
            deadline: Some(CALL_DEADLINE),
        }
    }

    fn writing(method: &'static str, about: impl Into<String>, subject: &str, ask: Option<Ask>) -> Self {
        Self {
            method,
            about: about.into(),
            subject: subject.to_owned(),
            ask,
            deadline: Some(CALL_DEADLINE),
        }
    }
}

/// What the work on one call needs to know.
#[derive(Clone)]
struct Work {
    runtime: SimRuntime,
    epoch: u64,
    caller: Arc<watch::Sender<bool>>,
    honours_cancel: bool,
}

impl Work {
    /// Whether the work goes on: the runtime is still the same, and the caller is there or does not matter.
    fn goes_on(&self) -> Result<(), Failure> {
        if self.runtime.epoch() != self.epoch {
            return Err(Failure::new(
                RuntimeErrorKind::Unavailable,
                "the runtime went away",
            ));
        }
        if self.honours_cancel && *self.caller.borrow() {
            return Err(Failure::new(RuntimeErrorKind::Cancelled, "context canceled"));
        }
        Ok(())
    }

    async fn pause(&self, low_ms: u64, high_ms: u64) {
        let time = self.runtime.inner.dice.with(|dice| dice.millis(low_ms, high_ms));
        self.runtime.inner.executor.sleep(time).await;
    }
}

/// Tells the work when its caller gives up.
struct CallerGuard(Arc<watch::Sender<bool>>);

impl Drop for CallerGuard {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

impl SimRuntime {
    #[must_use]
    pub fn new(
        executor: &Executor,
        dice: SharedDice,
        history: History,
        trace: Trace,
        files: SimFiles,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                executor: executor.clone(),
                dice,
                history,
                trace,
                files,
                faults: Mutex::new(Faults::calm()),
                state: Mutex::new(State::new()),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // One thread runs a simulation; the lock only makes handles shareable.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.inner.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_faults(&self, faults: Faults) {
        *self.faults() = faults;
    }

    fn epoch(&self) -> u64 {
        *self.lock().epoch.borrow()
    }

    fn say(&self, actor: Actor, text: impl Into<String>) {
        self.inner.trace.say(self.inner.executor.elapsed(), actor, text);
    }

    fn happened(&self, fact: Fact) {
        self.inner.history.add(self.inner.executor.elapsed(), fact);
    }

    fn wall_nanos(&self) -> i64 {
        self.inner.executor.now().unix_nanos()
    }

    fn in_background(&self, name: &str, work: BoxFuture<'static, ()>) {
        self.inner.executor.spawn(Group::World, name, work);
    }

    /// Whether a call is about the pod whose calls hang.
    fn hangs(&self, subject: &str) -> bool {
        let faults = self.faults();
        let Some(uid) = faults.hanging_uid.as_deref() else {
            return false;
        };
        let state = self.lock();
        let is_of_pod = |sandbox: &str| {
            let sandbox = state.sandboxes.get(sandbox);
            sandbox.is_some_and(|sandbox| sandbox.uid() == uid)
        };
        let container = state.containers.get(subject);
        subject == uid
            || is_of_pod(subject)
            || container.is_some_and(|container| is_of_pod(&container.sandbox))
    }

    /// Sends a call and waits for its answer.
    async fn call<T, F>(&self, call: Call, work: F) -> Result<T, RuntimeError>
    where
        T: Send + 'static,
        F: FnOnce(Work) -> BoxFuture<'static, Result<T, Failure>> + Send + 'static,
    {
        let Call {
            method,
            about,
            subject,
            ask,
            deadline,
        } = call;
        let writes = ask.is_some() || method == "PullImage";
        if writes {
            self.say(Actor::Runtime, format!("-> {method} {about}"));
        }
        if let Some(ask) = ask {
            self.happened(Fact::Asked(ask));
        }
        let hangs = self.hangs(&subject);
        let fate = self
            .inner
            .dice
            .with(|dice| Fate::roll(&self.faults(), dice, hangs));
        let answer = self.exchange(fate, deadline, work).await;
        let result = match answer {
            Ok(result) => result,
            Err(failure) => Err(failure),
        };
        if let Err(failure) = &result {
            let text = format!("<- {method} {about}: {:?}: {}", failure.kind, failure.message);
            self.say(Actor::Runtime, text);
            // What comes of a command is told apart: it says nothing of the container's start or stop.
            if method != EXEC {
                self.happened(Fact::CallFailed { subject });
            }
        } else if writes {
            self.say(Actor::Runtime, format!("<- {method} {about}"));
        }
        result.map_err(|failure| RuntimeError::new(method, ENDPOINT, failure.kind, &failure.message))
    }

    async fn exchange<T, F>(
        &self,
        fate: Fate,
        deadline: Option<Duration>,
        work: F,
    ) -> Result<Result<T, Failure>, Failure>
    where
        T: Send + 'static,
        F: FnOnce(Work) -> BoxFuture<'static, Result<T, Failure>> + Send + 'static,
    {
        let clock = &self.inner.executor;
        if self.lock().is_down {
            clock.sleep(Duration::from_millis(2)).await;
            return Err(Failure::new(RuntimeErrorKind::Unavailable, "connection refused"));
        }
        let (sender, receiver) = oneshot::channel();
        let caller = Arc::new(watch::Sender::new(false));
        let job = Work {
            runtime: self.clone(),
            epoch: self.epoch(),
            caller: caller.clone(),
            honours_cancel: fate.honours_cancel,
        };
        let _guard = CallerGuard(caller);
        self.in_background("runtime call", Box::pin(serve(job, fate, sender, work)));
        let limit = deadline.unwrap_or(match fate.course {
            Course::HangBefore | Course::HangAfter => CONNECTION_PATIENCE,
            Course::Fine
            | Course::FailBefore
            | Course::FailAfter
            | Course::LoseAnswer
            | Course::LoseCaller => COMMAND_PATIENCE,
        });
        match select(receiver, clock.sleep(limit)).await {
            Either::Left((Ok(result), _)) => Ok(result),
            Either::Left((Err(_), _)) => Err(Failure::new(
                RuntimeErrorKind::Unavailable,
                "the connection was closed",
            )),
            Either::Right(((), _)) => Err(Failure::new(
                RuntimeErrorKind::DeadlineExceeded,
                "context deadline exceeded",
            )),
        }
    }

    /// The runtime goes down for a time; containers go on.
    pub fn restart(&self, down: Duration) {
        self.say(Actor::Scenario, format!("the runtime goes down for {down:?}"));
        self.go_down();
        let runtime = self.clone();
        let pause = self.inner.executor.sleep(down);
        let back = async move {
            pause.await;
            runtime.come_back();
        };
        self.in_background("runtime restart", Box::pin(back));
    }

    fn go_down(&self) {
        self.happened(Fact::RuntimeDown);
        let mut state = self.lock();
        state.is_down = true;
        state.epoch.send_modify(|epoch| *epoch += 1);
        state.subscribers.clear();
        // Names of what is being created are kept in memory only.
        let known: Vec<String> = state
            .sandboxes
            .keys()
            .chain(state.containers.keys())
            .cloned()
            .collect();
        state.names.retain(|_, id| known.contains(id));
    }

    fn come_back(&self) {
        self.lock().is_down = false;
        self.happened(Fact::RuntimeUp);
        self.say(Actor::Scenario, "the runtime is back");
    }

    /// The runtime forgets all sandboxes and containers, and what ran is gone.
    pub fn lose_state(&self) {
        self.say(Actor::Scenario, "the runtime loses its state");
        self.end_all();
        {
            let mut state = self.lock();
            state.sandboxes.clear();
            state.containers.clear();
            state.names.clear();
        }
        self.happened(Fact::StateLost);
        self.restart(Duration::from_secs(1));
    }

    /// The machine goes off: all processes are gone, the runtime's records stay.
    pub fn lose_power(&self) {
        self.end_all();
        let stopped: Vec<String> = {
            let mut state = self.lock();
            let ready = state.sandboxes.iter_mut().filter(|(_, sandbox)| sandbox.is_ready);
            ready
                .map(|(id, sandbox)| {
                    sandbox.is_ready = false;
                    id.clone()
                })
                .collect()
        };
        for id in stopped {
            self.happened(Fact::SandboxStopped { id });
        }
        self.happened(Fact::PowerLost);
        self.restart(Duration::from_secs(2));
    }

    fn end_all(&self) {
        let running: Vec<String> = {
            let state = self.lock();
            let running = state
                .containers
                .iter()
                .filter(|(_, container)| container.is_running());
            running.map(|(id, _)| id.clone()).collect()
        };
        for id in running {
            self.end_process(&id, 255, Cause::Lost);
        }
    }

    pub fn set_network_ready(&self, is_ready: bool) {
        self.say(Actor::Scenario, format!("network ready: {is_ready}"));
        self.lock().is_network_ready = is_ready;
    }

    /// Takes the network namespace of a ready sandbox away, chosen by number. False when there is none.
    pub fn lose_network(&self, number: usize) -> bool {
        let lost = {
            let mut state = self.lock();
            let mut ready: Vec<_> = state
                .sandboxes
                .iter_mut()
                .filter(|(_, sandbox)| sandbox.is_ready && !sandbox.uses_node_network())
                .collect();
            let place = number % ready.len().max(1);
            ready.get_mut(place).map(|(id, sandbox)| {
                sandbox.has_lost_network = true;
                (*id).clone()
            })
        };
        let Some(id) = lost else {
            return false;
        };
        self.say(Actor::Scenario, format!("{id} loses its network namespace"));
        self.happened(Fact::NetworkLost { id });
        true
    }

    /// What lost its network namespace can be read and torn down again.
    pub fn mend_networks(&self) {
        for sandbox in self.lock().sandboxes.values_mut() {
            sandbox.has_lost_network = false;
        }
    }

    pub fn set_has_events(&self, has_events: bool) {
        self.lock().has_events = has_events;
    }

    pub fn add_image(&self, tag: &str) {
        let image = state::SimImage::new(tag);
        self.lock().images.insert(tag.to_owned(), image);
    }

    /// Ends the event streams; the runtime itself stays up.
    pub fn cut_events(&self) {
        self.say(Actor::Scenario, "the event streams end");
        self.lock().subscribers.clear();
    }

    /// Crashes one of the running containers, chosen by number. False when none runs.
    pub fn crash_container(&self, number: usize, code: i32) -> bool {
        let running: Vec<String> = {
            let state = self.lock();
            let running = state
                .containers
                .iter()
                .filter(|(_, container)| container.is_running());
            running.map(|(id, _)| id.clone()).collect()
        };
        let Some(id) = running.get(number % running.len().max(1)) else {
            return false;
        };
        self.end_process(id, code, Cause::Own);
        true
    }

    /// Crashes the containers of one pod.
    pub fn crash_pod(&self, uid: &str, code: i32) {
        let running: Vec<String> = {
            let state = self.lock();
            let sandboxes = state.sandboxes.iter().filter(|(_, sandbox)| sandbox.uid() == uid);
            let containers = sandboxes.flat_map(|(id, _)| state.containers_of(id));
            let running = containers.filter(|(_, container)| container.is_running());
            running.map(|(id, _)| id.to_owned()).collect()
        };
        for id in running {
            self.end_process(&id, code, Cause::Own);
        }
    }

    /// The first user id on the node that a pod's newest sandbox and its containers were given; `None` for the node's own.
    #[must_use]
    pub fn user_ids_of(&self, uid: &str) -> Option<Vec<u32>> {
        let first = |options: Option<&v1::NamespaceOption>| {
            let users = options?.userns_options.as_ref()?;
            users.uids.first().map(|mapping| mapping.host_id)
        };
        let state = self.lock();
        let of_pod = state.sandboxes.iter().filter(|(_, sandbox)| sandbox.uid() == uid);
        let (id, sandbox) = of_pod.max_by_key(|(_, sandbox)| sandbox.created_at)?;
        let context = sandbox.config.linux.as_ref()?.security_context.as_ref()?;
        let containers = state.containers_of(id).map(|(_, container)| {
            let context = container.config.linux.as_ref()?.security_context.as_ref()?;
            first(context.namespace_options.as_ref())
        });
        let all = std::iter::once(first(context.namespace_options.as_ref())).chain(containers);
        all.collect()
    }

    /// Whether there is any sandbox or container.
    #[must_use]
    pub fn has_anything(&self) -> bool {
        let state = self.lock();
        !state.sandboxes.is_empty() || !state.containers.is_empty()
    }

    /// The ids of everything that is left, for the last check.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        let state = self.lock();
        let mut left: Vec<String> = Vec::new();
        for (id, sandbox) in &state.sandboxes {
            left.push(format!("sandbox {id} {}", sandbox.name));
        }
        for (id, container) in &state.containers {
            left.push(format!("container {id} {}", container.name));
        }
        left
    }
}

async fn serve<T, F>(job: Work, fate: Fate, mut sender: oneshot::Sender<Result<T, Failure>>, work: F)
where
    T: Send + 'static,
    F: FnOnce(Work) -> BoxFuture<'static, Result<T, Failure>> + Send + 'static,
{
    let executor = job.runtime.inner.executor.clone();
    executor.sleep(fate.before).await;
    if job.goes_on().is_err() {
        return;
    }
    match fate.course {
        Course::FailBefore => {
            let _ = sender.send(Err(Failure::unknown("injected failure before any effect")));
            return;
        }
        Course::HangBefore => return hang(&job, &mut sender).await,
        Course::LoseCaller => {
            drop(sender);
            // Nobody hears of it, and it is done all the same.
            let _ = work(job).await;
            return;
        }
        Course::Fine | Course::FailAfter | Course::LoseAnswer | Course::HangAfter => {}
    }
    let result = work(job.clone()).await;
    if job.runtime.epoch() != job.epoch {
        return;
    }
    match fate.course {
        // Dropping the sender is a connection that breaks.
        Course::LoseAnswer => {}
        Course::HangAfter => hang(&job, &mut sender).await,
        Course::FailAfter => {
            let _ = sender.send(Err(Failure::unknown("injected failure after the effect")));
        }
        Course::Fine | Course::FailBefore | Course::HangBefore | Course::LoseCaller => {
            executor.sleep(fate.after).await;
            let _ = sender.send(result);
        }
    }
}

/// Until the caller gives up or the runtime goes down.
async fn hang<T>(job: &Work, sender: &mut oneshot::Sender<T>) {
    let mut epoch = job.runtime.lock().epoch.subscribe();
    let changed = std::pin::pin!(async {
        while *epoch.borrow_and_update() == job.epoch {
            if epoch.changed().await.is_err() {
                break;
            }
        }
    });
    select(std::pin::pin!(sender.closed()), changed).await;
}
