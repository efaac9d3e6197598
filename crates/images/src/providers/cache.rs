//! Answers of one plugin, for the time that the plugin allows.
//!
//! Owns the keys of the answers: an image, its registry, or all images, and the service account. It is bounded:
//! the answer that expires first is dropped first.

use std::collections::BTreeMap;
use std::time::Duration;

use rubelet_ports::Moment;

use crate::credential::Coordinates;
use crate::keyring::docker_config::DockerConfig;
use crate::providers::exchange::CacheScope;

/// Far more than the registries of a node; per-image answers may need it.
const MAX_ENTRIES: usize = 1024;
const PURGE_INTERVAL: Duration = Duration::from_secs(15 * 60);

/// Whose credentials an answer holds. Other service accounts must not find it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AccountKey {
    pub(crate) account: Coordinates,
    pub(crate) annotations: BTreeMap<String, String>,
    /// Where an answer is good for this token only.
    pub(crate) token_hash: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reach {
    /// An image or a registry; upstream does not distinguish them either.
    Named(String),
    Everything,
}

impl Reach {
    fn of(scope: CacheScope, image: &str) -> Self {
        match scope {
            CacheScope::Image => Self::Named(image.to_owned()),
            CacheScope::Registry => Self::Named(registry_of(image).to_owned()),
            CacheScope::Global => Self::Everything,
        }
    }
}

struct Entry {
    users: DockerConfig,
    ends_at: Moment,
}

#[derive(Default)]
pub(crate) struct AnswerCache {
    entries: BTreeMap<(Reach, Option<AccountKey>), Entry>,
    purged_at: Moment,
}

impl AnswerCache {
    /// The most specific answer that is still good.
    pub(crate) fn find(
        &mut self,
        image: &str,
        account: Option<&AccountKey>,
        now: Moment,
    ) -> Option<DockerConfig> {
        if now.since(self.purged_at) > PURGE_INTERVAL {
            self.purge(now);
        }
        [CacheScope::Image, CacheScope::Registry, CacheScope::Global]
            .into_iter()
            .find_map(|scope| {
                let entry = self.entries.get(&(Reach::of(scope, image), account.cloned()))?;
                (now <= entry.ends_at).then(|| entry.users.clone())
            })
    }

    pub(crate) fn keep(
        &mut self,
        scope: CacheScope,
        image: &str,
        account: Option<AccountKey>,
        users: DockerConfig,
        (now, ends_at): (Moment, Moment),
    ) {
        let key = (Reach::of(scope, image), account);
        if !self.entries.contains_key(&key) && self.entries.len() >= MAX_ENTRIES {
            self.purge(now);
        }
        if !self.entries.contains_key(&key) && self.entries.len() >= MAX_ENTRIES {
            let first = self.entries.iter().min_by_key(|(_, entry)| entry.ends_at);
            if let Some(key) = first.map(|(key, _)| key.clone()) {
                self.entries.remove(&key);
            }
        }
        self.entries.insert(key, Entry { users, ends_at });
    }

    fn purge(&mut self, now: Moment) {
        self.entries.retain(|_, entry| now <= entry.ends_at);
        self.purged_at = now;
    }
}

fn registry_of(image: &str) -> &str {
    image.split('/').next().unwrap_or(image)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credential::RegistryUser;

    fn at(seconds: u64) -> Moment {
        Moment::from_start(Duration::from_secs(seconds))
    }

    fn users(name: &str) -> DockerConfig {
        [("r.io".to_owned(), RegistryUser::new(name, ""))].into()
    }

    fn account(name: &str) -> AccountKey {
        AccountKey {
            account: Coordinates {
                name: name.to_owned(),
                ..Coordinates::default()
            },
            annotations: BTreeMap::new(),
            token_hash: None,
        }
    }

    #[test]
    fn the_scope_says_for_which_images() {
        let check = |scope, found_for: &[&str]| {
            let mut cache = AnswerCache::default();
            cache.keep(scope, "r.io/a", None, users("u"), (at(0), at(10)));
            for image in ["r.io/a", "r.io/b", "s.io/a"] {
                let found = cache.find(image, None, at(10)).is_some();
                assert_eq!(found, found_for.contains(&image), "{scope:?} {image}");
                assert_eq!(cache.find(image, None, at(11)), None, "it has ended");
                assert_eq!(
                    cache.find(image, Some(&account("x")), at(1)),
                    None,
                    "it has no owner"
                );
            }
        };
        check(CacheScope::Image, &["r.io/a"]);
        check(CacheScope::Registry, &["r.io/a", "r.io/b"]);
        check(CacheScope::Global, &["r.io/a", "r.io/b", "s.io/a"]);
    }

    #[test]
    fn the_specific_answer_wins_and_accounts_are_apart() {
        let mut cache = AnswerCache::default();
        let one = account("one");
        for (scope, name) in [
            (CacheScope::Global, "g"),
            (CacheScope::Registry, "r"),
            (CacheScope::Image, "i"),
        ] {
            cache.keep(scope, "r.io/a", Some(one.clone()), users(name), (at(0), at(10)));
            assert_eq!(cache.find("r.io/a", Some(&one), at(1)), Some(users(name)));
        }
        assert_eq!(cache.find("r.io/b", Some(&one), at(1)), Some(users("r")));
        assert_eq!(cache.find("r.io/a", Some(&account("two")), at(1)), None);
        assert_eq!(cache.find("r.io/a", None, at(1)), None);
        let mut token = one;
        token.token_hash = Some("h".to_owned());
        assert_eq!(cache.find("r.io/a", Some(&token), at(1)), None);
    }

    #[test]
    fn it_stays_small() {
        let mut cache = AnswerCache::default();
        for number in 0..2 * MAX_ENTRIES as u64 {
            let image = format!("r.io/{number}");
            cache.keep(
                CacheScope::Image,
                &image,
                None,
                users("u"),
                (at(0), at(100 + number)),
            );
        }
        assert_eq!(cache.entries.len(), MAX_ENTRIES);
        assert_eq!(
            cache.find("r.io/0", None, at(1)),
            None,
            "what ends first goes first"
        );
        assert!(cache.find("r.io/2047", None, at(1)).is_some());
        cache.find("r.io/0", None, at(100_000));
        assert_eq!(cache.entries.len(), 0, "what has ended goes");
    }
}
