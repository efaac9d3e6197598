//! Logs of a real runtime, rotated.

use anyhow::{Context, ensure};
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{pod, shell};
use rubelet_testbed::node::{Bed, DEADLINE, Kubelet, Options, PodFacts};
use rubelet_testbed::wait::wait_for;
use serde_json::json;

use crate::busy_log::{files, rotated_and_followed};

fn rubelet() -> Kubelet {
    Kubelet::Rubelet(env!("CARGO_BIN_EXE_rubelet").into())
}

#[test]
fn a_busy_log_is_rotated_and_its_follower_misses_nothing() {
    in_scope("log-rotation", async |scope| {
        rotated_and_followed(scope, Flavour::Debian, rubelet()).await
    });
}

#[test]
fn a_node_that_was_killed_rotates_on() {
    in_scope("log-rotation-kill", async |scope| {
        let options = Options::new(rubelet())
            .with("containerLogMaxSize", json!("200Ki"))
            .with("containerLogMaxFiles", json!(3));
        let mut bed = Bed::start(scope, Flavour::Debian, options).await?;
        let script = "i=0; while true; do seq $i $((i+999)); i=$((i+1000)); sleep 0.05; done";
        let endless = pod("endless").container(shell("main", script));
        bed.node.write("endless", &endless.json())?;
        let id = bed.node.wait_until_ready("endless").await?.running_id("main")?;
        let uid = bed.node.pod("endless")?.metadata.uid.context("no uid")?;
        let name = bed.node.pod_name("endless");
        let directory = bed.node.pod_logs().join(format!("default_{name}_{uid}/main"));
        for _ in 0..5 {
            let before = wait_for("a log", DEADLINE, || files(&directory))?;
            wait_for("another rotation", DEADLINE, || {
                let now = files(&directory)?;
                let newest = |names: &[String]| names.iter().rev().nth(1).cloned();
                ensure!(now.len() >= 3 && newest(&now) != newest(&before), "{now:?}");
                Ok(())
            })?;
            bed.node.kill_nine()?;
            bed.node.start_again()?;
        }
        wait_for("tidied up", DEADLINE, || {
            let names = files(&directory)?;
            ensure!(
                names.len() <= 3 && names.iter().all(|name| !name.ends_with(".tmp")),
                "{names:?}"
            );
            Ok(())
        })?;
        assert_eq!(
            bed.node.wait_until_ready("endless").await?.running_id("main")?,
            id
        );
        Ok(())
    });
}
