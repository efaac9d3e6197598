//! Mistakes that were made on purpose are found within a stated number of seeds.

use std::sync::atomic::{AtomicUsize, Ordering};

use rubelet_sim::{Bug, Run, run_seed};

/// The seeds within which each mistake has to be found.
const LIMIT: u64 = 200;

fn found_at(bug: Bug) -> Option<(u64, String)> {
    let run = Run {
        bug: Some(bug),
        ..Run::default()
    };
    (0..LIMIT).find_map(|seed| Some((seed, run_seed(seed, run).failure?)))
}

#[test]
fn every_deliberate_mistake_is_found() {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let missed: Vec<Bug> = std::thread::scope(|scope| {
        let worker = || {
            let mut missed = Vec::new();
            while let Some(bug) = Bug::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                match found_at(*bug) {
                    Some((seed, failure)) => println!("{bug:?} found with seed {seed}: {failure}"),
                    None => missed.push(*bug),
                }
            }
            missed
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("a worker does not panic"))
            .collect()
    });
    assert_eq!(missed, [], "not found within {LIMIT} seeds");
}
