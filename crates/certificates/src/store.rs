//! The files of one certificate, laid out as upstream's.
//!
//! Owns `<prefix>-<time>.pem` (certificates, then the key), the link `<prefix>-current.pem` to the newest, and what is done with a
//! malformed file. The caller decides whether a pair can be used.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::jiff;
use pem::{EncodeConfig, LineEnding, Pem};
use rubelet_model::Timestamp;
use rubelet_ports::{FileError, FileErrorKind, FileKind, FileReader, FileWriter};

use crate::wanted::Purpose;
use crate::{CertificatePorts, PemPair};

const FILE_LIMIT_BYTES: u64 = 1 << 20;
const SECRET_MODE: u32 = 0o600;
const DIRECTORY_MODE: u32 = 0o755;

pub(crate) struct Store {
    reader: Arc<dyn FileReader>,
    writer: Arc<dyn FileWriter>,
    directory: PathBuf,
    purpose: Purpose,
    /// Used while there is no current pair.
    files: Option<(PathBuf, PathBuf)>,
}

/// What the files hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) pair: PemPair,
    pub(crate) path: PathBuf,
    /// Whether rubelet may set the file aside when it is malformed.
    pub(crate) is_ours: bool,
}

impl Store {
    pub(crate) fn new(
        ports: &CertificatePorts,
        directory: PathBuf,
        purpose: Purpose,
        files: Option<(PathBuf, PathBuf)>,
    ) -> Self {
        Self {
            reader: ports.reader.clone(),
            writer: ports.writer.clone(),
            directory,
            purpose,
            files,
        }
    }

    pub(crate) fn current_path(directory: &Path, purpose: Purpose) -> PathBuf {
        directory.join(format!("{}-current.pem", purpose.file_prefix()))
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    fn current(&self) -> PathBuf {
        Self::current_path(&self.directory, self.purpose)
    }

    fn named(&self, end: &str) -> PathBuf {
        self.directory
            .join(format!("{}{end}", self.purpose.file_prefix()))
    }

    /// The current pair, or the configured files while there is none.
    pub(crate) async fn read(&self) -> Result<Option<Stored>, FileError> {
        // Upstream, killed between two steps, leaves the newest under the second name only.
        for path in [self.current(), self.named("-updated.pem")] {
            if let Some(text) = self.read_file(&path).await? {
                let pair = PemPair {
                    chain_pem: text.clone(),
                    key_pem: text,
                };
                return Ok(Some(Stored {
                    pair,
                    path,
                    is_ours: true,
                }));
            }
        }
        let old = (self.named(".crt"), self.named(".key"));
        for (certificate, key) in self.files.iter().chain([&old]) {
            let (Some(chain_pem), Some(key_pem)) =
                (self.read_file(certificate).await?, self.read_file(key).await?)
            else {
                continue;
            };
            return Ok(Some(Stored {
                pair: PemPair { chain_pem, key_pem },
                path: certificate.clone(),
                is_ours: false,
            }));
        }
        Ok(None)
    }

    async fn read_file(&self, path: &Path) -> Result<Option<Vec<u8>>, FileError> {
        match self.reader.read(path, FILE_LIMIT_BYTES).await {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes this pair the current one: the file first, then the link, so that the link never leads to half a file. Returns what
    /// [`Self::read`] finds from now on.
    pub(crate) async fn update(&self, pair: &PemPair, now: Timestamp) -> Result<Stored, FileError> {
        self.writer
            .create_directory(&self.directory, DIRECTORY_MODE)
            .await?;
        let content = one_file(pair).ok_or_else(|| FileError {
            path: self.current(),
            kind: FileErrorKind::Other,
            message: "the pair cannot be written as one file".to_owned(),
        })?;
        let path = self.named(&format!("-{}.pem", time_in_name(now)));
        self.writer.write(&path, &content, SECRET_MODE).await?;
        let current = self.current();
        if self.is_plain_file(&current).await? {
            self.copy_aside(&current, "replaced").await?;
        }
        self.writer.link(&path, &current).await?;
        self.writer.remove_file(&self.named("-updated.pem")).await?;
        Ok(Stored {
            pair: PemPair {
                chain_pem: content.clone(),
                key_pem: content,
            },
            path: current,
            is_ours: true,
        })
    }

    /// Renames a malformed file, so that its content stays for inspection. Returns the new path.
    pub(crate) async fn set_aside(&self, stored: &Stored) -> Result<PathBuf, FileError> {
        let kept = self.copy_aside(&stored.path, "corrupt").await?;
        self.writer.remove_file(&stored.path).await?;
        Ok(kept)
    }

    async fn copy_aside(&self, path: &Path, why: &str) -> Result<PathBuf, FileError> {
        let content = self.reader.read(path, FILE_LIMIT_BYTES).await?;
        let mut kept = path.as_os_str().to_owned();
        kept.push(format!(".{why}"));
        let kept = PathBuf::from(kept);
        self.writer.write(&kept, &content, SECRET_MODE).await?;
        Ok(kept)
    }

    /// Whether there is a plain file where the link belongs.
    async fn is_plain_file(&self, path: &Path) -> Result<bool, FileError> {
        let entries = self.reader.list(&self.directory).await?;
        let name = path.file_name().and_then(|name| name.to_str());
        let entry = entries.iter().find(|entry| Some(entry.name.as_str()) == name);
        Ok(entry.is_some_and(|entry| entry.kind == FileKind::File))
    }
}

/// The certificates, then the key.
fn one_file(pair: &PemPair) -> Option<Vec<u8>> {
    let chain = pem::parse_many(&pair.chain_pem).ok()?;
    let key = pem::parse_many(&pair.key_pem).ok()?;
    let key = key
        .into_iter()
        .find(|block| block.tag().ends_with("PRIVATE KEY"))?;
    let mut blocks: Vec<Pem> = chain
        .into_iter()
        .filter(|block| block.tag() == "CERTIFICATE")
        .collect();
    blocks.push(key);
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    let text: String = blocks
        .iter()
        .map(|block| pem::encode_config(block, config))
        .collect();
    Some(text.into_bytes())
}

fn time_in_name(now: Timestamp) -> String {
    let now = jiff::Timestamp::from_second(now.unix_seconds()).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    now.strftime("%Y-%m-%d-%H-%M-%S").to_string()
}
