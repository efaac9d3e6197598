//! Which cgroup driver the node has: the runtime's, which is asked first.

use std::time::Duration;

use anyhow::{Context, Result};
use rubelet_ports::{RuntimeErrorKind, RuntimeReader};
use rubelet_wire::cri::v1::CgroupDriver;

use crate::metrics::{self, Registries};

/// Tries and pause for asking the runtime.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(2);

/// The runtime's own cgroup driver, or the configured one when the runtime does not report it.
pub(crate) async fn of_node(
    cri: &dyn RuntimeReader,
    configured: &str,
    registries: &Registries,
) -> Result<String> {
    let mut attempt = 1;
    loop {
        match cri.runtime_config().await {
            Ok(answer) => {
                let Some(linux) = answer.linux else {
                    return Ok(configured.to_owned());
                };
                return Ok(match linux.cgroup_driver() {
                    CgroupDriver::Systemd => "systemd".to_owned(),
                    CgroupDriver::Cgroupfs => "cgroupfs".to_owned(),
                });
            }
            Err(error) if error.kind() == RuntimeErrorKind::Unimplemented => {
                tracing::warn!(
                    configured,
                    "The runtime cannot report its cgroup driver; cgroupDriver of the configuration is used"
                );
                metrics::show_losing_support(&registries.node)?;
                return Ok(configured.to_owned());
            }
            Err(error) if attempt == TRIES => {
                return Err(error).context("ask the runtime for its cgroup driver");
            }
            Err(error) => tracing::warn!(%error, attempt, "The runtime does not report its cgroup driver"),
        }
        attempt += 1;
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;
    use rubelet_cri::{CriClient, CriMetrics, CriOptions};
    use rubelet_fakes::cri::{FakeCri, Reaction};
    use rubelet_wire::cri::v1;
    use tonic::Code;

    use super::*;

    fn answer(driver: Option<CgroupDriver>) -> Reaction {
        let linux = driver.map(|driver| v1::LinuxRuntimeConfiguration {
            cgroup_driver: driver.into(),
        });
        Reaction::answer(&v1::RuntimeConfigResponse { linux })
    }

    async fn driver_with(runtime: &FakeCri, configured: &str) -> Result<String> {
        let options = CriOptions::new(runtime.endpoint());
        let cri = CriClient::connect(&options, &CriMetrics::register(&Registry::new())?).await?;
        of_node(&cri, configured, &Registries::new()?).await
    }

    async fn check(reaction: Reaction, configured: &str, expected: &str) {
        let runtime = FakeCri::start().await.unwrap();
        runtime.on("RuntimeConfig", reaction);
        let found = driver_with(&runtime, configured).await.unwrap();
        assert_eq!(found, expected);
    }

    #[tokio::test]
    async fn the_runtimes_driver_wins_over_the_configured_one() {
        check(answer(Some(CgroupDriver::Systemd)), "cgroupfs", "systemd").await;
        check(answer(Some(CgroupDriver::Cgroupfs)), "systemd", "cgroupfs").await;
    }

    #[tokio::test]
    async fn a_runtime_that_cannot_tell_leaves_it_to_the_configuration() {
        check(answer(None), "systemd", "systemd").await;
        let unimplemented = || Reaction::fail(Code::Unimplemented, "unknown method");
        check(unimplemented(), "systemd", "systemd").await;
        check(unimplemented(), "cgroupfs", "cgroupfs").await;
    }

    #[tokio::test]
    async fn a_runtime_that_fails_is_asked_again() {
        let runtime = FakeCri::start().await.unwrap();
        runtime.once("RuntimeConfig", Reaction::fail(Code::Internal, "not now"));
        runtime.on("RuntimeConfig", answer(Some(CgroupDriver::Systemd)));
        assert_eq!(driver_with(&runtime, "cgroupfs").await.unwrap(), "systemd");
        assert_eq!(runtime.calls("RuntimeConfig"), 2);
    }
}
