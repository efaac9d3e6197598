//! What is counted on an image's way.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prometheus::{Registry, TextEncoder};
use rubelet_images::{
    CredentialProviders, CredentialSources, ImagesMetrics, ImagesSettings, PullRecords, RecordsPorts,
    VerificationPolicy, read_configuration,
};
use rubelet_ports::{ImageProvider as _, PluginFailure};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::edges::{FakeFiles, FakeObjects, FakePlugins, FakeSpawner, pod_request};
use crate::fakes::{Bench, image, poll, request};

const REQUESTS: &str = "kubelet_image_manager_ensure_image_requests_total";
const CHECKS: &str = "kubelet_imagemanager_image_mustpull_checks_total";

struct Counted {
    bench: Bench,
    registry: Registry,
    plugins: Arc<FakePlugins>,
}

impl Counted {
    fn new(slow: Option<Semaphore>) -> Self {
        let registry = Registry::new();
        let metrics = ImagesMetrics::register(&registry).unwrap();
        let plugins = Arc::new(FakePlugins::new(&json!({
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "kind": "CredentialProviderResponse",
            "cacheKeyType": "Image", "cacheDuration": "0s", "auth": {}})));
        let objects = Arc::<FakeObjects>::default();
        for namespace in ["a", "b"] {
            objects.put_login(namespace, "login", "r.io", "good");
        }
        let settings = ImagesSettings {
            registry_pull_qps: 0.0,
            ..ImagesSettings::default()
        };
        let bench = Bench::built(settings, slow, |images, service, clock| {
            let files = Arc::<FakeFiles>::default();
            let ports = RecordsPorts {
                reader: files.clone(),
                writer: files,
                images: service.clone(),
                clock: clock.clone(),
                spawner: Arc::<FakeSpawner>::default(),
            };
            let policy = VerificationPolicy::new("NeverVerifyPreloadedImages", &[]).unwrap();
            let records = PullRecords::new(Path::new("/root-dir"), policy, ports).with_metrics(&metrics);
            let file = json!({"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [{
                "name": "teller", "matchImages": ["r.io"], "defaultCacheDuration": "0s",
                "apiVersion": "credentialprovider.kubelet.k8s.io/v1"}]});
            let settings =
                read_configuration(&[("f".to_owned(), file.to_string().into_bytes())], true).unwrap();
            let providers = CredentialProviders::new(
                settings,
                plugins.clone(),
                None,
                clock.clone(),
                Some(metrics.clone()),
            );
            let sources = CredentialSources {
                objects: Some(objects.clone()),
                node_files: None,
                providers: Some(Arc::new(providers)),
            };
            images
                .with_credentials(sources)
                .with_records(records)
                .with_metrics(metrics.clone())
        });
        Self {
            bench,
            registry,
            plugins,
        }
    }

    fn check(&self, line: &str) {
        let text = TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .unwrap();
        assert!(
            text.lines().any(|seen| seen == line),
            "{line} is missing in {text}"
        );
    }

    fn requested(&self, policy: &str, present: &str, required: &str, count: usize) {
        self.check(&format!(
            "{REQUESTS}{{present_locally=\"{present}\",pull_policy=\"{policy}\",pull_required=\"{required}\"}} {count}"
        ));
    }

    fn checked(&self, result: &str, count: usize) {
        self.check(&format!("{CHECKS}{{result=\"{result}\"}} {count}"));
    }
}

#[test]
fn requests_by_policy_and_outcome() {
    let counted = Counted::new(None);
    let bench = &counted.bench;
    bench.service.add_present("there:1", image("there", 1));
    bench.service.add_to_registry("new:1", image("new", 20 << 20));
    bench.ensure(request("u", "there:1", "Never")).unwrap();
    counted.requested("never", "true", "false", 1);
    assert!(bench.ensure(request("u", "gone:1", "Never")).is_err());
    counted.requested("never", "false", "unknown", 1);
    bench.ensure(request("u", "new:1", "IfNotPresent")).unwrap();
    counted.requested("ifnotpresent", "false", "true", 1);
    bench.ensure(request("u", "new:1", "Always")).unwrap();
    counted.requested("always", "unknown", "true", 1);
    assert!(bench.ensure(request("u", "NO:NAME", "IfNotPresent")).is_err());
    counted.requested("ifnotpresent", "unknown", "unknown", 1);
    counted.check("kubelet_image_pull_duration_seconds_count{image_size_in_bytes=\"10MB-100MB\"} 2");
    // What is found at once is a request too.
    let used = request("v", "there:1", "IfNotPresent");
    bench.images.record_present(&used);
    counted.requested("ifnotpresent", "true", "false", 1);
    counted.check("kubelet_imagemanager_ondisk_pullintents 0");
    counted.check("kubelet_imagemanager_ondisk_pulledrecords 1");
}

#[test]
fn the_time_of_a_pull_has_that_in_the_queue() {
    let counted = Counted::new(Some(Semaphore::new(0)));
    let bench = &counted.bench;
    bench.service.add_to_registry("a:1", image("a", 1));
    let mut asking = bench.asking(request("u", "a:1", "Always"));
    assert!(poll(&mut asking).is_none());
    counted.check("kubelet_imagemanager_ondisk_pullintents 1");
    bench.clock.advance(Duration::from_secs(7));
    bench.service.finish(1);
    assert!(poll(&mut asking).is_some());
    let bucket = "kubelet_image_pull_duration_seconds_bucket{image_size_in_bytes=\"0-10MB\",le=";
    counted.check(&format!("{bucket}\"5\"}} 0"));
    counted.check(&format!("{bucket}\"10\"}} 1"));
}

#[test]
fn looks_at_records_and_runs_of_plugins() {
    let counted = Counted::new(None);
    let bench = &counted.bench;
    let name = "r.io/app:1";
    bench.service.add_to_registry(name, image("app", 1));
    bench.service.protect(name, &["good"]);
    bench.service.add_present("r.io/old:1", image("old", 1));
    bench
        .ensure(pod_request("a", "u", "r.io/old:1", "IfNotPresent", &[], None))
        .unwrap();
    counted.checked("credentialPolicyAllowed", 1);
    bench
        .ensure(pod_request("a", "u", name, "IfNotPresent", &["login"], None))
        .unwrap();
    counted.check("kubelet_credential_provider_plugin_duration_count{plugin_name=\"teller\"} 1");
    bench
        .ensure(pod_request("b", "v", name, "IfNotPresent", &["login"], None))
        .unwrap();
    counted.checked("credentialRecordFound", 1);
    counted.plugins.set(Err(PluginFailure {
        reason: "exit status: 7".to_owned(),
    }));
    assert!(
        bench
            .ensure(pod_request("c", "w", name, "IfNotPresent", &[], None))
            .is_err()
    );
    counted.checked("mustAuthenticate", 1);
    counted.check("kubelet_credential_provider_plugin_errors_total{plugin_name=\"teller\"} 1");
}
