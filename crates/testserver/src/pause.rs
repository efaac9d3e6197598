//! The process that holds a pod's namespaces: it reaps orphans and ends on SIGTERM and SIGINT.

use rustix::process::{WaitOptions, wait};
use tokio::signal::unix::{SignalKind, signal};

use crate::Outcome;
use crate::arguments::Arguments;

pub(crate) fn run(arguments: &mut Arguments) -> Outcome {
    arguments.finish()?;
    crate::runtime()?.block_on(async {
        let watch = |kind| signal(kind).map_err(|error| format!("watch a signal: {error}"));
        let mut terminate = watch(SignalKind::terminate())?;
        let mut interrupt = watch(SignalKind::interrupt())?;
        let mut child = watch(SignalKind::child())?;
        loop {
            // Before the first wait too: a child may have ended before its signal was watched. One signal may stand for several.
            while matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {}
            tokio::select! {
                _ = terminate.recv() => return Ok(0),
                _ = interrupt.recv() => return Ok(0),
                _ = child.recv() => {}
            }
        }
    })
}
