//! The queue of pods to look at.
//!
//! Owns the order: urgent keys first, then first come, first served. A key is queued once, however often it was added, and
//! is not handed out while a call for it is under way. That keeps the calls for one pod in order.

use std::collections::{BTreeMap, BTreeSet};

use rubelet_model::observation::PodUid;
use rubelet_model::pod::PodName;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// The mirror of this name: whether there should be one, and which.
    Mirror(PodName),
    /// The status of a pod, and its end.
    Status(PodUid),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    Urgent,
    Usual,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    last_number: u64,
    places: BTreeMap<Key, (Urgency, u64)>,
    order: BTreeMap<(Urgency, u64), Key>,
    running: BTreeSet<Key>,
}

impl Queue {
    /// Puts a key in line. One that is there already keeps its place, unless it has become urgent.
    pub(crate) fn push(&mut self, key: Key, urgency: Urgency) {
        let number = match self.places.get(&key) {
            Some((before, _)) if *before <= urgency => return,
            Some(place) => {
                self.order.remove(place);
                place.1
            }
            None => {
                self.last_number += 1;
                self.last_number
            }
        };
        self.places.insert(key.clone(), (urgency, number));
        self.order.insert((urgency, number), key);
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        if let Some(place) = self.places.remove(key) {
            self.order.remove(&place);
        }
    }

    /// Those that may be looked at now, in order.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Key> {
        self.order.values().filter(|key| !self.running.contains(*key))
    }

    pub(crate) fn begin(&mut self, key: &Key) {
        self.remove(key);
        self.running.insert(key.clone());
    }

    pub(crate) fn end(&mut self, key: &Key) {
        self.running.remove(key);
    }

    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::Status(PodUid::from(name))
    }

    fn order(queue: &Queue) -> Vec<String> {
        let name = |key: &Key| match key {
            Key::Mirror(name) => name.to_string(),
            Key::Status(uid) => uid.to_string(),
        };
        queue.waiting().map(name).collect()
    }

    #[test]
    fn urgent_ones_first_and_each_once() {
        let mut queue = Queue::default();
        for name in ["a", "b", "c", "a"] {
            queue.push(key(name), Urgency::Usual);
        }
        queue.push(key("d"), Urgency::Urgent);
        assert_eq!(order(&queue), ["d", "a", "b", "c"]);
        queue.push(key("c"), Urgency::Urgent);
        assert_eq!(
            order(&queue),
            ["c", "d", "a", "b"],
            "it has waited longer than the other urgent one"
        );
        queue.push(key("c"), Urgency::Usual);
        assert_eq!(order(&queue)[0], "c");
    }

    #[test]
    fn what_is_under_way_waits() {
        let mut queue = Queue::default();
        queue.push(key("a"), Urgency::Usual);
        queue.begin(&key("a"));
        assert_eq!(queue.running(), 1);
        queue.push(key("a"), Urgency::Urgent);
        assert!(order(&queue).is_empty());
        queue.end(&key("a"));
        assert_eq!(order(&queue), ["a"]);
        queue.remove(&key("a"));
        assert!(order(&queue).is_empty() && queue.places.is_empty());
    }
}
