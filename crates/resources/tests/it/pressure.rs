//! Thresholds from texts, and what becomes of readings round by round.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use rubelet_config::gates::FeatureGates;
use rubelet_config::kubelet_configuration::KubeletConfiguration;
use rubelet_model::Pressure;
use rubelet_model::signals::{FilesystemReading, MemoryReading, ProcessReading};
use rubelet_resources::pressure::{
    DiskLayout, Findings, Pace, PressureSettings, PressureState, Readings, Signal, Threshold, ThresholdTexts,
    ThresholdValue, is_any_crossed, memory_marks, step,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

type Texts = BTreeMap<String, String>;

fn texts(list: &[(&str, &str)]) -> Texts {
    let entries = list
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    entries.collect()
}

fn read(
    hard: &[(&str, &str)],
    soft: &[(&str, &str)],
    grace: &[(&str, &str)],
    reclaim: &[(&str, &str)],
) -> Result<Vec<Threshold>, String> {
    let texts = ThresholdTexts {
        hard: &texts(hard),
        soft: &texts(soft),
        soft_grace: &texts(grace),
        minimum_reclaim: &texts(reclaim),
        are_pods_enforced: false,
    };
    texts
        .read()
        .map(|(thresholds, _)| thresholds)
        .map_err(|error| error.to_string())
}

#[test]
fn texts_are_thresholds_or_are_refused() {
    let check = |value: &str, expected: &str| {
        let problem = read(&[("memory.available", value)], &[], &[], &[]).err();
        assert_eq!(problem.unwrap_or_default(), expected, "{value}");
    };
    for good in ["100Mi", "1", "5%", "0%", "100%", "99.5%", "0.0%", "1e9", "5%%"] {
        check(good, "");
    }
    check("0", r#"evictionHard: memory.available "0": must be positive"#);
    check(
        "-1Mi",
        r#"evictionHard: memory.available "-1Mi": must be positive"#,
    );
    check("-1%", r#"evictionHard: memory.available "-1%": must be >= 0%"#);
    check(
        "101%",
        r#"evictionHard: memory.available "101%": must be <= 100%"#,
    );
    check(
        "nan%",
        r#"evictionHard: memory.available "nan%": is no percentage"#,
    );
    check("%", r#"evictionHard: memory.available "%": is no percentage"#);
    let odd = read(&[("memory.available", "lots")], &[], &[], &[]).expect_err("no quantity");
    assert!(
        odd.starts_with(r#"evictionHard: memory.available "lots": "#),
        "{odd}"
    );
    let check = |problem: Result<Vec<Threshold>, String>, expected: &str| {
        assert_eq!(problem.err().unwrap_or_default(), expected);
    };
    let soft = [("nodefs.available", "10%")];
    check(
        read(&[("memory.free", "1Mi")], &[], &[], &[]),
        "evictionHard: unsupported eviction signal memory.free",
    );
    check(
        read(&[], &soft, &[], &[]),
        "evictionSoftGracePeriod: a grace period must be specified for the soft eviction threshold nodefs.available",
    );
    check(read(&[], &soft, &[("nodefs.available", "0s")], &[]), "");
    check(
        read(&[], &soft, &[("nodefs.available", "-1s")], &[]),
        r#"evictionSoftGracePeriod: nodefs.available "-1s": must not be negative"#,
    );
    check(read(&soft, &[], &[], &[("nodefs.available", "0")]), "");
    check(
        read(&soft, &[], &[], &[("nodefs.available", "0%")]),
        r#"evictionMinimumReclaim: nodefs.available "0%": must be positive"#,
    );
    check(
        read(&soft, &[], &[], &[("nodefs.available", "-1Gi")]),
        r#"evictionMinimumReclaim: nodefs.available "-1Gi": must not be negative"#,
    );
    assert_eq!(read(&[("pid.available", "0%")], &[], &[], &[]), Ok(Vec::new()));
}

fn configured(configuration: &KubeletConfiguration, gates: &FeatureGates) -> PressureSettings {
    PressureSettings::new(configuration, gates, false, 64 * MIB).expect("good thresholds")
}

#[test]
fn settings_decide_what_follows() {
    let mut configuration = KubeletConfiguration {
        eviction_hard: Some(texts(&[
            ("memory.available", "100Mi"),
            ("nodefs.available", "10%"),
            ("imagefs.inodesFree", "5%"),
            ("containerfs.available", "3Gi"),
        ])),
        eviction_minimum_reclaim: texts(&[("memory.available", "50Mi")]),
        enforce_node_allocatable: Some(vec!["pods".to_owned()]),
        ..KubeletConfiguration::default()
    };
    let gates = FeatureGates::default();
    let settings = configured(&configuration, &gates);
    let signals = |thresholds: &[Threshold]| -> Vec<&'static str> {
        thresholds.iter().map(|one| one.signal.name()).collect()
    };
    let own = [
        "memory.available",
        "nodefs.available",
        "imagefs.inodesFree",
        "allocatableMemory.available",
    ];
    assert_eq!(signals(&settings.thresholds), own);
    assert_eq!(settings.thresholds[0].value, settings.thresholds[3].value);
    assert_eq!(
        settings.thresholds[0].minimum_reclaim,
        settings.thresholds[3].minimum_reclaim
    );
    assert_eq!(settings.overridden, [Signal::ContainerFsAvailable]);
    let on_node = settings.with_containers(DiskLayout::OneFilesystem);
    assert_eq!(signals(&on_node)[4..], ["containerfs.available"]);
    assert_eq!(on_node[4].value, settings.thresholds[1].value);
    let on_images = settings.with_containers(DiskLayout::ContainersOnImageFs);
    assert_eq!(signals(&on_images)[4..], ["containerfs.inodesFree"]);

    assert_eq!(settings.huge_page_bytes, 64 * MIB);
    let off = BTreeMap::from([("HugepageAwareEviction".to_owned(), false)]);
    let without = FeatureGates::from_values(&off).expect("a gate");
    assert_eq!(configured(&configuration, &without).huge_page_bytes, 0);
    let ignoring = PressureSettings::new(&configuration, &gates, true, 0).expect("good thresholds");
    assert_eq!(signals(&ignoring.thresholds), own[..3]);
    configuration.enforce_node_allocatable = Some(Vec::new());
    assert_eq!(signals(&configured(&configuration, &gates).thresholds), own[..3]);
}

fn memory(available: u64) -> Readings {
    Readings {
        memory: Some(MemoryReading {
            limit_bytes: Some(4 * GIB),
            usage_bytes: 4 * GIB - available + 10 * MIB,
            inactive_file_bytes: 10 * MIB,
        }),
        ..Readings::default()
    }
}

/// Rounds at given seconds: what the node is under pressure of afterwards, and what was crossed and left.
struct Course {
    settings: PressureSettings,
    state: PressureState,
}

impl Course {
    fn new(thresholds: Vec<Threshold>) -> Self {
        let settings = PressureSettings {
            thresholds,
            transition_period: Duration::from_secs(300),
            ..PressureSettings::default()
        };
        Self {
            settings,
            state: PressureState::default(),
        }
    }

    fn step(&mut self, second: u64, readings: &Readings) -> Findings {
        let state = std::mem::take(&mut self.state);
        let (state, findings) = step(&self.settings, state, readings, Duration::from_secs(second));
        self.state = state;
        findings
    }

    fn check(&mut self, second: u64, readings: &Readings, expected: &str) {
        assert_eq!(text(&self.step(second, readings)), expected, "at {second} s");
    }
}

fn text(findings: &Findings) -> String {
    let Pressure { memory, disk, pid } = findings.pressure;
    let conditions = [(memory, "memory"), (disk, "disk"), (pid, "pid")];
    let conditions = conditions
        .iter()
        .filter(|(is_on, _)| *is_on)
        .map(|(_, name)| *name);
    let mut parts: Vec<String> = conditions.map(ToOwned::to_owned).collect();
    parts.extend(findings.crossed.iter().map(|one| format!("+{one}")));
    parts.extend(findings.left.iter().map(|key| format!("-{}", key.signal)));
    parts.join(" ")
}

#[test]
fn a_hard_threshold_is_crossed_at_once_and_held_for_its_period() {
    let mut course = Course::new(read(&[("memory.available", "100Mi")], &[], &[], &[]).expect("good"));
    course.check(0, &memory(100 * MIB), "");
    course.check(
        10,
        &memory(100 * MIB - 1),
        "memory +memory.available is 104857599, below the hard eviction threshold of 100Mi",
    );
    course.check(20, &memory(90 * MIB), "memory");
    course.check(30, &memory(100 * MIB), "memory -memory.available");
    course.check(319, &memory(GIB), "memory");
    course.check(320, &memory(GIB), "");
}

#[test]
fn a_threshold_is_left_with_its_minimum_reclaim() {
    let thresholds = read(
        &[("memory.available", "100Mi")],
        &[],
        &[],
        &[("memory.available", "50Mi")],
    );
    let mut course = Course::new(thresholds.expect("good"));
    course.check(0, &memory(120 * MIB), "");
    let crossed = "memory +memory.available is 80Mi, below the hard eviction threshold of 100Mi";
    course.check(10, &memory(80 * MIB), crossed);
    course.check(20, &memory(149 * MIB), "memory");
    course.check(30, &memory(150 * MIB), "memory -memory.available");
    course.check(40, &memory(149 * MIB), "memory");
    course.check(330, &memory(149 * MIB), "");
}

#[test]
fn a_soft_threshold_waits_for_its_grace_period() {
    let thresholds = read(
        &[],
        &[("memory.available", "10%")],
        &[("memory.available", "1m30s")],
        &[],
    );
    let mut course = Course::new(thresholds.expect("good"));
    let low = memory(300 * MIB);
    course.check(0, &low, "memory");
    course.check(80, &low, "memory");
    // Above it for one round, and everything begins anew.
    course.check(85, &memory(GIB), "memory");
    course.check(90, &low, "memory");
    course.check(170, &low, "memory");
    course.check(
        180,
        &low,
        "memory +memory.available is 300Mi, below the soft eviction threshold of 10% of 4Gi",
    );
    course.check(190, &low, "memory");
}

fn disk(device: u64, available_bytes: u64, inodes_free: u64) -> FilesystemReading {
    FilesystemReading {
        device,
        capacity_bytes: 100 * GIB,
        available_bytes,
        inodes: 1000,
        inodes_free,
    }
}

#[test]
fn filesystems_count_each_for_themselves() {
    let hard = [
        ("nodefs.available", "10%"),
        ("nodefs.inodesFree", "5%"),
        ("imagefs.available", "15%"),
    ];
    let thresholds = read(&hard, &[], &[], &[]).expect("good");
    let readings = |node, images, containers| Readings {
        node_filesystem: Some(node),
        image_filesystem: Some(images),
        container_filesystem: containers,
        ..Readings::default()
    };
    let check = |readings: Readings, expected: &str| {
        Course::new(thresholds.clone()).check(0, &readings, expected);
    };
    let plenty = |device| disk(device, 50 * GIB, 900);
    check(readings(plenty(1), plenty(1), None), "");
    // One filesystem for everything is told once for what is set on each.
    check(
        readings(disk(1, 5 * GIB, 900), disk(1, 5 * GIB, 900), None),
        "disk +nodefs.available is 5Gi, below the hard eviction threshold of 10% of 100Gi \
         +imagefs.available is 5Gi, below the hard eviction threshold of 15% of 100Gi",
    );
    check(
        readings(plenty(1), disk(2, 12 * GIB, 900), Some(disk(2, 12 * GIB, 900))),
        "disk +imagefs.available is 12Gi, below the hard eviction threshold of 15% of 100Gi",
    );
    check(
        readings(disk(1, 50 * GIB, 49), plenty(2), None),
        "disk +nodefs.inodesFree is 49, below the hard eviction threshold of 5% of 1k",
    );
    // Containers on a third filesystem are held to the node's thresholds.
    check(
        readings(plenty(1), plenty(2), Some(disk(3, 9 * GIB, 900))),
        "disk +containerfs.available is 9Gi, below the hard eviction threshold of 10% of 100Gi",
    );
    // Some filesystems count no inodes.
    let uncounted = FilesystemReading {
        inodes: 0,
        inodes_free: 0,
        ..plenty(1)
    };
    let many = read(&[("nodefs.inodesFree", "10k")], &[], &[], &[]).expect("good");
    Course::new(many).check(0, &readings(uncounted, uncounted, None), "");
}

#[test]
fn pods_and_huge_pages_and_processes_count() {
    let hard = [("memory.available", "1Gi"), ("pid.available", "10%")];
    let texts = ThresholdTexts {
        hard: &texts(&hard),
        soft: &Texts::new(),
        soft_grace: &Texts::new(),
        minimum_reclaim: &Texts::new(),
        are_pods_enforced: true,
    };
    let (thresholds, _) = texts.read().expect("good");
    let mut course = Course::new(thresholds);
    let pods = |limit_bytes, usage_bytes| Readings {
        pods_memory: Some(MemoryReading {
            limit_bytes,
            usage_bytes,
            inactive_file_bytes: 0,
        }),
        ..memory(3 * GIB)
    };
    course.check(0, &pods(Some(2 * GIB), GIB), "");
    course.check(10, &pods(None, 5 * GIB), "");
    course.check(
        20,
        &pods(Some(2 * GIB), GIB + MIB),
        "memory +allocatableMemory.available is 1023Mi, below the hard eviction threshold of 1Gi",
    );
    course.settings.huge_page_bytes = 2 * GIB + MIB;
    course.check(
        30,
        &pods(Some(2 * GIB), GIB),
        "memory +memory.available is 1023Mi, below the hard eviction threshold of 1Gi -allocatableMemory.available",
    );
    course.settings.huge_page_bytes = 0;
    let processes = |running| Readings {
        processes: Some(ProcessReading { most: 1000, running }),
        ..memory(3 * GIB)
    };
    course.check(1000, &processes(900), "-memory.available");
    course.check(
        1010,
        &processes(901),
        "pid +pid.available is 99, below the hard eviction threshold of 10% of 1k",
    );
    course.check(1020, &processes(2000), "pid");
}

#[test]
fn a_signal_that_cannot_be_read_is_no_news() {
    let thresholds = read(
        &[("memory.available", "100Mi")],
        &[("memory.available", "200Mi")],
        &[("memory.available", "60s")],
        &[],
    );
    let mut course = Course::new(thresholds.expect("good"));
    let nothing = Readings::default();
    course.check(0, &nothing, "");
    course.check(10, &memory(150 * MIB), "memory");
    course.check(500, &nothing, "memory");
    course.check(
        510,
        &memory(150 * MIB),
        "memory +memory.available is 150Mi, below the soft eviction threshold of 200Mi",
    );
    course.check(900, &nothing, "memory");
    // It was last seen long ago.
    course.check(910, &memory(GIB), "-memory.available");
}

proptest! {
    /// Whatever is read: what is below a threshold is a condition, a condition ends a period after it was last seen, and
    /// between two tellings of one threshold it was left.
    #[test]
    fn conditions_follow_what_is_read(
        rounds in proptest::collection::vec((1u64..120, proptest::option::weighted(0.9, 0u64..400)), 1..60),
        reclaim in 0u64..100,
        grace in 0u64..200,
    ) {
        let thresholds = read(
            &[("memory.available", "100Mi")],
            &[("memory.available", "200Mi")],
            &[("memory.available", &format!("{grace}s"))],
            &[("memory.available", &format!("{reclaim}Mi"))],
        )
        .expect("good");
        let mut course = Course::new(thresholds);
        let (mut now, mut last_low, mut due) = (0, None, std::collections::BTreeSet::new());
        for (pause, available) in rounds {
            now += pause;
            let readings = available.map_or_else(Readings::default, |mib| memory(mib * MIB));
            let findings = course.step(now, &readings);
            if available.is_some_and(|mib| mib < 200) {
                last_low = Some(now);
                prop_assert!(findings.pressure.memory);
            }
            if available.is_some_and(|mib| mib >= 200 + reclaim) {
                let recent = last_low.is_some_and(|low| now - low < 300);
                // What was kept by the minimum reclaim was seen later than it was low.
                prop_assert!(recent <= findings.pressure.memory);
                prop_assert!(findings.left.len() == due.len());
            }
            if findings.pressure.memory {
                prop_assert!(last_low.is_some(), "nothing was ever low");
            }
            for key in &findings.left {
                prop_assert!(due.remove(key));
            }
            for crossing in &findings.crossed {
                prop_assert!(due.insert(crossing.key), "told twice");
                prop_assert!(available.is_some());
            }
            if available.is_some_and(|mib| mib < 100) {
                prop_assert!(due.iter().any(|key| !key.is_soft));
            }
            prop_assert!(!findings.pressure.disk && !findings.pressure.pid);
        }
    }
}

#[test]
fn what_is_due_stays_due_until_it_is_left() {
    let hard = [("memory.available", "100Mi"), ("nodefs.available", "10%")];
    let thresholds = read(&hard, &[], &[], &[("memory.available", "50Mi")]).expect("good");
    let mut course = Course::new(thresholds);
    let due = |findings: &Findings| -> Vec<String> {
        let due = findings.due.iter();
        due.map(|one| format!("{} {}", one.key.signal, one.available.canonical()))
            .collect()
    };
    let low = |memory_bytes: u64, disk_bytes: u64| Readings {
        node_filesystem: Some(disk(1, disk_bytes, 900)),
        image_filesystem: Some(disk(1, disk_bytes, 900)),
        ..memory(memory_bytes)
    };
    assert_eq!(due(&course.step(0, &low(GIB, 50 * GIB))), [""; 0]);
    let both = course.step(10, &low(90 * MIB, 5 * GIB));
    let signals = [
        "memory.available 90Mi",
        "nodefs.available 5Gi",
        "containerfs.available 5Gi",
    ];
    assert_eq!(due(&both), signals);
    assert!(both.due.iter().all(|one| one.is_hard));
    assert_eq!(both.layout, DiskLayout::OneFilesystem);
    // Above the threshold, and below what has to be there with its minimum reclaim.
    let still = course.step(20, &low(120 * MIB, 50 * GIB));
    assert_eq!(due(&still), ["memory.available 120Mi"]);
    // What was not read is not due now, and stays as it is.
    assert_eq!(due(&course.step(30, &Readings::default())), [""; 0]);
    assert_eq!(
        due(&course.step(40, &low(120 * MIB, 50 * GIB))),
        ["memory.available 120Mi"]
    );
    assert_eq!(due(&course.step(50, &low(GIB, 50 * GIB))), [""; 0]);
}

#[test]
fn a_soft_threshold_without_a_grace_period_is_hard() {
    let soft = [("memory.available", "1Gi")];
    let is_hard = |grace: &str| {
        let thresholds = read(&[], &soft, &[("memory.available", grace)], &[]).expect("good");
        let mut course = Course::new(thresholds);
        course.step(0, &memory(MIB));
        course.step(100, &memory(MIB)).due[0].is_hard
    };
    assert!(is_hard("0s"));
    assert!(!is_hard("1m"));
}

#[test]
fn after_a_reclaim_every_threshold_counts_with_its_minimum() {
    let check = |grace: &str, available: u64, expected: bool| {
        let thresholds = read(
            &[("pid.available", "10%")],
            &[("memory.available", "100Mi")],
            &[("memory.available", grace)],
            &[("memory.available", "50Mi")],
        );
        let settings = PressureSettings {
            thresholds: thresholds.expect("good"),
            ..PressureSettings::default()
        };
        let found = is_any_crossed(&settings, DiskLayout::default(), &memory(available));
        assert_eq!(found, expected, "{grace} {available}");
    };
    check("10m", 149 * MIB, true);
    check("10m", 150 * MIB, false);
    check("0s", 10 * MIB, true);
}

#[test]
fn signals_are_read_more_often_near_a_threshold() {
    let hard = [("memory.available", "100Mi"), ("nodefs.available", "10%")];
    let settings = PressureSettings {
        thresholds: read(&hard, &[], &[], &[]).expect("good"),
        ..PressureSettings::default()
    };
    let layout = DiskLayout::default();
    let pace = |pace: Pace, available: u64, seconds: u64| {
        pace.next(
            &settings,
            layout,
            &memory(available),
            Duration::from_secs(seconds),
        )
    };
    let millis = |pause: Duration| pause.as_millis();
    let (calm, pause) = pace(Pace::default(), 4 * GIB, 0);
    assert_eq!(millis(pause), 8_380, "before 500 MB/s could fill it");
    let (_, pause) = pace(calm.clone(), 4 * GIB, 10);
    assert_eq!(millis(pause), 8_380);
    // Three gigabytes in a second: the rest is used up at twice this rate.
    let (_, pause) = pace(calm, GIB, 1);
    assert_eq!(millis(pause), 250);
    let (_, pause) = pace(Pace::default(), 600 * MIB, 0);
    assert_eq!(millis(pause), 1_048);
    let (_, pause) = pace(Pace::default(), 101 * MIB, 0);
    assert_eq!(millis(pause), 250, "the shortest");
    let (_, pause) = pace(Pace::default(), 50 * MIB, 0);
    assert_eq!(
        millis(pause),
        10_000,
        "it is crossed, and something is done about it"
    );
    let (_, pause) = Pace::default().next(&settings, layout, &Readings::default(), Duration::ZERO);
    assert_eq!(millis(pause), 10_000, "nothing is known");
    let soft = PressureSettings {
        thresholds: read(&[], &hard[..1], &[("memory.available", "4s")], &[]).expect("good"),
        ..PressureSettings::default()
    };
    let (_, pause) = Pace::default().next(&soft, layout, &memory(50 * MIB), Duration::ZERO);
    assert_eq!(millis(pause), 4_000, "the end of its grace period");
}

#[test]
fn the_kernel_is_asked_for_a_hint_at_the_highest_threshold() {
    let hard = [
        ("memory.available", "100Mi"),
        ("allocatableMemory.available", "50Mi"),
    ];
    let soft = [("memory.available", "10%")];
    let thresholds = read(&hard, &soft, &[("memory.available", "1m")], &[]).expect("good");
    let settings = PressureSettings {
        thresholds,
        huge_page_bytes: GIB,
        ..PressureSettings::default()
    };
    let readings = Readings {
        pods_memory: Some(MemoryReading {
            limit_bytes: Some(2 * GIB),
            usage_bytes: GIB,
            inactive_file_bytes: 7 * MIB,
        }),
        ..memory(2 * GIB)
    };
    // Of 4 GiB one is for huge pages, and the soft threshold is a tenth of the rest.
    let part = ThresholdValue::Part(0.1)
        .of(i64::try_from(3 * GIB).expect("small"))
        .value();
    let of_node = 3 * GIB - u64::try_from(part).expect("positive") + 10 * MIB;
    let of_pods = 2 * GIB - 50 * MIB + 7 * MIB;
    assert_eq!(
        memory_marks(&settings, &readings),
        [
            (Signal::MemoryAvailable, of_node),
            (Signal::AllocatableMemoryAvailable, of_pods)
        ]
    );
    assert_eq!(memory_marks(&settings, &Readings::default()), []);
}
