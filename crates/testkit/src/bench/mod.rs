//! `make bench`: rubelet, upstream's kubelet and the bare CRI floor on every row of the budget, in one run on one machine.
//!
//! All three use the same private containerd, image, pod and configuration, and take turns round by round, so that what
//! disturbs the machine disturbs all of them. Reading order: `budget` (the rows) → `one`, `hundred`, `probes`, `floor` (what is done)
//! → `kubelet`, `runtime`, `pod` (with what) → `samples` and `report` (what comes out). The machine is noisy: compare the
//! columns of one run, not runs.

mod budget;
mod floor;
mod hundred;
mod kubelet;
mod machine;
mod one;
mod pod;
mod probes;
mod report;
mod runtime;
mod samples;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::containerd::{Containerd, Flavour};
use crate::{Program, Scope, images, workspace_root};
use budget::Row;
use kubelet::Place;
use runtime::Runtime;
use samples::{Column, Samples};

/// How many pods the rows of many pods have.
pub const PODS: usize = 100;
/// How long the processor time at rest is measured at least.
const STEADY_SECONDS: u64 = 30;
/// What a kubelet does in its first moments is none of the rows but that of its start.
const SETTLING: Duration = Duration::from_secs(5);

/// How many lines of a kubelet's log are shown when it fails.
const LAST_WORDS: usize = 20;

/// Rows that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// The program itself: size, start, idle memory.
    Idle,
    /// One pod: started, its container killed, removed.
    One,
    /// Many pods: started, at rest, after a restart of the kubelet, removed.
    Hundred,
    /// Containers that are probed; measured once, whatever the number of rounds.
    Probes,
}

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The program to measure.
    #[arg(long)]
    rubelet: PathBuf,
    /// How often everything is measured; the table has the medians.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only these rows; the document is not written then.
    #[arg(long, value_enum)]
    only: Option<Group>,
    /// Leave upstream's kubelet out; the document is not written then.
    #[arg(long)]
    skip_upstream: bool,
    /// Leave rubelet out; the document is not written then.
    #[arg(long)]
    skip_rubelet: bool,
    /// Leave the CRI floor out; the document is not written then.
    #[arg(long)]
    skip_floor: bool,
    /// How many pods the rows of many pods have; the document is written only for 100.
    #[arg(long, default_value_t = PODS)]
    pods: usize,
    /// How many pods the floor has in flight; the best of them counts.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 6, 8])]
    widths: Vec<usize>,
    /// How long the processor time at rest is measured; the document is not written for less than 30 s.
    #[arg(long, default_value_t = STEADY_SECONDS)]
    steady_seconds: u64,
    /// Where the document goes.
    #[arg(long)]
    output: Option<PathBuf>,
}

impl Options {
    fn wants(&self, group: Group) -> bool {
        self.only.is_none_or(|only| only == group)
    }

    /// Whether the run has everything that the document tells.
    fn is_full(&self) -> bool {
        let everybody = !self.skip_upstream && !self.skip_rubelet && !self.skip_floor;
        self.only.is_none() && everybody && self.pods == PODS && self.steady_seconds >= STEADY_SECONDS
    }

    fn steady(&self) -> Duration {
        Duration::from_secs(self.steady_seconds)
    }

    fn kubelets(&self) -> Result<Vec<(Column, PathBuf)>> {
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

/// Measures, prints the table, and writes the document if nothing was left out.
pub fn run(options: &Options) -> Result<()> {
    let begin = Instant::now();
    let scope = Scope::new("bench")?;
    let containerd = Containerd::start(&scope, Flavour::V2)?;
    if options.wants(Group::Probes) {
        containerd.import(&images::busybox()?)?;
        containerd.import(&images::server()?)?;
    }
    let asynchronous = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let samples = asynchronous.block_on(measure(options, &scope, &containerd))?;
    let facts = machine::facts(&containerd)?;
    let figures = report::tables(&samples);
    println!("\n{figures}");
    println!("bench: took {} s", begin.elapsed().as_secs());
    if options.is_full() {
        let path = options
            .output
            .clone()
            .unwrap_or_else(|| workspace_root().join("docs/benchmarks.md"));
        write_document(&path, &report::document(&facts, options, &figures))?;
        println!("bench: wrote {}", path.display());
    } else {
        println!("bench: a part of the rows only, so the document stays as it is");
    }
    Ok(())
}

fn write_document(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

async fn measure(options: &Options, scope: &Scope, containerd: &Containerd) -> Result<Samples> {
    let mut samples = Samples::new(options.pods);
    let kubelets = options.kubelets()?;
    for (column, program) in &kubelets {
        samples.record(Row::Binary, *column, fs::metadata(program)?.len() as f64 / 1e6);
    }
    let mut runtime = Runtime::connect(containerd).await?;
    let mut places = 0;
    for round in 1..=options.rounds {
        println!("bench: round {round} of {}", options.rounds);
        if !options.skip_floor {
            floor::measure(options, scope, &mut runtime, &mut samples).await?;
        }
        for (column, program) in &kubelets {
            places += 1;
            let place = Place::new(scope, containerd, *column, program, places)?;
            let with_probes = round == 1 && options.wants(Group::Probes);
            measure_kubelet(options, &place, with_probes, &mut runtime, &mut samples)
                .await
                .with_context(|| {
                    format!(
                        "measure {column}; its last words:\n{}",
                        place.log_tail(LAST_WORDS)
                    )
                })?;
            runtime.remove_everything().await?;
        }
    }
    Ok(samples)
}

/// All rows of one kubelet, on folders of its own.
async fn measure_kubelet(
    options: &Options,
    place: &Place<'_>,
    with_probes: bool,
    runtime: &mut Runtime,
    samples: &mut Samples,
) -> Result<()> {
    let column = place.column();
    let (mut kubelet, ready) = place.start()?;
    samples.record(Row::ExecToReady, column, ready.as_secs_f64() * 1e3);
    kubelet.settle(SETTLING).await?;
    let memory = kubelet.memory()?;
    samples.record(Row::MemoryIdle, column, memory.resident_mib);
    samples.record(Row::AnonymousIdle, column, memory.anonymous_mib);
    if with_probes {
        probes::measure(options, &mut kubelet, runtime, samples)
            .await
            .context("with probes")?;
        // Each group on a kubelet that did nothing before, as the floor's containerd did nothing else either.
        kubelet.stop()?;
        runtime.remove_everything().await?;
        (kubelet, _) = place.start()?;
        kubelet.settle(SETTLING).await?;
    }
    if options.wants(Group::One) {
        one::measure(&kubelet, runtime, samples)
            .await
            .context("with one pod")?;
    }
    if options.wants(Group::Hundred) {
        if options.wants(Group::One) {
            kubelet.stop()?;
            runtime.remove_everything().await?;
            (kubelet, _) = place.start()?;
            kubelet.settle(SETTLING).await?;
        }
        hundred::measure(options, place, kubelet, runtime, samples)
            .await
            .with_context(|| format!("with {} pods", options.pods))?;
    } else {
        kubelet.stop()?;
    }
    Ok(())
}
