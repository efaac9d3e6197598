//! What the runtime itself counts of containers and pods.
//!
//! Owns the two questions, their deadline, and the figures by id. How old they may be, and where they stand, is decided elsewhere.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rubelet_ports::{Clock, RuntimeError, RuntimeErrorKind, RuntimeReader, within};
use rubelet_wire::cri::v1;

/// The runtime may have to collect them from every container.
const FIGURES_LIMIT: Duration = Duration::from_secs(4);

/// By the container's id.
pub(crate) type RuntimeFigures = BTreeMap<String, v1::ContainerStats>;
/// Of sandboxes with their containers, by the sandbox's id.
pub(crate) type PodFigures = BTreeMap<String, v1::PodSandboxStats>;

/// What the runtime counts of all containers; nothing where it does not answer.
pub(crate) async fn container_figures(
    runtime: Arc<dyn RuntimeReader>,
    clock: Arc<dyn Clock>,
) -> Option<Arc<RuntimeFigures>> {
    let list = runtime.list_container_stats(None);
    let problem = match within(clock.as_ref(), FIGURES_LIMIT, list).await {
        Ok(Ok(list)) => {
            let by_id = list.into_iter().filter_map(|stats| {
                let id = stats.attributes.as_ref()?.id.clone();
                Some((id, stats))
            });
            return Some(Arc::new(by_id.collect()));
        }
        Ok(Err(error)) => error.to_string(),
        Err(elapsed) => elapsed.to_string(),
    };
    tracing::warn!(
        problem,
        "The runtime has no figures of its containers; they are left out"
    );
    None
}

/// What the runtime counts of all pods.
pub(crate) async fn pod_figures(
    runtime: Arc<dyn RuntimeReader>,
    clock: Arc<dyn Clock>,
) -> Result<Arc<PodFigures>, RuntimeError> {
    let list = runtime.list_pod_sandbox_stats(None);
    let list = within(clock.as_ref(), FIGURES_LIMIT, list).await;
    let list = list.unwrap_or_else(|elapsed| {
        let kind = RuntimeErrorKind::DeadlineExceeded;
        Err(RuntimeError::new(
            "ListPodSandboxStats",
            "",
            kind,
            &elapsed.to_string(),
        ))
    })?;
    let by_id = list
        .into_iter()
        .filter_map(|stats| Some((stats.attributes.as_ref()?.id.clone(), stats)));
    Ok(Arc::new(by_id.collect()))
}
