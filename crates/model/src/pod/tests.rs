use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodSpec;

use super::*;

fn pod(annotations: &[(&str, &str)], priority: Option<i32>, class: &str) -> Pod {
    let annotations = annotations
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let mut pod = Pod::default();
    pod.metadata.annotations = Some(annotations.collect::<BTreeMap<_, _>>());
    pod.spec = Some(PodSpec {
        priority,
        priority_class_name: Some(class.to_owned()),
        ..PodSpec::default()
    });
    pod
}

#[test]
fn a_pod_without_metadata_has_empty_names() {
    let mut pod = Pod::default();
    assert_eq!(full_name_of(&pod), "_");
    assert!(uid_of(&pod).is_empty());
    pod.metadata.name = Some("web".to_owned());
    pod.metadata.namespace = Some("prod".to_owned());
    assert_eq!(full_name_of(&pod), "web_prod");
    assert_eq!(PodName::of(&pod).to_string(), "prod/web");
    assert!(is_named(&pod, "prod", "web"));
    assert!(!is_named(&pod, "web", "prod"));
}

#[test]
fn the_source_decides_what_is_static() {
    let check = |source: &str, is_static: bool, is_api: bool, expected: Option<Source>| {
        let pod = pod(&[(SOURCE_ANNOTATION, source)], None, "");
        assert_eq!(is_static_pod(&pod), is_static, "{source}");
        assert_eq!(is_api_pod(&pod), is_api, "{source}");
        assert_eq!(source_of(&pod), expected, "{source}");
    };
    check("file", true, false, Some(Source::File));
    check("http", true, false, Some(Source::Http));
    check("api", false, true, Some(Source::Api));
    check("other", true, false, None);
    assert!(!is_static_pod(&Pod::default()));
    assert!(!is_api_pod(&Pod::default()));
}

#[test]
fn static_mirror_and_prioritised_pods_are_critical() {
    let check = |annotations: &[(&str, &str)], priority, class, expected| {
        let found = Importance::of(&pod(annotations, priority, class));
        assert_eq!(found, expected, "{annotations:?} {priority:?} {class}");
    };
    check(&[], None, "", Importance::Ordinary);
    check(
        &[(SOURCE_ANNOTATION, "api")],
        Some(1_999_999_999),
        "",
        Importance::Ordinary,
    );
    check(&[(SOURCE_ANNOTATION, "file")], None, "", Importance::Critical);
    check(&[(MIRROR_ANNOTATION, "h")], None, "", Importance::Critical);
    check(&[], Some(SYSTEM_CRITICAL_PRIORITY), "", Importance::Critical);
    check(&[], None, SYSTEM_NODE_CRITICAL, Importance::Ordinary);
    let node_critical = Some(SYSTEM_NODE_CRITICAL_PRIORITY);
    check(&[], node_critical, SYSTEM_NODE_CRITICAL, Importance::NodeCritical);
    assert!(Importance::NodeCritical.is_critical() && !Importance::Ordinary.is_critical());
}

#[test]
fn only_a_nodes_phases_are_read() {
    for phase in [Phase::Pending, Phase::Running, Phase::Succeeded, Phase::Failed] {
        assert_eq!(Phase::parse(phase.as_str()), Some(phase));
    }
    for other in ["", "Unknown", "failed"] {
        assert_eq!(Phase::parse(other), None, "{other}");
    }
}
