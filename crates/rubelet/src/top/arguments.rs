//! The arguments of `rubelet top`.

use std::path::PathBuf;
use std::time::Duration;

use super::figures::SortKey;

pub(super) const USAGE: &str = "\
usage: rubelet top [POD] [--containers] [--sort KEY] [--interval SECONDS] [--once] [-o json] [--root-dir DIR]

Shows what the node, its pods and their containers use: processor time, memory (the working set), disk (writable
layers, logs and volumes on the node's disk) and, where the kernel measures it, the share of the last ten seconds
in which processes waited for processors, memory and disks (PSI).
POD is a name, namespace/name or uid; of a static pod also the name in its manifest.
--containers shows the containers below each pod.
--sort is cpu (the default), memory, disk, psi or name.
--interval is the time between two refreshes, 2 seconds by default.
--once prints one table, as it is done where the output is no terminal; it takes one interval to measure.
-o json prints one summary, in the form of the kubelet's /stats/summary.
--root-dir is the one that rubelet runs with, /var/lib/kubelet by default.
Keys: q ends it; c, m, d, p and n sort; t shows or hides containers.";

const ROOT_DIR: &str = "/var/lib/kubelet";
const INTERVAL: Duration = Duration::from_secs(2);
/// An hour.
const LONGEST_SECONDS: u64 = 3600;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arguments {
    pub(super) pod: Option<String>,
    pub(super) shows_help: bool,
    pub(super) shows_containers: bool,
    pub(super) sort: SortKey,
    pub(super) interval: Duration,
    pub(super) is_once: bool,
    pub(super) json: bool,
    pub(super) root_dir: PathBuf,
}

impl Default for Arguments {
    fn default() -> Self {
        Self {
            pod: None,
            shows_help: false,
            shows_containers: false,
            sort: SortKey::Cpu,
            interval: INTERVAL,
            is_once: false,
            json: false,
            root_dir: PathBuf::from(ROOT_DIR),
        }
    }
}

impl Arguments {
    pub(super) fn parse(words: &[String]) -> Result<Self, String> {
        let mut arguments = Self::default();
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let (flag, attached) = match word.split_once('=') {
                Some((flag, value)) if flag.starts_with("--") => (flag, Some(value)),
                _ => (word, None),
            };
            let mut value = || {
                attached
                    .or_else(|| words.next())
                    .ok_or_else(|| format!("{flag} needs a value"))
            };
            match flag {
                "-h" | "--help" if attached.is_none() => arguments.shows_help = true,
                "--containers" if attached.is_none() => arguments.shows_containers = true,
                "--once" if attached.is_none() => arguments.is_once = true,
                "--sort" => arguments.sort = sort_key(value()?)?,
                "--interval" => arguments.interval = interval(value()?)?,
                "-o" | "--output" => match value()? {
                    "json" => arguments.json = true,
                    other => return Err(format!("{other:?} is no output format: json is the only one")),
                },
                "--root-dir" => arguments.root_dir = PathBuf::from(value()?),
                flag if flag.starts_with('-') => return Err(format!("{word:?} is not known")),
                _ if arguments.pod.is_some() => return Err(format!("{word:?}: one pod at a time")),
                _ => arguments.pod = Some(word.to_owned()),
            }
        }
        Ok(arguments)
    }
}

fn sort_key(name: &str) -> Result<SortKey, String> {
    SortKey::ALL
        .into_iter()
        .find(|key| key.name() == name)
        .ok_or_else(|| format!("--sort: {name:?} is not known; it is cpu, memory, disk, psi or name"))
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.strip_suffix('s').unwrap_or(text).parse().ok();
    let seconds = seconds.filter(|seconds| (1..=LONGEST_SECONDS).contains(seconds));
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| format!("--interval: {text:?} must be between 1 and {LONGEST_SECONDS} seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood() {
        let check = |line: &str, expected: Result<Arguments, &str>| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(
                Arguments::parse(&words),
                expected.map_err(str::to_owned),
                "{line}"
            );
        };
        check("", Ok(Arguments::default()));
        check(
            "web --containers --sort memory --interval=5 --root-dir /x",
            Ok(Arguments {
                pod: Some("web".to_owned()),
                shows_containers: true,
                sort: SortKey::Memory,
                interval: Duration::from_secs(5),
                root_dir: PathBuf::from("/x"),
                ..Arguments::default()
            }),
        );
        check(
            "--once -o json --sort=psi --interval 3s",
            Ok(Arguments {
                is_once: true,
                json: true,
                sort: SortKey::Pressure,
                interval: Duration::from_secs(3),
                ..Arguments::default()
            }),
        );
        check(
            "-h",
            Ok(Arguments {
                shows_help: true,
                ..Arguments::default()
            }),
        );
        check("a b", Err("\"b\": one pod at a time"));
        check(
            "--sort size",
            Err("--sort: \"size\" is not known; it is cpu, memory, disk, psi or name"),
        );
        for wrong in ["0", "3601", "-1", "x", "1m"] {
            let error = format!("--interval: {wrong:?} must be between 1 and 3600 seconds");
            check(&format!("--interval {wrong}"), Err(&error));
        }
        check(
            "-o yaml",
            Err("\"yaml\" is no output format: json is the only one"),
        );
        check("--sort", Err("--sort needs a value"));
        check("--once=yes", Err("\"--once=yes\" is not known"));
        check("--config x", Err("\"--config\" is not known"));
    }
}
