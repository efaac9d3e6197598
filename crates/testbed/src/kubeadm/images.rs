//! The images that kubeadm asks for, made of the test bed's own programs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::images::{Image, ImageArchive, Layer, with_debian_program};
use crate::programs::{COREDNS, KUBERNETES, Program, module_version};

/// What stands before the images' names in kubeadm's configuration.
pub(super) const REPOSITORY: &str = "rubelet.test/kubeadm";
/// The tag that this kubeadm gives to etcd's image.
const ETCD_TAG: &str = "3.7.0-0";
const PATH: &str = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// All of Debian's packet filter commands are one program.
const PACKET_FILTER: &str = "/usr/sbin/xtables-nft-multi";
const PACKET_FILTER_COMMANDS: [&str; 6] = [
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
];
/// Where the image has the modules of the packet filter commands.
const PACKET_FILTER_MODULES: &str = "/usr/lib/xtables";

/// The version of Kubernetes, as in `v1.37.1`.
pub(super) fn kubernetes_version() -> Result<String> {
    module_version(KUBERNETES)
}

/// Every image of a cluster with one node; made ahead, they make `kubeadm init` quick.
pub fn archives() -> Result<Vec<ImageArchive>> {
    let kubernetes = kubernetes_version()?;
    let images = [
        program("kube-apiserver", &kubernetes, Program::KubeApiserver)?,
        program(
            "kube-controller-manager",
            &kubernetes,
            Program::KubeControllerManager,
        )?,
        program("kube-scheduler", &kubernetes, Program::KubeScheduler)?,
        program("etcd", ETCD_TAG, Program::Etcd)?,
        program("kube-proxy", &kubernetes, Program::KubeProxy)?
            .layer(packet_filter()?)
            .env("XTABLES_LIBDIR", PACKET_FILTER_MODULES),
        program("coredns", &module_version(COREDNS)?, Program::CoreDns)?
            .entrypoint(&["/usr/local/bin/coredns"]),
    ];
    images.iter().map(Image::archive).collect()
}

fn program(name: &str, tag: &str, program: Program) -> Result<Image> {
    let layer = Layer::new()
        .host_file(&format!("usr/local/bin/{name}"), &program.path()?, 0o755)
        .directory("tmp", 0o1777);
    Ok(Image::new(&format!("{REPOSITORY}/{name}:{tag}"))
        .layer(layer)
        .env("PATH", PATH))
}

fn packet_filter() -> Result<Layer> {
    let name = "usr/sbin/xtables-nft-multi";
    let mut layer = with_debian_program(Layer::new(), name, Path::new(PACKET_FILTER), 0o755)?;
    for command in PACKET_FILTER_COMMANDS {
        layer = layer.symlink(&format!("usr/sbin/{command}"), "xtables-nft-multi");
    }
    let modules = format!("/usr/lib/{}-linux-gnu/xtables", std::env::consts::ARCH);
    let mut found = 0;
    for entry in fs::read_dir(&modules).with_context(|| format!("list {modules}"))? {
        let path = entry?.path();
        let Some(file) = path.file_name().and_then(|file| file.to_str()) else {
            continue;
        };
        layer = with_debian_program(layer, &format!("{PACKET_FILTER_MODULES}/{file}"), &path, 0o644)?;
        found += 1;
    }
    ensure!(found > 0, "{modules} is empty: install Debian's iptables");
    Ok(layer)
}
