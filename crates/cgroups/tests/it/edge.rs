//! A machine's cgroups as a list of what was asked of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use prometheus::Registry;
use rubelet_cgroups::{CgroupPorts, CgroupSettings, Cgroups, MemoryMetrics};
use rubelet_model::cgroup::{CgroupPlace, CgroupValues, FilePlace};
use rubelet_ports::{CgroupError, CgroupErrorKind, CgroupReader, CgroupWriter, NodeEvent, NodeEventRecorder};
use rubelet_sim::executor::{Executor, Group};
use rubelet_sim::node;

#[derive(Default)]
pub(crate) struct State {
    /// Files by path of the cgroup.
    pub(crate) cgroups: BTreeMap<String, BTreeMap<String, String>>,
    pub(crate) updates: Vec<String>,
    pub(crate) removals: Vec<String>,
    /// Cgroups whose children were listed.
    pub(crate) lists: Vec<String>,
    /// Cgroups whose updates fail, and how often still.
    pub(crate) failing: BTreeMap<String, usize>,
    pub(crate) events: Vec<String>,
}

/// Answers at once.
#[derive(Clone, Default)]
pub(crate) struct Edge(Arc<Mutex<State>>);

impl Edge {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn value(&self, path: &str, file: &str) -> Option<String> {
        self.state().cgroups.get(path)?.get(file).cloned()
    }

    fn write(&self, cgroup: &CgroupValues) {
        let mut state = self.state();
        let files = state.cgroups.entry(cgroup.path.clone()).or_default();
        for value in &cgroup.files {
            files.insert(value.file.clone(), value.value.clone());
        }
    }
}

impl NodeEventRecorder for Edge {
    fn record_node(&self, event: NodeEvent) {
        let text = format!("{:?} {} {}", event.event_type, event.reason, event.message);
        self.state().events.push(text);
    }
}

#[async_trait]
impl CgroupReader for Edge {
    async fn check(&self, path: &str) -> Result<(), CgroupError> {
        if path == "/" || self.state().cgroups.contains_key(path) {
            return Ok(());
        }
        Err(CgroupError::new(path, CgroupErrorKind::NotFound, "is not there"))
    }

    async fn children(&self, path: &str) -> Result<BTreeSet<String>, CgroupError> {
        let below = format!("{path}/");
        let mut state = self.state();
        state.lists.push(path.to_owned());
        let names = state.cgroups.keys().filter_map(|path| path.strip_prefix(&below));
        Ok(names
            .filter(|name| !name.contains('/'))
            .map(str::to_owned)
            .collect())
    }

    async fn read(&self, path: &str, files: &[FilePlace]) -> Result<Vec<Option<String>>, CgroupError> {
        let texts = files.iter().map(|place| self.value(path, place.file));
        Ok(texts.collect())
    }
}

#[async_trait]
impl CgroupWriter for Edge {
    async fn create(&self, cgroup: CgroupValues) -> Result<Vec<String>, CgroupError> {
        self.write(&cgroup);
        Ok(Vec::new())
    }

    async fn update(&self, cgroup: CgroupValues) -> Result<(), CgroupError> {
        let mut state = self.state();
        state.updates.push(cgroup.path.clone());
        if let Some(left) = state.failing.get_mut(&cgroup.path).filter(|left| **left > 0) {
            *left -= 1;
            let message = "more is used than it may have";
            return Err(CgroupError::new(cgroup.path, CgroupErrorKind::Busy, message));
        }
        drop(state);
        self.write(&cgroup);
        Ok(())
    }

    async fn remove(&self, place: CgroupPlace) -> Result<(), CgroupError> {
        let mut state = self.state();
        state.removals.push(place.path.clone());
        state.cgroups.remove(&place.path);
        Ok(())
    }
}

/// The keeper, what it writes to, and time.
pub(crate) struct Bench {
    pub(crate) cgroups: Arc<Cgroups>,
    pub(crate) edge: Edge,
    pub(crate) executor: Executor,
    pub(crate) registry: Registry,
}

impl Bench {
    pub(crate) fn new(change: impl FnOnce(&mut CgroupSettings)) -> Self {
        let mut settings = node::cgroups();
        change(&mut settings);
        let (edge, executor) = (Edge::default(), Executor::new(1));
        let ports = CgroupPorts {
            clock: Arc::new(executor.clone()),
            reader: Arc::new(edge.clone()),
            writer: Arc::new(edge.clone()),
            events: Arc::new(edge.clone()),
        };
        let registry = Registry::new();
        let metrics = MemoryMetrics::register(&registry).unwrap();
        let cgroups = Cgroups::new(settings, ports).with_memory_metrics(Some(metrics));
        Self {
            cgroups: Arc::new(cgroups),
            edge,
            executor,
            registry,
        }
    }

    /// Lets the keeper run from now on.
    pub(crate) fn start(&self) {
        let keeper = Arc::clone(&self.cgroups);
        self.executor
            .spawn(Group::Rubelet, "cgroups", Box::pin(keeper.run()));
        self.pass(0);
    }

    /// Lets time pass.
    pub(crate) fn pass(&self, seconds: u64) {
        let until = self.executor.elapsed() + std::time::Duration::from_secs(seconds);
        loop {
            while self.executor.step() != rubelet_sim::executor::Step::Idle {}
            if !self.executor.advance(until) {
                return;
            }
        }
    }
}
