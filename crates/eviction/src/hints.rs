//! Where the kernel is to give a hint that memory runs short.
//!
//! Owns when its marks are set anew: what files take changes all the time, so they are set as often as upstream sets them.

use std::sync::Arc;

use rubelet_ports::{Clock, MemoryAlarm, MemoryMark, Moment};
use rubelet_resources::pressure::Signal;
use rubelet_resources::pressure::pace::LONGEST;

use crate::signals::SignalPorts;

pub(crate) struct KernelHints {
    clock: Arc<dyn Clock>,
    alarm: Arc<dyn MemoryAlarm>,
    pods_cgroup: Option<String>,
    /// When the marks are set again; nothing before the first time.
    next_at: Option<Moment>,
    problem: Option<String>,
}

impl KernelHints {
    pub(crate) fn new(ports: &SignalPorts, pods_cgroup: Option<String>) -> Self {
        Self {
            clock: Arc::clone(&ports.clock),
            alarm: Arc::clone(&ports.alarm),
            pods_cgroup,
            next_at: None,
            problem: None,
        }
    }

    /// The marks that rang are behind: the next round sets new ones.
    pub(crate) fn rang(&mut self) {
        self.next_at = None;
    }

    pub(crate) async fn set(&mut self, marks: Vec<(Signal, u64)>) {
        let now = self.clock.moment();
        if marks.is_empty() || self.next_at.is_some_and(|next_at| now < next_at) {
            return;
        }
        self.next_at = Some(now.plus(LONGEST));
        let marks = marks.into_iter().filter_map(|(signal, usage_bytes)| {
            let cgroup = match signal {
                Signal::AllocatableMemoryAvailable => self.pods_cgroup.clone()?,
                _ => "/".to_owned(),
            };
            Some(MemoryMark { cgroup, usage_bytes })
        });
        let problem = self.alarm.set(marks.collect()).await.err();
        let problem = problem.map(|error| error.to_string());
        if problem != self.problem
            && let Some(problem) = &problem
        {
            tracing::info!(
                problem,
                "The kernel gives no hints about memory; it is looked at by time alone"
            );
        }
        self.problem = problem;
    }
}
