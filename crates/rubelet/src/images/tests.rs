//! What the flags and the configuration mean for images.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use rubelet_config::{HostFacts, Invocation, load};
use tempfile::TempDir;

use super::*;
use crate::files::HostFiles;

fn settings(flags: &[String]) -> Settings {
    match load(flags, &HostFiles, HostFacts { cgroup_v2: true }).unwrap() {
        Invocation::Run(settings) => *settings,
        Invocation::Print(text) => panic!("{text}"),
    }
}

fn configured(fields: &str) -> Settings {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubelet.yaml");
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    fs::write(&file, format!("{head}{fields}")).unwrap();
    settings(&[format!("--config={}", file.display())])
}

#[test]
fn pulls_are_as_configured() {
    let usual = images_settings(&configured(""));
    assert_eq!((usual.serialize_pulls, usual.max_parallel_pulls), (true, 0));
    assert_eq!((usual.registry_pull_qps, usual.registry_burst), (5.0, 10));
    assert!(usual.ensure_secret_pulled_images);
    let own = images_settings(&configured(
        "serializeImagePulls: false\nmaxParallelImagePulls: 3\nregistryPullQPS: 2\nregistryBurst: 4\n\
         featureGates: {KubeletEnsureSecretPulledImages: false}\n",
    ));
    assert_eq!((own.serialize_pulls, own.max_parallel_pulls), (false, 3));
    assert_eq!((own.registry_pull_qps, own.registry_burst), (2.0, 4));
    assert!(!own.ensure_secret_pulled_images);
    // Zero is no limit, and not the default.
    let unlimited = images_settings(&configured("registryPullQPS: 0\n"));
    assert_eq!(unlimited.registry_pull_qps, 0.0);
}

#[test]
fn garbage_is_collected_as_configured() {
    let minutes = |count: u64| Duration::from_secs(count * 60);
    assert_eq!(
        garbage_settings(&configured("")),
        GarbageSettings {
            high_percent: 85,
            low_percent: 80,
            min_age: minutes(2),
            max_age: Duration::ZERO,
            by_runtime_handler: false,
        }
    );
    let own = "imageGCHighThresholdPercent: 100\nimageGCLowThresholdPercent: 0\nimageMinimumGCAge: 3m\n\
               imageMaximumGCAge: 1h\nfeatureGates: {RuntimeClassInImageCriApi: true}\n";
    assert_eq!(
        garbage_settings(&configured(own)),
        GarbageSettings {
            high_percent: 100,
            low_percent: 0,
            min_age: minutes(3),
            max_age: minutes(60),
            by_runtime_handler: true,
        }
    );
}

/// A directory of programs and one of their configuration.
struct Plugins {
    directory: TempDir,
}

impl Plugins {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["bin", "config", "config/below.yaml"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        Self { directory }
    }

    fn program(self, name: &str, mode: u32) -> Self {
        let path = self.directory.path().join("bin").join(name);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        self
    }

    fn configuration(self, file: &str, plugin: &str) -> Self {
        let text = format!(
            "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n\
             - {{name: {plugin}, matchImages: [r.example], defaultCacheDuration: 1m,\n   \
             apiVersion: credentialprovider.kubelet.k8s.io/v1}}\n"
        );
        fs::write(self.directory.path().join("config").join(file), text).unwrap();
        self
    }

    fn flag(&self, name: &str, place: &str) -> String {
        let place = self.directory.path().join(place);
        format!("--image-credential-provider-{name}={}", place.display())
    }

    /// The names of the plugins and the hash of their configuration.
    fn read(&self, configuration: &str) -> Result<(Vec<String>, String)> {
        let flags = [self.flag("config", configuration), self.flag("bin-dir", "bin")];
        let read = read_plugins(&settings(&flags))?.context("none")?;
        let names = read.plugins.into_iter().map(|plugin| plugin.name).collect();
        Ok((names, read.hash))
    }

    fn check_refused(&self, configuration: &str, expected: &str) {
        let error = format!("{:#}", self.read(configuration).unwrap_err());
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn plugins_come_from_a_file_or_from_all_files_of_a_directory() {
    let plugins = Plugins::new()
        .program("one", 0o755)
        .program("two", 0o755)
        .program("three", 0o755)
        .configuration("c.json", "three")
        .configuration("b.yml", "one")
        .configuration("a.yaml", "two")
        .configuration("readme.txt", "four")
        .configuration("no-extension", "five");
    let (names, all) = plugins.read("config").unwrap();
    assert_eq!(names, ["two", "one", "three"]);
    let (names, one) = plugins.read("config/b.yml").unwrap();
    assert_eq!(names, ["one"]);
    assert!(all.starts_with("sha256:") && one.starts_with("sha256:") && all != one);
    // What is not read does not count.
    let plugins = plugins.configuration("readme.txt", "six");
    assert_eq!(plugins.read("config").unwrap().1, all);
    let plugins = plugins.program("four", 0o755).configuration("d.yaml", "four");
    assert_ne!(plugins.read("config").unwrap().1, all);
}

#[test]
fn what_is_wrong_with_plugins_is_found_at_start_up() {
    let plugins = Plugins::new();
    plugins.check_refused("config", "no configuration files found");
    plugins.check_refused("nowhere", "--image-credential-provider-config=");
    let plugins = plugins.configuration("a.yaml", "one");
    plugins.check_refused("config", "bin/one did not exist");
    let plugins = plugins.program("one", 0o644);
    plugins.check_refused("config", "bin/one is not executable");
    let plugins = plugins.configuration("b.yaml", "one");
    plugins.check_refused("config", "duplicate provider name \"one\"");
}

#[test]
fn the_two_flags_need_each_other() {
    let plugins = Plugins::new();
    assert!(read_plugins(&settings(&[])).unwrap().is_none());
    for (given, missing) in [("config", "bin-dir"), ("bin-dir", "config")] {
        let error = read_plugins(&settings(&[plugins.flag(given, "bin")]))
            .err()
            .unwrap();
        let expected = format!("needs --image-credential-provider-{missing}");
        assert!(error.to_string().ends_with(&expected), "{error}");
    }
}
