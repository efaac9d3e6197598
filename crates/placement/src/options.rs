//! Options of policies: names with a stage, whose gates open the early ones.

/// How far an option has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Alpha,
    Beta,
    Stable,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct OptionName {
    pub(crate) name: &'static str,
    pub(crate) stage: Stage,
}

/// An option that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOption {
    #[error("unknown {of} Policy option: {name:?}")]
    Unknown { of: &'static str, name: String },
    #[error("{name:?} has the value {value:?}, where {expected} was expected")]
    Value {
        name: String,
        value: String,
        expected: &'static str,
    },
    #[error("option {name:?} needs the feature gate {gate}")]
    Gate { name: String, gate: &'static str },
}

impl OptionName {
    pub(crate) fn find(all: &[Self], of: &'static str, name: &str) -> Result<Self, BadOption> {
        let found = all.iter().find(|option| option.name == name);
        found.copied().ok_or_else(|| BadOption::Unknown {
            of,
            name: name.to_owned(),
        })
    }
}

/// A truth value as Go's `strconv.ParseBool` reads it.
pub(crate) fn read_bool(name: &str, value: &str) -> Result<bool, BadOption> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(BadOption::Value {
            name: name.to_owned(),
            value: value.to_owned(),
            expected: "true or false",
        }),
    }
}
