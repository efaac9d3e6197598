//! Files in memory, with links and with faults.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use rubelet_ports::{
    DirectoryEntry, FileError, FileErrorKind, FileKind, FileReader, FileWriter, WatchStream,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    File { content: Vec<u8>, mode: u32 },
    Link(PathBuf),
}

#[derive(Clone, Default)]
pub(crate) struct Files {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    entries: BTreeMap<PathBuf, Entry>,
    is_full: bool,
}

impl Files {
    pub(crate) fn put(&self, path: &str, content: &[u8]) {
        let entry = Entry::File {
            content: content.to_vec(),
            mode: 0o644,
        };
        self.inner.lock().unwrap().entries.insert(path.into(), entry);
    }

    pub(crate) fn set_full(&self, is_full: bool) {
        self.inner.lock().unwrap().is_full = is_full;
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let inner = self.inner.lock().unwrap();
        inner
            .entries
            .keys()
            .map(|path| path.display().to_string())
            .collect()
    }

    pub(crate) fn entry(&self, path: &str) -> Option<Entry> {
        self.inner.lock().unwrap().entries.get(Path::new(path)).cloned()
    }

    /// Through links.
    pub(crate) fn text(&self, path: &str) -> String {
        String::from_utf8(self.content(Path::new(path)).unwrap()).unwrap()
    }

    fn content(&self, path: &Path) -> Result<Vec<u8>, FileError> {
        let inner = self.inner.lock().unwrap();
        let mut path = path.to_owned();
        for _ in 0..8 {
            match inner.entries.get(&path) {
                Some(Entry::File { content, .. }) => return Ok(content.clone()),
                Some(Entry::Link(target)) => path.clone_from(target),
                None => break,
            }
        }
        Err(error(&path, FileErrorKind::NotFound, "no such file"))
    }

    fn change(&self, path: &Path, entry: Option<Entry>) -> Result<(), FileError> {
        let mut inner = self.inner.lock().unwrap();
        if inner.is_full && entry.is_some() {
            return Err(error(path, FileErrorKind::NoSpace, "no space left on device"));
        }
        match entry {
            Some(entry) => inner.entries.insert(path.to_owned(), entry),
            None => inner.entries.remove(path),
        };
        Ok(())
    }
}

fn error(path: &Path, kind: FileErrorKind, message: &str) -> FileError {
    FileError {
        path: path.to_owned(),
        kind,
        message: message.to_owned(),
    }
}

#[async_trait]
impl FileReader for Files {
    async fn read(&self, path: &Path, _: u64) -> Result<Vec<u8>, FileError> {
        self.content(path)
    }

    async fn read_within(&self, _: &Path, path: &Path, _: u64) -> Result<Vec<u8>, FileError> {
        self.content(path)
    }

    async fn read_end(&self, path: &Path, _: u64) -> Result<Vec<u8>, FileError> {
        self.content(path)
    }

    async fn list(&self, directory: &Path) -> Result<Vec<DirectoryEntry>, FileError> {
        let inner = self.inner.lock().unwrap();
        let entries = inner.entries.iter();
        let entries = entries.filter(|(path, _)| path.parent() == Some(directory));
        Ok(entries
            .map(|(path, entry)| DirectoryEntry {
                name: path.file_name().unwrap().to_str().unwrap().to_owned(),
                kind: match entry {
                    Entry::File { .. } => FileKind::File,
                    Entry::Link(_) => FileKind::Symlink,
                },
            })
            .collect())
    }

    async fn kind(&self, path: &Path) -> Result<FileKind, FileError> {
        self.content(path).map(|_| FileKind::File)
    }

    fn watch(&self, _: &Path) -> WatchStream {
        Box::pin(futures_util::stream::pending())
    }
}

#[async_trait]
impl FileWriter for Files {
    async fn write(&self, path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
        let content = content.to_vec();
        self.change(path, Some(Entry::File { content, mode }))
    }

    async fn write_in_place(&self, path: &Path, content: &[u8], mode: u32) -> Result<(), FileError> {
        self.write(path, content, mode).await
    }

    async fn create_directory(&self, _: &Path, _: u32) -> Result<(), FileError> {
        Ok(())
    }

    async fn link(&self, target: &Path, link: &Path) -> Result<(), FileError> {
        self.change(link, Some(Entry::Link(target.to_owned())))
    }

    async fn remove_file(&self, path: &Path) -> Result<(), FileError> {
        self.change(path, None)
    }

    async fn remove_tree(&self, path: &Path) -> Result<(), FileError> {
        self.change(path, None)
    }
}
