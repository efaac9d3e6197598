//! Whatever stands in a file, the answer is a configuration or problems, never a panic and never a long wait.

use proptest::prelude::*;
use rubelet_config::FeatureGates;
use rubelet_config::kubelet_configuration::{
    API_VERSION, DropIn, HostFacts, KIND, KubeletConfiguration, apply_defaults, decode,
    default_kubelet_configuration, merge_drop_ins, validate, validate_on_host,
};
use serde_json::{Value, json};

fn all_on() -> FeatureGates {
    FeatureGates::every(true)
}

/// The whole way of a file, and of the same bytes as a drop-in.
fn go_through(bytes: &[u8]) {
    let base = default_kubelet_configuration(&all_on());
    let _ = merge_drop_ins(
        &base,
        &[DropIn {
            source_name: "any".to_owned(),
            bytes: bytes.to_vec(),
        }],
    )
    .map_err(|error| error.to_string());
    let mut configuration = match decode(bytes, "any") {
        Ok(decoded) => decoded.configuration,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    apply_defaults(&mut configuration, &all_on());
    for gates in [all_on(), FeatureGates::every(false)] {
        for problem in validate(&configuration, &gates)
            .iter()
            .chain(&validate_on_host(&configuration, HostFacts { cgroup_v2: false }))
        {
            assert!(!problem.path.is_empty() && !problem.to_string().is_empty());
        }
    }
    let text = configuration.to_configz().to_string();
    let again = decode(text.as_bytes(), "again")
        .unwrap_or_else(|error| panic!("what was written cannot be read: {error}"));
    assert_eq!(again.configuration.to_configz(), configuration.to_configz());
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        "[-+]?[0-9.]{1,6}(s|ms|h|Ki|Mi|m|%|e9)?".prop_map(Value::from),
    ]
}

fn tree() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-zA-Z.]{0,8}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Real field names with any values.
fn fields() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(KubeletConfiguration::FIELD_NAMES.to_vec());
    prop::collection::btree_map(name, tree(), 0..12).prop_map(|fields| {
        let mut object = json!({"apiVersion": API_VERSION, "kind": KIND});
        for (name, value) in fields {
            object[name] = value;
        }
        object
    })
}

/// A full file, one setting per line.
fn full_file() -> String {
    let Value::Object(fields) = default_kubelet_configuration(&all_on()).to_configz() else {
        return String::new();
    };
    fields
        .iter()
        .map(|(name, value)| format!("{name}: {value}\n"))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        go_through(&bytes);
    }

    #[test]
    fn any_text(text in "[-:\\[\\]{}#&*!|>'\"%@`,? \\n\\ta-c0-1.<~]{0,120}") {
        go_through(text.as_bytes());
        go_through(format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{text}").as_bytes());
    }

    #[test]
    fn any_tree(value in tree()) {
        go_through(value.to_string().as_bytes());
    }

    #[test]
    fn any_values_of_real_fields(value in fields()) {
        go_through(value.to_string().as_bytes());
    }

    #[test]
    fn a_good_file_with_some_bytes_changed(edits in prop::collection::vec((any::<prop::sample::Index>(), "[-:\\[\\]{}#&*!|>'\"%@`,? \\na-c0-1.~]?"), 1..6)) {
        let mut text: Vec<String> = full_file().chars().map(String::from).collect();
        for (index, replacement) in edits {
            let position = index.index(text.len());
            text[position] = replacement;
        }
        go_through(text.concat().as_bytes());
    }
}
