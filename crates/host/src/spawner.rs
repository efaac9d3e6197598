//! Tasks on the tokio runtime.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use rubelet_ports::Spawner;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::Instrument as _;

/// Spawns on one runtime, whichever thread asks. A panic ends its own task only and is logged with the task's name.
#[derive(Clone, Debug)]
pub struct TokioSpawner {
    runtime: Handle,
    defects: Option<mpsc::Sender<String>>,
}

impl TokioSpawner {
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        Self {
            runtime,
            defects: None,
        }
    }

    /// For tasks that the program cannot do without: a panic of one of them is also sent to `defects`.
    #[must_use]
    pub fn vital(&self, defects: mpsc::Sender<String>) -> Self {
        Self {
            runtime: self.runtime.clone(),
            defects: Some(defects),
        }
    }
}

impl Spawner for TokioSpawner {
    fn spawn(&self, name: &str, future: BoxFuture<'static, ()>) {
        // No parent: a task outlives the span that it was spawned in.
        let span = tracing::info_span!(parent: None, "task", task = name);
        let vital = self.defects.clone().map(|defects| (defects, name.to_owned()));
        let guarded = async move {
            if let Err(panic) = AssertUnwindSafe(future).catch_unwind().await {
                let message = panic_message(panic.as_ref());
                tracing::error!(message, "a task has panicked and is gone");
                if let Some((defects, name)) = vital {
                    // One message is enough: the program ends with the first.
                    let _ = defects.try_send(format!("{name} panicked: {message}"));
                }
            }
        };
        self.runtime.spawn(guarded.instrument(span));
    }
}

/// The message of a panic, if it has one.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_ends_its_own_task_only() {
        let spawner = TokioSpawner::new(Handle::current());
        let (alive, received) = tokio::sync::oneshot::channel();
        let (gone, ended) = tokio::sync::oneshot::channel::<()>();
        spawner.spawn(
            "breaks",
            Box::pin(async move {
                let _held = gone;
                panic!("on purpose");
            }),
        );
        assert!(ended.await.is_err(), "what the task held is dropped");
        // From a thread that is not the runtime's.
        std::thread::spawn(move || {
            spawner.spawn("lives", Box::pin(async move { alive.send(()).unwrap() }));
        })
        .join()
        .unwrap();
        received.await.unwrap();
    }

    #[tokio::test]
    async fn the_panic_of_a_vital_task_is_told() {
        let plain = TokioSpawner::new(Handle::current());
        let (defects, mut received) = mpsc::channel(1);
        let vital = plain.vital(defects);
        vital.spawn("ends", Box::pin(async {}));
        vital.spawn("breaks", Box::pin(async { panic!("on {}", "purpose") }));
        assert_eq!(
            received.recv().await.as_deref(),
            Some("breaks panicked: on purpose")
        );
        vital.spawn("breaks again", Box::pin(async { panic!("once more") }));
        drop(vital);
        assert_eq!(
            received.recv().await.as_deref(),
            Some("breaks again panicked: once more")
        );
        assert_eq!(received.recv().await, None, "a task that ends is no defect");
    }

    #[test]
    fn a_panic_s_words_are_found() {
        let check = |panic: Box<dyn std::any::Any + Send>, expected: &str| {
            assert_eq!(panic_message(panic.as_ref()), expected);
        };
        check(Box::new("text"), "text");
        check(Box::new("owned".to_owned()), "owned");
        check(Box::new(7), "no message");
    }
}
