//! The ledger's sums are those of its holdings, whatever came and went before.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rubelet_model::observation::PodUid;
use rubelet_resources::admission::Ledger;
use rubelet_resources::admission::ledger::{Holding, Others, Terminating};
use rubelet_resources::admission::need::Need;
use serde_json::json;

use crate::admission::{of_file, pod, read, terms};

fn holding(name: usize, milli: i64, is_static: bool, port: i64) -> Holding {
    let cpu = format!("{milli}m");
    let mut value = pod(&format!("p{name}"), &[("cpu", &cpu), ("hugepages-2Mi", "2Mi")]);
    if port > 0 {
        value["spec"]["containers"][0]["ports"] = json!([{"containerPort": 1, "hostPort": port}]);
    }
    let value = if is_static { of_file(value) } else { value };
    terms().holding(&read(&value)).expect("good quantities")
}

/// The sum of all that the new pod would run beside, pod by pod.
fn summed(ledger: &Ledger, uid: &PodUid, new_pod: &Holding, terminating: Terminating) -> Others {
    let (mut others, mut by_name) = (Others::default(), BTreeMap::<&str, Need>::new());
    let mut add = |need: &Need| {
        others.pods += 1;
        others.need.milli_cpu += need.milli_cpu;
        for (name, amount) in &need.others {
            *others.need.others.entry(name.clone()).or_default() += amount;
        }
    };
    for (_, holding) in ledger.neighbours(uid, new_pod, terminating) {
        match holding.is_static {
            true => by_name
                .entry(&holding.full_name)
                .or_default()
                .raise_to(&holding.need),
            false => add(&holding.need),
        }
    }
    by_name.values().for_each(add);
    let numbers: Vec<i32> = new_pod.ports.iter().map(|port| port.port).collect();
    let neighbours = ledger.neighbours(uid, new_pod, terminating);
    let ports = neighbours.flat_map(|(_, holding)| &holding.ports);
    others.ports = ports
        .filter(|port| numbers.contains(&port.port))
        .cloned()
        .collect();
    others
}

proptest! {
    #[test]
    fn sums_are_those_of_the_holdings(
        steps in prop::collection::vec((0..5_usize, 0..4_usize, 0..900_i64, any::<bool>(), 0..3_i64, 0..6_u8), 1..40),
    ) {
        let mut ledger = Ledger::default();
        for (uid, name, milli, is_static, port, kind) in steps {
            let uid = PodUid::from(format!("{uid}"));
            let new_pod = holding(name, milli, is_static, port);
            for terminating in [Terminating::Counted, Terminating::Excluded] {
                let expected = summed(&ledger, &uid, &new_pod, terminating);
                prop_assert_eq!(ledger.beside(&uid, &new_pod, terminating), expected);
            }
            match kind {
                0 => drop(ledger.release(&uid)),
                1 => ledger.set_terminating(&uid),
                2 => drop(ledger.unset_terminating(&uid)),
                _ => ledger.reserve(uid, new_pod),
            }
        }
    }
}
