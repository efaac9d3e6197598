//! What the agent knows of the runtime: lists, events and looks, when each of them fails.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use rubelet_agent::AgentHandle;
use rubelet_model::observation::PodUid;
use rubelet_ports::{Clock, PodView, RuntimeErrorKind};
use rubelet_sim::runtime::Faults;
use rubelet_wire::cri::v1;
use serde_json::json;

use crate::bed::{Bed, PodText, SOON};
use crate::line::Fault;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The longest and the shortest time between two of these.
fn gaps(times: &[Duration]) -> (Duration, Duration) {
    let gaps: Vec<Duration> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let longest = gaps.iter().max().copied().unwrap_or_default();
    (longest, gaps.iter().min().copied().unwrap_or_default())
}

fn crash_main(bed: &mut Bed) -> Duration {
    let at = bed.elapsed();
    assert!(bed.runtime.crash_container(0, 1), "nothing runs");
    at
}

fn restarts(bed: &mut Bed, name: &str) -> i32 {
    bed.container(name).restart_count
}

#[test]
fn a_runtime_without_events_is_listed_every_second() {
    let mut bed = Bed::new();
    bed.runtime.set_has_events(false);
    bed.start();
    bed.pass(seconds(200));
    let lists = bed.line.lists(seconds(2));
    let (longest, shortest) = gaps(&lists);
    assert!(
        longest < seconds(2) && shortest > Duration::from_millis(900),
        "{longest:?} {shortest:?}"
    );
    // Whether it has events by now is asked for now and then.
    let streams = bed.line.sent("GetContainerEvents", Duration::ZERO);
    assert!((3..=6).contains(&streams.len()), "{streams:?}");

    bed.runtime.set_has_events(true);
    let since = bed.elapsed();
    bed.pass(seconds(200));
    let late = bed.line.lists(since + seconds(65));
    let (_, shortest) = gaps(&late);
    assert!(
        shortest >= seconds(10),
        "a runtime that got events is still polled: {shortest:?}"
    );
}

#[test]
fn a_healthy_stream_makes_lists_rare() {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("web", &[]));
    let since = bed.elapsed() + seconds(3);
    bed.pass(seconds(100));
    let lists = bed.line.lists(since);
    let (longest, shortest) = gaps(&lists);
    assert!(shortest >= seconds(10), "{shortest:?}");
    assert!(longest < seconds(11), "the safety net is gone: {longest:?}");
    assert_eq!(bed.line.sent("GetContainerEvents", Duration::ZERO).len(), 1);
}

#[test]
fn a_broken_stream_is_opened_again_and_lists_stand_in_meanwhile() {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("web", &[]));
    bed.pass(seconds(33));
    bed.line.refuse_streams(true);
    bed.runtime.cut_events();
    let cut = bed.elapsed();
    bed.pass(seconds(120));

    let mut lists = vec![cut];
    lists.extend(bed.line.lists(cut));
    let (longest, _) = gaps(&lists);
    assert!(
        longest < seconds(2),
        "without events the runtime was not listed for {longest:?}"
    );
    let tries: Vec<Duration> = bed
        .line
        .sent("GetContainerEvents", cut)
        .iter()
        .map(|sent| sent.at)
        .collect();
    let waits: Vec<u64> = tries
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs())
        .collect();
    assert!(waits.len() >= 4, "{waits:?}");
    assert!(
        waits.windows(2).all(|pair| pair[1] >= pair[0]),
        "no backoff: {waits:?}"
    );
    assert!(waits.iter().all(|wait| *wait <= 60), "{waits:?}");

    bed.line.refuse_streams(false);
    bed.pass(seconds(70));
    let healthy = bed.elapsed();
    bed.pass(seconds(60));
    let (_, shortest) = gaps(&bed.line.lists(healthy));
    assert!(shortest >= seconds(10), "{shortest:?}");
    let crashed = crash_main(&mut bed);
    bed.wait("the crash is seen by its event", SOON, |bed| {
        restarts(bed, "web") == 1
    });
    assert!(bed.elapsed() - crashed < seconds(1));
}

#[test]
fn lost_events_cost_time_and_nothing_else() {
    let mut bed = Bed::started();
    bed.runtime.set_faults(Faults {
        event_is_lost: 10_000,
        ..Faults::calm()
    });
    bed.put_and_wait(&PodText::new("web", &[]));
    bed.pass(seconds(30));
    crash_main(&mut bed);
    bed.wait("the list shows the crash", seconds(12), |bed| {
        restarts(bed, "web") == 1
    });
    assert_eq!(bed.line.sent_about("CreateContainer", "web/main").len(), 2);
}

#[test]
fn doubled_and_late_events_change_nothing() {
    let mut bed = Bed::started();
    bed.runtime.set_faults(Faults {
        event_is_doubled: 10_000,
        event_delay_ms: 3000,
        ..Faults::calm()
    });
    bed.put_and_wait(&PodText::new("web", &[]));
    crash_main(&mut bed);
    bed.wait("the crash is seen", seconds(12), |bed| restarts(bed, "web") == 1);
    bed.pass(seconds(30));
    assert_eq!(
        bed.line.sent_about("CreateContainer", "web/main").len(),
        2,
        "{}",
        bed.trace()
    );
    assert_eq!(bed.line.sent_about("RunPodSandbox", "web").len(), 1);
    assert_eq!(restarts(&mut bed, "web"), 1);
}

#[test]
fn an_event_acts_at_once() {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("web", &[]));
    bed.pass(seconds(15));
    let crashed = crash_main(&mut bed);
    bed.wait("the container runs again", SOON, |bed| restarts(bed, "web") == 1);
    let took = bed.elapsed() - crashed;
    assert!(took < Duration::from_millis(500), "{took:?}");
}

/// An event about this pod, of this time.
fn event(uid: &str, created_at: i64) -> v1::ContainerEventResponse {
    v1::ContainerEventResponse {
        created_at,
        pod_sandbox_status: Some(v1::PodSandboxStatus {
            metadata: Some(v1::PodSandboxMetadata {
                uid: uid.to_owned(),
                ..v1::PodSandboxMetadata::default()
            }),
            ..v1::PodSandboxStatus::default()
        }),
        ..v1::ContainerEventResponse::default()
    }
}

/// The answer of a list can be older than an event that arrives after it.
#[test]
fn an_event_from_during_a_look_is_not_old_news() {
    let mut bed = Bed::started();
    bed.runtime.set_faults(Faults {
        event_is_lost: 10_000,
        ..Faults::calm()
    });
    bed.put_and_wait(&PodText::new("web", &[]));
    bed.pass(seconds(15));
    let slow = Fault::SlowAnswer(Duration::from_millis(200));
    bed.line.fault("ListPodSandbox", "web", slow, 1);
    bed.line.fault("ListContainers", "web", slow, 1);
    bed.line.inject(event("uid-web", bed.executor.now().unix_nanos()));
    bed.pass(Duration::from_millis(100));
    let crashed = crash_main(&mut bed);
    let created_at = bed.executor.now().unix_nanos();
    bed.pass(Duration::from_millis(300));
    bed.line.inject(event("uid-web", created_at));
    bed.wait("the container runs again", seconds(12), |bed| {
        restarts(bed, "web") == 1
    });
    let took = bed.elapsed() - crashed;
    assert!(took < seconds(1), "the crash was seen only after {took:?}");
}

/// What a look has already shown is no reason for another one, however late its event is.
#[test]
fn old_news_cost_no_call() {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("web", &[]));
    let created_at = bed.executor.now().unix_nanos();
    bed.pass(seconds(15));
    bed.line.inject(event("uid-web", bed.executor.now().unix_nanos()));
    bed.pass(seconds(1));
    let since = bed.elapsed();
    for _ in 0..5 {
        bed.line.inject(event("uid-web", created_at));
    }
    bed.pass(seconds(1));
    let looks = bed.line.sent("ListContainers", since);
    assert!(looks.iter().all(|sent| sent.about != "web"), "{looks:?}");
}

#[test]
fn a_question_about_everything_does_not_wait_for_a_pod_that_hangs() {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("stuck", &[]));
    bed.put_and_wait(&PodText::new("web", &[]));
    bed.line
        .fault("ContainerStatus", "stuck/main", Fault::Hang, usize::MAX);
    crash_main(&mut bed);
    bed.pass(seconds(1));
    let asked = bed.elapsed();
    let pods = bed.ask(|handle| async move { handle.runtime_pods().await }.boxed());
    let took = bed.elapsed() - asked;
    assert!(took < seconds(10), "{took:?}");
    let names: Vec<String> = pods
        .expect("an answer")
        .iter()
        .map(|pod| pod.name.clone())
        .collect();
    assert_eq!(names, ["stuck-sim", "web-sim"]);
}

/// An event that names no pod asks for a list of everything, also while an older list is on its way.
#[test]
fn an_event_without_a_pod_is_not_lost_in_a_running_list() {
    let mut bed = Bed::started();
    bed.runtime.set_faults(Faults {
        event_is_lost: 10_000,
        ..Faults::calm()
    });
    bed.put_and_wait(&PodText::new("web", &[]));
    bed.pass(seconds(15));
    bed.line.fault(
        "ListContainers",
        "",
        Fault::SlowAnswer(Duration::from_millis(500)),
        1,
    );
    bed.line.inject(v1::ContainerEventResponse::default());
    bed.pass(Duration::from_millis(200));
    let crashed = crash_main(&mut bed);
    bed.line.inject(v1::ContainerEventResponse::default());
    bed.wait("the crash is seen", seconds(12), |bed| restarts(bed, "web") == 1);
    let took = bed.elapsed() - crashed;
    assert!(took < seconds(2), "{took:?}");
}

#[test]
fn the_end_of_what_is_not_known_is_no_reason_to_list_everything() {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("web", &[]));
    bed.pass(seconds(15));
    let inject = |bed: &mut Bed, kind: v1::ContainerEventType| {
        let since = bed.elapsed();
        bed.line.inject(v1::ContainerEventResponse {
            container_id: "unknown".to_owned(),
            container_event_type: kind as i32,
            created_at: bed.executor.now().unix_nanos(),
            ..v1::ContainerEventResponse::default()
        });
        bed.pass(Duration::from_millis(500));
        bed.line.lists(since).len()
    };
    assert_eq!(inject(&mut bed, v1::ContainerEventType::ContainerDeletedEvent), 0);
    assert_eq!(inject(&mut bed, v1::ContainerEventType::ContainerStartedEvent), 1);
}

/// containerd names no pod in the event of a sandbox that was removed.
#[test]
fn an_event_of_a_known_sandbox_looks_at_its_pod_alone() {
    let mut bed = Bed::started();
    bed.runtime.set_faults(Faults {
        event_is_lost: 10_000,
        ..Faults::calm()
    });
    bed.put_and_wait(&PodText::new("web", &[]));
    bed.pass(seconds(15));
    let web = bed.ask(|handle| async move { handle.runtime_pod(&PodUid::from("uid-web")).await }.boxed());
    let web = web.expect("an answer").expect("a pod");
    let since = bed.elapsed();
    crash_main(&mut bed);
    bed.line.inject(v1::ContainerEventResponse {
        container_id: web.sandboxes[0].id.to_string(),
        created_at: bed.executor.now().unix_nanos(),
        ..v1::ContainerEventResponse::default()
    });
    bed.wait("the crash is seen", SOON, |bed| restarts(bed, "web") == 1);
    assert!(bed.line.lists(since).is_empty(), "everything was listed");
}

#[test]
fn a_look_that_fails_is_tried_again_soon() {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("web", &[]));
    bed.pass(seconds(15));
    bed.line.fault(
        "ContainerStatus",
        "web/main",
        Fault::Fail(RuntimeErrorKind::Unknown),
        1,
    );
    let crashed = crash_main(&mut bed);
    bed.wait("the crash is seen", seconds(30), |bed| restarts(bed, "web") == 1);
    let took = bed.elapsed() - crashed;
    assert!(took < seconds(3), "one failed call cost {took:?}");
}

#[test]
fn a_pod_that_hangs_delays_nobody_else() {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("stuck", &[]));
    bed.put_and_wait(&PodText::new("web", &[]));
    bed.pass(seconds(15));
    bed.line
        .fault("ContainerStatus", "stuck/main", Fault::Hang, usize::MAX);
    crash_main(&mut bed);
    bed.pass(seconds(1));
    let began = bed.elapsed();
    // Only the other one runs now.
    let crashed = crash_main(&mut bed);
    bed.wait("the other pod goes on", SOON, |bed| restarts(bed, "web") == 1);
    let took = bed.elapsed() - crashed;
    assert!(took < Duration::from_millis(500), "{took:?}");
    bed.put_and_wait(&PodText::new("new", &[]));
    assert_eq!(restarts(&mut bed, "stuck"), 0);

    // Its own job waits by name, and gives up by its deadline.
    let edited = PodText::new("stuck", &[]).container("image", json!("registry.test/app:2"));
    bed.runtime.add_image("registry.test/app:2");
    bed.put(&edited);
    bed.wait("the look has a deadline", seconds(150), |bed| {
        !bed.last_error("stuck").is_empty()
    });
    let error = bed.last_error("stuck");
    assert!(
        error.contains("no answer in time") || error.contains("no result within"),
        "{error}"
    );
    assert!(bed.elapsed() - began > seconds(50));

    bed.line.heal();
    bed.wait("it heals", seconds(30), |bed| bed.is_ready("stuck"));
}

/// Neither do more of them than are looked at at the same time.
#[test]
fn many_pods_that_hang_delay_nobody_else() {
    let mut bed = Bed::started();
    for number in 0..20 {
        let name = format!("stuck{number}");
        bed.put_and_wait(&PodText::new(&name, &["runs=30000:1", "forever"]));
        bed.line.fault(
            "ContainerStatus",
            &format!("{name}/main"),
            Fault::Hang,
            usize::MAX,
        );
    }
    bed.put_and_wait(&PodText::new("web", &["runs=40000:1", "forever"]));
    bed.wait("the other pod goes on", seconds(42), |bed| {
        restarts(bed, "web") == 1
    });
    // Those that hung are looked at again, and are known for it.
    bed.pass(seconds(53));
    bed.put(&PodText::new("new", &[]));
    bed.wait("a new pod starts", seconds(1), |bed| bed.is_ready("new"));
    assert_eq!(restarts(&mut bed, "stuck0"), 0);
    bed.line.heal();
    bed.wait("they heal", seconds(90), |bed| restarts(bed, "stuck19") == 1);
}

#[test]
fn a_pod_whose_look_fails_is_told_of() {
    let mut bed = Bed::started();
    bed.line
        .fault("ListContainers", "web", Fault::Fail(RuntimeErrorKind::Unknown), 1);
    bed.put(&PodText::new("web", &[]));
    bed.wait("it is ready in the end", seconds(30), |bed| bed.is_ready("web"));
    let told = bed.events("web", "FailedSync");
    assert_eq!(told.len(), 1);
    let message = &told[0].message;
    assert!(message.starts_with("error determining status: "), "{message}");
}

/// At a restart the static pods wait for the first list, and only for the list.
#[test]
fn a_pod_that_hangs_does_not_delay_the_start_of_the_agent() {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("stuck", &[]));
    bed.kill();
    bed.line
        .fault("ContainerStatus", "stuck/main", Fault::Hang, usize::MAX);
    bed.start();
    let started = bed.elapsed();
    bed.put(&PodText::new("web", &[]));
    bed.wait("the other pod starts", seconds(100), |bed| bed.is_ready("web"));
    let took = bed.elapsed() - started;
    assert!(took < seconds(3), "{took:?}");
    bed.line.heal();
    bed.wait("the pod is adopted", seconds(100), |bed| bed.is_ready("stuck"));
    assert_eq!(bed.line.sent_about("CreateContainer", "stuck/main").len(), 1);
}

/// An answer that was on its way while the job acted says nothing about what the job did.
#[test]
fn nothing_is_decided_from_before_our_last_action() {
    let mut bed = Bed::started();
    bed.pass(seconds(12));
    // Lists of everything, and of the pod, are stale when they arrive.
    let slow = Fault::SlowAnswer(Duration::from_millis(700));
    bed.line.fault("ListPodSandbox", "", slow, usize::MAX);
    bed.line.fault("ListContainers", "", slow, usize::MAX);
    bed.line.fault("ListPodSandbox", "web", slow, usize::MAX);
    bed.line.fault("ListContainers", "web", slow, usize::MAX);
    bed.put(&PodText::new("web", &[]));
    bed.wait("the pod is ready", seconds(20), |bed| bed.is_ready("web"));
    for _ in 0..3 {
        let before = restarts(&mut bed, "web");
        crash_main(&mut bed);
        bed.pass(seconds(400));
        assert_eq!(restarts(&mut bed, "web"), before + 1);
        assert!(bed.is_ready("web"));
    }
    assert_eq!(bed.line.sent_about("RunPodSandbox", "web").len(), 1);
    assert_eq!(bed.line.sent_about("CreateContainer", "web/main").len(), 4);
    assert_eq!(bed.line.sent_about("StartContainer", "web/main").len(), 4);
}

#[test]
fn the_address_stays_when_the_sandbox_is_gone() {
    let mut bed = Bed::started();
    let pod = PodText::new("once", &["runs=3000:0"]).spec("restartPolicy", json!("Never"));
    bed.put_and_wait(&pod);
    let ip = bed.status("once").pod_ip.expect("an address");
    bed.wait("the pod is done", seconds(30), |bed| {
        bed.phase("once") == "Succeeded"
    });
    bed.wait("its sandbox is stopped", seconds(30), |bed| {
        !bed.line.sent_about("StopPodSandbox", "once").is_empty()
    });
    bed.pass(seconds(15));
    assert_eq!(bed.status("once").pod_ip, Some(ip));
}

fn message_of(bed: &mut Bed, name: &str) -> String {
    let state = bed.container(name).state.unwrap_or_default();
    state
        .terminated
        .and_then(|ended| ended.message)
        .unwrap_or_default()
}

#[test]
fn the_last_words_come_from_the_file() {
    let mut bed = Bed::started();
    let pod = PodText::new("once", &["runs=3000:3"]).spec("restartPolicy", json!("Never"));
    bed.put_and_wait(&pod);
    let directory = bed.settings.root_dir.join("pods/uid-once/containers/main");
    let files = bed.files.paths_below(&directory);
    let file = files.last().expect("a file for the message");
    bed.files.place(file, b"out of luck");
    bed.wait("the pod failed", seconds(30), |bed| bed.phase("once") == "Failed");
    assert_eq!(message_of(&mut bed, "once"), "out of luck");
}

#[test]
fn who_was_killed_for_its_memory_is_told_so_whatever_the_runtime_knows() {
    let mut bed = Bed::started();
    let ended = |bed: &mut Bed, name: &str, code: i32| {
        let pod = PodText::new(name, &[&format!("runs=3000:{code}")]).spec("restartPolicy", json!("Never"));
        bed.put_and_wait(&pod);
        bed.wait("the pod failed", seconds(30), |bed| bed.phase(name) == "Failed");
        let state = bed.container(name).state.unwrap_or_default();
        let terminated = state.terminated.expect("it has ended");
        (terminated.exit_code, terminated.reason.unwrap_or_default())
    };
    let error = |code: i32| (code, "Error".to_owned());
    assert_eq!(ended(&mut bed, "by-somebody", 137), error(137));
    bed.memory_kills.all.store(true, Ordering::Relaxed);
    assert_eq!(ended(&mut bed, "for-memory", 137), (137, "OOMKilled".to_owned()));
    assert_eq!(ended(&mut bed, "by-itself", 1), error(1), "nobody killed it");
    assert_eq!(bed.memory_kills.asked.load(Ordering::Relaxed), 2);
}

#[test]
fn the_last_words_come_from_the_log_when_the_file_is_empty() {
    let mut bed = Bed::started();
    let check = |bed: &mut Bed, name: &str, code: i32, expected: &str| {
        let pod = PodText::new(name, &[&format!("runs=3000:{code}")])
            .spec("restartPolicy", json!("Never"))
            .container("terminationMessagePolicy", json!("FallbackToLogsOnError"));
        bed.put_and_wait(&pod);
        let directory = format!("/var/log/pods/default_{name}-sim_uid-{name}/main/0.log");
        let log =
            b"2026-01-01T00:00:00.000000000Z stdout F one\n2026-01-01T00:00:00.000000001Z stderr F two\n";
        bed.files.place(directory.as_ref(), log);
        bed.wait("the pod ended", seconds(30), |bed| {
            matches!(bed.phase(name).as_str(), "Failed" | "Succeeded")
        });
        assert_eq!(message_of(bed, name), expected);
    };
    check(&mut bed, "failed", 1, "one\ntwo\n");
    check(&mut bed, "fine", 0, "");
}

#[test]
fn the_last_words_come_from_a_log_with_long_lines() {
    let mut bed = Bed::started();
    let check = |bed: &mut Bed, name: &str, length: usize| {
        let pod = PodText::new(name, &["runs=3000:1"])
            .spec("restartPolicy", json!("Never"))
            .container("terminationMessagePolicy", json!("FallbackToLogsOnError"));
        bed.put_and_wait(&pod);
        let path = format!("/var/log/pods/default_{name}-sim_uid-{name}/main/0.log");
        let log = format!(
            "2026-01-01T00:00:00.000000000Z stdout F {}end\n",
            "x".repeat(length)
        );
        bed.files.place(path.as_ref(), log.as_bytes());
        bed.wait("the pod ended", seconds(30), |bed| bed.phase(name) == "Failed");
        let message = message_of(bed, name);
        assert!(message.len() == 2048 && message.ends_with("xend\n"), "{message}");
    };
    check(&mut bed, "long", 16_000);
    check(&mut bed, "longer", 300_000);
}

/// Logs outlive what the runtime knows of a container.
#[test]
fn restarts_are_counted_from_logs_when_the_runtime_has_lost_the_container() {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("web", &[]));
    crash_main(&mut bed);
    bed.wait("it runs again", SOON, |bed| restarts(bed, "web") == 1);
    bed.runtime.lose_state();
    bed.wait("it is made anew", seconds(60), |bed| {
        bed.line.sent_about("StartContainer", "web/main").len() == 3 && bed.is_ready("web")
    });
    assert_eq!(restarts(&mut bed, "web"), 2);
    let created = bed.line.created("web/main");
    let metadata = created.last().and_then(|config| config.metadata.as_ref());
    assert_eq!(metadata.map(|metadata| metadata.attempt), Some(2));
}

#[test]
fn a_list_that_fails_is_tried_again_soon() {
    let mut bed = Bed::new();
    bed.line
        .fault("ListContainers", "", Fault::Fail(RuntimeErrorKind::Unknown), 2);
    bed.put(&PodText::new("web", &[]));
    bed.start();
    bed.wait("the pod starts", seconds(30), |bed| bed.is_ready("web"));
    assert!(bed.elapsed() < seconds(4), "{:?}", bed.elapsed());
    // The same later on, for everything that only lists show.
    bed.pass(seconds(25));
    bed.line
        .fault("ListContainers", "", Fault::Fail(RuntimeErrorKind::Unknown), 1);
    let since = bed.elapsed();
    bed.pass(seconds(25));
    let (_, shortest) = gaps(&bed.line.lists(since));
    assert!(shortest < seconds(2), "{shortest:?}");
}

/// A question about one pod waits for that pod alone.
#[test]
fn a_question_about_one_pod_looks_at_no_other() {
    let mut bed = Bed::started();
    bed.put_and_wait(&PodText::new("stuck", &[]));
    bed.put_and_wait(&PodText::new("web", &[]));
    bed.pass(seconds(15));
    for method in ["ListPodSandbox", "ListContainers"] {
        bed.line.fault(method, "stuck", Fault::Hang, usize::MAX);
    }
    crash_main(&mut bed);
    bed.pass(Duration::from_millis(100));
    let asked = bed.elapsed();
    let look = |uid: &'static str| {
        move |handle: AgentHandle| async move { handle.runtime_pod(&PodUid::from(uid)).await }.boxed()
    };
    let web = bed.ask(look("uid-web")).expect("an answer").expect("a pod");
    assert_eq!(web.name, "web-sim");
    let took = bed.elapsed() - asked;
    assert!(took < seconds(1), "{took:?}");
    assert!(bed.line.lists(asked).is_empty(), "everything was listed");
    assert_eq!(bed.ask(look("uid-none")).expect("an answer"), None);
}

/// A pod that was slow to look at is forgotten with everything else of it.
#[test]
fn nothing_is_remembered_of_pods_that_are_gone() {
    let mut bed = Bed::started();
    bed.pass(seconds(2));
    let pods: Vec<PodText> = (0..20)
        .map(|number| PodText::new(&format!("web{number}"), &[]))
        .collect();
    for pod in &pods {
        bed.put_and_wait(pod);
    }
    // More of them than may be looked at at the same time, so that the slow ones are told apart.
    for pod in &pods {
        let slow = Fault::SlowAnswer(seconds(20));
        bed.line.fault("ListContainers", &pod.name, slow, usize::MAX);
        bed.remove(pod);
    }
    bed.wait("nothing is left", seconds(1200), |bed| {
        !bed.runtime.has_anything()
    });
    bed.wait("nothing is remembered", seconds(300), |bed| {
        let sizes = bed.ask(|handle| async move { handle.table_sizes().await }.boxed());
        sizes.expect("an answer").iter().all(|(_, size)| *size == 0)
    });
}
