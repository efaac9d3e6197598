//! Takes memory, and touches it, until it has as much as was asked for or the kernel ends it.

use crate::Outcome;
use crate::arguments::Arguments;

const DEFAULT_STEP_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;

pub(crate) fn run(arguments: &mut Arguments) -> Outcome {
    let step_bytes = arguments
        .number("--step-bytes")?
        .unwrap_or(DEFAULT_STEP_BYTES)
        .max(PAGE_BYTES);
    let then = arguments.value("--then")?.unwrap_or_else(|| "hold".to_owned());
    let total = arguments.required("a number of bytes")?;
    let total: usize = total
        .parse()
        .map_err(|_| format!("{total:?} is no number of bytes"))?;
    arguments.finish()?;
    let mut held = Vec::new();
    let mut taken = 0;
    while taken < total {
        let step = step_bytes.min(total - taken);
        held.push(eat(step));
        taken += step;
        println!("holding {taken} bytes");
    }
    match then.as_str() {
        "exit" => Ok(0),
        "hold" => loop {
            std::thread::park();
            std::hint::black_box(&held);
        },
        other => Err(format!("--then exit or hold, not {other:?}")),
    }
}

/// Memory that is really there: a page that was never written costs nothing.
pub(crate) fn eat(bytes: usize) -> Vec<u8> {
    let mut memory = vec![0u8; bytes];
    for page in memory.chunks_mut(PAGE_BYTES) {
        page[0] = 1;
    }
    std::hint::black_box(memory)
}
