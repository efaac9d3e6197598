//! Work is proportional to what changed: five times the pods are at most five times the work, in every part of their life.
//!
//! Work is counted in allocations, by the name of the task that makes them, so that the test is exact and repeats.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use rubelet_sim::load::{Phase, measure};

const FEW: u32 = 32;
const FACTOR: u32 = 5;
/// Five times the work, with some room: maps that grow are split, buffers that grow are copied.
const MOST: f64 = 1.3 * FACTOR as f64;
/// Less than this per pod is not judged: in a short phase it is chance whether a task has its turn.
const TRIFLE: u64 = 6;
/// A look at the folder of manifests lists it, whatever changed: what an entry of the list may cost.
const ENTRY: u64 = 4;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts what each thread asks it for.
struct Counting;

#[expect(unsafe_code, reason = "an allocator has no safe form")]
// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends may still allocate when its counter is gone.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer is of the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// Amounts by phase and task.
fn table(phases: &[Phase]) -> BTreeMap<(&'static str, String), u64> {
    let mut table = BTreeMap::new();
    for phase in phases {
        for (task, amount) in &phase.work {
            *table.entry((phase.name, task.clone())).or_default() += amount;
        }
    }
    table
}

/// What is not too much in any case.
fn allowed(phase: &str, task: &str) -> u64 {
    let pods = u64::from(FACTOR * FEW);
    let manifests = pods / 2;
    match (phase, task) {
        ("removals and garbage", "file source") => manifests * manifests * ENTRY,
        _ => pods * TRIFLE,
    }
}

#[test]
fn work_grows_no_faster_than_the_number_of_pods() {
    let measure = |pods| table(&measure(pods, allocations).expect("a calm node"));
    let (few, many) = (measure(FEW), measure(FACTOR * FEW));
    let (mut report, mut too_much) = (String::new(), 0);
    for ((phase, task), amount) in &many {
        let before = few.get(&(phase, task.clone())).copied().unwrap_or(0);
        #[expect(clippy::cast_precision_loss, reason = "a ratio need not be exact")]
        let factor = *amount as f64 / before.max(1) as f64;
        let is_too_much = factor > MOST && *amount > allowed(phase, task);
        too_much += usize::from(is_too_much);
        let mark = if is_too_much { "  <== too much" } else { "" };
        let _ = writeln!(
            report,
            "{phase:24} {task:28} {before:>9} {amount:>9} {factor:>6.1}{mark}"
        );
    }
    println!("{report}");
    assert_eq!(
        too_much, 0,
        "{FACTOR} times the pods are more than {MOST} times the work:\n{report}"
    );
}
