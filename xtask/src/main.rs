//! Checks of the workspace itself, each from `cargo metadata` or the documents: `cargo xtask check`. And the release binary against its
//! budget: `cargo xtask size`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a build tool reads files and runs cargo"
)]

mod dependencies;
mod documents;
mod layers;
mod link_map;
mod pod_fields;
mod settings;
mod shape;
mod size;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use cargo_metadata::MetadataCommand;

fn main() -> ExitCode {
    match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [command] if command == "check" => report(check()),
        [command] if command == "size" => report(size::check(workspace_root())),
        [command] if command == "settings" => report(settings::write(workspace_root()).map(|()| Vec::new())),
        _ => {
            eprintln!("usage: cargo xtask check | settings | size");
            ExitCode::FAILURE
        }
    }
}

fn report(result: Result<Vec<String>>) -> ExitCode {
    match result {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            eprintln!("{} problem(s):", problems.len());
            problems.iter().for_each(|problem| eprintln!("- {problem}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn workspace_root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn check() -> Result<Vec<String>> {
    let metadata = MetadataCommand::new().exec().context("run cargo metadata")?;
    let checks: [(&str, Vec<String>); 8] = [
        ("layers: who may depend on whom", layers::check(&metadata)?),
        ("licences of all crates", dependencies::check_licences(&metadata)),
        ("banned crates and sources", dependencies::check_bans(&metadata)),
        (
            "crates in two versions in the program",
            dependencies::check_duplicates(&metadata)?,
        ),
        (
            "tests named in docs/compatibility.md",
            documents::check(workspace_root())?,
        ),
        (
            "settings in docs/compatibility.md",
            settings::check(workspace_root())?,
        ),
        (
            "fields of pods in docs/compatibility.md",
            pod_fields::check(workspace_root())?,
        ),
        (
            "shape of structs and functions",
            shape::check(&metadata, workspace_root())?,
        ),
    ];
    let mut all = Vec::new();
    for (name, problems) in checks {
        println!(
            "xtask: {name}: {}",
            if problems.is_empty() { "ok" } else { "FAILED" }
        );
        all.extend(problems);
    }
    Ok(all)
}
