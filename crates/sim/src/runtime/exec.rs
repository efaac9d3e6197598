//! Commands in simulated containers, and who listens on their ports.
//!
//! A command is a script of its own: `exit N`, `take MILLISECONDS`, `hang`; `fail-before N` ends badly in the attempts before that
//! one, `probe KIND` ends as the container's script says; anything else ends well at once. In front may stand whose hook it is,
//! `postStart` or `preStop`.

use std::time::Duration;

use rubelet_ports::{Clock as _, ProbeKind, RuntimeError};
use rubelet_wire::cri::v1;

use super::script::{Answer, PROBE_KINDS, probe_word};
use super::state::{Failure, SimContainer};
use super::{Call, EXEC, SimRuntime, Work};
use crate::history::{Ask, Fact, HookKind};

/// How often a command that hangs finds out that its container or its caller is gone.
const HANG_LOOK: Duration = Duration::from_secs(5);

/// What a command is for.
enum Purpose {
    Probe(ProbeKind),
    Hook(HookKind),
    Other,
}

fn purpose(command: &[String]) -> Purpose {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["probe", word] => {
            let kind = PROBE_KINDS.into_iter().find(|kind| probe_word(*kind) == *word);
            kind.map_or(Purpose::Other, Purpose::Probe)
        }
        ["postStart", ..] => Purpose::Hook(HookKind::PostStart),
        ["preStop", ..] => Purpose::Hook(HookKind::PreStop),
        _ => Purpose::Other,
    }
}

impl SimRuntime {
    pub(super) async fn run_command(
        &self,
        container_id: &str,
        command: Vec<String>,
        timeout: Option<Duration>,
    ) -> Result<v1::ExecSyncResponse, RuntimeError> {
        let (id, purpose) = (container_id.to_owned(), purpose(&command));
        let ask = match purpose {
            Purpose::Hook(kind) => Some(Ask::Hook { id: id.clone(), kind }),
            Purpose::Probe(_) | Purpose::Other => None,
        };
        let about = format!("{} {}", self.title(container_id), command.join(" "));
        let mut call = Call::writing(EXEC, about, container_id, ask);
        call.deadline = timeout;
        let target = id.clone();
        let result = self
            .call(call, move |work| Box::pin(Self::execute(work, target, command)))
            .await;
        let is_good = result.as_ref().is_ok_and(|answer| answer.exit_code == 0);
        match purpose {
            Purpose::Probe(kind) => self.happened(Fact::Probed { id, kind, is_good }),
            Purpose::Hook(kind) => self.happened(Fact::HookEnded { id, kind, is_good }),
            Purpose::Other => {}
        }
        result
    }

    fn runs(&self, id: &str) -> bool {
        let state = self.lock();
        state.containers.get(id).is_some_and(SimContainer::is_running)
    }

    /// What a probe of this kind finds now. `None` when the container does not run.
    fn health(&self, id: &str, kind: ProbeKind) -> Option<Answer> {
        let now = self.inner.executor.elapsed();
        let state = self.lock();
        let container = state.containers.get(id).filter(|one| one.is_running())?;
        let age = now.saturating_sub(container.running_since);
        Some(container.script.health(kind).answer(container.attempt(), age))
    }

    /// Who listens at a pod's address, and what a probe finds there.
    pub(crate) fn listener(&self, ip: &str, port: u16) -> Option<(String, ProbeKind, Answer)> {
        let (id, kind) = {
            let state = self.lock();
            let mut sandboxes = state.sandboxes.iter();
            let (sandbox, _) = sandboxes.find(|(_, sandbox)| sandbox.is_ready && sandbox.ip == ip)?;
            let running = state.containers_of(sandbox).filter(|(_, one)| one.is_running());
            let mut kinds =
                running.filter_map(|(id, one)| Some((id.clone(), one.script.kind_of_port(port)?)));
            kinds.next()?
        };
        let answer = self.health(&id, kind)?;
        Some((id, kind, answer))
    }

    /// Who listened there last, now that nobody does.
    pub(crate) fn former_listener(&self, ip: &str, port: u16) -> Option<(String, ProbeKind)> {
        let state = self.lock();
        let mut sandboxes = state.sandboxes.iter();
        let (sandbox, _) = sandboxes.find(|(_, sandbox)| sandbox.is_ready && sandbox.ip == ip)?;
        let all = state.containers_of(sandbox);
        let of_port = all.filter_map(|(id, one)| Some((one.attempt(), id, one.script.kind_of_port(port)?)));
        let (_, id, kind) = of_port.max_by_key(|(attempt, ..)| *attempt)?;
        Some((id.clone(), kind))
    }

    async fn execute(work: Work, id: String, command: Vec<String>) -> Result<v1::ExecSyncResponse, Failure> {
        let runtime = work.runtime.clone();
        let mut words: Vec<&str> = command.iter().map(String::as_str).collect();
        if matches!(words.first(), Some(&("postStart" | "preStop"))) {
            words.remove(0);
        }
        let number = |text: &str| text.parse::<i32>().unwrap_or(0);
        let exit_code = match words.as_slice() {
            ["exit", code] => number(code),
            ["fail-before", attempt] => {
                let good = number(attempt).unsigned_abs();
                let state = runtime.lock();
                let own = state.containers.get(&id).map_or(0, SimContainer::attempt);
                i32::from(own < good)
            }
            ["take", millis] => {
                let millis = u64::from(number(millis).unsigned_abs());
                runtime.inner.executor.sleep(Duration::from_millis(millis)).await;
                0
            }
            ["hang"] => return Self::hang_in(&work, &id).await,
            ["probe", _] => match purpose(&command) {
                Purpose::Probe(kind) => match runtime.health(&id, kind) {
                    Some(Answer::Silent) => return Self::hang_in(&work, &id).await,
                    Some(Answer::Bad) => 1,
                    Some(Answer::Good) | None => 0,
                },
                Purpose::Hook(_) | Purpose::Other => 0,
            },
            _ => 0,
        };
        if !runtime.runs(&id) {
            return Err(Failure::unknown("cannot exec in a stopped container"));
        }
        Ok(v1::ExecSyncResponse {
            exit_code,
            ..v1::ExecSyncResponse::default()
        })
    }

    /// Until the container is gone, or nobody waits any more.
    async fn hang_in<T>(work: &Work, id: &str) -> Result<T, Failure> {
        loop {
            work.runtime.inner.executor.sleep(HANG_LOOK).await;
            if !work.runtime.runs(id) || *work.caller.borrow() {
                return Err(Failure::unknown("the container ended"));
            }
        }
    }
}
