//! Simulated cgroups: paths with files, with calls that take a while and may fail.
//!
//! Owns which cgroups there are and what is in their files. A call that rubelet does not live to see the end of has had its effect or not, by the dice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use rubelet_model::cgroup::{CgroupPlace, CgroupValues, FilePlace, FileValue};
use rubelet_ports::{CgroupError, CgroupErrorKind, CgroupReader, CgroupWriter, Clock};
use rubelet_resources::cgroup_name::{CgroupDriver, pod_uid_of};

use crate::dice::SharedDice;
use crate::executor::Executor;
use crate::history::{Fact, History};

/// What every simulated pod uses, and each of its containers.
pub const USED_BYTES: u64 = 16 << 20;

#[derive(Default)]
struct State {
    /// Files by path.
    paths: BTreeMap<String, BTreeMap<String, String>>,
    fail_percent: u64,
}

#[derive(Clone)]
pub struct SimCgroups {
    executor: Executor,
    dice: SharedDice,
    history: History,
    state: Arc<Mutex<State>>,
}

impl SimCgroups {
    #[must_use]
    pub fn new(executor: &Executor, dice: SharedDice, history: History) -> Self {
        Self {
            executor: executor.clone(),
            dice,
            history,
            state: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many of a hundred calls fail from now on.
    pub fn set_fail_percent(&self, percent: u64) {
        self.state().fail_percent = percent;
    }

    /// The machine went off: its cgroups are gone.
    pub fn lose_power(&self) {
        self.state().paths.clear();
    }

    /// The pods that have a cgroup.
    #[must_use]
    pub fn pods(&self) -> BTreeSet<String> {
        self.state()
            .paths
            .keys()
            .filter_map(|path| pod_of(path))
            .collect()
    }

    async fn call<T>(&self, path: &str, effect: impl FnOnce(&mut State) -> T) -> Result<T, CgroupError> {
        let (delay, is_early) = self.dice.with(|dice| (dice.millis(0, 3), dice.percent(50)));
        let percent = self.state().fail_percent;
        if self.dice.with(|dice| dice.percent(percent)) {
            self.executor.sleep(delay).await;
            let message = "the kernel says no";
            return Err(CgroupError::new(path, CgroupErrorKind::Busy, message));
        }
        if is_early {
            let value = effect(&mut self.state());
            self.executor.sleep(delay).await;
            return Ok(value);
        }
        self.executor.sleep(delay).await;
        Ok(effect(&mut self.state()))
    }

    /// A pod's cgroup has new limits.
    fn limited(&self, state: &State, path: &str) {
        let file = |name: &str| state.paths.get(path).and_then(|files| files.get(name));
        let memory = file("memory.max").and_then(|text| text.parse().ok());
        let quota = file("cpu.max").and_then(|text| text.split(' ').next()?.parse().ok());
        self.happened(path, |uid| Fact::PodLimited { uid, memory, quota });
    }

    fn happened(&self, path: &str, fact: impl FnOnce(String) -> Fact) {
        if let Some(uid) = pod_of(path) {
            self.history.add(self.executor.elapsed(), fact(uid));
        }
    }
}

fn write(state: &mut State, path: &str, values: &[FileValue]) {
    let files = state.paths.entry(path.to_owned()).or_default();
    for value in values {
        files.insert(value.file.clone(), value.value.clone());
    }
}

fn pod_of(path: &str) -> Option<String> {
    pod_uid_of(path.rsplit('/').next()?, CgroupDriver::Cgroupfs)
}

/// The path and everything above it.
fn with_parents(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.match_indices('/').map(|(at, _)| at).skip(1);
    ends.map(|end| &path[..end]).chain([path])
}

#[async_trait]
impl CgroupReader for SimCgroups {
    async fn check(&self, _path: &str) -> Result<(), CgroupError> {
        // The simulated node has no root of its own that could be missing.
        Ok(())
    }

    async fn children(&self, path: &str) -> Result<BTreeSet<String>, CgroupError> {
        let below = format!("{path}/");
        self.call(path, |state| {
            // What runs in a pod is not simulated; its sandbox has a cgroup.
            let has_sandbox = pod_of(path).is_some() && state.paths.contains_key(path);
            let names = state.paths.keys().filter_map(|path| path.strip_prefix(&below));
            names
                .chain(has_sandbox.then_some("sandbox"))
                .filter(|name| !name.contains('/'))
                .map(str::to_owned)
                .collect()
        })
        .await
    }

    async fn read(&self, path: &str, files: &[FilePlace]) -> Result<Vec<Option<String>>, CgroupError> {
        self.call(path, |state| {
            let known = state.paths.get(path);
            let one = |place: &FilePlace| match place.file {
                // Simulated processes use a little.
                "memory.current" => known.map(|_| USED_BYTES.to_string()),
                file => known.and_then(|files| files.get(file)).cloned(),
            };
            files.iter().map(one).collect()
        })
        .await
    }
}

#[async_trait]
impl CgroupWriter for SimCgroups {
    async fn create(&self, cgroup: CgroupValues) -> Result<Vec<String>, CgroupError> {
        let path = cgroup.path;
        self.call(&path, |state| {
            for one in with_parents(&path) {
                state.paths.entry(one.to_owned()).or_default();
            }
            write(state, &path, &cgroup.files);
            self.happened(&path, |uid| Fact::CgroupMade { uid });
            self.limited(state, &path);
        })
        .await?;
        Ok(Vec::new())
    }

    async fn update(&self, cgroup: CgroupValues) -> Result<(), CgroupError> {
        let path = cgroup.path;
        let is_there = self.call(&path, |state| {
            let is_there = state.paths.contains_key(&path);
            if is_there {
                write(state, &path, &cgroup.files);
                self.limited(state, &path);
            }
            is_there
        });
        let is_there = is_there.await?;
        if is_there {
            return Ok(());
        }
        Err(CgroupError::new(path, CgroupErrorKind::NotFound, "is not there"))
    }

    async fn remove(&self, place: CgroupPlace) -> Result<(), CgroupError> {
        let path = place.path;
        self.call(&path, |state| {
            if state.paths.remove(&path).is_some() {
                self.happened(&path, |uid| Fact::CgroupGone { uid });
            }
        })
        .await
    }
}
