//! Generated nodes under pressure: what holds whatever pods there are, however slowly they end and whatever hangs.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use crate::node::{GIB, MIB, Node, SimplePod, settings_of};

#[derive(Clone, Debug)]
struct PodPlan {
    priority: i32,
    memory_mib: u64,
    disk_mib: u64,
    processes: u64,
    is_critical: bool,
    is_running: bool,
    /// `None` for a pod that never ends.
    ends_in_seconds: Option<u64>,
    /// When it comes.
    at_seconds: u64,
}

#[derive(Clone, Debug)]
struct Plan {
    pods: Vec<PodPlan>,
    has_one_disk: bool,
    freed_by_images_mib: u64,
    stale_answers: usize,
    minimum_reclaim: bool,
}

fn pod_plan() -> impl Strategy<Value = PodPlan> {
    (
        (-2..3_i32, 0..600_u64, 0..4000_u64, 1..400_u64),
        (prop::bool::weighted(0.2), prop::bool::weighted(0.85)),
        prop_oneof![9 => (0..20_u64).prop_map(Some), 1 => Just(None)],
        0..60_u64,
    )
        .prop_map(
            |((priority, memory_mib, disk_mib, processes), (is_critical, is_running), ends, at)| PodPlan {
                priority,
                memory_mib: if is_running { memory_mib } else { 0 },
                disk_mib,
                processes: if is_running { processes } else { 0 },
                is_critical,
                is_running,
                ends_in_seconds: ends,
                at_seconds: at,
            },
        )
}

fn plan() -> impl Strategy<Value = Plan> {
    (
        prop::collection::vec(pod_plan(), 1..6),
        any::<bool>(),
        0..3000_u64,
        0..4_usize,
        any::<bool>(),
    )
        .prop_map(
            |(pods, has_one_disk, freed_by_images_mib, stale_answers, minimum_reclaim)| Plan {
                pods,
                has_one_disk,
                freed_by_images_mib,
                stale_answers,
                minimum_reclaim,
            },
        )
}

fn pod_of(index: usize, plan: &PodPlan) -> SimplePod {
    let priority = if plan.is_critical {
        2_000_000_000
    } else {
        plan.priority
    };
    let mut pod = SimplePod::new(&format!("p{index}"), &json!({"priority": priority}))
        .using_memory(plan.memory_mib * MIB)
        .using_disk(plan.disk_mib * MIB, 1);
    pod.processes = plan.processes;
    pod.is_running = plan.is_running;
    pod.ends_in = plan.ends_in_seconds.map(Duration::from_secs);
    pod
}

async fn live(plan: &Plan) -> (Node, Vec<String>) {
    let node = match plan.has_one_disk {
        true => Node::with_one_disk(14 * GIB),
        false => Node::new(),
    };
    node.state().freed_by_images = plan.freed_by_images_mib * MIB;
    node.state().stale_answers = plan.stale_answers;
    let hard = [
        ("memory.available", "100Mi"),
        ("nodefs.available", "10%"),
        ("pid.available", "10%"),
    ];
    let reclaim = [("memory.available", "200Mi"), ("nodefs.available", "1Gi")];
    let reclaim = if plan.minimum_reclaim { &reclaim[..] } else { &[] };
    let _running = node.start(settings_of(&hard, &[], &[], reclaim));
    let mut coming: Vec<(u64, usize)> = (plan.pods.iter().enumerate())
        .map(|(index, pod)| (pod.at_seconds, index))
        .collect();
    coming.sort_unstable();
    let mut now = 0;
    for (at, index) in coming {
        tokio::time::sleep(Duration::from_secs(at - now)).await;
        now = at;
        node.add(pod_of(index, &plan.pods[index]));
    }
    // Long enough for every eviction, one after the other, with the wait for those that never end.
    tokio::time::sleep(Duration::from_mins(10)).await;
    let violations = node.state().violations.clone();
    (node, violations)
}

fn check(plan: &Plan) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let (node, violations) = runtime.block_on(live(plan));
    prop_assert_eq!(violations, Vec::<String>::new(), "{:?}", node.state().story);
    // In the end enough memory is left, or no pod that could give any.
    let state = node.state();
    let used: u64 = state.pods.values().map(|pod| pod.memory_bytes).sum();
    let is_short = state.available_memory.saturating_sub(used) < 100 * MIB;
    let may_go = state.pods.iter().filter(|(name, pod)| {
        let index: usize = name[1..].parse().unwrap();
        pod.is_running && !plan.pods[index].is_critical && pod.ends_in.is_some() && pod.memory_bytes > 0
    });
    let left: Vec<&String> = may_go.map(|(name, _)| name).collect();
    prop_assert!(
        !is_short || left.is_empty(),
        "{left:?} could go: {:?}",
        state.story
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn no_critical_pod_goes_and_one_at_a_time_after_a_fresh_reading(plan in plan()) {
        check(&plan)?;
    }
}
