//! Sets of logical CPUs in the kernel's list form (`0-3,8`).
//!
//! Owns parsing, printing and set algebra. Kept as ranges, so that a range in hostile input costs nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// A set of CPU numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet {
    /// First to last of each run; runs neither touch nor overlap.
    runs: BTreeMap<i64, i64>,
}

/// The text is not a CPU list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseCpuSetError {
    #[error("{0:?} is not a CPU number; a list such as 0-3,8 was expected")]
    Number(String),
    #[error("the range {0:?} runs backwards")]
    Backwards(String),
}

impl CpuSet {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The number of CPUs.
    pub fn len(&self) -> u64 {
        self.runs.iter().fold(0, |sum: u64, (first, last)| {
            sum.saturating_add(last.abs_diff(*first).saturating_add(1))
        })
    }

    pub fn contains(&self, cpu: i64) -> bool {
        self.runs
            .range(..=cpu)
            .next_back()
            .is_some_and(|(_, last)| cpu <= *last)
    }

    /// All CPUs in order.
    pub fn iter(&self) -> impl Iterator<Item = i64> + '_ {
        self.runs.iter().flat_map(|(first, last)| *first..=*last)
    }

    pub fn insert(&mut self, cpu: i64) {
        self.insert_run(cpu, cpu);
    }

    /// Adds `first` to `last`; nothing when that runs backwards.
    pub fn insert_run(&mut self, first: i64, last: i64) {
        if first > last {
            return;
        }
        let (mut first, mut last) = (first, last);
        loop {
            let touching = self
                .runs
                .range(..=last.saturating_add(1))
                .next_back()
                .map(|(start, end)| (*start, *end));
            match touching {
                Some((start, end)) if end >= first.saturating_sub(1) => {
                    self.runs.remove(&start);
                    first = first.min(start);
                    last = last.max(end);
                }
                Some(_) | None => break,
            }
        }
        self.runs.insert(first, last);
    }

    pub fn union(&self, other: &Self) -> Self {
        let mut union = self.clone();
        for (first, last) in &other.runs {
            union.insert_run(*first, *last);
        }
        union
    }

    pub fn intersection(&self, other: &Self) -> Self {
        self.difference(&self.difference(other))
    }

    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.intersection(other).is_empty()
    }

    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    pub fn difference(&self, other: &Self) -> Self {
        let mut result = Self::default();
        for (first, last) in &self.runs {
            let mut next = Some(*first);
            for (other_first, other_last) in other.runs.range(..=*last) {
                let Some(from) = next else { break };
                if *other_last < from {
                    continue;
                }
                if *other_first > from {
                    result.insert_run(from, other_first - 1);
                }
                next = other_last.checked_add(1);
            }
            if let Some(from) = next {
                result.insert_run(from, *last);
            }
        }
        result
    }
}

impl FromIterator<i64> for CpuSet {
    fn from_iter<I: IntoIterator<Item = i64>>(cpus: I) -> Self {
        let mut set = Self::default();
        for cpu in cpus {
            set.insert(cpu);
        }
        set
    }
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut set = Self::default();
        if text.is_empty() {
            return Ok(set);
        }
        let number = |digits: &str| {
            digits
                .parse::<i64>()
                .map_err(|_| ParseCpuSetError::Number(digits.to_owned()))
        };
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(ParseCpuSetError::Backwards(part.to_owned()));
            }
            set.insert_run(first, last);
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (first, last)) in self.runs.iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn reads_lists() {
        for (text, printed) in [
            ("", Some("")),
            ("5", Some("5")),
            ("1,2,3,4,5", Some("1-5")),
            ("1-2,3-5", Some("1-5")),
            ("3-5,1", Some("1,3-5")),
            ("1-1", Some("1")),
            ("+3", Some("3")),
            ("0-4294967295", Some("0-4294967295")),
            ("5-3", None),
            ("1-", None),
            ("-1", None),
            ("1,", None),
            ("1 ,2", None),
            ("a", None),
            ("1-2-3", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(
                text.parse::<CpuSet>().ok().map(|set| set.to_string()).as_deref(),
                printed,
                "{text:?}"
            );
        }
    }

    fn of(cpus: &BTreeSet<i64>) -> CpuSet {
        cpus.iter().copied().collect()
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_set(left in prop::collection::btree_set(0_i64..40, 0..20), right in prop::collection::btree_set(0_i64..40, 0..20)) {
            let (a, b) = (of(&left), of(&right));
            prop_assert_eq!(a.len() as usize, left.len());
            prop_assert_eq!(a.iter().collect::<BTreeSet<_>>(), left.clone());
            prop_assert_eq!(a.union(&b), of(&left.union(&right).copied().collect()));
            prop_assert_eq!(a.difference(&b), of(&left.difference(&right).copied().collect()));
            prop_assert_eq!(a.intersection(&b), of(&left.intersection(&right).copied().collect()));
            prop_assert_eq!(a.is_disjoint(&b), left.is_disjoint(&right));
            prop_assert_eq!(a.is_subset(&b), left.is_subset(&right));
            prop_assert_eq!(a.to_string().parse::<CpuSet>().unwrap(), a);
        }

        #[test]
        fn any_text_gives_an_answer(text in "[-0-9,+ a]{0,40}") {
            if let Ok(set) = text.parse::<CpuSet>() {
                prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
            }
        }
    }
}
