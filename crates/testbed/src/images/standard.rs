//! The images that most tests use.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Image, ImageArchive, Layer, test_server_program};

/// A shell and the usual tools.
pub const BUSYBOX: &str = "rubelet.test/busybox:1";
/// The process that holds a pod's namespaces.
pub const PAUSE: &str = "rubelet.test/pause:1";
/// The test server of this project; `server` on the path, serving on port 8080 unless told otherwise.
pub const SERVER: &str = "rubelet.test/server:1";

const BUSYBOX_PROGRAM: &str = "/bin/busybox";
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n\
                      tester:x:1000:1000:tester:/home:/bin/sh\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\ntester:x:1000:\nhelpers:x:1100:tester\n";

/// Debian's busybox with all its applets.
pub fn busybox() -> Result<ImageArchive> {
    let image = Image::new(BUSYBOX).layer(busybox_layer()?).command(&["sh"]);
    image
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .archive()
}

/// The file system of the busybox image, to build others upon.
pub fn busybox_layer() -> Result<Layer> {
    let mut layer = Layer::new()
        .host_file("bin/busybox", Path::new(BUSYBOX_PROGRAM), 0o755)
        .directory("tmp", 0o1777)
        .directory("root", 0o700)
        .directory("var/run", 0o755)
        .directory("home", 0o755)
        .file("etc/passwd", PASSWD, 0o644)
        .file("etc/group", GROUP, 0o644)
        .file("etc/nsswitch.conf", "hosts: files dns\n", 0o644);
    for directory in ["dev", "proc", "sys", "usr/bin", "usr/sbin", "sbin"] {
        layer = layer.directory(directory, 0o755);
    }
    for applet in applets()? {
        layer = layer.symlink(&format!("bin/{applet}"), "busybox");
    }
    // Where scripts that name a full path look for them.
    Ok(layer.symlink("usr/bin/env", "../../bin/busybox"))
}

fn applets() -> Result<Vec<String>> {
    let output = Command::new(BUSYBOX_PROGRAM)
        .arg("--list")
        .output()
        .context("run busybox (Debian's busybox-static)")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let applets: Vec<String> = text
        .lines()
        .filter(|name| *name != "busybox")
        .map(str::to_owned)
        .collect();
    ensure!(
        applets.iter().any(|applet| applet == "sh"),
        "{BUSYBOX_PROGRAM} has no shell"
    );
    Ok(applets)
}

/// The test server as process 1 that holds namespaces, reaps orphans and ends on SIGTERM.
pub fn pause() -> Result<ImageArchive> {
    let layer = Layer::new().host_file("pause", &test_server_program()?, 0o755);
    Image::new(PAUSE)
        .layer(layer)
        .entrypoint(&["/pause", "pause"])
        .archive()
}

/// The test server beside the busybox tools.
pub fn server() -> Result<ImageArchive> {
    let layer = Layer::new().host_file("bin/server", &test_server_program()?, 0o755);
    Image::new(SERVER)
        .layer(busybox_layer()?)
        .layer(layer)
        .entrypoint(&["/bin/server"])
        .env("PATH", "/bin")
        .exposed_port("8080/tcp")
        .archive()
}
