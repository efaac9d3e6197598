//! `make bench`: rubelet, upstream's kubelet and the bare CRI floor on every row of the budget, in one run on one machine.
//!
//! All three use the same private containerd, image, pod and configuration, and take turns round by round, so that what
//! disturbs the machine disturbs all of them. Reading order: `budget` and `limits` (the rows) → `one`, `many`, `probes`,
//! `scrapes`, `api`, `statuses`, `objects`, `streams`, `floor` (what is done) → `kubelet`, `runtime`, `pod`, `cluster`, `audit`, `sightings`, `relay`, `gate`
//! (with what) → `samples` and `report` (what comes out). The machine is noisy: compare the columns of one run, not runs.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the benchmark is an edge: it runs real programs and reads the clock"
)]

mod api;
mod audit;
mod budget;
mod cluster;
mod floor;
mod gate;
mod kubelet;
mod limits;
mod machine;
mod many;
mod marks;
mod objects;
mod one;
mod options;
mod pod;
mod probes;
mod relay;
mod report;
mod runtime;
mod samples;
mod scrapes;
mod sightings;
mod statuses;
mod streams;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use budget::Row;
use cluster::Cluster;
use gate::Gate;
use kubelet::Place;
use many::Scale;
use relay::Relay;
use rubelet_testbed::containerd::{Containerd, Flavour};
use rubelet_testbed::{Scope, images, workspace_root};
use runtime::Runtime;
use samples::{Column, Samples};

pub use options::{Group, Options};

/// What a kubelet does in its first moments is none of the rows but that of its start.
const SETTLING: Duration = Duration::from_secs(5);

/// How many lines of a kubelet's log are shown when it fails.
const LAST_WORDS: usize = 20;

/// Measures, prints the table, and writes the document if nothing was left out.
pub fn run(options: &Options) -> Result<()> {
    let begin = Instant::now();
    let scope = Scope::in_memory("bench")?;
    let containerd = Containerd::start(&scope, Flavour::V2)?;
    if options.wants(Group::Probes) || options.wants(Group::Streams) {
        containerd.import(&images::busybox()?)?;
    }
    if options.wants(Group::Probes) {
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
    let mut samples = Samples::new(options.sizes());
    let kubelets = options.kubelets()?;
    for (column, program) in &kubelets {
        samples.record(Row::Binary, *column, fs::metadata(program)?.len() as f64 / 1e6);
    }
    let mut bench = Bench {
        options,
        scope,
        containerd,
        kubelets,
        places: 0,
        runtime: Runtime::connect(containerd).await?,
        samples,
    };
    if options.wants_static_pods() {
        for round in 1..=options.rounds {
            bench.begin_round(round, "");
            bench.measure_static_pods(round).await?;
        }
    }
    if options.wants_cluster() {
        bench.measure_in_cluster().await?;
    }
    Ok(bench.samples)
}

/// A run of the benchmarks.
struct Bench<'a> {
    options: &'a Options,
    scope: &'a Scope,
    containerd: &'a Containerd,
    kubelets: Vec<(Column, PathBuf)>,
    /// How many kubelets had folders so far.
    places: usize,
    runtime: Runtime,
    samples: Samples,
}

impl<'a> Bench<'a> {
    fn begin_round(&mut self, round: usize, what: &str) {
        println!("bench: round {round} of {}{what}", self.options.rounds);
        self.samples.begin_round(round);
    }

    /// Folders for every kubelet, in the order in which they take their turns in this round.
    fn places(&mut self, round: usize) -> Result<Vec<Place<'a>>> {
        let mut kubelets = self.kubelets.clone();
        if round.is_multiple_of(2) {
            kubelets.reverse();
        }
        let mut places = Vec::new();
        for (column, program) in kubelets {
            self.places += 1;
            places.push(Place::new(
                self.scope,
                self.containerd,
                column,
                &program,
                self.places,
            )?);
        }
        Ok(places)
    }

    /// A round of the rows without a cluster. Each group on a kubelet that did nothing before, next to its floor.
    async fn measure_static_pods(&mut self, round: usize) -> Result<()> {
        let options = self.options;
        let places = self.places(round)?;
        let with_probes = round == 1 && options.wants(Group::Probes);
        if options.wants(Group::Idle) || options.wants(Group::One) || with_probes {
            if !options.skip_floor {
                floor::measure_one_by_one(options, self.scope, &mut self.runtime, &mut self.samples).await?;
            }
            for place in &places {
                let result = self.measure_few(place, round == 1).await;
                result.with_context(|| last_words(place))?;
                self.runtime.remove_everything().await?;
            }
        }
        if options.wants(Group::Hundred) {
            self.measure_many(&Scale::many(options.pods), &options.widths, &places)
                .await?;
        }
        if round == 1 && options.wants(Group::Dense) {
            self.measure_many(&Scale::dense(options.dense_pods), &options.dense_widths, &places)
                .await?;
        }
        if round == 1 && options.wants(Group::Scrapes) {
            self.measure_scrapes(round).await?;
        }
        Ok(())
    }

    /// The rows of scrapes, on kubelets with cgroups for pods.
    async fn measure_scrapes(&mut self, round: usize) -> Result<()> {
        let rows = [
            (self.options.pods, &scrapes::MANY),
            (self.options.dense_pods, &scrapes::DENSE),
        ];
        for (pods, rows) in rows {
            for place in self.places(round)? {
                let place = place.with_statistics(self.containerd)?;
                let (mut kubelet, _) = place.start()?;
                kubelet.settle(SETTLING).await?;
                let (runtime, samples) = (&mut self.runtime, &mut self.samples);
                scrapes::measure((pods, rows), self.options.steady(), kubelet, runtime, samples)
                    .await
                    .with_context(|| last_words(&place))?;
                self.runtime.remove_everything().await?;
            }
        }
        Ok(())
    }

    /// The rows of many pods of one scale.
    async fn measure_many(&mut self, scale: &Scale, widths: &[usize], places: &[Place<'_>]) -> Result<()> {
        if !self.options.skip_floor {
            floor::measure_at_once(scale, widths, self.scope, &mut self.runtime, &mut self.samples).await?;
        }
        for place in places {
            let result = self.measure_many_of(scale, place).await;
            result.with_context(|| last_words(place))?;
            self.runtime.remove_everything().await?;
        }
        Ok(())
    }

    async fn measure_many_of(&mut self, scale: &Scale, place: &Place<'_>) -> Result<()> {
        let (mut kubelet, _) = place.start()?;
        kubelet.settle(SETTLING).await?;
        let steady = self.options.steady();
        many::measure(
            scale,
            steady,
            place,
            kubelet,
            &mut self.runtime,
            &mut self.samples,
        )
        .await
        .with_context(|| format!("with {} pods", scale.pods))
    }

    /// The rows of an idle kubelet, of probes in the first round, and of one pod.
    async fn measure_few(&mut self, place: &Place<'_>, is_first: bool) -> Result<()> {
        let column = place.column();
        let (mut kubelet, ready) = place.start()?;
        kubelet.settle(SETTLING).await?;
        let memory = kubelet.memory()?;
        let samples = &mut self.samples;
        samples.record(Row::ExecToReady, column, ready.as_secs_f64() * 1e3);
        samples.record(Row::MemoryIdle, column, memory.resident_mib);
        samples.record(Row::AnonymousIdle, column, memory.anonymous_mib);
        if is_first && self.options.wants(Group::Probes) {
            probes::measure(self.options, &mut kubelet, &mut self.runtime, samples)
                .await
                .context("with probes")?;
            kubelet.stop()?;
            self.runtime.remove_everything().await?;
            (kubelet, _) = place.start()?;
            kubelet.settle(SETTLING).await?;
        }
        if self.options.wants(Group::One) {
            one::measure(&kubelet, &mut self.runtime, samples)
                .await
                .context("with one pod")?;
            let prober = Gate::start().await?;
            one::measure_more(&kubelet, &prober, &mut self.runtime, samples)
                .await
                .context("with more in the pod")?;
        }
        kubelet.stop()
    }

    /// All rounds of the rows through the API server.
    async fn measure_in_cluster(&mut self) -> Result<()> {
        println!("bench: starting a control plane");
        let mut cluster = Cluster::start(self.scope).await?;
        for round in 1..=self.options.rounds {
            if self.options.wants(Group::Api) {
                self.begin_round(round, " through the API server");
                self.measure_api(round, &mut cluster).await?;
            }
            if self.options.wants(Group::Streams) {
                self.begin_round(round, " of what kubectl does");
                self.measure_streams(round, &mut cluster).await?;
            }
        }
        if self.options.wants(Group::Statuses) {
            self.begin_round(1, " with the API server far away");
            self.measure_statuses(&mut cluster).await?;
        }
        if self.options.wants(Group::Objects) {
            self.begin_round(1, " with objects for every pod");
            self.measure_objects(&mut cluster).await?;
        }
        Ok(())
    }

    async fn measure_api(&mut self, round: usize, cluster: &mut Cluster) -> Result<()> {
        for place in self.places(round)? {
            let membership = cluster.membership(place.name(), None)?;
            let place = place.joined(membership);
            let (runtime, samples) = (&self.runtime, &mut self.samples);
            api::measure(self.options, &place, round == 1, cluster, runtime, samples)
                .await
                .with_context(|| last_words(&place))?;
            self.runtime.remove_everything().await?;
        }
        Ok(())
    }

    async fn measure_streams(&mut self, round: usize, cluster: &mut Cluster) -> Result<()> {
        for place in self.places(round)? {
            let membership = cluster.membership(place.name(), None)?;
            let place = place.joined(membership);
            streams::measure(self.scope, &place, cluster, &mut self.samples)
                .await
                .with_context(|| last_words(&place))?;
            self.runtime.remove_everything().await?;
        }
        Ok(())
    }

    async fn measure_statuses(&mut self, cluster: &mut Cluster) -> Result<()> {
        let relay = Relay::start(cluster.endpoint()?, statuses::ROUND_TRIP / 2).await?;
        let gate = Gate::start().await?;
        for place in self.places(1)? {
            let membership = cluster.membership(place.name(), Some(relay.address()))?;
            let place = place.joined(membership);
            statuses::measure(&place, &gate, cluster, &mut self.samples)
                .await
                .with_context(|| last_words(&place))?;
            self.runtime.remove_everything().await?;
        }
        Ok(())
    }

    async fn measure_objects(&mut self, cluster: &mut Cluster) -> Result<()> {
        for place in self.places(1)? {
            let membership = cluster.membership(place.name(), None)?;
            let place = place.joined(membership);
            objects::measure(self.options.dense_pods, &place, cluster, &mut self.samples)
                .await
                .with_context(|| last_words(&place))?;
            self.runtime.remove_everything().await?;
        }
        Ok(())
    }
}

fn last_words(place: &Place<'_>) -> String {
    format!(
        "measure {}; its last words:\n{}",
        place.column(),
        place.log_tail(LAST_WORDS)
    )
}
