//! Rotation of container logs by the settings.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use rubelet_config::settings::Settings;
use rubelet_logs::{RotationHandle, RotationPorts, RotationSettings, RuntimeContainers};
use rubelet_model::Quantity;
use rubelet_ports::PodView;

use crate::agent::{CONTAINER_LOGS_DIR, std_duration};
use crate::edges::Edges;

/// Nothing where rotation is switched off by a size below zero.
pub(crate) fn keep_rotated(
    settings: &Settings,
    edges: &Edges,
    pods: Arc<dyn PodView>,
) -> Result<Option<RotationHandle>> {
    let Some(settings) = rotation_settings(settings)? else {
        return Ok(None);
    };
    let containers = RuntimeContainers {
        pods,
        reader: edges.cri.clone(),
        writer: edges.cri.clone(),
    };
    let ports = RotationPorts {
        clock: edges.clock.clone(),
        spawner: edges.spawner.clone(),
        containers: Arc::new(containers),
        file_reader: edges.files.clone(),
        file_writer: edges.files.clone(),
        log_reader: edges.log_files.clone(),
        log_writer: edges.log_files.clone(),
    };
    Ok(Some(rubelet_logs::start(ports, settings)))
}

fn rotation_settings(settings: &Settings) -> Result<Option<RotationSettings>> {
    let configuration = settings.configuration();
    let size = &configuration.container_log_max_size;
    let max_size: Quantity = size
        .parse()
        .with_context(|| format!("failed to parse container log max size {size:?}"))?;
    let max_size = max_size.as_i64().context("invalid max log size")?;
    let Ok(max_size_bytes) = u64::try_from(max_size) else {
        return Ok(None);
    };
    let count = |number: Option<i32>, least: usize| {
        let number = number.and_then(|number| usize::try_from(number).ok());
        number.unwrap_or(least).max(least)
    };
    Ok(Some(RotationSettings {
        // An empty log is never too large.
        max_size_bytes: max_size_bytes.max(1),
        max_files: count(configuration.container_log_max_files, 2),
        max_workers: count(configuration.container_log_max_workers, 1),
        monitor_interval: std_duration(configuration.container_log_monitor_interval.unwrap_or_default()),
        links_dir: PathBuf::from(CONTAINER_LOGS_DIR),
    }))
}
