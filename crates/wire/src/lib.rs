//! Protobuf messages of the container runtime interface (CRI v1 as of Kubernetes 1.37), and those of containerd's API that report more than the CRI.
//!
//! Owns the message types, `Debug` output that never shows a secret, and the safe reading of states this build does not
//! know. It must not know how messages travel: no client, no server, no socket, no clock.

pub mod cri {
    //! The container runtime interface.

    pub mod v1 {
        //! Package `runtime.v1`. Messages and enums only; the calls are the traits of `rubelet-ports`.
        #![allow(
            deprecated,
            unreachable_pub,
            clippy::all,
            reason = "generated code; deprecated fields are part of the wire format"
        )]
        include!(concat!(env!("OUT_DIR"), "/runtime.v1.rs"));
    }

    /// The interface's version in package names and in messages to users.
    pub const API_VERSION: &str = "v1";

    /// What upstream's client sends as its own version in `Version`.
    pub const CLIENT_VERSION: &str = "0.1.0";

    /// The condition of a runtime that can start containers.
    pub const RUNTIME_READY: &str = "RuntimeReady";

    /// The condition of a runtime whose pods get a network.
    pub const NETWORK_READY: &str = "NetworkReady";
}

pub mod containerd {
    //! The parts of containerd's own API that are used beside the CRI.

    pub mod content {
        //! Package `containerd.services.content.v1`, as far as it is needed. Messages only.
        #![allow(unreachable_pub, clippy::all, reason = "generated code")]
        include!(concat!(env!("OUT_DIR"), "/containerd.services.content.v1.rs"));
    }

    /// The namespace that holds everything that comes through the CRI.
    pub const CRI_NAMESPACE: &str = "k8s.io";

    /// The header that names it.
    pub const NAMESPACE_HEADER: &str = "containerd-namespace";
}

mod redact;
mod state;
