//! The command line: the table of flags, its parser, and what flags set.
//!
//! Owns the names, types and deprecations of all flags and the rules by which their text becomes values. Laying flags over
//! a configuration file is `load`'s work. It prints nothing and reads no environment.

mod command_line;
mod configuration;
mod defaults;
mod definition;
mod help;
mod node_labels;
mod own;
mod shown;
mod table;
mod text;
mod value;

pub use command_line::{CommandLine, FlagProblem};
pub use definition::{Definition, Deprecation, Kind, OwnFlag, Section, Target};
pub use own::KubeletFlags;
pub use value::FlagValue;

pub(crate) use configuration::apply as apply_to_configuration;
pub(crate) use node_labels::problems as node_label_problems;
pub(crate) use text::boolean;

pub(crate) use shown::texts;

/// Every flag, grouped as the help groups them.
#[must_use]
pub fn definitions() -> &'static [Definition] {
    table::TABLE
}

/// The flag of that name; `_` and `-` are alike.
#[must_use]
pub fn definition(name: &str) -> Option<&'static Definition> {
    command_line::by_name(name)
}

/// The text of `--help`.
#[must_use]
pub fn help() -> String {
    help::render(default_text)
}

/// A flag's default as upstream's help writes it; `None` where it is empty, zero or false.
#[must_use]
pub fn default_text(definition: &Definition) -> Option<String> {
    defaults::text(definition)
}
