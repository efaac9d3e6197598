//! The real file system, for loading the settings.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rubelet_config::load::Files;

/// The machine's files.
pub(crate) struct HostFiles;

impl Files for HostFiles {
    fn current_dir(&self) -> io::Result<PathBuf> {
        std::env::current_dir()
    }

    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        fs::read(file)
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        Ok(fs::symlink_metadata(path)?.is_dir())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        fs::read_dir(directory)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }
}
