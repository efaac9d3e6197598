//! A killed test process leaves a containerd and a pod behind; whoever comes next cleans up after it.

use anyhow::Result;
use rubelet_testbed::containerd::Flavour;

use crate::scenario;

#[test]
fn what_a_killed_test_left_is_swept() -> Result<()> {
    scenario::sweep_removes_what_a_killed_test_left(
        "killed::what_a_killed_test_left_is_swept",
        Flavour::Debian,
    )
}
