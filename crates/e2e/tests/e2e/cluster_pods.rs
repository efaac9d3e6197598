//! Pods that the API server binds to the node: they come, change, end and go, and everybody can see it.
//!
//! One cluster serves all of them; what they do is in a file for each subject. `RUBELET_TEST_KUBELET=upstream` checks the tests
//! themselves.

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

use anyhow::{Result, bail};
use futures_util::StreamExt;
use rubelet_testbed::cluster::Cluster;
use rubelet_testbed::control_plane::Options;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::Kubelet;

use crate::{cluster_changes, cluster_deletion, cluster_mirrors, cluster_objects};

/// More than this many at a time make two cores slower, not faster.
const AT_A_TIME: usize = 5;
/// Names the scenarios to run, divided by commas; all of them without it.
const CHOICE: &str = "RUBELET_TEST_SCENARIOS";

type Run = for<'c> fn(&'c Cluster<'_>) -> Pin<Box<dyn Future<Output = Result<()>> + 'c>>;

/// One thing that every kubelet in a cluster must do, and its name.
pub(crate) type Scenario = (&'static str, Run);

/// Names functions as scenarios.
macro_rules! scenarios {
    ($($name:ident),+ $(,)?) => {
        &[$((stringify!($name), |cluster| Box::pin($name(cluster)))),+]
    };
}
pub(crate) use scenarios;

/// By subject.
const SCENARIOS: [&[Scenario]; 4] = [
    cluster_deletion::ALL,
    cluster_changes::ALL,
    cluster_objects::ALL,
    cluster_mirrors::ALL,
];

#[test]
fn pods_of_the_api_server_behave() {
    in_scope("cluster_pods", async |scope| {
        let cluster =
            Cluster::start(scope, Options::default(), Kubelet::chosen()?, |options| options).await?;
        let chosen = std::env::var(CHOICE).unwrap_or_default();
        let chosen: Vec<&str> = chosen.split(',').filter(|name| !name.is_empty()).collect();
        let wanted = SCENARIOS
            .into_iter()
            .flatten()
            .filter(|(name, _)| chosen.is_empty() || chosen.contains(name));
        let failures: Vec<String> = futures_util::stream::iter(wanted)
            .map(async |(name, run)| {
                let start = Instant::now();
                let outcome = run(&cluster).await;
                let word = if outcome.is_ok() { "passed" } else { "failed" };
                eprintln!("{name} {word}: {:.1} s", start.elapsed().as_secs_f64());
                outcome.err().map(|error| format!("{name}: {error:#}"))
            })
            .buffer_unordered(AT_A_TIME)
            .filter_map(async |failure| failure)
            .collect()
            .await;
        if !failures.is_empty() {
            bail!(
                "{} scenarios failed:\n\n{}\n\n{}",
                failures.len(),
                failures.join("\n\n"),
                cluster.bed.node.log_tail()
            );
        }
        Ok(())
    });
}
