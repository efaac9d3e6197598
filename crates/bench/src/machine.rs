//! What a reader must know of the machine to judge the figures; nothing that names it.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use rubelet_testbed::containerd::Containerd;

/// Facts of the machine and of the programs that all columns share.
pub(super) struct Facts {
    pub(super) date: String,
    pub(super) processor: String,
    pub(super) cores: usize,
    pub(super) memory_gib: f64,
    pub(super) kernel: String,
    pub(super) cgroups: &'static str,
    pub(super) containerd: String,
    /// Over 15 minutes, the measurement's own part included.
    pub(super) load: String,
}

/// Collects them.
pub(super) fn facts(containerd: &Containerd) -> Result<Facts> {
    let processors = fs::read_to_string("/proc/cpuinfo").context("read cpuinfo")?;
    let memory = fs::read_to_string("/proc/meminfo").context("read meminfo")?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").context("read the kernel's release")?;
    let kib: f64 = value_of(&memory, "MemTotal")
        .and_then(|value| value.strip_suffix(" kB")?.parse().ok())
        .context("meminfo without a total")?;
    let load = fs::read_to_string("/proc/loadavg").context("read the load")?;
    let unified = fs::exists("/sys/fs/cgroup/cgroup.controllers")?;
    Ok(Facts {
        date: today()?,
        processor: value_of(&processors, "model name")
            .unwrap_or("unknown")
            .to_owned(),
        cores: std::thread::available_parallelism()?.get(),
        memory_gib: kib / f64::from(1 << 20),
        kernel: version_only(&release),
        cgroups: if unified { "v2" } else { "v1" },
        containerd: containerd.version()?,
        load: load.split(' ').nth(2).unwrap_or("unknown").to_owned(),
    })
}

fn today() -> Result<String> {
    let output = Command::new("date")
        .args(["-u", "+%Y-%m-%d"])
        .output()
        .context("run date")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The value of the first line with this key, in files of `key : value` lines.
fn value_of<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim())
}

/// The first two numbers: what follows says where the kernel comes from.
fn version_only(release: &str) -> String {
    let numbers: Vec<&str> = release.trim().split(['.', '-']).take(2).collect();
    numbers.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_name_no_machine() {
        let check = |release: &str, expected: &str| assert_eq!(version_only(release), expected, "{release}");
        check("6.18.44-custom-7\n", "6.18");
        check("6.1-x", "6.1");
    }

    #[test]
    fn values_are_found() {
        let text = "processor\t: 0\nmodel name\t: A B 7\nMemTotal:  12 kB\n";
        assert_eq!(value_of(text, "model name"), Some("A B 7"));
        assert_eq!(value_of(text, "MemTotal"), Some("12 kB"));
        assert_eq!(value_of(text, "nothing"), None);
    }
}
