//! What a summary says of the node, its pods and their containers, as `rubelet top` shows it.
//!
//! Owns which figure of the summary stands for what, and the order of rows. It must not know how they are drawn.

use std::cmp::Reverse;

use serde::Deserialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SortKey {
    Cpu,
    Memory,
    Disk,
    Pressure,
    Name,
}

impl SortKey {
    pub(super) const ALL: [Self; 5] = [Self::Cpu, Self::Memory, Self::Disk, Self::Pressure, Self::Name];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Pressure => "psi",
            Self::Name => "name",
        }
    }
}

/// The parts of a summary that are shown.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(super) struct Summary {
    pub(super) node: Node,
    pub(super) pods: Vec<Pod>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Node {
    pub(super) node_name: String,
    cpu: Cpu,
    memory: Memory,
    io: Io,
    pub(super) fs: Filesystem,
    runtime: Runtime,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    #[serde(rename = "podRef")]
    pub(super) reference: Reference,
    containers: Vec<Container>,
    cpu: Cpu,
    memory: Memory,
    io: Io,
    #[serde(rename = "ephemeral-storage")]
    ephemeral_storage: Filesystem,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Reference {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
    cpu: Cpu,
    memory: Memory,
    io: Io,
    rootfs: Filesystem,
    logs: Filesystem,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Cpu {
    usage_nano_cores: Option<u64>,
    psi: Stalls,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Memory {
    available_bytes: Option<u64>,
    working_set_bytes: Option<u64>,
    psi: Stalls,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Io {
    psi: Stalls,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Stalls {
    some: Stall,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Stall {
    total: u64,
    avg10: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Filesystem {
    pub(super) capacity_bytes: Option<u64>,
    pub(super) used_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Runtime {
    image_fs: Filesystem,
}

/// One line of the table. What is not known is missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) is_container: bool,
    pub(super) nano_cores: Option<u64>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) disk_bytes: Option<u64>,
    /// Percent of the last ten seconds that processes waited for processors, memory and disks.
    pub(super) stalls: [f64; 3],
}

/// What the node uses as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Totals {
    pub(super) nano_cores: Option<u64>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) memory_available_bytes: Option<u64>,
    pub(super) disk: Filesystem,
    pub(super) image_bytes: Option<u64>,
    /// `None` where the kernel does not measure them.
    pub(super) stalls: Option<[f64; 3]>,
}

impl Summary {
    pub(super) fn totals(&self) -> Totals {
        let node = &self.node;
        Totals {
            nano_cores: node.cpu.usage_nano_cores,
            memory_bytes: node.memory.working_set_bytes,
            memory_available_bytes: node.memory.available_bytes,
            disk: node.fs.clone(),
            image_bytes: node.runtime.image_fs.used_bytes,
            stalls: self
                .has_stalls()
                .then(|| stalls(&node.cpu, &node.memory, &node.io)),
        }
    }

    /// A kernel that does not measure stalls has zeros in the summary, and a machine that measures them has waited some time.
    fn has_stalls(&self) -> bool {
        let node = &self.node;
        let all = [&node.cpu.psi, &node.memory.psi, &node.io.psi];
        all.iter().any(|stalls| stalls.some.total > 0)
    }

    pub(super) fn containers(&self) -> usize {
        self.pods.iter().map(|pod| pod.containers.len()).sum()
    }

    /// The rows in their order: the largest first, and equal ones by name. Containers stand below their pods, in the same order.
    pub(super) fn rows(&self, key: SortKey, shows_containers: bool) -> Vec<Row> {
        let mut pods: Vec<(Row, &Pod)> = self.pods.iter().map(|pod| (pod.row(), pod)).collect();
        pods.sort_by(|(one, _), (other, _)| order(one, other, key));
        pods.into_iter()
            .flat_map(|(row, pod)| {
                let mut rows = vec![row];
                if shows_containers {
                    let mut containers: Vec<Row> = pod.containers.iter().map(Container::row).collect();
                    containers.sort_by(|one, other| order(one, other, key));
                    rows.extend(containers);
                }
                rows
            })
            .collect()
    }
}

impl Pod {
    pub(super) fn row(&self) -> Row {
        Row {
            name: format!("{}/{}", self.reference.namespace, self.reference.name),
            is_container: false,
            nano_cores: self.cpu.usage_nano_cores,
            memory_bytes: self.memory.working_set_bytes,
            disk_bytes: self.ephemeral_storage.used_bytes,
            stalls: stalls(&self.cpu, &self.memory, &self.io),
        }
    }
}

impl Container {
    fn row(&self) -> Row {
        let disks = [self.rootfs.used_bytes, self.logs.used_bytes];
        Row {
            name: self.name.clone(),
            is_container: true,
            nano_cores: self.cpu.usage_nano_cores,
            memory_bytes: self.memory.working_set_bytes,
            disk_bytes: disks.into_iter().flatten().reduce(u64::saturating_add),
            stalls: stalls(&self.cpu, &self.memory, &self.io),
        }
    }
}

fn stalls(cpu: &Cpu, memory: &Memory, io: &Io) -> [f64; 3] {
    [&cpu.psi, &memory.psi, &io.psi].map(|stalls| stalls.some.avg10)
}

pub(super) fn order(one: &Row, other: &Row, key: SortKey) -> std::cmp::Ordering {
    let largest = |row: &Row| row.stalls.into_iter().fold(0.0, f64::max);
    let by_key = match key {
        SortKey::Cpu => Reverse(one.nano_cores).cmp(&Reverse(other.nano_cores)),
        SortKey::Memory => Reverse(one.memory_bytes).cmp(&Reverse(other.memory_bytes)),
        SortKey::Disk => Reverse(one.disk_bytes).cmp(&Reverse(other.disk_bytes)),
        SortKey::Pressure => largest(other).total_cmp(&largest(one)),
        SortKey::Name => std::cmp::Ordering::Equal,
    };
    by_key.then_with(|| one.name.cmp(&other.name))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn psi(avg10: f64) -> Value {
        let data = json!({ "total": 9, "avg10": avg10, "avg60": 0.0, "avg300": 0.0 });
        json!({ "some": data, "full": { "total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0 } })
    }

    fn pod(name: &str, nano_cores: u64, memory: u64, disk: u64, stalled: f64) -> Value {
        json!({
            "podRef": { "name": name, "namespace": "default", "uid": name },
            "startTime": "2026-01-01T00:00:00Z",
            "containers": [
                { "name": "small", "cpu": { "usageNanoCores": 1 }, "memory": { "workingSetBytes": 1 } },
                {
                    "name": "large", "cpu": { "usageNanoCores": 2, "psi": psi(1.5) }, "memory": { "workingSetBytes": 2 },
                    "rootfs": { "usedBytes": 3 }, "logs": { "usedBytes": 4 },
                },
            ],
            "cpu": { "usageNanoCores": nano_cores, "psi": psi(0.0) },
            "memory": { "workingSetBytes": memory, "psi": psi(stalled) },
            "ephemeral-storage": { "usedBytes": disk },
        })
    }

    fn summary() -> Summary {
        let summary = json!({
            "node": {
                "nodeName": "a", "cpu": { "usageNanoCores": 7, "psi": psi(2.5) },
                "memory": { "workingSetBytes": 10, "availableBytes": 20 },
                "fs": { "capacityBytes": 100, "usedBytes": 30 }, "runtime": { "imageFs": { "usedBytes": 40 } },
            },
            "pods": [pod("b", 5, 1, 9, 0.0), pod("a", 5, 3, 1, 0.0), pod("c", 1, 2, 5, 3.0)],
        });
        from_value(summary).unwrap()
    }

    #[test]
    fn pods_stand_by_what_is_asked_for() {
        let check = |key: SortKey, expected: [&str; 3]| {
            let rows = summary().rows(key, false);
            let names: Vec<&str> = rows.iter().map(|row| &row.name["default/".len()..]).collect();
            assert_eq!(names, expected, "{key:?}");
        };
        check(SortKey::Cpu, ["a", "b", "c"]);
        check(SortKey::Memory, ["a", "c", "b"]);
        check(SortKey::Disk, ["b", "c", "a"]);
        check(SortKey::Pressure, ["c", "a", "b"]);
        check(SortKey::Name, ["a", "b", "c"]);
    }

    #[test]
    fn containers_stand_below_their_pods() {
        let rows = summary().rows(SortKey::Cpu, true);
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names[..4], ["default/a", "large", "small", "default/b"]);
        let large = &rows[1];
        assert_eq!((large.disk_bytes, large.stalls), (Some(7), [1.5, 0.0, 0.0]));
        assert_eq!(rows[2].disk_bytes, None, "not known");
        assert_eq!(rows[0].disk_bytes, Some(1));
    }

    #[test]
    fn the_node_has_totals() {
        let summary = summary();
        assert_eq!(summary.containers(), 6);
        let totals = summary.totals();
        assert_eq!(
            (
                totals.nano_cores,
                totals.memory_bytes,
                totals.memory_available_bytes
            ),
            (Some(7), Some(10), Some(20))
        );
        assert_eq!((totals.disk.used_bytes, totals.image_bytes), (Some(30), Some(40)));
        assert_eq!(totals.stalls, Some([2.5, 0.0, 0.0]));
        let bare: Summary = from_value(json!({ "node": { "nodeName": "a" }, "pods": [] })).unwrap();
        assert_eq!(bare.totals(), Totals::default());
    }
}
