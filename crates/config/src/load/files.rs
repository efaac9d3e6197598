//! Files as loading needs them: the trait the caller implements, and the order of drop-ins.

use std::io;
use std::path::{Path, PathBuf};

use crate::kubelet_configuration::clean_path;

/// The few things loading asks of a file system.
pub trait Files {
    /// The directory that relative names start at.
    fn current_dir(&self) -> io::Result<PathBuf>;

    fn read(&self, file: &Path) -> io::Result<Vec<u8>>;

    /// Whether the name itself is a directory; a link to one is not.
    fn is_dir(&self, path: &Path) -> io::Result<bool>;

    /// The names in a directory, in any order.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
}

/// The drop-in files below a directory in the order they are applied: lexical per directory, descending on the way.
///
/// A link is taken for a file and read through, so a link to a directory, even the top one, brings nothing.
pub(super) fn drop_in_files(files: &dyn Files, root: &Path) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let context = |error| (path.clone(), error);
        if !files.is_dir(&path).map_err(context)? {
            if path
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().ends_with(b".conf"))
            {
                found.push(path);
            }
            continue;
        }
        let mut names = files.list(&path).map_err(context)?;
        names.sort_unstable();
        pending.extend(names.into_iter().rev().map(|name| path.join(name)));
    }
    Ok(found)
}

/// The absolute and lexically clean form of a name.
pub(super) fn absolute(files: &dyn Files, name: &Path) -> io::Result<PathBuf> {
    let path = if name.is_absolute() {
        name.to_owned()
    } else {
        files.current_dir()?.join(name)
    };
    Ok(PathBuf::from(clean_path(&path.to_string_lossy())))
}
