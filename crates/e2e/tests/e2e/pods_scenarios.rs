//! What every kubelet must do with static pods, on containerd 2. `RUBELET_TEST_KUBELET=upstream` runs the same with upstream's
//! kubelet: that is how the scenarios themselves are checked.

use anyhow::Result;
use rubelet_testkit::containerd::Flavour;
use rubelet_testkit::in_scope;
use rubelet_testkit::node::{Bed, Kubelet, Options, scenarios};

#[test]
fn static_pods_behave() {
    in_scope("pods_scenarios", async |scope| -> Result<()> {
        let bed = Bed::start(scope, Flavour::V2, Options::new(Kubelet::chosen()?)).await?;
        bed.run(&scenarios::all()).await
    });
}
