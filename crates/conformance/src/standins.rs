//! Images under the names that the suite asks for, made from what this machine has: Debian's busybox and tools, the agnhost
//! program, and the project's test server. They do what the specs rely on, and nothing else.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use rubelet_testbed::cache::made_once;
use rubelet_testbed::images::{
    Image, ImageArchive, Layer, busybox_layer, test_server_program, with_debian_program,
};
use rubelet_testbed::programs::Program;

const PAUSE: &str = "registry.k8s.io/pause:3.10.2";
const REGISTRY: &str = "registry.k8s.io/e2e-test-images";
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Users and groups that specs name or expect an image to know.
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n\
                      user-defined-in-image:x:1000:1000:in group 50000 too:/home:/bin/sh\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\nuser-defined-in-image:x:1000:\n\
                     group-defined-in-image:x:50000:user-defined-in-image\n";

/// Debian's busybox has no `nmeter`; specs read the time of day with milliseconds from it and take the first line.
const NMETER: &str = "#!/bin/sh\nexec /usr/lib/stand-ins/date -u +%H:%M:%S.%3N\n";
/// A shell cannot be set-user-id, the program that it asks is.
const ESCALATION_PROBE: &str = "#!/bin/sh\necho \"Effective uid: $(/usr/lib/stand-ins/id -u)\"\n";
const WEB_SERVER: &str = "#!/bin/sh\necho $$ > /var/run/nginx.pid\nexec /usr/sbin/nginx pause\n";

/// Programs beside agnhost that specs run inside its image: where they look for it, and where it is on this machine.
const NETWORK_TOOLS: [(&str, &str); 6] = [
    ("bin/bash", "/bin/bash"),
    ("usr/bin/curl", "/usr/bin/curl"),
    ("usr/bin/nc", "/bin/nc.openbsd"),
    ("usr/bin/ip", "/bin/ip"),
    ("usr/bin/socat", "/usr/bin/socat"),
    ("usr/bin/dig", "/usr/bin/dig"),
];

/// Every image, in the order in which they are imported.
pub(super) fn archives() -> Result<Vec<ImageArchive>> {
    let server = test_server_program()?;
    let base = base()?;
    let pause = Image::new(PAUSE)
        .layer(Layer::new().host_file("pause", &server, 0o755))
        .entrypoint(&["/pause", "pause"]);
    let mut images = vec![
        pause,
        named("busybox:1.37.0-2").layer(base.clone()).command(&["sh"]),
    ];
    let tools = network_tools()?;
    for tag in ["2.66.1", "2.55"] {
        let image = named(&format!("agnhost:{tag}"))
            .layer(base.clone())
            .layer(tools.clone());
        images.push(image.entrypoint(&["/agnhost"]).command(&["pause"]));
    }
    let web = Layer::new()
        .host_file("usr/sbin/nginx", &server, 0o755)
        .file("web-server", WEB_SERVER, 0o755);
    for tag in ["1.27.0-2", "1.28.0-2"] {
        images.push(
            named(&format!("nginx:{tag}"))
                .layer(base.clone())
                .layer(web.clone())
                .command(&["/web-server"]),
        );
    }
    images.push(
        named("nonroot:1.5")
            .layer(base.clone())
            .user("1234")
            .command(&["sh"]),
    );
    images.push(
        named("nonewprivs:1.4")
            .layer(base.clone())
            .layer(escalation_probe()?)
            .command(&["nnp"]),
    );
    for (name, tools) in [
        (
            "ipc-utils:1.4",
            &[
                ("usr/bin/ipcs", "/usr/bin/ipcs"),
                ("usr/bin/ipcmk", "/usr/bin/ipcmk"),
                ("usr/bin/ipcrm", "/usr/bin/ipcrm"),
            ][..],
        ),
        ("perl:5.26", &[("usr/bin/perl", "/usr/bin/perl")][..]),
        (
            "glibc-dns-testing:2.1.1",
            &[
                ("usr/bin/dig", "/usr/bin/dig"),
                ("usr/bin/hostname", "/bin/hostname"),
            ][..],
        ),
    ] {
        images.push(
            named(name)
                .layer(base.clone())
                .layer(debian_tools(Layer::new(), tools)?)
                .command(&["sh"]),
        );
    }
    // Specs change one tag to another and expect another image, also where the content is the same.
    images
        .into_iter()
        .map(|image| distinct(image).archive())
        .collect()
}

fn named(name: &str) -> Image {
    Image::new(&format!("{REGISTRY}/{name}")).env("PATH", PATH)
}

fn distinct(image: Image) -> Image {
    let name = image.names().first().cloned().unwrap_or_default();
    image.label("stand-in-for", &name)
}

fn base() -> Result<Layer> {
    let layer = busybox_layer()?
        .file("etc/passwd", PASSWD, 0o644)
        .file("etc/group", GROUP, 0o644)
        .file("bin/nmeter", NMETER, 0o755);
    with_debian_program(layer, "usr/lib/stand-ins/date", Path::new("/bin/date"), 0o755)
}

fn network_tools() -> Result<Layer> {
    let agnhost = Program::Agnhost.path()?;
    let certificate = certificate()?;
    let layer = Layer::new()
        .host_file("agnhost", &agnhost, 0o755)
        .symlink("agnhost-2", "agnhost")
        .host_file("localhost.crt", &certificate.join("localhost.crt"), 0o644)
        .host_file("localhost.key", &certificate.join("localhost.key"), 0o644);
    debian_tools(layer, &NETWORK_TOOLS)
}

/// The directory of a certificate that servers in pods show; nobody checks it. Made once, so that the images stay the same.
fn certificate() -> Result<PathBuf> {
    made_once("conformance", "certificate", |dir| {
        let names = ["localhost", "127.0.0.1"].map(str::to_owned);
        let made = rcgen::generate_simple_self_signed(names).context("make a certificate")?;
        fs::create_dir(dir)?;
        fs::write(dir.join("localhost.crt"), made.cert.pem())?;
        fs::write(dir.join("localhost.key"), made.signing_key.serialize_pem())?;
        Ok(())
    })
}

fn escalation_probe() -> Result<Layer> {
    let layer = Layer::new().file("usr/local/bin/nnp", ESCALATION_PROBE, 0o755);
    with_debian_program(layer, "usr/lib/stand-ins/id", Path::new("/usr/bin/id"), 0o4755)
}

fn debian_tools(layer: Layer, tools: &[(&str, &str)]) -> Result<Layer> {
    tools.iter().try_fold(layer, |layer, (path, program)| {
        with_debian_program(layer, path, Path::new(program), 0o755)
    })
}
