//! Plugins that register at the node by a socket of theirs: drivers of storage and of devices.
//!
//! Owns what a plugin says about itself and the edge between the one that watches the sockets and those that use the plugins. Which
//! versions fit and what a registration does is the handler's; when to try again is the watcher's.

use std::path::PathBuf;

use async_trait::async_trait;

/// What a plugin is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PluginKind {
    Csi,
    Device,
    Dra,
}

impl PluginKind {
    pub const ALL: [Self; 3] = [Self::Csi, Self::Device, Self::Dra];

    /// As plugins spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Csi => "CSIPlugin",
            Self::Device => "DevicePlugin",
            Self::Dra => "DRAPlugin",
        }
    }

    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A plugin that wants to be registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginOffer {
    pub kind: PluginKind,
    /// The name of the driver or of the resource.
    pub name: String,
    /// The socket in `plugins_registry` that it registers with.
    pub socket: PathBuf,
    /// The socket that it serves at; often the same.
    pub endpoint: PathBuf,
    pub versions: Vec<String>,
}

/// Uses the plugins of one kind. Calls for one socket never overlap; calls for different sockets may, also when both plugins
/// have one name.
#[async_trait]
pub trait PluginHandler: Send + Sync {
    /// Whether the plugin may be registered; otherwise why not, which the plugin gets as an answer.
    fn validate(&self, offer: &PluginOffer) -> Result<(), String>;

    /// Takes the plugin into use, in place of what the same socket has registered before: a plugin that was restarted is
    /// registered again without a [`Self::deregister`] between.
    async fn register(&self, offer: &PluginOffer) -> Result<(), String>;

    /// The plugin is gone. The offer is the one that was registered: a plugin of its name at another socket is not meant.
    async fn deregister(&self, offer: &PluginOffer);
}
