//! Compiles the wire facts to Rust types, with neither protoc nor a network.

/// Messages that hold secrets or text of unknown content: their `Debug` is written by hand in `src/redact.rs`.
const REDACTED: &[&str] = &[
    // Nearly every message of CSI has secrets, contexts or flags with credentials: none can be printed.
    ".csi.v1",
    ".runtime.v1.AttachResponse",
    ".runtime.v1.AuthConfig",
    ".runtime.v1.ContainerStatusResponse",
    ".runtime.v1.ExecResponse",
    ".runtime.v1.ExecSyncResponse",
    ".runtime.v1.ImageStatusResponse",
    ".runtime.v1.KeyValue",
    ".runtime.v1.PodSandboxStatusResponse",
    ".runtime.v1.PortForwardResponse",
    ".runtime.v1.StatusResponse",
    ".runtime.v1.WindowsContainerSecurityContext",
    ".runtime.v1.WindowsSandboxSecurityContext",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = [
        "cri/v1.proto",
        "containerd/content.proto",
        "csi/v1.proto",
        "pluginregistration/v1.proto",
    ];
    let facts = protox::compile(files, ["proto"])?;
    prost_build::Config::new()
        .btree_map(["."])
        .skip_debug(REDACTED)
        .compile_fds(facts)?;
    Ok(())
}
