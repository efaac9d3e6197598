//! The small edges: a web server with static pods, and the collector of events.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use rubelet_ports::{Clock, EventRecorder, FetchError, HttpFetcher, PodEvent};

use crate::dice::SharedDice;
use crate::executor::Executor;
use crate::history::{Fact, History};
use crate::trace::{Actor, Trace};

/// Answers with the document it was given, or not at all.
#[derive(Clone)]
pub struct SimHttp {
    executor: Executor,
    dice: SharedDice,
    history: History,
    document: Arc<Mutex<Option<Vec<u8>>>>,
}

impl SimHttp {
    #[must_use]
    pub fn new(executor: &Executor, dice: SharedDice, history: History) -> Self {
        Self {
            executor: executor.clone(),
            dice,
            history,
            document: Arc::new(Mutex::new(None)),
        }
    }

    /// What is served from now on; `None` refuses connections.
    pub fn serve(&self, document: Option<Vec<u8>>) {
        *self.document.lock().unwrap_or_else(PoisonError::into_inner) = document;
    }
}

#[async_trait]
impl HttpFetcher for SimHttp {
    async fn get(
        &self,
        url: &str,
        _headers: &[(String, String)],
        _limit_bytes: u64,
    ) -> Result<Vec<u8>, FetchError> {
        let delay = self.dice.with(|dice| dice.millis(1, 50));
        self.executor.sleep(delay).await;
        let document = self
            .document
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        match document {
            Some(content) => {
                let fact = Fact::Fetched {
                    content: content.clone(),
                };
                self.history.add(self.executor.elapsed(), fact);
                Ok(content)
            }
            None => Err(FetchError::Failed {
                url: url.to_owned(),
                problem: "connection refused".to_owned(),
            }),
        }
    }
}

/// Writes events into the trace.
#[derive(Clone)]
pub struct EventCollector {
    executor: Executor,
    trace: Trace,
}

impl EventCollector {
    #[must_use]
    pub fn new(executor: &Executor, trace: Trace) -> Self {
        Self {
            executor: executor.clone(),
            trace,
        }
    }
}

impl EventRecorder for EventCollector {
    fn record(&self, pod: &Pod, event: PodEvent) {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let container = event.container.as_deref().unwrap_or("-");
        let text = format!(
            "event {name} {uid} {container}: {} {}: {}",
            event.event_type.as_str(),
            event.reason,
            event.message
        );
        self.trace.say(self.executor.elapsed(), Actor::Rubelet, text);
    }
}
