//! Docker's configuration: which user for which registry, in both forms.
//!
//! Owns the parsing. Field names are matched without regard to case, as in Go. An error never repeats what it read.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::credential::RegistryUser;

/// Users by the address that they are for, as it was written.
pub(crate) type DockerConfig = BTreeMap<String, RegistryUser>;

/// Which of the two forms a text has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DockerConfigForm {
    /// `config.json`, `.dockerconfigjson`: the users are under `auths`.
    Json,
    /// `.dockercfg`: nothing but users.
    Legacy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum DockerConfigError {
    #[error("it is no valid JSON")]
    Syntax,
    #[error("its registries are no JSON object")]
    NoObject,
    #[error("an entry is not made of texts")]
    NoText,
    #[error("the auth of an entry is not base64 of username:password")]
    BadAuth,
}

pub(crate) fn read(bytes: &[u8], form: DockerConfigForm) -> Result<DockerConfig, DockerConfigError> {
    let root: Value = serde_json::from_slice(bytes).map_err(|_| DockerConfigError::Syntax)?;
    let users = match (form, root) {
        (_, Value::Null) => return Ok(DockerConfig::new()),
        (DockerConfigForm::Legacy, root) => root,
        (DockerConfigForm::Json, Value::Object(mut root)) => {
            if !are_headers(&take(&mut root, "HttpHeaders")) {
                return Err(DockerConfigError::NoText);
            }
            take(&mut root, "auths")
        }
        (DockerConfigForm::Json, _) => return Err(DockerConfigError::NoObject),
    };
    match users {
        Value::Null => Ok(DockerConfig::new()),
        Value::Object(users) => users
            .into_iter()
            .map(|(address, entry)| Ok((address, user_of(entry)?)))
            .collect(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(DockerConfigError::NoObject)
        }
    }
}

/// They are not used, but where they are malformed, upstream does not use the rest either.
fn are_headers(headers: &Value) -> bool {
    match headers {
        Value::Null => true,
        Value::Object(headers) => headers.values().all(|value| value.is_string() || value.is_null()),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => false,
    }
}

/// The field of this name, in any case; the exact one first.
fn take(fields: &mut Map<String, Value>, name: &str) -> Value {
    let key = match fields.contains_key(name) {
        true => Some(name.to_owned()),
        false => fields.keys().find(|key| key.eq_ignore_ascii_case(name)).cloned(),
    };
    key.and_then(|key| fields.remove(&key)).unwrap_or_default()
}

fn user_of(entry: Value) -> Result<RegistryUser, DockerConfigError> {
    let mut fields = match entry {
        // An entry whose password is somewhere else; it counts, as a user without a name.
        Value::Null => Map::new(),
        Value::Object(fields) => fields,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return Err(DockerConfigError::NoObject);
        }
    };
    let mut text = |name: &str| match take(&mut fields, name) {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            Err(DockerConfigError::NoText)
        }
    };
    let user = RegistryUser {
        username: text("username")?,
        password: text("password")?,
        email: text("email")?,
    };
    let auth = text("auth")?;
    if auth.is_empty() {
        return Ok(user);
    }
    let (username, password) = decode_auth(&auth)?;
    Ok(RegistryUser {
        username,
        password,
        ..user
    })
}

/// With padding where there is some, without where there is none; line breaks do not count.
fn decode_auth(auth: &str) -> Result<(String, String), DockerConfigError> {
    let padding = match auth.trim().ends_with('=') {
        true => DecodePaddingMode::RequireCanonical,
        false => DecodePaddingMode::RequireNone,
    };
    let config = GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(padding);
    let auth: String = auth
        .chars()
        .filter(|letter| !matches!(letter, '\r' | '\n'))
        .collect();
    let pair = GeneralPurpose::new(&alphabet::STANDARD, config)
        .decode(auth)
        .map_err(|_| DockerConfigError::BadAuth)?;
    let pair = String::from_utf8_lossy(&pair);
    let (username, password) = pair.split_once(':').ok_or(DockerConfigError::BadAuth)?;
    Ok((username.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `address=user/password/email`, one after another.
    fn check(form: DockerConfigForm, text: &str, expected: Result<&str, DockerConfigError>) {
        let shown = read(text.as_bytes(), form).map(|config| {
            let entry = |(address, user): (String, RegistryUser)| {
                format!("{address}={}/{}/{}", user.username, user.password, user.email)
            };
            config.into_iter().map(entry).collect::<Vec<_>>().join(" ")
        });
        assert_eq!(shown.as_deref().map_err(|error| *error), expected, "{text}");
    }

    #[test]
    fn both_forms() {
        let json = |text: &str, expected| check(DockerConfigForm::Json, text, expected);
        let legacy = |text: &str, expected| check(DockerConfigForm::Legacy, text, expected);
        json(
            r#"{"auths":{"a.io":{"username":"u","password":"p","email":"e"}}}"#,
            Ok("a.io=u/p/e"),
        );
        legacy(
            r#"{"https://a.io/v1/":{"username":"u","password":"p"}}"#,
            Ok("https://a.io/v1/=u/p/"),
        );
        json(r#"{"HttpHeaders":{"X":"y"},"credsStore":"z"}"#, Ok(""));
        json(r#"{"HttpHeaders":{"X":1}}"#, Err(DockerConfigError::NoText));
        json("{}", Ok(""));
        json("null", Ok(""));
        legacy("null", Ok(""));
        json(r#"{"Auths":{"a":{"Username":"u","PASSWORD":"p"}}}"#, Ok("a=u/p/"));
        json(r#"{"auths":{"a":null,"b":{}}}"#, Ok("a=// b=//"));
        json(r#"{"auths":{"a":{"username":"u","unknown":1}}}"#, Ok("a=u//"));
        json("", Err(DockerConfigError::Syntax));
        json("{", Err(DockerConfigError::Syntax));
        json("[]", Err(DockerConfigError::NoObject));
        json(r#"{"auths":[]}"#, Err(DockerConfigError::NoObject));
        legacy(r#"{"a":"b"}"#, Err(DockerConfigError::NoObject));
        legacy(r#"{"a":{"username":1}}"#, Err(DockerConfigError::NoText));
    }

    #[test]
    fn auth_wins_over_the_fields() {
        let check_auth = |auth: &str, expected: Result<&str, DockerConfigError>| {
            let text = format!(r#"{{"a":{{"username":"x","password":"y","email":"e","auth":{auth:?}}}}}"#);
            check(DockerConfigForm::Legacy, &text, expected);
        };
        check_auth("dTpw", Ok("a=u/p/e"));
        check_auth("", Ok("a=x/y/e"));
        check_auth("dXNlcjpwYXNz", Ok("a=user/pass/e"));
        check_auth("dXNlcjpwYXM=", Ok("a=user/pas/e"));
        check_auth("dXNlcjpwYXM", Ok("a=user/pas/e"));
        check_auth("dTpwOnE", Ok("a=u/p:q/e"));
        check_auth("dTp\nw", Ok("a=u/p/e"));
        check_auth("Og==", Ok("a=//e"));
        check_auth("dXNlcjpwYXM==", Err(DockerConfigError::BadAuth));
        check_auth("dTpw ", Err(DockerConfigError::BadAuth));
        check_auth("dXA=", Err(DockerConfigError::BadAuth));
        check_auth("pants", Err(DockerConfigError::BadAuth));
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = read(&bytes, DockerConfigForm::Json);
            let _ = read(&bytes, DockerConfigForm::Legacy);
        }

        #[test]
        fn what_docker_writes_is_read(username in "[a-z<>\"]{1,8}", password in "\\PC{0,12}") {
            let auth = base64::engine::general_purpose::STANDARD.encode(format!("{username}:{password}"));
            let text = serde_json::json!({"auths": {"r.io": {"auth": auth}}}).to_string();
            let found = read(text.as_bytes(), DockerConfigForm::Json).unwrap();
            prop_assert_eq!(&found["r.io"], &RegistryUser::new(&username, &password));
        }
    }
}
