//! Which rotated files of a container's log are removed and which compressed, the name of the next one, and the order in which
//! they were written.
//!
//! Pure: names in, names out. Names are upstream's, `<log>.<UTC time>[.gz]`; a second that has its file already gets a number
//! (`20260101-120000.0001`), so that the order of names is the order of time also when a log is rotated several times a
//! second, and when the clock was set back.

use std::collections::BTreeMap;

const COMPRESSED: &str = ".gz";
const UNFINISHED: &str = ".tmp";
const LAST_NUMBER: u32 = 9999;

/// Why a file is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its compression was killed half-way.
    Unfinished,
    /// Its compressed form is there.
    Compressed,
    /// Enough newer files exist.
    Excess,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    pub name: String,
    pub why: Why,
}

/// One log and the names beside it.
#[derive(Clone, Copy, Debug)]
pub struct LogNames<'a> {
    /// The name of the log itself.
    pub log: &'a str,
    /// The names of the files in its directory, whatever they are.
    pub present: &'a [String],
    /// The file that the caller is compressing just now.
    pub compressing: Option<&'a str>,
}

/// A file that was rotated away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotatedLog<'a> {
    pub name: &'a str,
    /// What follows the log's name, without the suffix of compressed files. The order of stems is that of time.
    pub stem: &'a str,
    pub is_compressed: bool,
}

/// What a file beside a log is.
enum Kind<'a> {
    Unfinished,
    Compressed(&'a str),
    Plain(&'a str),
}

impl<'a> LogNames<'a> {
    /// What follows the log's own name.
    fn suffix(&self, name: &'a str) -> Option<&'a str> {
        let suffix = name.strip_prefix(self.log)?.strip_prefix('.')?;
        (!suffix.is_empty()).then_some(suffix)
    }

    fn kind(&self, name: &'a str) -> Option<Kind<'a>> {
        let suffix = self.suffix(name)?;
        Some(if suffix.ends_with(UNFINISHED) {
            Kind::Unfinished
        } else {
            match suffix.strip_suffix(COMPRESSED) {
                Some(stem) => Kind::Compressed(stem),
                None => Kind::Plain(suffix),
            }
        })
    }

    /// The files that were rotated away, oldest first; of two forms of one file the compressed.
    fn rotated(&self) -> BTreeMap<&'a str, &'a String> {
        let mut rotated = BTreeMap::new();
        for name in self.present {
            match self.kind(name) {
                Some(Kind::Compressed(stem)) => drop(rotated.insert(stem, name)),
                Some(Kind::Plain(stem)) => drop(rotated.entry(stem).or_insert(name)),
                Some(Kind::Unfinished) | None => {}
            }
        }
        rotated
    }

    /// The stem of a file that was rotated away by its time, and not named by a person.
    #[must_use]
    pub fn stem_of(&self, name: &'a str) -> Option<&'a str> {
        match self.kind(name)? {
            Kind::Compressed(stem) | Kind::Plain(stem) => Some(stem).filter(|stem| is_ours(stem)),
            Kind::Unfinished => None,
        }
    }

    /// What was written after a file that was rotated away; nothing when the log itself is what follows.
    #[must_use]
    pub fn next_after(&self, stem: &str) -> Option<RotatedLog<'a>> {
        let later = self
            .rotated()
            .into_iter()
            .find(|(later, _)| *later > stem && is_ours(later));
        later.map(|(stem, name)| RotatedLog {
            name,
            stem,
            is_compressed: name.ends_with(COMPRESSED),
        })
    }

    /// The files that a killed process left behind.
    #[must_use]
    pub fn plan_leftovers(&self) -> Vec<Removal> {
        let is_own = |name: &str| {
            self.compressing
                .is_some_and(|own| name.strip_prefix(own).is_some_and(|rest| rest == UNFINISHED))
        };
        let rotated = self.rotated();
        let why = |name: &'a String| match self.kind(name)? {
            Kind::Unfinished => (!is_own(name)).then_some(Why::Unfinished),
            Kind::Plain(stem) => rotated
                .get(stem)
                .is_some_and(|kept| *kept != name)
                .then_some(Why::Compressed),
            Kind::Compressed(_) => None,
        };
        let removal = |name: &'a String| {
            Some(Removal {
                name: name.clone(),
                why: why(name)?,
            })
        };
        self.present.iter().filter_map(removal).collect()
    }

    /// The files to remove before a rotation, oldest first, so that together with the new log and the one that is rotated now there are
    /// at most `max_files`.
    #[must_use]
    pub fn plan_room(&self, max_files: usize) -> Vec<Removal> {
        let rotated = self.rotated();
        let excess = rotated.len().saturating_sub(max_files.saturating_sub(2));
        let excess = rotated.into_values().take(excess).map(|name| Removal {
            name: name.clone(),
            why: Why::Excess,
        });
        self.plan_leftovers().into_iter().chain(excess).collect()
    }

    /// The name for the log that is rotated away at `now`, `YYYYMMDD-HHMMSS` in UTC.
    #[must_use]
    pub fn plan_name(&self, now: &str) -> String {
        let rotated = self.rotated();
        let newest = rotated.into_keys().rev().find(|stem| is_ours(stem));
        let stem = match newest {
            Some(newest) if newest >= now => next_after(newest),
            Some(_) | None => now.to_owned(),
        };
        format!("{}.{stem}", self.log)
    }

    /// The file that gets the log's name back where the log is missing and the runtime has not created a new one.
    #[must_use]
    pub fn plan_restoration(&self) -> Option<String> {
        if self.present.iter().any(|name| name == self.log) {
            return None;
        }
        let rotated = self.rotated().into_iter();
        let (_, newest) = rotated.rev().find(|(stem, _)| is_ours(stem))?;
        Some(newest.clone()).filter(|name| !name.ends_with(COMPRESSED))
    }

    /// The oldest file that can be compressed. The newest stays as it is: log agents may still read it.
    #[must_use]
    pub fn plan_compression(&self) -> Option<String> {
        let mut rotated = self.rotated();
        rotated.pop_last();
        rotated
            .into_values()
            .find(|name| !name.ends_with(COMPRESSED) && self.compressing != Some(name.as_str()))
            .cloned()
    }
}

/// Whether a name was given here or by upstream, and not by a person.
fn is_ours(stem: &str) -> bool {
    let mut parts = stem.split('.');
    let is_time = parts.next().is_some_and(|time| {
        time.len() == 15
            && time.bytes().enumerate().all(|(index, byte)| match index {
                8 => byte == b'-',
                _ => byte.is_ascii_digit(),
            })
    });
    is_time && parts.all(|number| number.len() == 4 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The next name in the order of names.
fn next_after(stem: &str) -> String {
    if let Some((time, number)) = stem.rsplit_once('.')
        && let Ok(number) = number.parse::<u32>()
        && number < LAST_NUMBER
    {
        return format!("{time}.{:04}", number + 1);
    }
    format!("{stem}.0001")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: &str = "20260101-120000";

    fn names(present: &[&str]) -> Vec<String> {
        present.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn files_go_as_upstream_lets_them_go() {
        let check = |present: &[&str], max_files: usize, expected: &[(&str, Why)]| {
            let present = names(present);
            let log = LogNames {
                log: "0.log",
                present: &present,
                compressing: Some("0.log.20260101-000005"),
            };
            let found = log.plan_room(max_files);
            let found: Vec<(&str, Why)> = found
                .iter()
                .map(|removal| (removal.name.as_str(), removal.why))
                .collect();
            assert_eq!(found, expected, "{present:?}");
        };
        check(&[], 5, &[]);
        check(
            &["0.log", "1.log", "1.log.20260101-000001", "10.log", "0.logs"],
            2,
            &[],
        );
        let three = [
            "0.log",
            "0.log.20260101-000003",
            "0.log.20260101-000001.gz",
            "0.log.20260101-000002.gz",
        ];
        check(&three, 5, &[]);
        check(&three, 4, &[("0.log.20260101-000001.gz", Why::Excess)]);
        check(
            &three,
            2,
            &[
                ("0.log.20260101-000001.gz", Why::Excess),
                ("0.log.20260101-000002.gz", Why::Excess),
                ("0.log.20260101-000003", Why::Excess),
            ],
        );
        // Left behind by a process that was killed; the one that is under way stays.
        check(
            &[
                "0.log.20260101-000001",
                "0.log.20260101-000001.gz",
                "0.log.20260101-000002.tmp",
                "0.log.20260101-000005",
                "0.log.20260101-000005.tmp",
            ],
            5,
            &[
                ("0.log.20260101-000001", Why::Compressed),
                ("0.log.20260101-000002.tmp", Why::Unfinished),
            ],
        );
        check(&["0.log.bak", "0.log."], 2, &[("0.log.bak", Why::Excess)]);
    }

    #[test]
    fn a_name_is_newer_than_all_that_are_there() {
        let check = |present: &[&str], expected: &str| {
            let present = names(present);
            let log = LogNames {
                log: "0.log",
                present: &present,
                compressing: None,
            };
            assert_eq!(log.plan_name(NOW), expected, "{present:?}");
        };
        check(&[], "0.log.20260101-120000");
        check(
            &["0.log.20260101-115959.gz", "0.log.zzz"],
            "0.log.20260101-120000",
        );
        check(&["0.log.20260101-120000"], "0.log.20260101-120000.0001");
        check(&["0.log.20260101-120000.gz"], "0.log.20260101-120000.0001");
        check(
            &["0.log.20260101-120000", "0.log.20260101-120000.0009.gz"],
            "0.log.20260101-120000.0010",
        );
        check(&["0.log.20260101-120000.9999"], "0.log.20260101-120000.9999.0001");
        // The clock was set back.
        check(&["0.log.20270101-000000"], "0.log.20270101-000000.0001");
    }

    #[test]
    fn the_oldest_is_compressed_and_the_newest_never() {
        let check = |present: &[&str], compressing: Option<&str>, expected: Option<&str>| {
            let present = names(present);
            let log = LogNames {
                log: "0.log",
                present: &present,
                compressing,
            };
            assert_eq!(log.plan_compression().as_deref(), expected, "{present:?}");
        };
        check(&["0.log"], None, None);
        check(&["0.log", "0.log.20260101-000001"], None, None);
        let three = [
            "0.log.20260101-000001",
            "0.log.20260101-000002",
            "0.log.20260101-000003",
        ];
        check(&three, None, Some(three[0]));
        check(&three, Some(three[0]), Some(three[1]));
        check(
            &["0.log.20260101-000001.gz", three[1], three[2]],
            None,
            Some(three[1]),
        );
        check(&[three[0], "0.log.20260101-000001.gz", three[1]], None, None);
    }

    #[test]
    fn the_newest_takes_the_place_of_a_missing_log() {
        let check = |present: &[&str], expected: Option<&str>| {
            let present = names(present);
            let log = LogNames {
                log: "0.log",
                present: &present,
                compressing: None,
            };
            assert_eq!(log.plan_restoration().as_deref(), expected, "{present:?}");
        };
        let newest = "0.log.20260101-000002.0001";
        check(
            &[
                "0.log.20260101-000001.gz",
                "0.log.20260101-000002",
                newest,
                "0.log.bak",
            ],
            Some(newest),
        );
        check(&["0.log", newest], None);
        check(&["0.log.20260101-000001.gz"], None);
        check(
            &["0.log.20260101-000001.tmp", "0.log.bak", "1.log.20260101-000001"],
            None,
        );
        check(&[], None);
    }

    #[test]
    fn the_next_one_is_found_in_any_form() {
        let check = |present: &[&str], after: &str, expected: Option<(&str, bool)>| {
            let present = names(present);
            let log = LogNames {
                log: "0.log",
                present: &present,
                compressing: None,
            };
            let stem = log.stem_of(after).unwrap();
            let next = log.next_after(stem);
            let next = next.map(|next| (next.name, next.is_compressed));
            assert_eq!(next, expected, "{present:?} after {after}");
        };
        let first = "0.log.20260101-000001";
        check(&["0.log"], first, None);
        check(
            &["0.log", first, "0.log.bak", "0.log.20260101-000002.tmp"],
            first,
            None,
        );
        check(
            &[first, "0.log.20260101-000002", "0.log.20260101-000003"],
            first,
            Some(("0.log.20260101-000002", false)),
        );
        // The file itself is compressed or gone by now.
        check(
            &["0.log.20260101-000001.0001.gz", "0.log.20260101-000003"],
            first,
            Some(("0.log.20260101-000001.0001.gz", true)),
        );
        check(
            &["0.log.20260101-000002", "0.log.20260101-000002.gz"],
            "0.log.20260101-000001.gz",
            Some(("0.log.20260101-000002.gz", true)),
        );
        let none: [String; 0] = [];
        let log = LogNames {
            log: "0.log",
            present: &none,
            compressing: None,
        };
        for name in [
            "0.log",
            "0.log.",
            "0.log.bak",
            "0.log.20260101-000001.tmp",
            "1.log.20260101-000001",
        ] {
            assert_eq!(log.stem_of(name), None, "{name}");
        }
    }

    proptest! {
        /// However often and whenever a log is rotated: names grow, and no more files are there than may be.
        #[test]
        fn rotations_stay_in_order(max_files in 2_usize..8, steps in prop::collection::vec((0_u32..4, any::<bool>()), 1..60)) {
            let mut present = vec!["0.log".to_owned()];
            let mut last = String::new();
            for (second, compresses) in steps {
                let log = LogNames { log: "0.log", present: &present, compressing: None };
                let gone: Vec<String> = log.plan_room(max_files).into_iter().map(|removal| removal.name).collect();
                let name = log.plan_name(&format!("20260101-00000{second}"));
                let packed = format!("{name}.gz");
                prop_assert!(!present.contains(&name) && !present.contains(&packed));
                present.retain(|name| !gone.contains(name));
                let kept_newest = last.is_empty() || max_files == 2
                    || present.iter().any(|name| name.trim_end_matches(".gz") == last);
                prop_assert!(kept_newest, "{present:?}");
                present.push(name.clone());
                prop_assert!(last.is_empty() || name > last, "{name} after {last}");
                prop_assert!(present.len() <= max_files);
                last = name;
                let log = LogNames { log: "0.log", present: &present, compressing: None };
                if compresses && let Some(plain) = log.plan_compression() {
                    prop_assert!(plain != last);
                    present.retain(|name| *name != plain);
                    present.push(format!("{plain}.gz"));
                }
            }
        }
    }
}
