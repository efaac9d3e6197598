//! Which range of the node's user ids a pod with a user namespace of its own gets.
//!
//! Owns the arithmetic of ranges, which pod has which range, and the form of the record on disk. The caller reads and writes the
//! records; the records are authoritative, and this table follows them.

use std::collections::{BTreeMap, BTreeSet};

use rubelet_model::observation::PodUid;
use rubelet_wire::cri::v1::{IdMapping, NamespaceMode, UserNamespace};
use serde::{Deserialize, Serialize};

/// The record's name in the pod's directory.
pub const RECORD_NAME: &str = "userns";
/// Ids of one pod where the configuration sets no number; a configured number is a multiple of it.
pub const DEFAULT_IDS_PER_POD: u32 = 65536;

/// The ids that may be given to pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    pub first: u32,
    pub length: u32,
}

#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum RangeError {
    #[error("ids per pod: {0} is not a multiple of {DEFAULT_IDS_PER_POD}")]
    IdsPerPod(u32),
    #[error("the first of the kubelet's ids is {first}, which is not a multiple of {ids_per_pod}")]
    First { first: u32, ids_per_pod: u32 },
    #[error(
        "the first of the kubelet's ids is {first}, below {ids_per_pod}: the node's own users would be in a pod"
    )]
    TooLow { first: u32, ids_per_pod: u32 },
    #[error("the kubelet has {length} ids, which is not a multiple of {ids_per_pod}")]
    Length { length: u32, ids_per_pod: u32 },
    #[error("the kubelet's {length} ids are not enough for {max_pods} pods with {ids_per_pod} each")]
    TooFew {
        length: u32,
        ids_per_pod: u32,
        max_pods: u32,
    },
    #[error("getsubids: one line of four fields was expected, not {0:?}")]
    Output(String),
    #[error("getsubids: ids of users {users:?} and of groups {groups:?} differ")]
    UsersAndGroups { users: String, groups: String },
}

impl IdRange {
    /// Every id but the node's own, on a node without subordinate ids for the kubelet.
    #[must_use]
    pub fn whole(ids_per_pod: u32) -> Self {
        Self {
            first: ids_per_pod,
            length: 0_u32.wrapping_sub(ids_per_pod),
        }
    }

    /// From the output of `getsubids` for users and for groups.
    pub fn from_subordinate_ids(users: &str, groups: &str) -> Result<Self, RangeError> {
        if users != groups {
            return Err(RangeError::UsersAndGroups {
                users: users.to_owned(),
                groups: groups.to_owned(),
            });
        }
        let bad = || RangeError::Output(users.to_owned());
        let lines: Vec<&str> = users.trim_matches('\n').split('\n').collect();
        let [line] = lines.as_slice() else {
            return Err(bad());
        };
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, _, first, length] = fields.as_slice() else {
            return Err(bad());
        };
        let number = |text: &str| {
            let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| is_plain).ok_or_else(bad)
        };
        Ok(Self {
            first: number(first)?,
            length: number(length)?,
        })
    }
}

/// One range of ids inside the pod and on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    #[serde(rename = "hostId")]
    pub host_id: u32,
    #[serde(rename = "containerId")]
    pub container_id: u32,
    pub length: u32,
}

/// What is kept on disk of a pod's ids, as upstream keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    #[serde(rename = "uidMappings")]
    pub uid_mappings: Vec<Mapping>,
    #[serde(rename = "gidMappings")]
    pub gid_mappings: Vec<Mapping>,
}

#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum RecordError {
    #[error("invalid user namespace mappings file: {0}")]
    Form(String),
    #[error("invalid user namespace configuration: no more than one mapping allowed")]
    NotOne,
    #[error("invalid user namespace configuration: GID and UID mappings should be identical")]
    UsersAndGroups,
    #[error("invalid user namespace configuration: UID 0 must be mapped")]
    NoRoot,
    #[error("wrong user namespace length {0}")]
    Length(u32),
    #[error("wrong user namespace offset specified {0}")]
    Offset(u32),
    #[error("id {0} is out of range")]
    OutOfRange(u32),
    #[error("range picked for pod \"{uid}\" already taken")]
    Taken { uid: PodUid },
}

impl Record {
    fn of(first: u32, length: u32) -> Self {
        let mapping = Mapping {
            host_id: first,
            container_id: 0,
            length,
        };
        Self {
            uid_mappings: vec![mapping],
            gid_mappings: vec![mapping],
        }
    }

    /// The record as it is on disk.
    #[must_use]
    pub fn text(&self) -> String {
        let mappings = |all: &[Mapping]| {
            let one = |mapping: &Mapping| {
                let Mapping {
                    host_id,
                    container_id,
                    length,
                } = mapping;
                format!("{{\"hostId\":{host_id},\"containerId\":{container_id},\"length\":{length}}}")
            };
            all.iter().map(one).collect::<Vec<_>>().join(",")
        };
        format!(
            "{{\"uidMappings\":[{}],\"gidMappings\":[{}]}}",
            mappings(&self.uid_mappings),
            mappings(&self.gid_mappings)
        )
    }

    /// Reads a record and makes sure that it is one that is written here.
    pub fn read(content: &[u8]) -> Result<Self, RecordError> {
        let record: Self =
            serde_json::from_slice(content).map_err(|error| RecordError::Form(error.to_string()))?;
        let [mapping] = record.uid_mappings.as_slice() else {
            return Err(RecordError::NotOne);
        };
        if record.uid_mappings != record.gid_mappings {
            return Err(RecordError::UsersAndGroups);
        }
        if mapping.container_id != 0 {
            return Err(RecordError::NoRoot);
        }
        Ok(record)
    }

    /// The record of the mapping that the runtime reports for a sandbox; `None` when that is not a valid one.
    #[must_use]
    pub fn of_runtime(options: &UserNamespace) -> Option<Self> {
        let mappings = |all: &[IdMapping]| {
            let one = |mapping: &IdMapping| Mapping {
                host_id: mapping.host_id,
                container_id: mapping.container_id,
                length: mapping.length,
            };
            all.iter().map(one).collect()
        };
        let record = Self {
            uid_mappings: mappings(&options.uids),
            gid_mappings: mappings(&options.gids),
        };
        let is_own = options.mode == i32::from(NamespaceMode::Pod);
        (is_own && Self::read(record.text().as_bytes()).is_ok()).then_some(record)
    }

    /// The mapping as a CRI message.
    #[must_use]
    pub fn namespace(&self) -> UserNamespace {
        let mappings = |all: &[Mapping]| {
            let one = |mapping: &Mapping| IdMapping {
                host_id: mapping.host_id,
                container_id: mapping.container_id,
                length: mapping.length,
            };
            all.iter().map(one).collect()
        };
        UserNamespace {
            mode: NamespaceMode::Pod.into(),
            uids: mappings(&self.uid_mappings),
            gids: mappings(&self.gid_mappings),
        }
    }
}

/// Which pod has which range. Ranges are counted in blocks of `ids_per_pod`.
#[derive(Clone, Debug)]
pub struct UserNamespaces {
    ids_per_pod: u32,
    first_block: u32,
    blocks: u32,
    by_pod: BTreeMap<PodUid, u32>,
    used: BTreeSet<u32>,
}

impl UserNamespaces {
    pub fn new(range: IdRange, ids_per_pod: u32, max_pods: u32) -> Result<Self, RangeError> {
        let IdRange { first, length } = range;
        if ids_per_pod == 0 || !ids_per_pod.is_multiple_of(DEFAULT_IDS_PER_POD) {
            return Err(RangeError::IdsPerPod(ids_per_pod));
        }
        if !first.is_multiple_of(ids_per_pod) {
            return Err(RangeError::First { first, ids_per_pod });
        }
        if first < ids_per_pod {
            return Err(RangeError::TooLow { first, ids_per_pod });
        }
        if !length.is_multiple_of(ids_per_pod) {
            return Err(RangeError::Length { length, ids_per_pod });
        }
        if length / ids_per_pod < max_pods {
            return Err(RangeError::TooFew {
                length,
                ids_per_pod,
                max_pods,
            });
        }
        Ok(Self {
            ids_per_pod,
            first_block: first / ids_per_pod,
            blocks: length / ids_per_pod,
            by_pod: BTreeMap::new(),
            used: BTreeSet::new(),
        })
    }

    /// The pod's range, if it has one.
    #[must_use]
    pub fn of_pod(&self, uid: &PodUid) -> Option<Record> {
        let block = self.by_pod.get(uid)?;
        Some(self.record(*block))
    }

    fn record(&self, block: u32) -> Record {
        // Blocks end below 2^32, so that this cannot overflow.
        Record::of(block.wrapping_mul(self.ids_per_pod), self.ids_per_pod)
    }

    /// The pod's range, or the first free one from the random position `from`; `None` when all are in use.
    pub fn allocate(&mut self, uid: &PodUid, from: u64) -> Option<Record> {
        if let Some(block) = self.by_pod.get(uid) {
            return Some(self.record(*block));
        }
        let end = self.first_block + self.blocks;
        // The remainder is below the number of blocks, which is 32 bits wide.
        let start = self.first_block + u32::try_from(from % u64::from(self.blocks.max(1))).unwrap_or(0);
        let block = self
            .free_in(start, end)
            .or_else(|| self.free_in(self.first_block, start))?;
        self.take(uid.clone(), block);
        Some(self.record(block))
    }

    fn free_in(&self, start: u32, end: u32) -> Option<u32> {
        let mut candidate = start;
        for used in self.used.range(start..end) {
            if *used != candidate {
                break;
            }
            candidate += 1;
        }
        (candidate < end).then_some(candidate)
    }

    fn take(&mut self, uid: PodUid, block: u32) {
        self.used.insert(block);
        self.by_pod.insert(uid, block);
    }

    /// Takes note of a range that a pod was given before.
    pub fn adopt(&mut self, uid: &PodUid, record: &Record) -> Result<(), RecordError> {
        let [mapping] = record.uid_mappings.as_slice() else {
            return Err(RecordError::NotOne);
        };
        if mapping.length != self.ids_per_pod {
            return Err(RecordError::Length(mapping.length));
        }
        if !mapping.host_id.is_multiple_of(self.ids_per_pod) {
            return Err(RecordError::Offset(mapping.host_id));
        }
        let block = mapping.host_id / self.ids_per_pod;
        if !(self.first_block..self.first_block + self.blocks).contains(&block) {
            return Err(RecordError::OutOfRange(mapping.host_id));
        }
        if self.by_pod.get(uid) == Some(&block) {
            return Ok(());
        }
        if self.by_pod.contains_key(uid) || self.used.contains(&block) {
            return Err(RecordError::Taken { uid: uid.clone() });
        }
        self.take(uid.clone(), block);
        Ok(())
    }

    /// The pod's record is gone: its range is free for another pod.
    pub fn release(&mut self, uid: &PodUid) {
        if let Some(block) = self.by_pod.remove(uid) {
            self.used.remove(&block);
        }
    }

    /// The pods that have a range.
    pub fn pods(&self) -> impl Iterator<Item = &PodUid> {
        self.by_pod.keys()
    }
}
