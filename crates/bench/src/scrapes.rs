//! The rows of statistics: what an answer of each page costs the kubelet, what scrapes as those of metrics-server and Prometheus cost it,
//! and whether they slow down the start of a pod.
//!
//! What a kubelet takes at rest is measured first and taken off the cost of an answer, not off that of the scrapes: upstream's kubelet
//! looks at its cgroups also between two scrapes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rubelet_testbed::http::{self, Request};

use super::budget::Row;
use super::kubelet::Kubelet;
use super::one::{SHORT_REST, time_start};
use super::pod;
use super::runtime::Runtime;
use super::samples::Samples;

/// How often metrics-server asks by default, and Prometheus as kube-prometheus has it.
pub(super) const METRICS_SERVER: Duration = Duration::from_secs(15);
pub(super) const PROMETHEUS: Duration = Duration::from_secs(30);

const RESOURCE: &str = "/metrics/resource";
const SUMMARY: &str = "/stats/summary";
const CONTAINERS: &str = "/metrics/cadvisor";
const SCRAPED: [&str; 5] = [
    "/metrics",
    CONTAINERS,
    RESOURCE,
    "/metrics/probes",
    "/metrics/slis",
];
/// Answers of one page.
const ANSWERS: u32 = 20;
/// Rubelet's pages are for one second the same.
const BETWEEN_ANSWERS: Duration = Duration::from_millis(1200);
/// Until upstream's kubelet has looked at all cgroups twice.
const REST: Duration = Duration::from_secs(40);
const START_DEADLINE: Duration = Duration::from_secs(900);
/// Starts while all pages are scraped, beside as many without.
const PAIRS: usize = 8;

/// The rows of one number of pods.
pub(super) struct Rows {
    pages: [(&'static str, Row); 3],
    cpu: Row,
    memory: Row,
    start: Option<Row>,
}

pub(super) const MANY: Rows = Rows {
    pages: [
        (RESOURCE, Row::ResourcePage),
        (SUMMARY, Row::SummaryPage),
        (CONTAINERS, Row::ContainerPage),
    ],
    cpu: Row::ScrapedCpu,
    memory: Row::ScrapedMemory,
    start: Some(Row::ScrapedStart),
};

pub(super) const DENSE: Rows = Rows {
    pages: [
        (RESOURCE, Row::DenseResourcePage),
        (SUMMARY, Row::DenseSummaryPage),
        (CONTAINERS, Row::DenseContainerPage),
    ],
    cpu: Row::DenseScrapedCpu,
    memory: Row::DenseScrapedMemory,
    start: None,
};

/// All rows with this many pods; the kubelet has none before, and is ended. At rest it is measured for `steady`.
pub(super) async fn measure(
    (pods, rows): (usize, &Rows),
    steady: Duration,
    mut kubelet: Kubelet,
    runtime: &mut Runtime,
    samples: &mut Samples,
) -> Result<()> {
    let names: Vec<String> = (0..pods).map(|number| format!("scraped-{number}")).collect();
    start(&mut kubelet, &names).await?;
    let before = kubelet.memory()?.resident_mib;
    let (at_rest, ()) = share(&kubelet, tokio::time::sleep(steady)).await?;
    for (page, row) in rows.pages {
        let cost = answer_cost(&kubelet, page, at_rest).await.context(page)?;
        samples.record(row, kubelet.column(), cost * 1e3);
    }
    let address = kubelet.address().to_owned();
    let (scraped, outcome) = share(&kubelet, scrape(&address, steady.max(PROMETHEUS * 2))).await?;
    outcome.context("scrapes")?;
    samples.record(rows.cpu, kubelet.column(), scraped * 100.0);
    samples.record(
        rows.memory,
        kubelet.column(),
        kubelet.memory()?.resident_mib - before,
    );
    if let Some(row) = rows.start {
        measure_starts(row, &kubelet, runtime, samples).await?;
    }
    for name in &names {
        kubelet.take(name)?;
    }
    for name in &names {
        kubelet.wait_until_gone(name).await?;
    }
    kubelet.stop()
}

async fn start(kubelet: &mut Kubelet, names: &[String]) -> Result<()> {
    for name in names {
        kubelet.stage(name, &pod::manifest(name))?;
        kubelet.put(name)?;
    }
    let until = Instant::now() + START_DEADLINE;
    loop {
        let ready = kubelet.pods()?.iter().filter(|pod| pod.is_ready()).count();
        if ready == names.len() {
            break;
        }
        ensure!(
            Instant::now() < until,
            "{ready} of {} pods are ready",
            names.len()
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    kubelet.settle(REST).await
}

/// How much of a core the kubelet takes meanwhile, and what comes of it.
async fn share<T>(kubelet: &Kubelet, meanwhile: impl Future<Output = T>) -> Result<(f64, T)> {
    let (before, begin) = (kubelet.cpu_seconds()?, Instant::now());
    let outcome = meanwhile.await;
    let share = (kubelet.cpu_seconds()? - before) / begin.elapsed().as_secs_f64();
    Ok((share, outcome))
}

/// Seconds of the processor for an answer.
async fn answer_cost(kubelet: &Kubelet, page: &str, at_rest: f64) -> Result<f64> {
    // The first answer finds out where everything is.
    ask(kubelet.address(), page)?;
    tokio::time::sleep(BETWEEN_ANSWERS).await;
    let (before, begin) = (kubelet.cpu_seconds()?, Instant::now());
    for _ in 0..ANSWERS {
        ask(kubelet.address(), page)?;
        tokio::time::sleep(BETWEEN_ANSWERS).await;
    }
    let cpu = kubelet.cpu_seconds()? - before - at_rest * begin.elapsed().as_secs_f64();
    Ok((cpu / f64::from(ANSWERS)).max(0.0))
}

fn ask(address: &str, page: &str) -> Result<()> {
    let answer = http::get(address, page)?;
    ensure!(answer.status == 200, "{page} answered {}", answer.status);
    Ok(())
}

/// As Prometheus asks.
fn ask_compressed(address: &str, page: &str) -> Result<()> {
    let request = Request {
        method: "GET",
        path: page,
        headers: vec![("Accept-Encoding", "gzip".to_owned())],
        body: &[],
    };
    let answer = http::exchange(address, &request)?;
    ensure!(answer.status == 200, "{page} answered {}", answer.status);
    Ok(())
}

/// Both scrapers, for a while.
async fn scrape(address: &str, time: Duration) -> Result<()> {
    let begin = Instant::now();
    let mut turn = 0_u32;
    while begin.elapsed() < time {
        ask_compressed(address, RESOURCE)?;
        if (METRICS_SERVER * turn)
            .as_secs()
            .is_multiple_of(PROMETHEUS.as_secs())
        {
            for page in SCRAPED {
                ask_compressed(address, page)?;
            }
        }
        turn += 1;
        tokio::time::sleep((METRICS_SERVER * turn).saturating_sub(begin.elapsed())).await;
    }
    Ok(())
}

/// How much longer a start takes while all pages are scraped again and again.
async fn measure_starts(
    row: Row,
    kubelet: &Kubelet,
    runtime: &mut Runtime,
    samples: &mut Samples,
) -> Result<()> {
    for number in 0..PAIRS {
        let name = format!("quiet-{number}");
        let quiet = time_start(kubelet, &name, &pod::manifest(&name), runtime).await?;
        let scraper = Scraper::start(kubelet.address());
        tokio::time::sleep(SHORT_REST).await;
        let name = format!("watched-{number}");
        let watched = time_start(kubelet, &name, &pod::manifest(&name), runtime).await;
        scraper.stop().await?;
        let more = watched?.as_secs_f64() - quiet.as_secs_f64();
        samples.record(row, kubelet.column(), more * 1e3);
    }
    Ok(())
}

/// Asks for all pages once a second, until it is stopped.
struct Scraper {
    is_over: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Result<()>>,
}

impl Scraper {
    fn start(address: &str) -> Self {
        let (is_over, address) = (Arc::new(AtomicBool::new(false)), address.to_owned());
        let over = Arc::clone(&is_over);
        let task = tokio::task::spawn_blocking(move || {
            while !over.load(Ordering::Relaxed) {
                for page in SCRAPED.into_iter().chain([SUMMARY]) {
                    ask_compressed(&address, page)?;
                }
                std::thread::sleep(Duration::from_secs(1));
            }
            Ok(())
        });
        Self { is_over, task }
    }

    async fn stop(self) -> Result<()> {
        self.is_over.store(true, Ordering::Relaxed);
        self.task.await.context("the scraper")?
    }
}
