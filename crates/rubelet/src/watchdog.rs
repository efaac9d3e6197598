//! The service manager's watchdog: notified while rubelet is healthy, so that a hanging sync loop gets rubelet restarted.

use std::io;
use std::time::Duration;

/// Reports every interval that rubelet is alive, unless `health` has a problem. With an interval it never returns.
pub(crate) async fn serve(
    interval: Option<Duration>,
    health: impl Fn() -> Result<(), String>,
    alive: impl Fn() -> io::Result<()>,
) {
    let Some(interval) = interval else { return };
    tracing::info!(
        interval_ms = interval.as_millis() as u64,
        "The service manager's watchdog is served"
    );
    let mut ticks = tokio::time::interval(interval);
    loop {
        ticks.tick().await;
        if let Err(problem) = health() {
            tracing::error!(
                problem,
                "Rubelet is not healthy; the service manager's watchdog is not notified"
            );
            continue;
        }
        alive().unwrap_or_else(|error| tracing::warn!(%error, "Cannot notify the service manager"));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_fed_only_while_the_sync_loop_turns() {
        let (turns, fed) = (Cell::new(true), Cell::new(0));
        let health = || {
            turns
                .get()
                .then_some(())
                .ok_or_else(|| "it stands still".to_owned())
        };
        let alive = || {
            fed.set(fed.get() + 1);
            Ok(())
        };
        let mut serving = std::pin::pin!(serve(Some(Duration::from_secs(10)), health, alive));
        let mut pass = async |seconds| {
            let time = Duration::from_secs(seconds);
            assert!(tokio::time::timeout(time, serving.as_mut()).await.is_err());
            fed.replace(0)
        };
        assert_eq!(pass(25).await, 3);
        turns.set(false);
        assert_eq!(pass(60).await, 0);
        turns.set(true);
        assert_eq!(pass(10).await, 1);
    }

    #[tokio::test]
    async fn without_a_wish_nobody_is_told() {
        serve(None, || Ok(()), || panic!("notified")).await;
    }
}
