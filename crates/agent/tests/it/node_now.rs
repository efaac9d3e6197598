//! Pods are judged by the node as it is: its labels, with a second look where they are in doubt, its taints, its pressure.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream;
use k8s_openapi::api::core::v1::Node;
use rubelet_agent::NodeNow;
use rubelet_model::Pressure;
use rubelet_ports::api::{ApiError, ApiErrorKind, Changes, NodeReader};
use serde_json::json;
use tokio::sync::watch;

use crate::bed::{Bed, PodText, SOON};
use crate::cluster::{ApiPod, holds};

fn labelled(labels: &[(&str, &str)]) -> Arc<Node> {
    let labels: std::collections::BTreeMap<&str, &str> = labels.iter().copied().collect();
    let node = json!({"metadata": {"name": "node", "labels": labels}});
    Arc::new(serde_json::from_value(node).unwrap())
}

#[derive(Clone)]
enum Answer {
    Node(Arc<Node>),
    Fails,
    Never,
}

/// An API server that is asked for the Node and counts how often.
struct Server {
    answer: Mutex<Answer>,
    asked: Mutex<usize>,
}

#[async_trait]
impl NodeReader for Server {
    fn follow_node(&self, _name: &str) -> Changes<Node> {
        stream::pending().boxed()
    }

    async fn node(&self, _name: &str) -> Result<Node, ApiError> {
        *self.asked.lock().unwrap() += 1;
        let answer = self.answer.lock().unwrap().clone();
        match answer {
            Answer::Node(node) => Ok((*node).clone()),
            Answer::Fails => Err(ApiError::new("get node", ApiErrorKind::Unreachable, "it is away")),
            Answer::Never => std::future::pending().await,
        }
    }
}

struct Cluster {
    bed: Bed,
    server: Arc<Server>,
    object: watch::Sender<Option<Arc<Node>>>,
}

impl Cluster {
    fn started(known: &[(&str, &str)], answer: Answer) -> Self {
        let server = Arc::new(Server {
            answer: Mutex::new(answer),
            asked: Mutex::default(),
        });
        let (object, receiver) = watch::channel(Some(labelled(known)));
        let mut bed = Bed::new();
        bed.node = NodeNow {
            object: receiver,
            reader: Some(server.clone()),
            ..NodeNow::standalone()
        };
        bed.start();
        Self { bed, server, object }
    }

    fn asked(&self) -> usize {
        *self.server.asked.lock().unwrap()
    }

    fn wait_until_refused(&mut self, name: &str, limit: Duration) {
        self.bed.wait(&format!("{name} is refused"), limit, |bed| {
            bed.last_error(name).starts_with("NodeAffinity: ")
        });
        assert_eq!(self.bed.status(name).reason.as_deref(), Some("NodeAffinity"));
    }
}

fn on_ssd(name: &str) -> PodText {
    PodText::new(name, &["term=1000:0"]).spec("nodeSelector", json!({"disk": "ssd"}))
}

const SSD: &[(&str, &str)] = &[("disk", "ssd")];

#[test]
fn labels_that_are_known_need_no_second_look() {
    let mut cluster = Cluster::started(SSD, Answer::Never);
    cluster.bed.put_and_wait(&on_ssd("fits"));
    assert_eq!(cluster.asked(), 0);
}

#[test]
fn a_label_that_was_just_set_is_found_by_a_second_look() {
    let mut cluster = Cluster::started(&[], Answer::Node(labelled(SSD)));
    cluster.bed.put(&on_ssd("early"));
    cluster.bed.put(&on_ssd("bird"));
    for name in ["early", "bird"] {
        cluster.bed.wait("it starts", SOON, |bed| bed.is_ready(name));
        assert!(cluster.bed.events(name, "NodeAffinity").is_empty());
    }
    assert!((1..=2).contains(&cluster.asked()), "{}", cluster.asked());
}

#[test]
fn without_such_a_label_it_is_refused_once_and_waits_for_one() {
    let mut cluster = Cluster::started(&[], Answer::Node(labelled(&[])));
    cluster.bed.put(&on_ssd("waits"));
    cluster.wait_until_refused("waits", SOON);
    // Changes of the node that do not help are no news, and cost no call.
    for number in 0..3 {
        let number = number.to_string();
        cluster
            .object
            .send_replace(Some(labelled(&[("number", number.as_str())])));
        cluster.bed.pass(Duration::from_secs(1));
    }
    cluster.wait_until_refused("waits", SOON);
    assert_eq!(cluster.bed.events("waits", "NodeAffinity").len(), 1);
    assert_eq!(cluster.asked(), 1);
    cluster.object.send_replace(Some(labelled(SSD)));
    cluster.bed.wait("it starts", SOON, |bed| bed.is_ready("waits"));
}

#[test]
fn an_api_server_that_is_away_decides_nothing() {
    let mut cluster = Cluster::started(&[], Answer::Fails);
    cluster.bed.put(&on_ssd("refused"));
    cluster.wait_until_refused("refused", SOON);

    *cluster.server.answer.lock().unwrap() = Answer::Never;
    cluster.bed.put(&on_ssd("hangs"));
    cluster.bed.wait("it waits", SOON, |bed| {
        bed.waits_for("hangs") == "the API server to say which labels the node has"
    });
    // Others start meanwhile.
    cluster.bed.put_and_wait(&PodText::new("other", &["term=1000:0"]));
    cluster.wait_until_refused("hangs", Duration::from_secs(15));

    // One that leaves while it waits is forgotten.
    let leaves = on_ssd("leaves");
    cluster.bed.put(&leaves);
    cluster.bed.wait("it waits", SOON, |bed| {
        bed.waits_for("leaves") == "the API server to say which labels the node has"
    });
    cluster.bed.remove(&leaves);
    cluster.bed.pass(Duration::from_secs(20));
    let known: Vec<String> = cluster
        .bed
        .explanations()
        .iter()
        .map(|one| one.name.clone())
        .collect();
    assert!(!known.iter().any(|name| name.starts_with("leaves")), "{known:?}");
}

fn wait_until_rejected(bed: &mut Bed, name: &str, reason: &str, message: &str) {
    let uid = format!("uid-{name}");
    bed.wait(&format!("{name} is rejected"), SOON, |bed| {
        bed.api_phase(&uid) == "Failed"
    });
    let status = bed.api_status(&uid);
    assert_eq!(status.reason.as_deref(), Some(reason));
    assert_eq!(
        status.message.as_deref(),
        Some(format!("Pod was rejected: {message}").as_str())
    );
    assert_eq!(bed.line.sent_about("RunPodSandbox", name).len(), 0);
    assert_eq!(bed.api_events(name, reason).len(), 1);
}

#[test]
fn pods_of_a_cluster_are_judged_by_the_node_as_it_is() {
    let mut bed = Bed::in_cluster();
    bed.kill();
    let (pressure, watched) = watch::channel(None);
    bed.node.pressure = watched;
    bed.start();
    bed.create_and_wait(&ApiPod::new("early", &[]));

    let short = Pressure {
        disk: true,
        ..Pressure::default()
    };
    pressure.send_replace(Some(short));
    bed.create(&ApiPod::new("late", &[]));
    let message = "The node had condition: [DiskPressure]. ";
    wait_until_rejected(&mut bed, "late", "Evicted", message);
    bed.create_and_wait(&ApiPod::new("vital", &[]).spec("priority", json!(2_000_000_000)));
    pressure.send_replace(Some(Pressure::default()));
    bed.create_and_wait(&ApiPod::new("after", &[]));

    let taints = json!([{"key": "broken", "effect": "NoExecute"}]);
    let tainted: Node = serde_json::from_value(json!({"metadata": {}, "spec": {"taints": taints}})).unwrap();
    bed.cluster().node.send_replace(Some(Arc::new(tainted)));
    bed.create(&ApiPod::new("bare", &[]));
    wait_until_rejected(
        &mut bed,
        "bare",
        "TaintToleration",
        "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
    );
    let tolerations = json!([{"key": "broken", "operator": "Exists"}]);
    bed.create_and_wait(&ApiPod::new("hardy", &[]).spec("tolerations", tolerations));

    // Whoever runs already is nobody's to judge, in this life and the next.
    pressure.send_replace(Some(short));
    bed.kill();
    bed.start();
    bed.pass(Duration::from_secs(60));
    for name in ["early", "vital", "after", "hardy"] {
        let uid = format!("uid-{name}");
        assert!(holds(&bed.api_status(&uid), "Ready"), "{name}");
        assert_eq!(
            bed.line
                .sent_about("StartContainer", &format!("{name}/main"))
                .len(),
            1
        );
    }
}
