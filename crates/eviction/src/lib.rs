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
//! ```
//!
//! No pod is evicted on an old reading: before each one all signals are read again, and after each one as well.

mod evictor;
mod metrics;
mod pressure;
mod signals;
mod victims;

use std::sync::Arc;

use evictor::Evictor;
use futures_util::FutureExt as _;
use tokio::sync::watch;

pub use evictor::{EvictionPorts, EvictionSettings};
pub use metrics::EvictionMetrics;
pub use pressure::{PressureHandle, PressureWatch, Round};
pub use signals::{PressurePlaces, SignalPorts};

/// Dropping it ends the evictions. Pods that end already go on ending.
#[derive(Debug)]
pub struct EvictionHandle {
    _stop: watch::Sender<()>,
}

/// Starts the evictions.
#[must_use]
pub fn start(ports: EvictionPorts, settings: EvictionSettings, pressure: PressureHandle) -> EvictionHandle {
    let (stop, mut stopped) = watch::channel(());
    let spawner = Arc::clone(&ports.spawner);
    let evictor = Evictor::new(ports, settings, pressure);
    let evictions = async move {
        // What is under way may be given up: the next start reads the signals again.
        tokio::select! {
            biased;
            _ = stopped.changed() => {}
            () = evictor.run() => {}
        }
    };
    spawner.spawn("eviction", evictions.boxed());
    EvictionHandle { _stop: stop }
}
