//! The source of pods behind a URL.
//!
//! Owns when to ask and what an answer means. Whatever goes wrong, the last good set stays.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_config::FeatureGates;
use rubelet_manifest::{StaticPods, read_url};
use rubelet_ports::{Clock, HttpFetcher};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::{MAX_MANIFEST_BYTES, Source, SourcePorts, SourceSet, SourceSettings};
use crate::settings::HttpSource;
use rubelet_ports::LogThrottle;

const KEPT: &str = "the last good pods of this source stay";
/// Failures in a row that are logged each; the others with growing gaps.
const LOUD_FAILURES: u32 = 3;
/// An interval of zero would be a busy loop against the server.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct HttpActor {
    source: HttpSource,
    node_name: String,
    gates: Arc<FeatureGates>,
    clock: Arc<dyn Clock>,
    http: Arc<dyn HttpFetcher>,
    output: mpsc::Sender<SourceSet>,
    /// Of the last body and what was wrong with it, if anything.
    body: Option<([u8; 32], Option<String>)>,
    sent: Option<Vec<Arc<Pod>>>,
    failures: u32,
    throttle: LogThrottle,
}

impl HttpActor {
    pub(super) fn new(
        http: &HttpSource,
        settings: &SourceSettings,
        ports: &SourcePorts,
        output: mpsc::Sender<SourceSet>,
    ) -> Self {
        Self {
            source: http.clone(),
            node_name: settings.node_name.clone(),
            gates: Arc::clone(&settings.gates),
            clock: Arc::clone(&ports.clock),
            http: Arc::clone(&ports.http),
            output,
            body: None,
            sent: None,
            failures: 0,
            throttle: LogThrottle::default(),
        }
    }

    /// Runs until the receiver of the sets is gone.
    pub(super) async fn run(mut self) {
        let interval = self.source.check_interval.max(MIN_INTERVAL);
        loop {
            let asked = tokio::select! {
                biased;
                // What is under way is dropped, and with it its connection.
                () = self.output.closed() => return,
                asked = self.http.get(&self.source.url, &self.source.headers, MAX_MANIFEST_BYTES) => asked,
            };
            let outcome = match asked {
                Ok(body) => self.take(&body).await,
                Err(error) => Err(format!("{error}; {KEPT}")),
            };
            match outcome {
                Ok(()) => self.succeeded(),
                Err(problem) => self.failed(&problem),
            }
            tokio::select! {
                biased;
                () = self.output.closed() => return,
                () = self.clock.sleep(interval) => {}
            }
        }
    }

    /// An answer. What cannot be used changes nothing.
    async fn take(&mut self, body: &[u8]) -> Result<(), String> {
        if body.is_empty() {
            self.body = None;
            self.send(Vec::new()).await;
            return Err("the answer is empty: no pods".to_owned());
        }
        let digest: [u8; 32] = Sha256::digest(body).into();
        if let Some((_, problem)) = self.body.as_ref().filter(|(last, _)| *last == digest) {
            let problem = problem.as_ref();
            return problem.map_or(Ok(()), |problem| Err(format!("{problem}; {KEPT}")));
        }
        let read = self.read(body);
        self.body = Some((digest, read.as_ref().err().cloned()));
        let read = read.map_err(|problem| format!("{problem}; {KEPT}"))?;
        for warning in &read.warnings {
            tracing::info!(source = Source::Http.as_str(), "{warning}");
        }
        self.send(read.pods.into_iter().map(Arc::new).collect()).await;
        Ok(())
    }

    /// A panic in reading is a refusal: what a server sends must not end the agent.
    fn read(&self, body: &[u8]) -> Result<StaticPods, String> {
        let read = || read_url(body, &self.source.url, &self.node_name, &self.gates);
        match catch_unwind(AssertUnwindSafe(read)) {
            Ok(read) => read.map_err(|error| error.to_string()),
            Err(_) => Err("reading the answer has failed inside of rubelet; please report it".to_owned()),
        }
    }

    /// Sends a set that is another one than the last. Who does not listen any more is noticed by the loop.
    async fn send(&mut self, pods: Vec<Arc<Pod>>) {
        if self.sent.as_ref() == Some(&pods) {
            return;
        }
        self.sent = Some(pods.clone());
        let set = SourceSet {
            source: Source::Http,
            pods,
            is_complete: true,
            never_good: Vec::new(),
            unusable: Vec::new(),
            unreadable: Vec::new(),
        };
        let _ = self.output.send(set).await;
    }

    fn succeeded(&mut self) {
        if self.failures > 0 {
            tracing::info!("pods are read from the manifest URL again");
        }
        self.failures = 0;
        self.throttle.end();
    }

    fn failed(&mut self, problem: &str) {
        self.failures = self.failures.saturating_add(1);
        // Asked in any case, so that the gaps count from the first failure.
        let is_due = self.throttle.is_due("", self.clock.moment());
        if self.failures <= LOUD_FAILURES || is_due {
            tracing::warn!(
                problem,
                failures = self.failures,
                "cannot read pods from the manifest URL"
            );
        }
    }
}
