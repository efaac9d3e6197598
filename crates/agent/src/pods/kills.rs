//! Until when the end of pods that terminate is waited for.
//!
//! Owns each deadline and whether it has passed. What follows from that is decided in `room`.

use std::collections::BTreeMap;

use rubelet_model::observation::PodUid;
use rubelet_ports::Moment;

/// Pods whose end others wait for.
#[derive(Default)]
pub(super) struct Kills(BTreeMap<PodUid, Kill>);

struct Kill {
    until: Moment,
    is_overdue: bool,
    /// The resource that the pod was preempted for, if it was.
    preempted_for: Option<String>,
}

impl Kills {
    /// The pod terminates; its time to end only shrinks. The answer is whether it has missed it already.
    pub(super) fn begin(&mut self, uid: &PodUid, until: Moment) -> bool {
        let kill = self.0.entry(uid.clone()).or_insert(Kill {
            until,
            is_overdue: false,
            preempted_for: None,
        });
        kill.until = kill.until.min(until);
        kill.is_overdue
    }

    /// The pod has to end for a critical one, be it that it missed its time once before.
    pub(super) fn preempt(&mut self, uid: PodUid, until: Moment, scarce: String) {
        let kill = Kill {
            until,
            is_overdue: false,
            preempted_for: Some(scarce),
        };
        self.0.insert(uid, kill);
    }

    /// The pod has ended. The answer is the resource that it was preempted for, if it was, and ended in time.
    pub(super) fn end(&mut self, uid: &PodUid) -> Option<String> {
        let kill = self.0.remove(uid).filter(|kill| !kill.is_overdue)?;
        kill.preempted_for
    }

    pub(super) fn is_overdue(&self, uid: &PodUid) -> bool {
        self.0.get(uid).is_some_and(|kill| kill.is_overdue)
    }

    /// When the next pod misses its time.
    pub(super) fn next_deadline(&self) -> Option<Moment> {
        let awaited = self.0.values().filter(|kill| !kill.is_overdue);
        awaited.map(|kill| kill.until).min()
    }

    /// Those who missed their time by now, each once, and whether they were preempted.
    pub(super) fn mark_overdue(&mut self, now: Moment) -> Vec<(PodUid, bool)> {
        let kills = self.0.iter_mut();
        kills
            .filter(|(_, kill)| !kill.is_overdue && kill.until <= now)
            .map(|(uid, kill)| {
                kill.is_overdue = true;
                (uid.clone(), kill.preempted_for.is_some())
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_start(Duration::from_secs(seconds))
    }

    #[test]
    fn a_pod_is_overdue_once_and_only_until_it_has_ended() {
        let mut kills = Kills::default();
        let uid = |name: &str| PodUid::from(name);
        kills.preempt(uid("short"), at(10), "cpu".to_owned());
        assert!(!kills.begin(&uid("long"), at(45)));
        kills.preempt(uid("ended"), at(10), "memory".to_owned());
        assert_eq!(kills.end(&uid("ended")).as_deref(), Some("memory"));
        let check = |kills: &mut Kills, seconds: u64, expected: &[(&str, bool)]| {
            let overdue = kills.mark_overdue(at(seconds));
            let overdue: Vec<(&str, bool)> = overdue.iter().map(|(uid, is)| (uid.as_str(), *is)).collect();
            assert_eq!(overdue, expected, "after {seconds} s");
        };
        check(&mut kills, 9, &[]);
        check(&mut kills, 10, &[("short", true)]);
        assert_eq!(kills.next_deadline(), Some(at(45)));
        // Later news of the same end do not prolong it; a shorter grace period shortens it.
        assert!(!kills.begin(&uid("long"), at(60)));
        assert!(!kills.begin(&uid("long"), at(30)));
        assert!(kills.begin(&uid("short"), at(60)));
        check(&mut kills, 29, &[]);
        check(&mut kills, 30, &[("long", false)]);
        check(&mut kills, 100, &[]);
        assert!(kills.is_overdue(&uid("short")));
        assert_eq!(kills.end(&uid("short")), None);
        assert_eq!(kills.next_deadline(), None);
    }
}
