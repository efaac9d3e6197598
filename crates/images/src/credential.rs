//! A user and password for a registry, and where it comes from.
//!
//! Owns the hash that identifies a credential without keeping it, as upstream writes it to disk. Nothing here prints a
//! password.

use std::fmt;

use rubelet_model::go_json;
use rubelet_wire::cri::v1;
use sha2::{Digest, Sha256};

/// One entry of a docker configuration.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct RegistryUser {
    pub(crate) username: String,
    pub(crate) password: String,
    /// Not used; it counts in the hash.
    pub(crate) email: String,
}

impl RegistryUser {
    #[must_use]
    pub(crate) fn new(username: &str, password: &str) -> Self {
        Self {
            username: username.to_owned(),
            password: password.to_owned(),
            email: String::new(),
        }
    }

    /// SHA-256 of the fields that are not empty, as Go writes them in JSON.
    #[must_use]
    pub(crate) fn hash(&self) -> String {
        let fields = [
            ("username", &self.username),
            ("password", &self.password),
            ("email", &self.email),
        ];
        let fields: Vec<String> = fields
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| format!("\"{name}\":{}", go_json(value)))
            .collect();
        hex_sha256(format!("{{{}}}", fields.join(",")).as_bytes())
    }

    pub(crate) fn auth_config(&self) -> v1::AuthConfig {
        v1::AuthConfig {
            username: self.username.clone(),
            password: self.password.clone(),
            ..v1::AuthConfig::default()
        }
    }
}

impl fmt::Debug for RegistryUser {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RegistryUser")
    }
}

/// An object of the API, beyond its name: another one of the same name has another UID.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Coordinates {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// Which pods may use a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Every pod of the node may use it.
    Node,
    Secret(Coordinates),
    ServiceAccount(Coordinates),
}

/// A credential that may open the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) user: RegistryUser,
    pub(crate) hash: String,
    pub(crate) source: Source,
}

impl Candidate {
    pub(crate) fn new(user: RegistryUser, source: Source) -> Self {
        Self {
            hash: user.hash(),
            user,
            source,
        }
    }
}

pub(crate) fn hex_sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_over_what_go_would_write() {
        let check = |username: &str, password: &str, email: &str, json: &str| {
            let user = RegistryUser {
                email: email.to_owned(),
                ..RegistryUser::new(username, password)
            };
            assert_eq!(user.hash(), hex_sha256(json.as_bytes()));
        };
        check("", "", "", "{}");
        check("u", "p", "", r#"{"username":"u","password":"p"}"#);
        check("", "p", "a@b", r#"{"password":"p","email":"a@b"}"#);
        check(
            "u",
            "<&>\u{2028}\"\u{1}",
            "",
            r#"{"username":"u","password":"\u003c\u0026\u003e\u2028\"\u0001"}"#,
        );
    }

    #[test]
    fn a_known_hash() {
        assert_eq!(
            hex_sha256(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn nothing_prints_a_password() {
        let candidate = Candidate::new(RegistryUser::new("someone", "hidden"), Source::Node);
        let printed = format!("{candidate:?}");
        assert!(
            !printed.contains("hidden") && !printed.contains("someone"),
            "{printed}"
        );
    }
}
