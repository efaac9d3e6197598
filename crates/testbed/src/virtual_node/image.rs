//! Makes the virtual node's disk: Debian packages of the host's own release from the host's own package sources, and the
//! files of `testbed/virtual-node`. Made once per recipe, kept in the test bed's cache, and never written to by a node.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use super::files::{copy_tree, list_files};
use crate::cache::made_once;
use crate::process::{spawn_dying_with_us, tail};
use crate::workspace_root;

/// To be raised when the steps below change what comes out.
const STEPS_VERSION: u32 = 1;
/// What the disk can grow to; the file has holes, so that only what is used takes space.
const DISK_BYTES: u64 = 8 << 30;
const ENABLED_UNITS: [&str; 7] = [
    "containerd.service",
    "containerd-forward.socket",
    "node-agent.socket",
    "node-network.service",
    "node-ready.service",
    "node-share.service",
    "node-swap.service",
];
/// Nobody logs in, there is nothing to clean up, back up or scan, and tests bring profiles of their own: each of these costs a second or more
/// of emulated boot.
const MASKED_UNITS: [&str; 15] = [
    "apparmor.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty@tty1.service",
    "modprobe@configfs.service",
    "modprobe@dm_mod.service",
    "modprobe@drm.service",
    "modprobe@efi_pstore.service",
    "modprobe@fuse.service",
    "modprobe@loop.service",
    "serial-getty@ttyS0.service",
    "systemd-pstore.service",
    "systemd-update-utmp.service",
];
/// Nobody reads these in the guest.
const EXCLUDED_PATHS: [&str; 3] = ["/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*"];
/// Settings of the host's apt without which it cannot reach its sources.
const APT_SETTINGS: [&str; 4] = [
    "Acquire::http",
    "Acquire::https",
    "Acquire::Check-Valid-Until",
    "Acquire::ForceIPv",
];

pub(super) struct Image {
    pub(super) disk: PathBuf,
    pub(super) kernel: PathBuf,
}

/// The image, made first if need be.
pub(super) fn image() -> Result<Image> {
    let dir = made_once(&format!("virtual-node-{}", recipe_key()?), "image", make)?;
    Ok(Image {
        disk: dir.join("disk.raw"),
        kernel: dir.join("vmlinuz"),
    })
}

fn recipe_dir() -> PathBuf {
    workspace_root().join("testbed/virtual-node")
}

/// Changes with everything the image is made from.
fn recipe_key() -> Result<String> {
    let mut hash = Sha256::new();
    let lists = [&ENABLED_UNITS[..], &MASKED_UNITS, &EXCLUDED_PATHS];
    hash.update(format!("{STEPS_VERSION} {DISK_BYTES} {} {lists:?}", suite()?));
    for (path, mode) in list_files(&recipe_dir())? {
        let bytes = fs::read(recipe_dir().join(&path)).with_context(|| format!("read {}", path.display()))?;
        hash.update(format!("\n{} {mode:o} {}\n", path.display(), bytes.len()));
        hash.update(&bytes);
    }
    Ok(hash
        .finalize()
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

fn make(out: &Path) -> Result<()> {
    let work = out.join("work");
    let root = work.join("root");
    fs::create_dir_all(&work).with_context(|| format!("create {}", work.display()))?;
    step("1/3 install Debian's packages (a minute)", || {
        install_packages(&work, &root)
    })?;
    step("2/3 put the node's own files in place", || configure(&root))?;
    step("3/3 write the disk", || {
        fs::copy(kernel_of(&root)?, out.join("vmlinuz")).context("copy the kernel")?;
        write_disk(&root, &out.join("disk.raw"))
    })?;
    fs::remove_dir_all(&work).context("remove the image's working directory")
}

fn step(what: &str, action: impl FnOnce() -> Result<()>) -> Result<()> {
    eprintln!("test bed: virtual node: {what} …");
    let start = Instant::now();
    action().with_context(|| format!("virtual node image: {what}"))?;
    eprintln!("test bed: virtual node: {what}: {} s", start.elapsed().as_secs());
    Ok(())
}

fn install_packages(work: &Path, root: &Path) -> Result<()> {
    let mut sources = package_sources(Path::new("/etc/apt"), &suite()?)?;
    // Its own mount and process namespaces: a build that is killed takes its mounts and children along.
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--propagation",
        "private",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    command.args([
        "mmdebstrap",
        "--mode=root",
        "--variant=essential",
        "--dpkgopt=force-unsafe-io",
    ]);
    command.arg(format!(
        "--include={}",
        listed(&recipe_dir().join("packages.txt"))?.join(",")
    ));
    command.args(EXCLUDED_PATHS.map(|path| format!("--dpkgopt=path-exclude={path}")));
    let apt_settings = apt_settings()?;
    if !apt_settings.is_empty() {
        fs::write(work.join("apt.conf"), apt_settings)?;
        command.arg(format!("--aptopt={}", work.join("apt.conf").display()));
    }
    command.arg(suite()?).arg(root).args(sources.drain(..));
    let log = work.join("mmdebstrap.log");
    let output = File::create(&log)?;
    command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output);
    let status = spawn_dying_with_us(command)?.wait()?;
    ensure!(
        status.success(),
        "mmdebstrap failed; its last words:\n{}",
        tail(&log, 20)
    );
    Ok(())
}

fn configure(root: &Path) -> Result<()> {
    copy_tree(&recipe_dir().join("rootfs"), root)?;
    // Where packages came from is the host's business.
    for host_setting in ["etc/apt/apt.conf.d/99mmdebstrap", "etc/apt/sources.list"] {
        let _ = fs::remove_file(root.join(host_setting));
    }
    for entry in fs::read_dir(root.join("etc/apt/sources.list.d"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let _ = fs::remove_file(entry.path());
    }
    let systemctl = |verb: &str, units: &[&str]| {
        run(Command::new("chroot")
            .arg(root)
            .args(["systemctl", "--quiet", verb])
            .args(units))
    };
    systemctl("enable", &ENABLED_UNITS)?;
    systemctl("mask", &MASKED_UNITS)
}

fn kernel_of(root: &Path) -> Result<PathBuf> {
    let boot = fs::read_dir(root.join("boot")).context("list the image's boot directory")?;
    let mut kernels = boot
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("vmlinuz-"));
    Ok(kernels.next().context("the image has no kernel")?.path())
}

fn write_disk(root: &Path, disk: &Path) -> Result<()> {
    File::create(disk)?.set_len(DISK_BYTES)?;
    run(Command::new("mke2fs")
        .args(["-q", "-t", "ext4", "-E", "lazy_itable_init=1"])
        .arg("-d")
        .arg(root)
        .arg(disk))
}

/// Runs a program of the host to its end; its words are told only if it fails.
pub(super) fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| {
        format!("run {program}; the packages of testbed/packages/e2e.txt must be installed")
    })?;
    if !output.status.success() {
        bail!(
            "{program} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// The release whose packages the host uses.
fn suite() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("read /etc/os-release")?;
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name
        .context("/etc/os-release names no release")?
        .trim_matches('"')
        .to_owned())
}

/// The host's source lists that serve the release.
fn package_sources(apt_dir: &Path, suite: &str) -> Result<Vec<PathBuf>> {
    let mut candidates = vec![apt_dir.join("sources.list")];
    let parts = fs::read_dir(apt_dir.join("sources.list.d"))
        .into_iter()
        .flatten()
        .flatten();
    candidates.extend(parts.map(|entry| entry.path()));
    candidates.retain(|path| {
        let is_list = path
            .extension()
            .is_some_and(|extension| extension == "list" || extension == "sources");
        is_list && fs::read_to_string(path).is_ok_and(|text| serves(&text, suite))
    });
    candidates.sort();
    ensure!(
        !candidates.is_empty(),
        "no package source of this machine serves {suite}"
    );
    Ok(candidates)
}

fn serves(source_list: &str, suite: &str) -> bool {
    let live = source_list
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    live.flat_map(str::split_whitespace).any(|word| word == suite)
}

fn apt_settings() -> Result<String> {
    let output = Command::new("apt-config")
        .arg("dump")
        .output()
        .context("run apt-config")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let wanted = text
        .lines()
        .filter(|line| APT_SETTINGS.iter().any(|setting| line.starts_with(setting)));
    Ok(wanted.map(|line| format!("{line}\n")).collect())
}

/// The lines of a list that are not comments.
fn listed(path: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_list_serves_the_releases_it_names() {
        fn check(list: &str, serves_bookworm: bool) {
            assert_eq!(serves(list, "bookworm"), serves_bookworm, "{list}");
        }
        check("deb https://example.test/debian bookworm main", true);
        check(
            "Types: deb\nURIs: https://example.test/debian\nSuites: bookworm bookworm-updates\n",
            true,
        );
        check("Suites: bookworm-security", false);
        check("# deb https://example.test/debian bookworm main", false);
        check("deb https://example.test/debian nodistro main", false);
        check("", false);
    }

    #[test]
    fn the_key_is_stable_and_every_enabled_unit_is_in_the_recipe() {
        assert_eq!(recipe_key().unwrap(), recipe_key().unwrap());
        let units = recipe_dir().join("rootfs/etc/systemd/system");
        for unit in ENABLED_UNITS.iter().filter(|unit| **unit != "containerd.service") {
            assert!(units.join(unit).exists(), "{unit}");
        }
    }

    #[test]
    fn lists_skip_comments() {
        assert!(
            listed(&recipe_dir().join("packages.txt"))
                .unwrap()
                .iter()
                .all(|name| !name.contains([' ', '#']))
        );
    }
}
