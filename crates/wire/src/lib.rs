//! Protobuf messages: the container runtime interface (CRI v1 as of Kubernetes 1.37), what containerd's API reports beyond it, the
//! Container Storage Interface, and the registration of plugins.
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

pub mod csi {
    //! The Container Storage Interface.

    pub mod v1 {
        //! Package `csi.v1`, without snapshots of groups. Messages and enums only; they have no `Debug`, because nearly every one can
        //! carry credentials.
        #![allow(unreachable_pub, clippy::all, reason = "generated code")]
        include!(concat!(env!("OUT_DIR"), "/csi.v1.rs"));
    }
}

pub mod plugin_registration {
    //! How a plugin registers at the node.

    pub mod v1 {
        //! Package `pluginregistration`. Messages only.
        #![allow(unreachable_pub, clippy::all, reason = "generated code")]
        include!(concat!(env!("OUT_DIR"), "/pluginregistration.rs"));
    }
}

mod redact;
mod state;
