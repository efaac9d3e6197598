//! One layer of an image: paths with their kind, mode and owner, in memory or on the host until the layer is written.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// Files, directories and links, by path without a leading slash.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    entries: BTreeMap<String, Entry>,
    owner: (u32, u32),
}

#[derive(Clone, Debug)]
struct Entry {
    kind: Kind,
    mode: u32,
    owner: (u32, u32),
}

#[derive(Clone, Debug)]
enum Kind {
    Directory,
    Bytes(Vec<u8>),
    HostFile(PathBuf),
    Symlink(String),
    HardLink(String),
}

impl Layer {
    /// An empty layer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Who owns the entries that are added from here on; root at first.
    #[must_use]
    pub fn owned_by(mut self, uid: u32, gid: u32) -> Self {
        self.owner = (uid, gid);
        self
    }

    /// A directory; the mode may hold the sticky and set-id bits.
    #[must_use]
    pub fn directory(self, path: &str, mode: u32) -> Self {
        self.with(path, Kind::Directory, mode)
    }

    /// A file with this content; the mode may hold set-id bits.
    #[must_use]
    pub fn file(self, path: &str, content: impl Into<Vec<u8>>, mode: u32) -> Self {
        self.with(path, Kind::Bytes(content.into()), mode)
    }

    /// A file with the content of one of this machine's, read when the layer is written.
    #[must_use]
    pub fn host_file(self, path: &str, source: &Path, mode: u32) -> Self {
        self.with(path, Kind::HostFile(source.to_owned()), mode)
    }

    /// A symbolic link.
    #[must_use]
    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.with(path, Kind::Symlink(target.to_owned()), 0o777)
    }

    /// A hard link to an entry of this layer whose path sorts before it.
    #[must_use]
    pub fn hard_link(self, path: &str, target: &str) -> Self {
        let target = target.trim_start_matches('/').to_owned();
        self.with(path, Kind::HardLink(target), 0o755)
    }

    fn with(mut self, path: &str, kind: Kind, mode: u32) -> Self {
        let path = path.trim_matches('/').to_owned();
        let mut parent = String::new();
        for part in path
            .split('/')
            .rev()
            .skip(1)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            parent = if parent.is_empty() {
                part.to_owned()
            } else {
                format!("{parent}/{part}")
            };
            self.entries.entry(parent.clone()).or_insert(Entry {
                kind: Kind::Directory,
                mode: 0o755,
                owner: (0, 0),
            });
        }
        let owner = self.owner;
        self.entries.insert(path, Entry { kind, mode, owner });
        self
    }

    pub(super) fn fingerprint(&self, hash: &mut Sha256) -> Result<()> {
        for (path, entry) in &self.entries {
            let kind = match &entry.kind {
                Kind::Directory => "directory".to_owned(),
                Kind::Bytes(bytes) => super::sha256(bytes),
                Kind::HostFile(source) => {
                    let about =
                        fs::metadata(source).with_context(|| format!("look at {}", source.display()))?;
                    format!(
                        "{source:?} {} {} {}",
                        about.len(),
                        about.mtime(),
                        about.mtime_nsec()
                    )
                }
                Kind::Symlink(target) => format!("symlink {target}"),
                Kind::HardLink(target) => format!("link {target}"),
            };
            hash.update(format!("{path:?} {:o} {:?} {kind}\n", entry.mode, entry.owner));
        }
        hash.update("end of layer\n");
        Ok(())
    }

    /// The layer as an uncompressed tar.
    pub(super) fn tar(&self) -> Result<Vec<u8>> {
        let mut tar = Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            append(&mut tar, path, entry).with_context(|| format!("add {path} to a layer"))?;
        }
        tar.into_inner().context("finish a layer")
    }
}

fn append(tar: &mut Builder<Vec<u8>>, path: &str, entry: &Entry) -> Result<()> {
    let mut header = Header::new_gnu();
    header.set_mode(entry.mode);
    header.set_uid(entry.owner.0.into());
    header.set_gid(entry.owner.1.into());
    header.set_mtime(0);
    header.set_size(0);
    match &entry.kind {
        Kind::Directory => {
            header.set_entry_type(EntryType::Directory);
            tar.append_data(&mut header, format!("{path}/"), std::io::empty())?;
        }
        Kind::Bytes(bytes) => {
            header.set_size(bytes.len() as u64);
            tar.append_data(&mut header, path, bytes.as_slice())?;
        }
        Kind::HostFile(source) => {
            let bytes = fs::read(source).with_context(|| format!("read {}", source.display()))?;
            header.set_size(bytes.len() as u64);
            tar.append_data(&mut header, path, bytes.as_slice())?;
        }
        Kind::Symlink(target) => {
            header.set_entry_type(EntryType::Symlink);
            tar.append_link(&mut header, path, target)?;
        }
        Kind::HardLink(target) => {
            header.set_entry_type(EntryType::Link);
            tar.append_link(&mut header, path, target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_keeps_kind_mode_owner_and_content() {
        let layer = Layer::new()
            .file("/usr/bin/su", b"program".to_vec(), 0o4755)
            .owned_by(1000, 50000)
            .file("home/note", b"mine".to_vec(), 0o640)
            .symlink("bin", "usr/bin")
            .hard_link("usr/bin/sudo", "/usr/bin/su")
            .directory("tmp", 0o1777);
        let bytes = layer.tar().unwrap();
        let mut seen = Vec::new();
        for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = String::new();
            std::io::Read::read_to_string(&mut entry, &mut content).unwrap();
            let header = entry.header();
            let link = entry
                .link_name()
                .unwrap()
                .map(|link| format!(" -> {}", link.display()))
                .unwrap_or_default();
            let (uid, gid) = (header.uid().unwrap(), header.gid().unwrap());
            let path = entry.path().unwrap().display().to_string();
            seen.push(format!(
                "{path}{link} {:o} {uid}:{gid} {content}",
                header.mode().unwrap()
            ));
        }
        assert_eq!(
            seen,
            [
                "bin -> usr/bin 777 1000:50000 ",
                "home/ 755 0:0 ",
                "home/note 640 1000:50000 mine",
                "tmp/ 1777 1000:50000 ",
                "usr/ 755 0:0 ",
                "usr/bin/ 755 0:0 ",
                "usr/bin/su 4755 0:0 program",
                "usr/bin/sudo -> usr/bin/su 755 1000:50000 ",
            ]
        );
        assert_eq!(bytes, layer.tar().unwrap(), "the same layer is the same bytes");
    }

    #[test]
    fn a_directory_given_by_hand_keeps_its_mode() {
        let bytes = Layer::new()
            .directory("tmp", 0o1777)
            .file("tmp/x", b"".to_vec(), 0o644)
            .tar()
            .unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mode = archive
            .entries()
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .header()
            .mode()
            .unwrap();
        assert_eq!(mode, 0o1777);
    }
}
