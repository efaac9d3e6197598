//! `make run` from its first line to its last, and what it leaves: nothing.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use rubelet_testkit::node::Kubelet;
use rubelet_testkit::wait::wait_for;
use rubelet_testkit::{in_scope, scope};
use rustix::process::Signal;

const DEADLINE: Duration = Duration::from_secs(180);

#[test]
fn the_demo_comes_up_answers_and_goes_without_a_trace() {
    in_scope("demo", async |scope| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_testbed"));
        command.arg("run").arg("--rubelet").arg(Kubelet::built()?.path()?);
        let mut demo = scope.spawn("run", command)?;
        let log = wait_for("the demo is up", DEADLINE, || {
            demo.check_running()?;
            let log = fs::read_to_string(demo.log())?;
            ensure!(log.contains("Ctrl-C ends everything"), "{log}");
            Ok(log)
        })?;
        for words in [
            "init container setup     ended with code 0",
            "sidecar ticker           runs",
            "container web            runs",
            "pod                      Running, Ready",
            "/hostname says 200: demo-node-",
        ] {
            assert!(log.contains(words), "no {words:?} in:\n{log}");
        }
        let dir = log
            .lines()
            .find_map(|line| line.strip_prefix("run: starting a private containerd in "))
            .map(PathBuf::from)
            .context("the demo's directory is not told")?;
        demo.signal(Signal::INT)?;
        let status = demo.wait(DEADLINE)?;
        let log = fs::read_to_string(demo.log())?;
        assert!(status.success() && log.ends_with("run: cleaning up\n"), "{log}");
        assert_eq!(scope::traces_of(&dir), Vec::<String>::new());
        assert!(!dir.exists());
        Ok(())
    });
}
