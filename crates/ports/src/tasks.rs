//! Running things side by side.
//!
//! Owns the shape of the executor. The caller decides what a panic means, see the agent's supervisor: an executor
//! only has to survive it.

use futures_util::future::BoxFuture;

pub trait Spawner: Send + Sync {
    /// Runs a future to its end. The name is for people who look at a hung process.
    fn spawn(&self, name: &str, future: BoxFuture<'static, ()>);
}
