//! The metrics of this node and their pages.
//!
//! Owns the registries, one for each page, and the metrics that belong to no other crate: the process, the version, the settings. A
//! crate with metrics of its own has a module `metrics` with a structure that the program makes (`register(&Registry)`) and
//! hands down. Figures that a crate keeps anyway are turned into metrics here, when a page is read.

mod certificates;
mod facts;
mod objects;
mod pages;
mod probes;
mod process;
mod reporting;
mod sampled;
mod text;

use anyhow::{Context, Result};
use prometheus::Registry;

pub(crate) use certificates::show_certificates;
pub(crate) use facts::{show_losing_support, show_node, show_settings};
pub(crate) use objects::show_pod_certificates;
pub(crate) use pages::Pages;
pub(crate) use probes::show_probes;
pub(crate) use process::beginnings;
pub(crate) use reporting::{show_events, show_reporting};

/// One for each page. Clones are the same registries.
#[derive(Clone)]
pub(crate) struct Registries {
    /// `/metrics`
    pub(crate) node: Registry,
    /// `/metrics/probes`
    pub(crate) probes: Registry,
    /// `/metrics/slis`
    pub(crate) health_checks: Registry,
}

impl Registries {
    /// With the metrics of the process, by whose start time collectors see that counters were reset.
    pub(crate) fn new() -> Result<Self> {
        let registries = Self {
            node: Registry::new(),
            probes: Registry::new(),
            health_checks: Registry::new(),
        };
        process::show_process(&registries.node)
            .and_then(|()| process::show_start(&registries.probes))
            .and_then(|()| process::show_start(&registries.health_checks))
            .context("register the metrics of the process")?;
        Ok(registries)
    }
}
