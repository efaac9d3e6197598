//! A busy log with containerd 2.

use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::Kubelet;

#[path = "../../../rubelet/tests/it/busy_log.rs"]
mod busy_log;

#[test]
fn a_busy_log_is_rotated_and_its_follower_misses_nothing() {
    in_scope("log-rotation-v2", async |scope| {
        busy_log::rotated_and_followed(scope, Flavour::V2, Kubelet::built()?).await
    });
}
