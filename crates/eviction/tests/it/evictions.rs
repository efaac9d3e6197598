//! What is given up when the node runs short, in which order, and what stays.

use std::time::Duration;

use prometheus::proto::LabelPair;
use rubelet_model::Timestamp;
use rubelet_ports::Clock as _;
use serde_json::json;

use crate::node::{GIB, IMAGES, MIB, Node, ROOT, SimplePod, disk, settings, settings_of};

const MEMORY: &[(&str, &str)] = &[("memory.available", "100Mi")];
const NODE_FS: &[(&str, &str)] = &[("nodefs.available", "10%")];

fn hog(name: &str, mib: u64) -> SimplePod {
    SimplePod::new(name, &json!({})).using_memory(mib * MIB)
}

fn critical(name: &str) -> SimplePod {
    SimplePod::new(name, &json!({"priority": 2_000_000_000}))
}

fn metric(node: &Node, name: &str) -> Vec<String> {
    let families = node.registry.gather();
    let family = families.iter().filter(|family| family.name() == name);
    let metrics = family.flat_map(|family| family.get_metric().to_vec());
    let shown = metrics.map(|metric| {
        let labels: Vec<&str> = metric.get_label().iter().map(LabelPair::value).collect();
        let count = match metric.get_histogram().get_sample_count() {
            0 => metric.get_counter().get_value() as u64,
            count => count,
        };
        format!("{} {count}", labels.join(","))
    });
    shown.collect()
}

#[tokio::test(start_paused = true)]
async fn the_pod_that_takes_most_memory_goes_and_the_others_stay() {
    let node = Node::new();
    node.add(hog("hog", 700));
    node.add(hog("modest", 100));
    node.add(critical("vital").using_memory(130 * MIB));
    let _running = node.start(settings(MEMORY));
    node.tells(&["evict hog with 1 s", "hog has ended"]).await;
    let events = node.events.take();
    assert_eq!(events.len(), 1, "{events:?}");
    let message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 94Mi. \
                   Container main was using 700Mi, request is 0, has larger consumption of memory. ";
    assert_eq!(events[0].typed_text(), format!("Warning Evicted: {message}"));
    assert_eq!(events[0].event.annotations["offending_containers_usage"], "700Mi");
    let of_node = node.node_events.take();
    let texts: Vec<&str> = of_node.iter().map(|event| event.message.as_str()).collect();
    assert_eq!(texts, ["Attempting to reclaim memory"]);
    assert_eq!(metric(&node, "kubelet_evictions"), ["memory.available 1"]);
    assert_eq!(
        metric(&node, "kubelet_eviction_stats_age_seconds"),
        ["memory.available 1"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_second_victim_needs_a_reading_after_the_end_of_the_first() {
    let node = Node::new();
    for name in ["a", "b", "c"] {
        let mut pod = hog(name, 310);
        pod.ends_in = Some(Duration::from_secs(8));
        node.add(pod);
    }
    node.state().available_memory = GIB - 50 * MIB;
    let _running = node.start(settings(MEMORY));
    node.tells(&["evict a with 1 s", "a has ended"]).await;
    assert!(node.state().pods.contains_key("b"), "the end of one was enough");

    // Two ends are needed now, one after the other.
    node.add(hog("d", 320));
    node.add(hog("e", 330));
    node.tells(&[
        "evict a with 1 s",
        "a has ended",
        "evict e with 1 s",
        "e has ended",
        "evict d with 1 s",
        "d has ended",
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn figures_from_before_the_last_end_are_read_again() {
    let node = Node::new();
    node.add(hog("a", 500));
    let mut slow = hog("b", 450);
    slow.ends_in = Some(Duration::from_secs(1));
    node.add(slow);
    node.add(hog("c", 10));
    node.state().available_memory = 500 * MIB;
    let _running = node.start(settings(MEMORY));
    node.tells(&[
        "evict a with 1 s",
        "a has ended",
        "evict b with 1 s",
        "b has ended",
    ])
    .await;
    // Figures from before the last end do not have the new pod: they would name another one.
    node.state().stale_answers = 1;
    node.add(hog("d", 480));
    let before = node.state().story.clone();
    let mut expected: Vec<&str> = before.iter().map(String::as_str).collect();
    expected.extend(["evict d with 1 s", "d has ended"]);
    node.tells(&expected).await;
}

#[tokio::test(start_paused = true)]
async fn critical_pods_are_never_evicted_and_the_event_names_what_they_hold() {
    let node = Node::new();
    node.add(critical("vital").using_memory(800 * MIB));
    let annotations = json!({"kubernetes.io/config.source": "file"});
    let mut fixed = hog("fixed", 150);
    let pod = std::sync::Arc::make_mut(&mut fixed.pod);
    pod.metadata.annotations = serde_json::from_value(annotations).unwrap();
    node.add(fixed);
    let running = node.start(settings(MEMORY));
    tokio::time::sleep(Duration::from_secs(25)).await;
    node.tells(&[]).await;
    let texts: Vec<String> = node
        .node_events
        .take()
        .into_iter()
        .map(|event| event.message)
        .collect();
    assert_eq!(texts[0], "Attempting to reclaim memory");
    assert_eq!(
        texts[1],
        "memory.available is 74Mi, below the hard eviction threshold of 100Mi. Nothing more can be reclaimed: \
         no pod may be evicted. Of memory, pod ns/vital (critical) has 800Mi, pod ns/fixed (critical) has 150Mi"
    );
    assert!(texts.len() <= 8, "once in ten seconds: {texts:?}");
    drop(running.evictions);
}

#[tokio::test(start_paused = true)]
async fn images_and_containers_go_before_any_pod() {
    let node = Node::with_one_disk(9 * GIB);
    node.add(SimplePod::new("web", &json!({})));
    node.state().freed_by_images = 5 * GIB;
    let _running = node.start(settings(NODE_FS));
    node.tells(&["remove dead containers", "remove unused images"])
        .await;
    assert_eq!(node.node_events.take().len(), 1);
    assert!(node.events.take().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pod_goes_when_the_images_were_not_enough() {
    let node = Node::with_one_disk(12 * GIB);
    node.add(SimplePod::new("small", &json!({})).using_disk(GIB, 10));
    node.add(SimplePod::new("filler", &json!({})).using_disk(3 * GIB, 10));
    node.state().freed_by_images = GIB / 2;
    let _running = node.start(settings(NODE_FS));
    node.tells(&[
        "remove dead containers",
        "remove unused images",
        "evict filler with 1 s",
        "filler has ended",
    ])
    .await;
    let text = node.events.take()[0].event.message.clone();
    assert!(
        text.starts_with(
            "The node was low on resource: ephemeral-storage. Threshold quantity: 10737418400, available: 8704Mi. "
        ),
        "the value after the removal of images: {text}"
    );
}

#[tokio::test(start_paused = true)]
async fn each_layout_of_disks_has_its_own_steps() {
    // Images and containers apart from the node: nothing to remove helps the node's own disk.
    let node = Node::new();
    node.set_disk(ROOT, Ok(disk(1, 12 * GIB)));
    node.add(SimplePod::new("filler", &json!({})).using_disk(3 * GIB, 10));
    let _running = node.start(settings(NODE_FS));
    node.tells(&["evict filler with 1 s", "filler has ended"]).await;

    // Images alone are apart.
    let node = Node::new();
    node.state().runtime.as_mut().unwrap().container_filesystems = vec![crate::node::usage(ROOT)];
    node.set_disk(IMAGES, Ok(disk(2, 9 * GIB)));
    node.state().freed_by_images = 2 * GIB;
    let _running = node.start(settings(&[("imagefs.available", "10%")]));
    node.tells(&["remove unused images"]).await;
}

#[tokio::test(start_paused = true)]
async fn inodes_and_processes_run_out_as_well() {
    let node = Node::with_one_disk(50 * GIB);
    node.add(SimplePod::new("files", &json!({})).using_disk(10, 880));
    node.add(SimplePod::new("other", &json!({})).using_disk(GIB, 5));
    let _running = node.start(settings(&[("nodefs.inodesFree", "5%")]));
    node.tells(&[
        "remove dead containers",
        "remove unused images",
        "evict files with 1 s",
        "files has ended",
    ])
    .await;

    let node = Node::new();
    let mut forks = SimplePod::new("forks", &json!({}));
    forks.processes = 900;
    node.add(forks);
    node.add(SimplePod::new("other", &json!({})));
    let _running = node.start(settings(&[("pid.available", "10%")]));
    node.tells(&["evict forks with 1 s", "forks has ended"]).await;
    let text = node.events.take()[0].event.message.clone();
    assert_eq!(
        text,
        "The node was low on resource: pids. Threshold quantity: 100, available: 89. "
    );
}

#[tokio::test(start_paused = true)]
async fn a_soft_threshold_leaves_its_grace_period_and_the_pods() {
    let node = Node::new();
    let mut pod =
        SimplePod::new("hog", &json!({"terminationGracePeriodSeconds": 20})).using_memory(950 * MIB);
    pod.ends_in = Some(Duration::from_secs(15));
    node.add(pod);
    let grace = [("memory.available", "1m30s")];
    let _running = node.start(settings_of(&[], MEMORY, &grace, &[]));
    tokio::time::sleep(Duration::from_secs(80)).await;
    node.tells(&[]).await;
    node.tells(&["evict hog with 20 s", "hog has ended"]).await;
    let at = node.clock.now().since(Timestamp::from_unix_seconds(1_000_000));
    assert!(at >= Duration::from_secs(105), "{at:?}");
}

#[tokio::test(start_paused = true)]
async fn no_other_pod_goes_while_a_victim_runs_on() {
    let node = Node::new();
    let mut stuck = hog("stuck", 500);
    stuck.ends_in = None;
    node.add(stuck);
    node.add(hog("innocent", 450));
    let _running = node.start(settings(MEMORY));
    node.tells(&["evict stuck with 1 s"]).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    node.tells(&["evict stuck with 1 s"]).await;
    assert_eq!(metric(&node, "kubelet_evictions"), ["memory.available 1"]);
    // Its processes are gone, and only its directories are left: it holds no memory any more.
    {
        let mut state = node.state();
        let stuck = state.pods.get_mut("stuck").unwrap();
        stuck.is_running = false;
        stuck.memory_bytes = 0;
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(
        node.state().story,
        ["evict stuck with 1 s"],
        "the node has enough again"
    );
    node.state().available_memory = 500 * MIB;
    node.tells(&[
        "evict stuck with 1 s",
        "evict innocent with 1 s",
        "innocent has ended",
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_figures_no_pod_is_evicted() {
    let node = Node::new();
    node.state().is_usage_known = false;
    node.add(hog("hog", 950));
    let _running = node.start(settings(MEMORY));
    tokio::time::sleep(Duration::from_secs(60)).await;
    node.tells(&[]).await;
    node.state().is_usage_known = true;
    node.tells(&["evict hog with 1 s", "hog has ended"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_run_gives_nothing_but_files() {
    let node = Node::new();
    let mut pending = SimplePod::new("pending", &json!({}));
    pending.is_running = false;
    pending.processes = 0;
    node.add(pending);
    node.add(critical("vital").using_memory(950 * MIB));
    let _running = node.start(settings(MEMORY));
    tokio::time::sleep(Duration::from_secs(60)).await;
    node.tells(&[]).await;

    let node = Node::with_one_disk(12 * GIB);
    let mut waiting = SimplePod::new("waiting", &json!({})).using_disk(3 * GIB, 10);
    waiting.is_running = false;
    node.add(waiting);
    node.add(critical("vital").using_disk(GIB, 1));
    let _running = node.start(settings(NODE_FS));
    node.tells(&[
        "remove dead containers",
        "remove unused images",
        "evict waiting with 1 s",
        "waiting has ended",
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reclaim_that_hangs_holds_up_an_eviction_for_a_bounded_time() {
    let node = Node::with_one_disk(12 * GIB);
    node.add(SimplePod::new("filler", &json!({})).using_disk(3 * GIB, 10));
    node.state().removal_takes = Duration::from_hours(1);
    let _running = node.start(settings(NODE_FS));
    node.tells(&[
        "remove dead containers",
        "remove unused images",
        "evict filler with 1 s",
        "filler has ended",
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn evictions_end_with_their_handle() {
    let node = Node::new();
    let running = node.start(settings(MEMORY));
    tokio::time::sleep(Duration::from_secs(5)).await;
    drop(running.evictions);
    tokio::time::sleep(Duration::from_secs(5)).await;
    node.add(hog("hog", 950));
    tokio::time::sleep(Duration::from_secs(60)).await;
    node.tells(&[]).await;
}
