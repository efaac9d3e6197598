use std::fs;

use rubelet_usage::{CgroupVersion, Classes, FileLimit, IoTable, Tasks};

use super::*;
use crate::HostClock;

const ALL: Classes = Classes {
    pressure: true,
    io_pressure: true,
    limits: true,
    network: true,
    processes: true,
    detail: true,
    file_limit: true,
};

/// A folder made like the kernel's.
struct Tree {
    root: tempfile::TempDir,
    usage: HostUsage,
}

impl Tree {
    fn new(version: CgroupVersion, files: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let mount = |name: &str| root.path().join(name);
        let (cpu, memory) = match version {
            CgroupVersion::V1 => (mount("cpuacct"), mount("memory")),
            CgroupVersion::V2 => (mount("unified"), mount("unified")),
        };
        let trees = Trees {
            version,
            cpu,
            memory,
            share: Some(mount("cpu")),
            io: Some(mount("blkio")),
            tasks: Some(mount("pids")),
            proc: mount("proc"),
        };
        let layout = Layout::of_this_machine(crate::cgroup::CgroupVersion::of_this_machine().unwrap());
        let usage = HostUsage::new(&layout.unwrap(), Arc::new(HostClock::new()));
        let shared = Shared {
            trees,
            clock: Arc::new(HostClock::new()),
            open: Mutex::default(),
        };
        let tree = Self {
            root,
            usage: HostUsage {
                shared: Arc::new(shared),
                pool: usage.pool,
            },
        };
        for (path, text) in files {
            tree.write(path, text);
        }
        tree
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    async fn read(&self, paths: &[&str]) -> Option<UsageReading> {
        let question = UsageQuestion {
            paths: paths.iter().map(|path| Arc::from(*path)).collect(),
            classes: ALL,
        };
        self.usage.read(vec![question]).await.remove(0)
    }
}

const NET_DEV: &str = "a\nb\n eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";

#[tokio::test]
async fn version_1_has_a_tree_for_each_figure() {
    let tree = Tree::new(
        CgroupVersion::V1,
        &[
            ("cpuacct/p/cpuacct.usage", "123456\n"),
            ("cpuacct/p/cgroup.procs", ""),
            ("memory/p/cgroup.procs", "17\n18\n"),
            ("memory/p/memory.usage_in_bytes", "5000\n"),
            ("memory/p/memory.limit_in_bytes", "9000\n"),
            ("memory/p/memory.memsw.limit_in_bytes", "9223372036854771712\n"),
            (
                "memory/p/memory.stat",
                "total_inactive_file 700\ntotal_rss 30\ntotal_swap 4\npgfault 5\n",
            ),
            ("proc/17/net/dev", NET_DEV),
        ],
    );
    let reading = tree.read(&["/p"]).await.unwrap();
    let figures = reading.figures;
    assert_eq!(figures.cpu_nanos, Some(123_456));
    let memory = figures.memory.unwrap();
    assert_eq!(
        (memory.working_set_bytes(), memory.rss_bytes, memory.swap_bytes),
        (4300, 30, 4)
    );
    let limits = figures.limits.unwrap();
    assert_eq!((limits.memory_bytes, limits.swap_bytes), (Some(9000), None));
    assert_eq!((figures.processes, figures.cpu_pressure), (Some(2), None));
    let network = figures.network.unwrap();
    assert_eq!(network.interfaces[0].transmit.bytes, 9);
}

#[tokio::test]
async fn version_2_has_one_tree_and_pressure() {
    let tree = Tree::new(
        CgroupVersion::V2,
        &[
            ("unified/p/cgroup.procs", "17\n"),
            ("unified/p/cpu.stat", "usage_usec 12\n"),
            (
                "unified/p/cpu.pressure",
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
            ),
            (
                "unified/p/io.pressure",
                "full avg10=0.00 avg60=0.00 avg300=0.00 total=9\n",
            ),
            ("unified/p/memory.current", "5000\n"),
            ("unified/p/memory.max", "max\n"),
            ("unified/p/memory.swap.current", "44\n"),
            ("unified/p/memory.swap.max", "100\n"),
            ("unified/p/memory.stat", "anon 30\nfile 40\ninactive_file 1000\n"),
        ],
    );
    let figures = tree.read(&["/p"]).await.unwrap().figures;
    assert_eq!(figures.cpu_nanos, Some(12_000));
    let memory = figures.memory.unwrap();
    assert_eq!(
        (memory.working_set_bytes(), memory.rss_bytes, memory.swap_bytes),
        (4000, 30, 44)
    );
    let limits = figures.limits.unwrap();
    assert_eq!((limits.memory_bytes, limits.swap_bytes), (None, Some(100)));
    assert_eq!(figures.cpu_pressure.unwrap().some.total, 7);
    assert_eq!(figures.io_pressure.unwrap().full.total, 9);
    assert_eq!((figures.memory_pressure, figures.network), (None, None));
}

#[tokio::test]
async fn version_1_has_details_in_five_trees() {
    let tree = Tree::new(
        CgroupVersion::V1,
        &[
            ("cpuacct/p/cpuacct.usage", "123456\n"),
            ("cpuacct/p/cpuacct.stat", "user 3\nsystem 4\n"),
            ("cpuacct/p/cgroup.procs", ""),
            (
                "cpu/p/cpu.stat",
                "nr_periods 5\nnr_throttled 2\nthrottled_time 77\n",
            ),
            ("cpu/p/cpu.shares", "512\n"),
            ("cpu/p/cpu.cfs_period_us", "100000\n"),
            ("cpu/p/cpu.cfs_quota_us", "-1\n"),
            ("blkio/p/blkio.bfq.io_serviced_recursive", "Total 0\n"),
            (
                "blkio/p/blkio.throttle.io_serviced_recursive",
                "8:0 Read 6\nTotal 6\n",
            ),
            (
                "blkio/p/blkio.throttle.io_service_bytes_recursive",
                "8:0 Read 4096\nTotal 4096\n",
            ),
            ("pids/p/pids.current", "9\n"),
            ("pids/p/pids.max", "max\n"),
            ("memory/p/cgroup.procs", "17\n18\n"),
            ("memory/p/memory.usage_in_bytes", "5000\n"),
            ("memory/p/memory.max_usage_in_bytes", "6000\n"),
            ("memory/p/memory.failcnt", "8\n"),
            ("memory/p/memory.soft_limit_in_bytes", "9223372036854771712\n"),
            (
                "memory/p/memory.oom_control",
                "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            ),
            ("memory/p/memory.stat", "total_cache 40\n"),
            ("proc/17/limits", "Max open files  1024  4096  files\n"),
        ],
    );
    let fds = tree.root.path().join("proc/17/fd");
    fs::create_dir_all(&fds).unwrap();
    for (name, target) in [("0", "/dev/null"), ("1", "socket:[7]"), ("2", "pipe:[8]")] {
        std::os::unix::fs::symlink(target, fds.join(name)).unwrap();
    }
    let detail = *tree.read(&["/p"]).await.unwrap().figures.detail.unwrap();
    assert_eq!(
        (detail.cpu.user_nanos, detail.cpu.throttled_nanos),
        (30_000_000, 77)
    );
    let share = detail.cpu_share;
    assert_eq!(
        (share.shares, share.period_micros, share.quota_micros),
        (512, 100_000, None)
    );
    let memory = detail.memory;
    assert_eq!(
        (memory.cache_bytes, memory.peak_bytes, memory.failures),
        (40, 6000, 8)
    );
    assert_eq!((memory.oom_kills, memory.reserved_bytes), (3, None));
    let read: Vec<u64> = detail
        .io
        .counters(IoTable::Bytes, "Read")
        .map(|(_, bytes)| bytes)
        .collect();
    assert_eq!(read, [4096], "an empty set of files is passed over");
    let expected = Tasks {
        processes: 2,
        descriptors: 3,
        sockets: 1,
        threads: 9,
        most_threads: 0,
        open_files: Some(FileLimit::Files(1024)),
    };
    assert_eq!(detail.tasks, expected);
}

#[tokio::test]
async fn version_2_has_details_in_one_tree() {
    let tree = Tree::new(
        CgroupVersion::V2,
        &[
            ("unified/p/cgroup.procs", "17\n"),
            (
                "unified/p/cpu.stat",
                "usage_usec 12\nuser_usec 5\nnr_throttled 2\nthrottled_usec 7\n",
            ),
            ("unified/p/cpu.weight", "100\n"),
            ("unified/p/cpu.max", "5000 100000\n"),
            ("unified/p/io.stat", "8:0 rbytes=4096 rios=3\n"),
            ("unified/p/memory.current", "5000\n"),
            ("unified/p/memory.peak", "6000\n"),
            ("unified/p/memory.min", "0\n"),
            (
                "unified/p/memory.events",
                "low 0\nhigh 4\nmax 5\noom 6\noom_kill 7\n",
            ),
            ("unified/p/memory.events.local", "oom_kill 2\n"),
            ("unified/p/memory.stat", "anon 30\nfile 40\n"),
            ("unified/p/pids.max", "100\n"),
        ],
    );
    let detail = *tree.read(&["/p"]).await.unwrap().figures.detail.unwrap();
    assert_eq!((detail.cpu.user_nanos, detail.cpu.throttled_nanos), (5000, 7000));
    assert_eq!(
        (detail.cpu_share.shares, detail.cpu_share.quota_micros),
        (2597, Some(5000))
    );
    let memory = detail.memory;
    assert_eq!(
        (memory.cache_bytes, memory.peak_bytes, memory.reserved_bytes),
        (40, 6000, Some(0))
    );
    assert_eq!(
        (memory.high_events, memory.max_events, memory.oom_kills),
        (4, 5, 2)
    );
    assert_eq!(detail.io.counters(IoTable::Operations, "Read").count(), 1);
    // Without `pids.current` the processes count.
    assert_eq!((detail.tasks.threads, detail.tasks.most_threads), (1, 100));
    assert_eq!(detail.tasks.open_files, None, "the process is gone");
}

#[tokio::test]
async fn the_root_is_limited_by_the_machine() {
    let info = "MemTotal: 9 kB\nSwapTotal: 5 kB\nSwapFree: 2 kB\n";
    let tree = Tree::new(
        CgroupVersion::V2,
        &[
            ("unified/cgroup.procs", "1\n"),
            ("unified/cpu.stat", "usage_usec 12\n"),
            (
                "unified/memory.stat",
                "anon 3000\nfile 4000\ninactive_file 1000\n",
            ),
            ("proc/meminfo", info),
            ("proc/1/net/dev", NET_DEV),
        ],
    );
    let figures = tree.read(&["/"]).await.unwrap().figures;
    let memory = figures.memory.unwrap();
    assert_eq!((memory.usage_bytes, memory.working_set_bytes()), (7000, 6000));
    assert_eq!(memory.swap_bytes, 3 * 1024);
    let limits = figures.limits.unwrap();
    assert_eq!(
        (limits.memory_bytes, limits.swap_bytes),
        (Some(9 * 1024), Some(5 * 1024))
    );
    assert_eq!(figures.network.unwrap().interfaces.len(), 1);
    tree.write("proc/stat", "cpu 1\nbtime 99\n");
    let machine = machine_below(tree.root.path()).unwrap();
    assert_eq!(machine.booted_at.unwrap().unix_seconds(), 99);
    assert_eq!(machine.memory.total_bytes, 9 * 1024);
}

#[tokio::test]
async fn a_cgroup_is_where_it_is_found_first() {
    let tree = Tree::new(
        CgroupVersion::V2,
        &[
            ("unified/b/cgroup.procs", ""),
            ("unified/b/cpu.stat", "usage_usec 1\n"),
            ("unified/b/memory.stat", "anon 1\n"),
        ],
    );
    assert_eq!(&*tree.read(&["/a", "/b"]).await.unwrap().path, "/b");
    assert_eq!(tree.read(&["/a", "b", "/../b"]).await, None);
    assert_eq!(tree.usage.open_rows(), 1);
    tree.usage.close();
    assert_eq!(tree.usage.open_rows(), 0);
}

#[tokio::test]
async fn a_cgroup_that_goes_drops_its_row() {
    let tree = Tree::new(
        CgroupVersion::V2,
        &[
            ("unified/p/cgroup.procs", ""),
            ("unified/p/cpu.stat", "usage_usec 1\n"),
            ("unified/p/memory.stat", "anon 1\n"),
            ("unified/p/memory.current", "1\n"),
        ],
    );
    assert!(tree.read(&["/p"]).await.is_some());
    // A controller that is switched off.
    fs::remove_file(tree.root.path().join("unified/p/memory.stat")).unwrap();
    let figures = tree.read(&["/p"]).await.unwrap().figures;
    assert_eq!((figures.cpu_nanos, figures.memory), (Some(1000), None));
    fs::remove_dir_all(tree.root.path().join("unified/p")).unwrap();
    assert_eq!(tree.read(&["/p"]).await, None);
    assert_eq!(tree.usage.open_rows(), 0, "it is not held open");
}

#[tokio::test]
async fn answers_are_in_the_order_of_many_questions() {
    let tree = Tree::new(CgroupVersion::V2, &[]);
    let paths: Vec<String> = (0..200).map(|number| format!("/p{number}")).collect();
    for (number, path) in paths.iter().enumerate().filter(|(number, _)| number % 3 > 0) {
        tree.write(&format!("unified{path}/cgroup.procs"), "");
        tree.write(
            &format!("unified{path}/cpu.stat"),
            &format!("usage_usec {number}\n"),
        );
    }
    let questions = paths.iter().map(|path| UsageQuestion {
        paths: vec![Arc::from(path.as_str())],
        classes: Classes::default(),
    });
    let answers = tree.usage.read(questions.collect()).await;
    assert_eq!(answers.len(), 200);
    for (number, answer) in answers.iter().enumerate() {
        let nanos = answer.as_ref().and_then(|answer| answer.figures.cpu_nanos);
        let expected = (number % 3 > 0).then_some(number as u64 * 1000);
        assert_eq!(nanos, expected, "{number}");
    }
}
