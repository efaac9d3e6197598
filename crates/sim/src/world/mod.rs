//! One run: the simulated node with rubelet on it, from the first pod to the last check.
//!
//! Owns the order of a run (chaos, calm, late changes, removal of everything) and the step that everything advances by:
//! one poll, then the checks.

mod actions;
mod api;
pub mod load;
mod rubelet;
mod seed;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::api::SimApi;
use crate::cgroups::SimCgroups;
use crate::checks::Checker;
use crate::dice::{Dice, SharedDice};
use crate::edges::{EventCollector, SimHttp};
use crate::executor::{Executor, Group, Step};
use crate::files::{FileFaults, SimFiles};
use crate::history::{Fact, History};
use crate::node;
use crate::runtime::{Faults, SimRuntime};
use crate::scenario::{Action, ApiAction, CallKind, PodShape, Scenario};
use crate::trace::{Actor, Trace};
use crate::volumes::{SimVolumes, VolumeFaults};
use rubelet::Rubelet;
use seed::take_caught_panics;

pub use seed::{Outcome, Run, run_seed};

/// More polls than this without time passing are a busy loop.
const POLLS_PER_INSTANT: u64 = 200_000;
/// Hangs end by deadlines of minutes, and names stay reserved for minutes.
const SETTLE_LIMIT: Duration = Duration::from_secs(900);
/// In a calm world a change is done quickly; only a lost wake-up takes longer.
const PROMPT_LIMIT: Duration = Duration::from_secs(60);
/// The longest deadline of a call and the longest pause before the event stream is opened again, with room.
const QUIET_TIME: Duration = Duration::from_secs(200);
/// The longest grace, the periods of garbage collection, and some.
const REMOVAL_LIMIT: Duration = Duration::from_secs(600);
/// How often, and how far apart, rubelet is asked for what it remembers of pods that are gone.
const FORGET_LOOKS: u32 = 20;
const FORGET_PAUSE: Duration = Duration::from_secs(10);
/// How often a question about the whole world is asked.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// In the chaos, of calls that make or remove cgroups.
const CGROUP_FAILURES_PERCENT: u64 = 5;
/// In the chaos, of calls to the API server that have their effect and no answer.
const API_LOSSES_PERCENT: u64 = 5;
/// Tasks of an agent without pods, with room.
const IDLE_TASKS: usize = 28;

/// Something that is due at a time.
#[derive(Clone, Debug)]
enum Due {
    Scenario(Action),
    StartRubelet,
    PutBack(PathBuf, Box<PodShape>),
    FinishWrite(PathBuf),
    EditSoon(PathBuf),
    NewImage(PathBuf),
    FolderBack(BTreeMap<PathBuf, PodShape>),
    NetworkUp,
    ServeHttp,
    Api(ApiAction),
    ApiUp,
    Decodable(String),
    DeleteApiPod(String, Option<i64>),
    CrashNow,
}

struct World {
    seed: u64,
    scenario: Scenario,
    executor: Executor,
    trace: Trace,
    history: History,
    runtime: SimRuntime,
    files: SimFiles,
    cgroups: SimCgroups,
    volumes: SimVolumes,
    http: SimHttp,
    api: Option<SimApi>,
    api_dice: Dice,
    next_api_number: u32,
    events: EventCollector,
    randomness: SharedDice,
    dialer_dice: SharedDice,
    checker: Checker,
    rubelet: Option<Rubelet>,
    dice: Dice,
    /// Manifests on the disk and what they were made from.
    manifests: BTreeMap<PathBuf, PodShape>,
    next_number: u32,
    due: BTreeMap<(Duration, u64), Due>,
    next_due: u64,
    /// Polls of rubelet until it crashes, and how long it then stays away.
    crash: Option<(u64, Duration)>,
    /// The kind of call under which rubelet crashes, and how long it then stays away.
    crash_on: Option<(CallKind, Duration)>,
    hanging: Option<String>,
    instant_polls: u64,
    wants_records: bool,
    records: Vec<String>,
    /// There is room for every pod, and the only questions are those of the run.
    is_measured: bool,
}

type Check = Result<(), String>;

impl World {
    fn new(seed: u64) -> Self {
        Self::of(seed, Scenario::roll(seed))
    }

    fn of(seed: u64, scenario: Scenario) -> Self {
        let executor = Executor::new(seed);
        let trace = Trace::default();
        let history = History::default();
        let manifests = Path::new(node::MANIFESTS);
        let files = SimFiles::new(
            &executor,
            SharedDice::new(seed, "files"),
            history.clone(),
            trace.clone(),
            manifests,
        );
        for directory in [node::ROOT, node::POD_LOGS, node::CONTAINER_LOGS] {
            files.make_directory(Path::new(directory));
        }
        files.place(Path::new("/etc/hosts"), b"127.0.0.1 localhost\n");
        files.place(Path::new(node::RESOLVER_FILE), b"nameserver 192.0.2.53\n");
        let runtime = SimRuntime::new(
            &executor,
            SharedDice::new(seed, "runtime"),
            history.clone(),
            trace.clone(),
            files.clone(),
        );
        runtime.set_has_events(scenario.has_events);
        runtime.set_faults(scenario.runtime_faults.clone());
        files.set_faults(scenario.file_faults);
        let cgroups = SimCgroups::new(&executor, SharedDice::new(seed, "cgroups"), history.clone());
        cgroups.set_fail_percent(CGROUP_FAILURES_PERCENT);
        let volumes = SimVolumes::new(
            &executor,
            SharedDice::new(seed, "volumes"),
            history.clone(),
            trace.clone(),
            files.clone(),
        );
        volumes.set_faults(VolumeFaults::roll(&mut Dice::new(seed, "volume faults")));
        // A file system that does not answer holds up the source, and with it the news of a removal.
        let slack = Duration::from_secs(if scenario.file_faults.hangs > 0 { 60 } else { 2 });
        Self {
            seed,
            http: SimHttp::new(&executor, SharedDice::new(seed, "http"), history.clone()),
            events: EventCollector::new(&executor, trace.clone()),
            randomness: SharedDice::new(seed, "randomness"),
            dialer_dice: SharedDice::new(seed, "dialer"),
            api: scenario.api.as_ref().map(|plan| {
                let dice = SharedDice::new(seed, "api server");
                let api = SimApi::new(&executor, dice, history.clone(), trace.clone());
                api.set_lost_percent(API_LOSSES_PERCENT);
                api.set_overwritten_percent(plan.overwritten_percent);
                api
            }),
            api_dice: Dice::new(seed, "api actions"),
            next_api_number: 1,
            checker: Checker::new(scenario.http_from.is_some(), scenario.api.is_some(), slack),
            dice: Dice::new(seed, "world"),
            scenario,
            executor,
            trace,
            history,
            runtime,
            files,
            volumes,
            cgroups,
            rubelet: None,
            manifests: BTreeMap::new(),
            next_number: 1,
            due: BTreeMap::new(),
            next_due: 0,
            crash: None,
            crash_on: None,
            hanging: None,
            instant_polls: 0,
            wants_records: false,
            records: Vec::new(),
            is_measured: false,
        }
    }

    fn say(&self, text: impl Into<String>) {
        self.trace.say(self.executor.elapsed(), Actor::Scenario, text);
    }

    fn after(&mut self, delay: Duration, due: Due) {
        let at = self.executor.elapsed() + delay;
        self.due.insert((at, self.next_due), due);
        self.next_due += 1;
    }

    /// Runs until `until`, or until `done` says so, which is asked now and then.
    fn run(&mut self, until: Duration, mut done: impl FnMut(&Self) -> bool) -> Result<bool, String> {
        let mut looked_at = self.executor.elapsed();
        loop {
            self.apply_due();
            match self.executor.step() {
                Step::Polled(group) => self.polled(group)?,
                Step::Idle => {
                    self.instant_polls = 0;
                    let now = self.executor.elapsed();
                    if now.saturating_sub(looked_at) >= LOOK_INTERVAL {
                        looked_at = now;
                        if done(self) {
                            return Ok(true);
                        }
                    }
                    let next_due = self.due.first_key_value().map(|((at, _), _)| *at);
                    let limit = next_due.map_or(until, |at| at.min(until));
                    if !self.executor.advance(limit) && now >= until {
                        return Ok(false);
                    }
                }
            }
            self.judge()?;
        }
    }

    fn polled(&mut self, group: Group) -> Check {
        self.instant_polls += 1;
        if self.instant_polls > POLLS_PER_INSTANT {
            let names = self.executor.task_names(Group::Rubelet);
            return Err(format!("a busy loop: time does not pass; tasks: {names:?}"));
        }
        if let Some((polls, down)) = self.crash
            && group == Group::Rubelet
        {
            if polls == 0 {
                self.crash_rubelet(down);
            } else {
                self.crash = Some((polls - 1, down));
            }
        }
        Ok(())
    }

    fn judge(&mut self) -> Check {
        let facts = self.history.take();
        if !facts.is_empty() {
            if let Some((call, down)) = self.crash_on {
                let is_under_way = facts
                    .iter()
                    .any(|(_, fact)| matches!(fact, Fact::Asked(ask) if call.is_of(ask)));
                if is_under_way {
                    self.crash_on = None;
                    self.crash_rubelet(down);
                }
            }
            self.checker.observe(facts);
        }
        let panics = self.executor.take_panics();
        if let Some(panic) = panics.into_iter().chain(take_caught_panics()).next() {
            return Err(panic);
        }
        match self.checker.violations().first() {
            Some(violation) => Err(violation.clone()),
            None => Ok(()),
        }
    }

    fn settle(&mut self, limit: Duration, what: &str) -> Check {
        let until = self.executor.elapsed() + limit;
        let hanging = self.hanging.clone();
        let settled = self.run(until, |world| {
            world.rubelet.is_some()
                && world.crash.is_none()
                && world.due.is_empty()
                && world.checker.has_published()
                && world.checker.is_settled(hanging.as_deref())
        })?;
        if settled {
            self.say(format!("{what}: settled"));
            return Ok(());
        }
        let mut open = self.checker.unsettled(hanging.as_deref());
        open.extend(self.explanations());
        Err(format!(
            "{what}: not settled within {limit:?}:\n  {}",
            open.join("\n  ")
        ))
    }

    /// In a calm world a pod is there at once.
    fn settle_one(&mut self, uid: &str) -> Check {
        let until = self.executor.elapsed() + PROMPT_LIMIT;
        let is_settled = self.run(until, |world| {
            world.due.is_empty() && world.checker.check_one(uid).is_ok()
        })?;
        if is_settled {
            self.say(format!("{uid} was added and edited: settled"));
            return Ok(());
        }
        let open: Vec<String> = self.checker.check_one(uid).err().into_iter().collect();
        let why = self.explanations();
        let sentences = open.into_iter().chain(why).collect::<Vec<_>>();
        Err(format!(
            "added and edited, but not settled within {PROMPT_LIMIT:?}:\n  {}",
            sentences.join("\n  ")
        ))
    }

    fn live(&mut self) -> Check {
        for (at, action) in self.scenario.actions.clone() {
            self.after(at, Due::Scenario(action));
        }
        self.plan_api();
        if let Some(from) = self.scenario.http_from {
            self.after(from, Due::ServeHttp);
        }
        for tag in ["app:1", "web:1"] {
            self.runtime.add_image(&format!("registry.test/{tag}"));
        }
        self.start_rubelet();
        let chaos = self.scenario.chaos;
        self.run(chaos, |_| false)?;
        self.say("calm begins");
        self.calm_down();
        self.settle(SETTLE_LIMIT, "after the chaos")?;
        if self.hanging.take().is_some() {
            self.calm_down();
            self.settle(SETTLE_LIMIT, "after the hanging pod was freed")?;
        }
        // A list that hung in the chaos keeps rubelet blind until its deadline.
        let quiet = self.executor.elapsed() + QUIET_TIME;
        self.run(quiet, |_| false)?;
        for _ in 0..2 {
            let after = self.dice.millis(0, 400);
            let uid = self.add_and_edit_calmly(after);
            self.settle_one(&uid)?;
        }
        self.come_and_go_by_api()?;
        self.repair_without_api()?;
        self.take_records();
        self.remove_all()
    }

    fn take_records(&mut self) {
        if self.wants_records {
            self.records = self.flight_records();
        }
    }

    fn calm_down(&mut self) {
        // A crash that waits for activity would come at any later time.
        self.crash = None;
        self.crash_on = None;
        self.runtime.set_faults(Faults {
            hanging_uid: self.hanging.clone(),
            ..Faults::calm()
        });
        self.runtime.mend_networks();
        self.files.set_faults(FileFaults::default());
        self.cgroups.set_fail_percent(0);
        self.volumes.set_faults(VolumeFaults::default());
        if let Some(api) = &self.api {
            api.set_lost_percent(0);
            api.set_overwritten_percent(0);
            api.set_all_decodable();
        }
        self.api_up();
    }

    fn remove_all(&mut self) -> Check {
        self.say("all manifests are removed");
        for path in self.manifests.keys().cloned().collect::<Vec<_>>() {
            self.take_manifest(&path);
        }
        if self.scenario.http_from.is_some() {
            self.serve_http(&[]);
        }
        self.delete_all_api_pods();
        let until = self.executor.elapsed() + REMOVAL_LIMIT;
        let is_clean = self.run(until, Self::is_clean)?;
        if is_clean {
            return self.forget_all();
        }
        let mut left = self.leftovers();
        left.extend(self.explanations());
        Err(format!(
            "left behind {REMOVAL_LIMIT:?} after everything was removed:\n  {}",
            left.join("\n  ")
        ))
    }

    /// Rubelet's own tables are empty too, a moment later at the latest.
    fn forget_all(&mut self) -> Check {
        let mut kept = self.kept();
        for _ in 0..FORGET_LOOKS {
            if kept.is_empty() {
                return Ok(());
            }
            let until = self.executor.elapsed() + FORGET_PAUSE;
            self.run(until, |_| false)?;
            kept = self.kept();
        }
        Err(format!(
            "rubelet remembers what is gone:\n  {}",
            kept.join("\n  ")
        ))
    }

    /// Whether nothing is left. What is so for long is asked first.
    fn is_clean(&self) -> bool {
        !self.runtime.has_anything() && self.leftovers().is_empty()
    }

    /// Everything that a node without pods must not have.
    fn leftovers(&self) -> Vec<String> {
        let mut left = self.checker.unsettled(None);
        left.extend(self.runtime.leftovers());
        left.extend(self.volumes.leftovers());
        left.extend(self.api_leftovers());
        let directories = [
            format!("{}/pods", node::ROOT),
            node::POD_LOGS.to_owned(),
            node::CONTAINER_LOGS.to_owned(),
        ];
        for directory in directories {
            let paths = self.files.paths_below(Path::new(&directory));
            left.extend(paths.iter().map(|path| path.display().to_string()));
        }
        left.extend(
            self.cgroups
                .pods()
                .iter()
                .map(|uid| format!("the cgroup of {uid}")),
        );
        if self.executor.tasks(Group::Rubelet) > IDLE_TASKS {
            let tasks = self.executor.task_names(Group::Rubelet);
            left.push(format!("{} tasks: {tasks:?}", tasks.len()));
        }
        left
    }
}
