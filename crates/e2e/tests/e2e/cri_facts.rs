//! The golden list of CRI's wire facts says what upstream's own file says.
//!
//! With `UPDATE_GOLDENS=1` the list is written anew instead; then `crates/wire/proto/cri/v1.proto` has to follow it.

#[path = "../../../wire/tests/it/facts.rs"]
mod facts;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use protox::Compiler;

const FILE: &str = "api.proto";

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The folder of upstream's file, in the module that the test bed pins.
fn upstream_folder() -> Result<PathBuf> {
    let output = Command::new("go")
        .args(["list", "-m", "-f", "{{.Dir}}", "k8s.io/cri-api"])
        .current_dir(workspace().join("testbed"))
        .output()
        .context("running go list; make testbed installs Go")?;
    ensure!(
        output.status.success(),
        "go list failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let module = String::from_utf8(output.stdout).context("the module's folder")?;
    ensure!(
        !module.trim().is_empty(),
        "k8s.io/cri-api is not downloaded; make testbed does that"
    );
    Ok(Path::new(module.trim()).join("pkg/apis/runtime/v1"))
}

#[test]
fn the_golden_says_what_upstream_says() -> Result<()> {
    let mut compiler = Compiler::new([upstream_folder()?])?;
    compiler.open_file(FILE)?;
    let file = compiler
        .descriptor_pool()
        .get_file_by_name(FILE)
        .context("the file just compiled")?;
    let upstream = facts::facts(&file).join("\n") + "\n";

    let golden_path = workspace().join("testbed/goldens/cri-v1.txt");
    if std::env::var_os("UPDATE_GOLDENS").is_some() {
        std::fs::write(&golden_path, &upstream)?;
    }
    let golden = std::fs::read_to_string(&golden_path)?;
    let only_in = |one: &str, other: &str| -> Vec<String> {
        one.lines()
            .filter(|line| !other.lines().any(|known| known == *line))
            .map(str::to_owned)
            .collect()
    };
    ensure!(
        upstream == golden,
        "only in upstream's file: {:#?}\nonly in the golden: {:#?}",
        only_in(&upstream, &golden),
        only_in(&golden, &upstream)
    );
    Ok(())
}
