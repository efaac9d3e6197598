//! What the node does when it runs short of memory, disk, inodes or processes.
//!
//! Owns the rounds in which the signals are read and judged (`pressure`), and what follows from a threshold that is due: images and
//! dead containers go first, then one pod at a time (`evictor`). Decisions are `rubelet_resources::pressure` and
//! `rubelet_resources::eviction`; the agent ends the pods, and the collection of images removes these. It must not know either.
//!
//! ```text
//! signals ──► pressure ── Pressure ──► Node object, admission
//!               │  ▲
//!        Round  │  │ look          ┌─► reclaim: dead containers, unused images
//!               ▼  │               │
//!             eviction ── due ─────┴─► usage of pods ─► rank ─► one pod ends ─► a fresh look
//! limits of local storage ── pods beyond their own limits end, whatever the node has left
//! ```
//!
//! No pod is evicted on an old reading: before each one all signals are read again, and after each one as well.

mod evictor;
mod hints;
mod local_storage;
mod metrics;
mod pressure;
mod signals;
mod system_oom;
mod victims;

use std::sync::Arc;

use evictor::Evictor;
use futures_util::FutureExt as _;
use local_storage::LocalStorage;
use tokio::sync::watch;

pub use evictor::{EvictionPorts, EvictionSettings};
pub use metrics::EvictionMetrics;
pub use pressure::{PressureHandle, PressureWatch, Round};
pub use signals::{PressurePlaces, SignalPorts};
pub use system_oom::{SystemOomPorts, SystemOomSettings, watch_system_oom};

/// Dropping it ends the evictions. Pods that end already go on ending.
#[derive(Debug)]
pub struct EvictionHandle {
    _stop: watch::Sender<()>,
}

/// Starts the evictions.
#[must_use]
pub fn start(ports: EvictionPorts, settings: EvictionSettings, pressure: PressureHandle) -> EvictionHandle {
    let (stop, stopped) = watch::channel(());
    let spawner = Arc::clone(&ports.spawner);
    let local_storage = settings.local_storage.clone().map(|rules| {
        let (local_storage, handle) = LocalStorage::new(ports.clone(), rules, pressure.clone());
        spawner.spawn(
            "limits of local storage",
            until(stopped.clone(), local_storage.run()).boxed(),
        );
        handle
    });
    let evictor = Evictor::new(ports, settings, pressure, local_storage);
    spawner.spawn("eviction", until(stopped, evictor.run()).boxed());
    EvictionHandle { _stop: stop }
}

/// What is under way may be given up: the next start reads everything again.
async fn until(mut stopped: watch::Receiver<()>, work: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        _ = stopped.changed() => {}
        () = work => {}
    }
}
