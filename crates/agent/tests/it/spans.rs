//! Spans: every log line on a pod's path names the pod, also the runtime's.

use rubelet_ports::RuntimeErrorKind;
use serde_json::json;

use crate::bed::{Bed, PodText, SOON};
use crate::line::Fault;
use crate::sources_scene::Lines;

/// The one line about this, without what precedes its spans.
fn line(lines: &Lines, text: &str) -> String {
    let found = lines.with(text);
    let line = found.first().unwrap_or_else(|| panic!("no line with {text:?}"));
    line.trim_start().to_owned()
}

#[test]
fn a_failed_call_of_a_job_names_its_pod_and_the_reason() {
    let (lines, _guard) = Lines::capture();
    let mut bed = Bed::started();
    let fail = Fault::Fail(RuntimeErrorKind::Unknown);
    bed.line.fault("CreateContainer", "web/main", fail, 1);
    let web = PodText::new("web", &[]);
    bed.put(&web);
    bed.wait("the pod is ready", 10 * SOON, |bed| bed.is_ready("web"));
    bed.line.fault("StopContainer", "web/main", fail, 1);
    bed.remove(&web);
    bed.wait("the pod is gone", 20 * SOON, |bed| bed.pods().is_empty());

    let pod = r#"pod{namespace="default" name="web-sim" uid=uid-web}:"#;
    let created = line(&lines, "CreateContainer");
    assert!(
        created.starts_with(&format!(r#"WARN {pod}sync{{reason="create"}}: "#)),
        "{created}"
    );
    let stopped = line(&lines, "StopContainer");
    assert!(
        stopped.starts_with(&format!(r#"WARN {pod}terminate{{reason="kill"}}: "#)),
        "{stopped}"
    );
}

#[test]
fn a_job_logs_its_pod_once() {
    let (lines, _guard) = Lines::capture();
    let mut bed = Bed::started();
    let hooks = json!({"postStart": {"exec": {"command": ["exit", "3"]}}});
    bed.put(&PodText::new("web", &[]).container("lifecycle", hooks));
    bed.wait("the hook fails", SOON, |bed| {
        !bed.events("web", "FailedPostStartHook").is_empty()
    });
    let failed = line(&lines, "postStart hook failed");
    assert_eq!(failed.matches("uid-web").count(), 1, "{failed}");
    assert!(failed.contains(r#"sync{reason="create"}: "#), "{failed}");
}
