//! The graceful shutdown of the node, with a simulated service that shuts the machine down.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeCondition, PodStatus};
use prometheus::Registry;
use rubelet_agent::node_shutdown::{ShutdownHandle, ShutdownMetrics, ShutdownSettings};
use rubelet_config::gates::FeatureGates;
use rubelet_config::kubelet_configuration::default_kubelet_configuration;
use rubelet_lifecycle::node_shutdown::ShutdownPeriods;
use rubelet_sim::node;
use rubelet_sim::shutdowns::SimShutdowns;
use serde_json::json;
use tokio::sync::watch;

use crate::bed::{Bed, PodText, SOON, known_node};
use crate::cluster::{ApiPod, condition};
use crate::line::Fault;

const CRITICAL: i64 = 2_000_000_000;
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn state_file() -> PathBuf {
    Path::new(node::ROOT).join("graceful_node_shutdown_state")
}

/// A node with 30 s for its pods, 10 s of them for critical ones.
struct Machine {
    bed: Bed,
    service: SimShutdowns,
    shutting_down: watch::Receiver<bool>,
    metrics: Registry,
    sender: Option<watch::Sender<bool>>,
    handle: Option<ShutdownHandle>,
}

impl Machine {
    /// It follows nothing yet.
    fn new(in_cluster: bool) -> Self {
        let (sender, shutting_down) = watch::channel(false);
        let mut bed = if in_cluster {
            Bed::in_cluster_with(shutting_down.clone())
        } else {
            let mut bed = Bed::new();
            bed.node.shutting_down = shutting_down.clone();
            bed.start();
            bed
        };
        bed.pass(seconds(1));
        Self {
            bed,
            service: SimShutdowns::default(),
            shutting_down,
            metrics: Registry::new(),
            sender: Some(sender),
            handle: None,
        }
    }

    fn follow(&mut self) {
        let mut configuration = default_kubelet_configuration(&FeatureGates::default());
        configuration.shutdown_grace_period = "30s".parse().unwrap();
        configuration.shutdown_grace_period_critical_pods = "10s".parse().unwrap();
        let periods = ShutdownPeriods::of(&configuration, &FeatureGates::default());
        let settings = ShutdownSettings {
            periods: periods.expect("periods"),
            root_dir: PathBuf::from(node::ROOT),
            metrics: Some(ShutdownMetrics::register(&self.metrics).unwrap()),
        };
        let sender = self.sender.take().expect("it follows once");
        self.handle = Some(self.bed.follow_shutdowns(&self.service, settings, sender));
    }

    fn following(in_cluster: bool) -> Self {
        let mut machine = Self::new(in_cluster);
        machine.follow();
        machine.wait_locked();
        machine
    }

    fn wait_locked(&mut self) {
        let service = self.service.clone();
        self.bed
            .wait("the lock is held", seconds(60), |_| service.locks() == 1);
    }

    fn wait_released(&mut self, limit: Duration) {
        let service = self.service.clone();
        self.bed
            .wait("the lock is released", limit, |_| service.locks() == 0);
    }

    fn metric(&self, name: &str) -> f64 {
        let families = self.metrics.gather();
        let found = families.iter().find(|family| family.name() == name);
        found.expect("the metric").get_metric()[0].get_gauge().get_value()
    }

    fn state(&self) -> serde_json::Value {
        let content = self.bed.files.content(&state_file()).expect("the file");
        serde_json::from_slice(&content).expect("a document")
    }

    fn messages(&self) -> Vec<String> {
        let events = self.bed.node_events("Shutdown").into_iter();
        events.map(|event| event.message).collect()
    }

    fn wait_stopping(&mut self, about: &str) {
        self.bed.wait("it is asked to stop", SOON, |bed| {
            bed.line.sent_about("StopContainer", about).len() == 1
        });
    }

    fn stops(&self, about: &str) -> usize {
        self.bed.line.sent_about("StopContainer", about).len()
    }
}

/// Ends some time after it is asked to.
fn pod(name: &str, priority: i64, term_millis: u64) -> PodText {
    PodText::new(name, &[&format!("term={term_millis}:0")])
        .spec("priority", json!(priority))
        .spec("terminationGracePeriodSeconds", json!(60))
}

fn check_ended(status: &PodStatus) {
    let phase = (status.phase.as_deref(), status.reason.as_deref());
    assert_eq!(phase, (Some("Failed"), Some("Terminated")));
    assert_eq!(status.message.as_deref(), Some(MESSAGE));
    let target = condition(status, "DisruptionTarget").expect("a condition");
    let target = (
        target.status.as_str(),
        target.reason.as_deref(),
        target.message.as_deref(),
    );
    assert_eq!(target, ("True", Some("TerminationByKubelet"), Some(MESSAGE)));
}

#[test]
fn groups_end_one_after_the_other_with_their_hooks_and_then_the_lock_goes() {
    let mut machine = Machine::following(false);
    let hook = json!({"preStop": {"exec": {"command": ["take", "2000"]}}});
    machine
        .bed
        .put_and_wait(&pod("usual", 0, 3000).container("lifecycle", hook));
    machine.bed.put_and_wait(&pod("critical", CRITICAL, 4000));
    let began = machine.bed.elapsed();
    machine.service.begin();
    machine
        .bed
        .wait("it shuts down", SOON, |_| *machine.shutting_down.borrow());
    assert!(machine.bed.elapsed() - began < seconds(1));
    machine.wait_released(seconds(12));
    let took = machine.bed.elapsed() - began;
    assert!(took >= seconds(9), "{took:?}");
    let stop = |about: &str| machine.bed.line.sent_about("StopContainer", about)[0].clone();
    let (usual, critical) = (stop("usual/main"), stop("critical/main"));
    // After its hook, with what is left of the period.
    assert_eq!((usual.at - began).as_secs(), 2);
    assert_eq!(usual.grace_seconds, 18);
    assert_eq!((critical.at - began).as_secs(), 5);
    assert_eq!(critical.grace_seconds, 10);
    for name in ["usual", "critical"] {
        check_ended(&machine.bed.status(name));
    }
    assert_eq!(machine.messages(), ["Shutdown manager detected shutdown event"]);
    // Nothing comes back.
    machine.bed.pass(seconds(60));
    assert_eq!(
        machine.bed.line.sent_about("StartContainer", "usual/main").len(),
        1
    );
    assert!(*machine.shutting_down.borrow());
}

#[test]
fn a_node_without_pods_goes_down_at_once_and_its_times_are_kept() {
    let mut machine = Machine::following(false);
    assert_eq!(
        machine.metric("kubelet_graceful_shutdown_start_time_seconds"),
        0.0
    );
    let began = machine.bed.elapsed();
    machine.service.begin();
    machine.wait_released(seconds(1));
    assert!(machine.bed.elapsed() - began < seconds(1));
    let state = machine.state();
    assert_ne!(state["startTime"], "0001-01-01T00:00:00Z");
    assert_ne!(state["endTime"], "0001-01-01T00:00:00Z");
    assert!(machine.metric("kubelet_graceful_shutdown_start_time_seconds") > 1e9);
    assert!(machine.metric("kubelet_graceful_shutdown_end_time_seconds") > 1e9);
}

#[test]
fn a_group_that_does_not_end_in_its_time_does_not_hold_up_the_next() {
    let mut machine = Machine::following(false);
    machine.bed.put_and_wait(&pod("usual", 0, 100));
    machine.bed.put_and_wait(&pod("critical", CRITICAL, 100));
    machine
        .bed
        .line
        .fault("StopContainer", "usual/main", Fault::Hang, usize::MAX);
    let began = machine.bed.elapsed();
    machine.service.begin();
    machine
        .bed
        .wait("the state is kept", SOON, |bed| bed.files.exists(&state_file()));
    assert_eq!(machine.state()["endTime"], "0001-01-01T00:00:00Z");
    assert_eq!(machine.metric("kubelet_graceful_shutdown_end_time_seconds"), 0.0);
    machine.wait_released(seconds(40));
    let stopped = machine.bed.line.sent_about("StopContainer", "critical/main")[0].at - began;
    assert_eq!(stopped.as_secs(), 20);
    check_ended(&machine.bed.status("critical"));
    assert!(machine.bed.elapsed() - began < seconds(22));
}

#[test]
fn no_pod_is_admitted_until_the_shutdown_is_cancelled() {
    let mut machine = Machine::following(false);
    machine.bed.put_and_wait(&pod("usual", 0, 3000));
    machine.bed.put_and_wait(&pod("critical", CRITICAL, 100));
    machine.service.begin();
    machine.wait_stopping("usual/main");
    machine.bed.put(&pod("late", 0, 100));
    machine
        .bed
        .wait("it is rejected", SOON, |bed| bed.phase("late") == "Failed");
    let status = machine.bed.status("late");
    assert_eq!(status.reason.as_deref(), Some("NodeShutdown"));
    let message = "Pod was rejected: Pod was rejected as the node is shutting down.";
    assert_eq!(status.message.as_deref(), Some(message));
    machine.service.cancel();
    machine
        .bed
        .wait("the late pod runs", SOON, |bed| bed.is_ready("late"));
    machine.wait_locked();
    assert!(!*machine.shutting_down.borrow());
    // What was asked to end ends; no other pod does.
    machine.bed.wait("the first pod has ended", SOON, |bed| {
        bed.phase("usual") == "Failed"
    });
    machine.bed.pass(seconds(60));
    assert!(machine.bed.is_ready("critical") && machine.stops("critical/main") == 0);
    assert_eq!(machine.service.locks(), 1);
    assert_ne!(machine.state()["endTime"], "0001-01-01T00:00:00Z");
    assert_eq!(
        machine.messages(),
        [
            "Shutdown manager detected shutdown event",
            "Shutdown manager detected shutdown cancellation"
        ]
    );
    // The next shutdown is another one.
    machine.service.begin();
    machine.wait_released(seconds(20));
    check_ended(&machine.bed.status("critical"));
}

#[test]
fn a_second_signal_changes_nothing() {
    let mut machine = Machine::following(false);
    machine.bed.put_and_wait(&pod("usual", 0, 3000));
    machine.service.begin();
    machine.wait_stopping("usual/main");
    machine.service.begin();
    machine.wait_released(seconds(5));
    machine.service.begin();
    machine.bed.pass(seconds(10));
    assert_eq!(machine.messages().len(), 1);
    assert_eq!(machine.stops("usual/main"), 1);
    assert_eq!(machine.service.locks(), 0);
}

#[test]
fn the_api_server_knows_the_ends_before_the_lock_goes() {
    let mut machine = Machine::following(true);
    let pod = ApiPod::new("web", &["term=2000:0"]);
    machine.bed.create_and_wait(&pod);
    machine.service.begin();
    machine.wait_released(seconds(20));
    // At this very moment.
    let status = machine
        .bed
        .api()
        .pod_of("uid-web")
        .and_then(|pod| pod.status.clone());
    check_ended(&status.unwrap_or_default());
}

#[test]
fn the_lock_waits_until_the_node_is_known_as_not_ready() {
    let mut machine = Machine::following(true);
    let node = |is_ready: bool| {
        let mut node: Node = known_node();
        let ready = NodeCondition {
            type_: "Ready".to_owned(),
            status: if is_ready { "True" } else { "False" }.to_owned(),
            ..NodeCondition::default()
        };
        node.status.get_or_insert_default().conditions = Some(vec![ready]);
        Some(Arc::new(node))
    };
    machine.bed.cluster().node.send_replace(node(true));
    machine.service.begin();
    machine.bed.pass(seconds(3));
    assert_eq!(machine.service.locks(), 1, "released too early");
    machine.bed.cluster().node.send_replace(node(false));
    machine.wait_released(seconds(1));
}

#[test]
fn an_api_server_that_is_away_holds_the_machine_up_for_a_moment_only() {
    let mut machine = Machine::following(true);
    machine.bed.create_and_wait(&ApiPod::new("web", &["term=2000:0"]));
    machine.bed.api().set_up(false);
    let began = machine.bed.elapsed();
    machine.service.begin();
    machine.wait_released(seconds(20));
    let took = (machine.bed.elapsed() - began).as_secs();
    assert!((6..=8).contains(&took), "{took}");
    assert_eq!(machine.stops("web/main"), 1);
}

#[test]
fn a_lost_connection_neither_stops_a_shutdown_nor_releases_its_lock() {
    let mut machine = Machine::following(false);
    machine.bed.put_and_wait(&pod("usual", 0, 5000));
    machine.service.begin();
    machine.wait_stopping("usual/main");
    machine.service.cut(false);
    machine.bed.pass(seconds(3));
    assert_eq!(machine.service.connected(), 2);
    assert_eq!(machine.service.locks(), 1);
    machine.wait_released(seconds(5));
    check_ended(&machine.bed.status("usual"));
    // Later connections find the machine shutting down, and hold nothing up.
    machine.service.cut(false);
    machine.bed.pass(seconds(5));
    assert_eq!(machine.service.locks(), 0);
    assert_eq!(machine.messages().len(), 1);
}

#[test]
fn what_was_announced_while_there_was_no_connection_is_found_out() {
    let mut machine = Machine::following(false);
    machine.bed.put_and_wait(&pod("usual", 0, 100));
    machine.service.cut(true);
    machine.service.set_shutting_down(true);
    machine.service.set_up();
    machine
        .bed
        .wait("the pod ends", seconds(10), |bed| bed.phase("usual") == "Failed");
    machine.service.cut(true);
    machine.service.set_shutting_down(false);
    machine.service.set_up();
    machine.wait_locked();
    machine
        .bed
        .wait("it goes on", SOON, |_| !*machine.shutting_down.borrow());
    assert_eq!(machine.messages().len(), 2);
}

#[test]
fn a_service_that_is_not_there_is_tried_again() {
    let mut machine = Machine::new(false);
    machine.service.cut(true);
    machine.follow();
    machine.bed.put_and_wait(&pod("usual", 0, 100));
    machine.bed.pass(seconds(300));
    assert_eq!(machine.service.locks(), 0);
    machine.service.set_up();
    machine.wait_locked();
    machine.service.begin();
    machine.wait_released(seconds(10));
    check_ended(&machine.bed.status("usual"));
}

#[test]
fn a_service_that_was_restarted_gets_a_new_lock() {
    let mut machine = Machine::following(false);
    machine.service.restart();
    assert_eq!(machine.service.locks(), 0);
    machine.wait_locked();
    // A lock that is refused after a cancellation is tried again as well.
    machine.service.begin();
    machine.wait_released(seconds(5));
    machine.service.refuse_locks(true);
    machine.service.cancel();
    machine
        .bed
        .wait("it goes on", SOON, |_| !*machine.shutting_down.borrow());
    machine.bed.pass(seconds(5));
    assert_eq!(machine.service.locks(), 0);
    machine.service.refuse_locks(false);
    machine.wait_locked();
}

#[test]
fn the_longest_delay_is_raised_and_a_short_one_is_better_than_none() {
    let mut machine = Machine::new(false);
    machine.service.delay_reading(4);
    machine.follow();
    machine.wait_locked();
    assert_eq!(machine.service.longest_delay(), seconds(30));

    let mut machine = Machine::new(false);
    machine.service.make_settings_read_only();
    machine.follow();
    machine.wait_locked();
    assert_eq!(machine.service.longest_delay(), seconds(5));
}

#[test]
fn a_dropped_handle_releases_the_lock() {
    let mut machine = Machine::following(false);
    machine.handle = None;
    machine.wait_released(SOON);
    machine.service.begin();
    machine.bed.pass(seconds(5));
    assert!(machine.messages().is_empty());
}

#[test]
fn the_times_of_the_last_shutdown_are_shown_after_a_start() {
    let mut machine = Machine::new(false);
    let upstreams = r#"{"startTime":"2026-01-02T03:04:05.6+00:00","endTime":"2026-01-02T03:04:35.5Z"}"#;
    machine.bed.files.place(&state_file(), upstreams.as_bytes());
    machine.follow();
    machine.bed.pass(SOON);
    let times = ["start", "end"].map(|what| {
        let name = format!("kubelet_graceful_shutdown_{what}_time_seconds");
        machine.metric(&name)
    });
    assert_eq!(times, [1_767_323_045.0, 1_767_323_075.0]);

    let mut machine = Machine::new(false);
    machine.bed.files.place(&state_file(), b"{\"startTime\":");
    machine.follow();
    machine.bed.wait("the file is set aside", SOON, |bed| {
        !bed.files.exists(&state_file())
    });
    let aside = state_file().with_extension("bad");
    assert_eq!(
        machine.bed.files.content(&aside).as_deref(),
        Some(&b"{\"startTime\":"[..])
    );
    machine.wait_locked();
    machine.service.begin();
    machine.wait_released(SOON);
    assert!(machine.bed.files.exists(&state_file()));
}

#[test]
fn pods_beyond_the_queue_of_requests_are_all_asked() {
    let mut machine = Machine::following(false);
    let names: Vec<String> = (0..80).map(|number| format!("p{number}")).collect();
    for name in &names {
        machine.bed.put(&pod(name, 0, 500));
    }
    machine.bed.wait("all are ready", seconds(60), |bed| {
        names.iter().all(|name| bed.is_ready(name))
    });
    machine.service.begin();
    machine.wait_released(seconds(20));
    for name in &names {
        check_ended(&machine.bed.status(name));
    }
}
