//! The queue of pods to look at.
//!
//! Owns the order: urgent keys first, then first come, first served. A key is queued once, however often it was added, and
//! is not handed out while a call for it is under way. That keeps the calls for one pod in order. A key that was put off is not
//! looked at before its time, or before it is added again.

use std::collections::{BTreeMap, BTreeSet};

use rubelet_model::observation::PodUid;
use rubelet_model::pod::PodName;
use rubelet_ports::Moment;

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

#[derive(Clone, Copy, Debug)]
struct Place {
    urgency: Urgency,
    number: u64,
    /// It was put off.
    until: Option<Moment>,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    last_number: u64,
    places: BTreeMap<Key, Place>,
    order: BTreeMap<(Urgency, u64), Key>,
    put_off: BTreeSet<(Moment, Key)>,
    running: BTreeSet<Key>,
}

impl Queue {
    /// Puts a key in line. One that is there already keeps its place, unless it has become urgent.
    pub(crate) fn push(&mut self, key: Key, urgency: Urgency) {
        let (urgency, number) = match self.places.get(&key) {
            Some(place) if place.until.is_none() && place.urgency <= urgency => return,
            Some(place) => (place.urgency.min(urgency), place.number),
            None => {
                self.last_number += 1;
                (urgency, self.last_number)
            }
        };
        self.remove(&key);
        let until = None;
        self.order.insert((urgency, number), key.clone());
        self.places.insert(
            key,
            Place {
                urgency,
                number,
                until,
            },
        );
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        let Some(place) = self.places.remove(key) else {
            return;
        };
        match place.until {
            Some(until) => drop(self.put_off.remove(&(until, key.clone()))),
            None => drop(self.order.remove(&(place.urgency, place.number))),
        }
    }

    /// There is nothing to do for the key before this.
    pub(crate) fn put_off(&mut self, key: &Key, until: Moment) {
        if let Some(place) = self.places.get_mut(key).filter(|place| place.until.is_none()) {
            place.until = Some(until);
            self.order.remove(&(place.urgency, place.number));
            self.put_off.insert((until, key.clone()));
        }
    }

    /// Puts keys back in line whose time has come.
    pub(crate) fn wake(&mut self, now: Moment) {
        while self.next_wake().is_some_and(|until| until <= now)
            && let Some((_, key)) = self.put_off.pop_first()
        {
            if let Some(place) = self.places.get_mut(&key) {
                place.until = None;
                self.order.insert((place.urgency, place.number), key);
            }
        }
    }

    /// When [`Self::wake`] has something to do.
    pub(crate) fn next_wake(&self) -> Option<Moment> {
        self.put_off.first().map(|(until, _)| *until)
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
    use std::time::Duration;

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
    fn what_is_put_off_comes_in_its_time_and_place() {
        let at = |seconds: u64| Moment::from_start(Duration::from_secs(seconds));
        let mut queue = Queue::default();
        for name in ["a", "b", "c", "d"] {
            queue.push(key(name), Urgency::Usual);
        }
        for (name, seconds) in [("a", 5), ("b", 3), ("c", 9)] {
            queue.put_off(&key(name), at(seconds));
        }
        assert_eq!(
            (order(&queue), queue.next_wake()),
            (vec!["d".to_owned()], Some(at(3)))
        );
        queue.wake(at(5));
        assert_eq!(order(&queue), ["a", "b", "d"]);
        queue.push(key("c"), Urgency::Urgent);
        assert_eq!(order(&queue), ["c", "a", "b", "d"], "it is worth a look at once");
        queue.put_off(&key("a"), at(20));
        queue.remove(&key("a"));
        assert_eq!((queue.next_wake(), queue.places.len()), (None, 3));
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
