//! Pod manifests in as few words as a test can have.

use serde_json::{Value, json};

use crate::images::{BUSYBOX, PAUSE, SERVER};

/// A manifest being written. It is a plain JSON value in the end; tests change what they want in it.
#[derive(Clone, Debug)]
pub struct Manifest(Value);

/// A pod without containers, which ends soon after it is told to.
pub fn pod(name: &str) -> Manifest {
    Manifest(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": { "containers": [], "terminationGracePeriodSeconds": 2 },
    }))
}

impl Manifest {
    /// Adds a container.
    #[must_use]
    pub fn container(self, container: Value) -> Self {
        self.push("containers", container)
    }

    /// Adds an init container.
    #[must_use]
    pub fn init(self, container: Value) -> Self {
        self.push("initContainers", container)
    }

    /// Sets a field of the spec.
    #[must_use]
    pub fn spec(mut self, field: &str, value: Value) -> Self {
        self.0["spec"][field] = value;
        self
    }

    /// Sets a field of the metadata.
    #[must_use]
    pub fn metadata(mut self, field: &str, value: Value) -> Self {
        self.0["metadata"][field] = value;
        self
    }

    /// The manifest.
    pub fn json(self) -> Value {
        self.0
    }

    fn push(mut self, list: &str, container: Value) -> Self {
        match &mut self.0["spec"][list] {
            Value::Array(containers) => containers.push(container),
            other => *other = json!([container]),
        }
        self
    }
}

/// A container that runs a shell script with busybox's tools. As process 1 it does not hear SIGTERM unless it sets a trap.
pub fn shell(name: &str, script: &str) -> Value {
    json!({ "name": name, "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script] })
}

/// A container that does nothing, and ends at once when told to.
pub fn pause(name: &str) -> Value {
    json!({ "name": name, "image": PAUSE, "imagePullPolicy": "Never" })
}

/// A container that runs the test server.
pub fn server(name: &str, arguments: &[&str]) -> Value {
    json!({ "name": name, "image": SERVER, "imagePullPolicy": "Never", "args": arguments })
}

/// The container with one field set.
#[must_use]
pub fn with(mut container: Value, field: &str, value: Value) -> Value {
    container[field] = value;
    container
}

/// A script's end that waits for SIGTERM and leaves then.
pub const UNTIL_TERM: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_and_fields_land_where_they_belong() {
        let manifest = pod("a")
            .init(shell("first", "true"))
            .container(pause("one"))
            .container(with(pause("two"), "tty", json!(true)))
            .spec("hostNetwork", json!(true))
            .metadata("uid", json!("u"))
            .json();
        assert_eq!(manifest["spec"]["initContainers"][0]["command"][2], "true");
        assert_eq!(manifest["spec"]["containers"][1]["tty"], true);
        assert_eq!(manifest["spec"]["hostNetwork"], true);
        assert_eq!(manifest["metadata"], json!({ "name": "a", "uid": "u" }));
    }
}
