//! The release binary against its budget, and what in it is large: `cargo xtask size`.
//!
//! Owns the budget and the report. `link_map` knows the linker's notes. It measures the binary that was built; it builds nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use crate::link_map::{self, Piece};

const BINARY: &str = "target/release/rubelet";
/// Written by the linker; see `crates/rubelet/build.rs`.
const LINK_MAP: &str = "target/release/rubelet.map";

/// What the binary may have at most, and what it should have.
const BUDGET_BYTES: u64 = 24_000_000;
const GOAL_BYTES: u64 = 18_000_000;

/// What the linker's notes call all that LTO has made one.
const PROGRAM: &str = "rubelet";

const SHOWN_SECTIONS: usize = 8;
const SHOWN_CRATES: usize = 30;
const SHOWN_TYPES: usize = 20;
const SHOWN_FUNCTIONS: usize = 20;

/// Prints the report; a binary above the budget is a problem.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let path = root.join(BINARY);
    let file = fs::metadata(&path)
        .with_context(|| format!("{} is not there; build it with `make build`", path.display()))?;
    let bytes = file.len();
    println!("{BINARY}: {bytes} bytes; budget {BUDGET_BYTES}, goal {GOAL_BYTES}");
    let map = root.join(LINK_MAP);
    let noted = fs::metadata(&map).and_then(|noted| noted.modified());
    if noted.is_ok_and(|noted| file.modified().is_ok_and(|made| is_of_one_link(noted, made))) {
        let text = fs::read_to_string(&map).with_context(|| format!("read {}", map.display()))?;
        print!("{}", report(&link_map::pieces(&text)));
    } else {
        println!("{LINK_MAP} is not there or of another link than the binary: nothing more to show");
    }
    Ok(over_budget(bytes).into_iter().collect())
}

/// The linker writes one file after the other.
fn is_of_one_link(one: SystemTime, other: SystemTime) -> bool {
    let apart = one.duration_since(other).or_else(|_| other.duration_since(one));
    apart.is_ok_and(|apart| apart < Duration::from_secs(60))
}

fn over_budget(bytes: u64) -> Option<String> {
    (bytes > BUDGET_BYTES).then(|| {
        format!(
            "{BINARY} has {bytes} bytes, {} more than its budget",
            bytes - BUDGET_BYTES
        )
    })
}

fn report(pieces: &[Piece]) -> String {
    let code: Vec<&Piece> = pieces.iter().filter(|piece| piece.section == ".text").collect();
    let sections = pieces.iter().map(|piece| (piece.section.clone(), piece.bytes));
    let crates = code.iter().map(|piece| (owner(piece), piece.bytes));
    let kinds = code
        .iter()
        .map(|piece| (kind(&piece.name).to_owned(), piece.bytes));
    let types = code
        .iter()
        .filter_map(|piece| Some((subject(&piece.name)?, piece.bytes)));
    let functions = code.iter().map(|piece| (function(piece), piece.bytes));
    [
        table("sections", SHOWN_SECTIONS, sections),
        table("code by crate", SHOWN_CRATES, crates),
        table("code by kind", usize::MAX, kinds),
        table("code by API type", SHOWN_TYPES, types),
        table("functions, all instances together", SHOWN_FUNCTIONS, functions),
    ]
    .concat()
}

/// The largest rows of sums, the rest as one.
fn table(title: &str, shown: usize, rows: impl Iterator<Item = (String, u64)>) -> String {
    let mut sums: BTreeMap<String, (u64, usize)> = BTreeMap::new();
    for (name, bytes) in rows {
        let (sum, pieces) = sums.entry(name).or_default();
        *sum += bytes;
        *pieces += 1;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, (bytes, _))| std::cmp::Reverse(*bytes));
    let mut text = format!("\n{title}\n{:>10}  {:>6}\n", "bytes", "pieces");
    for (name, (bytes, pieces)) in sums.iter().take(shown) {
        text += &format!("{bytes:>10}  {pieces:>6}  {name}\n");
    }
    let rest = sums
        .iter()
        .skip(shown)
        .fold((0, 0), |(bytes, pieces), (_, (more, count))| {
            (bytes + more, pieces + count)
        });
    if rest.1 > 0 {
        text += &format!("{:>10}  {:>6}  (the rest)\n", rest.0, rest.1);
    }
    text
}

/// The crate of a function: the one that its path begins with. Generic code of the standard library is its own row, whatever it is
/// made for.
fn owner(piece: &Piece) -> String {
    if piece.home != PROGRAM {
        return piece.home.clone();
    }
    let path = piece
        .name
        .trim_start_matches(|letter: char| !letter.is_ascii_alphabetic());
    let path = ["mut ", "const ", "dyn "]
        .iter()
        .fold(path, |path, word| path.strip_prefix(word).unwrap_or(path));
    match path.split_once("::") {
        Some(("core" | "alloc" | "std", _)) => "std, generic".to_owned(),
        Some((root, _))
            if root
                .chars()
                .all(|letter| letter.is_alphanumeric() || letter == '_') =>
        {
            root.to_owned()
        }
        _ => "(no crate)".to_owned(),
    }
}

/// Hand-written machine code has no functions of its own.
fn function(piece: &Piece) -> String {
    match piece.name.as_str() {
        ".text" => format!("{}, assembler", piece.home),
        name => name.to_owned(),
    }
}

/// What a function does, by its name.
fn kind(name: &str) -> &'static str {
    let kinds = [
        ("drop_in_place", "dropping"),
        ("drop_glue", "dropping"),
        ("fmt::Debug", "Debug"),
        ("fmt::Display", "Display"),
        ("prost::", "protobuf"),
        ("DeserializeSeed", "reading with serde"),
        ("Deserialize", "reading with serde"),
        ("Visitor", "reading with serde"),
        ("Serialize", "writing with serde"),
        ("clone::Clone", "Clone"),
        ("cmp::PartialEq", "comparing"),
        ("{{closure}}", "closures and async functions"),
    ];
    let found = kinds.iter().find(|(part, _)| name.contains(part));
    found.map_or("all else", |(_, kind)| kind)
}

/// The API type that a piece of generated code is about.
fn subject(name: &str) -> Option<String> {
    let (_, rest) = name.split_once("k8s_openapi::")?;
    let end = rest.find(|letter: char| !(letter.is_alphanumeric() || letter == '_' || letter == ':'));
    let path = &rest[..end.unwrap_or(rest.len())];
    path.rsplit("::")
        .find(|part| part.starts_with(|first: char| first.is_ascii_uppercase()))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_budget_is_a_problem() {
        assert_eq!(over_budget(BUDGET_BYTES), None);
        let problem = over_budget(BUDGET_BYTES + 5).unwrap();
        assert!(problem.contains(" 5 more"), "{problem}");
    }

    #[test]
    fn code_is_sorted_into_kinds_and_types() {
        let check = |name: &str, kind: &str, about: Option<&str>| {
            assert_eq!(super::kind(name), kind, "{name}");
            assert_eq!(subject(name).as_deref(), about, "{name}");
        };
        check(
            "core::ptr::drop_in_place<k8s_openapi::v1_37::api::core::v1::pod::Pod>",
            "dropping",
            Some("Pod"),
        );
        check(
            "<<k8s_openapi::api::core::v1::pod::Pod as serde_core::de::Deserialize>::deserialize::Visitor as \
             serde_core::de::Visitor>::visit_map",
            "reading with serde",
            Some("Pod"),
        );
        check(
            "rubelet_agent::start::{{closure}}",
            "closures and async functions",
            None,
        );
        check("rubelet_agent::start", "all else", None);
    }

    #[test]
    fn a_function_belongs_to_the_crate_of_its_path() {
        let check = |home: &str, name: &str, expected: &str| {
            let piece = Piece {
                section: ".text".to_owned(),
                bytes: 1,
                home: home.to_owned(),
                name: name.to_owned(),
            };
            assert_eq!(owner(&piece), expected, "{name}");
        };
        check("aws_lc_sys", ".text.md5", "aws_lc_sys");
        check("rubelet", "rubelet_agent::start::{{closure}}", "rubelet_agent");
        check("rubelet", "<h2::State as core::fmt::Debug>::fmt", "h2");
        check(
            "rubelet",
            "<&mut serde_json::de::Deserializer<R> as a::B>::c",
            "serde_json",
        );
        check(
            "rubelet",
            "<<k8s_openapi::Pod as a::B>::c::Visitor as d::E>::f",
            "k8s_openapi",
        );
        check(
            "rubelet",
            "core::slice::sort::stable::quicksort::quicksort",
            "std, generic",
        );
        check("rubelet", "<[A] as core::B>::c", "(no crate)");
    }

    #[test]
    fn a_table_shows_the_largest_first() {
        let rows = [("a", 1), ("b", 5), ("a", 2), ("c", 1)];
        let text = table(
            "sizes",
            1,
            rows.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)),
        );
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "",
                "sizes",
                "bytes  pieces",
                "5       1  b",
                "4       3  (the rest)"
            ]
        );
    }
}
