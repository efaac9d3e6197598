//! A profile of the test itself, read by the program that people read it with.

use std::fs;
use std::hint::black_box;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use rubelet_ports::CpuProfiler as _;
use rubelet_profile::CpuSampler;
use rubelet_testbed::in_scope;

#[inline(never)]
fn burn_for_pprof(told: &AtomicBool) {
    let mut number = 1_u64;
    while !told.load(Ordering::Relaxed) {
        number = black_box(number).wrapping_mul(31).rotate_left(7);
    }
}

#[test]
fn go_reads_a_profile() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    in_scope("pprof", async |scope| {
        let burning = std::thread::spawn(|| burn_for_pprof(&TOLD));
        let profile = CpuSampler.profile(Duration::from_secs(1)).await;
        TOLD.store(true, Ordering::Relaxed);
        burning.join().ok().context("the burning thread panicked")?;
        let file = scope.path("profile");
        fs::write(&file, profile?)?;
        let read = Command::new("go")
            .args(["tool", "pprof", "-raw"])
            .arg(&file)
            .output()?;
        let text = String::from_utf8_lossy(&read.stdout);
        ensure!(
            read.status.success(),
            "{text}{}",
            String::from_utf8_lossy(&read.stderr)
        );
        for words in [
            "PeriodType: cpu nanoseconds",
            "samples/count cpu/nanoseconds",
            "burn_for_pprof",
        ] {
            ensure!(text.contains(words), "no {words:?} in {text}");
        }
        Ok(())
    });
}
