//! What every kubelet must do with static pods, on containerd 2. `RUBELET_TEST_KUBELET=upstream` runs the same with upstream's
//! kubelet: that is how the scenarios themselves are checked.

use anyhow::Result;
use rubelet_scenarios as scenarios;
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::{Bed, Kubelet, Options};
use serde_json::json;

#[test]
fn static_pods_behave() {
    in_scope("pods_scenarios", async |scope| -> Result<()> {
        let bed = Bed::start(scope, Flavour::V2, Options::new(Kubelet::chosen()?)).await?;
        bed.run(&scenarios::all()).await
    });
}

#[test]
fn newer_runtimes_are_used() {
    in_scope("newer_runtimes", async |scope| -> Result<()> {
        let gates = json!({ "ContainerStopSignals": true });
        let options = Options::new(Kubelet::chosen()?)
            .with("featureGates", gates)
            .with("seccompDefault", json!(true));
        let bed = Bed::start(scope, Flavour::V2, options).await?;
        bed.run(scenarios::NEWER_RUNTIMES).await
    });
}
