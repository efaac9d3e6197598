//! Files of volumes in memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use rubelet_ports::{DirectoryEntry, FileError, FileErrorKind, FileKind, FileReader, WatchStream};

pub(crate) const ROOT_DIR: &str = "/var/lib/kubelet";

#[derive(Clone, Debug)]
pub(crate) enum Content {
    Text(Vec<u8>),
    /// Reading never ends.
    Hangs,
}

#[derive(Clone, Default)]
pub(crate) struct VolumeFiles(Arc<Mutex<BTreeMap<PathBuf, Content>>>);

impl VolumeFiles {
    /// The file `token` of the pod's projected volume `v`.
    pub(crate) fn put_token(&self, uid: &str, content: Content) {
        let path = format!("{ROOT_DIR}/pods/{uid}/volumes/kubernetes.io~projected/v/token");
        self.0.lock().unwrap().insert(PathBuf::from(path), content);
    }
}

#[async_trait]
impl FileReader for VolumeFiles {
    async fn read(&self, _: &Path, _: u64) -> Result<Vec<u8>, FileError> {
        unreachable!("containers may have changed what volumes hold")
    }

    async fn read_within(
        &self,
        directory: &Path,
        path: &Path,
        limit_bytes: u64,
    ) -> Result<Vec<u8>, FileError> {
        let path = directory.join(path);
        let found = self.0.lock().unwrap().get(&path).cloned();
        let error = |kind: FileErrorKind| FileError {
            path,
            kind,
            message: format!("{kind:?}"),
        };
        match found {
            None => Err(error(FileErrorKind::NotFound)),
            Some(Content::Hangs) => std::future::pending().await,
            Some(Content::Text(text)) if text.len() as u64 > limit_bytes => {
                Err(error(FileErrorKind::TooLarge))
            }
            Some(Content::Text(text)) => Ok(text),
        }
    }

    async fn read_end(&self, _: &Path, _: u64) -> Result<Vec<u8>, FileError> {
        unreachable!("tokens are read as a whole")
    }

    async fn list(&self, _: &Path) -> Result<Vec<DirectoryEntry>, FileError> {
        unreachable!("the pod's spec names the files")
    }

    async fn kind(&self, _: &Path) -> Result<FileKind, FileError> {
        unreachable!("the pod's spec names the files")
    }

    fn watch(&self, _: &Path) -> WatchStream {
        unreachable!("tokens are read once")
    }
}
