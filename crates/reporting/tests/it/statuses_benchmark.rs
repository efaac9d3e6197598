//! What reporting costs on a real clock. Run it by name, with `--ignored --nocapture`, in a release build.
#![expect(
    clippy::disallowed_methods,
    reason = "a benchmark measures real time on a real executor"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use rubelet_lifecycle::status::StatusGates;
use rubelet_model::Timestamp;
use rubelet_ports::{Clock, Moment, PodReport, PodReporter, Spawner};
use rubelet_reporting::{Reporter, ReportingPorts};
use rubelet_sim::dice::SharedDice;
use serde_json::Value;
use tokio::sync::watch;

use crate::api::{ApiState, FakeApi};
use crate::bed::{pod, running};

struct Real(Instant);

impl Clock for Real {
    fn now(&self) -> Timestamp {
        Timestamp::from_unix_seconds(1_767_225_600)
    }

    fn moment(&self) -> Moment {
        Moment::from_start(self.0.elapsed())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

impl Spawner for Real {
    fn spawn(&self, _: &str, future: BoxFuture<'static, ()>) {
        tokio::spawn(future);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures, and judges nothing"]
async fn two_hundred_statuses_on_a_real_clock() {
    let real = Arc::new(Real(Instant::now()));
    let api = FakeApi::new(real.clone(), 1);
    let (_node, receiver) = watch::channel(None);
    let ports = ReportingPorts {
        clock: real.clone(),
        spawner: real.clone(),
        randomness: Arc::new(SharedDice::new(1, "benchmark")),
        pods: Arc::new(api.clone()),
    };
    let reporter = Reporter::start(ports, StatusGates::default(), receiver);
    let pods: Vec<Value> = (0..200).map(|number| pod(&format!("p{number}"))).collect();
    for pod in &pods {
        api.user_creates(pod);
    }
    let all = api.with(ApiState::relist);
    reporter.api_pods(&all);
    let reports: Vec<PodReport> = pods
        .into_iter()
        .map(|pod| PodReport {
            pod: Arc::new(serde_json::from_value(pod).unwrap()),
            status: Arc::new(serde_json::from_value(running(0)).unwrap()),
            is_finished: false,
        })
        .collect();
    let start = Instant::now();
    for report in reports {
        reporter.report(report);
    }
    let told = start.elapsed();
    let deadline = start + Duration::from_secs(60);
    while reporter.undelivered() > 0 {
        assert!(Instant::now() < deadline, "not delivered");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    println!(
        "200 reports told in {told:?}, delivered in {:?} at a round trip of 20 ms",
        start.elapsed()
    );
    assert_eq!(reporter.figures().statuses_sent, 200);
}
