//! The user of an authenticated request.

use std::collections::BTreeMap;

use k8s_openapi::api::authentication::v1::UserInfo;

const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";
const AUTHENTICATED: &str = "system:authenticated";

/// A name and what the authority behind it adds, as it goes into a review of access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) groups: Vec<String>,
    pub(crate) extra: BTreeMap<String, Vec<String>>,
}

impl User {
    pub(super) fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    /// Every user with credentials is in one more group, unless the authority has set one of the two already.
    #[must_use]
    pub(super) fn authenticated(mut self) -> Self {
        let decided = self.name == ANONYMOUS
            || self
                .groups
                .iter()
                .any(|group| group == AUTHENTICATED || group == UNAUTHENTICATED);
        if !decided {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }
}

impl From<UserInfo> for User {
    fn from(info: UserInfo) -> Self {
        Self {
            name: info.username.unwrap_or_default(),
            uid: info.uid.unwrap_or_default(),
            groups: info.groups.unwrap_or_default(),
            extra: info.extra.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_with_credentials_are_in_one_more_group() {
        let check = |name: &str, groups: &[&str], expected: &[&str]| {
            let user = User {
                name: name.to_owned(),
                groups: groups.iter().map(|group| (*group).to_owned()).collect(),
                ..User::default()
            };
            assert_eq!(user.authenticated().groups, expected, "{name} {groups:?}");
        };
        check("me", &[], &[AUTHENTICATED]);
        check("me", &["a", "b"], &["a", "b", AUTHENTICATED]);
        check("me", &[AUTHENTICATED, "a"], &[AUTHENTICATED, "a"]);
        check("me", &[UNAUTHENTICATED], &[UNAUTHENTICATED]);
        check(ANONYMOUS, &["a"], &["a"]);
        assert_eq!(User::anonymous().authenticated().groups, [UNAUTHENTICATED]);
    }
}
