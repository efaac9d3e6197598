//! Rotating one log, and tidying up after that.
//!
//! Owns the order of steps and what each failure means. When rubelet is killed between any two steps, everything that the container
//! wrote is in a file that the next rotation finds, and the container writes on:
//!
//! ```text
//! make room ─► log becomes <log>.<time> ─► runtime reopens its log ─► (later) older files are compressed
//!                                    │ killed here: the log is missing, and the runtime is asked to reopen a missing log; where
//!                                    │ the container has ended since, the file gets its old name
//!                                    └ refused: the file gets its old name, unless the runtime has made a new one after all
//! ```

use std::path::{Path, PathBuf};

use k8s_openapi::jiff;
use rubelet_model::Timestamp;
use rubelet_ports::{FileError, FileKind, RuntimeError};
use thiserror::Error;

use rubelet_lifecycle::log_rotation::{LogNames, Removal};

use crate::rotator::RotationPorts;

#[derive(Debug, Error)]
pub(crate) enum RotationError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the runtime does not reopen the log: {0}")]
    Reopen(#[source] RuntimeError),
    #[error("{} is missing, and the runtime does not make it", .0.display())]
    StillMissing(PathBuf),
    #[error("{} has no name that can be rotated", .0.display())]
    BadPath(PathBuf),
}

/// The outcome of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rotated {
    Away,
    /// It was missing and is there again.
    Reopened,
}

/// What a log that was looked at needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is not large enough.
    NotYet,
    /// The runtime has to reopen it: it was renamed to this path, or is missing.
    Reopen(Option<PathBuf>),
}

/// One container's log.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) id: String,
    pub(crate) path: PathBuf,
}

impl Log {
    fn parts(&self) -> Result<(&Path, &str), RotationError> {
        parts(&self.path)
    }
}

fn parts(path: &Path) -> Result<(&Path, &str), RotationError> {
    let name = path.file_name().and_then(|name| name.to_str());
    path.parent()
        .zip(name)
        .ok_or_else(|| RotationError::BadPath(path.to_owned()))
}

/// Renames a log that has reached its size.
pub(crate) async fn rename_away(
    ports: &RotationPorts,
    log: &Log,
    max_size_bytes: u64,
    max_files: usize,
    compressing: Option<&str>,
) -> Result<Turn, RotationError> {
    let size_bytes = match ports.log_reader.size(&log.path).await {
        Ok(size) => size,
        Err(error) if error.is_not_found() => return Ok(Turn::Reopen(None)),
        Err(error) => return Err(error.into()),
    };
    if size_bytes < max_size_bytes {
        return Ok(Turn::NotYet);
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
        // A file of that name was made since: the next look finds it.
        return Ok(Turn::NotYet);
    }
    tracing::debug!(container = log.id, size_bytes, to = %away.display(), "A log was renamed for its rotation");
    Ok(Turn::Reopen(Some(away)))
}

/// Asks the runtime to reopen a log that was renamed, or is missing.
pub(crate) async fn reopen(
    ports: &RotationPorts,
    log: &Log,
    away: Option<&Path>,
) -> Result<Rotated, RotationError> {
    let reopened = ports.containers.reopen(&log.id).await;
    let Err(error) = reopened else {
        return match (away, ports.log_reader.size(&log.path).await) {
            (Some(_), _) => Ok(Rotated::Away),
            (None, Ok(_)) => Ok(Rotated::Reopened),
            // A runtime that logs elsewhere must not be asked again and again.
            (None, Err(_)) => Err(RotationError::StillMissing(log.path.clone())),
        };
    };
    let back = match away {
        Some(away) => {
            let back = ports.log_writer.rename_to_free(away, &log.path).await;
            back.map_err(RotationError::from)
        }
        None => restore(ports, &log.path).await,
    };
    match back {
        // The runtime has a new file: it did as asked, and only its answer was lost.
        Ok(false) if away.is_some() => Ok(Rotated::Away),
        Ok(_) => Err(RotationError::Reopen(error)),
        Err(back) => {
            tracing::warn!(error = %back, "A log cannot be renamed back after a failed rotation; it is reopened later");
            Err(RotationError::Reopen(error))
        }
    }
}

/// Gives the newest file beside a log that is missing the log's name.
pub(crate) async fn restore(ports: &RotationPorts, log: &Path) -> Result<bool, RotationError> {
    let (directory, name) = parts(log)?;
    let present = match files_in(ports, directory).await {
        Err(error) if error.is_not_found() => return Ok(false),
        present => present?,
    };
    let names = LogNames {
        log: name,
        present: &present,
        compressing: None,
    };
    let Some(newest) = names.plan_restoration() else {
        return Ok(false);
    };
    let restored = ports
        .log_writer
        .rename_to_free(&directory.join(newest), log)
        .await?;
    tracing::info!(log = %log.display(), restored, "A missing log was restored from its rotated file");
    Ok(restored)
}

/// A process that was killed may have left logs without their name; a container that has ended since makes no new one.
pub(crate) async fn restore_ended(ports: &RotationPorts) -> Result<(), RuntimeError> {
    for log in ports.containers.ended().await? {
        if let Err(error) = restore(ports, &log).await {
            tracing::warn!(log = %log.display(), %error, "A missing log cannot be restored from its rotated file");
        }
    }
    Ok(())
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

/// Compresses one file beside a log; not while it is written.
pub(crate) async fn compress(ports: &RotationPorts, log: &Log, name: &str) -> Result<bool, RotationError> {
    let (directory, _) = log.parts()?;
    match ports.log_writer.compress(&directory.join(name)).await {
        // The file was removed meanwhile to make room.
        Err(error) if error.is_not_found() => Ok(true),
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
