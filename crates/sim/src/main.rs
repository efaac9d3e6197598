//! Runs seeds of the simulation, and replays what failed.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a support program: it uses threads, the clock and files of the machine it runs on"
)]

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;
use rubelet_sim::replay::replay;
use rubelet_sim::{Bug, Outcome, Run, run_seed};

/// Lines of the trace that are shown of a failure.
const SHOWN_LINES: usize = 400;

/// A line of progress after so many seeds.
const PROGRESS_SEEDS: u64 = 5000;

#[derive(Parser)]
#[command(about = "Deterministic simulation of rubelet's agent")]
struct Arguments {
    /// Runs one seed and shows its trace.
    #[arg(long)]
    seed: Option<u64>,
    /// Runs the seeds A..B, on all cores, and shows the trace of the first that fails.
    #[arg(long, value_parser = parse_range)]
    seeds: Option<Range<u64>>,
    /// Makes the decisions of a flight record again and shows where they differ.
    #[arg(long)]
    replay: Option<PathBuf>,
    /// Turns a mistake on that was made on purpose, such as GraceGrows.
    #[arg(long, value_parser = parse_bug)]
    bug: Option<Bug>,
    /// Writes the flight records of a seed's pods into this folder, at a failure or before its end.
    #[arg(long)]
    records: Option<PathBuf>,
    /// Lines of the trace to show.
    #[arg(long, default_value_t = SHOWN_LINES)]
    lines: usize,
    /// Shows the trace also of a seed that holds, and rubelet's log in it.
    #[arg(long)]
    log: bool,
}

fn parse_range(text: &str) -> Result<Range<u64>> {
    let (from, to) = text.split_once("..").context("a range is A..B")?;
    Ok(from.parse()?..to.parse()?)
}

fn parse_bug(text: &str) -> Result<Bug> {
    let found = Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == text);
    found.with_context(|| format!("one of {:?}", Bug::ALL))
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    match (arguments.seed, arguments.seeds.clone(), &arguments.replay) {
        (Some(seed), None, None) => one(seed, &arguments),
        (None, Some(seeds), None) => many(&seeds, &arguments),
        (None, None, Some(path)) => replay_file(path),
        _ => bail!("give one of --seed N, --seeds A..B and --replay FILE"),
    }
}

fn replay_file(path: &Path) -> Result<ExitCode> {
    let dump = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let replayed = replay(&dump)?;
    for difference in &replayed.differences {
        println!("{difference}");
    }
    let differ = replayed.differences.len();
    println!("{} decisions made again, {differ} differ", replayed.decisions);
    Ok(if differ == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl Arguments {
    fn run(&self) -> Run {
        Run {
            wants_log: self.log,
            bug: self.bug,
            wants_records: self.records.is_some(),
        }
    }
}

fn one(seed: u64, arguments: &Arguments) -> Result<ExitCode> {
    let outcome = run_seed(seed, arguments.run());
    if let Some(folder) = &arguments.records {
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        for (number, record) in outcome.records.iter().enumerate() {
            let path = folder.join(format!("seed{seed}-{number}.json"));
            std::fs::write(&path, record).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    if outcome.failure.is_some() || arguments.log {
        print!("{}", outcome.trace.text(arguments.lines));
    }
    Ok(report(&outcome))
}

fn report(outcome: &Outcome) -> ExitCode {
    let Outcome {
        seed, polls, elapsed, ..
    } = outcome;
    let hash = outcome.trace.hash();
    match &outcome.failure {
        Some(failure) => {
            println!("seed {seed} FAILED after {polls} polls, {elapsed:?}, trace {hash:016x}: {failure}");
            ExitCode::FAILURE
        }
        None => {
            println!("seed {seed} holds: {polls} polls, {elapsed:?}, trace {hash:016x}");
            ExitCode::SUCCESS
        }
    }
}

fn many(seeds: &Range<u64>, arguments: &Arguments) -> Result<ExitCode> {
    let started = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let failed: Vec<(u64, String)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut failed = Vec::new();
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= seeds.end {
                            return failed;
                        }
                        let done = seed - seeds.start;
                        if done > 0 && done.is_multiple_of(PROGRESS_SEEDS) {
                            println!("{done} seeds begun, {:.0} s", started.elapsed().as_secs_f64());
                        }
                        let run = Run {
                            wants_log: false,
                            ..arguments.run()
                        };
                        if let Some(failure) = run_seed(seed, run).failure {
                            println!("seed {seed}: {failure}");
                            failed.push((seed, failure));
                        }
                    }
                })
            })
            .collect();
        let results = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
        results.flat_map(Result::unwrap_or_default).collect()
    });
    let count = seeds.end.saturating_sub(seeds.start);
    let seconds = started.elapsed().as_secs_f64();
    println!("{} of {count} seeds failed, {seconds:.1} s", failed.len());
    let Some((seed, _)) = failed.iter().min() else {
        return Ok(ExitCode::SUCCESS);
    };
    if arguments.log {
        return one(*seed, arguments);
    }
    println!("replay: cargo run -p rubelet-sim -- --seed {seed}");
    Ok(ExitCode::FAILURE)
}
