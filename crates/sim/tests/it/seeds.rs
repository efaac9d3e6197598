//! A few hundred seeds hold, and a seed is always the same run.

use std::sync::atomic::{AtomicU64, Ordering};

use rubelet_sim::{Run, run_seed};

/// `make soak` runs 100,000; these fit into two minutes of an unoptimised build on two cores.
const SEEDS: u64 = 200;

#[test]
fn seeds_hold() {
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let failed: Vec<String> = std::thread::scope(|scope| {
        let worker = || {
            let mut failed = Vec::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= SEEDS || failed.len() >= 3 {
                    return failed;
                }
                let outcome = run_seed(seed, Run::default());
                if let Some(failure) = outcome.failure {
                    let trace = outcome.trace.text(60);
                    failed.push(format!("seed {seed}: {failure}\n{trace}\nreplay: cargo run -p rubelet-sim -- --seed {seed} --log"));
                }
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("a worker does not panic"))
            .collect()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

#[test]
fn a_seed_is_always_the_same_run() {
    for seed in [1, 2, 3, 5, 8] {
        let run = || {
            let outcome = run_seed(seed, Run::default());
            (
                outcome.trace.hash(),
                outcome.polls,
                outcome.elapsed,
                outcome.trace.len(),
            )
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn seeds_differ() {
    let hash = |seed| run_seed(seed, Run::default()).trace.hash();
    assert_ne!(hash(1), hash(2));
}
