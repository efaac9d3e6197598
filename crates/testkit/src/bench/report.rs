//! The tables as text, and the document around them.

use std::fmt::Write;

use super::Options;
use super::budget::{Limit, Mark, Row};
use super::machine::Facts;
use super::samples::{Column, Samples};

const NOTHING: &str = "–";

/// Both tables and the notes, as Markdown.
pub(super) fn tables(samples: &Samples) -> String {
    let mut text = String::from(
        "| measure | CRI floor | upstream | rubelet | ÷ floor | ÷ upstream | must reach | goal | holds? |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for row in Row::ALL {
        if let Some(line) = line(samples, row) {
            text += &line;
        }
    }
    text += &width_line(samples);
    text += &marks(samples);
    for (note, count) in samples.notes() {
        let _ = writeln!(text, "\nNote ({count} ×): {note}.");
    }
    text
}

fn line(samples: &Samples, row: Row) -> Option<String> {
    let cell = |column| samples.figure(row, column);
    let (floor, upstream, rubelet) = (cell(Column::Floor), cell(Column::Upstream), cell(Column::Rubelet));
    floor.or(upstream).or(rubelet)?;
    let figure = |value: Option<f64>| value.map_or(NOTHING.to_owned(), |value| row.figure(value));
    let ratio = |below: Option<f64>| match (rubelet, below) {
        (Some(ours), Some(below)) => format!("{:.2}", ours / below),
        _ => NOTHING.to_owned(),
    };
    // Upstream's own distance from the floor is half of what a reader wants to know.
    let upstream_text = match (upstream, floor) {
        (Some(theirs), Some(floor)) => format!("{} ({:.2} ×)", row.figure(theirs), theirs / floor),
        _ => figure(upstream),
    };
    Some(format!(
        "| {} | {} | {upstream_text} | {} | {} | {} | {} | {} | {} |\n",
        row.name(samples.pods()),
        figure(floor),
        figure(rubelet),
        ratio(floor),
        ratio(upstream),
        limit(row, row.must()),
        limit(row, row.goal()),
        verdict(row, floor, rubelet),
    ))
}

fn limit(row: Row, limit: Limit) -> String {
    match limit {
        Limit::OfFloor(factor) => format!("≤ {factor} × floor"),
        Limit::AtMost(value) => format!("≤ {}", row.figure(value)),
        Limit::Free => NOTHING.to_owned(),
    }
}

fn verdict(row: Row, floor: Option<f64>, rubelet: Option<f64>) -> &'static str {
    let reaches = |limit: Limit| Some(rubelet? <= limit.value(floor)?);
    match (reaches(row.must()), reaches(row.goal())) {
        (Some(true), Some(true)) => "yes, the goal too",
        (Some(true), _) => "yes",
        (Some(false), _) => "**no**",
        (None, _) => NOTHING,
    }
}

fn width_line(samples: &Samples) -> String {
    match (
        samples.best_width(Row::ManyStart),
        samples.best_width(Row::ManyStop),
    ) {
        (Some((starts, _)), Some((stops, _))) => {
            format!("\nThe floor of many pods is lowest with {starts} starts and {stops} stops in flight.\n")
        }
        _ => String::new(),
    }
}

fn marks(samples: &Samples) -> String {
    let mut text = String::new();
    for mark in Mark::ALL {
        let cells =
            [Column::Floor, Column::Upstream, Column::Rubelet].map(|column| samples.marked_ms(mark, column));
        if cells.iter().all(Option::is_none) {
            continue;
        }
        let cells = cells.map(|cell| cell.map_or(NOTHING.to_owned(), |value| format!("{value:.0}")));
        let _ = writeln!(text, "| {} | {} |", mark.name(), cells.join(" | "));
    }
    if text.is_empty() {
        return text;
    }
    format!(
        "\nWhere the time of one pod goes: milliseconds after the action began, as the runtime's events tell it.\n\n\
         | point | CRI floor | upstream | rubelet |\n|---|---|---|---|\n{text}"
    )
}

/// The document that holds the tables.
pub(super) fn document(facts: &Facts, options: &Options, figures: &str) -> String {
    format!(
        "# Benchmarks\n\n\
         Written by `make bench` on {date}: {rounds} rounds, medians. The machine: {cores} cores ({processor}), \
         {memory:.0} GiB of memory, Linux {kernel}, cgroup {cgroups}; containerd {containerd}; upstream is kubelet v1.37.1.\n\
         The machine is noisy (load average over the last 15 minutes of the run: {load}): compare the columns of one run, not runs.\n\n\
         ## Figures\n\n{figures}\n\
         {METHOD}",
        date = facts.date,
        rounds = options.rounds,
        cores = facts.cores,
        processor = facts.processor,
        memory = facts.memory_gib,
        kernel = facts.kernel,
        cgroups = facts.cgroups,
        containerd = facts.containerd,
        load = facts.load,
    )
}

const METHOD: &str = "\
## How it is measured

- All three columns share one private containerd, one image, one pod (a single container that ends at once on SIGTERM, in a
  bridged network of its own) and one set of cgroup settings; both kubelets get the same configuration file. They take turns, round by
  round. Each kubelet starts on empty folders and is left alone for 5 s before its first pod.
- **CRI floor**: RunPodSandbox, CreateContainer and StartContainer with the configuration that a kubelet sends; StopContainer
  and StopPodSandbox; nothing else. Many pods: the best of several numbers of pods in flight. The floor of a restart is the time from the kill
  through the runtime's event to the return of StartContainer.
- **Started** is measured from the rename of the manifest into the static pod folder. A pod counts as Running and Ready when the
  read-only port's `/pods` says so and the CRI says at that instant that its container is running. The kubelet is not asked before the
  CRI has the containers running: asking costs time.
- **Killed**: SIGKILL to the container's first process. The successor counts when the CRI calls it running.
- **Removed** is measured from the removal of the manifest. A sandbox is stopped when the CRI does not call it ready and its
  network is taken down, which is when StopPodSandbox returns.
- **Restarted**: SIGKILL to the kubelet, then a new process at once; until all pods are Running and Ready on `/pods` again.
- **CPU** is the user and system time of the kubelet's process; in steady state over at least 30 s that begin 5 s after the last
  start. **Memory** is `VmRSS`: idle 5 s after the start, with pods at the end of the steady state.
- **Probes**: measured in the first round only. Ten pods with a server and 25 other containers each, every one of these with a
  readiness and a liveness probe of the pod's server, a third each HTTP, TCP and gRPC, period 1 s; then five containers with a command as probe.
  The server notes when each probe came; late is how much longer than its period a run took, counted from the earliest run of its probe.
- **Volumes**: beside each single pod another one that also mounts two emptyDirs on disk, one in memory and two downwardAPI
  volumes; the row is the difference of their starts.
- One pod: five pods a round, with pauses of different lengths in between, so that what happens once a second is met at different points.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        let check = |row, floor, rubelet, expected| {
            assert_eq!(
                verdict(row, floor, rubelet),
                expected,
                "{row:?} {floor:?} {rubelet:?}"
            );
        };
        check(Row::OneStart, Some(100.0), Some(104.0), "yes, the goal too");
        check(Row::OneStart, Some(100.0), Some(120.0), "yes");
        check(Row::OneStart, Some(100.0), Some(126.0), "**no**");
        check(Row::OneStart, None, Some(126.0), NOTHING);
        check(Row::Binary, None, Some(31.0), "**no**");
        check(Row::ExecToReady, None, Some(31.0), NOTHING);
    }

    #[test]
    fn a_row_tells_figures_ratios_and_limits() {
        let mut samples = Samples::new(100);
        samples.record(Row::OneStart, Column::Floor, 100.0);
        samples.record(Row::OneStart, Column::Upstream, 200.0);
        samples.record(Row::OneStart, Column::Rubelet, 110.0);
        let text = tables(&samples);
        let expected = "| one pod, manifest written → Running and Ready on /pods | 100 ms | 200 ms (2.00 ×) | 110 ms | 1.10 | 0.55 \
                        | ≤ 1.25 × floor | ≤ 1.05 × floor | yes |";
        assert!(text.contains(expected), "{text}");
        assert!(
            !text.contains("binary"),
            "rows without figures are left out: {text}"
        );
    }
}
