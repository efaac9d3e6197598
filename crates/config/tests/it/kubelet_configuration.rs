//! Reading, defaults and drop-ins of a KubeletConfiguration.

use rubelet_config::FeatureGates;
use rubelet_config::kubelet_configuration::{
    API_VERSION, DecodeErrors, DropIn, IgnoredPart, KIND, KubeletConfiguration, apply_defaults,
    apply_eviction_hard_defaults, decode, default_kubelet_configuration, legacy_kubelet_configuration,
    merge_drop_ins, resolve_relative_paths,
};
use rubelet_model::GoDuration;
use serde_json::json;

fn all_on() -> FeatureGates {
    FeatureGates::every(true)
}

fn file(body: &str) -> Vec<u8> {
    format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{body}\n").into_bytes()
}

#[track_caller]
fn read(body: &str) -> KubeletConfiguration {
    decode(&file(body), "test")
        .unwrap_or_else(|error| panic!("{error}"))
        .configuration
}

/// The paths of all wrong values.
#[track_caller]
fn wrong(body: &str) -> Vec<String> {
    match decode(&file(body), "test") {
        Err(DecodeErrors::Fields { problems, .. }) => {
            problems.into_iter().map(|problem| problem.path).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn ignored(body: &str) -> Vec<IgnoredPart> {
    let decoded = decode(&file(body), "test").unwrap_or_else(|error| panic!("{error}"));
    decoded
        .warnings
        .into_iter()
        .map(|warning| warning.defect)
        .collect()
}

#[test]
fn an_empty_file_stands_for_the_defaults() {
    let mut configuration = read("");
    apply_defaults(&mut configuration, &all_on());
    assert_eq!(configuration, default_kubelet_configuration(&all_on()));
    assert_eq!(configuration.authorization.mode, "Webhook");
    assert_eq!(configuration.read_only_port, 0);
}

#[test]
fn without_a_file_four_settings_keep_their_old_defaults() {
    let legacy = legacy_kubelet_configuration(&all_on());
    let mut expected = default_kubelet_configuration(&all_on());
    expected.authentication.anonymous.enabled = Some(true);
    expected.authentication.webhook.enabled = Some(false);
    expected.authorization.mode = "AlwaysAllow".to_owned();
    expected.read_only_port = 10255;
    assert_eq!(legacy, expected);
    assert_eq!(legacy.eviction_hard, None);
}

#[test]
fn defaults_that_depend_on_other_fields() {
    let defaulted = |body: &str| {
        let mut configuration = read(body);
        apply_defaults(&mut configuration, &all_on());
        configuration
    };
    assert_eq!(
        defaulted("nodeStatusUpdateFrequency: 20s").node_status_report_frequency,
        GoDuration::from_secs(20)
    );
    assert_eq!(
        defaulted("").node_status_report_frequency,
        GoDuration::from_mins(5)
    );
    assert_eq!(
        defaulted("maxParallelImagePulls: 2").serialize_image_pulls,
        Some(false)
    );
    assert_eq!(
        defaulted("maxParallelImagePulls: 1").serialize_image_pulls,
        Some(true)
    );
    assert_eq!(
        defaulted("enforceNodeAllocatable: []").enforce_node_allocatable,
        Some(vec![])
    );
    assert_eq!(defaulted("podPidsLimit: -7").pod_pids_limit, Some(-1));
}

#[test]
fn defaults_that_depend_on_gates() {
    let off = default_kubelet_configuration(&FeatureGates::every(false));
    assert_eq!(off.crash_loop_back_off.max_container_restart_period, None);
    assert_eq!(off.image_pull_credentials_verification_policy, "");
    let on = default_kubelet_configuration(&all_on());
    assert_eq!(
        on.crash_loop_back_off.max_container_restart_period,
        Some(GoDuration::from_secs(300))
    );
    assert_eq!(
        on.image_pull_credentials_verification_policy,
        "NeverVerifyPreloadedImages"
    );
}

#[test]
fn hard_eviction_thresholds_of_a_file() {
    let thresholds = |body: &str| {
        let mut configuration = read(body);
        apply_defaults(&mut configuration, &all_on());
        apply_eviction_hard_defaults(&mut configuration);
        serde_json::to_value(configuration.eviction_hard).expect("a map is JSON")
    };
    let all = json!({"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%"});
    assert_eq!(thresholds(""), all);
    assert_eq!(thresholds("evictionHard: {}"), json!({}));
    assert_eq!(
        thresholds("evictionHard: {memory.available: 1Gi}"),
        json!({"memory.available": "1Gi"})
    );
    let mut merged = all;
    merged["memory.available"] = json!("1Gi");
    assert_eq!(
        thresholds("evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true"),
        merged
    );
}

#[test]
fn wrong_types_are_all_reported() {
    let body = "maxPods: many\nport: 1.5\nsyncFrequency: 10\nclusterDNS: 10.0.0.10\nenableServer: 1\nevictionHard: {memory.available: 5}\n\
                logging: {verbosity: -1, vmodule: [{filePattern: [], verbosity: 1}]}\nauthentication: {webhook: {enabled: perhaps}}\n\
                reservedMemory: [{numaNode: 0, limits: {memory: 1Qi}}]\nstaticPodPath: 5";
    let paths = [
        "maxPods",
        "port",
        "syncFrequency",
        "clusterDNS",
        "enableServer",
        "evictionHard.memory.available",
        "logging.verbosity",
        "logging.vmodule[0].filePattern",
        "authentication.webhook.enabled",
        "reservedMemory[0].limits.memory",
        "staticPodPath",
    ];
    assert_eq!(wrong(body), paths);
}

#[test]
fn a_problem_names_path_value_and_what_is_allowed() {
    let error = decode(&file("maxPods: many"), "kubelet.yaml")
        .expect_err("a word is no number")
        .to_string();
    for part in [
        "kubelet.yaml",
        "maxPods",
        "\"many\"",
        "whole number between -2147483648 and 2147483647",
    ] {
        assert!(error.contains(part), "{part} is missing in {error}");
    }
}

#[test]
fn header_values_never_show() {
    let error = decode(
        &file("staticPodURLHeader: {Authorization: [{token: hunter2}, 5], X: hunter2}"),
        "test",
    )
    .expect_err("not strings")
    .to_string();
    assert!(error.contains("staticPodURLHeader.Authorization[0]"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
    let configuration = read("staticPodURLHeader: {Authorization: [hunter2]}");
    assert!(!format!("{configuration:?}").contains("hunter2"));
}

#[test]
fn unknown_and_duplicate_fields_are_warnings() {
    let body = "noSuch: 1\nMaxPods: 5\nmaxPods: 6\nmaxPods: 7\nlogging: {colour: blue}\nregisterWithTaints: [{key: a, effekt: b}]";
    let mut expected = [
        "noSuch",
        "MaxPods",
        "logging.colour",
        "registerWithTaints[0].effekt",
    ]
    .map(|path| IgnoredPart::UnknownField(path.to_owned()))
    .to_vec();
    expected.push(IgnoredPart::DuplicateField("maxPods".to_owned()));
    assert_eq!(ignored(body), expected);
    assert_eq!(read(body).max_pods, 7);
    assert_eq!(ignored("---\nmaxPods: 5"), vec![IgnoredPart::FurtherDocuments]);
}

#[test]
fn the_object_must_be_ours() {
    let refused = |text: &str, part: &str| {
        let error = decode(text.as_bytes(), "test").expect_err(text);
        assert!(matches!(error, DecodeErrors::Kind { .. }), "{error:?}");
        assert!(
            error.to_string().contains(part) && error.to_string().contains(API_VERSION),
            "{error}"
        );
    };
    refused("maxPods: 5", "kind is missing");
    refused("kind: KubeletConfiguration", "apiVersion is missing");
    refused(
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1",
        "version \"v1\"",
    );
    refused(
        "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1alpha1",
        "version \"v1alpha1\"",
    );
    refused(
        "kind: CredentialProviderConfig\napiVersion: kubelet.config.k8s.io/v1beta1",
        "CredentialProviderConfig",
    );
    refused("kind: Pod\napiVersion: v1", "a \"Pod\" of \"v1\"");
    refused("- a", "a list, not an object");
    refused("kind: 5\napiVersion: x", "kind is a number");
}

#[test]
fn broken_documents_are_refused() {
    for text in [
        "",
        "{",
        "{\"a\": }",
        "a: [",
        "a: b: c",
        "x: &a [*a]",
        "\t",
        "{kind: x}",
        "a: *b",
    ] {
        assert!(
            matches!(
                decode(text.as_bytes(), "test"),
                Err(DecodeErrors::Syntax { .. } | DecodeErrors::Kind { .. })
            ),
            "{text:?}"
        );
    }
    assert!(matches!(
        decode(b"\xff\xfe", "test"),
        Err(DecodeErrors::Syntax { .. })
    ));
    let deep = file(&format!("a: {}", "[".repeat(100_000)));
    assert!(matches!(decode(&deep, "test"), Err(DecodeErrors::Syntax { .. })));
    let deep_json = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    assert!(matches!(
        decode(deep_json.as_bytes(), "test"),
        Err(DecodeErrors::Syntax { .. })
    ));
}

#[test]
fn aliases_cannot_unfold_without_end() {
    let mut body = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let before = format!("*a{}, ", level - 1).repeat(10);
        body += &format!("a{level}: &a{level} [{before}]\n");
    }
    let error = decode(&file(&body), "test").expect_err("ten to the twelfth values");
    assert!(error.to_string().contains("unfolds"), "{error}");
}

#[test]
fn aliases_and_merge_keys_work() {
    let configuration = read(
        "x: &common {memory.available: 1Gi}\nevictionHard: *common\nevictionSoft: {<<: *common, nodefs.available: 5%}",
    );
    assert_eq!(
        configuration.eviction_hard.expect("it is set")["memory.available"],
        "1Gi"
    );
    assert_eq!(configuration.eviction_soft.len(), 2);
}

#[test]
fn a_block_at_the_end_of_the_file_ends_where_the_file_ends() {
    let text =
        |end: &str| format!("apiVersion: {API_VERSION}\nkind: {KIND}\nstaticPodPath: |\n  a\n  b{end}");
    let path = |end: &str| {
        decode(text(end).as_bytes(), "test")
            .expect("it is good")
            .configuration
            .static_pod_path
    };
    assert_eq!(path(""), "a\nb");
    assert_eq!(path("\n"), "a\nb\n");
    assert_eq!(path("\nmaxPods: 5"), "a\nb\n");
}

#[test]
fn json_is_read_too() {
    let text = json!({"apiVersion": API_VERSION, "kind": KIND, "maxPods": 5, "logging": {"flushFrequency": 7_000_000_000_i64}}).to_string();
    let configuration = decode(text.as_bytes(), "test").expect("it is good").configuration;
    assert_eq!(configuration.max_pods, 5);
    assert_eq!(
        configuration.to_configz()["logging"]["flushFrequency"],
        json!(7_000_000_000_i64)
    );
}

#[test]
fn relative_paths_count_from_the_folder_of_the_file() {
    let mut configuration = read(
        "staticPodPath: manifests\nresolvConf: ''\nauthentication: {x509: {clientCAFile: ../pki/ca.crt}}",
    );
    resolve_relative_paths(&mut configuration, "/etc/kubelet");
    assert_eq!(configuration.static_pod_path, "/etc/kubelet/manifests");
    assert_eq!(configuration.resolv_conf.as_deref(), Some(""));
    assert_eq!(
        configuration.authentication.x509.client_ca_file,
        "/etc/pki/ca.crt"
    );
}

fn drop_ins(bodies: &[&str]) -> Vec<DropIn> {
    bodies
        .iter()
        .enumerate()
        .map(|(position, body)| DropIn {
            source_name: format!("{position}.conf"),
            bytes: file(body),
        })
        .collect()
}

#[track_caller]
fn merged(base: &str, bodies: &[&str]) -> KubeletConfiguration {
    let mut base = read(base);
    apply_defaults(&mut base, &all_on());
    let mut configuration = merge_drop_ins(&base, &drop_ins(bodies))
        .unwrap_or_else(|error| panic!("{error}"))
        .configuration;
    apply_defaults(&mut configuration, &all_on());
    configuration
}

#[test]
fn drop_ins_merge_objects_replace_lists_and_remove_with_null() {
    let base = "maxPods: 5\nclusterDNS: [a, b]\nevictionHard: {memory.available: 1Gi, nodefs.available: 5%}\nfeatureGates: {A: true}";
    let result = merged(
        base,
        &[
            "maxPods: 7\nclusterDNS: [c]",
            "evictionHard: {memory.available: ~, imagefs.available: 9%}\nfeatureGates: {B: false}",
        ],
    );
    assert_eq!(result.max_pods, 7);
    assert_eq!(result.cluster_dns, ["c"]);
    assert_eq!(
        json!(result.eviction_hard),
        json!({"nodefs.available": "5%", "imagefs.available": "9%"})
    );
    assert_eq!(json!(result.feature_gates), json!({"A": true, "B": false}));
    assert_eq!(merged("maxPods: 5", &["maxPods: ~"]).max_pods, 110);
    assert_eq!(merged("maxPods: 5", &["maxPods: 6", "maxPods: 7"]).max_pods, 7);
}

#[test]
fn drop_ins_match_keys_without_regard_to_case() {
    // Where two keys stand for one field, the one that sorts last wins.
    assert_eq!(merged("maxPods: 5", &["maxpods: 6"]).max_pods, 6);
    assert_eq!(merged("maxPods: 5", &["MaxPods: 6"]).max_pods, 5);
}

#[test]
fn drop_ins_are_read_strictly() {
    let base = default_kubelet_configuration(&all_on());
    let refuse = |bytes: Vec<u8>| {
        merge_drop_ins(
            &base,
            &[DropIn {
                source_name: "x.conf".to_owned(),
                bytes,
            }],
        )
        .expect_err("it is bad")
    };
    assert!(matches!(
        refuse(b"maxPods: 5".to_vec()),
        DecodeErrors::Kind { .. }
    ));
    assert!(
        matches!(refuse(file("maxPods: 5\nmaxPods: 6")), DecodeErrors::Duplicates { paths, .. } if paths == ["maxPods"])
    );
    assert!(matches!(refuse(vec![]), DecodeErrors::Syntax { .. }));
    let error = merge_drop_ins(&base, &drop_ins(&["maxPods: 6", "maxPods: x\nport: y"]))
        .expect_err("two wrong types");
    assert_eq!(error.problems().len(), 2);
    assert!(error.to_string().contains("1.conf"), "{error}");
    let fine = merge_drop_ins(&base, &drop_ins(&["maxPods: x", "maxPods: 6"]))
        .expect("a later file overrides the bad value");
    assert_eq!(fine.configuration.max_pods, 6);
    let noted = merge_drop_ins(&base, &drop_ins(&["noSuch: 1"])).expect("unknown fields are no error");
    assert_eq!(noted.warnings.len(), 1);
}

#[test]
fn every_field_is_written_and_read_back() {
    let mut configuration = default_kubelet_configuration(&all_on());
    apply_eviction_hard_defaults(&mut configuration);
    let text = configuration.to_configz().to_string();
    assert_eq!(
        decode(text.as_bytes(), "test").expect("it is ours").configuration,
        configuration.published()
    );
}
