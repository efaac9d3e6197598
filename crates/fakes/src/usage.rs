//! Cgroups that use what a test says.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use rubelet_model::Timestamp;
use rubelet_ports::{Clock, MachineReading, SignalError, UsageQuestion, UsageReader, UsageReading};
use rubelet_usage::{Figures, MemoryFigures};

/// The cgroups of a machine that was started at the epoch.
pub struct FakeUsage {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    figures: BTreeMap<String, Figures>,
    questions: Vec<Vec<UsageQuestion>>,
    closed: usize,
    own_cgroup: Option<Arc<str>>,
}

impl FakeUsage {
    /// Without a cgroup.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            state: Mutex::default(),
        }
    }

    /// Sets what a cgroup uses.
    pub fn set(&self, path: &str, figures: Figures) {
        self.state().figures.insert(path.to_owned(), figures);
    }

    /// Sets processor time and memory of a cgroup.
    pub fn uses(&self, path: &str, cpu_nanos: u64, memory_bytes: u64) {
        let memory = MemoryFigures {
            usage_bytes: memory_bytes,
            rss_bytes: memory_bytes,
            ..MemoryFigures::default()
        };
        let figures = Figures {
            cpu_nanos: Some(cpu_nanos),
            memory: Some(memory),
            ..Figures::default()
        };
        self.set(path, figures);
    }

    /// Sets where rubelet itself is.
    pub fn set_own_cgroup(&self, path: Option<&str>) {
        self.state().own_cgroup = path.map(Arc::from);
    }

    pub fn remove(&self, path: &str) {
        self.state().figures.remove(path);
    }

    /// The questions of each call since the last time.
    pub fn take_questions(&self) -> Vec<Vec<UsageQuestion>> {
        std::mem::take(&mut self.state().questions)
    }

    /// How often what was held was given back.
    #[must_use]
    pub fn closed(&self) -> usize {
        self.state().closed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl UsageReader for FakeUsage {
    async fn read(&self, questions: Vec<UsageQuestion>) -> Vec<Option<UsageReading>> {
        let mut state = self.state();
        let answers = questions.iter().map(|question| {
            let found = question.paths.iter().find_map(|path| {
                let figures = state.figures.get(path.as_ref())?;
                Some((path, figures))
            });
            found.map(|(path, figures)| UsageReading {
                path: Arc::clone(path),
                read_at: self.clock.now(),
                read_moment: self.clock.moment(),
                made_at: Timestamp::EPOCH,
                figures: figures.clone(),
            })
        });
        let answers = answers.collect();
        state.questions.push(questions);
        answers
    }

    async fn machine(&self) -> Result<MachineReading, SignalError> {
        Ok(MachineReading {
            booted_at: Some(Timestamp::EPOCH),
            ..MachineReading::default()
        })
    }

    async fn own_cgroup(&self) -> Option<Arc<str>> {
        self.state().own_cgroup.clone()
    }

    fn close(&self) {
        self.state().closed += 1;
    }
}
