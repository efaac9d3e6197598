//! What a person is told: the one thing that a pod waits for, and the record of what was decided.

use std::time::Duration;

use futures_util::FutureExt;
use rubelet_agent::recorder::{Entry, RECORD_VERSION, Record, actions_as_text, replay_plan};
use rubelet_lifecycle::pod_state::step;
use rubelet_ports::{Clock, PodView, RuntimeErrorKind};
use rubelet_sim::files::FileFaults;
use rubelet_sim::replay::replay;
use serde_json::json;

use crate::bed::{Bed, IMAGE, PodText, SOON};
use crate::line::Fault;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_call_that_hangs_is_named() {
    let check = |method: &'static str, about: &str, expected: &str| {
        let mut bed = Bed::started();
        bed.pass(seconds(2));
        bed.line.fault(method, about, Fault::Hang, 1);
        bed.put(&PodText::new("web", &[]));
        bed.wait(&format!("{method} is named"), SOON, |bed| {
            bed.waits_for("web") == expected
        });
        let since = bed.executor.now();
        bed.pass(seconds(40));
        let wait = bed.explain("web").waits_for.expect("a wait");
        assert_eq!((wait.what.as_str(), wait.last_error), (expected, None));
        assert!(wait.age_seconds.abs_diff(40) <= 1, "{}", wait.age_seconds);
        assert!(wait.since.since(since) < seconds(1) && since.since(wait.since) < seconds(1));
    };
    check("RunPodSandbox", "web", "the runtime to create the sandbox");
    check("PodSandboxStatus", "web", "the sandbox's addresses");
    check(
        "CreateContainer",
        "web/main",
        "the runtime to create container main",
    );
    check(
        "StartContainer",
        "web/main",
        "the runtime to start container main",
    );
    check("ListContainers", "web", "a look at the pod's containers");
}

#[test]
fn the_end_of_a_pod_is_named() {
    let mut bed = Bed::started();
    let pod = PodText::new("web", &["term=ignore"]).spec("terminationGracePeriodSeconds", json!(30));
    bed.put_and_wait(&pod);
    bed.remove(&pod);
    bed.wait("its stop is named", SOON, |bed| {
        bed.waits_for("web") == "containers to stop: main"
    });
    assert_eq!(bed.explain("web").phase, "Terminating");
}

#[test]
fn a_failure_is_told_until_something_goes_well() {
    let mut bed = Bed::started();
    bed.line.fault(
        "CreateContainer",
        "web/main",
        Fault::Fail(RuntimeErrorKind::Unknown),
        1,
    );
    bed.put(&PodText::new("web", &[]));
    let expected = "the next try of container main (CreateContainerError)";
    bed.wait("the failure shows", SOON, |bed| bed.waits_for("web") == expected);
    assert!(bed.last_error("web").contains("injected by the test"));
    assert_eq!(
        bed.events("web", "Failed")[0].message,
        "Error: injected by the test"
    );
    bed.wait("it is tried again", seconds(20), |bed| bed.is_ready("web"));
    assert_eq!(bed.explain("web").waits_for, None);
}

#[test]
fn a_sandbox_that_cannot_be_made_is_told_as_an_event() {
    let check = |kind: RuntimeErrorKind| {
        let mut bed = Bed::started();
        bed.line.fault("RunPodSandbox", "web", Fault::Fail(kind), 1);
        bed.put(&PodText::new("web", &[]));
        bed.wait(&format!("an event tells of {kind:?}"), SOON, |bed| {
            let events = bed.events("web", "FailedCreatePodSandBox");
            events
                .iter()
                .any(|event| event.message.starts_with("Failed to create pod sandbox: "))
        });
        bed.wait("it is tried again", seconds(20), |bed| bed.is_ready("web"));
    };
    check(RuntimeErrorKind::Unknown);
    check(RuntimeErrorKind::DeadlineExceeded);
}

#[test]
fn a_crash_loop_is_named() {
    let mut bed = Bed::started();
    bed.put(&PodText::new("web", &["runs=100:1"]));
    let expected = "the next try of container main (CrashLoopBackOff)";
    bed.wait("the backoff shows", seconds(30), |bed| {
        bed.waits_for("web") == expected
    });
    let (explanation, error) = (bed.explain("web"), bed.last_error("web"));
    assert!(
        error.starts_with("back-off 10s restarting failed container=main"),
        "{error}"
    );
    assert_eq!((explanation.containers_ready, explanation.containers), (0, 1));
    let text = "Back-off restarting failed container main in pod web-sim_default(uid-web)";
    assert_eq!(bed.events("web", "BackOff")[0].message, text);
}

/// A file system that does not answer is what the pod waits for, and no pod else.
#[test]
fn files_that_hang_are_named() {
    let mut bed = Bed::started();
    bed.pass(seconds(2));
    bed.line
        .fault("RunPodSandbox", "web", Fault::SlowAnswer(seconds(1)), 1);
    bed.put(&PodText::new("web", &[]));
    bed.wait("the sandbox is made", SOON, |bed| {
        bed.waits_for("web") == "the runtime to create the sandbox"
    });
    bed.files.set_faults(FileFaults {
        hangs: 10_000,
        ..FileFaults::default()
    });
    bed.wait("the files are named", SOON, |bed| {
        bed.waits_for("web").ends_with(" of container main")
    });
    bed.files.set_faults(FileFaults::default());
    bed.wait("it heals", seconds(60), |bed| bed.is_ready("web"));
}

#[test]
fn an_init_container_is_named() {
    let mut bed = Bed::started();
    let init = json!([{"name": "first", "image": IMAGE, "args": ["runs=60000:0"]}]);
    bed.put(&PodText::new("web", &[]).spec("initContainers", init));
    bed.wait("the init container shows", SOON, |bed| {
        bed.waits_for("web") == "init container first to end"
    });
}

#[test]
fn a_pod_that_is_not_supported_says_so() {
    let mut bed = Bed::started();
    bed.put(&PodText::new("web", &[]).spec("runtimeClassName", json!("kata")));
    bed.wait("the refusal shows", SOON, |bed| !bed.waits_for("web").is_empty());
    assert_eq!(bed.explain("web").phase, "Failed");
    let error = bed.last_error("web");
    assert!(error.contains("spec.runtimeClassName"), "{error}");
    assert!(bed.line.sent_about("RunPodSandbox", "web").is_empty());
}

/// How long a pod waits counts from its own arrival, not from the agent's.
#[test]
fn waiting_for_a_name_begins_when_the_pod_comes() {
    let mut bed = Bed::started();
    let old = PodText::new("web", &["term=ignore"]).spec("terminationGracePeriodSeconds", json!(60));
    bed.put_and_wait(&old);
    bed.pass(seconds(300));
    let came = bed.executor.now();
    bed.put(&old.clone().uid("uid-second"));
    let expected = "the end of the static pod with the same name and uid uid-web";
    let wait = bed.until("the second one waits by name", SOON, |bed| {
        let mut waits = bed.explanations().into_iter().filter_map(|one| one.waits_for);
        waits.find(|wait| wait.what == expected)
    });
    assert!(
        wait.since.since(came) < seconds(2) && came.since(wait.since) < seconds(2),
        "{wait:?}"
    );
    assert!(wait.age_seconds < 3, "{wait:?}");
}

fn record(bed: &mut Bed, uid: &'static str) -> Record {
    let record = bed.ask(move |handle| async move { handle.flight_record(uid).await }.boxed());
    let record = record.expect("the agent answers").expect("the pod is known");
    serde_json::from_value(record).expect("the record reads back")
}

#[test]
fn a_record_comes_out_the_same_when_it_is_run_again() {
    let mut bed = Bed::started();
    let init = json!([{"name": "first", "image": IMAGE, "args": ["runs=100:0"]}]);
    bed.put(&PodText::new("web", &["runs=100:1,100:2,forever"]).spec("initContainers", init));
    bed.wait("the pod is ready at last", seconds(120), |bed| {
        bed.is_ready("web")
    });
    let record = record(&mut bed, "uid-web");
    assert_eq!(record.version, RECORD_VERSION);
    assert!(record.entries.len() <= 24);
    let (mut steps, mut plans, mut acted) = (0, 0, 0);
    for entry in &record.entries {
        match entry {
            Entry::Step {
                at,
                state,
                event,
                next,
                effects,
            } => {
                steps += 1;
                assert_eq!(step(*state, *event, *at), (*next, effects.clone()));
            }
            Entry::Plan { actions, .. } => {
                plans += 1;
                acted += usize::from(!actions.is_empty());
                let plan = replay_plan(entry, &record).expect("a plan");
                assert_eq!(&actions_as_text(&plan), actions);
            }
            Entry::Note { .. } => {}
        }
    }
    assert!(
        steps >= 3 && plans >= 3 && acted >= 2,
        "{steps} steps, {plans} plans, {acted} with actions"
    );
}

/// Whether a container with rules runs again depends on a gate, and replay must not guess it.
#[test]
fn a_record_is_run_again_with_the_gates_of_its_node() {
    let mut bed = Bed::new();
    bed.settings.status_gates.restart.container_restart_rules = false;
    bed.start();
    let rule = json!([{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]);
    let main = json!({
        "name": "main", "image": IMAGE, "args": ["runs=100:42,forever"],
        "restartPolicy": "Never", "restartPolicyRules": rule,
    });
    let containers = json!([main, {"name": "other", "image": IMAGE}]);
    let never = PodText::new("web", &[]).spec("restartPolicy", json!("Never"));
    bed.put(&never.spec("containers", containers));
    bed.wait("the first container ended", SOON, |bed| {
        let statuses = bed.status("web").container_statuses.unwrap_or_default();
        let mut ends = statuses
            .iter()
            .filter_map(|one| one.state.as_ref()?.terminated.as_ref());
        ends.any(|end| end.exit_code == 42)
    });
    bed.pass(seconds(2));
    let mut record = serde_json::to_value(record(&mut bed, "uid-web")).expect("JSON");
    let differences = |record: &serde_json::Value| replay(&record.to_string()).expect("a record").differences;
    assert_eq!(differences(&record), [] as [String; 0]);
    record["gates"]["containerRestartRules"] = json!(true);
    assert_ne!(differences(&record), [] as [String; 0]);
}
