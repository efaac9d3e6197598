//! Keeps the node's own programs in their cgroups: rubelet in `kubeletCgroups`, and what runs in the root cgroup in `systemCgroups`.
//!
//! Owns when: at once and then every minute, as upstream, because other programs start processes and move them. A failure is logged
//! and tried again; no pod waits for it. Values of these cgroups are the administrator's.

use std::sync::Arc;
use std::time::Duration;

use rubelet_ports::{CgroupError, Clock, ProcessCgroupReader, ProcessCgroupWriter};

/// As often as upstream.
const INTERVAL: Duration = Duration::from_secs(60);
/// Processes that are moved may start others meanwhile.
const ATTEMPTS: usize = 11;

/// The ports.
#[derive(Clone)]
pub struct SystemCgroupPorts {
    pub clock: Arc<dyn Clock>,
    pub reader: Arc<dyn ProcessCgroupReader>,
    pub writer: Arc<dyn ProcessCgroupWriter>,
}

/// Where what belongs, as paths from the root; `None` is left where it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemCgroupSettings {
    /// `kubeletCgroups`.
    pub kubelet: Option<String>,
    /// `systemCgroups`.
    pub system: Option<String>,
}

/// Keeps processes in place; it never ends.
pub async fn keep_processes_in_place(settings: SystemCgroupSettings, ports: SystemCgroupPorts) {
    let mut logged = (None, None);
    loop {
        // The system first, as upstream: rubelet may be among the processes of the root.
        if let Some(path) = &settings.system {
            let moved = move_from_root(path, &ports).await;
            log_change(&mut logged.0, "systemCgroups", moved.err());
        }
        if let Some(path) = &settings.kubelet {
            let moved = move_own(path, &ports).await;
            log_change(&mut logged.1, "kubeletCgroups", moved.err());
        }
        ports.clock.sleep(INTERVAL).await;
    }
}

async fn move_from_root(path: &str, ports: &SystemCgroupPorts) -> Result<(), CgroupError> {
    let mut last = Ok(());
    for _ in 0..ATTEMPTS {
        let processes = match ports.reader.processes_in_root().await {
            Ok(processes) if processes.is_empty() => return Ok(()),
            Ok(processes) => processes,
            Err(error) => {
                last = Err(error);
                continue;
            }
        };
        let count = processes.len();
        tracing::debug!(path, count, "Processes are moved out of the root cgroup");
        if let Err(error) = ports.writer.move_processes(path, processes).await {
            last = Err(error);
        }
    }
    last
}

async fn move_own(path: &str, ports: &SystemCgroupPorts) -> Result<(), CgroupError> {
    let own = ports.reader.own_process().await?;
    // Where it sees a part of the processes only, its cgroup belongs to the container that it runs in.
    if !own.is_among_all_processes || own.cgroup.as_deref() == Some(path) {
        return Ok(());
    }
    ports.writer.move_processes(path, vec![own.id]).await?;
    tracing::info!(path, "Rubelet has moved into its cgroup (kubeletCgroups)");
    Ok(())
}

/// A lasting problem is logged once.
fn log_change(logged: &mut Option<String>, setting: &str, error: Option<CgroupError>) {
    let problem = error.map(|error| error.to_string());
    if let Some(problem) = problem.as_ref().filter(|_| problem != *logged) {
        tracing::warn!(
            setting,
            problem,
            "Processes are not in the cgroup of this setting"
        );
    }
    *logged = problem;
}
