//! The table of settings in `docs/compatibility.md`, written from the code that warns of them at start-up.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use rubelet_config::pending::{SettingSupport, Support, pending_table};

const DOCUMENT: &str = "docs/compatibility.md";
const BEGIN: &str = "<!-- settings: begin -->\n";
const END: &str = "<!-- settings: end -->\n";

/// Whether the document's table is the code's.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(root.join(DOCUMENT)).with_context(|| format!("read {DOCUMENT}"))?;
    let is_current = with_table(&text, &table(pending_table()))? == text;
    Ok(if is_current {
        Vec::new()
    } else {
        vec![format!(
            "{DOCUMENT}: the settings are out of date: cargo xtask settings"
        )]
    })
}

/// Writes the table into the document.
pub(crate) fn write(root: &Path) -> Result<()> {
    let path = root.join(DOCUMENT);
    let text = fs::read_to_string(&path).with_context(|| format!("read {DOCUMENT}"))?;
    fs::write(&path, with_table(&text, &table(pending_table()))?).with_context(|| format!("write {DOCUMENT}"))
}

fn with_table(text: &str, table: &str) -> Result<String> {
    let (before, rest) = text
        .split_once(BEGIN)
        .with_context(|| format!("{DOCUMENT} has no {BEGIN}"))?;
    let (_, after) = rest
        .split_once(END)
        .with_context(|| format!("{DOCUMENT} has no {END}"))?;
    Ok(format!("{before}{BEGIN}{table}{END}{after}"))
}

fn table(rows: &[SettingSupport]) -> String {
    let mut table = "| setting | belongs to | today |\n|---|---|---|\n".to_owned();
    for row in rows {
        let today = match row.support {
            Support::Works => "has its effect".to_owned(),
            Support::NotYet => "a warning if it is not the default".to_owned(),
            Support::Refused { when } => format!("an error when {when}"),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(table, "| `{}` | {} | {today} |", row.setting.name(), row.feature);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_replaces_what_is_between_the_marks() {
        let text = format!("a\n{BEGIN}old\n{END}b\n");
        assert_eq!(
            with_table(&text, "new\n").unwrap(),
            format!("a\n{BEGIN}new\n{END}b\n")
        );
        assert!(with_table("no marks", "new").is_err());
    }
}
