//! The answer of `/stats/summary`.
//!
//! Owns its shape, which is upstream's `stats/v1alpha1`: names, order, and which fields may be missing. How the figures come about
//! is not known here.

use k8s_openapi::jiff;
use rubelet_model::Timestamp;
use serde::{Serialize, Serializer};

use crate::pressure::PressureFigures;

/// A time as it is shown: RFC 3339, whole seconds, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShownTime(pub Timestamp);

impl Serialize for ShownTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let time = jiff::Timestamp::from_second(self.0.unix_seconds()).unwrap_or_default();
        serializer.collect_str(&time)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    pub node: NodeStats,
    pub pods: Vec<PodStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStats {
    pub node_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub system_containers: Vec<ContainerStats>,
    pub start_time: ShownTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rlimit: Option<RlimitStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
}

/// The filesystems of the runtime. Without a split of the two they are the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStats {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_fs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_fs: Option<FsStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RlimitStats {
    pub time: ShownTime,
    #[serde(rename = "maxpid", skip_serializing_if = "Option::is_none")]
    pub max_pid: Option<u64>,
    #[serde(rename = "curproc", skip_serializing_if = "Option::is_none")]
    pub running: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStats {
    pub pod_ref: PodReference,
    pub start_time: ShownTime,
    pub containers: Vec<ContainerStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStats>,
    #[serde(rename = "volume", skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeStats>,
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    pub ephemeral_storage: Option<FsStats>,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    pub process_stats: Option<ProcessStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PodReference {
    pub name: String,
    pub namespace: String,
    pub uid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessStats {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_count: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStats {
    pub name: String,
    pub start_time: ShownTime,
    /// With its fraction of a second, for pages that show it.
    #[serde(skip)]
    pub created_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuStats {
    pub time: ShownTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_nano_cores: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_core_nano_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<PsiStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStats {
    pub time: ShownTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major_page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<PsiStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct IoStats {
    pub time: ShownTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<PsiStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SwapStats {
    pub time: ShownTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_usage_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PsiStats {
    pub full: PsiData,
    pub some: PsiData,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PsiData {
    pub total: u64,
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
}

impl From<PressureFigures> for PsiStats {
    fn from(figures: PressureFigures) -> Self {
        let data = |stalls: crate::Stalls| PsiData {
            total: stalls.total,
            avg10: stalls.avg10,
            avg60: stalls.avg60,
            avg300: stalls.avg300,
        };
        Self {
            full: data(figures.full),
            some: data(figures.some),
        }
    }
}

/// The fields of one interface lie beside the list of all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NetworkStats {
    pub time: ShownTime,
    #[serde(flatten)]
    pub default: InterfaceStats,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStats {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_errors: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_errors: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FsStats {
    pub time: ShownTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_free: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_used: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStats {
    #[serde(flatten)]
    pub fs: FsStats,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvc_ref: Option<ClaimReference>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClaimReference {
    pub name: String,
    pub namespace: String,
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn times_are_whole_seconds() {
        let check = |nanos: i64, expected: &str| {
            let time = ShownTime(Timestamp::from_unix_nanos(nanos));
            assert_eq!(to_value(time).unwrap(), json!(expected));
        };
        check(0, "1970-01-01T00:00:00Z");
        check(-1, "1969-12-31T23:59:59Z");
        check(1_763_495_289_999_999_999, "2025-11-18T19:48:09Z");
        check(951_782_400_000_000_000, "2000-02-29T00:00:00Z");
        check(4_107_542_400_000_000_000, "2100-03-01T00:00:00Z");
    }

    #[test]
    fn what_is_not_known_is_not_shown() {
        let summary = Summary {
            node: NodeStats {
                node_name: "a".to_owned(),
                ..NodeStats::default()
            },
            pods: Vec::new(),
        };
        let expected = json!({
            "node": { "nodeName": "a", "startTime": "1970-01-01T00:00:00Z" },
            "pods": [],
        });
        assert_eq!(to_value(summary).unwrap(), expected);
    }

    #[test]
    fn names_are_upstreams() {
        let fs = FsStats {
            used_bytes: Some(1),
            inodes_used: Some(2),
            ..FsStats::default()
        };
        let pod = PodStats {
            volumes: vec![VolumeStats {
                fs: fs.clone(),
                name: "v".to_owned(),
                pvc_ref: Some(ClaimReference::default()),
            }],
            ephemeral_storage: Some(fs),
            process_stats: Some(ProcessStats {
                process_count: Some(3),
            }),
            network: Some(NetworkStats {
                default: InterfaceStats {
                    name: "eth0".to_owned(),
                    rx_bytes: Some(4),
                    ..InterfaceStats::default()
                },
                ..NetworkStats::default()
            }),
            ..PodStats::default()
        };
        let found = to_value(pod).unwrap();
        assert_eq!(
            found,
            json!({
                "podRef": { "name": "", "namespace": "", "uid": "" },
                "startTime": "1970-01-01T00:00:00Z",
                "containers": [],
                "network": { "time": "1970-01-01T00:00:00Z", "name": "eth0", "rxBytes": 4 },
                "volume": [{
                    "time": "1970-01-01T00:00:00Z", "usedBytes": 1, "inodesUsed": 2,
                    "name": "v", "pvcRef": { "name": "", "namespace": "" },
                }],
                "ephemeral-storage": { "time": "1970-01-01T00:00:00Z", "usedBytes": 1, "inodesUsed": 2 },
                "process_stats": { "process_count": 3 },
            })
        );
        let rlimit = RlimitStats {
            max_pid: Some(5),
            running: Some(6),
            ..RlimitStats::default()
        };
        assert_eq!(
            to_value(rlimit).unwrap(),
            json!({ "time": "1970-01-01T00:00:00Z", "maxpid": 5, "curproc": 6 })
        );
    }
}
