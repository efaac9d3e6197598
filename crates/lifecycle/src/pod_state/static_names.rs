//! Static pods of one name run one after the other.
//!
//! Owns which pod holds a name and which pods wait for it, in order of arrival. An edited static pod is a new pod of the same name:
//! it starts when the old one is gone.

use std::collections::{BTreeMap, VecDeque};

use rubelet_model::observation::PodUid;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Line {
    holder: Option<PodUid>,
    waiting: VecDeque<PodUid>,
}

/// Names are `name_namespace`, or whatever else is unique per name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StaticNames {
    lines: BTreeMap<String, Line>,
}

impl StaticNames {
    /// How many names are held or waited for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Puts a pod in line. The answer is true when it holds the name now. Asking again keeps its place.
    pub fn queue(&mut self, name: &str, uid: &PodUid) -> bool {
        let line = self.lines.entry(name.to_owned()).or_default();
        if line.holder.is_none() && line.waiting.is_empty() {
            line.holder = Some(uid.clone());
        }
        let is_holder = line.holder.as_ref() == Some(uid);
        if !is_holder && !line.waiting.contains(uid) {
            line.waiting.push_back(uid.clone());
        }
        is_holder
    }

    /// Takes a pod out, whether it holds the name or waits. The answer is the pod whose turn it is now.
    pub fn release(&mut self, name: &str, uid: &PodUid) -> Option<PodUid> {
        let line = self.lines.get_mut(name)?;
        line.waiting.retain(|waiting| waiting != uid);
        let mut next = None;
        if line.holder.as_ref() == Some(uid) {
            line.holder = line.waiting.pop_front();
            next = line.holder.clone();
        }
        if line.holder.is_none() {
            self.lines.remove(name);
        }
        next
    }

    #[must_use]
    pub fn holder(&self, name: &str) -> Option<&PodUid> {
        self.lines.get(name)?.holder.as_ref()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}
