//! The progress of pulls: the time, and the bytes where they are known to belong to the pull.
//!
//! Owns what is known of each pull under way and its text. The runtime reports what arrives for all pulls together, so that bytes
//! are shown only of a pull that was alone from its beginning. It makes no calls: the code that pulls notes the progress here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_ports::{Ingest, Moment};

use crate::pulls::unpoisoned;

/// What is known of one pull.
#[derive(Debug, Default)]
struct Knowledge {
    begun_at: Option<Moment>,
    has_company: bool,
    blobs: BTreeMap<String, Blob>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Blob {
    arrived_bytes: u64,
    total_bytes: Option<u64>,
}

/// One pull, shared by all that wait for it. The lock is held for a few instructions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stage(Arc<Mutex<Knowledge>>);

impl Stage {
    /// Whether the registry is being asked: before that, the pull waits for others.
    pub(crate) fn has_begun(&self) -> bool {
        unpoisoned(&self.0).begun_at.is_some()
    }

    pub(crate) fn is_alone(&self) -> bool {
        !unpoisoned(&self.0).has_company
    }

    /// Notes what is on its way. What began before the pull belongs to another pull or is left behind.
    pub(crate) fn note(&self, ingests: &[Ingest], begun_at: Timestamp) {
        let mut knowledge = unpoisoned(&self.0);
        // What is not on its way any more has arrived.
        for blob in knowledge.blobs.values_mut() {
            blob.arrived_bytes = blob.total_bytes.unwrap_or(blob.arrived_bytes);
        }
        for ingest in ingests.iter().filter(|ingest| ingest.updated_at >= begun_at) {
            let blob = Blob {
                arrived_bytes: ingest.arrived_bytes,
                total_bytes: ingest.total_bytes,
            };
            knowledge.blobs.insert(ingest.reference.clone(), blob);
        }
    }

    pub(crate) fn text(&self, now: Moment) -> String {
        let knowledge = unpoisoned(&self.0);
        let Some(begun_at) = knowledge.begun_at else {
            return "waiting for other pulls".to_owned();
        };
        let elapsed = elapsed(now.since(begun_at));
        if knowledge.has_company || knowledge.blobs.is_empty() {
            return format!("pulling for {elapsed}");
        }
        let arrived: u64 = knowledge.blobs.values().map(|blob| blob.arrived_bytes).sum();
        let total: Option<u64> = knowledge.blobs.values().map(|blob| blob.total_bytes).sum();
        match total {
            Some(total) => format!(
                "pulling for {elapsed}, {} of the layers begun",
                megabytes(arrived, total)
            ),
            None => format!(
                "pulling for {elapsed}, {} MB so far",
                in_megabytes(arrived, arrived)
            ),
        }
    }
}

/// The pulls that ask registries just now.
#[derive(Default)]
pub(crate) struct UnderWay {
    last_number: u64,
    stages: BTreeMap<u64, Stage>,
}

/// Takes its pull out when it ends, however it ends.
pub(crate) struct Begun {
    number: u64,
    all: Arc<Mutex<UnderWay>>,
}

impl Begun {
    pub(crate) fn new(all: &Arc<Mutex<UnderWay>>, stage: &Stage, now: Moment) -> Self {
        let mut under_way = unpoisoned(all);
        under_way.last_number += 1;
        let number = under_way.last_number;
        let has_company = !under_way.stages.is_empty();
        for other in under_way.stages.values() {
            unpoisoned(&other.0).has_company = true;
        }
        *unpoisoned(&stage.0) = Knowledge {
            begun_at: Some(now),
            has_company,
            blobs: BTreeMap::new(),
        };
        under_way.stages.insert(number, stage.clone());
        drop(under_way);
        Self {
            number,
            all: Arc::clone(all),
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        unpoisoned(&self.all).stages.remove(&self.number);
    }
}

/// Which pods wait for which pull. Two containers of a pod may wait for the same one.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<BTreeMap<(PodUid, String), (usize, Stage)>>);

/// Takes the pod out when it does not wait any more.
pub(crate) struct Waits<'w> {
    waiting: &'w Waiting,
    key: (PodUid, String),
}

impl Waiting {
    pub(crate) fn enter(&self, uid: PodUid, image: &str, stage: Stage) -> Waits<'_> {
        let key = (uid, image.to_owned());
        let mut all = unpoisoned(&self.0);
        let entry = all.entry(key.clone()).or_insert((0, stage.clone()));
        *entry = (entry.0 + 1, stage);
        drop(all);
        Waits { waiting: self, key }
    }

    pub(crate) fn text(&self, uid: &PodUid, image: &str, now: Moment) -> Option<String> {
        let all = unpoisoned(&self.0);
        let (_, stage) = all.get(&(uid.clone(), image.to_owned()))?;
        Some(stage.text(now))
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut all = unpoisoned(&self.waiting.0);
        if let Some((count, _)) = all.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.key);
            }
        }
    }
}

fn elapsed(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds / 60 {
        0 => format!("{seconds} s"),
        minutes => format!("{minutes} min {} s", seconds % 60),
    }
}

fn megabytes(arrived: u64, total: u64) -> String {
    format!(
        "{} of {} MB",
        in_megabytes(arrived, total),
        in_megabytes(total, total)
    )
}

/// With one decimal for small numbers.
fn in_megabytes(bytes: u64, total: u64) -> String {
    let tenths = bytes / 100_000;
    match total < 10_000_000 {
        true => format!("{}.{}", tenths / 10, tenths % 10),
        false => (tenths / 10).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGAN: Timestamp = Timestamp::from_unix_seconds(1000);

    fn at(seconds: u64) -> Moment {
        Moment::from_start(Duration::from_secs(seconds))
    }

    fn ingest(reference: &str, arrived_mb: u64, total_mb: u64, updated_at: i64) -> Ingest {
        Ingest {
            reference: reference.to_owned(),
            arrived_bytes: arrived_mb * 1_000_000,
            total_bytes: (total_mb > 0).then_some(total_mb * 1_000_000),
            updated_at: Timestamp::from_unix_seconds(updated_at),
        }
    }

    #[test]
    fn a_lonely_pull_tells_its_bytes() {
        let all = Arc::default();
        let stage = Stage::default();
        assert_eq!(stage.text(at(5)), "waiting for other pulls");
        let _begun = Begun::new(&all, &stage, at(10));
        assert_eq!(stage.text(at(12)), "pulling for 2 s");
        let check = |ingests: &[Ingest], seconds: u64, expected: &str| {
            stage.note(ingests, BEGAN);
            assert_eq!(stage.text(at(seconds)), expected);
        };
        // What a broken pull has left behind is not of this one.
        check(&[ingest("old", 7, 9, 999)], 13, "pulling for 3 s");
        let both = [ingest("a", 20, 80, 1001), ingest("b", 100, 400, 1000)];
        check(&both, 44, "pulling for 34 s, 120 of 480 MB of the layers begun");
        check(
            &[ingest("b", 200, 400, 1002)],
            75,
            "pulling for 1 min 5 s, 280 of 480 MB of the layers begun",
        );
        check(
            &[],
            76,
            "pulling for 1 min 6 s, 480 of 480 MB of the layers begun",
        );
        check(
            &[ingest("c", 5, 0, 1003)],
            77,
            "pulling for 1 min 7 s, 485 MB so far",
        );
    }

    #[test]
    fn bytes_are_never_those_of_another_pull() {
        let all = Arc::default();
        let (first, second) = (Stage::default(), Stage::default());
        let begun = Begun::new(&all, &first, at(0));
        first.note(&[ingest("a", 1, 2, 1000)], BEGAN);
        assert_eq!(
            first.text(at(1)),
            "pulling for 1 s, 1.0 of 2.0 MB of the layers begun"
        );
        let other = Begun::new(&all, &second, at(1));
        assert_eq!(first.text(at(2)), "pulling for 2 s");
        assert_eq!(second.text(at(2)), "pulling for 1 s");
        // The rest of one that ended could still be seen.
        drop(begun);
        assert_eq!(second.text(at(3)), "pulling for 2 s");
        assert!(!second.is_alone());
        drop(other);
        let third = Stage::default();
        let _begun = Begun::new(&all, &third, at(4));
        assert!(third.is_alone());
    }

    #[test]
    fn a_pod_waits_until_its_last_container_does_not() {
        let waiting = Waiting::default();
        let uid = PodUid::from("u");
        let text = |image: &str| waiting.text(&uid, image, at(0));
        let one = waiting.enter(uid.clone(), "a", Stage::default());
        let two = waiting.enter(uid.clone(), "a", Stage::default());
        assert!(text("a").is_some() && text("b").is_none());
        drop(one);
        assert!(text("a").is_some());
        drop(two);
        assert_eq!(text("a"), None);
    }
}
