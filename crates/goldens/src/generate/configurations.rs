//! Seeded configurations for tests: whole files, about half of them good, the others breaking one rule or a few.
//!
//! Owns the choice of values. The same seed always gives the same object. Whether an object is good is for the code
//! under test, and for whoever it is compared with, to say; nothing here calls the rules.

use rubelet_config::kubelet_configuration::{API_VERSION, KIND};
use serde_json::{Map, Value};

use super::configuration_values::{CASES, Case, UNKNOWN_FIELDS, WRONG_TYPES};

/// A configuration object for the seed, apiVersion and kind included.
pub fn configuration(seed: u64) -> Value {
    let mut random = Random(seed);
    let mut object = Map::new();
    object.insert("apiVersion".to_owned(), API_VERSION.into());
    object.insert("kind".to_owned(), KIND.into());
    let fields = 1 + random.below(24);
    let mut bad = match random.below(10) {
        0..5 => 0,
        5..8 => 1,
        _ => 2 + random.below(4),
    };
    for _ in 0..fields {
        let case = &CASES[random.below(CASES.len())];
        let break_it = bad > 0 && random.below(3) == 0;
        if break_it {
            bad -= 1;
        }
        set(&mut object, case, break_it, &mut random);
    }
    if random.below(6) == 0 {
        let name = UNKNOWN_FIELDS[random.below(UNKNOWN_FIELDS.len())];
        object.insert(name.to_owned(), Value::Bool(true));
    }
    Value::Object(object)
}

fn set(object: &mut Map<String, Value>, case: &Case, break_it: bool, random: &mut Random) {
    let text = match (break_it, case.bad.is_empty()) {
        (false, _) => case.good[random.below(case.good.len())],
        // One in five bad values is of a wrong type; fields without rules can be broken in no other way.
        (true, true) => WRONG_TYPES[random.below(WRONG_TYPES.len())],
        (true, false) if random.below(5) == 0 => WRONG_TYPES[random.below(WRONG_TYPES.len())],
        (true, false) => case.bad[random.below(case.bad.len())],
    };
    // The tables are checked by a test: every text is JSON.
    let value = serde_json::from_str(text).unwrap_or(Value::Null);
    let mut parts = case.path.split('.').peekable();
    let mut place = object;
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            place.insert(part.to_owned(), value);
            return;
        }
        let child = place.entry(part).or_insert_with(|| Value::Object(Map::new()));
        if !child.is_object() {
            // An earlier pick put a wrong type there; it stays.
            return;
        }
        let Value::Object(child) = child else { return };
        place = child;
    }
}

/// SplitMix64: small, seeded, the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rubelet_config::kubelet_configuration::KubeletConfiguration;

    use super::*;

    #[test]
    fn every_value_of_the_tables_is_json() {
        for case in CASES {
            assert!(!case.good.is_empty(), "{}", case.path);
            for text in case.good.iter().chain(case.bad).chain(WRONG_TYPES) {
                serde_json::from_str::<Value>(text)
                    .unwrap_or_else(|error| panic!("{}: {text}: {error}", case.path));
            }
        }
    }

    #[test]
    fn every_field_is_generated() {
        let covered: BTreeSet<&str> = CASES
            .iter()
            .filter_map(|case| case.path.split('.').next())
            .collect();
        let fields: BTreeSet<&str> = KubeletConfiguration::FIELD_NAMES.iter().copied().collect();
        assert_eq!(covered, fields);
    }

    #[test]
    fn the_seed_decides() {
        assert_eq!(configuration(7), configuration(7));
        assert_ne!(configuration(7), configuration(8));
    }
}
