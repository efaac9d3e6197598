//! Whatever happens to static pods and their mirrors: in the end each static pod has exactly its own mirror, and there is no other.

use std::collections::BTreeMap;
use std::time::Duration;

use rubelet_ports::PodReporter as _;
use rubelet_sim::dice::Dice;
use serde_json::{Value, json};

use crate::api::Faults;
use crate::bed::{Bed, running, static_pod};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// What the manifests say: hash and restarts by name; pods that were removed and still end.
#[derive(Default)]
struct Manifests {
    wanted: BTreeMap<&'static str, (String, i32)>,
    ending: Vec<String>,
    last_hash: u64,
}

impl Manifests {
    /// An edit, or a new file.
    fn write(&mut self, bed: &Bed, name: &'static str) {
        self.remove(name);
        self.last_hash += 1;
        let hash = format!("h{}", self.last_hash);
        self.wanted.insert(name, (hash, 0));
        self.tell(bed, name);
    }

    fn remove(&mut self, name: &str) {
        self.ending.extend(self.wanted.remove(name).map(|(hash, _)| hash));
    }

    fn tell(&mut self, bed: &Bed, name: &'static str) {
        if let Some((hash, restarts)) = self.wanted.get_mut(name) {
            *restarts += 1;
            bed.report(&static_pod(name, hash), &running(*restarts));
        }
    }

    fn finish(&mut self, bed: &Bed) {
        for hash in self.ending.drain(..) {
            bed.forget(&hash);
        }
    }
}

fn happen(bed: &Bed, manifests: &mut Manifests, dice: &mut Dice) {
    let name = *dice.pick(&NAMES);
    match dice.below(16) {
        0 | 1 => manifests.write(bed, name),
        2 => manifests.remove(name),
        3 | 4 => manifests.tell(bed, name),
        5 => manifests.finish(bed),
        6 => bed.api.user_removes(name),
        7 => bed.api.user_deletes(name),
        8 => bed.api.user_changes(name, |pod| {
            pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "changed".into();
        }),
        9 => bed
            .api
            .user_changes(name, |pod| pod["status"]["phase"] = "Pending".into()),
        10 => bed.api.with(|state| state.is_watch_broken = true),
        11 => bed.api.with(|state| state.faults.is_down = !state.faults.is_down),
        12 => bed.set_node(None),
        13 => bed
            .api
            .user_changes(name, |pod| pod["metadata"]["labels"]["app"] = "changed".into()),
        14 => bed.api.user_changes(name, |pod| {
            pod["spec"]["containers"][0]["image"] = "changed".into();
        }),
        _ => bed.set_node(Some(json!({"metadata": {"name": "node", "uid": "node-uid"}}))),
    }
    bed.pass(dice.millis(0, 400));
}

fn is_settled(bed: &Bed, manifests: &Manifests) -> bool {
    let shown: BTreeMap<String, (Value, Value, bool)> = bed.api.with(|state| {
        let one = |((_, name), pod): (&(String, String), &Value)| {
            let hash = pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].clone();
            let restarts = pod["status"]["containerStatuses"][0]["restartCount"].clone();
            let is_whole =
                pod["metadata"]["deletionTimestamp"].is_null() && pod["status"]["phase"] == "Running";
            let is_whole = is_whole
                && pod["metadata"]["labels"]["app"] == name.as_str()
                && pod["spec"]["containers"][0]["image"] == "image";
            (name.clone(), (hash, restarts, is_whole))
        };
        state.pods.iter().map(one).collect()
    });
    let wanted = manifests.wanted.iter();
    let wanted =
        wanted.map(|(name, (hash, restarts))| ((*name).to_owned(), (json!(hash), json!(restarts), true)));
    shown == wanted.collect()
}

#[test]
fn mirrors_become_what_they_should_be() {
    for seed in 0..60 {
        let bed = Bed::new(seed).with_node();
        let mut dice = Dice::new(seed, "story");
        let mut manifests = Manifests::default();
        bed.api.with(|state| {
            state.faults = Faults {
                is_down: false,
                lost_answers: 15,
                failures: 15,
            };
        });
        if dice.percent(50) {
            bed.reporter.sources_are_ready();
        }
        for _ in 0..60 {
            happen(&bed, &mut manifests, &mut dice);
        }
        bed.reporter.sources_are_ready();
        manifests.finish(&bed);
        bed.api.with(|state| state.faults = Faults::default());
        let bed = bed.with_node();
        bed.until(&format!("settled, seed {seed}"), |bed| {
            is_settled(bed, &manifests)
        });
        // And it stays so without further calls.
        bed.pass(Duration::from_secs(60));
        assert!(is_settled(&bed, &manifests), "seed {seed}");
        bed.api.calls();
        bed.pass(Duration::from_secs(600));
        assert_eq!(bed.api.calls(), Vec::<String>::new(), "seed {seed}");
    }
}
