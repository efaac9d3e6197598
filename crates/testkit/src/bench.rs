//! `make bench`: what can be measured before pods run: the binary's size, the time from exec to ready, idle memory.
//!
//! Rubelet and upstream's kubelet run one after the other on the same private containerd. The machine is noisy: compare the
//! two columns of one run, not runs.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::containerd::{Containerd, Flavour};
use crate::{Program, Scope, peer};

const ROUNDS: usize = 5;
const READY_DEADLINE: Duration = Duration::from_secs(60);

struct Figures {
    binary_bytes: u64,
    ready: Duration,
    resident_bytes: u64,
}

/// Measures both programs and prints a table with ratios.
pub fn run(rubelet: &Path) -> Result<()> {
    let rubelet = rubelet
        .canonicalize()
        .with_context(|| format!("{} is not built", rubelet.display()))?;
    let scope = Scope::new("bench")?;
    let containerd = Containerd::start(&scope, Flavour::V2)?;
    let ours = measure(&scope, &containerd, "rubelet", &rubelet)?;
    let theirs = measure(&scope, &containerd, "kubelet", &Program::Kubelet.path()?)?;
    println!("| measure (median of {ROUNDS}) | rubelet | upstream | ratio |\n|---|---|---|---|");
    row(
        "binary, MB",
        ours.binary_bytes as f64 / 1e6,
        theirs.binary_bytes as f64 / 1e6,
    );
    row(
        "exec to ready, ms",
        ours.ready.as_secs_f64() * 1e3,
        theirs.ready.as_secs_f64() * 1e3,
    );
    let mebibyte = f64::from(1 << 20);
    row(
        "resident when ready, MiB",
        ours.resident_bytes as f64 / mebibyte,
        theirs.resident_bytes as f64 / mebibyte,
    );
    Ok(())
}

fn row(name: &str, ours: f64, theirs: f64) {
    println!("| {name} | {ours:.1} | {theirs:.1} | {:.2} |", ours / theirs);
}

fn measure(scope: &Scope, containerd: &Containerd, name: &str, program: &Path) -> Result<Figures> {
    let mut rounds = (0..ROUNDS)
        .map(|round| measure_once(scope, containerd, name, program, round))
        .collect::<Result<Vec<_>>>()?;
    rounds.sort_by_key(|(ready, _)| *ready);
    let ready = rounds[ROUNDS / 2].0;
    rounds.sort_by_key(|(_, resident)| *resident);
    let resident_bytes = rounds[ROUNDS / 2].1;
    Ok(Figures {
        binary_bytes: fs::metadata(program)?.len(),
        ready,
        resident_bytes,
    })
}

fn measure_once(
    scope: &Scope,
    containerd: &Containerd,
    name: &str,
    program: &Path,
    round: usize,
) -> Result<(Duration, u64)> {
    let notify = scope.path(&format!("notify-{name}-{round}"));
    let socket = UnixDatagram::bind(&notify)?;
    socket.set_read_timeout(Some(READY_DEADLINE))?;
    let mut command = peer::confined(program);
    command
        .env("NOTIFY_SOCKET", &notify)
        .arg("--root-dir")
        .arg(scope.path(&format!("root-{name}")))
        .arg("--cert-dir")
        .arg(scope.path(&format!("pki-{name}")))
        .arg(format!("--container-runtime-endpoint={}", containerd.endpoint()))
        .arg(format!("--port={}", scope.port()?))
        .arg("--read-only-port=0")
        .arg("--healthz-port=0")
        .arg(format!("--cgroup-root={}", scope.cgroup_root()))
        .args([
            "--fail-cgroupv1=false",
            "--cgroups-per-qos=false",
            "--enforce-node-allocatable=",
        ]);
    let start = Instant::now();
    let mut process = scope.spawn(&format!("{name}-{round}"), command)?;
    let mut message = [0; 256];
    loop {
        let length = socket.recv(&mut message).with_context(|| {
            format!(
                "{name} does not say that it is ready; its last words:\n{}",
                process.log_tail(10)
            )
        })?;
        if message[..length].starts_with(b"READY=1") {
            break;
        }
    }
    let ready = start.elapsed();
    process.check_running()?;
    let resident = resident_bytes(process.pid())?;
    process.terminate(Duration::from_secs(20))?;
    Ok((ready, resident))
}

fn resident_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS")?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes * 1024)
}
