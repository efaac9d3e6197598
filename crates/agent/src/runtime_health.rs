//! The runtime's own word on its health.
//!
//! Owns the check of `RuntimeReady` and `NetworkReady` every five seconds, more often while the runtime is down, and of when a
//! list of everything last succeeded; both go out through a watch. Nothing else makes the node unhealthy: a stuck pod is that
//! pod's matter.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rubelet_model::RuntimeLists;
use rubelet_model::runtime_report::LIST_THRESHOLD;
use rubelet_ports::{Moment, within};
use rubelet_resources::admission::RuntimeFeatures;
use rubelet_wire::cri::{NETWORK_READY, RUNTIME_READY, v1};
use tokio::sync::watch;

use crate::observer::LastList;
use crate::settings::AgentPorts;

const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Pauses between checks while the runtime is down, doubling.
const DOWN_PAUSE: Duration = Duration::from_millis(100);
const DOWN_PAUSE_MAX: Duration = Duration::from_secs(1);
/// What one check may take before the runtime counts as down, as long as upstream waits for a good one.
const CHECK_LIMIT: Duration = Duration::from_secs(30);

/// What the runtime says of itself. `None` means ready, otherwise it is the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeHealth {
    /// How long the last check waited for an answer that did not come; `None` when the runtime answered.
    pub silent_for: Option<Duration>,
    pub runtime_problem: Option<String>,
    pub network_problem: Option<String>,
    /// Whether lists of everything succeed.
    pub lists: RuntimeLists,
    /// What the runtime's handlers can do; empty for a runtime that does not tell.
    pub handlers: BTreeMap<String, HandlerFeatures>,
    /// What the runtime as a whole can do; unknown until it has answered.
    pub features: Option<RuntimeFeatures>,
}

/// What a runtime handler can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandlerFeatures {
    pub recursive_read_only_mounts: bool,
    pub user_namespaces: bool,
}

impl RuntimeHealth {
    fn unchecked() -> Self {
        Self {
            silent_for: Some(Duration::ZERO),
            runtime_problem: Some("the container runtime has not answered yet".to_owned()),
            network_problem: Some("the container runtime has not answered yet".to_owned()),
            lists: RuntimeLists::Fresh,
            handlers: BTreeMap::new(),
            features: None,
        }
    }

    fn of(answer: v1::StatusResponse, lists: RuntimeLists) -> Self {
        let features = answer.features.unwrap_or_default();
        let status = answer.status.unwrap_or_default();
        let handlers = answer.runtime_handlers.into_iter().map(|handler| {
            let features = handler.features.unwrap_or_default();
            let features = HandlerFeatures {
                recursive_read_only_mounts: features.recursive_read_only_mounts,
                user_namespaces: features.user_namespaces,
            };
            (handler.name, features)
        });
        Self {
            silent_for: None,
            lists,
            handlers: handlers.collect(),
            features: Some(RuntimeFeatures {
                supplemental_groups_policy: features.supplemental_groups_policy,
                user_namespaces_host_network: features.user_namespaces_host_network,
                mount_options: features.mount_options,
            }),
            runtime_problem: problem(&status, RUNTIME_READY, "container runtime not ready"),
            network_problem: problem(&status, NETWORK_READY, "container runtime network not ready"),
        }
    }

    /// No answer says nothing new about the network.
    fn without_answer(problem: String, waited: Duration, before: &Self, lists: RuntimeLists) -> Self {
        // Sent once: a reader that needs the duration counts from there.
        let silent_for = before.silent_for.filter(|_| before.features.is_some());
        Self {
            silent_for: Some(silent_for.unwrap_or(waited)),
            runtime_problem: Some(problem),
            network_problem: before.network_problem.clone(),
            lists,
            handlers: before.handlers.clone(),
            features: before.features,
        }
    }
}

/// In upstream's words, which people search for.
fn problem(status: &v1::RuntimeStatus, wanted: &str, words: &str) -> Option<String> {
    let Some(condition) = status
        .conditions
        .iter()
        .find(|condition| condition.r#type == wanted)
    else {
        return Some(format!(
            "the container runtime does not tell whether {wanted} holds"
        ));
    };
    let (reason, message) = (&condition.reason, &condition.message);
    (!condition.status).then(|| format!("{words}: {wanted}=false reason:{reason} message:{message}"))
}

pub(crate) fn channel() -> (watch::Sender<RuntimeHealth>, watch::Receiver<RuntimeHealth>) {
    watch::channel(RuntimeHealth::unchecked())
}

/// Checks until the last receiver is gone.
pub(crate) async fn watch_runtime(
    ports: AgentPorts,
    health: watch::Sender<RuntimeHealth>,
    last_list: LastList,
) {
    let mut down_pause = DOWN_PAUSE;
    let started = ports.clock.moment();
    while !health.is_closed() {
        let asked = ports.clock.moment();
        let answer = within(
            ports.clock.as_ref(),
            CHECK_LIMIT,
            ports.runtime_reader.status(false),
        )
        .await;
        let before = health.borrow().clone();
        let waited = ports.clock.moment().since(asked);
        let last = match last_list.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Moment::from_start(Duration::from_nanos(nanos))),
        };
        let lists = list_health(started, last, ports.clock.moment(), before.lists);
        let now = match answer {
            Ok(Ok(answer)) => RuntimeHealth::of(answer, lists),
            Ok(Err(error)) => RuntimeHealth::without_answer(error.to_string(), waited, &before, lists),
            Err(elapsed) => RuntimeHealth::without_answer(elapsed.to_string(), waited, &before, lists),
        };
        log_change(&before, &now);
        let pause = if now.runtime_problem.is_none() && now.network_problem.is_none() {
            down_pause = DOWN_PAUSE;
            CHECK_INTERVAL
        } else {
            let pause = down_pause;
            down_pause = (down_pause * 2).min(DOWN_PAUSE_MAX);
            pause
        };
        health.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
        ports.clock.sleep(pause).await;
    }
}

/// What the age of the last list means. One that is overdue stays reported as it was first: the reader counts on from there.
fn list_health(started: Moment, last: Option<Moment>, now: Moment, before: RuntimeLists) -> RuntimeLists {
    let age = now.since(last.unwrap_or(started));
    match (last, before) {
        _ if age <= LIST_THRESHOLD => RuntimeLists::Fresh,
        (None, _) => RuntimeLists::Never,
        (Some(_), RuntimeLists::Overdue { already }) if already <= age => before,
        (Some(_), RuntimeLists::Fresh | RuntimeLists::Never | RuntimeLists::Overdue { .. }) => {
            RuntimeLists::Overdue { already: age }
        }
    }
}

fn log_change(before: &RuntimeHealth, now: &RuntimeHealth) {
    match (before.lists, now.lists) {
        (RuntimeLists::Fresh, RuntimeLists::Never | RuntimeLists::Overdue { .. }) => tracing::error!(
            "The container runtime has not listed its pods for 3 minutes; the node is not ready until it does. \
             Look at the runtime's log, and restart it if it hangs"
        ),
        (RuntimeLists::Never | RuntimeLists::Overdue { .. }, RuntimeLists::Fresh) => {
            tracing::info!("The container runtime lists its pods again");
        }
        (RuntimeLists::Fresh, RuntimeLists::Fresh)
        | (
            RuntimeLists::Never | RuntimeLists::Overdue { .. },
            RuntimeLists::Never | RuntimeLists::Overdue { .. },
        ) => {}
    }
    let pairs = [
        (RUNTIME_READY, &before.runtime_problem, &now.runtime_problem),
        (NETWORK_READY, &before.network_problem, &now.network_problem),
    ];
    for (condition, before, now) in pairs {
        match (before, now) {
            (Some(_), None) => tracing::info!(condition, "The container runtime is ready"),
            (before, Some(problem)) if before.as_ref() != Some(problem) => {
                tracing::warn!(
                    condition,
                    problem,
                    "The container runtime is not ready; pods wait for it"
                );
            }
            (None | Some(_), Some(_)) | (None, None) => {}
        }
    }
}

/// Ends when the runtime is ready.
pub(crate) async fn ready(mut health: watch::Receiver<RuntimeHealth>) {
    // A closed channel means that the agent ends; whoever waits is cancelled with it.
    if health
        .wait_for(|health| health.runtime_problem.is_none())
        .await
        .is_err()
    {
        std::future::pending::<()>().await;
    }
}

/// The problem of the network, if there is one.
pub(crate) fn network_problem(health: &watch::Receiver<RuntimeHealth>) -> Option<String> {
    health.borrow().network_problem.clone()
}

/// The problem of the runtime, if there is one.
pub(crate) fn runtime_problem(health: &watch::Receiver<RuntimeHealth>) -> Option<String> {
    health.borrow().runtime_problem.clone()
}

/// Why a pod cannot have users of its own, in upstream's words.
pub(crate) fn user_namespace_problem(
    health: &watch::Receiver<RuntimeHealth>,
    handler: &str,
) -> Option<String> {
    let who = match handler {
        "" => "runtime".to_owned(),
        handler => format!("RuntimeClass handler {handler:?}"),
    };
    let problem = format!("can't set `spec.hostUsers: false`, {who} does not support user namespaces");
    let health = health.borrow();
    match health.handlers.get(handler) {
        Some(features) if features.user_namespaces => None,
        Some(_) => Some(problem),
        None if health.handlers.is_empty() => Some(problem),
        None => Some(format!("{problem}: the handler {handler:?} is not known")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_overdue_after_three_minutes() {
        let at = |seconds: u64| Moment::from_start(Duration::from_secs(seconds));
        let overdue = |seconds: u64| RuntimeLists::Overdue {
            already: Duration::from_secs(seconds),
        };
        let check = |last: Option<u64>, now: u64, before: RuntimeLists, expected: RuntimeLists| {
            assert_eq!(list_health(at(10), last.map(at), at(now), before), expected);
        };
        check(None, 190, RuntimeLists::Fresh, RuntimeLists::Fresh);
        check(None, 191, RuntimeLists::Fresh, RuntimeLists::Never);
        check(Some(100), 280, RuntimeLists::Fresh, RuntimeLists::Fresh);
        check(Some(100), 285, RuntimeLists::Fresh, overdue(185));
        // Said once, until a list succeeds; a later silence is another one.
        check(Some(100), 500, overdue(185), overdue(185));
        check(Some(495), 500, overdue(185), RuntimeLists::Fresh);
        check(Some(100), 285, overdue(186), overdue(185));
    }
}
