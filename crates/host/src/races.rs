//! Resolving a path in which another process renames.
//!
//! Owns how often it is tried. The kernel answers EAGAIN whenever a rename anywhere on the machine raced with a bounded
//! resolution, so that a container that renames in a loop could keep a thread busy for ever.

use rustix::io::Errno;

const MAX_RACES: usize = 128;

/// Calls again while a rename or a signal interfered, and gives up in the end with the error of the last try.
pub(crate) fn despite_races<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 1..MAX_RACES {
        match call() {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
    call()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn races_end() {
        let check = |races: usize, expected: Result<usize, Errno>| {
            let mut calls = 0;
            let result = despite_races(|| {
                calls += 1;
                if calls > races {
                    Ok(calls)
                } else {
                    Err(Errno::AGAIN)
                }
            });
            assert_eq!(result, expected, "{races}");
            assert!(calls <= MAX_RACES);
        };
        check(0, Ok(1));
        check(MAX_RACES - 1, Ok(MAX_RACES));
        check(MAX_RACES, Err(Errno::AGAIN));
        check(usize::MAX, Err(Errno::AGAIN));
        assert_eq!(despite_races(|| Err::<(), _>(Errno::NOENT)), Err(Errno::NOENT));
    }
}
