//! A seed's run from the outside: what it is told, and how it went.
//!
//! Owns the panics of a run, which are its failure and not the process's.

use std::cell::RefCell;
use std::sync::Once;
use std::time::Duration;

use rubelet_lifecycle::deliberate::{self, Bug};

use super::World;
use crate::executor::Group;
use crate::trace::{Actor, Trace};

/// How a run went.
pub struct Outcome {
    pub seed: u64,
    /// The first thing that was wrong.
    pub failure: Option<String>,
    /// Flight records, if they were asked for.
    pub records: Vec<String>,
    pub trace: Trace,
    pub polls: u64,
    pub elapsed: Duration,
}

/// What a run is told beside its seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Run {
    /// Rubelet's log goes into the trace.
    pub wants_log: bool,
    /// A mistake on purpose.
    pub bug: Option<Bug>,
    /// The flight records of all pods are taken, at a failure or before everything is removed.
    pub wants_records: bool,
}

/// Runs one seed to its end.
#[must_use]
pub fn run_seed(seed: u64, run: Run) -> Outcome {
    catch_panics_quietly();
    deliberate::turn_on(run.bug);
    let _ = take_caught_panics();
    let mut world = World::new(seed);
    world.wants_records = run.wants_records;
    let lived = if run.wants_log {
        let trace = world.trace.clone();
        let executor = world.executor.clone();
        crate::log::into_trace(&trace, &executor, || world.live())
    } else {
        world.live()
    };
    let failure = lived.err();
    if failure.is_some() {
        world.take_records();
    }
    if let Some(failure) = &failure {
        world
            .trace
            .say(world.executor.elapsed(), Actor::Check, failure.clone());
    }
    let outcome = Outcome {
        seed: world.seed,
        failure,
        records: std::mem::take(&mut world.records),
        trace: world.trace.clone(),
        polls: world.executor.polls(),
        elapsed: world.executor.elapsed(),
    };
    world.end_rubelet();
    // Tasks hold the executor that holds them: only dropping them frees a run's memory.
    world.executor.drop_group(Group::World);
    deliberate::turn_on(None);
    outcome
}

thread_local! {
    static CAUGHT: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Panics inside a simulation are collected, also those that the agent's supervisor catches.
fn catch_panics_quietly() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let is_ours = CAUGHT.with_borrow_mut(|caught| match caught {
                Some(caught) => {
                    caught.push(format!("panic: {info}"));
                    true
                }
                None => false,
            });
            if !is_ours {
                before(info);
            }
        }));
    });
    CAUGHT.with_borrow_mut(|caught| {
        caught.get_or_insert_default();
    });
}

/// The panics since this was asked last.
pub(super) fn take_caught_panics() -> Vec<String> {
    CAUGHT.with_borrow_mut(|caught| caught.as_mut().map(std::mem::take).unwrap_or_default())
}
