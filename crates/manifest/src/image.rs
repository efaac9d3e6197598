//! The default pull policy of an image reference: `Always` only for a reference that means `latest`.

use rubelet_model::image_reference::is_latest;

/// The policy of a container that has none.
pub fn default_pull_policy(image: &str) -> &'static str {
    if is_latest(image) {
        "Always"
    } else {
        "IfNotPresent"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_latest_is_pulled_always() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (image, expected) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("registry.io:5000/a/b", "Always"),
            ("localhost/x", "Always"),
            ("nginx:1.2", "IfNotPresent"),
            ("registry.io:5000/a/b:v1", "IfNotPresent"),
            ("Nginx", "IfNotPresent"),
            ("", "IfNotPresent"),
            ("a b", "IfNotPresent"),
            ("nginx:la/test", "IfNotPresent"),
            (&format!("nginx@{digest}"), "IfNotPresent"),
            (&format!("nginx:latest@{digest}"), "Always"),
            ("nginx:latest@sha256:12", "IfNotPresent"),
            (&"a".repeat(64), "IfNotPresent"),
        ] {
            assert_eq!(default_pull_policy(image), expected, "{image:?}");
        }
    }
}
