//! Making cgroups and writing their files.
//!
//! Owns the system calls, each of which blocks for as long as the kernel wants. What is written was decided elsewhere.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use rubelet_model::cgroup::{CgroupValues, FilePlace, FileValue};
use rubelet_ports::{CgroupError, CgroupErrorKind};

use super::layout::{Hierarchy, Layout, directory};
use crate::cgroup::CgroupVersion;

const SUBTREE_CONTROL: &str = "cgroup.subtree_control";

/// Makes the cgroup in every tree, with those above it.
pub(super) fn make(layout: &Layout, path: &str) -> Result<(), CgroupError> {
    for hierarchy in &layout.hierarchies {
        let made = match layout.version {
            CgroupVersion::V1 if hierarchy.controllers.contains("cpuset") => make_cpuset(hierarchy, path),
            CgroupVersion::V1 => fs::create_dir_all(directory(&hierarchy.mount, path)),
            CgroupVersion::V2 => make_unified(hierarchy, path),
        };
        made.map_err(|error| {
            let place = directory(&hierarchy.mount, path);
            let message = format!("make {}: {error}", place.display());
            CgroupError::new(path, CgroupErrorKind::Other, message)
        })?;
    }
    Ok(())
}

fn make_one(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A new cpuset is empty, and nothing can run in an empty one: it begins as its parent is.
fn make_cpuset(hierarchy: &Hierarchy, path: &str) -> io::Result<()> {
    let mut current = hierarchy.mount.clone();
    for part in parts(path) {
        let parent = current.clone();
        current.push(part);
        make_one(&current)?;
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let own = fs::read_to_string(current.join(file))?;
            if own.trim().is_empty() {
                write(&current.join(file), fs::read_to_string(parent.join(file))?.trim())?;
            }
        }
    }
    Ok(())
}

/// A controller works in a cgroup only when every cgroup above it hands it down.
fn make_unified(hierarchy: &Hierarchy, path: &str) -> io::Result<()> {
    let mut current = hierarchy.mount.clone();
    for part in parts(path) {
        hand_down(hierarchy, &current);
        current.push(part);
        make_one(&current)?;
    }
    Ok(())
}

/// What cannot be handed down shows when its values are written.
fn hand_down(hierarchy: &Hierarchy, parent: &Path) {
    let file = parent.join(SUBTREE_CONTROL);
    let already = fs::read_to_string(&file).unwrap_or_default();
    let missing: Vec<String> = hierarchy
        .controllers
        .iter()
        .filter(|one| !already.split_whitespace().any(|name| name == one.as_str()))
        .map(|one| format!("+{one}"))
        .collect();
    if !missing.is_empty() && write(&file, &missing.join(" ")).is_err() {
        for one in missing {
            let _ = write(&file, &one);
        }
    }
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

/// The text of one file; `None` where there is no such file.
pub(super) fn read_file(
    layout: &Layout,
    path: &str,
    place: FilePlace,
) -> Result<Option<String>, CgroupError> {
    let Some(hierarchy) = layout.of(place.controller) else {
        return Ok(None);
    };
    let file = directory(&hierarchy.mount, path).join(place.file);
    match fs::read_to_string(&file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let message = format!("read {}: {error}", file.display());
            Err(CgroupError::new(path, CgroupErrorKind::Other, message))
        }
    }
}

/// Writes all values; the answer is what went wrong.
pub(super) fn write_values(layout: &Layout, cgroup: &CgroupValues) -> Vec<String> {
    // Some values are only taken after others (a shorter period after its quota), so that what failed gets a second try.
    let failed = cgroup
        .files
        .iter()
        .filter(|value| write_value(layout, &cgroup.path, value).is_err());
    let failed: Vec<&FileValue> = failed.collect();
    failed
        .into_iter()
        .filter_map(|value| write_value(layout, &cgroup.path, value).err())
        .collect()
}

fn write_value(layout: &Layout, path: &str, value: &FileValue) -> Result<(), String> {
    let Some(hierarchy) = layout.of(value.controller) else {
        // Machines without huge pages have no controller for them, and nothing to limit.
        return match value.controller {
            "hugetlb" => Ok(()),
            other => Err(format!(
                "the machine has no cgroup controller {other} for {}",
                value.file
            )),
        };
    };
    let file = directory(&hierarchy.mount, path).join(&value.file);
    match write(&file, &value.value) {
        Err(error) if error.kind() == ErrorKind::NotFound && value.is_optional => Ok(()),
        result => result.map_err(|error| format!("write {:?} to {}: {error}", value.value, file.display())),
    }
}

/// The kernel takes a value by one write into a file that exists.
pub(super) fn write(file: &Path, value: &str) -> io::Result<()> {
    let mut open = OpenOptions::new().write(true).open(file)?;
    open.write_all(value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(controller: &'static str, file: &str, value: &str) -> FileValue {
        FileValue {
            controller,
            file: file.to_owned(),
            value: value.to_owned(),
            is_optional: false,
        }
    }

    #[test]
    fn controllers_are_handed_down_to_the_leaf() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::unified(root.path(), "cpu memory");
        fs::create_dir(root.path().join("a")).unwrap();
        for place in ["", "a"] {
            fs::write(root.path().join(place).join(SUBTREE_CONTROL), "").unwrap();
        }
        make(&layout, "/a/b").unwrap();
        for place in ["", "a"] {
            let text = fs::read_to_string(root.path().join(place).join(SUBTREE_CONTROL)).unwrap();
            assert_eq!(text, "+cpu +memory", "{place:?}");
        }
        assert!(!root.path().join("a/b").join(SUBTREE_CONTROL).exists());
    }

    #[test]
    fn every_value_is_tried_and_what_failed_is_named() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::unified(root.path(), "cpu memory");
        fs::create_dir(root.path().join("a")).unwrap();
        fs::write(root.path().join("a/memory.max"), "").unwrap();
        let optional = FileValue {
            is_optional: true,
            ..value("cpu", "cpu.none", "1")
        };
        let cgroup = CgroupValues {
            path: "/a".to_owned(),
            files: vec![
                value("cpu", "cpu.weight", "1"),
                optional,
                value("hugetlb", "hugetlb.2MB.max", "0"),
                value("pids", "pids.max", "5"),
                value("memory", "memory.max", "7"),
            ],
            unit: None,
        };
        let problems = write_values(&layout, &cgroup);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("cpu.weight"), "{problems:?}");
        assert!(problems[1].contains("no cgroup controller pids"), "{problems:?}");
        assert_eq!(fs::read_to_string(root.path().join("a/memory.max")).unwrap(), "7");
    }
}
