//! A seeded source of manifests: pods of all shapes, most of them nearly right, for tests that compare with upstream.

use serde_json::{Map, Value, json};

use super::manifest_parts::{CONTAINER, METADATA, SPEC, VOLUMES};

struct Seeded(u64);

impl Seeded {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % limit.max(1) as u64).unwrap_or(0)
    }
}

fn table(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// Sets some of a table's fields. The first value of a field is a good one and comes more often.
fn fill(random: &mut Seeded, object: &mut Map<String, Value>, table: &Value, most: usize) {
    let Some(fields) = table.as_object() else { return };
    let names: Vec<&String> = fields.keys().collect();
    for _ in 0..random.below(most + 1) {
        let name = names[random.below(names.len())];
        let values = fields[name].as_array().map_or(&[][..], Vec::as_slice);
        let chosen = if random.below(4) > 0 {
            0
        } else {
            random.below(values.len())
        };
        if let Some(value) = values.get(chosen) {
            object.insert(name.clone(), value.clone());
        }
    }
}

fn containers(random: &mut Seeded, prefix: &str, count: usize, table: &Value) -> Value {
    let all = (0..count).map(|number| {
        let name = if random.below(25) == 0 {
            "c0".to_owned()
        } else {
            format!("{prefix}{number}")
        };
        let mut container = Map::new();
        container.insert("name".to_owned(), name.into());
        container.insert("image".to_owned(), "nginx:1".into());
        fill(random, &mut container, table, 2);
        Value::Object(container)
    });
    all.collect()
}

/// The pod of a seed.
pub fn manifest(seed: u64) -> Value {
    let random = &mut Seeded::new(seed);
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), "pod".into());
    metadata.insert("namespace".to_owned(), "default".into());
    if random.below(4) == 0 {
        fill(random, &mut metadata, &table(METADATA), 2);
    }
    let mut spec = Map::new();
    if random.below(2) == 0 {
        fill(random, &mut spec, &table(SPEC), 3);
    }
    let parts = table(CONTAINER);
    let regular = 1 + random.below(3) - usize::from(random.below(60) == 0);
    spec.insert("containers".to_owned(), containers(random, "c", regular, &parts));
    if random.below(3) == 0 {
        let count = random.below(3);
        spec.insert(
            "initContainers".to_owned(),
            containers(random, "i", count, &parts),
        );
    }
    if random.below(2) == 0 {
        let sources = table(VOLUMES);
        let sources = sources.as_array().map_or(&[][..], Vec::as_slice);
        let volumes = (0..random.below(4)).map(|number| {
            let chosen = if random.below(2) == 0 {
                0
            } else {
                random.below(sources.len())
            };
            let mut volume = sources.get(chosen).cloned().unwrap_or(json!({}));
            let name = if random.below(25) == 0 {
                "V_".to_owned()
            } else {
                format!("v{number}")
            };
            volume["name"] = name.into();
            volume
        });
        let volumes: Vec<Value> = volumes.collect();
        spec.insert("volumes".to_owned(), volumes.into());
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

/// The pod of a seed with some values changed to others near them, or of another type.
pub fn mutated_manifest(seed: u64) -> Value {
    let mut pod = manifest(seed);
    let random = &mut Seeded::new(seed ^ 0x00ff_00ff);
    for _ in 0..=random.below(2) {
        change(&mut pod, random);
    }
    pod
}

fn change(value: &mut Value, random: &mut Seeded) {
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            let names: Vec<String> = entries.keys().cloned().collect();
            let name = &names[random.below(names.len())];
            if random.below(12) == 0 {
                entries.remove(name);
            } else if let Some(child) = entries.get_mut(name) {
                change(child, random);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let position = random.below(items.len());
            match random.below(10) {
                0 => drop(items.remove(position)),
                1 => items.push(items[position].clone()),
                _ => change(&mut items[position], random),
            }
        }
        other => *other = neighbour(other, random),
    }
}

fn neighbour(value: &Value, random: &mut Seeded) -> Value {
    if random.below(10) == 0 {
        let all = [
            json!(null),
            json!(true),
            json!(1),
            json!(1.5),
            json!("x"),
            json!([]),
            json!({}),
        ];
        return all[random.below(all.len())].clone();
    }
    match value {
        Value::Number(number) => match number.as_i64() {
            Some(whole) => json!(whole.saturating_add([-1, 1, -100, 100_000][random.below(4)])),
            None => json!(2),
        },
        Value::String(text) => {
            let extra = ["", " ", "a", "A", "0", "-", "/", "..", ".", "_", "é"][random.below(11)];
            if random.below(2) == 0 {
                format!("{text}{extra}").into()
            } else {
                format!("{extra}{text}").into()
            }
        }
        Value::Bool(flag) => json!(!flag),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use rubelet_config::FeatureGates;
    use rubelet_manifest::{apply_defaults, decode, validate};

    use super::*;

    #[test]
    fn the_tables_can_be_read_and_the_seed_decides() {
        for text in [METADATA, SPEC, CONTAINER, VOLUMES] {
            assert_ne!(table(text), Value::Null);
        }
        assert_eq!(manifest(7), manifest(7));
        assert_ne!(manifest(7), manifest(8));
    }

    /// Neither all good nor all bad, and nothing panics.
    #[test]
    fn some_pods_are_good_and_some_are_not() {
        let good = (0..1000).filter(|seed| {
            let text = mutated_manifest(*seed).to_string();
            let Ok(mut manifest) = decode(text.as_bytes()) else {
                return false;
            };
            apply_defaults(&mut manifest.pod, &FeatureGates::every(true));
            validate(&manifest.pod, &FeatureGates::every(true)).is_empty()
        });
        let good = good.count();
        assert!((20..950).contains(&good), "{good} of 1000");
    }
}
