//! The kernel's figures of this process, under the names that all programs' metrics use.

use std::fs;

use prometheus::Registry;
use prometheus::proto::MetricFamily;
use rubelet_model::Timestamp;
use rubelet_node::Beginnings;

use super::sampled::{Sampled, register};

/// The kernel's unit of processor time in `/proc`, the same on every architecture that rubelet supports.
const TICKS_PER_SECOND: f64 = 100.0;

const CPU: Sampled = Sampled::counter(
    "process_cpu_seconds_total",
    &[],
    "Processor time that the process has used, in seconds.",
);
const OPEN_FILES: Sampled = Sampled::gauge("process_open_fds", &[], "File descriptors that are open.");
const MOST_FILES: Sampled = Sampled::gauge(
    "process_max_fds",
    &[],
    "File descriptors that may be open at the same time.",
);
const VIRTUAL: Sampled = Sampled::gauge(
    "process_virtual_memory_bytes",
    &[],
    "Size of the process's address space in bytes.",
);
const MOST_VIRTUAL: Sampled = Sampled::gauge(
    "process_virtual_memory_max_bytes",
    &[],
    "What the address space may grow to, in bytes.",
);
const RESIDENT: Sampled = Sampled::gauge(
    "process_resident_memory_bytes",
    &[],
    "Memory that the process occupies, in bytes.",
);
const RECEIVED: Sampled = Sampled::counter(
    "process_network_receive_bytes_total",
    &[],
    "Bytes that came over the network that the process sees.",
);
const SENT: Sampled = Sampled::counter(
    "process_network_transmit_bytes_total",
    &[],
    "Bytes that went over the network that the process sees.",
);
const START: Sampled = Sampled::gauge(
    "process_start_time_seconds",
    &[],
    "When the process started, in seconds since 1970.",
);
/// The same on the pages where upstream's own library shows it.
const STABLE_START: Sampled = Sampled::gauge(
    "process_start_time_seconds",
    &[],
    "[ALPHA] When the process started, in seconds since 1970.",
);

const TASKS: Sampled = Sampled::gauge(
    "rubelet_tasks",
    &[],
    "[ALPHA] Tasks of the program that are not done.",
);

/// Everything on the node's page.
pub(super) fn show_process(registry: &Registry) -> prometheus::Result<()> {
    let families = [
        CPU,
        OPEN_FILES,
        MOST_FILES,
        VIRTUAL,
        MOST_VIRTUAL,
        RESIDENT,
        RECEIVED,
        SENT,
        START,
        TASKS,
    ];
    let started = start_seconds();
    register(registry, &families, move || sample(started))
}

/// On pages that have nothing else of the process.
pub(super) fn show_start(registry: &Registry) -> prometheus::Result<()> {
    let started = start_seconds();
    register(registry, &[STABLE_START], move || {
        started
            .map(|started| STABLE_START.number(started))
            .into_iter()
            .collect()
    })
}

/// When the machine and this program began.
pub(crate) fn beginnings(now: Timestamp) -> Beginnings {
    let seconds = |seconds: f64| {
        #[expect(clippy::cast_possible_truncation, reason = "nanoseconds of this century fit")]
        let nanos = (seconds * 1e9) as i64;
        Timestamp::from_unix_nanos(nanos)
    };
    Beginnings {
        booted_at: boot_seconds().map(seconds),
        started_at: start_seconds().map_or(now, seconds),
    }
}

/// What cannot be read is left out.
fn sample(started: Option<f64>) -> Vec<MetricFamily> {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let (stat, status, limits, netstat) = (read("stat"), read("status"), read("limits"), read("net/netstat"));
    // The directory is itself open while it is listed.
    let open_files = fs::read_dir("/proc/self/fd")
        .ok()
        .map(|files| files.count().saturating_sub(1));
    let open_files = open_files
        .and_then(|count| u32::try_from(count).ok())
        .map(f64::from);
    let bytes = |name: &str| kilobytes(&status, name).map(|kilobytes| kilobytes * 1024.0);
    let numbers = [
        (CPU, cpu_seconds(&stat)),
        (OPEN_FILES, open_files),
        (MOST_FILES, limit(&limits, "Max open files")),
        (VIRTUAL, bytes("VmSize:")),
        (MOST_VIRTUAL, limit(&limits, "Max address space")),
        (RESIDENT, bytes("VmRSS:")),
        (RECEIVED, octets(&netstat, "InOctets")),
        (SENT, octets(&netstat, "OutOctets")),
        (START, started),
        (TASKS, tasks()),
    ];
    let numbers = numbers.into_iter();
    numbers
        .filter_map(|(family, value)| Some(family.number(value?)))
        .collect()
}

/// `None` outside of the program's runtime.
fn tasks() -> Option<f64> {
    let runtime = tokio::runtime::Handle::try_current().ok()?;
    u32::try_from(runtime.metrics().num_alive_tasks())
        .ok()
        .map(f64::from)
}

/// Fields of `/proc/<pid>/stat` are counted from behind the name, which may hold anything.
fn stat_field(stat: &str, number: usize) -> Option<f64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_whitespace().nth(number - 3)?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((stat_field(stat, 14)? + stat_field(stat, 15)?) / TICKS_PER_SECOND)
}

fn start_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    Some(boot_seconds()? + stat_field(&stat, 22)? / TICKS_PER_SECOND)
}

fn boot_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

fn kilobytes(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// The soft limit. Where there is none, the largest number that there is.
fn limit(limits: &str, name: &str) -> Option<f64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(2_f64.powi(64)),
        number => number.parse().ok(),
    }
}

/// A row of names and a row of numbers.
fn octets(netstat: &str, name: &str) -> Option<f64> {
    let mut rows = netstat.lines().filter_map(|line| line.strip_prefix("IpExt: "));
    let (names, numbers) = (rows.next()?, rows.next()?);
    let place = names.split(' ').position(|found| found == name)?;
    numbers.split(' ').nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_understood() {
        let stat = "12 (a (b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 13 14 15 16 17 18 1234 20 21";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(stat_field(stat, 22), Some(1234.0));
        assert_eq!(cpu_seconds(""), None);
        let status = "Name:\tx\nVmSize:\t  2048 kB\nVmRSS:\t     100 kB\n";
        assert_eq!(kilobytes(status, "VmRSS:"), Some(100.0));
        assert_eq!(kilobytes(status, "VmSwap:"), None);
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 524288               files\n\
                      Max address space         unlimited            unlimited            bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(1024.0));
        assert_eq!(
            limit(limits, "Max address space"),
            Some(18_446_744_073_709_551_615.0)
        );
        let netstat = "TcpExt: A B\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 77 88\n";
        assert_eq!(octets(netstat, "InOctets"), Some(77.0));
        assert_eq!(octets(netstat, "OutOctets"), Some(88.0));
    }

    #[test]
    fn this_process_is_known() {
        let families = sample(start_seconds());
        let names: Vec<&str> = families.iter().map(MetricFamily::name).collect();
        assert_eq!(names.len(), 9, "{names:?}");
        let value = |name: &str| {
            let family = families.iter().find(|family| family.name() == name);
            family.map(|family| family.get_metric()[0].get_gauge().get_value())
        };
        assert!(value("process_resident_memory_bytes") > Some(0.0));
        assert!(value("process_open_fds") >= Some(3.0));
        assert!(value("process_start_time_seconds") > Some(1.5e9));
    }
}
