//! An image as one file: an OCI layout in a tar, with the names in the form that `ctr images import` reads.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tar::{Builder, Header};

use super::{Image, sha256};
use crate::cache::made_once;

/// Part of every image's identity in the cache: raise it when the archive's layout changes.
pub(super) const FORMAT: u32 = 1;

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";

/// An image in a file.
#[derive(Clone, Debug)]
pub struct ImageArchive {
    path: PathBuf,
    names: Vec<String>,
    id: String,
    digest: String,
}

/// A piece of content by its digest.
pub(crate) struct Blob {
    pub(crate) digest: String,
    pub(crate) media_type: String,
    pub(crate) bytes: Vec<u8>,
}

impl ImageArchive {
    pub(super) fn cached(image: &Image) -> Result<Self> {
        let name = format!("{}.tar", image.fingerprint()?);
        Self::open(&made_once("images", &name, |out| write(image, out))?)
    }

    /// Writes the image to a file of the caller's choice.
    pub fn write(image: &Image, path: &Path) -> Result<Self> {
        write(image, path)?;
        Self::open(path)
    }

    /// An archive that exists; it must hold one image, under one or more names.
    pub fn open(path: &Path) -> Result<Self> {
        let mut files = small_files(path)?;
        let index = json_file(&mut files, "index.json")?;
        let manifests = index["manifests"]
            .as_array()
            .context("an index without manifests")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let digest = manifests
            .first()
            .map(|first| text(&first["digest"]))
            .context("an index with no image")?;
        ensure!(
            manifests
                .iter()
                .all(|manifest| manifest["digest"] == digest.as_str()),
            "{}: more than one image in the archive",
            path.display()
        );
        let manifest = json_file(&mut files, &blob_path(&digest))?;
        Ok(Self {
            path: path.to_owned(),
            names: manifests
                .iter()
                .map(|one| text(&one["annotations"]["io.containerd.image.name"]))
                .collect(),
            id: text(&manifest["config"]["digest"]),
            digest,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names that the image gets when it is imported.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The first name.
    pub fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// What the CRI calls the image's id: the digest of its configuration.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The digest of the manifest, as in `name@sha256:…`.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Everything that a registry must hold: layers and configuration first, the manifest last.
    pub(crate) fn blobs(&self) -> Result<Vec<Blob>> {
        let mut files = all_files(&self.path)?;
        let manifest_bytes = files
            .remove(&blob_path(&self.digest))
            .context("no manifest in the archive")?;
        let manifest: Value = serde_json::from_slice(&manifest_bytes)?;
        let layers = manifest["layers"]
            .as_array()
            .context("a manifest without layers")?;
        let mut blobs = Vec::new();
        for descriptor in layers.iter().chain([&manifest["config"]]) {
            let digest = descriptor["digest"]
                .as_str()
                .context("a descriptor without a digest")?
                .to_owned();
            // Two equal layers are one blob.
            if let Some(bytes) = files.remove(&blob_path(&digest)) {
                let media_type = descriptor["mediaType"].as_str().unwrap_or_default().to_owned();
                blobs.push(Blob {
                    digest,
                    media_type,
                    bytes,
                });
            }
        }
        let media_type = MANIFEST_TYPE.to_owned();
        blobs.push(Blob {
            digest: self.digest.clone(),
            media_type,
            bytes: manifest_bytes,
        });
        Ok(blobs)
    }
}

fn write(image: &Image, path: &Path) -> Result<()> {
    let layers = image
        .layers
        .iter()
        .map(super::Layer::tar)
        .collect::<Result<Vec<_>>>()?;
    let layer_digests: Vec<String> = layers.iter().map(|layer| sha256(layer)).collect();
    let config = serde_json::to_vec(&image.config(&layer_digests))?;
    let described: Vec<Value> = layers
        .iter()
        .zip(&layer_digests)
        .map(|(layer, digest)| json!({ "mediaType": LAYER_TYPE, "digest": digest, "size": layer.len() }))
        .collect();
    let manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": { "mediaType": CONFIG_TYPE, "digest": sha256(&config), "size": config.len() },
        "layers": described,
    }))?;
    let named: Vec<Value> = image
        .names
        .iter()
        .map(|name| index_entry(name, &manifest))
        .collect();
    let index = serde_json::to_vec(&json!({ "schemaVersion": 2, "manifests": named }))?;

    let mut files = BTreeMap::from([
        (
            "oci-layout".to_owned(),
            br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec(),
        ),
        ("index.json".to_owned(), index),
        (blob_path(&sha256(&config)), config),
        (blob_path(&sha256(&manifest)), manifest),
    ]);
    files.extend(layer_digests.iter().map(|digest| blob_path(digest)).zip(layers));
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    let mut tar = Builder::new(BufWriter::new(file));
    for (name, bytes) in &files {
        let mut header = Header::new_gnu();
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, name, bytes.as_slice())?;
    }
    tar.into_inner()?
        .into_inner()
        .context("finish an image archive")?;
    Ok(())
}

fn index_entry(name: &str, manifest: &[u8]) -> Value {
    let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    json!({
        "mediaType": MANIFEST_TYPE,
        "digest": sha256(manifest),
        "size": manifest.len(),
        "annotations": { "io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag },
        "platform": { "architecture": super::architecture(), "os": "linux" },
    })
}

fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}

fn json_file(files: &mut BTreeMap<String, Vec<u8>>, name: &str) -> Result<Value> {
    let bytes = files
        .remove(name)
        .with_context(|| format!("no {name} in the archive"))?;
    serde_json::from_slice(&bytes).with_context(|| format!("read {name} of the archive"))
}

/// Layers are large; everything that describes an image is not.
fn small_files(path: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    files_up_to(path, 1 << 20)
}

fn all_files(path: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    files_up_to(path, u64::MAX)
}

fn files_up_to(path: &Path, max_bytes: u64) -> Result<BTreeMap<String, Vec<u8>>> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let mut archive = tar::Archive::new(file);
    let mut files = BTreeMap::new();
    for entry in archive.entries_with_seek()? {
        let mut entry = entry?;
        if entry.size() <= max_bytes {
            let name = entry.path()?.display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes)?;
            files.insert(name, bytes);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::super::Layer;
    use super::*;

    #[test]
    fn an_archive_tells_names_and_digests_and_holds_every_blob() {
        let dir = tempfile::tempdir().unwrap();
        let image = Image::new("rubelet.test/a:1")
            .also_named("rubelet.test/b:2")
            .layer(Layer::new().file("x", b"1".to_vec(), 0o644))
            .layer(Layer::new().file("y", b"2".to_vec(), 0o644))
            .user("1000");
        let archive = ImageArchive::write(&image, &dir.path().join("a.tar")).unwrap();
        assert_eq!(archive.names(), ["rubelet.test/a:1", "rubelet.test/b:2"]);
        let blobs = archive.blobs().unwrap();
        assert_eq!(blobs.len(), 4, "two layers, configuration, manifest");
        for blob in &blobs {
            assert_eq!(sha256(&blob.bytes), blob.digest);
        }
        assert_eq!(blobs[2].digest, archive.id());
        assert_eq!(blobs[3].digest, archive.digest());
        let config: Value = serde_json::from_slice(&blobs[2].bytes).unwrap();
        assert_eq!(config["config"], json!({ "User": "1000" }));
        assert_eq!(
            config["rootfs"]["diff_ids"],
            json!([blobs[0].digest, blobs[1].digest])
        );

        let again = ImageArchive::write(&image, &dir.path().join("b.tar")).unwrap();
        assert_eq!(
            std::fs::read(archive.path()).unwrap(),
            std::fs::read(again.path()).unwrap()
        );
    }
}
