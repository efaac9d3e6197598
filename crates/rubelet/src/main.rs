//! The node agent's program: settings, log, and then [`startup`].
//!
//! Exit codes are upstream's: 0 after an orderly end, 1 when the settings are wrong or the node cannot run.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the program is the composition root"
)]

mod admission;
mod agent;
mod certificates;
mod cgroup_driver;
mod cgroups;
mod cluster;
mod drain;
mod edges;
mod files;
mod images;
mod keys;
mod local_socket;
mod logging;
mod logs;
mod metrics;
mod network;
mod node_report;
mod node_settings;
mod pressure;
mod shutdown;
mod signals;
mod startup;
mod statistics;
mod top;
mod unknown_volumes;
mod volumes;
mod watchdog;
mod why;

use std::process::ExitCode;

use rubelet_config::{HostFacts, Invocation, Settings, load};
use rubelet_host::cgroup::CgroupVersion;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    // No flag of the kubelet's begins without a dash, so that the commands hide no flag.
    match arguments.split_first().map(|(word, rest)| (word.as_str(), rest)) {
        Some((why::COMMAND, rest)) => return why::run(rest),
        Some((top::COMMAND, rest)) => return top::run(rest),
        Some(_) | None => {}
    }
    match load(&arguments, &files::HostFiles, host_facts()) {
        Ok(Invocation::Print(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Ok(Invocation::Run(settings)) => run(*settings),
        Err(error) => {
            eprintln!("rubelet: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A machine whose cgroups cannot be read counts as version 2 here; start-up then fails with the reason.
fn host_facts() -> HostFacts {
    HostFacts {
        cgroup_v2: !matches!(CgroupVersion::of_this_machine(), Ok(CgroupVersion::V1)),
    }
}

fn run(settings: Settings) -> ExitCode {
    if let Err(error) = logging::init(log_format(&settings), log_verbosity(&settings)) {
        eprintln!("rubelet: cannot install the log: {error}");
        return ExitCode::FAILURE;
    }
    match startup::run(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "rubelet cannot run");
            ExitCode::FAILURE
        }
    }
}

fn log_format(settings: &Settings) -> logging::Format {
    // Validation has refused every other value.
    match settings.configuration().logging.format.as_str() {
        "json" => logging::Format::Json,
        _ => logging::Format::Text,
    }
}

fn log_verbosity(settings: &Settings) -> logging::Verbosity {
    let logging = &settings.configuration().logging;
    let rule = |item: &rubelet_config::kubelet_configuration::VModuleItem| logging::VmoduleRule {
        file_pattern: item.file_pattern.clone(),
        verbosity: item.verbosity,
    };
    logging::Verbosity {
        general: logging.verbosity,
        vmodule: logging.vmodule.iter().map(rule).collect(),
    }
}
