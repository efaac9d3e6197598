//! Two hundred pods with five volumes each, set up and removed side by side.

use std::fs;
use std::time::Instant;

use futures_util::StreamExt;
use rubelet_ports::volume_host::VolumeStep;

use super::{Node, clean_up, downward, empty_dir, mounts_below, of, sub_path};

const PODS: usize = 200;
const AT_ONCE: usize = 16;

#[tokio::test]
async fn nothing_is_left_of_two_hundred_pods() {
    let node = Node::new("many-pods");
    let set_up = |number: usize| -> Vec<VolumeStep> {
        let pod = node.pods().join(format!("pod-{number}"));
        let mut steps = Vec::new();
        for (volume, in_memory) in [("one", false), ("two", false), ("three", true)] {
            steps.extend(empty_dir(&pod, volume, in_memory));
        }
        for volume in ["four", "five"] {
            steps.extend(downward(&pod, volume, &number.to_string()));
        }
        let root = pod.join("volumes/kubernetes.io~empty-dir/one");
        let target = pod.join("volume-subpaths/one/main/0");
        steps.push(of("part", sub_path(&root, "part", &target)));
        steps
    };
    let start = Instant::now();
    let failed: Vec<_> = futures_util::stream::iter(0..PODS)
        .map(|number| {
            let steps = set_up(number);
            let node = &node;
            async move { node.execute(&number.to_string(), steps).await }
        })
        .buffer_unordered(AT_ONCE)
        .concat()
        .await;
    assert_eq!(failed, []);
    let set_up_time = start.elapsed();
    assert_eq!(mounts_below(&node.pods()).len(), PODS * 4);
    let found = node.on_disk().await;
    assert_eq!(found.len(), PODS);
    assert!(
        found
            .iter()
            .all(|pod| pod.volumes.len() == 5 && pod.mounts.len() == 4)
    );

    let start = Instant::now();
    let failed: Vec<_> = futures_util::stream::iter(&found)
        .map(|pod| {
            let node = &node;
            async move { node.execute(pod.uid.as_str(), clean_up(pod, &node.pods())).await }
        })
        .buffer_unordered(AT_ONCE)
        .concat()
        .await;
    assert_eq!(failed, []);
    eprintln!(
        "{PODS} pods: set up in {set_up_time:?}, removed in {:?}",
        start.elapsed()
    );
    assert_eq!(mounts_below(&node.pods()), []);
    assert_eq!(fs::read_dir(node.pods()).unwrap().count(), 0);
}
