//! The command line of the benchmarks: which rows are measured, of which kubelets, with how many pods.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::budget::Sizes;
use super::samples::Column;
use rubelet_testbed::Program;

/// How many pods the rows of many pods have.
const PODS: usize = 100;
/// How many pods the rows of a dense node have.
const DENSE_PODS: usize = 500;
/// How long the processor time at rest is measured at least.
const STEADY_SECONDS: u64 = 30;

/// Rows that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// The program itself: size, start, idle memory.
    Idle,
    /// One pod: started, its container killed, removed.
    One,
    /// Many pods: started, at rest, after a restart of the kubelet, removed.
    Hundred,
    /// As many pods as a dense node has, the same way; measured once, whatever the number of rounds.
    Dense,
    /// Containers that are probed; measured once, whatever the number of rounds.
    Probes,
    /// One pod and many through the API server.
    Api,
    /// Many changes at once with the API server far away; measured once, whatever the number of rounds.
    Statuses,
    /// As many pods as a dense node has, each with objects of its own in its volumes: the kubelet is restarted; measured once,
    /// whatever the number of rounds.
    Objects,
    /// Logs, commands and ports through kubectl.
    Streams,
    /// The pages of statistics with many pods and with as many as a dense node has; measured once, whatever the number of rounds.
    Scrapes,
}

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The program to measure.
    #[arg(long)]
    rubelet: PathBuf,
    /// How often everything is measured; the table has the medians.
    #[arg(long, default_value_t = 3)]
    pub(super) rounds: usize,
    /// Only these rows; the document is not written then.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Group>,
    /// Leave upstream's kubelet out; the document is not written then.
    #[arg(long)]
    skip_upstream: bool,
    /// Leave rubelet out; the document is not written then.
    #[arg(long)]
    skip_rubelet: bool,
    /// Leave the CRI floor out; the document is not written then.
    #[arg(long)]
    pub(super) skip_floor: bool,
    /// How many pods the rows of many pods have; the document is written only for 100.
    #[arg(long, default_value_t = PODS)]
    pub(super) pods: usize,
    /// How many pods the rows of a dense node have; the document is written only for 500.
    #[arg(long, default_value_t = DENSE_PODS)]
    pub(super) dense_pods: usize,
    /// How many pods the floor has in flight; the best of them counts.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 6, 8])]
    pub(super) widths: Vec<usize>,
    /// The same for the floor of a dense node, which takes minutes for each of them.
    #[arg(long, value_delimiter = ',', default_values_t = [6])]
    pub(super) dense_widths: Vec<usize>,
    /// How long the processor time at rest is measured; the document is not written for less than 30 s.
    #[arg(long, default_value_t = STEADY_SECONDS)]
    steady_seconds: u64,
    /// Where the document goes.
    #[arg(long)]
    pub(super) output: Option<PathBuf>,
}

impl Options {
    /// Whether the rows of a group are measured.
    pub(super) fn wants(&self, group: Group) -> bool {
        self.only.is_empty() || self.only.contains(&group)
    }

    /// Whether the run has everything that the document tells.
    pub(super) fn is_full(&self) -> bool {
        let all_columns = !self.skip_upstream && !self.skip_rubelet && !self.skip_floor;
        let all_pods = self.pods == PODS && self.dense_pods == DENSE_PODS;
        self.only.is_empty() && all_columns && all_pods && self.steady_seconds >= STEADY_SECONDS
    }

    /// Whether the rows without a cluster are measured.
    pub(super) fn wants_static_pods(&self) -> bool {
        [
            Group::Idle,
            Group::One,
            Group::Hundred,
            Group::Dense,
            Group::Probes,
            Group::Scrapes,
        ]
        .into_iter()
        .any(|group| self.wants(group))
    }

    /// Whether the rows of a cluster are measured.
    pub(super) fn wants_cluster(&self) -> bool {
        [Group::Api, Group::Statuses, Group::Objects, Group::Streams]
            .into_iter()
            .any(|group| self.wants(group))
    }

    /// How long the processor time at rest is measured.
    pub(super) fn steady(&self) -> Duration {
        Duration::from_secs(self.steady_seconds)
    }

    /// How many pods the rows have.
    pub(super) fn sizes(&self) -> Sizes {
        Sizes {
            many: self.pods,
            dense: self.dense_pods,
        }
    }

    /// The kubelets that are measured.
    pub(super) fn kubelets(&self) -> Result<Vec<(Column, PathBuf)>> {
        let mut kubelets = Vec::new();
        if !self.skip_upstream {
            kubelets.push((Column::Upstream, Program::Kubelet.path()?));
        }
        if !self.skip_rubelet {
            let program = self.rubelet.canonicalize();
            let program = program.with_context(|| format!("{} is not built", self.rubelet.display()))?;
            kubelets.push((Column::Rubelet, program));
        }
        Ok(kubelets)
    }
}
