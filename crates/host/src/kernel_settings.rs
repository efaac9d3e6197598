//! The kernel's settings that a node of pods needs, swap, and how late the kernel kills rubelet itself.
//!
//! Owns reading and writing them. The program decides what a wrong setting means.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Upstream's values: memory may be overcommitted, running out of it kills a process and does not panic, a panic reboots the
/// machine, and root has room for the keys of many containers.
const WANTED: [(&str, i64); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];
/// Kernels from here on can keep a tmpfs out of the swap.
const TMPFS_NOSWAP: (u32, u32) = (6, 4);

#[derive(Debug, Error)]
pub enum KernelSettingError {
    #[error("{name}: cannot be read")]
    Unreadable {
        name: String,
        #[source]
        source: io::Error,
    },
    #[error("{name}: is {found} and has to be {wanted}; protectKernelDefaults keeps rubelet from setting it")]
    Protected {
        name: String,
        found: String,
        wanted: i64,
    },
    #[error("{name}: is {found} and cannot be set to {wanted}")]
    Unwritable {
        name: String,
        found: String,
        wanted: i64,
        #[source]
        source: io::Error,
    },
}

/// Sets every setting to its wanted value, or with `protect` only checks it.
///
/// # Errors
/// The first setting that does not have its wanted value.
pub fn settle(protect: bool) -> Result<(), KernelSettingError> {
    settle_below(Path::new("/proc/sys"), protect)
}

fn settle_below(root: &Path, protect: bool) -> Result<(), KernelSettingError> {
    for (name, wanted) in WANTED {
        let path = root.join(name);
        let name = name.replace('/', ".");
        let found = match fs::read_to_string(&path) {
            Ok(text) => text.trim().to_owned(),
            Err(source) => return Err(KernelSettingError::Unreadable { name, source }),
        };
        if found == wanted.to_string() {
            continue;
        }
        if protect {
            return Err(KernelSettingError::Protected { name, found, wanted });
        }
        tracing::info!(name, found, wanted, "A kernel setting is changed");
        fs::write(&path, wanted.to_string()).map_err(|source| KernelSettingError::Unwritable {
            name,
            found,
            wanted,
            source,
        })?;
    }
    Ok(())
}

/// Whether rubelet runs in a user namespace, where root may not change the kernel's settings.
#[must_use]
pub fn is_in_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let fields: Vec<&str> = map.split_whitespace().collect();
    !fields.is_empty() && fields != ["0", "0", "4294967295"]
}

/// Whether the machine swaps. A kernel without swap has no list of it.
#[must_use]
pub fn is_swap_on() -> bool {
    has_swap(&fs::read_to_string("/proc/swaps").unwrap_or_default())
}

/// The first line is the headings.
fn has_swap(swaps: &str) -> bool {
    swaps.lines().skip(1).any(|line| !line.trim().is_empty())
}

/// Whether a volume in memory can be kept from the swap, by the kernel's release such as `6.1.0-38-amd64`.
#[must_use]
pub fn keeps_tmpfs_from_swap(release: &str) -> bool {
    let mut numbers = release
        .split(|letter: char| !letter.is_ascii_digit())
        .map(|digits| digits.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= TMPFS_NOSWAP
}

/// Sets how late the kernel kills this process when memory runs out.
///
/// # Errors
/// When the kernel refuses: lowering it takes `CAP_SYS_RESOURCE`.
pub fn adjust_own_oom_score(adjustment: i32) -> io::Result<()> {
    let path = PathBuf::from("/proc/self/oom_score_adj");
    let wanted = adjustment.to_string();
    if fs::read_to_string(&path)?.trim() == wanted {
        return Ok(());
    }
    fs::write(path, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(overcommit: &str, protect: bool) -> (Result<(), String>, String) {
        let root = tempfile::tempdir().unwrap();
        for (name, wanted) in WANTED {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{wanted}\n")).unwrap();
        }
        let path = root.path().join("vm/overcommit_memory");
        fs::write(&path, overcommit).unwrap();
        let settled = settle_below(root.path(), protect).map_err(|error| error.to_string());
        (settled, fs::read_to_string(path).unwrap())
    }

    #[test]
    fn settings_are_brought_to_what_they_should_be() {
        assert_eq!(check("1\n", true), (Ok(()), "1\n".to_owned()));
        assert_eq!(check("0\n", false), (Ok(()), "1".to_owned()));
        let (settled, value) = check("0\n", true);
        let problem = settled.unwrap_err();
        assert!(
            problem.starts_with("vm.overcommit_memory: is 0 and has to be 1"),
            "{problem}"
        );
        assert_eq!(value, "0\n", "a protected setting is left alone");
    }

    #[test]
    fn swap_is_on_when_it_is_listed() {
        let headings = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert!(!has_swap(""));
        assert!(!has_swap(headings));
        assert!(has_swap(&format!("{headings}/dev/vdb partition 65532 0 -2\n")));
    }

    #[test]
    fn kernels_keep_tmpfs_from_swap_since_6_4() {
        for (release, expected) in [
            ("6.1.0-38-amd64", false),
            ("6.4.0", true),
            ("10.0", true),
            ("5.15.0-rc1", false),
            ("odd", false),
        ] {
            assert_eq!(keeps_tmpfs_from_swap(release), expected, "{release}");
        }
    }
}
