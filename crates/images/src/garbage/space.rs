//! How much of a filesystem is used, how much that is too much, and the messages about it.
//!
//! Owns upstream's arithmetic and messages. It is pure.

use std::fmt::Write as _;

use crate::garbage::ledger::{Left, Stays};

/// How many of those that stay are named, and how many of who uses one.
const NAMED_IMAGES: usize = 5;
const NAMED_HOLDERS: usize = 2;

/// The filesystem has no size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoCapacity;

/// More is used than may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooFull {
    pub(crate) used_percent: u64,
    pub(crate) to_free_bytes: u64,
}

/// Whether space has to be made, and how much.
pub(crate) fn judge(
    capacity_bytes: u64,
    available_bytes: u64,
    high_percent: u8,
    low_percent: u8,
) -> Result<Option<TooFull>, NoCapacity> {
    if capacity_bytes == 0 {
        return Err(NoCapacity);
    }
    let (capacity, available) = (
        u128::from(capacity_bytes),
        u128::from(available_bytes.min(capacity_bytes)),
    );
    let used_percent = 100 - u64::try_from(available * 100 / capacity).unwrap_or(100);
    if used_percent < u64::from(high_percent) {
        return Ok(None);
    }
    let wanted = capacity * u128::from(100 - low_percent.min(100)) / 100;
    // Rounding may ask for nothing where high and low are the same.
    let to_free_bytes = u64::try_from(wanted.saturating_sub(available)).unwrap_or(u64::MAX);
    Ok(Some(TooFull {
        used_percent,
        to_free_bytes,
    }))
}

/// Upstream's messages, and what they leave out: which images hold the space, and why they stay.
pub(crate) fn not_enough(too_full: TooFull, capacity_bytes: u64, freed_bytes: u64, left: &[Left]) -> String {
    let mut text = format!(
        "Insufficient free disk space on the node's image filesystem ({}% of {} used). Failed to free sufficient space by \
         deleting unused images (freed {freed_bytes} bytes). Investigate disk usage, as it could be used by active images, \
         logs, volumes, or other data.",
        too_full.used_percent,
        size(capacity_bytes),
    );
    let total: u64 = left.iter().map(|one| one.size_bytes).fold(0, u64::saturating_add);
    if left.is_empty() {
        text += " No image is left.";
        return text;
    }
    // Writing to a string does not fail.
    let _ = write!(text, " Images that stay have {} in all: ", size(total));
    let named: Vec<String> = left.iter().take(NAMED_IMAGES).map(one_left).collect();
    text += &named.join(", ");
    match left.len().saturating_sub(NAMED_IMAGES) {
        0 => text.push('.'),
        more => {
            let _ = write!(text, ", and {more} more.");
        }
    }
    text
}

fn one_left(left: &Left) -> String {
    let why = match &left.why {
        Stays::InUse(who) => {
            let named: Vec<&str> = who.iter().take(NAMED_HOLDERS).map(String::as_str).collect();
            match who.len().saturating_sub(NAMED_HOLDERS) {
                0 => format!("used by {}", named.join(", ")),
                more => format!("used by {} and {more} more", named.join(", ")),
            }
        }
        Stays::Pinned => "pinned by the runtime".to_owned(),
        Stays::TooYoung => "younger than imageMinimumGCAge".to_owned(),
        Stays::MayGo => "unused".to_owned(),
    };
    format!("{} {} ({why})", left.name, size(left.size_bytes))
}

/// In the unit that upstream takes.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut unit = 0;
    let mut value = bytes as f64 / 1024.0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn thresholds() {
        let check = |capacity: u64,
                     available: u64,
                     high: u8,
                     low: u8,
                     expected: Result<Option<(u64, u64)>, NoCapacity>| {
            let judged = judge(capacity, available, high, low);
            let judged = judged.map(|full| full.map(|full| (full.used_percent, full.to_free_bytes)));
            assert_eq!(judged, expected, "{available} of {capacity}");
        };
        check(0, 0, 85, 80, Err(NoCapacity));
        check(1000, 500, 85, 80, Ok(None));
        check(1000, 151, 85, 80, Ok(Some((85, 49))));
        check(1000, 160, 85, 80, Ok(None));
        check(1000, 150, 85, 80, Ok(Some((85, 50))));
        check(1000, 0, 85, 80, Ok(Some((100, 200))));
        check(1000, 0, 100, 80, Ok(Some((100, 200))));
        check(1000, 1, 100, 80, Ok(Some((100, 199))));
        check(1000, 20, 100, 80, Ok(None));
        check(1000, 5000, 85, 80, Ok(None));
        check(1000, 1000, 0, 0, Ok(Some((0, 0))));
        check(u64::MAX, 0, 85, 80, Ok(Some((100, 3_689_348_814_741_910_323))));
    }

    #[test]
    fn sizes_read_as_upstreams() {
        let check = |bytes: u64, expected: &str| assert_eq!(size(bytes), expected);
        check(0, "0 B");
        check(1023, "1023 B");
        check(1024, "1.0 KiB");
        check(1536, "1.5 KiB");
        check(1 << 20, "1.0 MiB");
        check(5 << 29, "2.5 GiB");
        check(3 << 40, "3.0 TiB");
        check(5000 << 40, "5000.0 TiB");
    }

    #[test]
    fn who_holds_the_space_is_named() {
        let left = |name: &str, size_bytes: u64, why: Stays| Left {
            name: name.to_owned(),
            size_bytes,
            why,
        };
        let full = TooFull {
            used_percent: 92,
            to_free_bytes: 10,
        };
        let upstream = "Insufficient free disk space on the node's image filesystem (92% of 1.0 GiB used). Failed to free \
            sufficient space by deleting unused images (freed 7 bytes). Investigate disk usage, as it could be used by \
            active images, logs, volumes, or other data.";
        assert_eq!(
            not_enough(full, 1 << 30, 7, &[]),
            format!("{upstream} No image is left.")
        );
        let who = |count: usize| (0..count).map(|number| format!("ns/p{number}")).collect();
        let few = [
            left("r.io/a:1", 3 << 20, Stays::InUse(who(4))),
            left("r.io/b:1", 2 << 20, Stays::Pinned),
            left("r.io/c:1", 1 << 20, Stays::TooYoung),
        ];
        assert_eq!(
            not_enough(full, 1 << 30, 7, &few),
            format!(
                "{upstream} Images that stay have 6.0 MiB in all: r.io/a:1 3.0 MiB (used by ns/p0, ns/p1 and 2 more), \
                 r.io/b:1 2.0 MiB (pinned by the runtime), r.io/c:1 1.0 MiB (younger than imageMinimumGCAge)."
            )
        );
        let many: Vec<Left> = (0..7).map(|_| left("x", 1, Stays::InUse(who(1)))).collect();
        assert!(not_enough(full, 1 << 30, 7, &many).ends_with("x 1 B (used by ns/p0), and 2 more."));
    }

    proptest! {
        /// Freeing what is asked for brings the use down to the low threshold, and less does not.
        #[test]
        fn what_is_asked_for_is_enough(capacity in 1_u64..1 << 50, part in 0.0_f64..1.0, low in 0_u8..=100, more in 0_u8..=100) {
            let available = (capacity as f64 * part) as u64;
            let high = low.saturating_add(more).min(100);
            let judged = judge(capacity, available, high, low).unwrap();
            if let Some(full) = judged {
                prop_assert!(full.used_percent >= u64::from(high));
                let after = available + full.to_free_bytes;
                prop_assert!(u128::from(after) * 100 + 100 > u128::from(capacity) * u128::from(100 - low));
            }
        }
    }
}
