//! The permit for starts at the runtime.
//!
//! Starts of all pods share a limit, because more at a time make none of them faster. Owns the permit of one plan: taken when it is
//! first needed, given away when something else than the runtime takes long, and taken again for the next call.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use rubelet_ports::RuntimeError;
use tokio::sync::OwnedSemaphorePermit;

use super::context::{Interrupted, JobContext};

/// How long a call keeps others from starting. One that takes longer waits for something else than the processors.
pub(super) const CALL_PATIENCE: Duration = Duration::from_secs(10);

/// How long something else than the runtime keeps others from starting: files and objects that are at hand take less.
const HOST_PATIENCE: Duration = Duration::from_millis(200);

/// The lock is held for a few instructions, never across an await.
pub(super) struct StartPermit<'a> {
    context: &'a JobContext,
    held: Mutex<Option<OwnedSemaphorePermit>>,
}

impl<'a> StartPermit<'a> {
    pub(super) fn new(context: &'a JobContext) -> Self {
        Self {
            context,
            held: Mutex::default(),
        }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Option<OwnedSemaphorePermit>) -> T) -> T {
        change(&mut self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for a permit, unless it is held already.
    pub(super) async fn acquire(&self) -> Result<(), Interrupted> {
        if self.with(|held| held.is_some()) {
            return Ok(());
        }
        let permit = Arc::clone(&self.context.agent.starts).acquire_owned();
        let permit = self
            .context
            .read("its turn to start at the runtime", permit)
            .await?;
        // The limiter is closed only when the agent ends.
        let permit = permit.map_err(|_| Interrupted::Cancelled)?;
        self.with(|held| *held = Some(permit));
        Ok(())
    }

    /// Others may start.
    pub(super) fn release(&self) {
        self.with(|held| drop(held.take()));
    }

    /// Waits for work on the node, and gives the permit away when it takes long.
    pub(super) async fn during_host_work<T>(&self, work: impl Future<Output = T>) -> T {
        self.released_after(HOST_PATIENCE, work).await
    }

    /// Waits for a call to the runtime, and gives the permit away when it takes very long.
    pub(super) async fn during_call<T>(&self, call: impl Future<Output = T>) -> T {
        self.released_after(CALL_PATIENCE, call).await
    }

    async fn released_after<T>(&self, patience: Duration, future: impl Future<Output = T>) -> T {
        if self.with(|held| held.is_none()) {
            return future.await;
        }
        let timer = self.context.ports().clock.sleep(patience);
        match select(std::pin::pin!(future), timer).await {
            Either::Left((result, _)) => result,
            Either::Right(((), future)) => {
                self.release();
                future.await
            }
        }
    }

    /// A call under the permit that changes something at the runtime.
    pub(super) async fn write<T>(
        &self,
        what: impl Into<String>,
        call: impl Future<Output = Result<T, RuntimeError>>,
    ) -> Result<T, Interrupted<RuntimeError>> {
        self.context.write(what, self.during_call(call)).await
    }
}
