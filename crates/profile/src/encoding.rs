//! Stacks in pprof's form.
//!
//! Owns the tables that samples refer to, and the types of the figures: how often a stack was seen, and the processor time that
//! this stands for. Where names come from is the caller's.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::message::{Function, Line, Location, Mapping, Profile, Sample, ValueType};
use crate::sampler::{PERIOD_NANOS, Recording};
use crate::symbols::{FunctionName, MappedFile, Spot};

/// When it was, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) began: SystemTime,
    pub(crate) took: Duration,
}

pub(crate) fn encode(
    recording: &Recording,
    taken: Taken,
    mappings: &[MappedFile],
    resolve: impl Fn(usize) -> Vec<Spot>,
) -> Profile {
    let mut tables = Tables::default();
    // The first text is the empty one.
    tables.text("");
    let samples = tables.value_type("samples", "count");
    let cpu = tables.value_type("cpu", "nanoseconds");
    tables.profile.sample_type = vec![samples, cpu];
    tables.profile.period_type = Some(cpu);
    tables.profile.period = PERIOD_NANOS;
    tables.profile.time_nanos = nanos(taken.began.duration_since(UNIX_EPOCH).unwrap_or_default());
    tables.profile.duration_nanos = nanos(taken.took);
    if recording.lost > 0 {
        let comment = tables.text(&format!("{} samples could not be kept", recording.lost));
        tables.profile.comment.push(comment);
    }
    tables.map(mappings);
    for (stack, count) in &recording.stacks {
        let location_id = stack
            .iter()
            .map(|address| tables.location(*address, &resolve))
            .collect();
        tables.profile.sample.push(Sample {
            location_id,
            value: vec![*count, count.saturating_mul(PERIOD_NANOS)],
        });
    }
    tables.profile
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// The profile as far as it is, and where in it things are.
#[derive(Default)]
struct Tables {
    profile: Profile,
    texts: BTreeMap<String, i64>,
    functions: BTreeMap<FunctionName, u64>,
    locations: BTreeMap<usize, u64>,
}

/// The id of what is added to a table next.
fn next_id<T>(table: &[T]) -> u64 {
    table.len() as u64 + 1
}

impl Tables {
    fn text(&mut self, text: &str) -> i64 {
        if let Some(index) = self.texts.get(text) {
            return *index;
        }
        let table = &mut self.profile.string_table;
        let index = i64::try_from(table.len()).unwrap_or(i64::MAX);
        table.push(text.to_owned());
        self.texts.insert(text.to_owned(), index);
        index
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> ValueType {
        ValueType {
            r#type: self.text(kind),
            unit: self.text(unit),
        }
    }

    fn map(&mut self, mappings: &[MappedFile]) {
        for file in mappings {
            let mapping = Mapping {
                id: next_id(&self.profile.mapping),
                memory_start: file.start,
                memory_limit: file.end,
                file_offset: file.offset,
                filename: self.text(&file.path),
                has_functions: false,
            };
            self.profile.mapping.push(mapping);
        }
    }

    fn location(&mut self, address: usize, resolve: impl Fn(usize) -> Vec<Spot>) -> u64 {
        if let Some(id) = self.locations.get(&address) {
            return *id;
        }
        let id = next_id(&self.profile.location);
        self.locations.insert(address, id);
        let spots = resolve(address);
        let address = address as u64;
        let mut mappings = self.profile.mapping.iter_mut();
        let mapping =
            mappings.find(|mapping| (mapping.memory_start..mapping.memory_limit).contains(&address));
        let mapping_id = mapping.map_or(0, |mapping| {
            mapping.has_functions |= !spots.is_empty();
            mapping.id
        });
        let line = spots
            .into_iter()
            .map(|spot| Line {
                line: spot.line.into(),
                function_id: self.function(spot.function),
            })
            .collect();
        self.profile.location.push(Location {
            id,
            mapping_id,
            address,
            line,
        });
        id
    }

    fn function(&mut self, function: FunctionName) -> u64 {
        if let Some(id) = self.functions.get(&function) {
            return *id;
        }
        let id = next_id(&self.profile.function);
        let entry = Function {
            id,
            name: self.text(&function.name),
            system_name: self.text(&function.symbol),
            filename: self.text(&function.file),
        };
        self.profile.function.push(entry);
        self.functions.insert(function, id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `b` is inlined into `a` at 0x15; `c` is a function of its own; beyond 0x100 nothing is known.
    fn names(address: usize) -> Vec<Spot> {
        let spot = |name: &str, line: u32| Spot {
            function: FunctionName {
                name: name.to_owned(),
                symbol: format!("_{name}"),
                file: "f.rs".to_owned(),
            },
            line,
        };
        match address {
            0x15 => vec![spot("b", 5), spot("a", 1)],
            0x10..0x20 => vec![spot("a", 2)],
            0x20..0x100 => vec![spot("c", 3)],
            _ => Vec::new(),
        }
    }

    /// Stacks as people read them, the innermost first: `function:line`, or the address with its file.
    fn stacks(profile: &Profile) -> Vec<(String, Vec<i64>)> {
        let text = |index: i64| profile.string_table[usize::try_from(index).unwrap()].as_str();
        let place = |id: u64| {
            let location = profile
                .location
                .iter()
                .find(|location| location.id == id)
                .unwrap();
            let lines = location.line.iter().map(|line| {
                let function = profile
                    .function
                    .iter()
                    .find(|function| function.id == line.function_id);
                format!("{}:{}", text(function.unwrap().name), line.line)
            });
            let lines: Vec<String> = lines.collect();
            let mapping = profile
                .mapping
                .iter()
                .find(|mapping| mapping.id == location.mapping_id);
            match (lines.is_empty(), mapping) {
                (false, _) => lines.join(" in "),
                (true, Some(mapping)) => format!("{:#x} {}", location.address, text(mapping.filename)),
                (true, None) => format!("{:#x}", location.address),
            }
        };
        let stack = |sample: &Sample| sample.location_id.iter().map(|id| place(*id)).collect::<Vec<_>>();
        let samples = profile.sample.iter();
        samples
            .map(|sample| (stack(sample).join(" < "), sample.value.clone()))
            .collect()
    }

    fn profile(seen: &[(&[usize], i64)], lost: usize) -> Profile {
        let recording = Recording {
            stacks: seen
                .iter()
                .map(|(stack, count)| (stack.to_vec(), *count))
                .collect(),
            lost,
        };
        let file = |start: u64, end: u64, path: &str| MappedFile {
            start,
            end,
            offset: 0x1000,
            path: path.to_owned(),
        };
        let taken = Taken {
            began: UNIX_EPOCH + Duration::from_secs(7),
            took: Duration::from_secs(2),
        };
        let mappings = [file(0x10, 0x100, "/rubelet"), file(0x200, 0x300, "/libc.so")];
        encode(&recording, taken, &mappings, names)
    }

    #[test]
    fn stacks_are_told_by_names_or_addresses() {
        let check = |stack: &[usize], expected: &str| {
            let expected = vec![(expected.to_owned(), vec![3, 30_000_000])];
            assert_eq!(stacks(&profile(&[(stack, 3)], 0)), expected);
        };
        check(&[0x22, 0x12], "c:3 < a:2");
        check(&[0x15, 0x22], "b:5 in a:1 < c:3");
        check(&[0x22, 0x22, 0x22], "c:3 < c:3 < c:3");
        check(&[0x210, 0x22], "0x210 /libc.so < c:3");
        check(&[0x400], "0x400");
    }

    #[test]
    fn tables_hold_everything_once() {
        let profile = profile(&[(&[0x22, 0x12], 1), (&[0x22, 0x15], 1), (&[0x210], 1)], 4);
        let texts = [
            "",
            "samples",
            "count",
            "cpu",
            "nanoseconds",
            "4 samples could not be kept",
            "/rubelet",
            "/libc.so",
            "c",
            "_c",
            "f.rs",
            "a",
            "_a",
            "b",
            "_b",
        ];
        assert_eq!(profile.string_table, texts);
        assert_eq!((profile.location.len(), profile.function.len()), (4, 3));
        assert_eq!(profile.comment, [5]);
        let named: Vec<bool> = profile
            .mapping
            .iter()
            .map(|mapping| mapping.has_functions)
            .collect();
        assert_eq!(named, [true, false]);
        let times = (profile.time_nanos, profile.duration_nanos, profile.period);
        assert_eq!(times, (7_000_000_000, 2_000_000_000, 10_000_000));
    }
}
