//! What answers when the agent calls into pods: the name of the host is the script, or the container that listens at its pod's
//! address.

use async_trait::async_trait;
use rubelet_ports::{
    Clock, ConnectError, Dialer, GrpcCall, GrpcHealth, HttpAnswer, HttpCall, HttpCallError, HttpScheme,
    TcpCall,
};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::dice::SharedDice;
use crate::executor::Executor;
use crate::history::{Fact, History};
use crate::runtime::{Answer, SimRuntime};

/// Nobody listens there.
pub const REFUSED: &str = "refused.test";
/// Takes the connection and says nothing.
pub const SILENT: &str = "silent.test";
/// Speaks HTTP where TLS is expected.
pub const PLAIN: &str = "plain.test";

/// Why a call has no result.
enum Miss {
    NoAnswer(String),
    /// The host name was not looked up.
    NoPlace(String),
}

impl From<String> for Miss {
    fn from(message: String) -> Self {
        Self::NoAnswer(message)
    }
}

/// Every other host answers, unless it is down.
#[derive(Clone)]
pub struct SimDialer {
    executor: Executor,
    dice: SharedDice,
    down: Arc<Mutex<BTreeSet<String>>>,
    /// Whose containers listen at the addresses of pods.
    pods: Option<(SimRuntime, History)>,
}

impl SimDialer {
    #[must_use]
    pub fn new(executor: &Executor, dice: SharedDice) -> Self {
        Self {
            executor: executor.clone(),
            dice,
            down: Arc::default(),
            pods: None,
        }
    }

    /// The same, where the containers of this runtime answer probes as their scripts say.
    #[must_use]
    pub fn of_pods(self, runtime: SimRuntime, history: History) -> Self {
        Self {
            pods: Some((runtime, history)),
            ..self
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

    /// Whether whoever listens there is well.
    async fn probe(&self, host: &str, port: u16, timeout: Option<Duration>) -> Result<bool, Miss> {
        if let Some((runtime, _)) = &self.pods {
            let share = runtime.faults().lookup_has_no_place;
            if share > 0 && self.dice.with(|dice| dice.per_myriad(share)) {
                self.executor.sleep(timeout.unwrap_or_default()).await;
                let message = format!("lookup {host}: too many look-ups of host names are under way");
                return Err(Miss::NoPlace(message));
            }
        }
        self.reach(host, timeout).await?;
        let Some((runtime, history)) = &self.pods else {
            return Ok(true);
        };
        let Some((id, kind, answer)) = runtime.listener(host, port) else {
            // Until its end is seen, that is a failure of the one who has ended.
            if let Some((id, kind)) = runtime.former_listener(host, port) {
                let is_good = false;
                history.add(self.executor.elapsed(), Fact::Probed { id, kind, is_good });
            }
            return Err(Miss::NoAnswer("connect: connection refused".to_owned()));
        };
        if answer == Answer::Silent {
            let patience = timeout.unwrap_or(Duration::from_secs(1));
            self.executor.sleep(patience).await;
        }
        let is_good = answer == Answer::Good;
        history.add(self.executor.elapsed(), Fact::Probed { id, kind, is_good });
        match answer {
            Answer::Good | Answer::Bad => Ok(is_good),
            Answer::Silent => Err(Miss::NoAnswer("i/o timeout".to_owned())),
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
        let is_good = self
            .probe(&call.host, call.port, call.timeout)
            .await
            .map_err(|miss| match miss {
                Miss::NoAnswer(message) => no_answer(message, false),
                Miss::NoPlace(message) => HttpCallError::NoPlace { message },
            })?;
        if call.host == PLAIN && call.scheme == HttpScheme::Https {
            let message = "http: server gave HTTP response to HTTPS client".to_owned();
            return Err(no_answer(message, true));
        }
        Ok(HttpAnswer {
            status: if is_good { 200 } else { 503 },
            body: Vec::new(),
        })
    }

    async fn connect(&self, call: &TcpCall) -> Result<(), ConnectError> {
        match self.probe(&call.host, call.port, Some(call.timeout)).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(ConnectError::Failed {
                message: "connect: connection refused".to_owned(),
            }),
            Err(Miss::NoAnswer(message)) => Err(ConnectError::Failed { message }),
            Err(Miss::NoPlace(message)) => Err(ConnectError::NoPlace { message }),
        }
    }

    async fn grpc_health(&self, call: &GrpcCall) -> GrpcHealth {
        match self.probe(&call.host, call.port, Some(call.timeout)).await {
            Ok(true) => GrpcHealth::Serving,
            Ok(false) => GrpcHealth::Unhealthy {
                message: "service unhealthy (responded with \"NOT_SERVING\")".to_owned(),
            },
            Err(Miss::NoAnswer(message)) => GrpcHealth::Unhealthy { message },
            Err(Miss::NoPlace(message)) => GrpcHealth::NoPlace { message },
        }
    }
}
