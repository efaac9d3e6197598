//! Rotating one log, and tidying up after that.
//!
//! Owns the order of steps and what each failure means. Killed between any two steps, everything that the container wrote is in
//! a file that the next rotation finds, and the container writes on:
//!
//! ```text
//! make room ─► log becomes <log>.<time> ─► runtime opens its log anew ─► (later) older files are compressed
//!                                    │ killed here: the log is missing, and a missing log is opened anew
//!                                    └ refused: the file gets its old name, unless the runtime has made a new one after all
//! ```

use std::path::{Path, PathBuf};

use k8s_openapi::jiff;
use rubelet_model::Timestamp;
use rubelet_ports::{FileError, FileKind, RuntimeError};
use thiserror::Error;

use rubelet_lifecycle::log_rotation::{LogNames, Removal};

use crate::keeper::RotationPorts;

#[derive(Debug, Error)]
pub(crate) enum RotationError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the runtime does not open the log anew: {0}")]
    Reopen(#[source] RuntimeError),
    #[error("{} is missing, and the runtime does not make it", .0.display())]
    StillMissing(PathBuf),
    #[error("{} has no name that can be rotated", .0.display())]
    BadPath(PathBuf),
}

/// What became of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rotated {
    /// It is not large enough.
    NotYet,
    Away,
    /// It was missing and is there again.
    Reopened,
}

/// One container's log.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) id: String,
    pub(crate) path: PathBuf,
}

impl Log {
    fn parts(&self) -> Result<(&Path, &str), RotationError> {
        let directory = self.path.parent();
        let name = self.path.file_name().and_then(|name| name.to_str());
        directory
            .zip(name)
            .ok_or_else(|| RotationError::BadPath(self.path.clone()))
    }
}

/// Rotates a log that has reached its size.
pub(crate) async fn rotate(
    ports: &RotationPorts,
    log: &Log,
    max_size_bytes: u64,
    max_files: usize,
    compressing: Option<&str>,
) -> Result<Rotated, RotationError> {
    let size_bytes = match ports.log_reader.size(&log.path).await {
        Ok(size) => size,
        Err(error) if error.is_not_found() => {
            ports
                .containers
                .reopen(&log.id)
                .await
                .map_err(RotationError::Reopen)?;
            return match ports.log_reader.size(&log.path).await {
                Ok(_) => Ok(Rotated::Reopened),
                // A runtime that logs elsewhere must not be asked again and again.
                Err(_) => Err(RotationError::StillMissing(log.path.clone())),
            };
        }
        Err(error) => return Err(error.into()),
    };
    if size_bytes < max_size_bytes {
        return Ok(Rotated::NotYet);
    }
    let (directory, name) = log.parts()?;
    let present = files_in(ports, directory).await?;
    let names = LogNames {
        log: name,
        present: &present,
        compressing,
    };
    remove(ports, directory, &names.plan_room(max_files)).await?;
    let away = directory.join(names.plan_name(&time_name(ports.clock.now())));
    if !ports.log_writer.rename_to_free(&log.path, &away).await? {
        // Somebody made a file of that name since: the next look finds it.
        return Ok(Rotated::NotYet);
    }
    if let Err(error) = ports.containers.reopen(&log.id).await {
        return match ports.log_writer.rename_to_free(&away, &log.path).await {
            // The runtime has a new file: it did as asked, and only its answer was lost.
            Ok(false) => Ok(Rotated::Away),
            Ok(true) => Err(RotationError::Reopen(error)),
            Err(back) => {
                tracing::warn!(error = %back, "A log does not get its name back; it is opened anew later");
                Err(RotationError::Reopen(error))
            }
        };
    }
    tracing::debug!(container = log.id, size_bytes, to = %away.display(), "A log was rotated");
    Ok(Rotated::Away)
}

/// What there is to do beside a log.
pub(crate) async fn plan_tidying(ports: &RotationPorts, log: &Log) -> Result<Option<String>, RotationError> {
    let (directory, name) = log.parts()?;
    let present = match files_in(ports, directory).await {
        // The pod's logs are gone with the pod.
        Err(error) if error.is_not_found() => return Ok(None),
        present => present?,
    };
    let names = LogNames {
        log: name,
        present: &present,
        compressing: None,
    };
    remove(ports, directory, &names.plan_leftovers()).await?;
    Ok(names.plan_compression())
}

/// Compresses one file beside a log.
pub(crate) async fn compress(ports: &RotationPorts, log: &Log, name: &str) -> Result<(), RotationError> {
    let (directory, _) = log.parts()?;
    match ports.log_writer.compress(&directory.join(name)).await {
        // It had to make room meanwhile.
        Err(error) if error.is_not_found() => Ok(()),
        result => Ok(result?),
    }
}

async fn files_in(ports: &RotationPorts, directory: &Path) -> Result<Vec<String>, FileError> {
    let entries = ports.file_reader.list(directory).await?;
    Ok(entries
        .into_iter()
        .filter(|entry| entry.kind == FileKind::File)
        .map(|entry| entry.name)
        .collect())
}

async fn remove(ports: &RotationPorts, directory: &Path, removals: &[Removal]) -> Result<(), FileError> {
    for removal in removals {
        ports
            .file_writer
            .remove_file(&directory.join(&removal.name))
            .await?;
        tracing::debug!(file = removal.name, why = ?removal.why, "A rotated log was removed");
    }
    Ok(())
}

/// A time in names, in UTC. Upstream takes the node's zone, where names repeat once a year.
fn time_name(now: Timestamp) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(now.unix_nanos()))
        .map(|now| now.strftime("%Y%m%d-%H%M%S").to_string())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_named_as_upstream_names_them() {
        assert_eq!(
            time_name(Timestamp::from_unix_seconds(1_767_225_600)),
            "20260101-000000"
        );
        assert_eq!(time_name(Timestamp::EPOCH), "19700101-000000");
    }
}
