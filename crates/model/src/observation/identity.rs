//! Identifiers of pods, sandboxes and containers, each its own type so that they cannot be mixed up.
//!
//! Owns the text of the identifier and nothing else.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! identifier {
    ($(#[$documentation:meta])* $name:ident) => {
        $(#[$documentation])*
        #[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            pub fn new(text: impl Into<String>) -> Self {
                Self(text.into())
            }

            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "{}({:?})", stringify!($name), self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }
    };
}

identifier! {
    /// `metadata.uid` of a pod.
    PodUid
}

identifier! {
    /// The runtime's id of a sandbox.
    SandboxId
}

identifier! {
    /// The runtime's id of a container, without the runtime's name before it.
    ContainerId
}

impl ContainerId {
    /// As the API shows it: `containerd://3f1c…`.
    #[must_use]
    pub fn with_runtime(&self, runtime_name: &str) -> String {
        format!("{runtime_name}://{}", self.0)
    }
}
