//! A node with its containerd and images, and many scenarios on it at a time.
//!
//! Scenarios that only add pods of their own share one bed: most of their time is waiting, and starting a containerd and a
//! kubelet for each would take longer than all of them together.

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

use anyhow::{Result, bail};
use futures_util::StreamExt;

use super::{Node, Options, RuntimeView};
use crate::containerd::{Containerd, Flavour};
use crate::images;
use crate::node_network::NodeNetwork;
use crate::scope::Scope;

/// Names the scenarios to run, divided by commas; all of them without it.
const CHOICE: &str = "RUBELET_TEST_SCENARIOS";
/// More than this many at a time make two cores slower, not faster.
const AT_A_TIME: usize = 6;

/// Everything that a scenario works on.
pub struct Bed<'a> {
    pub scope: &'a Scope,
    pub containerd: Containerd,
    pub node: Node,
    pub view: RuntimeView,
}

impl<'a> Bed<'a> {
    /// A containerd with the standard images and a kubelet on it.
    pub async fn start(scope: &'a Scope, flavour: Flavour, options: Options) -> Result<Self> {
        let place = options.network.as_ref().map(NodeNetwork::namespaces);
        let containerd = Containerd::start_in(scope, flavour, place)?;
        containerd.import(&images::busybox()?)?;
        containerd.import(&images::server()?)?;
        let node = Node::start(scope, &containerd, options)?;
        let view = RuntimeView::connect(&containerd.socket()).await?;
        Ok(Self {
            scope,
            containerd,
            node,
            view,
        })
    }

    /// Runs the scenarios, several at a time; tells of all that fail, with the end of the kubelet's log.
    pub async fn run(&self, scenarios: &[Scenario]) -> Result<()> {
        let chosen = std::env::var(CHOICE).unwrap_or_default();
        let chosen: Vec<&str> = chosen.split(',').filter(|name| !name.is_empty()).collect();
        let wanted = scenarios
            .iter()
            .filter(|scenario| chosen.is_empty() || chosen.contains(&scenario.name));
        let outcomes: Vec<Option<String>> = futures_util::stream::iter(wanted)
            .map(|scenario| self.run_one(scenario))
            .buffer_unordered(AT_A_TIME)
            .collect()
            .await;
        let failures: Vec<String> = outcomes.into_iter().flatten().collect();
        if failures.is_empty() {
            return Ok(());
        }
        bail!(
            "{} of {} scenarios failed:\n\n{}\n\n{}",
            failures.len(),
            scenarios.len(),
            failures.join("\n\n"),
            self.node.log_tail()
        )
    }

    async fn run_one(&self, scenario: &Scenario) -> Option<String> {
        let start = Instant::now();
        let outcome = (scenario.run)(self).await;
        eprintln!(
            "{} {}: {:.1} s",
            scenario.name,
            if outcome.is_ok() { "passed" } else { "failed" },
            start.elapsed().as_secs_f64()
        );
        outcome.err().map(|error| format!("{}: {error:#}", scenario.name))
    }
}

type Run = for<'b> fn(&'b Bed<'_>) -> Pin<Box<dyn Future<Output = Result<()>> + 'b>>;

/// One thing that every kubelet must do.
#[derive(Clone, Copy)]
pub struct Scenario {
    pub name: &'static str,
    pub run: Run,
}
