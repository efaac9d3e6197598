//! What the machine answers about its CPUs.

use rubelet_model::machine::{Cpu, MachineFacts, NumaId, NumaNode};
use rubelet_placement::Machine;

/// Two nodes of two cores with two threads each: CPUs 0-3 are the first threads, 4-7 their siblings.
fn machine() -> Machine {
    let node = |id: i64| NumaId::new(id).expect("a small number");
    let numa_nodes = [0, 1]
        .into_iter()
        .map(|id| {
            (
                node(id),
                NumaNode {
                    distances: [(node(id), 10), (node(1 - id), 21)].into(),
                    ..NumaNode::default()
                },
            )
        })
        .collect();
    let cpus = (0..8)
        .map(|cpu| {
            let core = cpu % 4;
            (
                cpu,
                Cpu {
                    numa_node: node(core / 2),
                    socket: core / 2,
                    core,
                    cache: core / 2,
                },
            )
        })
        .collect();
    Machine::new(MachineFacts { numa_nodes, cpus })
}

#[test]
fn cpus_are_found_by_their_place() {
    let machine = machine();
    let first = NumaId::new(0).expect("a small number").into();
    assert_eq!(machine.cpus_of_nodes(first).to_string(), "0-1,4-5");
    assert_eq!(
        machine.whole_cores(&"1,6".parse().expect("a list")).to_string(),
        "1-2,5-6"
    );
    assert_eq!(machine.nodes_of_cpus(&"4-5".parse().expect("a list")), first);
    assert_eq!(
        (
            machine.cpus_per_core(),
            machine.cpus_per_socket(),
            machine.cpus_per_cache()
        ),
        (2, 4, 4)
    );
    assert_eq!(machine.mean_distance(machine.nodes()), 15.5);
    assert_eq!(machine.mean_distance(first), 10.0);
}

#[test]
fn a_machine_without_cpus_answers() {
    let machine = Machine::default();
    assert_eq!((machine.cpus_per_core(), machine.cpus_per_socket()), (0, 0));
    assert!(machine.nodes().subsets().is_empty());
}
