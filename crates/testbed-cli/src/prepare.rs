//! Everything that tests need, made ahead, so that a test's time is the test's.

use std::time::Instant;

use anyhow::{Context, Result};
use clap::ValueEnum;

use rubelet_conformance as conformance;
use rubelet_testbed::{Program, images, kubeadm, oracle, virtual_node};

/// What the machine is prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Purpose {
    /// The end-to-end tests.
    E2e,
    /// The end-to-end tests and upstream's conformance suite.
    All,
}

/// Makes what is missing, with a progress line per step.
pub(crate) fn prepare(purpose: Purpose) -> Result<()> {
    let start = Instant::now();
    for program in Program::ALL
        .into_iter()
        .filter(|program| purpose == Purpose::All || !program.is_for_conformance_only())
    {
        let path = program.path()?;
        println!(
            "test bed: {} is ready",
            path.file_name().unwrap_or_default().display()
        );
    }
    oracle::program().context("the oracle")?;
    println!("test bed: the oracle is ready");
    for image in [images::busybox, images::pause, images::server] {
        image().context("the test images")?;
    }
    kubeadm::image_archives().context("the images of kubeadm's control plane")?;
    println!("test bed: the test images are ready");
    virtual_node::prepare().context("the virtual node's image")?;
    println!("test bed: the virtual node's image is ready");
    if purpose == Purpose::All {
        conformance::prepare().context("the suite's images")?;
        println!("test bed: the suite's images are ready");
    }
    println!(
        "test bed: everything is ready after {} s",
        start.elapsed().as_secs()
    );
    Ok(())
}
