//! The client against Debian's containerd; the end-to-end tests do the same with containerd 2.

use anyhow::Result;
use rubelet_testbed::containerd::Flavour;

use crate::real_runtime;

#[tokio::test(flavor = "multi_thread")]
async fn a_real_runtime_answers_the_readers() -> Result<()> {
    let seen = real_runtime::readers("cri-readers-debian", Flavour::Debian).await?;
    assert!(seen.version.starts_with("1.6."), "{seen:?}");
    // What containerd 1.6 does not have must be distinguished from what fails.
    assert_eq!((seen.has_runtime_config, seen.has_events), (false, false));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_runtime_is_found_again_after_a_kill() -> Result<()> {
    real_runtime::kill_and_return("cri-kill-debian", Flavour::Debian).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_real_runtime_holds_nobody_for_ever() -> Result<()> {
    real_runtime::freeze("cri-freeze-debian", Flavour::Debian).await
}
