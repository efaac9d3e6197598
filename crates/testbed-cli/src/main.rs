//! The test bed's command line: what `make testbed`, `run`, `conformance`, `bench` and `goldens` call.
//!
//! Owns the subcommands and preparing the machine for all of them. It stands above every crate that uses the test bed, so that
//! none of those needs to know another.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test bed is an edge: it runs real programs"
)]

mod prepare;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};
use rubelet_testbed::{run, scope};
use {rubelet_bench as bench, rubelet_conformance as conformance, rubelet_goldens as goldens};

#[derive(Parser)]
#[command(about = "Rubelet's test bed")]
struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Build the programs and images that tests need; what is there already is left alone.
    Prepare {
        #[arg(long = "for", value_enum, default_value = "all")]
        purpose: prepare::Purpose,
    },
    /// Start a private container runtime and rubelet on it, until Ctrl-C.
    Run {
        #[arg(long)]
        rubelet: PathBuf,
    },
    /// Run upstream's node e2e suite with the given program in the kubelet's place.
    Conformance {
        /// Only specs whose name matches this regular expression.
        #[arg(long)]
        focus: Option<String>,
        /// Only specs that this file names, one a line.
        #[arg(long)]
        list: Option<PathBuf>,
        /// The program in the kubelet's place; `upstream` is upstream's own.
        #[arg(long)]
        kubelet: PathBuf,
        /// How many specs run at a time.
        #[arg(long, default_value_t = 8)]
        procs: u32,
    },
    /// Measure rubelet beside upstream's kubelet and the bare CRI.
    Bench(bench::Options),
    /// Write the oracle's answers for the fixed corpus anew.
    Goldens,
    /// Clean up after tests that were killed.
    Sweep,
}

fn main() -> ExitCode {
    match carry_out(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("test bed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(action: Action) -> Result<()> {
    match action {
        Action::Prepare { purpose } => prepare::prepare(purpose),
        Action::Run { rubelet } => run::run(&rubelet),
        Action::Conformance {
            focus,
            list,
            kubelet,
            procs,
        } => {
            let summary = conformance::run(&conformance::Options {
                focus,
                list,
                kubelet,
                procs,
            })?;
            println!("{summary}");
            ensure!(summary.is_success(), "the suite did not pass");
            Ok(())
        }
        Action::Bench(options) => bench::run(&options),
        Action::Goldens => goldens::write_goldens(&goldens::goldens_dir()),
        Action::Sweep => {
            println!("test bed: cleaned up after {} killed test(s)", scope::sweep());
            Ok(())
        }
    }
}
