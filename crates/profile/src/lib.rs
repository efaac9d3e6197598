//! Where the running process spends its processor time, as a profile that `go tool pprof` reads.
//!
//! An adapter: stacks are taken by a signal (`sampler`), their addresses get names (`symbols`), and both are written in pprof's
//! form (`encoding`). It knows nothing of who asks.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "an adapter is where clocks and the kernel's files are read"
)]

mod encoding;
mod message;
mod sampler;
mod symbols;

use std::fs;
use std::io::{self, Write as _};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message as _;
use rubelet_ports::{CpuProfiler, ProfileError};

use crate::encoding::Taken;
use crate::sampler::Sampling;

/// Samples this process. There is one timer per process, so that all values share it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuSampler;

#[async_trait]
impl CpuProfiler for CpuSampler {
    async fn profile(&self, time: Duration) -> Result<Vec<u8>, ProfileError> {
        let sampling = Sampling::start()?;
        let began = SystemTime::now();
        tokio::time::sleep(time).await;
        // Looking up names reads the whole debug information.
        let writing = tokio::task::spawn_blocking(move || write(sampling, began));
        let failed = |error: &dyn std::error::Error| ProfileError::Failed(error.to_string());
        writing
            .await
            .map_err(|error| failed(&error))?
            .map_err(|error| failed(&error))
    }
}

fn write(sampling: Sampling, began: SystemTime) -> io::Result<Vec<u8>> {
    let recording = sampling.finish();
    let taken = Taken {
        began,
        took: began.elapsed().unwrap_or_default(),
    };
    let mappings = symbols::mappings(&fs::read_to_string("/proc/self/maps")?);
    let profile = encoding::encode(&recording, taken, &mappings, symbols::resolve);
    symbols::forget();
    let mut zipped = GzEncoder::new(Vec::new(), Compression::default());
    zipped.write_all(&profile.encode_to_vec())?;
    zipped.finish()
}
