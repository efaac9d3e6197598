//! The key of the first certificate, kept until that is there.
//!
//! Owns `kubelet-client.key.tmp`. With the key, the request of an earlier run is found again by its name, so that the approver sees
//! one request and not one for each restart.

use std::path::{Path, PathBuf};

use rubelet_ports::{FileError, FileReader, FileWriter};

use crate::CertificatePorts;
use crate::request::PrivateKey;

const KEY_LIMIT_BYTES: u64 = 1 << 16;

pub(crate) struct KeptKey {
    path: PathBuf,
    reader: std::sync::Arc<dyn FileReader>,
    writer: std::sync::Arc<dyn FileWriter>,
}

impl KeptKey {
    pub(crate) fn new(ports: &CertificatePorts, directory: &Path) -> Self {
        Self {
            path: directory.join("kubelet-client.key.tmp"),
            reader: ports.reader.clone(),
            writer: ports.writer.clone(),
        }
    }

    /// The key of an earlier try, or a new one.
    pub(crate) async fn load_or_make(&self) -> Result<PrivateKey, String> {
        match self.reader.read(&self.path, KEY_LIMIT_BYTES).await {
            Ok(text) => match PrivateKey::from_pem(&text) {
                Some(key) => return Ok(key),
                None => {
                    tracing::warn!(path = %self.path.display(), "The kept key cannot be used; a new one takes its place");
                }
            },
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.to_string()),
        }
        let key = PrivateKey::generate()?;
        self.keep(&key).await.map_err(|error| error.to_string())?;
        Ok(key)
    }

    async fn keep(&self, key: &PrivateKey) -> Result<(), FileError> {
        if let Some(directory) = self.path.parent() {
            self.writer.create_directory(directory, 0o755).await?;
        }
        self.writer.write(&self.path, &key.to_pem(), 0o600).await
    }

    /// Removes the key, when its certificate is issued or its request was refused.
    pub(crate) async fn forget(&self) {
        if let Err(error) = self.writer.remove_file(&self.path).await {
            tracing::warn!(%error, "A key that is no longer needed cannot be removed");
        }
    }
}
