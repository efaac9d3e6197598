//! What answers when the agent calls into pods: the name of the host is the script.

use async_trait::async_trait;
use rubelet_ports::{
    Clock, ConnectError, Dialer, GrpcCall, GrpcHealth, HttpAnswer, HttpCall, HttpCallError, HttpScheme,
};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::dice::SharedDice;
use crate::executor::Executor;

/// Nobody listens there.
pub const REFUSED: &str = "refused.test";
/// Takes the connection and says nothing.
pub const SILENT: &str = "silent.test";
/// Speaks HTTP where TLS is expected.
pub const PLAIN: &str = "plain.test";

/// Every other host answers, unless it is down.
#[derive(Clone)]
pub struct SimDialer {
    executor: Executor,
    dice: SharedDice,
    down: Arc<Mutex<BTreeSet<String>>>,
}

impl SimDialer {
    #[must_use]
    pub fn new(executor: &Executor, dice: SharedDice) -> Self {
        Self {
            executor: executor.clone(),
            dice,
            down: Arc::default(),
        }
    }

    /// From now on nobody listens at this host, or somebody does again.
    pub fn set_down(&self, host: &str, is_down: bool) {
        let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        if is_down {
            down.insert(host.to_owned());
        } else {
            down.remove(host);
        }
    }

    fn is_down(&self, host: &str) -> bool {
        let down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        host == REFUSED || down.contains(host)
    }

    async fn reach(&self, host: &str, timeout: Option<Duration>) -> Result<(), String> {
        let delay = self.dice.with(|dice| dice.millis(1, 20));
        self.executor.sleep(delay).await;
        match host {
            _ if self.is_down(host) => Err("connect: connection refused".to_owned()),
            SILENT => match timeout {
                Some(timeout) => {
                    self.executor.sleep(timeout).await;
                    Err("i/o timeout".to_owned())
                }
                None => std::future::pending().await,
            },
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Dialer for SimDialer {
    async fn http_get(&self, call: &HttpCall) -> Result<HttpAnswer, HttpCallError> {
        let no_answer = |message: String, spoke_plain_http| HttpCallError::NoAnswer {
            message,
            spoke_plain_http,
        };
        self.reach(&call.host, call.timeout)
            .await
            .map_err(|message| no_answer(message, false))?;
        if call.host == PLAIN && call.scheme == HttpScheme::Https {
            let message = "http: server gave HTTP response to HTTPS client".to_owned();
            return Err(no_answer(message, true));
        }
        Ok(HttpAnswer {
            status: 200,
            body: Vec::new(),
        })
    }

    async fn connect(&self, host: &str, _port: u16, timeout: Duration) -> Result<(), ConnectError> {
        let reached = self.reach(host, Some(timeout)).await;
        reached.map_err(|message| ConnectError { message })
    }

    async fn grpc_health(&self, call: &GrpcCall) -> GrpcHealth {
        match self.reach(&call.host, Some(call.timeout)).await {
            Ok(()) => GrpcHealth::Serving,
            Err(message) => GrpcHealth::Unhealthy { message },
        }
    }
}
