//! Static pods on Debian's containerd 1.6, which has no events: the same scenarios that the end-to-end tests run on
//! containerd 2.

use rubelet_scenarios as scenarios;
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::{Bed, Kubelet, Options};

/// One node for all of them: most of their time is waiting.
#[test]
fn static_pods_behave() {
    in_scope("pods", async |scope| {
        let kubelet = Kubelet::chosen_or(env!("CARGO_BIN_EXE_rubelet"));
        let bed = Bed::start(scope, Flavour::Debian, Options::new(kubelet)).await?;
        bed.run(&scenarios::all()).await
    });
}
