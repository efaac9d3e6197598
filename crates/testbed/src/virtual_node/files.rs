//! File trees that go into a guest: copied with fixed modes, so that neither the checkout's umask nor its owner shows there.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Copies a file or a tree: directories 0755, files 0755 or 0644 as they are executable or not, links as links.
pub(super) fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let problem = || format!("copy {} to {}", from.display(), to.display());
    let kind = fs::symlink_metadata(from).with_context(problem)?;
    if kind.is_symlink() {
        return symlink(fs::read_link(from)?, to).with_context(problem);
    }
    if kind.is_dir() {
        fs::create_dir_all(to).with_context(problem)?;
        fs::set_permissions(to, Permissions::from_mode(0o755)).with_context(problem)?;
        for name in sorted_names(from)? {
            copy_tree(&from.join(&name), &to.join(&name))?;
        }
        return Ok(());
    }
    fs::copy(from, to).with_context(problem)?;
    fs::set_permissions(to, Permissions::from_mode(file_mode(&kind))).with_context(problem)
}

/// Every file below `dir` with the mode `copy_tree` gives it, as paths relative to `dir`, in a fixed order.
pub(super) fn list_files(dir: &Path) -> Result<Vec<(PathBuf, u32)>> {
    let mut files = Vec::new();
    let mut rest = vec![PathBuf::new()];
    while let Some(relative) = rest.pop() {
        let kind = fs::symlink_metadata(dir.join(&relative))?;
        if kind.is_dir() {
            rest.extend(
                sorted_names(&dir.join(&relative))?
                    .into_iter()
                    .map(|name| relative.join(name)),
            );
        } else {
            files.push((relative, file_mode(&kind)));
        }
    }
    files.sort();
    Ok(files)
}

/// The bytes all files below a path take.
pub(super) fn total_bytes(path: &Path) -> Result<u64> {
    let mut sum = 0;
    for (file, _) in list_files(path)? {
        sum += fs::symlink_metadata(path.join(file))?.len();
    }
    Ok(sum)
}

fn file_mode(metadata: &fs::Metadata) -> u32 {
    if metadata.permissions().mode() & 0o111 == 0 {
        0o644
    } else {
        0o755
    }
}

fn sorted_names(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    let mut names = entries
        .map(|entry| Ok(entry?.file_name().into()))
        .collect::<Result<Vec<PathBuf>>>()?;
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_copied_with_fixed_modes() {
        let from = tempfile::tempdir().unwrap();
        let to = tempfile::tempdir().unwrap();
        fs::create_dir_all(from.path().join("a/b")).unwrap();
        fs::write(from.path().join("a/b/data"), "12345").unwrap();
        fs::set_permissions(from.path().join("a/b/data"), Permissions::from_mode(0o600)).unwrap();
        fs::write(from.path().join("tool"), "x").unwrap();
        fs::set_permissions(from.path().join("tool"), Permissions::from_mode(0o700)).unwrap();
        symlink("tool", from.path().join("link")).unwrap();
        copy_tree(from.path(), &to.path().join("copy")).unwrap();
        let files = list_files(&to.path().join("copy")).unwrap();
        let names: Vec<_> = files
            .iter()
            .map(|(path, mode)| (path.to_str().unwrap(), mode & 0o777))
            .collect();
        assert_eq!(names, [("a/b/data", 0o644), ("link", 0o755), ("tool", 0o755)]);
        assert_eq!(
            fs::read_link(to.path().join("copy/link")).unwrap(),
            Path::new("tool")
        );
        assert_eq!(total_bytes(&from.path().join("a")).unwrap(), 5);
    }
}
