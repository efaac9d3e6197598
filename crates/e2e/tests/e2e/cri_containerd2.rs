//! The CRI client against containerd 2: what the client's own tests do with Debian's.

use anyhow::{Result, ensure};
use rubelet_testbed::containerd::Flavour;

#[path = "../../../cri/tests/it/real_runtime.rs"]
mod real_runtime;

#[tokio::test(flavor = "multi_thread")]
async fn it_answers_the_readers() -> Result<()> {
    let seen = real_runtime::readers("cri-readers-v2", Flavour::V2).await?;
    ensure!(seen.version == "2.4.2", "{seen:?}");
    ensure!(seen.has_runtime_config && seen.has_events, "{seen:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_found_again_after_a_kill() -> Result<()> {
    real_runtime::kill_and_return("cri-kill-v2", Flavour::V2).await
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_it_holds_nobody_for_ever() -> Result<()> {
    real_runtime::freeze("cri-freeze-v2", Flavour::V2).await
}
