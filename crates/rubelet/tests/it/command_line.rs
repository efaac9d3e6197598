//! What the program answers before it runs: versions, help, and everything that is wrong with its settings.

use std::fs;
use std::process::{Command, Output};

fn rubelet(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rubelet"))
        .args(arguments)
        .output()
        .unwrap()
}

fn refused(arguments: &[&str]) -> String {
    let output = rubelet(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_version_is_in_upstreams_form() {
    let output = rubelet(&["--version"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        text,
        format!("Kubernetes v1.37.1+rubelet.{}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn help_names_the_flags() {
    let output = rubelet(&["--help"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for flag in [
        "--config",
        "--root-dir",
        "--rubelet-config",
        "--node-labels",
        "--eviction-hard",
    ] {
        assert!(text.contains(flag), "{flag} is missing in:\n{text}");
    }
}

#[test]
fn an_unknown_flag_or_word_is_named() {
    assert!(refused(&["--no-such-flag"]).contains("no-such-flag"));
    assert!(refused(&["run"]).contains("run"));
}

#[test]
fn a_missing_file_is_named() {
    assert!(refused(&["--config", "/nonexistent/kubelet.yaml"]).contains("/nonexistent/kubelet.yaml"));
}

#[test]
fn ten_wrong_values_are_ten_problems_with_their_paths() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubelet.yaml");
    let wrong = [
        ("port", "70000"),
        ("healthzPort", "-1"),
        ("readOnlyPort", "\"many\""),
        ("syncFrequency", "soon"),
        ("maxPods", "-5"),
        ("imageGCHighThresholdPercent", "101"),
        ("registryBurst", "-1"),
        ("nodeLeaseDurationSeconds", "-1"),
        ("cpuCFSQuotaPeriod", "1h"),
        ("hairpinMode", "sometimes"),
    ];
    let fields: String = wrong
        .iter()
        .map(|(field, value)| format!("{field}: {value}\n"))
        .collect();
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\n";
    // Two have the wrong type, the others break a rule: all are reported at once.
    fs::write(&file, format!("{head}{fields}")).unwrap();
    let text = refused(&["--config", file.to_str().unwrap()]);
    for (field, _) in wrong {
        assert!(text.contains(field), "{field} is missing in:\n{text}");
    }
    assert!(text.contains("10 problems"), "{text}");
}

#[test]
fn a_feature_that_is_not_there_yet_is_refused_by_name() {
    let text = refused(&[
        "--cpu-manager-policy=static",
        "--reserved-cpus=0",
        "--fail-cgroupv1=false",
    ]);
    assert!(text.contains("cpuManagerPolicy"), "{text}");
}
