//! containerd's configuration file, for both versions.

use std::path::{Path, PathBuf};

use crate::cni::{PLUGIN_DIR, PodNetwork};
use crate::images::PAUSE;

use super::OTHER_HANDLER;

/// What the file says, apart from what every private containerd has in common.
pub(super) struct Config<'a> {
    pub(super) dir: &'a Path,
    pub(super) network: &'a PodNetwork,
    pub(super) runc: PathBuf,
}

impl Config<'_> {
    fn path(&self, relative: &str) -> String {
        self.dir.join(relative).display().to_string()
    }

    fn common(&self, version: u32) -> String {
        // Plugins that write outside the containerd's own directory, want a device, or wait for a network.
        let disabled = [
            "io.containerd.snapshotter.v1.aufs",
            "io.containerd.snapshotter.v1.blockfile",
            "io.containerd.snapshotter.v1.btrfs",
            "io.containerd.snapshotter.v1.devmapper",
            "io.containerd.snapshotter.v1.erofs",
            "io.containerd.snapshotter.v1.zfs",
            "io.containerd.internal.v1.opt",
            "io.containerd.internal.v1.tracing",
            "io.containerd.tracing.processor.v1.otlp",
            "io.containerd.nri.v1.nri",
        ];
        format!(
            "version = {version}\nroot = {:?}\nstate = {:?}\ntemp = {:?}\ndisabled_plugins = {disabled:?}\n\n\
             [grpc]\naddress = {:?}\n\n[ttrpc]\naddress = {:?}\n\n",
            self.path("root"),
            self.path("state"),
            self.path("tmp"),
            self.path("c.sock"),
            self.path("c.sock.ttrpc"),
        )
    }

    /// The default handler and another one, which is the same runc with a directory of its own: Debian's crun refuses to
    /// work where cgroup versions are mixed.
    fn runtimes(&self, plugin: &str, shim: Option<&Path>) -> String {
        let shim = shim
            .map(|path| format!("runtime_path = {:?}\n", path.display().to_string()))
            .unwrap_or_default();
        let runc = self.runc.display().to_string();
        let section = |handler: &str| {
            format!(
                "[plugins.{plugin:?}.containerd.runtimes.{handler}]\n\
                 runtime_type = \"io.containerd.runc.v2\"\n{shim}\n\
                 [plugins.{plugin:?}.containerd.runtimes.{handler}.options]\n\
                 BinaryName = {runc:?}\nRoot = {:?}\nSystemdCgroup = false\n\n",
                self.path(handler),
            )
        };
        section("runc") + &section(OTHER_HANDLER)
    }

    /// Debian's 1.6.
    pub(super) fn version_2(&self) -> String {
        let plugin = "io.containerd.grpc.v1.cri";
        let mut text = self.common(2);
        text += &format!(
            "[plugins.{plugin:?}]\nsandbox_image = {PAUSE:?}\nrestrict_oom_score_adj = true\n\
             netns_mounts_under_state_dir = true\nenable_unprivileged_ports = true\nenable_unprivileged_icmp = true\n\n\
             [plugins.{plugin:?}.cni]\nbin_dir = {PLUGIN_DIR:?}\nconf_dir = {:?}\n\n\
             [plugins.{plugin:?}.registry]\nconfig_path = {:?}\n\n\
             [plugins.{plugin:?}.containerd]\nsnapshotter = \"overlayfs\"\n\n",
            self.network.conf_dir().display().to_string(),
            self.path("hosts"),
        );
        text + &self.runtimes(plugin, None)
    }

    /// containerd 2.
    pub(super) fn version_3(&self, shim: &Path) -> String {
        let (runtime, images) = ("io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images");
        let mut text = self.common(3);
        text += &format!(
            "[plugins.{images:?}]\nsnapshotter = \"overlayfs\"\n\n\
             [plugins.{images:?}.pinned_images]\nsandbox = {PAUSE:?}\n\n\
             [plugins.{images:?}.registry]\nconfig_path = {:?}\n\n\
             [plugins.{runtime:?}]\nrestrict_oom_score_adj = true\nnetns_mounts_under_state_dir = true\n\
             cdi_spec_dirs = [{:?}]\n\n\
             [plugins.{runtime:?}.cni]\nbin_dirs = [{PLUGIN_DIR:?}]\nconf_dir = {:?}\nuse_internal_loopback = true\n\n\
             [plugins.\"io.containerd.shim.v1.manager\"]\nsocket_dir = {:?}\n\n",
            self.path("hosts"),
            self.path("cdi"),
            self.network.conf_dir().display().to_string(),
            self.path("s"),
        );
        text + &self.runtimes(runtime, Some(shim))
    }
}
