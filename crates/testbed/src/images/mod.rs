//! Container images made from local material: nothing is pulled from outside.
//!
//! `Image` describes an image, `ImageArchive` is the image as one file that containerd imports and the registry takes. The
//! same description gives the same bytes, hence the same digests, on every machine with the same files. Running images is
//! not this module's business.

mod archive;
mod debian;
mod layer;
mod program;
mod standard;

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub use archive::ImageArchive;
pub use debian::with_debian_program;
pub use layer::Layer;
pub use program::test_server_program;
pub use standard::{BUSYBOX, PAUSE, SERVER, busybox, busybox_layer, pause, server};

/// What an image consists of: names, layers and the configuration that a runtime applies to its containers.
#[derive(Clone, Debug)]
pub struct Image {
    names: Vec<String>,
    layers: Vec<Layer>,
    user: Option<String>,
    entrypoint: Vec<String>,
    command: Vec<String>,
    env: Vec<(String, String)>,
    working_dir: Option<String>,
    stop_signal: Option<String>,
    labels: BTreeMap<String, String>,
    exposed_ports: Vec<String>,
    volumes: Vec<String>,
}

impl Image {
    /// An empty image with a full name, as in `rubelet.test/busybox:1`.
    pub fn new(name: &str) -> Self {
        Self {
            names: vec![name.to_owned()],
            layers: Vec::new(),
            user: None,
            entrypoint: Vec::new(),
            command: Vec::new(),
            env: Vec::new(),
            working_dir: None,
            stop_signal: None,
            labels: BTreeMap::new(),
            exposed_ports: Vec::new(),
            volumes: Vec::new(),
        }
    }

    /// The same content under one more name.
    #[must_use]
    pub fn also_named(mut self, name: &str) -> Self {
        self.names.push(name.to_owned());
        self
    }

    /// The same content under this name instead of the ones it has.
    #[must_use]
    pub fn renamed(mut self, name: &str) -> Self {
        self.names = vec![name.to_owned()];
        self
    }

    /// Adds a layer on top of those there are.
    #[must_use]
    pub fn layer(mut self, layer: Layer) -> Self {
        self.layers.push(layer);
        self
    }

    /// `USER`: a name or number, with or without a group.
    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        self.user = Some(user.to_owned());
        self
    }

    /// `ENTRYPOINT`.
    #[must_use]
    pub fn entrypoint(mut self, words: &[&str]) -> Self {
        self.entrypoint = owned(words);
        self
    }

    /// `CMD`.
    #[must_use]
    pub fn command(mut self, words: &[&str]) -> Self {
        self.command = owned(words);
        self
    }

    /// `ENV`, in the order given.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// `WORKDIR`.
    #[must_use]
    pub fn working_dir(mut self, dir: &str) -> Self {
        self.working_dir = Some(dir.to_owned());
        self
    }

    /// `STOPSIGNAL`.
    #[must_use]
    pub fn stop_signal(mut self, signal: &str) -> Self {
        self.stop_signal = Some(signal.to_owned());
        self
    }

    /// `LABEL`. A label is also the way to give two images with the same content different ids.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.labels.insert(name.to_owned(), value.to_owned());
        self
    }

    /// `EXPOSE`, as in `8080/tcp`.
    #[must_use]
    pub fn exposed_port(mut self, port: &str) -> Self {
        self.exposed_ports.push(port.to_owned());
        self
    }

    /// `VOLUME`.
    #[must_use]
    pub fn volume(mut self, path: &str) -> Self {
        self.volumes.push(path.to_owned());
        self
    }

    /// The image's names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The image as a file, written on first need and kept in the cache.
    pub fn archive(&self) -> Result<ImageArchive> {
        ImageArchive::cached(self)
    }

    /// Identifies the inputs without reading large ones: files of the host count by path, size and time of change.
    fn fingerprint(&self) -> Result<String> {
        let mut hash = Sha256::new();
        hash.update(serde_json::to_vec(&json!([
            archive::FORMAT,
            self.names,
            self.config(&[])
        ]))?);
        for layer in &self.layers {
            layer.fingerprint(&mut hash)?;
        }
        Ok(hex(&hash.finalize()))
    }

    /// The OCI image configuration; its digest is what the CRI calls the image's id.
    fn config(&self, diff_ids: &[String]) -> Value {
        let set = |names: &[String]| {
            names
                .iter()
                .map(|name| (name.clone(), json!({})))
                .collect::<BTreeMap<_, _>>()
        };
        let env: Vec<String> = self
            .env
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let mut config = serde_json::Map::new();
        let mut put = |key: &str, value: Value| {
            let empty = value.is_null()
                || value.as_array().is_some_and(Vec::is_empty)
                || value.as_object().is_some_and(serde_json::Map::is_empty);
            if !empty {
                config.insert(key.to_owned(), value);
            }
        };
        put("User", json!(self.user));
        put("ExposedPorts", json!(set(&self.exposed_ports)));
        put("Env", json!(env));
        put("Entrypoint", json!(self.entrypoint));
        put("Cmd", json!(self.command));
        put("Volumes", json!(set(&self.volumes)));
        put("WorkingDir", json!(self.working_dir));
        put("Labels", json!(self.labels));
        put("StopSignal", json!(self.stop_signal));
        json!({
            "created": "2020-01-01T00:00:00Z",
            "architecture": architecture(),
            "os": "linux",
            "config": config,
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        })
    }
}

/// This machine's architecture in the words of image configurations.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Image {
        Image::new("rubelet.test/sample:1")
            .layer(
                Layer::new()
                    .directory("tmp", 0o1777)
                    .file("bin/x", b"#!".to_vec(), 0o4755),
            )
            .entrypoint(&["/bin/x"])
            .env("A", "1")
    }

    #[test]
    fn every_part_of_the_description_changes_the_identity() {
        let plain = sample().fingerprint().unwrap();
        assert_eq!(
            plain,
            sample().fingerprint().unwrap(),
            "the same description is the same image"
        );
        let variants = [
            sample().user("1000"),
            sample().label("a", "b"),
            sample().env("B", "2"),
            sample().also_named("rubelet.test/other:1"),
            sample().layer(Layer::new().file("x", b"".to_vec(), 0o644)),
            sample().layer(Layer::new().file("x", b"".to_vec(), 0o600)),
            sample().layer(Layer::new().symlink("x", "y")),
        ];
        let mut seen = std::collections::BTreeSet::from([plain]);
        for variant in variants {
            assert!(seen.insert(variant.fingerprint().unwrap()), "{variant:?}");
        }
    }
}
