//! A fake runtime and a client of it.

use std::future::Future;
use std::time::Duration;

use prometheus::Registry;
use rubelet_cri::{CriClient, CriMetrics, CriOptions};
use rubelet_fakes::cri::FakeCri;
use rubelet_ports::{RuntimeError, RuntimeErrorKind, RuntimeReader};

/// Long enough that no test on a busy machine meets it by accident.
pub(crate) const PATIENT: Duration = Duration::from_secs(60);

/// For tests that mean to meet a deadline.
pub(crate) const HASTY: Duration = Duration::from_millis(150);

pub(crate) struct Scene {
    pub(crate) runtime: FakeCri,
    pub(crate) client: CriClient,
    pub(crate) registry: Registry,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        Self::with(|_| ()).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut CriOptions)) -> Self {
        let runtime = FakeCri::start().await.expect("the fake runtime starts");
        let mut options = options(&runtime);
        change(&mut options);
        let registry = Registry::new();
        let metrics = CriMetrics::register(&registry).expect("an empty registry takes the metrics");
        let client = CriClient::lazy(&options, &metrics).expect("the endpoint is well formed");
        Self {
            runtime,
            client,
            registry,
        }
    }

    /// Waits until the runtime answers the client again, whatever the backoff.
    pub(crate) async fn until_answered(&self) {
        let answered = async {
            while self.client.version().await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENT, answered)
            .await
            .expect("the client finds the runtime again");
    }
}

pub(crate) fn options(runtime: &FakeCri) -> CriOptions {
    CriOptions {
        request_timeout: PATIENT,
        ..CriOptions::new(runtime.endpoint())
    }
}

pub(crate) fn metrics() -> CriMetrics {
    CriMetrics::register(&Registry::new()).expect("an empty registry takes the metrics")
}

/// The kind of failure, and that the error names method and endpoint.
pub(crate) async fn failure<T: std::fmt::Debug>(
    scene: &Scene,
    method: &str,
    call: impl Future<Output = Result<T, RuntimeError>>,
) -> RuntimeErrorKind {
    let error = tokio::time::timeout(PATIENT, call)
        .await
        .expect("the call ends")
        .expect_err("the call fails");
    let text = error.to_string();
    assert!(
        text.starts_with(&format!("{method} on {}: ", scene.runtime.endpoint())),
        "{text}"
    );
    error.kind()
}
