//! Credentials by the registries that they are for, and which of them fit an image.
//!
//! Owns the order in which they are tried: the more specific address first, and for one address in the order in which they came. It
//! must not know where they came from.

mod address;
pub(crate) mod docker_config;

use std::collections::BTreeMap;

use crate::credential::{Candidate, Source};
use crate::keyring::docker_config::DockerConfig;

pub(crate) use address::Address;

/// The old name of Docker Hub is the same registry.
const DEFAULT_REGISTRY: &str = "index.docker.io";
const SCHEMES: [&str; 2] = ["https://", "http://"];
/// The registry's own paths, which are no repositories.
const API_PATHS: [&str; 2] = ["/v1/", "/v2/"];

#[derive(Clone, Debug, Default)]
pub(crate) struct Keyring {
    by_address: BTreeMap<String, (Address, Vec<Candidate>)>,
}

impl Keyring {
    pub(crate) fn add(&mut self, source: &Source, config: DockerConfig) {
        for (text, user) in config {
            let bare = SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme));
            let Some(address) = Address::parse(bare.unwrap_or(&text)) else {
                tracing::warn!("An address in a docker configuration is none; its user is never tried");
                continue;
            };
            let address = without_api_path(address);
            let key = format!("{}{}", address.authority, address.path);
            let (_, candidates) = self
                .by_address
                .entry(key)
                .or_insert_with(|| (address, Vec::new()));
            candidates.push(Candidate::new(user, source.clone()));
        }
    }

    /// What to try for this repository, in this order.
    pub(crate) fn candidates(&self, repository: &str) -> Vec<Candidate> {
        let Some(wanted) = Address::parse(repository) else {
            return Vec::new();
        };
        let fitting = self
            .by_address
            .values()
            .rev()
            .filter(|(address, _)| address.covers(&wanted));
        let found: Vec<Candidate> = fitting.flat_map(|(_, candidates)| candidates.clone()).collect();
        if found.is_empty() && is_in_default_registry(repository) {
            let default = self.by_address.get(DEFAULT_REGISTRY);
            return default
                .map(|(_, candidates)| candidates.clone())
                .unwrap_or_default();
        }
        found
    }
}

/// The address without what is only the way to the registry's API.
fn without_api_path(mut address: Address) -> Address {
    if let Some(api) = API_PATHS.iter().find(|path| address.path.starts_with(*path)) {
        // The slash stays: it begins the repository.
        address.path.replace_range(..api.len() - 1, "");
    }
    if address.path == "/" {
        address.path.clear();
    }
    address
}

fn is_in_default_registry(image: &str) -> bool {
    match image.split_once('/') {
        None => !image.is_empty(),
        Some(("docker.io" | DEFAULT_REGISTRY, _)) => true,
        Some((first, _)) => !first.is_empty() && !first.contains(['.', ':']),
    }
}

#[cfg(test)]
mod tests {
    use super::docker_config::{DockerConfigForm, read};
    use super::*;

    fn keyring(addresses: &[&str]) -> Keyring {
        let mut keyring = Keyring::default();
        for (number, address) in addresses.iter().enumerate() {
            let text = serde_json::json!({*address: {"username": format!("{number}:{address}")}});
            let config = read(text.to_string().as_bytes(), DockerConfigForm::Legacy).unwrap();
            keyring.add(&Source::Node, config);
        }
        keyring
    }

    fn check(addresses: &[&str], image: &str, expected: &[&str]) {
        let found = keyring(addresses).candidates(image);
        let found: Vec<&str> = found.iter().map(|one| one.user.username.as_str()).collect();
        assert_eq!(found, expected, "{addresses:?} {image}");
    }

    #[test]
    fn the_more_specific_address_comes_first() {
        let addresses = [
            "quay.io",
            "quay.io/coreos",
            "*.io",
            "https://quay.io/v2/",
            "quay.io/coreos/etcd/deep",
        ];
        check(
            &addresses,
            "quay.io/coreos/etcd",
            &["1:quay.io/coreos", "0:quay.io", "3:https://quay.io/v2/", "2:*.io"],
        );
        check(
            &addresses,
            "quay.io/other",
            &["0:quay.io", "3:https://quay.io/v2/", "2:*.io"],
        );
        check(&addresses, "gcr.io/x", &["2:*.io"]);
        check(&addresses, "example.com/x", &[]);
    }

    #[test]
    fn schemes_and_api_paths_are_no_part_of_it() {
        for address in [
            "r.io",
            "http://r.io",
            "https://r.io/",
            "https://r.io/v1/",
            "r.io/v2/",
            "https://r.io/v1/team",
        ] {
            check(&[address], "r.io/team/x", &[&format!("0:{address}")]);
        }
        check(&["https://r.io/v1/team"], "r.io/other/x", &[]);
        check(&["r.io/v3/"], "r.io/x", &[]);
        check(&["a b", "r.io:x"], "r.io/x", &[]);
    }

    #[test]
    fn docker_hub_has_several_names() {
        let old = "https://index.docker.io/v1/";
        for image in [
            "docker.io/library/busybox",
            "index.docker.io/a/b",
            "library/busybox",
            "busybox",
        ] {
            check(&[old], image, &["0:https://index.docker.io/v1/"]);
        }
        check(&[old], "gcr.io/x", &[]);
        check(&[old], "localhost:5000/x", &[]);
        check(&["docker.io", old], "docker.io/library/busybox", &["0:docker.io"]);
        check(
            &["docker.io/private", old],
            "docker.io/library/busybox",
            &["1:https://index.docker.io/v1/"],
        );
    }
}
