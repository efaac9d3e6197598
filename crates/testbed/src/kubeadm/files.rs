//! File systems of a node's own: the directories that kubeadm and the kubelet fix are private to the scope, so that a cluster can be made
//! beside an installation of the machine's.
//!
//! They are in a mount namespace that one process of the test holds. The runtime, the kubelet and kubeadm enter it; it goes, with every
//! mount in it, when the last of them has ended.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::node_network::NodeNetwork;
use crate::process::Process;
use crate::scope::Scope;
use crate::wait::wait_for;

const DEADLINE: Duration = Duration::from_secs(30);
/// The directories that kubeadm puts its files into, and their place below [`NodeFiles::on_machine`].
const KEPT: &str = "/etc/kubernetes /var/lib/kubelet /var/lib/etcd /var/log/pods";

/// Directories whose other content is needed get a layer of their own above it; the others are empty at first. Without the machine's `/run`
/// there is no service manager. The node knows its own name, and no name server but one that is not there. Mounts are shared inside, as
/// service managers have it.
const MOUNTS: &str = r#"set -e
dir=$1
for layered in /etc /usr/libexec; do
    mkdir -p "$dir/layers$layered/upper" "$dir/layers$layered/work"
    mount -t overlay -o "lowerdir=$layered,upperdir=$dir/layers$layered/upper,workdir=$dir/layers$layered/work" overlay "$layered"
done
for empty in /run /var/lib /var/log; do
    mount -t tmpfs -o mode=755 tmpfs "$empty"
done
for kept in $2; do
    mkdir -p "$kept" "$dir/kept$kept"
    mount --bind "$dir/kept$kept" "$kept"
done
echo "$3" >> /etc/hosts
rm -f /etc/resolv.conf
echo "nameserver $4" > /etc/resolv.conf
mount --make-rshared /
touch "$dir/ready"
exec sleep infinity"#;

/// The file systems, as long as this value lives.
pub(super) struct NodeFiles {
    dir: PathBuf,
    holder: Process,
}

impl NodeFiles {
    /// Mounts everything, for a node with this name in this network.
    pub(super) fn create(scope: &Scope, node_name: &str, network: &NodeNetwork) -> Result<Self> {
        let dir = scope.path("files");
        fs::create_dir(&dir)?;
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "private", "sh", "-c", MOUNTS, "sh"])
            .arg(&dir)
            .arg(KEPT)
            .arg(format!("{} {node_name}", network.address()))
            .arg(network.gateway().to_string());
        let mut files = Self {
            holder: scope.spawn("files", command)?,
            dir,
        };
        wait_for("the node's directories are mounted", DEADLINE, || {
            files.holder.check_running()?;
            ensure!(files.dir.join("ready").exists(), "not yet");
            Ok(())
        })?;
        Ok(files)
    }

    /// The mount namespace.
    pub(super) fn namespace(&self) -> PathBuf {
        format!("/proc/{}/ns/mnt", self.holder.pid()).into()
    }

    /// The mount points that the node sees.
    pub(super) fn mount_points(&self) -> Result<Vec<PathBuf>> {
        let table = format!("/proc/{}/mountinfo", self.holder.pid());
        let table = fs::read_to_string(&table).with_context(|| format!("read {table}"))?;
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        Ok(points.map(PathBuf::from).collect())
    }

    /// Where the machine finds one of the kept directories, or a file in it.
    pub(super) fn on_machine(&self, path: &str) -> PathBuf {
        self.dir.join("kept").join(path.trim_start_matches('/'))
    }
}
