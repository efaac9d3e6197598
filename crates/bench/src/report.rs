//! The tables as text, and the document around them.

use std::fmt::Write;

use super::Options;
use super::budget::{Row, Sizes};
use super::limits::{Limit, Outcome};
use super::machine::Facts;
use super::marks::Mark;
use super::samples::{Column, Ratio, Samples};

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
    let (of_floor, of_upstream) = (
        samples.ratio(row, Column::Floor),
        samples.ratio(row, Column::Upstream),
    );
    let ratio = |ratio: Option<Ratio>| ratio.map_or(NOTHING.to_owned(), ratio_text);
    let outcome = Outcome {
        figure: rubelet,
        of_floor: of_floor.map(|ratio| ratio.median),
        of_upstream: of_upstream.map(|ratio| ratio.median),
        of_fewer: samples.per_pod_ratio(row),
    };
    let sizes = samples.sizes();
    // Upstream's own distance from the floor is half of what a reader wants to know.
    let upstream_text = match (upstream, floor) {
        (Some(theirs), Some(floor)) => format!("{} ({:.2} ×)", row.figure(theirs), theirs / floor),
        _ => figure(upstream),
    };
    Some(format!(
        "| {} | {} | {upstream_text} | {} | {} | {} | {} | {} | {} |\n",
        row.name(sizes),
        figure(floor),
        figure(rubelet),
        ratio(of_floor),
        ratio(of_upstream),
        limit(row, row.must(), sizes),
        limit(row, row.goal(), sizes),
        verdict(row, outcome),
    ))
}

/// The median, and the range if there is one.
fn ratio_text(ratio: Ratio) -> String {
    let [median, lowest, highest] =
        [ratio.median, ratio.lowest, ratio.highest].map(|value| format!("{value:.2}"));
    if lowest == highest {
        return median;
    }
    format!("{median} ({lowest}–{highest})")
}

fn limit(row: Row, limit: Limit, sizes: Sizes) -> String {
    match limit {
        Limit::OfFloor(factor) => format!("≤ {factor} × floor"),
        Limit::OfUpstream(factor) => format!("≤ {factor} × upstream"),
        Limit::AtMost(value) => format!("≤ {}", row.figure(value)),
        Limit::Linear => format!("linear from {} pods", sizes.many),
        Limit::Free => NOTHING.to_owned(),
    }
}

fn verdict(row: Row, outcome: Outcome) -> &'static str {
    match (row.must().is_reached(outcome), row.goal().is_reached(outcome)) {
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
  round, for each group of rows, in the other order every second round. Each kubelet starts on empty folders and is left alone for 5 s
  before its first pod. All files are on one file system in memory: a disk remembers for minutes what was removed from it, and whoever
  comes later in a round would pay for that.
- The ratios are medians of the rounds' ratios, with their range; so are the verdicts of rows whose limit is a multiple of the floor or of
  upstream. What slows the machine down for minutes slows all columns of a round.
- **CRI floor**: RunPodSandbox, CreateContainer and StartContainer with the configuration that a kubelet sends; StopContainer
  and StopPodSandbox; nothing else. Many pods: the best of several numbers of pods in flight; 500 pods: six in flight. The floor of a restart is the time from the kill
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
- **500 pods**: measured in the first round only, as the rows of 100 pods are. Linear means: no more per pod than with 100 pods in the same
  run.
- **Probes**: measured in the first round only. Ten pods with a server and 25 other containers each, every one of these with a
  readiness and a liveness probe of the pod's server, a third each HTTP, TCP and gRPC, period 1 s; then five containers with a command as probe.
  The server notes when each probe came; late is how much longer than its period a run took, counted from the earliest run of its probe.
- **Volumes**: twelve pairs of starts a round, of the plain pod and of one that also mounts two emptyDirs on disk, one in memory and two
  downwardAPI volumes; the row is the difference within a pair. The floor mounts five directories that are there already: what it takes
  longer for them is the runtime's.
- **With probes**: beside each of these pairs a pod whose container has a startup, a readiness and a liveness probe over HTTP, period
  1 s, of a server on the node that says yes at once; the row is the difference to the plain pod.
- **Through the API server**: a real kube-apiserver with etcd and the controllers that pods need, after all other rows, as it is not free
  of cost at rest. Pods are created with their node's name, from the first request until a watch shows all of them Running and Ready; then the CRI
  must call their containers running too. Deleted: from the first request until the watch shows that all are gone. The many carry what the API
  server adds to every pod, a volume with a token; the single ones do not. Both kubelets keep their default limits for requests. Memory is read
  5 s after the start and 5 s after the last start of a pod; the steady state is measured in the first round only.
- **Volumes fed by the API server**: a configMap, a secret, a downwardAPI volume, a projected one of both objects, and one as every pod has it,
  with a token; no other pod uses these objects meanwhile. The row is the difference to a pod without volumes.
- **Changes at once**: measured in the first round only, four times. The kubelet reaches the API server through a relay that keeps every byte for
  half the round trip in each direction. 200 pods have a readiness probe of one server, which answers none of them before all have asked, and
  then all at once, otherwise than before; until the watch, which does not go through the relay, shows all pods changed. Both kubelets
  have the default limits for requests; rubelet does not count statuses against them, it bounds how many are under way.
- **Volumes served again**: measured in the first round only, with the default limits for requests. 500 pods mount a ConfigMap, a Secret and a
  projected volume of a token, the cluster's root certificate and another ConfigMap; no two pods share one of the three objects. The kubelet is
  killed, all 1,500 objects are changed, then the kubelet is started; until every file in the volumes' directories on the node has the new
  content. The API server's audit log counts the kubelet's requests in this time.
- **With kubectl**: one pod whose container has written its log before, read by `kubectl logs -f` up to the last line three times a round; ten
  commands by `kubectl exec`; three downloads from the container through one `kubectl port-forward`. All of it goes through the API server;
  kubectl's own start is part of the first two. Logs are not rotated meanwhile.
- **Statistics**: measured in the first round only, on nodes with cgroups for pods and QoS classes, with containerd at the path where
  upstream's cAdvisor looks for one. The processor time of an answer is that of 20 answers, 1.2 s apart, less what the kubelet takes at
  rest; gzip is not asked for. Scraped: for a minute `/metrics/resource` every 15 s, and every 30 s all pages of metrics, compressed and
  over the read-only port; all of the kubelet's processor time counts. Eight pairs of starts of one pod, one of each while all pages are
  asked for once a second; the row is the difference.
- One pod: five pods a round, with pauses of different lengths in between, so that what happens once a second is met at different points.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        let check = |row, rubelet: f64, of_floor: Option<f64>, expected| {
            let outcome = Outcome {
                figure: Some(rubelet),
                of_floor,
                of_upstream: of_floor,
                of_fewer: of_floor,
            };
            assert_eq!(verdict(row, outcome), expected, "{row:?} {outcome:?}");
        };
        check(Row::OneStart, 300.0, Some(0.99), "yes, the goal too");
        check(Row::OneStart, 300.0, Some(1.1), "yes");
        check(Row::OneStart, 300.0, Some(1.16), "**no**");
        check(Row::OneStart, 300.0, None, NOTHING);
        check(Row::Binary, 31.0, None, "**no**");
        check(Row::ExecToReady, 31.0, None, NOTHING);
        check(Row::ApiVolumesStart, 14.0, None, "yes");
        check(Row::ProbesStart, 10.1, None, "**no**");
        check(Row::DenseKubeletRestart, 0.9, Some(0.9), "yes, the goal too");
        check(Row::DenseKubeletRestart, 0.9, Some(1.1), "yes");
        check(Row::DenseKubeletRestart, 1.1, Some(0.9), "**no**");
        check(Row::ObjectsRestart, 5.1, None, "**no**");
        check(Row::Entered, 300.0, Some(1.04), "yes");
        check(Row::LogsFollowed, 300.0, Some(1.06), "**no**");
    }

    #[test]
    fn ratios_tell_their_range() {
        let check = |lowest, median, highest, expected: &str| {
            let ratio = Ratio {
                median,
                lowest,
                highest,
            };
            assert_eq!(ratio_text(ratio), expected);
        };
        check(0.861, 0.87, 1.46, "0.87 (0.86–1.46)");
        check(0.871, 0.872, 0.874, "0.87");
    }

    #[test]
    fn a_row_tells_figures_ratios_and_limits() {
        let mut samples = Samples::new(Sizes {
            many: 100,
            dense: 500,
        });
        samples.record(Row::OneStart, Column::Floor, 100.0);
        samples.record(Row::OneStart, Column::Upstream, 200.0);
        samples.record(Row::OneStart, Column::Rubelet, 110.0);
        let text = tables(&samples);
        let expected = "| one pod, manifest written → Running and Ready on /pods | 100 ms | 200 ms (2.00 ×) | 110 ms | 1.10 | 0.55 \
                        | ≤ 1.15 × floor | ≤ 1 × floor | yes |";
        assert!(text.contains(expected), "{text}");
        samples.record(Row::DenseSteadyCpu, Column::Rubelet, 0.5);
        let dense = "| CPU in steady state with 500 pods | – | – | 0.50 % of a core | – | – | ≤ 0.60 % of a core | linear from 100 pods | yes |";
        assert!(tables(&samples).contains(dense), "{}", tables(&samples));
        assert!(
            !text.contains("binary"),
            "rows without figures are left out: {text}"
        );
    }
}
