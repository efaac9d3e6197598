mod fakes;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use std::path::Path;

use fakes::Bench;
use rubelet_wire::cri::v1::ContainerState::{ContainerExited, ContainerRunning, ContainerUnknown};
use rubelet_wire::cri::v1::PodSandboxState::{SandboxNotready, SandboxReady};

use super::*;

fn fates(known: &[(&str, PodFate)], sources_ready: bool) -> PodFates {
    PodFates {
        known: known
            .iter()
            .map(|(pod, fate)| (PodUid::from(*pod), *fate))
            .collect(),
        sources_ready,
        also_of_ended_pods: false,
        unreadable_sandboxes: BTreeSet::new(),
    }
}

fn collect(bench: &Bench, scope: &GarbageScope, fates: PodFates) -> GarbageReport {
    let fates = Arc::new(fates);
    let view = || Arc::clone(&fates);
    bench
        .collector
        .collect(scope, &view)
        .now_or_never()
        .expect("nothing hangs")
}

/// A pod that lives with two restarts, one that is gone, one that nobody knows.
fn bench() -> Bench {
    let bench = Bench::new();
    for attempt in 0..2 {
        bench.add_container(&format!("live/a#{attempt}"), ContainerExited);
    }
    bench.add_container("live/a#2", ContainerRunning);
    bench.runtime.add_sandbox("live-sandbox", "live", 1, SandboxReady);
    bench.runtime.add_sandbox("live-old", "live", 0, SandboxNotready);
    bench.add_container("gone/a#0", ContainerExited);
    bench.add_container("gone/b#0", ContainerUnknown);
    bench
        .runtime
        .add_sandbox("gone-sandbox", "gone", 0, SandboxNotready);
    bench.add_container("strange/a#0", ContainerExited);
    bench
        .runtime
        .add_sandbox("strange-sandbox", "strange", 0, SandboxNotready);
    for pod in ["live", "gone", "strange", "trace"] {
        bench.files.add_file(&format!("/root/pods/{pod}/etc-hosts"));
    }
    bench.files.add_file("/logs/ns_trace-name_trace/a/0.log");
    bench
}

const KNOWN: [(&str, PodFate); 2] = [("live", PodFate::Lives), ("gone", PodFate::ContentMayGo)];

#[test]
fn the_whole_node() {
    let bench = bench();
    let report = collect(&bench, &GarbageScope::Node, fates(&KNOWN, true));
    assert_eq!(report.problems, BTreeMap::new());
    assert_eq!(
        bench.calls(),
        [
            "remove gonexax0",
            "stop(2) gonexbx0",
            "remove gonexbx0",
            "remove livexax0",
            "remove strangexax0",
            "stop gone-sandbox",
            "remove gone-sandbox",
            "stop live-old",
            "remove live-old",
            "stop strange-sandbox",
            "remove strange-sandbox",
        ]
    );
    assert_eq!(
        bench.files.leaves("/"),
        [
            "/links/live-name_ns_a-livexax1.log",
            "/links/live-name_ns_a-livexax2.log",
            "/logs/ns_live-name_live/a/1.log",
            "/logs/ns_live-name_live/a/1.log.20260101-000000.gz",
            "/logs/ns_live-name_live/a/2.log",
            "/logs/ns_live-name_live/a/2.log.20260101-000000.gz",
            "/root/pods/live/etc-hosts",
        ]
    );
    // A second time there is nothing left to do.
    let report = collect(&bench, &GarbageScope::Node, fates(&KNOWN, true));
    assert_eq!(report, GarbageReport::default());
    assert_eq!(bench.calls(), [""; 0]);
}

#[test]
fn until_every_source_has_spoken_strangers_keep_everything() {
    let bench = bench();
    let report = collect(&bench, &GarbageScope::Node, fates(&KNOWN, false));
    assert_eq!(
        bench.calls(),
        ["remove livexax0", "stop live-old", "remove live-old"]
    );
    assert!(report.paths.is_empty());
    assert_eq!(bench.files.leaves("/root/pods").len(), 4);
}

#[test]
fn one_pod_that_went() {
    let bench = bench();
    let scope = GarbageScope::Pods([PodUid::from("gone")].into());
    let report = collect(&bench, &scope, fates(&KNOWN, true));
    assert_eq!(
        bench.calls(),
        [
            "remove gonexax0",
            "stop(2) gonexbx0",
            "remove gonexbx0",
            "stop gone-sandbox",
            "remove gone-sandbox",
        ]
    );
    let paths: Vec<String> = report
        .paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    assert_eq!(paths, ["/logs/ns_gone-name_gone", "/root/pods/gone"]);
    assert!(
        bench
            .files
            .leaves("/links")
            .iter()
            .all(|link| !link.contains("gone"))
    );
}

#[test]
fn several_pods_are_one_search() {
    let bench = bench();
    let both = BTreeSet::from(["gone", "live"].map(PodUid::from));
    let scope = GarbageScope::DeadContainers(both.clone());
    let report = collect(&bench, &scope, fates(&[], true));
    // One of each name stays.
    assert_eq!(report.containers, [ContainerId::from("livexax0")]);
    assert_eq!(bench.runtime.state().lists, 1, "not one for each pod");
    let report = collect(&bench, &GarbageScope::Pods(both), fates(&KNOWN, true));
    assert_eq!(report.containers.len(), 2);
    assert_eq!(
        report.sandboxes,
        ["gone-sandbox", "live-old"].map(SandboxId::from)
    );
    assert_eq!(bench.runtime.state().lists, 3, "before and after the removals");
    assert!(
        !bench
            .files
            .leaves("/root/pods")
            .iter()
            .any(|path| path.contains("gone"))
    );
    let kept = bench.calls().into_iter().filter(|call| call.contains("strange"));
    assert_eq!(kept.count(), 0, "other pods keep what they have");
}

#[test]
fn one_pod_that_lives_after_all() {
    let bench = bench();
    let scope = GarbageScope::Pods([PodUid::from("gone")].into());
    let report = collect(&bench, &scope, fates(&[("gone", PodFate::Lives)], true));
    assert_eq!(report, GarbageReport::default());
}

#[test]
fn dead_containers_of_a_living_pod() {
    let bench = bench();
    let scope = GarbageScope::DeadContainers([PodUid::from("live")].into());
    // The view has no say: one of each name stays anyway.
    let report = collect(&bench, &scope, fates(&[], true));
    assert_eq!(report.containers, [ContainerId::from("livexax0")]);
    assert_eq!(bench.calls(), ["remove livexax0"]);
    assert_eq!(
        bench.files.leaves("/logs/ns_live-name_live/a"),
        [
            "/logs/ns_live-name_live/a/1.log",
            "/logs/ns_live-name_live/a/1.log.20260101-000000.gz",
            "/logs/ns_live-name_live/a/2.log",
            "/logs/ns_live-name_live/a/2.log.20260101-000000.gz",
        ]
    );
}

#[test]
fn a_runtime_that_is_down_keeps_every_file() {
    let bench = bench();
    bench.runtime.state().lists_fail = true;
    let before = bench.files.leaves("/");
    let report = collect(&bench, &GarbageScope::Node, fates(&KNOWN, true));
    assert_eq!(bench.files.leaves("/"), before);
    assert_eq!(
        report.problems.keys().collect::<Vec<_>>(),
        ["the runtime's lists"]
    );
}

#[test]
fn a_search_that_fails_is_the_nodes_event_once_until_one_goes_well() {
    let bench = bench();
    let check = |scope: &GarbageScope, lists_fail: bool, is_told: bool| {
        bench.runtime.state().lists_fail = lists_fail;
        collect(&bench, scope, fates(&KNOWN, true));
        let told = bench.node_events.take();
        assert_eq!(told.len(), usize::from(is_told), "{told:?}");
        let words = "ContainerGCFailed: Call on unix:///fake.sock";
        assert!(told.iter().all(|text| text.starts_with(words)), "{told:?}");
    };
    let pod = GarbageScope::Pods([PodUid::from("gone")].into());
    check(&pod, true, false);
    check(&GarbageScope::Node, true, true);
    check(&GarbageScope::Node, true, false);
    // One container that stays is no failure of the search.
    bench.runtime.state().broken.insert("gonexbx0".to_owned());
    check(&GarbageScope::Node, false, false);
    check(&GarbageScope::Node, true, true);
}

#[test]
fn what_cannot_be_removed_keeps_its_pod_and_nothing_else() {
    let bench = bench();
    bench.runtime.state().broken.insert("gonexbx0".to_owned());
    let report = collect(&bench, &GarbageScope::Node, fates(&KNOWN, true));
    let problem = "Call on unix:///fake.sock: failed: broken".to_owned();
    assert_eq!(
        report.problems,
        [("container gonexbx0".to_owned(), problem)].into()
    );
    assert_eq!(
        report.sandboxes,
        ["live-old", "strange-sandbox"].map(SandboxId::from)
    );
    assert!(
        bench
            .files
            .leaves("/root/pods")
            .contains(&"/root/pods/gone/etc-hosts".to_owned())
    );
    assert_eq!(bench.files.leaves("/logs/ns_strange-name_strange"), [""; 0]);
}

#[test]
fn a_panic_keeps_its_pod_and_nothing_else() {
    let bench = bench();
    bench.runtime.state().panicking.insert("gonexbx0".to_owned());
    let report = collect(&bench, &GarbageScope::Node, fates(&KNOWN, true));
    let problem = "a defect in rubelet: the task panicked: on purpose".to_owned();
    assert_eq!(
        report.problems,
        [("the garbage of pod gone".to_owned(), problem)].into()
    );
    assert_eq!(
        report.sandboxes,
        ["live-old", "strange-sandbox"].map(SandboxId::from)
    );
    let left = bench.files.leaves("/root/pods");
    assert_eq!(left, ["/root/pods/gone/etc-hosts", "/root/pods/live/etc-hosts"]);
}

#[test]
fn a_pod_that_hangs_holds_up_no_other() {
    let bench = bench();
    bench.runtime.state().hanging.insert("gonexax0".to_owned());
    let view = || Arc::new(fates(&KNOWN, true));
    let collection = bench.collector.collect(&GarbageScope::Node, &view);
    assert!(collection.now_or_never().is_none());
    assert_eq!(
        bench.calls(),
        ["remove gonexax0", "remove livexax0", "remove strangexax0"]
    );
}

#[test]
fn a_pod_that_comes_while_the_node_is_searched_is_known() {
    let bench = bench();
    let asked = Mutex::new(0);
    // Unknown at the first look, known from the second on: as if it came between the two.
    let view = || {
        let mut asked = asked.lock().unwrap();
        *asked += 1;
        let mut known = KNOWN.to_vec();
        if *asked > 1 {
            known.push(("trace", PodFate::Lives));
        }
        Arc::new(fates(&known, true))
    };
    bench
        .collector
        .collect(&GarbageScope::Node, &view)
        .now_or_never()
        .unwrap();
    assert_eq!(
        bench.files.leaves("/root/pods"),
        ["/root/pods/live/etc-hosts", "/root/pods/trace/etc-hosts"]
    );
    assert_eq!(
        bench.files.leaves("/logs/ns_trace-name_trace"),
        ["/logs/ns_trace-name_trace/a/0.log"]
    );
}

#[test]
fn nothing_goes_across_a_mount_and_it_is_told_once() {
    let bench = bench();
    let mount = PathBuf::from("/root/pods/trace/volumes/v");
    bench.files.mounts.lock().unwrap().insert(mount);
    for _ in 0..2 {
        let report = collect(&bench, &GarbageScope::Node, fates(&KNOWN, true));
        let expected = [(
            "/root/pods/trace".to_owned(),
            "/root/pods/trace: Mounted".to_owned(),
        )];
        assert_eq!(report.problems, expected.clone().into());
        assert_eq!(*bench.collector.told.lock().unwrap(), expected.into());
    }
    bench.files.mounts.lock().unwrap().clear();
    collect(&bench, &GarbageScope::Node, fates(&KNOWN, true));
    assert_eq!(*bench.collector.told.lock().unwrap(), BTreeMap::new());
    assert_eq!(bench.files.leaves("/root/pods"), ["/root/pods/live/etc-hosts"]);
}

#[test]
fn volumes_go_before_their_directory_and_keep_it_when_they_stay() {
    let bench = Bench::new();
    for pod in ["live", "orphan", "stuck"] {
        bench.files.add_file(&format!("/root/pods/{pod}/etc-hosts"));
    }
    bench.volumes.stuck.lock().unwrap().insert(PodUid::from("stuck"));
    let report = collect(&bench, &GarbageScope::Node, fates(&KNOWN, false));
    assert_eq!(report.problems, BTreeMap::new());
    assert!(
        bench.volumes.taken_down.lock().unwrap().is_empty(),
        "not before all sources delivered"
    );
    let report = collect(&bench, &GarbageScope::Node, fates(&KNOWN, true));
    let expected = [("/root/pods/stuck".to_owned(), "the volume is in use".to_owned())];
    assert_eq!(report.problems, expected.into());
    assert_eq!(
        *bench.volumes.taken_down.lock().unwrap(),
        [PodUid::from("orphan")]
    );
    let counted = (
        bench.metrics.orphans_cleaned.get(),
        bench.metrics.orphans_kept.get(),
    );
    assert_eq!(counted, (2, 1));
    assert_eq!(
        bench.files.leaves("/root/pods"),
        ["/root/pods/live/etc-hosts", "/root/pods/stuck/etc-hosts"]
    );
}

#[test]
fn links_that_lead_nowhere_go_unless_their_container_has_not_ended() {
    let bench = Bench::new();
    bench.runtime.add_container("p/a#1", ContainerRunning);
    bench.runtime.add_container("p/a#0", ContainerExited);
    bench.files.add_file("/logs/ns_p-name_p/a/0.log");
    bench
        .files
        .add_link("/links/p-name_ns_a-pxax1.log", "/logs/rotated-just-now");
    bench
        .files
        .add_link("/links/p-name_ns_a-pxax0.log", "/logs/nowhere");
    bench
        .files
        .add_link("/links/q-name_ns_a-0123.log", "/logs/nowhere");
    bench
        .files
        .add_link("/links/r-name_ns_a-0123.log", "/logs/ns_p-name_p/a/0.log");
    bench.files.add_link("/links/somebody-elses.log", "/logs/nowhere");
    bench.files.add_file("/links/s-name_ns_a-0123.log");
    collect(&bench, &GarbageScope::Node, fates(&[("p", PodFate::Lives)], true));
    assert_eq!(
        bench.files.leaves("/links"),
        [
            "/links/p-name_ns_a-pxax1.log",
            "/links/r-name_ns_a-0123.log",
            "/links/s-name_ns_a-0123.log",
            "/links/somebody-elses.log",
        ]
    );
}

#[test]
fn strangers_on_the_runtime_and_in_the_folders_stay() {
    let bench = Bench::new();
    bench.runtime.add_container("p/a#0", ContainerExited);
    bench.runtime.add_sandbox("sandbox", "p", 0, SandboxNotready);
    {
        let mut state = bench.runtime.state();
        state.containers.values_mut().for_each(|one| one.labels.clear());
        state.sandboxes.values_mut().for_each(|one| one.labels.clear());
    }
    bench.files.add_directory("/logs/lost+found");
    bench.files.add_file("/logs/ns_a_b");
    bench.files.add_file("/root/pods/readme");
    let report = collect(&bench, &GarbageScope::Node, fates(&[], true));
    assert_eq!(report, GarbageReport::default());
}

#[test]
fn the_link_to_a_log() {
    let bench = Bench::new();
    let mut pod = Pod::default();
    pod.metadata.name = Some("web".to_owned());
    pod.metadata.namespace = Some("ns".to_owned());
    let make = || {
        let link = LogLink {
            directory: Path::new("/links"),
            pod: &pod,
            container: "main",
            container_id: "3f1c",
            log_file: Path::new("/logs/ns_web_u/main/0.log"),
        };
        link_log(&*bench.files, &*bench.files, link)
            .now_or_never()
            .unwrap()
    };
    assert_eq!(make(), Ok(()));
    assert_eq!(
        bench.files.leaves("/links"),
        [""; 0],
        "without a log there is no link"
    );
    bench.files.add_file("/logs/ns_web_u/main/0.log");
    assert_eq!(make(), Ok(()));
    assert_eq!(make(), Ok(()), "twice is fine");
    assert_eq!(
        bench.files.target("/links/web_ns_main-3f1c.log"),
        Some(PathBuf::from("/logs/ns_web_u/main/0.log"))
    );
}

#[test]
fn the_grace_of_a_container_that_may_run() {
    let check = |recorded: &[(&str, &str)], expected: i64| {
        let annotations = recorded
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        assert_eq!(grace_seconds(&annotations), expected, "{recorded:?}");
    };
    check(&[], 2);
    check(&[(labels::TERMINATION_GRACE_PERIOD, "30")], 30);
    check(
        &[
            (labels::TERMINATION_GRACE_PERIOD, "30"),
            (labels::DELETION_GRACE_PERIOD, "5"),
        ],
        5,
    );
    check(&[(labels::TERMINATION_GRACE_PERIOD, "0")], 2);
    check(&[(labels::TERMINATION_GRACE_PERIOD, "-9223372036854775808")], 2);
    check(
        &[(labels::TERMINATION_GRACE_PERIOD, "9223372036854775807")],
        MAX_PERIOD_SECONDS,
    );
    check(&[(labels::TERMINATION_GRACE_PERIOD, "soon")], 2);
}

/// Fails to compile when a collection can no longer be a task.
#[test]
fn a_collection_can_be_spawned() {
    fn as_task(collector: GarbageCollector) -> futures_util::future::BoxFuture<'static, GarbageReport> {
        async move {
            let view = || Arc::new(PodFates::default());
            collector.collect(&GarbageScope::Node, &view).await
        }
        .boxed()
    }
    let report = as_task(Bench::new().collector).now_or_never();
    assert_eq!(report, Some(GarbageReport::default()));
}

#[test]
fn cgroups_go_with_the_last_of_their_pods() {
    let bench = bench();
    let pods = ["live", "gone", "strange", "orphan", "stuck"].map(PodUid::from);
    bench.cgroups.0.lock().unwrap().extend(pods);
    let left = || -> Vec<String> {
        let pods = bench.cgroups.0.lock().unwrap();
        pods.iter().map(ToString::to_string).collect()
    };
    let report = collect(&bench, &GarbageScope::Node, fates(&KNOWN, false));
    assert!(report.cgroups.is_empty(), "sources are not ready: {report:?}");
    assert_eq!(left().len(), 5);
    let report = collect(&bench, &GarbageScope::Node, fates(&KNOWN, true));
    assert_eq!(left(), ["live", "stuck"]);
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert!(
        report.problems.contains_key("the cgroup of pod stuck"),
        "{report:?}"
    );
}
