//! Who is evicted first, with which words, what is freed before, and what exceeds its own limits.

use std::cmp::Ordering;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use rubelet_model::Quantity;
use rubelet_model::quantity::Format;
use rubelet_resources::eviction::{
    Candidate, ContainerFigures, DiskParts, DiskResource, LocalStorageRules, Measure, NodeReclaim,
    PodFigures, SpaceHolder, StorageWatch, VolumeFigures, eviction_text, grace_seconds, node_reclaim,
    nothing_left, rank,
};
use rubelet_resources::pressure::{Crossing, DiskLayout, Signal, ThresholdKey, ThresholdValue};
use rubelet_resources::{PodDemand, Rules};
use rubelet_usage::DiskUsage;
use serde_json::{Value, from_value, json};

const MIB: u64 = 1 << 20;

/// A pod with what it uses.
#[derive(Clone, Debug)]
struct Case {
    pod: Pod,
    demand: PodDemand,
    figures: Option<PodFigures>,
}

impl Case {
    #[expect(clippy::needless_pass_by_value, reason = "it is a literal")]
    fn new(name: &str, spec: Value) -> Self {
        let pod: Pod =
            from_value(json!({"metadata": {"name": name, "uid": name}, "spec": spec})).expect("a pod");
        let demand = PodDemand::read(&pod).expect("good quantities");
        let figures = Some(PodFigures::default());
        Self { pod, demand, figures }
    }

    /// One container with this request of memory and of storage.
    fn requesting(name: &str, priority: i32, request: &str) -> Self {
        let requests = json!({"memory": request, "ephemeral-storage": request});
        let containers = json!([{"name": "main", "resources": {"requests": requests}}]);
        Self::new(name, json!({"priority": priority, "containers": containers}))
    }

    fn using(mut self, change: impl FnOnce(&mut PodFigures)) -> Self {
        change(self.figures.get_or_insert_default());
        self
    }

    fn unknown(mut self) -> Self {
        self.figures = None;
        self
    }

    fn candidate(&self) -> Candidate<'_> {
        Candidate {
            pod: &self.pod,
            demand: &self.demand,
            figures: self.figures.as_ref(),
        }
    }
}

fn disk(bytes: u64, inodes: u64) -> DiskUsage {
    DiskUsage { bytes, inodes }
}

fn order(cases: &[Case], measure: Measure) -> Vec<&str> {
    let mut candidates: Vec<Candidate<'_>> = cases.iter().map(Case::candidate).collect();
    rank(&mut candidates, measure, &Rules::default());
    let names = candidates.iter().map(|one| one.pod.metadata.name.as_deref());
    names.map(Option::unwrap_or_default).collect()
}

#[test]
fn memory_is_taken_from_those_above_their_request() {
    let using = |name: &str, priority: i32, request: &str, mib: u64| {
        Case::requesting(name, priority, request).using(|figures| figures.working_set_bytes = Some(mib * MIB))
    };
    let cases = [
        using("within, low", -5, "500Mi", 400),
        using("above, high, little", 100, "100Mi", 110),
        using("above, low, little", 1, "100Mi", 110),
        using("above, low, much", 1, "100Mi", 300),
        using("exactly", 1, "100Mi", 100),
        using("unknown", 100, "1Gi", 0).unknown(),
    ];
    let expected = [
        "unknown",
        "above, low, much",
        "above, low, little",
        "above, high, little",
        "within, low",
        "exactly",
    ];
    assert_eq!(order(&cases, Measure::Memory), expected);
}

#[test]
fn a_pods_own_request_and_its_overhead_count() {
    let pod_level = json!({
        "resources": {"requests": {"memory": "100Mi"}},
        "containers": [{"name": "main", "resources": {"requests": {"memory": "10Mi"}}}],
    });
    let overhead = json!({
        "overhead": {"memory": "50Mi"},
        "containers": [{"name": "main", "resources": {"requests": {"memory": "100Mi"}}}],
    });
    let overhead_alone = json!({"overhead": {"memory": "50Mi"}, "containers": [{"name": "main"}]});
    let using = |name: &str, spec: &Value, mib: u64| {
        Case::new(name, spec.clone()).using(|figures| figures.working_set_bytes = Some(mib * MIB))
    };
    let cases = [
        using("pod level, within", &pod_level, 90),
        using("overhead, within", &overhead, 149),
        using("overhead alone", &overhead_alone, 30),
        using("overhead, above", &overhead, 160),
        using("pod level, above", &pod_level, 120),
    ];
    let expected = [
        "overhead alone",
        "pod level, above",
        "overhead, above",
        "overhead, within",
        "pod level, within",
    ];
    assert_eq!(order(&cases, Measure::Memory), expected);
}

#[test]
fn processes_are_taken_by_priority_first() {
    let running = |name: &str, priority: i32, processes: u64| {
        Case::requesting(name, priority, "1Mi").using(|figures| figures.processes = Some(processes))
    };
    let cases = [
        running("high, many", 9, 500),
        running("low, few", 1, 2),
        running("low, many", 1, 90),
        running("low, unknown", 1, 0).unknown(),
    ];
    let expected = ["low, unknown", "low, many", "low, few", "high, many"];
    assert_eq!(order(&cases, Measure::Processes), expected);
}

fn with_files(name: &str, layer: DiskUsage, logs: DiskUsage, volumes: &[(&str, DiskUsage)]) -> Case {
    let spec = json!({
        "containers": [{"name": "main"}],
        "volumes": [
            {"name": "scratch", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "secret", "secret": {"secretName": "s"}},
        ],
    });
    Case::new(name, spec).using(|figures| {
        figures.containers = vec![ContainerFigures {
            name: "main".to_owned(),
            working_set_bytes: None,
            writable_layer: Some(layer),
            logs: Some(logs),
        }];
        figures.volumes = volumes
            .iter()
            .map(|(name, used)| VolumeFigures {
                name: (*name).to_owned(),
                used: *used,
            })
            .collect();
    })
}

#[test]
fn what_lies_on_another_disk_does_not_count() {
    let nothing = disk(0, 0);
    let cases = [
        with_files("layer", disk(50 * MIB, 10), nothing, &[]),
        with_files("logs", nothing, disk(40 * MIB, 20), &[]),
        with_files("volume", nothing, nothing, &[("scratch", disk(30 * MIB, 900))]),
        with_files(
            "elsewhere",
            nothing,
            nothing,
            &[("memory", disk(900 * MIB, 9)), ("secret", disk(900 * MIB, 9))],
        ),
    ];
    let check = |signal: Signal, layout: DiskLayout, expected: [&str; 4]| {
        let measure = Measure::of(signal, layout);
        assert_eq!(order(&cases, measure), expected, "{signal} {layout:?}");
    };
    use DiskLayout::{ContainersOnImageFs, ContainersOnNodeFs, OneFilesystem};
    let by_bytes = ["layer", "logs", "volume", "elsewhere"];
    for signal in [
        Signal::NodeFsAvailable,
        Signal::ImageFsAvailable,
        Signal::ContainerFsAvailable,
    ] {
        check(signal, OneFilesystem, by_bytes);
    }
    let inodes = ["volume", "logs", "layer", "elsewhere"];
    check(Signal::NodeFsInodesFree, OneFilesystem, inodes);
    let without_layers = ["logs", "volume", "layer", "elsewhere"];
    check(Signal::NodeFsAvailable, ContainersOnImageFs, without_layers);
    check(Signal::ImageFsAvailable, ContainersOnImageFs, by_bytes);
    let layers_alone = Measure::Disk {
        parts: DiskParts {
            writable_layers: true,
            ..DiskParts::default()
        },
        of: DiskResource::Inodes,
    };
    assert_eq!(
        Measure::of(Signal::ContainerFsInodesFree, ContainersOnImageFs),
        layers_alone
    );
    check(Signal::NodeFsAvailable, ContainersOnNodeFs, by_bytes);
    check(Signal::ContainerFsAvailable, ContainersOnNodeFs, by_bytes);
    // Images are all that is there, and no pod's part of them can be measured.
    check(Signal::ImageFsAvailable, ContainersOnNodeFs, by_bytes);
    let images = Measure::of(Signal::ImageFsAvailable, ContainersOnNodeFs);
    let of = DiskResource::Bytes;
    let parts = DiskParts::default();
    assert_eq!(images, Measure::Disk { parts, of });
}

#[test]
fn an_inode_is_more_than_any_request() {
    let with = |name: &str, priority: i32, inodes: u64| {
        let spec = json!({
            "priority": priority,
            "containers": [{"name": "main", "resources": {"requests": {"ephemeral-storage": "1Gi"}}}],
        });
        Case::new(name, spec).using(|figures| {
            figures.containers = vec![ContainerFigures {
                name: "main".to_owned(),
                logs: Some(disk(0, inodes)),
                ..ContainerFigures::default()
            }];
        })
    };
    let cases = [with("none", -9, 0), with("high", 5, 80), with("low", 1, 3)];
    let measure = Measure::of(Signal::NodeFsInodesFree, DiskLayout::OneFilesystem);
    assert_eq!(order(&cases, measure), ["low", "high", "none"]);
}

fn crossing(signal: Signal, threshold: ThresholdValue, available: i64, capacity: i64) -> Crossing {
    Crossing {
        key: ThresholdKey {
            signal,
            is_soft: false,
        },
        is_hard: true,
        threshold,
        available: Quantity::new(available, signal.format()),
        capacity: Quantity::new(capacity, signal.format()),
    }
}

fn of_container(name: &str, mib: u64, layer: Option<u64>, logs: Option<u64>) -> ContainerFigures {
    ContainerFigures {
        name: name.to_owned(),
        working_set_bytes: Some(mib * MIB),
        writable_layer: layer.map(|bytes| disk(bytes, 1)),
        logs: logs.map(|bytes| disk(bytes, 1)),
    }
}

#[test]
fn an_eviction_has_upstreams_words() {
    let spec = json!({
        "containers": [
            {"name": "greedy", "resources": {"requests": {"memory": "100Mi", "ephemeral-storage": "10"}}},
            {"name": "modest", "resources": {"requests": {"memory": "1Gi"}}},
        ],
        "initContainers": [{"name": "sidecar", "restartPolicy": "Always"}],
        "ephemeralContainers": [{"name": "debug"}],
    });
    let case = Case::new("web", spec).using(|figures| {
        figures.working_set_bytes = Some(500 * MIB);
        figures.containers = vec![
            of_container("modest", 200, None, Some(1)),
            of_container("sidecar", 3, Some(4096), Some(0)),
            of_container("greedy", 250, Some(8), Some(4)),
            of_container("debug", 47, Some(9), Some(9)),
        ];
    });
    let rules = Rules::default();
    let threshold = ThresholdValue::Quantity("102400Ki".parse().expect("it is there"));
    let memory = crossing(Signal::MemoryAvailable, threshold, 60 << 20, 4 << 30);
    let text = eviction_text(&memory, &case.candidate(), &rules);
    assert_eq!(
        text.message,
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 60Mi. \
         Container sidecar was using 3Mi, request is 0, has larger consumption of memory. \
         Container greedy was using 250Mi, request is 100Mi, has larger consumption of memory. "
    );
    let annotations = |text: &[(&str, &str)]| {
        text.iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    };
    assert_eq!(
        text.annotations,
        annotations(&[
            ("offending_containers", "sidecar,greedy"),
            ("offending_containers_usage", "3Mi,250Mi"),
            ("starved_resource", "memory"),
        ])
    );
    let part = ThresholdValue::Part(0.1);
    let storage = crossing(Signal::NodeFsAvailable, part.clone(), 5000, 100_000);
    assert_eq!(
        eviction_text(&storage, &case.candidate(), &rules).message,
        "The node was low on resource: ephemeral-storage. Threshold quantity: 10000, available: 5000. \
         Container sidecar was using 4Ki, request is 0, has larger consumption of ephemeral-storage. \
         Container greedy was using 12, request is 10, has larger consumption of ephemeral-storage. "
    );
    let inodes = crossing(Signal::NodeFsInodesFree, part, 50, 1000);
    let text = eviction_text(&inodes, &case.candidate(), &rules);
    assert_eq!(
        text.message,
        "The node was low on resource: inodes. Threshold quantity: 100, available: 50. "
    );
    assert_eq!(text.annotations["offending_containers"], "");
    let unknown = case.unknown();
    let text = eviction_text(&inodes, &unknown.candidate(), &rules);
    assert!(text.annotations.is_empty(), "{text:?}");
}

#[test]
fn a_pod_with_a_request_of_its_own_is_named() {
    let spec = json!({
        "resources": {"requests": {"memory": "200Mi"}},
        "containers": [{"name": "main", "resources": {"requests": {"memory": "100Mi"}}}],
    });
    let case = Case::new("web", spec).using(|figures| {
        figures.working_set_bytes = Some(150 * MIB);
        figures.containers = vec![of_container("main", 90, None, None)];
    });
    let threshold = ThresholdValue::Quantity("1Gi".parse().expect("it is there"));
    let memory = crossing(Signal::AllocatableMemoryAvailable, threshold, 1 << 20, 4 << 30);
    let text = eviction_text(&memory, &case.candidate(), &Rules::default());
    assert_eq!(
        text.message,
        "The node was low on resource: memory. Threshold quantity: 1Gi, available: 1Mi. \
         Pod web was using 150Mi, request is 200Mi, has larger consumption of memory. "
    );
    assert_eq!(text.annotations["offending_pod"], "web");
    assert_eq!(text.annotations["offending_pod_usage"], "150Mi");
    assert_eq!(text.annotations["offending_containers"], "");
    let without_gate = Rules {
        pod_level_resources: false,
        ..Rules::default()
    };
    let text = eviction_text(&memory, &case.candidate(), &without_gate);
    assert!(!text.annotations.contains_key("offending_pod"), "{text:?}");
}

#[test]
fn a_soft_eviction_leaves_time() {
    assert_eq!(grace_seconds(true, 60, Some(30)), 1);
    assert_eq!(grace_seconds(false, 60, Some(30)), 30);
    assert_eq!(grace_seconds(false, 20, Some(30)), 20);
    assert_eq!(grace_seconds(false, 60, None), 60);
}

#[test]
fn only_what_frees_the_disk_is_given_up() {
    use DiskLayout::{ContainersOnImageFs, ContainersOnNodeFs, OneFilesystem};
    use NodeReclaim::{DeadContainers, UnusedImages};
    let both = [DeadContainers, UnusedImages];
    let check = |signals: [Signal; 2], layout: DiskLayout, expected: &[NodeReclaim]| {
        for signal in signals {
            assert_eq!(node_reclaim(signal, layout), expected, "{signal} {layout:?}");
        }
    };
    let node = [Signal::NodeFsAvailable, Signal::NodeFsInodesFree];
    let images = [Signal::ImageFsAvailable, Signal::ImageFsInodesFree];
    let containers = [Signal::ContainerFsAvailable, Signal::ContainerFsInodesFree];
    check(node, OneFilesystem, &both);
    check(images, OneFilesystem, &both);
    check(containers, OneFilesystem, &both);
    check(node, ContainersOnImageFs, &[]);
    check(images, ContainersOnImageFs, &both);
    check(containers, ContainersOnImageFs, &both);
    check(node, ContainersOnNodeFs, &[DeadContainers]);
    check(images, ContainersOnNodeFs, &[UnusedImages]);
    check(containers, ContainersOnNodeFs, &[DeadContainers]);
    check(
        [Signal::MemoryAvailable, Signal::PidAvailable],
        OneFilesystem,
        &[],
    );
}

#[test]
fn what_holds_the_space_is_named() {
    let part = ThresholdValue::Part(0.1);
    let storage = crossing(Signal::NodeFsAvailable, part.clone(), 5 << 20, 100 << 20);
    let holder = |name: &str, amount: u64| SpaceHolder {
        name: name.to_owned(),
        amount,
    };
    let base = "nodefs.available is 5Mi, below the hard eviction threshold of 10% of 100Mi. \
                Nothing more can be reclaimed: no pod may be evicted";
    assert_eq!(nothing_left(&storage, vec![holder("nothing", 0)]), base);
    let holders = vec![
        holder("pod a/small", 5),
        holder("unused images that are too young", 20 * MIB + 17),
        holder("pod b/etcd (critical)", 70 * MIB),
    ];
    assert_eq!(
        nothing_left(&storage, holders),
        format!(
            "{base}. Of ephemeral-storage, pod b/etcd (critical) has 70Mi, unused images that are too young has 20Mi, \
             pod a/small has 5"
        )
    );
    let many = (0..8)
        .map(|number| holder(&format!("pod p{number}"), 10 + number))
        .collect();
    let text = nothing_left(&storage, many);
    assert!(text.ends_with("pod p3 has 13, and 3 others have less"), "{text}");
}

/// A pod with limits of all kinds.
fn limited() -> Case {
    let limits = |limit: &str| json!({"limits": {"ephemeral-storage": limit}});
    let spec = json!({
        "containers": [{"name": "main", "resources": limits("100")}, {"name": "other", "resources": limits("200")}],
        "initContainers": [
            {"name": "sidecar", "restartPolicy": "Always", "resources": limits("50")},
            {"name": "setup", "resources": limits("10")},
        ],
        "volumes": [
            {"name": "scratch", "emptyDir": {"sizeLimit": "1Ki"}},
            {"name": "unlimited", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "10"}},
        ],
    });
    Case::new("web", spec)
}

fn message(rules: &LocalStorageRules, case: &Case, layout: DiskLayout) -> Option<(String, &'static str)> {
    let figures = case.figures.as_ref().expect("figures");
    let exceeded = rules.exceeded(&case.pod, &case.demand, figures, layout)?;
    Some((exceeded.to_string(), exceeded.signal()))
}

#[test]
fn a_pod_that_takes_more_than_it_may_is_found() {
    let rules = LocalStorageRules::default();
    let check = |change: &dyn Fn(&mut PodFigures), expected: Option<(&str, &str)>| {
        let found = message(&rules, &limited().using(change), DiskLayout::OneFilesystem);
        let found = found.as_ref().map(|(text, signal)| (text.as_str(), *signal));
        assert_eq!(found, expected);
    };
    let volume = |name: &str, bytes: u64| VolumeFigures {
        name: name.to_owned(),
        used: disk(bytes, 1),
    };
    check(&|_| {}, None);
    check(&|figures| figures.volumes = vec![volume("scratch", 1024)], None);
    check(
        &|figures| figures.volumes = vec![volume("unlimited", 1 << 40), volume("scratch", 1025)],
        Some((
            r#"Usage of EmptyDir volume "scratch" exceeds the limit "1Ki". "#,
            "emptydirfs.limit",
        )),
    );
    check(
        &|figures| figures.volumes = vec![volume("memory", 11)],
        Some((
            r#"Usage of EmptyDir volume "memory" exceeds the limit "10". "#,
            "emptydirfs.limit",
        )),
    );
    check(&|figures| figures.ephemeral_storage_bytes = Some(350), None);
    check(
        &|figures| figures.ephemeral_storage_bytes = Some(351),
        Some((
            "Pod ephemeral local storage usage exceeds the total limit of containers 350. ",
            "ephemeralpodfs.limit",
        )),
    );
    check(
        &|figures| figures.containers = vec![of_container("main", 0, Some(60), Some(40))],
        None,
    );
    check(
        &|figures| figures.containers = vec![of_container("sidecar", 0, Some(11), Some(40))],
        Some((
            r#"Container sidecar exceeded its local ephemeral storage limit "50". "#,
            "ephemeralcontainerfs.limit",
        )),
    );
    check(
        &|figures| figures.containers = vec![of_container("setup", 0, Some(999), Some(999))],
        None,
    );
}

#[test]
fn layers_on_another_disk_count_for_the_pod_and_not_for_the_container() {
    let rules = LocalStorageRules::default();
    let case =
        limited().using(|figures| figures.containers = vec![of_container("main", 0, Some(999), Some(100))]);
    for layout in [DiskLayout::ContainersOnImageFs, DiskLayout::ContainersOnNodeFs] {
        assert_eq!(message(&rules, &case, layout), None, "{layout:?}");
    }
    assert!(message(&rules, &case, DiskLayout::OneFilesystem).is_some());
}

#[test]
fn only_pods_with_limits_are_measured() {
    let rules = LocalStorageRules::default();
    let volume = |volume: Value| {
        Case::new(
            "p",
            json!({"containers": [{"name": "main"}], "volumes": [{"name": "v", "emptyDir": volume}]}),
        )
    };
    let check = |rules: &LocalStorageRules, case: &Case, expected: bool| {
        assert_eq!(
            rules.has_limit(&case.pod, &case.demand),
            expected,
            "{:?}",
            case.pod.spec
        );
    };
    check(&rules, &limited(), true);
    check(&rules, &volume(json!({})), false);
    check(&rules, &volume(json!({"sizeLimit": "0"})), false);
    check(&rules, &volume(json!({"sizeLimit": "1"})), true);
    let in_memory = volume(json!({"sizeLimit": "1", "medium": "Memory"}));
    check(&rules, &in_memory, true);
    let setup = json!({
        "containers": [{"name": "main"}],
        "initContainers": [{"name": "i", "resources": {"limits": {"ephemeral-storage": "1"}}}],
    });
    check(&rules, &Case::new("p", setup), true);
    check(&rules, &Case::requesting("p", 0, "1Mi"), false);
}

#[test]
fn a_pod_that_writes_fast_is_measured_more_often() {
    let seconds = Duration::from_secs;
    let quick = Duration::from_millis(1);
    let (watch, pause) = StorageWatch::default().next(0.1, seconds(100), quick);
    assert_eq!(pause, seconds(3));
    let (watch, pause) = watch.next(0.1, seconds(103), quick);
    assert_eq!(pause, seconds(3), "nothing was written");
    // A tenth each second: the limit is eight seconds away.
    let (watch, pause) = watch.next(0.4, seconds(106), quick);
    assert_eq!(pause, seconds(3));
    let (watch, pause) = watch.next(0.8, seconds(109), quick);
    assert!(pause > seconds(0) && pause < seconds(2), "{pause:?}");
    let (_, pause) = watch.next(0.99, seconds(110), quick);
    assert_eq!(pause, seconds(1));
    let (_, pause) = StorageWatch::default().next(0.1, seconds(100), seconds(1));
    assert_eq!(pause, seconds(10), "measuring takes long");
    let (_, pause) = watch.next(0.99, seconds(110), Duration::from_millis(500));
    assert_eq!(pause, seconds(2), "it is not done all the time");
}

/// Upstream's comparison of two pods for memory, written as a chain of comparisons.
fn compared(left: &Case, right: &Case) -> Ordering {
    let facts = |case: &Case| {
        let used = case.figures.as_ref()?.working_set_bytes.unwrap_or(0);
        let request = case.demand.container_requests().quantity("memory");
        let used = Quantity::new(i64::try_from(used).expect("a small number"), Format::BinarySi);
        let mut over = used.clone();
        over.sub(&request);
        Some((used > request, over))
    };
    let priority = |case: &Case| case.pod.spec.as_ref().expect("a spec").priority.unwrap_or(0);
    let true_first = |left: bool, right: bool| right.cmp(&left);
    match (facts(left), facts(right)) {
        (Some((left_exceeds, left_over)), Some((right_exceeds, right_over))) => {
            true_first(left_exceeds, right_exceeds)
                .then(priority(left).cmp(&priority(right)))
                .then(right_over.cmp(&left_over))
        }
        (left_known, right_known) => {
            true_first(left_known.is_none(), right_known.is_none()).then(priority(left).cmp(&priority(right)))
        }
    }
}

proptest! {
    #[test]
    fn rankings_agree_with_the_comparison_of_pairs(
        rows in proptest::collection::vec((0..4_u64, 0..3_i32, proptest::option::of(0..6_u64)), 0..12),
    ) {
        let cases: Vec<Case> = rows
            .iter()
            .enumerate()
            .map(|(index, (request, priority, used))| {
                let case = Case::requesting(&format!("p{index}"), *priority, &request.to_string());
                match used {
                    Some(used) => case.using(|figures| figures.working_set_bytes = Some(*used)),
                    None => case.unknown(),
                }
            })
            .collect();
        let mut candidates: Vec<Candidate<'_>> = cases.iter().map(Case::candidate).collect();
        rank(&mut candidates, Measure::Memory, &Rules::default());
        let find = |one: &Candidate<'_>| cases.iter().find(|case| case.pod == *one.pod).expect("it is there");
        for pair in candidates.windows(2) {
            prop_assert_ne!(compared(find(&pair[0]), find(&pair[1])), Ordering::Greater);
        }
    }
}
