//! The text of `--help`.

use std::fmt::Write as _;

use super::definition::{Definition, Kind, Section};
use super::table::TABLE;

const INTRODUCTION: &str = "\
rubelet runs the pods of one Kubernetes node. It takes the place of the kubelet and understands the kubelet's flags and
its configuration file; a flag wins over the file. Most flags are deprecated in favour of the file and marked (D).

Usage:
  rubelet [flags]
";

const WIDTH: usize = 120;
const INDENT: usize = 8;

/// The whole help. `default_of` gives a flag's default as text, or nothing when it is empty.
pub(super) fn render(default_of: impl Fn(&Definition) -> Option<String>) -> String {
    let mut help = INTRODUCTION.to_owned();
    for section in Section::ALL {
        let mut flags: Vec<&Definition> = TABLE
            .iter()
            .filter(|definition| definition.section == section)
            .collect();
        flags.sort_by_key(|definition| definition.name);
        let _ = write!(help, "\n{}:\n", section.title());
        for definition in flags {
            help.push_str(&entry(definition, default_of(definition)));
        }
    }
    help
}

fn entry(definition: &Definition, default: Option<String>) -> String {
    let mut head = match definition.shorthand {
        Some(letter) => format!("  -{letter}, --{}", definition.name),
        None => format!("  --{}", definition.name),
    };
    match definition.kind {
        Kind::Bool => {}
        Kind::Version => head.push_str("[=raw]"),
        kind => {
            let _ = write!(head, " {}", kind.type_name());
        }
    }
    let mut text = definition.help.to_owned();
    if let Some(default) = default {
        let _ = write!(text, " (default {default})");
    }
    if definition.deprecation_warning().is_some() {
        text.push_str(" (D)");
    }
    format!("{head}\n{}", wrapped(&text))
}

fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut line = " ".repeat(INDENT);
    for word in text.split(' ') {
        if line.trim().is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() > WIDTH {
            lines.push_str(&line);
            lines.push('\n');
            line = " ".repeat(INDENT) + word;
        } else {
            line.push(' ');
            line.push_str(word);
        }
    }
    lines + &line + "\n"
}
