//! Flags and KubeletConfiguration to one immutable `Settings` value.
//!
//! Owns what may be configured and how the sources are laid over each other. It must not do IO, read the environment or
//! keep anything global: files are read through the `load::Files` the caller gives.

pub mod flags;
pub mod gates;
pub mod kubelet_configuration;
pub mod load;
pub mod pending;
pub mod rubelet_configuration;
pub mod settings;
pub mod version;

pub use gates::{FeatureGates, Gate};
pub use kubelet_configuration::{HostFacts, KubeletConfiguration};
pub use load::{Files, Invocation, LoadError, LoadProblem, load};
pub use settings::{Settings, Warning};
