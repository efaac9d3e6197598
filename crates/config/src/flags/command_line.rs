//! Splits a command line into flags and values, with the rules of the pflag library that upstream uses.
//!
//! `--x value`, `--x=value`, `-v 4`, `-v4`, `-v=4`; `_` and `-` are alike in names; a flag that needs no value never takes the
//! next argument; `--` ends the flags. Parsing goes on after a defect, so that all of them are found.

use std::collections::BTreeMap;

use super::definition::{Definition, Kind};
use super::table::TABLE;
use super::value::FlagValue;

/// What is wrong with a command line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlagProblem {
    #[error("unknown flag: --{name}")]
    UnknownFlag { name: String },
    #[error("unknown shorthand flag: '{letter}' in -{group}")]
    UnknownShorthand { letter: char, group: String },
    #[error("flag needs an argument: {flag}")]
    MissingValue { flag: String },
    #[error("bad flag syntax: {argument}")]
    BadSyntax { argument: String },
    #[error("invalid argument {shown} for {flag:?} flag: {reason}")]
    BadValue {
        flag: String,
        shown: String,
        reason: String,
    },
    #[error("unknown command {argument:?}: only flags are understood")]
    NotAFlag { argument: String },
}

/// The flags of a command line: what each one's uses amount to, in the order of first use.
#[derive(Debug, Clone, Default)]
pub struct CommandLine {
    order: Vec<&'static Definition>,
    values: BTreeMap<&'static str, FlagValue>,
}

impl CommandLine {
    /// Parses arguments, without the program's name.
    pub fn parse<S: AsRef<str>>(arguments: &[S]) -> Result<Self, Vec<FlagProblem>> {
        let mut parser = Parser::default();
        let mut rest: Vec<&str> = arguments.iter().map(AsRef::as_ref).rev().collect();
        while let Some(argument) = rest.pop() {
            if argument == "--" {
                let positional = rest.drain(..).rev().map(|argument| FlagProblem::NotAFlag {
                    argument: argument.to_owned(),
                });
                parser.problems.extend(positional);
            } else if let Some(long) = argument.strip_prefix("--") {
                parser.long(argument, long, &mut rest);
            } else if let Some(letters) = argument.strip_prefix('-').filter(|letters| !letters.is_empty()) {
                parser.shorthands(letters, &mut rest);
            } else {
                parser.problems.push(FlagProblem::NotAFlag {
                    argument: argument.to_owned(),
                });
            }
        }
        if parser.problems.is_empty() {
            Ok(parser.found)
        } else {
            Err(parser.problems)
        }
    }

    /// The flags that were used, in the order of first use, with their values.
    pub fn used(&self) -> impl Iterator<Item = (&'static Definition, &FlagValue)> + '_ {
        self.order
            .iter()
            .filter_map(|definition| self.values.get(definition.name).map(|value| (*definition, value)))
    }

    /// The value of a flag that was used.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&FlagValue> {
        self.values.get(name)
    }
}

#[derive(Default)]
struct Parser {
    found: CommandLine,
    problems: Vec<FlagProblem>,
}

impl Parser {
    fn long<'a>(&mut self, argument: &str, long: &'a str, rest: &mut Vec<&'a str>) {
        if long.starts_with(['-', '=']) {
            self.problems.push(FlagProblem::BadSyntax {
                argument: argument.to_owned(),
            });
            return;
        }
        let (name, inline) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        };
        let Some(definition) = by_name(name) else {
            self.problems.push(FlagProblem::UnknownFlag {
                name: name.to_owned(),
            });
            if inline.is_none() {
                skip_value(rest);
            }
            return;
        };
        let value = inline
            .or_else(|| definition.kind.bare_value())
            .or_else(|| rest.pop());
        match value {
            Some(value) => self.set(definition, value),
            None => self.problems.push(FlagProblem::MissingValue {
                flag: format!("--{name}"),
            }),
        }
    }

    fn shorthands<'a>(&mut self, group: &'a str, rest: &mut Vec<&'a str>) {
        let mut letters = group;
        while let Some(letter) = letters.chars().next() {
            let after = &letters[letter.len_utf8()..];
            let Some(definition) = TABLE
                .iter()
                .find(|definition| definition.shorthand == Some(letter))
            else {
                self.problems.push(FlagProblem::UnknownShorthand {
                    letter,
                    group: letters.to_owned(),
                });
                // What follows may be the value of the unknown letter, so it is not parsed.
                if after.is_empty() {
                    skip_value(rest);
                }
                return;
            };
            let inline = after.strip_prefix('=').filter(|value| !value.is_empty());
            let (value, next) = match (inline, definition.kind.bare_value()) {
                (Some(value), _) => (Some(value), ""),
                (None, Some(bare)) => (Some(bare), after),
                (None, None) if !after.is_empty() => (Some(after), ""),
                (None, None) => (rest.pop(), ""),
            };
            match value {
                Some(value) => self.set(definition, value),
                None => self.problems.push(FlagProblem::MissingValue {
                    flag: format!("'{letter}' in -{letters}"),
                }),
            }
            letters = next;
        }
    }

    fn set(&mut self, definition: &'static Definition, text: &str) {
        let earlier = self.found.values.get(definition.name).cloned();
        match FlagValue::read(definition.kind, text, earlier) {
            Ok(value) => {
                if self.found.values.insert(definition.name, value).is_none() {
                    self.found.order.push(definition);
                }
            }
            Err(reason) => self.problems.push(FlagProblem::BadValue {
                flag: display_name(definition),
                shown: shown(definition.kind, text),
                reason,
            }),
        }
    }
}

/// The flag of that name, `_` and `-` alike.
#[must_use]
pub(super) fn by_name(name: &str) -> Option<&'static Definition> {
    let name = name.replace('_', "-");
    TABLE.iter().find(|definition| definition.name == name)
}

fn display_name(definition: &Definition) -> String {
    match definition.shorthand {
        Some(letter) => format!("-{letter}, --{}", definition.name),
        None => format!("--{}", definition.name),
    }
}

/// Header values are often credentials and are not repeated.
fn shown(kind: Kind, text: &str) -> String {
    match kind {
        Kind::Headers => "(not shown)".to_owned(),
        _ => format!("{text:?}"),
    }
}

/// After an unknown flag the next argument is taken for its value, unless it is a flag.
fn skip_value(rest: &mut Vec<&str>) {
    if rest.last().is_some_and(|next| !next.starts_with('-')) {
        rest.pop();
    }
}
