//! The processes of simulated containers: they run as their script says, answer signals and end.

use rubelet_ports::Clock;
use rubelet_wire::cri::v1::ContainerEventType;
use std::time::Duration;

use super::state::{Failure, KILL_TIME, exit_reason};
use super::{Process, SimRuntime};
use crate::history::{Cause, Fact};
use crate::trace::Actor;

impl SimRuntime {
    /// Starts the process of a created container. `is_late`: whoever asked for it has given up.
    pub(super) fn start_process(&self, id: &str, is_late: bool) -> Result<(), Failure> {
        let now = self.wall_nanos();
        let sandbox = self.lock().dead_sandbox_of(id);
        if let Some(sandbox) = sandbox {
            self.fail_start(id);
            let message = format!("sandbox container \"{sandbox}\" is not running");
            return Err(Failure::unknown(message));
        }
        let (run, has_log) = {
            let mut state = self.lock();
            let Some(container) = state.containers.get_mut(id) else {
                return Err(not_found(id));
            };
            let is_created = matches!(container.process, Process::Created);
            if !is_created {
                return Err(Failure::unknown(format!(
                    "container {id} is not in created state"
                )));
            }
            let log_path = container.log_path.clone();
            let has_log = log_path.is_empty() || self.inner.files.touch(log_path.as_ref());
            if has_log {
                container.process = Process::Running;
                container.started_at = now;
                container.running_since = self.inner.executor.elapsed();
            }
            (container.script.run(container.attempt()), has_log)
        };
        if !has_log {
            self.fail_start(id);
            return Err(Failure::unknown(
                "failed to open the log file: no such file or directory",
            ));
        }
        self.happened(Fact::Started {
            id: id.to_owned(),
            is_late,
        });
        self.limited(id, false);
        self.say(Actor::Process, format!("{} runs", self.title(id)));
        self.emit(id, ContainerEventType::ContainerStartedEvent);
        if let Some(exit) = run {
            self.end_later(id, exit.after, exit.code, Cause::Own);
        }
        Ok(())
    }

    /// A start that fails leaves an ended container behind.
    pub(super) fn fail_start(&self, id: &str) {
        let now = self.wall_nanos();
        if let Some(container) = self.lock().containers.get_mut(id) {
            container.process = Process::Exited {
                code: 128,
                reason: "StartError",
                finished_at: now,
            };
            container.ended.notify_waiters();
        }
        self.happened(Fact::Ended {
            id: id.to_owned(),
            code: 128,
            cause: Cause::StartFailed,
        });
        self.emit(id, ContainerEventType::ContainerStoppedEvent);
    }

    /// The container's name for the trace.
    pub(super) fn title(&self, id: &str) -> String {
        let state = self.lock();
        match state.containers.get(id) {
            Some(container) => format!("{id} {}", container.name),
            None => id.to_owned(),
        }
    }

    pub(super) fn end_later(&self, id: &str, after: Duration, code: i32, cause: Cause) {
        let (runtime, id) = (self.clone(), id.to_owned());
        let pause = self.inner.executor.sleep(after);
        let end = async move {
            pause.await;
            runtime.end_process(&id, code, cause);
        };
        self.in_background("process", Box::pin(end));
    }

    /// Ends a process; one that has ended stays as it is.
    pub(super) fn end_process(&self, id: &str, code: i32, cause: Cause) {
        let now = self.wall_nanos();
        {
            let mut state = self.lock();
            let Some(container) = state.containers.get_mut(id) else {
                return;
            };
            if !container.is_running() {
                return;
            }
            container.process = Process::Exited {
                code,
                reason: exit_reason(code),
                finished_at: now,
            };
            container.ended.notify_waiters();
        }
        self.say(
            Actor::Process,
            format!("{} ended with {code}: {cause:?}", self.title(id)),
        );
        self.happened(Fact::Ended {
            id: id.to_owned(),
            code,
            cause,
        });
        self.emit(id, ContainerEventType::ContainerStoppedEvent);
    }

    /// Sends the stop signal. The answer is false when there is nothing that runs.
    pub(super) fn signal(&self, id: &str) -> bool {
        let answer = {
            let state = self.lock();
            match state.containers.get(id) {
                Some(container) if container.is_running() => container.script.on_term,
                Some(_) | None => return false,
            }
        };
        self.happened(Fact::Signalled { id: id.to_owned() });
        if let Some(exit) = answer {
            self.end_later(id, exit.after, exit.code, Cause::Term);
        }
        true
    }

    /// Kills a process and waits until it is gone.
    pub(super) async fn kill(&self, id: &str, cause: Cause) {
        self.inner.executor.sleep(KILL_TIME).await;
        self.end_process(id, 137, cause);
    }
}

pub(super) fn not_found(id: &str) -> Failure {
    Failure::new(
        rubelet_ports::RuntimeErrorKind::NotFound,
        format!("an error occurred when try to find container \"{id}\": not found"),
    )
}
