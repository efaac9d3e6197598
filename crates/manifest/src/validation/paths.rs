//! Rules for file paths inside volumes.

use crate::problem::{Findings, Path};

pub(super) fn no_backsteps(out: &mut Findings, path: &Path, target: &str) {
    out.invalid_unless(
        !target.split('/').any(|part| part == ".."),
        path,
        "must not contain '..'",
    );
}

/// Relative, and never up.
pub(super) fn descending(out: &mut Findings, path: &Path, target: &str) {
    out.invalid_unless(!target.starts_with('/'), path, "must be a relative path");
    no_backsteps(out, path, target);
}

/// Descending, and not one of the names that atomic writers use.
pub(super) fn local(out: &mut Findings, path: &Path, target: &str) {
    descending(out, path, target);
    out.invalid_unless(
        !target.starts_with("..") || target.starts_with("../"),
        path,
        "must not start with '..'",
    );
}

pub(super) fn mode(out: &mut Findings, path: &Path, value: Option<i32>) {
    let fits = value.is_none_or(|mode| (0..=0o777).contains(&mode));
    out.invalid_unless(fits, path, "must be between 0 and 0777 (octal)");
}

pub(super) fn user(out: &mut Findings, path: &Path, value: Option<i64>) {
    let fits = value.is_none_or(|id| (0..=i64::from(i32::MAX)).contains(&id));
    out.invalid_unless(fits, path, "must be between 0 and 2147483647");
}
