//! A setting without effect yet is warned of, and the table of these settings is complete.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rubelet_config::flags::{self, Target};
use rubelet_config::gates::Gate;
use rubelet_config::kubelet_configuration as kubelet;
use rubelet_config::pending::{Setting, Support, is_effective, is_in_use, pending_table};

use crate::load::{file, refusal, settings};

/// All fields of the configuration, nested objects taken apart.
fn fields() -> Vec<String> {
    let nested: &[(&str, &[&str])] = &[
        ("authentication", kubelet::KubeletAuthentication::FIELD_NAMES),
        (
            "authentication.x509",
            kubelet::KubeletX509Authentication::FIELD_NAMES,
        ),
        (
            "authentication.webhook",
            kubelet::KubeletWebhookAuthentication::FIELD_NAMES,
        ),
        (
            "authentication.anonymous",
            kubelet::KubeletAnonymousAuthentication::FIELD_NAMES,
        ),
        ("authorization", kubelet::KubeletAuthorization::FIELD_NAMES),
        (
            "authorization.webhook",
            kubelet::KubeletWebhookAuthorization::FIELD_NAMES,
        ),
        ("memorySwap", kubelet::MemorySwapConfiguration::FIELD_NAMES),
        ("logging", kubelet::LoggingConfiguration::FIELD_NAMES),
        ("logging.options", kubelet::FormatOptions::FIELD_NAMES),
        ("logging.options.text", kubelet::OutputRoutingOptions::FIELD_NAMES),
        ("logging.options.json", kubelet::OutputRoutingOptions::FIELD_NAMES),
        ("crashLoopBackOff", kubelet::CrashLoopBackOffConfig::FIELD_NAMES),
        ("tracing", kubelet::TracingConfiguration::FIELD_NAMES),
        ("userNamespaces", kubelet::UserNamespaces::FIELD_NAMES),
    ];
    let inner = nested
        .iter()
        .flat_map(|(parent, names)| names.iter().map(move |name| format!("{parent}.{name}")));
    let all: Vec<String> = kubelet::KubeletConfiguration::FIELD_NAMES
        .iter()
        .map(|name| (*name).to_owned())
        .chain(inner)
        .collect();
    all.into_iter()
        .filter(|path| !nested.iter().any(|(parent, _)| parent == path))
        .collect()
}

fn covers(row: &str, path: &str) -> bool {
    path == row || path.strip_prefix(row).is_some_and(|rest| rest.starts_with('.'))
}

#[test]
fn every_field_is_in_exactly_one_row() {
    let rows: Vec<&str> = pending_table()
        .iter()
        .filter_map(|row| match row.setting {
            Setting::Field(path) => Some(path),
            Setting::Flag(..) => None,
        })
        .collect();
    let fields = fields();
    assert!(fields.len() > 130, "{}", fields.len());
    for field in &fields {
        let found: Vec<&&str> = rows.iter().filter(|row| covers(row, field)).collect();
        assert_eq!(found.len(), 1, "{field} is in {found:?}");
    }
    for row in rows {
        assert!(fields.iter().any(|field| covers(row, field)), "{row} is no field");
    }
}

#[test]
fn every_flag_is_in_exactly_one_row() {
    for flag in flags::definitions() {
        let rows = pending_table()
            .iter()
            .filter(|row| match (row.setting, flag.target) {
                (Setting::Field(row), Target::Config(path)) => covers(row, path),
                (Setting::Flag(name, row), Target::Own(own)) => {
                    row == own && name == format!("--{}", flag.name)
                }
                (Setting::Field(_), Target::Own(_)) | (Setting::Flag(..), Target::Config(_)) => false,
            })
            .count();
        assert_eq!(rows, 1, "--{}", flag.name);
    }
    let flags = pending_table()
        .iter()
        .filter(|row| matches!(row.setting, Setting::Flag(..)))
        .count();
    let own = flags::definitions()
        .iter()
        .filter(|flag| matches!(flag.target, Target::Own(_)))
        .count();
    assert_eq!(flags, own);
}

/// The settings that warnings name. Features that were not asked for are not warned of.
fn check(line: &[&str], body: Option<&str>, expect: &[&str]) {
    let text = file(body.unwrap_or_default());
    let mut line = line.to_vec();
    if body.is_some() {
        line.push("--config=/k");
    }
    let settings = settings(&line, &[("/k", &text)]);
    let named: BTreeSet<&str> = settings
        .warnings()
        .iter()
        .flat_map(|warning| warning.setting.split(", "))
        .filter(|setting| !setting.is_empty())
        .collect();
    assert_eq!(
        named,
        expect.iter().copied().collect(),
        "{line:?} {body:?}: {:#?}",
        settings.warnings()
    );
    let mut unnamed = settings
        .warnings()
        .iter()
        .filter(|warning| warning.setting.is_empty());
    assert!(
        !unnamed.any(|warning| warning.message.contains("does not have")),
        "{:#?}",
        settings.warnings()
    );
}

#[test]
fn a_feature_that_is_missed_is_one_short_line() {
    let body =
        "topologyManagerScope: pod\ncpuManagerReconcilePeriod: 7s\ntracing: {samplingRatePerMillion: 3}\n";
    let line = ["--config=/k", "--feature-gates=PodsAPI=false,KubeletTracing=true"];
    let settings = settings(&line, &[("/k", &file(body))]);
    let warnings = settings.warnings().iter().map(ToString::to_string);
    let missed: Vec<String> = warnings.filter(|text| text.contains("does not have")).collect();
    assert_eq!(
        missed,
        [
            "cpuManagerReconcilePeriod, topologyManagerScope: no effect: rubelet does not have policies for cpus, memory and topology yet",
            "tracing: no effect: rubelet does not have tracing yet",
            "featureGates.PodsAPI: no effect: rubelet does not have this feature yet",
        ]
    );
}

#[test]
fn a_gate_counts_as_on_where_its_feature_is_there() {
    let line = ["--feature-gates=EventedPLEG=true,CRIListStreaming=true,MemoryQoS=false"];
    let settings = settings(&line, &[]);
    let check = |gate: Gate, expected: bool| {
        assert_eq!(is_effective(gate, settings.gates()), expected, "{gate:?}");
    };
    check(Gate::NodeLogQuery, true);
    check(Gate::PodLevelResources, true);
    check(Gate::CRIListStreaming, true);
    check(Gate::MemoryQoS, false);
    check(Gate::DefaultPodSysctls, false);
    // On by default or on demand, and not there.
    check(Gate::GracefulNodeShutdown, true);
    check(Gate::InPlacePodVerticalScaling, true);
    check(Gate::DynamicResourceAllocation, false);
    check(Gate::EventedPLEG, false);
}

#[test]
fn values_other_than_the_default_are_named() {
    check(&[], None, &[]);
    check(&[], Some(""), &[]);
    check(
        &["--root-dir=/x", "--hostname-override=n", "--lock-file=/l", "-v=3"],
        None,
        &[],
    );
    check(
        &[],
        Some(
            "containerRuntimeEndpoint: unix:///x\nfailCgroupV1: false\nlogging: {format: json, verbosity: 3}\n",
        ),
        &[],
    );
    check(
        &[],
        Some("runtimeRequestTimeout: 1m\nimageServiceEndpoint: unix:///y\n"),
        &[],
    );
    // Equal to the default, in other words.
    check(
        &["--max-pods=110", "--kubeconfig="],
        Some("syncFrequency: 60s\nenforceNodeAllocatable: [pods]\n"),
        &[],
    );
    check(
        &["--runtime-cgroups=/x", "--housekeeping-interval=1m"],
        Some("systemCgroups: /x\nkubeletCgroups: /y\ncgroupRoot: /\ntracing: {samplingRatePerMillion: 3}\n"),
        &["tracing"],
    );
    check(
        &[],
        Some("evictionHard: {memory.available: 1Gi}\nhairpinMode: none\nregisterNode: false\n"),
        &["hairpinMode"],
    );
    check(&["--volume-plugin-dir=/v"], None, &["volumePluginDir"]);
    check(&["--volume-stats-agg-period=7s"], None, &[]);
    check(
        &["--max-open-files=7"],
        Some("enableProfilingHandler: false\n"),
        &[],
    );
    check(&["--vmodule=a=1"], None, &[]);
    check(
        &["--feature-gates=PodsAPI=false"],
        None,
        &["featureGates.PodsAPI"],
    );
    check(
        &["--feature-gates=MemoryQoS=false,LoggingAlphaOptions=true"],
        None,
        &[],
    );
    check(
        &[],
        Some("enforceNodeAllocatable: [none]\nprotectKernelDefaults: true\npodPidsLimit: 5\n"),
        &[],
    );
    check(
        &[],
        Some(
            "cpuManagerPolicy: none\nmemoryManagerPolicy: None\ntopologyManagerPolicy: none\nprotectKernelDefaults: false\n",
        ),
        &[],
    );
}

/// Code that names gates without having their features: rules for what is accepted, and features that are never declared.
const RULES: [&str; 3] = [
    "config/src/kubelet_configuration/",
    "manifest/src/",
    "resources/src/admission/capabilities.rs",
];

/// The production code: the rules, and everything else.
fn sources() -> (String, String) {
    let crates = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut directories: Vec<PathBuf> = entries(crates)
        .into_iter()
        .filter(|path| {
            let manifest = fs::read_to_string(path.join("Cargo.toml")).expect("a crate's manifest");
            !manifest.contains("layer = \"support\"")
        })
        .map(|path| path.join("src"))
        .collect();
    let (mut rules, mut rest) = (String::new(), String::new());
    while let Some(directory) = directories.pop() {
        for path in entries(&directory) {
            if path.is_dir() && !path.ends_with("config/src/gates") {
                directories.push(path);
            } else if path.is_file() && !path.ends_with("config/src/pending.rs") {
                let name = path.to_string_lossy();
                let is_rule = RULES.iter().any(|rule| name.contains(&format!("/{rule}")));
                let text = if is_rule { &mut rules } else { &mut rest };
                *text += &fs::read_to_string(&path).expect("a source file");
            }
        }
    }
    (rules, rest)
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a folder of sources");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn a_gate_that_is_asked_is_not_warned_of() {
    let (rules, rest) = sources();
    let gates = |text: &str| -> BTreeSet<String> {
        text.split(|letter: char| !letter.is_alphanumeric() && letter != ':')
            .filter_map(|word| word.strip_prefix("Gate::").map(str::to_owned))
            .collect()
    };
    let (in_rules, asked) = (gates(&rules), gates(&rest));
    for info in Gate::all() {
        let is_asked = asked.contains(info.name);
        let is_named = in_rules.contains(info.name);
        let is_in_use = is_in_use(info.gate);
        // A locked gate cannot be turned, so that there is no warning in any case.
        assert!(is_in_use || !is_asked || info.switch.is_locked(), "{}", info.name);
        let is_toggle = matches!(info.gate, Gate::AllAlpha | Gate::AllBeta);
        assert!(!is_in_use || is_asked || is_named || is_toggle, "{}", info.name);
    }
}

#[test]
fn what_would_be_wrong_to_run_without_is_refused() {
    for (body, path) in [
        (
            "cpuManagerPolicy: static\ncpuManagerReconcilePeriod: 10s\nreservedSystemCPUs: \"0\"\n",
            "cpuManagerPolicy",
        ),
        (
            "memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]\n",
            "memoryManagerPolicy",
        ),
        ("topologyManagerPolicy: best-effort\n", "topologyManagerPolicy"),
    ] {
        let error = refusal(&["--config=/k"], &[("/k", &file(body))]);
        let text = error.to_string();
        assert_eq!(error.problems.len(), 1, "{text}");
        assert!(
            text.contains(&format!("1. {path}: ")) && text.contains("rubelet does not have"),
            "{text}"
        );
    }
    // A value that no version knows is reported once, as invalid.
    let error = refusal(&["--topology-manager-policy=sideways"], &[]);
    assert_eq!(error.problems.len(), 1, "{error}");
    assert!(error.to_string().contains("must be one of"), "{error}");
    let error = refusal(
        &[
            "--memory-manager-policy=Static",
            "--reserved-memory=0:memory=100Mi",
            "--topology-manager-policy=restricted",
        ],
        &[],
    );
    assert_eq!(error.problems.len(), 2, "{error}");
}

#[test]
fn the_table_can_be_shown() {
    let works = pending_table()
        .iter()
        .filter(|row| row.support == Support::Works)
        .count();
    let refused = pending_table()
        .iter()
        .filter(|row| matches!(row.support, Support::Refused { .. }))
        .count();
    assert!(
        works > 70 && refused == 3,
        "{works} settings work, {refused} are refused"
    );
    let names: BTreeSet<&str> = pending_table().iter().map(|row| row.setting.name()).collect();
    assert_eq!(names.len(), pending_table().len(), "each setting once");
    assert!(pending_table().iter().all(|row| !row.feature.is_empty()));
}
