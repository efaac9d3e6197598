//! From a command line to settings: order of the sources, drop-ins, paths, and the messages about problems.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use rubelet_config::flags::definitions;
use rubelet_config::load::{self, Files, Invocation, LoadError};
use rubelet_config::{Gate, HostFacts, Settings, version};
use serde_json::{Value, json};

/// Files in memory; a directory is what has files below it.
#[derive(Default)]
pub(crate) struct Disk(BTreeMap<PathBuf, Vec<u8>>);

impl Disk {
    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        Self(
            files
                .iter()
                .map(|(name, text)| (PathBuf::from(name), text.as_bytes().to_vec()))
                .collect(),
        )
    }
}

impl Files for Disk {
    fn current_dir(&self) -> io::Result<PathBuf> {
        Ok(PathBuf::from("/srv/dir"))
    }

    fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
        self.0
            .get(file)
            .cloned()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn is_dir(&self, path: &Path) -> io::Result<bool> {
        let below = self.0.keys().any(|file| file.starts_with(path) && file != path);
        if below || self.0.contains_key(path) {
            Ok(below)
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut names: Vec<String> = self
            .0
            .keys()
            .filter_map(|file| file.strip_prefix(directory).ok()?.components().next())
            .map(|name| name.as_os_str().to_string_lossy().into_owned())
            .collect();
        names.dedup();
        names.reverse();
        Ok(names)
    }
}

fn load<S: AsRef<str>>(line: &[S], files: &dyn Files) -> Result<Invocation, LoadError> {
    load::load(line, files, HostFacts { cgroup_v2: true })
}

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

pub(crate) fn file(body: &str) -> String {
    format!("{HEAD}{body}")
}

pub(crate) fn settings(line: &[&str], files: &[(&str, &str)]) -> Settings {
    match load(line, &Disk::with(files)) {
        Ok(Invocation::Run(settings)) => *settings,
        other => panic!("{line:?}: {other:?}"),
    }
}

pub(crate) fn refusal(line: &[&str], files: &[(&str, &str)]) -> LoadError {
    match load(line, &Disk::with(files)) {
        Err(error) => error,
        Ok(other) => panic!("{line:?} was accepted: {other:?}"),
    }
}

/// The value at a path of what `/configz` would show.
fn check(line: &[&str], files: &[(&str, &str)], path: &str, expect: &Value) {
    let effective = settings(line, files).configz_json();
    let found = path
        .split('.')
        .try_fold(&effective, |value, name| value.get(name))
        .unwrap_or(&Value::Null);
    assert_eq!(found, expect, "{path} with {line:?} and {files:?}");
}

#[test]
fn defaults_give_way_to_file_drop_ins_and_flags_in_this_order() {
    let base = file("maxPods: 10\n");
    let drop_in = file("maxPods: 20\n");
    let later = file("maxPods: 30\n");
    let files = [
        ("/etc/k.yaml", base.as_str()),
        ("/etc/d/10.conf", &drop_in),
        ("/etc/d/20.conf", &later),
    ];
    check(&[], &[], "maxPods", &json!(110));
    check(&["--config=/etc/k.yaml"], &files, "maxPods", &json!(10));
    check(
        &["--config=/etc/k.yaml", "--config-dir=/etc/d"],
        &files,
        "maxPods",
        &json!(30),
    );
    check(
        &["--config=/etc/k.yaml", "--config-dir=/etc/d", "--max-pods=40"],
        &files,
        "maxPods",
        &json!(40),
    );
    check(
        &["--max-pods=40", "--config-dir=/etc/d", "--config=/etc/k.yaml"],
        &files,
        "maxPods",
        &json!(40),
    );
    check(&["--config-dir=/etc/d"], &files, "maxPods", &json!(30));
    check(&["--max-pods=40"], &[], "maxPods", &json!(40));
}

#[test]
fn a_flag_of_a_list_or_map_replaces_the_file_s() {
    let base = file(
        "clusterDNS: [1.1.1.1]\nsystemReserved: {cpu: 1m, memory: 1Mi}\nallowedUnsafeSysctls: [net.a]\n",
    );
    let files = [("/k", base.as_str())];
    check(
        &["--config=/k", "--cluster-dns=2.2.2.2", "--cluster-dns=3.3.3.3"],
        &files,
        "clusterDNS",
        &json!(["2.2.2.2", "3.3.3.3"]),
    );
    check(
        &["--config=/k", "--system-reserved=cpu=2m"],
        &files,
        "systemReserved",
        &json!({"cpu": "2m"}),
    );
    check(
        &["--config=/k", "--system-reserved="],
        &files,
        "systemReserved",
        &Value::Null,
    );
    check(
        &["--config=/k", "--cluster-dns="],
        &files,
        "clusterDNS",
        &Value::Null,
    );
    check(&["--config=/k"], &files, "clusterDNS", &json!(["1.1.1.1"]));
    // An address that is empty leaves what the file says.
    check(
        &["--config=/k", "--address="],
        &[("/k", &file("address: 10.0.0.1\n"))],
        "address",
        &json!("10.0.0.1"),
    );
}

#[test]
fn a_flag_s_zero_is_not_a_default() {
    check(&["--registry-qps=0"], &[], "registryPullQPS", &json!(0));
    check(
        &["--config=/k", "--event-qps=0"],
        &[("/k", &file("eventRecordQPS: 7\n"))],
        "eventRecordQPS",
        &json!(0),
    );
    check(
        &["--config=/k"],
        &[("/k", &file("eventRecordQPS: 0\n"))],
        "eventRecordQPS",
        &json!(0),
    );
    // A field where zero means "not set": the file's zero becomes the default, the flag's stays.
    check(
        &["--config=/k"],
        &[("/k", &file("volumeStatsAggPeriod: 0s\n"))],
        "volumeStatsAggPeriod",
        &json!("1m0s"),
    );
    check(
        &["--volume-stats-agg-period=0"],
        &[],
        "volumeStatsAggPeriod",
        &json!("0s"),
    );
}

#[test]
fn two_sets_of_defaults() {
    let empty = [("/k", HEAD), ("/d/a.conf", HEAD)];
    for (path, flags_only, with_file) in [
        ("authentication.anonymous.enabled", json!(true), json!(false)),
        ("authentication.webhook.enabled", json!(false), json!(true)),
        ("authorization.mode", json!("AlwaysAllow"), json!("Webhook")),
        ("readOnlyPort", json!(10255), Value::Null),
        (
            "evictionHard",
            Value::Null,
            json!({"imagefs.available": "15%", "imagefs.inodesFree": "5%", "memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%"}),
        ),
    ] {
        check(&[], &empty, path, &flags_only);
        check(&["--config-dir=/d"], &empty, path, &flags_only);
        check(&["--config=/k"], &empty, path, &with_file);
        check(&["--config=/k", "--config-dir=/d"], &empty, path, &with_file);
    }
}

#[test]
fn hard_eviction_thresholds() {
    let set = file("evictionHard: {memory.available: 1Gi}\n");
    let merged = file("evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true\n");
    let drop_in = file("evictionHard: {nodefs.available: 1%}\n");
    let files = [
        ("/k", set.as_str()),
        ("/m", &merged),
        ("/e", HEAD),
        ("/d/a.conf", &drop_in),
    ];
    check(
        &["--config=/k"],
        &files,
        "evictionHard",
        &json!({"memory.available": "1Gi"}),
    );
    check(&["--config=/m"], &files, "evictionHard.memory", &Value::Null);
    let effective = settings(&["--config=/m"], &files).configz_json();
    assert_eq!(effective["evictionHard"]["memory.available"], "1Gi");
    assert_eq!(
        effective["evictionHard"].as_object().map(serde_json::Map::len),
        Some(5)
    );
    // A drop-in adds to the defaults that the file brought.
    let effective = settings(&["--config=/e", "--config-dir=/d"], &files).configz_json();
    assert_eq!(effective["evictionHard"]["nodefs.available"], "1%");
    assert_eq!(effective["evictionHard"]["memory.available"], "100Mi");
    check(
        &["--config=/e", "--eviction-hard=memory.available<2Gi"],
        &files,
        "evictionHard",
        &json!({"memory.available": "2Gi"}),
    );
    check(
        &["--config=/e", "--eviction-hard="],
        &files,
        "evictionHard",
        &Value::Null,
    );
}

#[test]
fn feature_gates_merge_by_name() {
    let base = file("featureGates: {MemoryQoS: false, PodsAPI: false, EnvFiles: true}\n");
    let drop_in = file("featureGates: {PodsAPI: true, EnvFiles: false}\n");
    let files = [("/k", base.as_str()), ("/d/a.conf", &drop_in)];
    let line = [
        "--config=/k",
        "--config-dir=/d",
        "--feature-gates=EnvFiles=true,EventedPLEG=true",
    ];
    check(
        &line,
        &files,
        "featureGates",
        &json!({"MemoryQoS": false, "PodsAPI": true, "EnvFiles": true, "EventedPLEG": true}),
    );
    let gates = settings(&line, &files).gates().clone();
    for (gate, on) in [
        (Gate::MemoryQoS, false),
        (Gate::PodsAPI, true),
        (Gate::EnvFiles, true),
        (Gate::EventedPLEG, true),
        (Gate::NodeSwap, true),
    ] {
        assert_eq!(gates.enabled(gate), on, "{gate}");
    }
}

#[test]
fn gates_of_flags_must_stand_by_themselves() {
    // The file would turn on what the flag's gate needs, but flags are looked at first.
    let base = file("featureGates: {GenericWorkload: true}\n");
    let error = refusal(
        &["--config=/k", "--feature-gates=WorkloadWithJob=true"],
        &[("/k", &base)],
    );
    assert!(
        error.to_string().contains(
            "WorkloadWithJob is enabled, but depends on features that are disabled: GenericWorkload"
        ),
        "{error}"
    );
    let both = file("featureGates: {GenericWorkload: true, WorkloadWithJob: true}\n");
    settings(&["--config=/k"], &[("/k", &both)]);
    // A problem that both passes see is reported once.
    let error = refusal(&["--config=/k", "--feature-gates=Nope=true"], &[("/k", HEAD)]);
    assert_eq!(error.problems.len(), 1, "{error}");
    // Bad gates do not hide what else is wrong.
    let error = refusal(
        &["--config=/k"],
        &[(
            "/k",
            &file("featureGates: {SidecarContainers: true, NodeSwap: false}\nmaxPods: -1\n"),
        )],
    );
    assert_eq!(error.problems.len(), 3, "{error}");
}

#[test]
fn paths_in_the_file_start_at_its_directory() {
    let base = file(
        "staticPodPath: manifests\nresolvConf: ../resolv.conf\ntlsCertFile: /abs/crt\nauthentication: {x509: {clientCAFile: ./ca.crt}}\n",
    );
    let drop_in = file("tlsPrivateKeyFile: key\nstaticPodPath: other\n");
    let files = [
        ("/srv/dir/etc/k.yaml", base.as_str()),
        ("/srv/dir/d/a.conf", &drop_in),
    ];
    let line = ["--config=etc/k.yaml"];
    check(&line, &files, "staticPodPath", &json!("/srv/dir/etc/manifests"));
    check(&line, &files, "resolvConf", &json!("/srv/dir/resolv.conf"));
    check(&line, &files, "tlsCertFile", &json!("/abs/crt"));
    check(
        &line,
        &files,
        "authentication.x509.clientCAFile",
        &json!("/srv/dir/etc/ca.crt"),
    );
    // Not in drop-ins, and not in flags.
    let line = [
        "--config=etc/k.yaml",
        "--config-dir=d",
        "--volume-plugin-dir=plugins",
    ];
    check(&line, &files, "tlsPrivateKeyFile", &json!("key"));
    check(&line, &files, "staticPodPath", &json!("other"));
    check(&line, &files, "volumePluginDir", &json!("plugins"));
}

#[test]
fn drop_ins_are_read_in_lexical_order_and_below() {
    let pods = |count: u32| file(&format!("maxPods: {count}\n"));
    let (one, two, three, four) = (pods(1), pods(2), pods(3), pods(4));
    let files = [
        ("/d/10-a.conf", one.as_str()),
        ("/d/20-b/99.conf", &two),
        ("/d/20-b.conf", &three),
        ("/d/99.yaml", &four),
        ("/d/z.conf.bak", &four),
    ];
    // "20-b" sorts before "20-b.conf", and what is below it comes with it.
    check(&["--config-dir=/d"], &files, "maxPods", &json!(3));
    check(
        &["--config-dir=/d"],
        &[("/d/10.conf", &one), ("/d/9.conf", &two)],
        "maxPods",
        &json!(2),
    );
    check(
        &["--config-dir=/d"],
        &[("/d/.conf", &two), ("/d/x", &one)],
        "maxPods",
        &json!(2),
    );
    // A single file can stand in place of the directory.
    check(
        &["--config-dir=/one.conf"],
        &[("/one.conf", &four)],
        "maxPods",
        &json!(4),
    );
    check(
        &["--config-dir=/one.yaml"],
        &[("/one.yaml", &four)],
        "maxPods",
        &json!(110),
    );
}

#[test]
fn files_that_cannot_be_used() {
    let wrong_kind = "apiVersion: v1\nkind: Pod\n";
    for (line, files, part) in [
        (&["--config=/none"][..], &[][..], "/none: cannot be read"),
        (&["--config-dir=/none"], &[], "/none: cannot be read"),
        (&["--config=/k"], &[("/k", "")], "the file is empty"),
        (&["--config-dir=/d"], &[("/d/a.conf", "")], "the file is empty"),
        (&["--config=/k"], &[("/k", wrong_kind)], "/k"),
        (&["--config=/k"], &[("/k", "a: [")], "/k"),
        (&["--config=/k"], &[("/k", "maxPods: 3\n")], "kind"),
        (&["--config-dir=/d"], &[("/d/a.conf", wrong_kind)], "/d/a.conf"),
        (
            &["--config-dir=/d"],
            &[("/d/a.conf", "maxPods: 3\n")],
            "/d/a.conf",
        ),
        (&["--rubelet-config=/r"], &[], "/r: cannot be read"),
    ] {
        let error = refusal(line, files);
        assert!(error.to_string().contains(part), "{line:?}: {error}");
    }
}

#[test]
fn ten_wrong_values_are_ten_problems() {
    let base = file(
        "imageGCHighThresholdPercent: 101\nhealthzPort: 70000\nmaxOpenFiles: -1\nmaxPods: -1\noomScoreAdj: 2000\nport: 70000\n\
         registryBurst: -5\nhairpinMode: sideways\ncontainerLogMaxFiles: 1\npodsPerCore: -1\n",
    );
    let error = refusal(&["--config=/k"], &[("/k", &base)]);
    let text = error.to_string();
    assert_eq!(error.problems.len(), 10, "{text}");
    assert!(
        text.starts_with("10 problems with the settings:\n  1. "),
        "{text}"
    );
    for path in [
        "imageGCHighThresholdPercent",
        "healthzPort",
        "maxOpenFiles",
        "maxPods",
        "oomScoreAdj",
        "port",
        "registryBurst",
        "hairpinMode",
        "containerLogMaxFiles",
        "podsPerCore",
    ] {
        assert_eq!(
            text.matches(&format!(". {path}: ")).count(),
            1,
            "{path} in {text}"
        );
    }
}

#[test]
fn problems_of_all_sources_come_together() {
    let base = file("maxPods: many\nsyncFrequency: 3\n");
    let error = refusal(
        &[
            "--config=/k",
            "--node-labels=kubernetes.io/x=y,a=-",
            "--feature-gates=Nope=true",
            "--exit-on-lock-contention",
            "--cloud-provider=aws",
        ],
        &[("/k", &base)],
    );
    let text = error.to_string();
    for part in [
        "--node-labels[kubernetes.io/x]",
        "--node-labels[a]: - is not allowed",
        "--exit-on-lock-contention",
        "--cloud-provider: aws",
        "unrecognized feature gate: Nope",
        "/k: maxPods: ",
        "/k: syncFrequency: ",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert_eq!(error.problems.len(), 7, "{text}");
}

#[test]
fn an_old_machine_is_refused_unless_told_otherwise() {
    let on_v1 = |line: &[&str]| load::load(line, &Disk::default(), HostFacts { cgroup_v2: false });
    let error = on_v1(&[]).expect_err("refused");
    assert!(error.to_string().contains("1. failCgroupV1: "), "{error}");
    assert!(matches!(
        on_v1(&["--fail-cgroupv1=false"]),
        Ok(Invocation::Run(_))
    ));
    assert!(matches!(on_v1(&["--version"]), Ok(Invocation::Print(_))));
}

#[test]
fn node_labels() {
    for label in [
        "a=b",
        "node.kubernetes.io/x=y",
        "x.kubelet.kubernetes.io/a=b",
        "kubernetes.io/hostname=h",
        "topology.kubernetes.io/zone=z",
        "a=",
    ] {
        settings(&[&format!("--node-labels={label}")], &[]);
    }
    for label in [
        "kubernetes.io/foo=x",
        "k8s.io/a=b",
        "foo.k8s.io/a=1",
        "x.kubernetes.io/hostname=h",
        "a/b/c=d",
        "=x",
        "a=-",
        "notkubelet.kubernetes.io/a=b",
    ] {
        let error = refusal(&[&format!("--node-labels={label}")], &[]);
        assert_eq!(error.problems.len(), 1, "{label}: {error}");
    }
    // Only the ending after a dot makes a namespace Kubernetes' own.
    settings(&["--node-labels=mykubernetes.io/a=b"], &[]);
}

#[test]
fn log_settings_of_flags_and_file() {
    let base = file(
        "logging: {verbosity: 2, vmodule: [{filePattern: a, verbosity: 1}], flushFrequency: 3000000000}\n",
    );
    let files = [("/k", base.as_str())];
    check(&["--config=/k"], &files, "logging.verbosity", &json!(2));
    check(&["--config=/k", "-v4"], &files, "logging.verbosity", &json!(4));
    // Added, not replaced.
    let both = json!([{"filePattern": "a", "verbosity": 1}, {"filePattern": "b", "verbosity": 5}]);
    check(
        &["--config=/k", "--vmodule=b=5"],
        &files,
        "logging.vmodule",
        &both,
    );
    // Written back as the file wrote it, even where a flag changed it.
    check(
        &["--config=/k"],
        &files,
        "logging.flushFrequency",
        &json!(3_000_000_000_i64),
    );
    check(
        &["--config=/k", "--log-flush-frequency=4s"],
        &files,
        "logging.flushFrequency",
        &json!(4_000_000_000_i64),
    );
    check(
        &["--log-flush-frequency=4s"],
        &[],
        "logging.flushFrequency",
        &json!("4s"),
    );
    // The file's split stream is forgotten when flags are read again, so its gate is not needed either.
    let split = file("logging: {options: {text: {splitStream: true}}}\n");
    let settings = settings(&["--config=/k"], &[("/k", &split)]);
    assert!(!settings.configuration().logging.options.text.split_stream);
    assert!(
        settings
            .warnings()
            .iter()
            .any(|warning| warning.to_string().contains("splitStream")),
        "{:?}",
        settings.warnings()
    );
}

#[test]
fn unknown_fields_are_warned_of() {
    let settings = settings(&["--config=/k"], &[("/k", &file("maxPods: 5\nnoSuchThing: 1\n"))]);
    assert_eq!(settings.configuration().max_pods, 5);
    let warnings: Vec<String> = settings.warnings().iter().map(ToString::to_string).collect();
    assert!(
        warnings
            .iter()
            .any(|warning| warning.contains("noSuchThing") && warning.contains("/k")),
        "{warnings:?}"
    );
}

#[test]
fn a_deprecated_flag_is_warned_of_once() {
    let settings = settings(
        &["--max-pods=1", "--max-pods=2", "-v=2", "--config-dir=/d"],
        &[("/d/a.conf", HEAD)],
    );
    let warned: Vec<String> = settings
        .warnings()
        .iter()
        .map(ToString::to_string)
        .filter(|text| text.contains("deprecated"))
        .collect();
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].contains("--max-pods"), "{warned:?}");
}

#[test]
fn help_and_version_come_before_everything_that_can_fail() {
    let print = |line: &[&str]| match load(line, &Disk::default()) {
        Ok(Invocation::Print(text)) => text,
        other => panic!("{line:?}: {other:?}"),
    };
    assert_eq!(
        print(&["--version"]),
        format!("Kubernetes {}\n", version::VERSION)
    );
    assert_eq!(
        print(&["--version", "--config=/none", "--feature-gates=Nope=true"]),
        format!("Kubernetes {}\n", version::VERSION)
    );
    assert_eq!(
        print(&["--version=v1.37.1-foo", "--version"]),
        "Kubernetes v1.37.1-foo\n"
    );
    assert!(print(&["--version=raw"]).starts_with("version.Info{"));
    assert!(print(&["-h", "--version"]).contains("Usage:"));
    // But not before a command line that cannot be read.
    assert!(
        refusal(&["--version", "--nope"], &[])
            .to_string()
            .contains("unknown flag: --nope")
    );
    assert!(
        refusal(&["--help", "extra"], &[])
            .to_string()
            .contains("unknown command")
    );
    assert_eq!(
        settings(&["--version=v1.37.1-foo"], &[]).reported_version(),
        "v1.37.1-foo"
    );
    assert_eq!(
        settings(&["--version", "--version=false", "--help=false"], &[]).reported_version(),
        version::VERSION
    );
}

/// Seven lists, each of ten times the one before.
fn aliases_of_aliases() -> String {
    let mut text = "a0: &a0 x\n".to_owned();
    for level in 1..8 {
        let below = vec![format!("*a{}", level - 1); 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{below}]\n"));
    }
    text
}

#[test]
fn our_own_file() {
    let head = "apiVersion: rubelet.dev/v1alpha1\nkind: RubeletConfiguration\n";
    let empty = settings(&["--rubelet-config=/r"], &[("/r", head)]);
    assert!(!empty.rubelet().allow_unknown_volumes);
    let file = format!("{head}allowUnknownVolumes: true\n");
    let read = settings(&["--rubelet-config=/r"], &[("/r", &file)]);
    assert!(read.rubelet().allow_unknown_volumes && !read.rubelet().sessions_need_create);
    for (text, parts) in [
        (
            "apiVersion: rubelet.dev/v1\nkind: RubeletConfiguration\n",
            &["apiVersion"][..],
        ),
        (
            "kind: Other\nx: 1\n",
            &["apiVersion", "kind", "x: no such setting"],
        ),
        ("- 1\n", &["must be an object"]),
        ("a: [", &["YAML"]),
        (
            &format!("{head}allowUnknownVolumes: true\n---\nkind: Other\n"),
            &["must be one YAML document"],
        ),
        (
            &format!("{head}allowUnknownVolumes: true\nallowUnknownVolumes: false\n"),
            &["allowUnknownVolumes: must be set once"],
        ),
        (&aliases_of_aliases(), &["unfolds to more than 1000 values"]),
    ] {
        let error = refusal(&["--rubelet-config=/r"], &[("/r", text)]);
        assert_eq!(error.problems.len(), parts.len(), "{error}");
        for part in parts {
            assert!(error.to_string().contains(part), "{part} in {error}");
        }
    }
    let error = refusal(
        &["--rubelet-config=/r"],
        &[("/r", &format!("{head}shadow: true\n"))],
    );
    assert!(error.to_string().contains("shadow: no such setting"), "{error}");
}

#[test]
fn header_values_are_masked() {
    let settings = settings(
        &[
            "--manifest-url=http://localhost/",
            "--manifest-url-header=Authorization:s3cret",
        ],
        &[],
    );
    assert_eq!(
        settings.configuration().static_pod_url_header["Authorization"],
        ["s3cret"]
    );
    assert_eq!(
        settings.configz_json()["staticPodURLHeader"],
        json!({"Authorization": ["<masked>"]})
    );
    let yaml = settings.effective_yaml();
    assert!(
        yaml.contains("<masked>") && yaml.contains("maxPods: 110"),
        "{yaml}"
    );
    assert!(!yaml.contains("s3cret") && !format!("{settings:?}").contains("s3cret"));
}

#[test]
fn the_yaml_is_the_json() {
    let settings = settings(
        &["--config=/k"],
        &[("/k", &file("clusterDomain: \"yes\"\nclusterDNS: [\"1.1.1.1\"]\n"))],
    );
    let again = load(
        &["--config=/k"],
        &Disk::with(&[("/k", &settings.effective_yaml())]),
    );
    let Ok(Invocation::Run(again)) = again else {
        panic!("{again:?}")
    };
    assert_eq!(again.configz_json(), settings.configz_json());
}

/// Real files, so that links behave as the trait says.
#[test]
fn links_among_drop_ins() {
    struct Real(PathBuf);
    impl Files for Real {
        fn current_dir(&self) -> io::Result<PathBuf> {
            Ok(self.0.clone())
        }
        fn read(&self, file: &Path) -> io::Result<Vec<u8>> {
            std::fs::read(file)
        }
        fn is_dir(&self, path: &Path) -> io::Result<bool> {
            Ok(std::fs::symlink_metadata(path)?.is_dir())
        }
        fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
            std::fs::read_dir(directory)?
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect()
        }
    }
    let folder = tempfile::tempdir().expect("a directory");
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("d")).expect("created");
    std::fs::write(path("elsewhere"), file("maxPods: 7\n")).expect("written");
    std::os::unix::fs::symlink(path("elsewhere"), path("d/a.conf")).expect("linked");
    std::os::unix::fs::symlink(path("d"), path("link")).expect("linked");
    let max_pods = |directory: &str| match load(
        &[format!("--config-dir={directory}")],
        &Real(folder.path().to_owned()),
    ) {
        Ok(Invocation::Run(settings)) => settings.configuration().max_pods,
        other => panic!("{directory}: {other:?}"),
    };
    assert_eq!(max_pods("d"), 7, "a link to a file is read");
    assert_eq!(
        max_pods("link"),
        110,
        "a link to a directory is not descended into"
    );
    assert_eq!(max_pods("link/"), 7, "unless its name ends in a slash");
}

proptest::proptest! {
    /// Any file and any flags give settings or problems.
    #[test]
    fn loading_never_panics(
        body in "[a-zA-Z:{}\\[\\]\n\"'0-9&*!|>, -]{0,120}",
        index in 0..definitions().len(),
        text in "[-0-9a-z:=<,%]{0,10}",
    ) {
        let flag = format!("--{}={text}", definitions()[index].name);
        let disk = Disk::with(&[("/k", &file(&body)), ("/d/a.conf", &file(&body)), ("/r", &body)]);
        for line in [vec!["--config=/k", &flag], vec!["--config-dir=/d", &flag], vec!["--rubelet-config=/r", &flag], vec![&flag]] {
            if let Err(error) = load(&line, &disk) {
                proptest::prop_assert!(!error.problems.is_empty());
            }
        }
    }
}
