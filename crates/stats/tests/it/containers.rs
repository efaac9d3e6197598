//! The page of container metrics: which rows and families it has, and what a bad day does to it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use rubelet_ports::NodeStatistics as _;
use rubelet_testbed::metrics_text::MetricsText;
use rubelet_usage::devices::mounted_filesystems;
use rubelet_usage::{
    CgroupVersion, CpuDetail, CpuShare, Detail, DeviceNumber, Devices, DiskCounters, Figures, FileLimit,
    FilesystemFigures, IoFigures, MemoryDetail, MemoryFigures, MemoryLimits, NetworkFigures, PressureFigures,
    Tasks,
};

use crate::node::{Node, Problem, container_cgroup, pod_cgroup};

async fn text(node: &Node) -> String {
    let pieces: Vec<Vec<u8>> = node.statistics.container_page().await.collect();
    String::from_utf8(pieces.concat()).unwrap()
}

async fn page(node: &Node) -> MetricsText {
    MetricsText::parse(&text(node).await).unwrap()
}

const NET_DEV: &str = "a\nb\n eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";

/// A cgroup of version 2 with something in every file.
fn full() -> Figures {
    let stat = b"anon 10\nfile 20\nfile_mapped 30\ninactive_file 40\nactive_file 50\nfile_dirty 60\nfile_writeback 70\npgscan 80\npgsteal 90\nworkingset_refault_file 11\nworkingset_refault_anon 12\npgfault 13\npgmajfault 14\n";
    let pressure = |some: u64, full: u64| {
        let text = format!(
            "some avg10=0 avg60=0 avg300=0 total={some}\nfull avg10=0 avg60=0 avg300=0 total={full}\n"
        );
        Some(PressureFigures::of_file(text.as_bytes()))
    };
    let detail = Detail {
        cpu: CpuDetail::of_stat(
            CgroupVersion::V2,
            b"user_usec 2000000\nsystem_usec 500000\nnr_periods 5\nnr_throttled 3\nthrottled_usec 250000\nnr_bursts 2\nburst_usec 125000\n",
        ),
        cpu_share: CpuShare::of_v2(Some(1), Some(b"5000 100000")),
        memory: MemoryDetail {
            peak_bytes: 900,
            high_events: 1,
            max_events: 2,
            oom_kills: 3,
            reserved_bytes: Some(64),
            ..MemoryDetail::of_stat(CgroupVersion::V2, stat)
        },
        io: IoFigures::of_v2(b"254:0 rbytes=4096 wbytes=512 rios=3 wios=1 cost.usage=1000000\n"),
        tasks: Tasks {
            processes: 2,
            descriptors: 7,
            sockets: 1,
            threads: 4,
            most_threads: 100,
            open_files: Some(FileLimit::Unlimited),
        },
    };
    Figures {
        cpu_nanos: Some(2_500_000_000),
        memory: Some(MemoryFigures {
            usage_bytes: 140,
            swap_bytes: 15,
            ..MemoryFigures::of_stat(CgroupVersion::V2, stat)
        }),
        limits: Some(MemoryLimits::of_numbers(Some(1000), Some(u64::MAX))),
        cpu_pressure: pressure(1_000_000, 500_000),
        memory_pressure: pressure(0, 0),
        io_pressure: pressure(0, 0),
        network: NetworkFigures::of_net_dev(NET_DEV.as_bytes()),
        processes: None,
        detail: Some(Box::new(detail)),
    }
}

/// Every sample of a row but network and disks, by family and further labels.
const SAMPLES: &str = r#"
container_cpu_cfs_burst_periods_total 2
container_cpu_cfs_burst_seconds_total 0.125
container_cpu_cfs_periods_total 5
container_cpu_cfs_throttled_periods_total 3
container_cpu_cfs_throttled_seconds_total 0.25
container_cpu_system_seconds_total 0.5
container_cpu_usage_seconds_total{cpu="total"} 2.5
container_cpu_user_seconds_total 2
container_creation_time_seconds 3590
container_file_descriptors 7
container_health_state -1
container_last_seen 3600
container_memory_cache 20
container_memory_events_high_total 1
container_memory_events_max_total 2
container_memory_failcnt 0
container_memory_failures_total{failure_type="pgfault",scope="container"} 13
container_memory_failures_total{failure_type="pgmajfault",scope="container"} 14
container_memory_failures_total{failure_type="pgfault",scope="hierarchy"} 13
container_memory_failures_total{failure_type="pgmajfault",scope="hierarchy"} 14
container_memory_file_dirty_bytes 60
container_memory_file_writeback_bytes 70
container_memory_kernel_usage 0
container_memory_mapped_file 30
container_memory_max_usage_bytes 900
container_memory_pgscan_total 80
container_memory_pgsteal_total 90
container_memory_rss 10
container_memory_swap 15
container_memory_total_active_file_bytes 50
container_memory_total_inactive_file_bytes 40
container_memory_usage_bytes 140
container_memory_working_set_bytes 100
container_memory_workingset_refault_anon_total 12
container_memory_workingset_refault_file_total 11
container_oom_events_total 3
container_pressure_cpu_stalled_seconds_total 0.5
container_pressure_cpu_waiting_seconds_total 1
container_pressure_io_stalled_seconds_total 0
container_pressure_io_waiting_seconds_total 0
container_pressure_memory_stalled_seconds_total 0
container_pressure_memory_waiting_seconds_total 0
container_processes 2
container_sockets 1
container_spec_cpu_period 100000
container_spec_cpu_quota 5000
container_spec_cpu_shares 2
container_spec_memory_limit_bytes 1000
container_spec_memory_reservation_limit_bytes 64
container_spec_memory_swap_limit_bytes 0
container_start_time_seconds 0
container_threads 4
container_threads_max 100
container_ulimits_soft{ulimit="max_open_files"} -1
"#;
/// They are facts, and not read at a time.
const WITHOUT_TIME: [&str; 3] = ["container_creation_", "container_spec_", "container_start_"];
/// What a row has of devices and interfaces.
const ELSEWHERE: [&str; 3] = ["container_fs_", "container_network_", "container_blkio_"];

#[tokio::test]
async fn a_container_has_every_family() {
    let node = Node::new();
    node.run("web");
    node.usage.set(&container_cgroup("web"), full());
    let path = container_cgroup("web");
    let mut found: Vec<String> = Vec::new();
    for line in text(&node)
        .await
        .lines()
        .filter(|line| line.contains(&format!("id=\"{path}\"")))
    {
        let (name, rest) = line.split_once('{').unwrap();
        if ELSEWHERE.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let (labels, value) = rest.split_once("} ").unwrap();
        let own = format!(
            r#"container="main",id="{path}",image="web:1",name="c-web",namespace="default",pod="web""#
        );
        let own: Vec<&str> = own.split(',').collect();
        let all: Vec<&str> = labels.split(',').collect();
        assert!(own.iter().all(|label| all.contains(label)), "{line}");
        assert!(all.is_sorted(), "{line}");
        let further: Vec<&str> = all.into_iter().filter(|label| !own.contains(label)).collect();
        let further = Some(further.join(",")).filter(|further| !further.is_empty());
        let further = further
            .map(|further| format!("{{{further}}}"))
            .unwrap_or_default();
        let (value, time) = value.split_once(' ').unwrap_or((value, ""));
        let has_time = !WITHOUT_TIME.iter().any(|prefix| name.starts_with(prefix));
        assert_eq!(time, if has_time { "3600000" } else { "" }, "{line}");
        found.push(format!("{name}{further} {value}"));
    }
    assert_eq!(found.join("\n"), SAMPLES.trim().replace("\r", ""));
}

#[tokio::test]
async fn every_cgroup_of_the_node_has_a_row() {
    let node = Node::new();
    node.run("web");
    node.usage.set("/", full());
    for path in ["/kubepods", "/kubepods/burstable", "/kubepods/besteffort"] {
        node.usage.uses(path, 1, 1);
    }
    node.usage.set(&format!("{}/s-web", pod_cgroup("web")), full());
    let text = text(&node).await;
    let rows: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("container_last_seen{"))
        .map(|line| line.split_once('}').unwrap().0)
        .collect();
    let of_node = |path: &str| format!(r#"container="",id="{path}",image="",name="",namespace="",pod="""#);
    let pod = pod_cgroup("web");
    assert_eq!(
        rows,
        [
            of_node("/"),
            of_node("/kubepods"),
            of_node("/kubepods/besteffort"),
            format!(r#"container="",id="{pod}",image="",name="",namespace="default",pod="web""#),
            format!(
                r#"container="main",id="{pod}/c-web",image="web:1",name="c-web",namespace="default",pod="web""#
            ),
            format!(
                r#"container="",id="{pod}/s-web",image="pause:3",name="s-web",namespace="default",pod="web""#
            ),
            of_node("/kubepods/burstable"),
        ]
    );
    // Interfaces are those of sandboxes and of the machine.
    let page = MetricsText::parse(&text).unwrap();
    let received: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("container_network_receive_bytes_total{"))
        .collect();
    assert_eq!(received.len(), 2, "{received:?}");
    let of_pod = [("interface", "eth0"), ("pod", "web")];
    assert_eq!(
        page.sum("container_network_transmit_bytes_total", &of_pod),
        Some(9.0)
    );
    // The images of a row that is known are not asked for again.
    assert_eq!(node.runtime.images_listed.load(Ordering::Relaxed), 1);
    node.advance(1);
    self::text(&node).await;
    assert_eq!(node.runtime.images_listed.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn disks_are_named_and_the_machine_shows_its_filesystems() {
    let node = Node::new();
    node.run("web");
    node.usage.set("/", full());
    node.usage.set(&container_cgroup("web"), full());
    let mounts = "1 1 254:0 / / rw - ext4 /dev/vda rw\n2 1 0:30 / /run rw - tmpfs tmpfs rw\n3 1 254:16 / /data rw - xfs /dev/vdb rw\n";
    let space = FilesystemFigures {
        capacity_bytes: 1000,
        free_bytes: 400,
        available_bytes: 300,
        inodes: 10,
        inodes_free: 7,
    };
    let disk = |name: &str| DiskCounters {
        name: name.to_owned(),
        reads: 99,
        read_millis: 1500,
        ..DiskCounters::default()
    };
    let number = |minor| DeviceNumber { major: 254, minor };
    node.disk.set_devices(Devices {
        filesystems: mounted_filesystems(mounts)
            .into_iter()
            .map(|mount| (mount, space))
            .collect(),
        disks: BTreeMap::from([(number(0), disk("vda")), (number(16), disk("vdb"))]),
    });
    let page = page(&node).await;
    let sum = |name: &str, id: &str, device: &str| page.sum(name, &[("id", id), ("device", device)]);
    let container = container_cgroup("web");
    assert_eq!(
        sum("container_fs_reads_bytes_total", &container, "/dev/vda"),
        Some(4096.0)
    );
    assert_eq!(
        sum("container_fs_writes_total", &container, "/dev/vda"),
        Some(1.0)
    );
    assert_eq!(
        sum("container_fs_io_cost_usage_seconds_total", &container, "/dev/vda"),
        Some(1.0)
    );
    assert_eq!(sum("container_fs_limit_bytes", &container, "/dev/vda"), None);
    // Of two figures of one device the cgroup's counts.
    assert_eq!(sum("container_fs_reads_total", "/", "/dev/vda"), Some(3.0));
    assert_eq!(sum("container_fs_reads_total", "/", "/dev/vdb"), Some(99.0));
    assert_eq!(sum("container_fs_reads_total", "/", "/run"), Some(0.0));
    assert_eq!(sum("container_fs_read_seconds_total", "/", "/dev/vda"), Some(1.5));
    assert_eq!(sum("container_fs_usage_bytes", "/", "/run"), Some(600.0));
    assert_eq!(sum("container_fs_inodes_free", "/", "/dev/vdb"), Some(7.0));
    let operation = [
        ("id", container.as_str()),
        ("major", "254"),
        ("minor", "0"),
        ("operation", "Write"),
    ];
    assert_eq!(
        page.sum("container_blkio_device_usage_total", &operation),
        Some(512.0)
    );
}

#[tokio::test]
async fn the_machine_is_on_the_page() {
    let node = Node::new();
    let text = text(&node).await;
    let machine = r#"{boot_id="b",machine_id="m",system_uuid="u"}"#;
    for expected in [
        format!("machine_cpu_cores{machine} 0"),
        r#"machine_nvm_capacity{boot_id="b",machine_id="m",mode="memory_mode",system_uuid="u"} 0"#.to_owned(),
        r#"cadvisor_version_info{cadvisorRevision="",cadvisorVersion="",dockerVersion="",kernelVersion="6.18",osVersion="Debian"} 1"#.to_owned(),
        "machine_scrape_error 0".to_owned(),
        "container_scrape_error 0".to_owned(),
    ] {
        assert!(text.lines().any(|line| line == expected), "{expected} is not in {text}");
    }
}

#[tokio::test]
async fn families_are_in_order_and_whole() {
    let node = Node::new();
    for number in 0..120 {
        let name = format!("web-{number}");
        node.run(&name);
        node.usage.set(&container_cgroup(&name), full());
    }
    let pieces: Vec<Vec<u8>> = node.statistics.container_page().await.collect();
    assert!(pieces.len() > 10, "{} pieces", pieces.len());
    assert!(pieces.iter().all(|piece| piece.len() < 70 << 10));
    let text = String::from_utf8(pieces.concat()).unwrap();
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    assert!(names.is_sorted() && names.len() > 70, "{names:?}");
    // The reader refuses a family in two parts and a series that comes twice.
    let page = MetricsText::parse(&text).unwrap();
    assert_eq!(
        page.sum("container_threads", &[("container", "main")]),
        Some(480.0)
    );
}

#[tokio::test]
async fn clients_at_the_same_time_share_one_look() {
    let node = Node::new();
    node.run("web");
    let pages = join_all((0..50).map(|_| text(&node))).await;
    assert!(pages.iter().all(|page| *page == pages[0]));
    assert_eq!(node.runtime.calls().0, 1);
    assert_eq!(node.usage.take_questions().len(), 2, "all cgroups, and the root");
}

#[tokio::test]
async fn a_cgroup_that_goes_leaves_the_page() {
    let node = Node::new();
    node.run("web");
    node.run("api");
    let of = |name: &'static str| [("pod", name), ("container", "main")];
    assert_eq!(
        page(&node).await.sum("container_memory_usage_bytes", &of("web")),
        None,
        "no detail"
    );
    node.usage.set(&container_cgroup("web"), full());
    node.usage.set(&container_cgroup("api"), full());
    node.advance(1);
    assert_eq!(
        page(&node).await.sum("container_memory_usage_bytes", &of("web")),
        Some(140.0)
    );
    node.usage.remove(&container_cgroup("web"));
    node.advance(1);
    let page = page(&node).await;
    assert_eq!(page.sum("container_memory_usage_bytes", &of("web")), None);
    assert_eq!(page.sum("container_memory_usage_bytes", &of("api")), Some(140.0));
}

#[tokio::test]
async fn a_runtime_that_hangs_leaves_its_last_pods() {
    let node = Node::new();
    node.usage.set("/", full());
    node.runtime.set_problem(Some(Problem::Hangs));
    let mut asked = std::pin::pin!(page(&node));
    assert!((&mut asked).now_or_never().is_none());
    node.advance(4);
    let page_without = asked.await;
    assert_eq!(page_without.sum("container_scrape_error", &[]), Some(1.0));
    assert_eq!(page_without.sum("container_threads", &[("id", "/")]), Some(4.0));
    node.runtime.set_problem(None);
    node.run("web");
    node.usage.set(&container_cgroup("web"), full());
    node.advance(1);
    assert_eq!(
        page(&node).await.sum("container_threads", &[("pod", "web")]),
        Some(4.0)
    );
    node.runtime.set_problem(Some(Problem::Hangs));
    node.advance(1);
    let mut asked = std::pin::pin!(page(&node));
    assert!((&mut asked).now_or_never().is_none());
    node.advance(4);
    let last = asked.await;
    assert_eq!(last.sum("container_scrape_error", &[]), Some(0.0));
    assert_eq!(last.sum("container_threads", &[("pod", "web")]), Some(4.0));
}
