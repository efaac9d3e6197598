//! `KubeletConfiguration` v1beta1: its fields, defaults, reading, drop-ins and rules.
//!
//! Owns what a configuration file may contain and what it means. It is pure: it takes bytes and returns values or problems. It
//! must not open files, look at the machine or read feature gates from anywhere but its arguments.
//!
//! The order of the steps: `decode` (document to typed object, strict first) → `merge_drop_ins` → `apply_defaults` → `validate`.

mod decode;
mod defaults;
mod dropins;
mod logging;
mod nested;
mod paths;
mod problem;
mod schema;
mod types;
mod validation;

use rubelet_model::document::{self, node};

pub use decode::{
    DecodeErrors, Decoded, IgnoredPart, MAX_DOCUMENT_BYTES, MAX_DOCUMENT_NODES, Warning, decode,
};
pub use defaults::{
    DEFAULT_EVICTION_HARD, apply_defaults, apply_eviction_hard_defaults, apply_legacy_defaults,
    default_kubelet_configuration, legacy_kubelet_configuration,
};
pub use dropins::{DropIn, Merged, merge_drop_ins};
pub use logging::{
    DEFAULT_FLUSH_FREQUENCY, FlushFrequency, FormatOptions, LoggingConfiguration, OutputRoutingOptions,
    VModuleItem,
};
pub use nested::{
    CrashLoopBackOffConfig, KubeletAnonymousAuthentication, KubeletAuthentication, KubeletAuthorization,
    KubeletWebhookAuthentication, KubeletWebhookAuthorization, KubeletX509Authentication, MemoryReservation,
    MemorySwapConfiguration, ShutdownGracePeriodByPodPriority, StaticPodHeaders, Taint, Timestamp,
    TracingConfiguration, UserNamespaces,
};
pub use paths::{clean_path, resolve_relative_paths};
pub use problem::{Problem, list_problems};
pub use types::{API_VERSION, KIND, KubeletConfiguration};
pub use validation::{HostFacts, validate, validate_on_host};
