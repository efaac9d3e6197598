//! What is wrong with a field, and where: paths and kinds as the API server gives them, wording of our own.
//!
//! Values are not repeated in messages unless they are one of a fixed set: a manifest may hold secrets.

use std::fmt;

/// The kinds of the API's field errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorKind {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
}

impl ErrorKind {
    /// The reason as the API writes it.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::NotFound => "not found",
            Self::Required => "required",
            Self::Duplicate => "duplicate",
            Self::Invalid => "invalid",
            Self::NotSupported => "not supported",
            Self::Forbidden => "forbidden",
            Self::TooLong => "too long",
            Self::TooMany => "too many",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldError {
    pub path: String,
    pub kind: ErrorKind,
    pub detail: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.kind.text())?;
        if !self.detail.is_empty() {
            write!(f, ", {}", self.detail)?;
        }
        Ok(())
    }
}

/// All of them in one line.
pub fn list_errors(errors: &[FieldError]) -> String {
    errors
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

/// Where a field is: `spec.containers[0].name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path(String);

impl Path {
    pub(crate) fn root(name: &str) -> Self {
        Self(name.to_owned())
    }

    pub(crate) fn child(&self, name: &str) -> Self {
        if self.0.is_empty() {
            return Self(name.to_owned());
        }
        Self(format!("{}.{name}", self.0))
    }

    pub(crate) fn index(&self, position: usize) -> Self {
        Self(format!("{}[{position}]", self.0))
    }

    pub(crate) fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    #[cfg(test)]
    fn as_str(&self) -> &str {
        &self.0
    }
}

/// Collects errors while a pod is walked.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    errors: Vec<FieldError>,
}

impl Findings {
    pub(crate) fn len(&self) -> usize {
        self.errors.len()
    }

    pub(crate) fn into_errors(self) -> Vec<FieldError> {
        self.errors
    }

    fn push(&mut self, kind: ErrorKind, path: &Path, detail: impl Into<String>) {
        self.errors.push(FieldError {
            path: path.0.clone(),
            kind,
            detail: detail.into(),
        });
    }

    pub(crate) fn required(&mut self, path: &Path, detail: &str) {
        self.push(ErrorKind::Required, path, detail);
    }

    pub(crate) fn required_text(&mut self, path: &Path, value: &str) {
        if value.is_empty() {
            self.required(path, "");
        }
    }

    pub(crate) fn invalid(&mut self, path: &Path, detail: impl Into<String>) {
        self.push(ErrorKind::Invalid, path, detail);
    }

    pub(crate) fn invalid_unless(&mut self, holds: bool, path: &Path, detail: &str) {
        if !holds {
            self.invalid(path, detail);
        }
    }

    pub(crate) fn forbidden(&mut self, path: &Path, detail: &str) {
        self.push(ErrorKind::Forbidden, path, detail);
    }

    pub(crate) fn duplicate(&mut self, path: &Path) {
        self.push(ErrorKind::Duplicate, path, "");
    }

    pub(crate) fn not_found(&mut self, path: &Path, what: &str) {
        self.push(ErrorKind::NotFound, path, what);
    }

    pub(crate) fn too_long(&mut self, path: &Path, limit: usize) {
        self.push(ErrorKind::TooLong, path, format!("at most {limit} bytes"));
    }

    pub(crate) fn too_many(&mut self, path: &Path, limit: usize) {
        self.push(ErrorKind::TooMany, path, format!("at most {limit} items"));
    }

    pub(crate) fn not_supported(&mut self, path: &Path, allowed: &[&str]) {
        self.push(
            ErrorKind::NotSupported,
            path,
            format!("one of {}", allowed.join(", ")),
        );
    }

    /// One of a fixed set of values.
    pub(crate) fn one_of(&mut self, path: &Path, value: &str, allowed: &[&str]) {
        if !allowed.contains(&value) {
            self.not_supported(path, allowed);
        }
    }

    /// One of a fixed set of values; an empty one has an error of its own.
    pub(crate) fn required_one_of(&mut self, path: &Path, value: &str, allowed: &[&str]) {
        if value.is_empty() {
            self.required(path, "");
        } else {
            self.one_of(path, value, allowed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_written_as_the_api_writes_them() {
        let path = Path::root("spec")
            .child("containers")
            .index(3)
            .child("limits")
            .key("cpu");
        assert_eq!(path.as_str(), "spec.containers[3].limits[cpu]");
        assert_eq!(Path::root("").child("a").as_str(), "a");
    }

    #[test]
    fn an_error_is_one_readable_line() {
        let mut findings = Findings::default();
        findings.required(&Path::root("spec").child("containers"), "");
        findings.not_supported(&Path::root("spec").child("dnsPolicy"), &["A", "B"]);
        assert_eq!(
            list_errors(&findings.into_errors()),
            "spec.containers: required; spec.dnsPolicy: not supported, one of A, B"
        );
    }
}
