//! Which log lines are written: `-v` for all, `--vmodule` for single source files.

use tracing::{Level, Metadata};

/// One `pattern=level` of `--vmodule`. The pattern matches a source file's name without its folder and ending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VmoduleRule {
    pub(crate) file_pattern: String,
    pub(crate) verbosity: u32,
}

/// The verbosity that the settings ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verbosity {
    pub(crate) general: u32,
    pub(crate) vmodule: Vec<VmoduleRule>,
}

impl Verbosity {
    pub(super) fn enables(&self, metadata: &Metadata<'_>, general: u32) -> bool {
        let needed =
            level_verbosity(*metadata.level()) + foreign_verbosity(metadata.target(), *metadata.level());
        needed <= self.of_file(metadata.file().unwrap_or_default(), general)
    }

    fn of_file(&self, path: &str, general: u32) -> u32 {
        let name = path.rsplit('/').next().unwrap_or_default();
        let stem = name.strip_suffix(".rs").unwrap_or(name);
        let rule = self
            .vmodule
            .iter()
            .find(|rule| matches(rule.file_pattern.as_bytes(), stem.as_bytes()));
        rule.map_or(general, |rule| rule.verbosity)
    }
}

pub(super) fn level_verbosity(level: Level) -> u32 {
    match level {
        Level::ERROR | Level::WARN | Level::INFO => 0,
        Level::DEBUG => 4,
        Level::TRACE => 6,
    }
}

/// Libraries log every frame and request: their lines need a far higher verbosity than our own.
fn foreign_verbosity(target: &str, level: Level) -> u32 {
    let is_ours = target
        .split("::")
        .next()
        .is_some_and(|name| name == "rubelet" || name.starts_with("rubelet_"));
    match level {
        Level::ERROR | Level::WARN => 0,
        Level::INFO | Level::DEBUG | Level::TRACE => {
            if is_ours {
                0
            } else {
                4
            }
        }
    }
}

/// Shell-like matching: `*` is any run of characters, `?` any one.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=text.len()).any(|skipped| matches(rest, &text[skipped..])),
        ([b'?', pattern @ ..], [_, text @ ..]) => matches(pattern, text),
        ([expected, pattern @ ..], [found, text @ ..]) => expected == found && matches(pattern, text),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_crates_need_more_for_their_details() {
        assert_eq!(foreign_verbosity("rubelet::startup", Level::DEBUG), 0);
        assert_eq!(foreign_verbosity("rubelet_cri::call", Level::TRACE), 0);
        assert_eq!(foreign_verbosity("h2::codec::framed_read", Level::DEBUG), 4);
        assert_eq!(foreign_verbosity("rubeletish", Level::INFO), 4);
        assert_eq!(foreign_verbosity("h2", Level::WARN), 0);
    }

    #[test]
    fn vmodule_wins_for_the_files_it_matches() {
        let rule = |file_pattern: &str, verbosity| VmoduleRule {
            file_pattern: file_pattern.to_owned(),
            verbosity,
        };
        let verbosity = Verbosity {
            general: 2,
            vmodule: vec![rule("main", 6), rule("pod_*", 0), rule("?ri", 4)],
        };
        let check = |path: &str, expect: u32| {
            assert_eq!(verbosity.of_file(path, verbosity.general), expect, "{path}");
        };
        check("crates/rubelet/src/main.rs", 6);
        check("src/pod_worker.rs", 0);
        check("src/cri.rs", 4);
        check("src/crib.rs", 2);
        check("", 2);
    }
}
