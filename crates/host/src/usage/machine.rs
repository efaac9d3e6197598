//! Processors and memory modules, from the kernel's description of the machine.
//!
//! What it does not describe counts as not there.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rubelet_usage::machine::ProcessorPlace;
use rubelet_usage::{Dimms, MachineFigures, Processors};

const PROCESSORS: &str = "sys/devices/system/cpu";
const MEMORY_CONTROLLERS: &str = "sys/devices/system/edac/mc";

pub(super) fn figures_below(root: &Path) -> MachineFigures {
    let processors = numbered(&root.join(PROCESSORS), "cpu");
    let places: Vec<ProcessorPlace> = processors.iter().filter_map(|path| place(path)).collect();
    let controllers = numbered(&root.join(MEMORY_CONTROLLERS), "mc");
    let modules = controllers.iter().flat_map(|controller| {
        let mut modules = numbered(controller, "dimm");
        modules.extend(numbered(controller, "rank"));
        modules
    });
    let mut dimms: BTreeMap<String, Dimms> = BTreeMap::new();
    for module in modules {
        let (Some(kind), Some(mebibytes)) =
            (text(&module.join("dimm_mem_type")), number(&module.join("size")))
        else {
            continue;
        };
        let dimms = dimms.entry(kind).or_default();
        dimms.count += 1;
        dimms.bytes = dimms.bytes.saturating_add(mebibytes.saturating_mul(1 << 20));
    }
    MachineFigures {
        processors: Processors::of_places(&places),
        dimms,
    }
}

/// `None` for a processor that is switched off. The first one often has no switch.
fn place(processor: &Path) -> Option<ProcessorPlace> {
    if number(&processor.join("online")) == Some(0) {
        return None;
    }
    let part = |name: &str| number(&processor.join("topology").join(name));
    Some(ProcessorPlace {
        core: part("core_id"),
        socket: part("physical_package_id"),
        book: part("book_id"),
        drawer: part("drawer_id"),
    })
}

/// What is named by a word and a number.
fn numbered(directory: &Path, word: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_numbered = |path: &PathBuf| {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let number = name.strip_prefix(word).unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    paths.filter(is_numbered).collect()
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_and_modules_are_counted() {
        let root = tempfile::tempdir().unwrap();
        let files = [
            ("sys/devices/system/cpu/cpu0/topology/core_id", "0\n"),
            ("sys/devices/system/cpu/cpu0/topology/physical_package_id", "0\n"),
            ("sys/devices/system/cpu/cpu1/topology/core_id", "1\n"),
            ("sys/devices/system/cpu/cpu1/topology/physical_package_id", "0\n"),
            ("sys/devices/system/cpu/cpu1/online", "1\n"),
            ("sys/devices/system/cpu/cpu2/online", "0\n"),
            ("sys/devices/system/cpu/cpufreq/x", "\n"),
            (
                "sys/devices/system/edac/mc/mc0/dimm0/dimm_mem_type",
                "Unbuffered-DDR4\n",
            ),
            ("sys/devices/system/edac/mc/mc0/dimm0/size", "8192\n"),
            (
                "sys/devices/system/edac/mc/mc0/dimm1/dimm_mem_type",
                "Unbuffered-DDR4\n",
            ),
            ("sys/devices/system/edac/mc/mc0/dimm1/size", "8192\n"),
        ];
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let found = figures_below(root.path());
        let processors = Processors {
            logical: 2,
            cores: 2,
            sockets: 1,
            ..Processors::default()
        };
        assert_eq!(found.processors, processors);
        let dimms = Dimms {
            count: 2,
            bytes: 16 << 30,
        };
        assert_eq!(found.dimms["Unbuffered-DDR4"], dimms);
        assert_eq!(figures_below(Path::new("/nowhere")), MachineFigures::default());
    }
}
