//! The columns of the flag table.

/// One flag.
#[derive(Debug, Clone, Copy)]
pub struct Definition {
    pub name: &'static str,
    pub shorthand: Option<char>,
    pub kind: Kind,
    pub target: Target,
    pub deprecation: Deprecation,
    pub section: Section,
    pub help: &'static str,
}

impl Definition {
    /// The warning for a use of the flag, when the flag is deprecated.
    #[must_use]
    pub fn deprecation_warning(&self) -> Option<String> {
        let advice = match (self.deprecation, self.target) {
            (Deprecation::None, _) => return None,
            (Deprecation::Because(reason), _) => reason.to_owned(),
            (Deprecation::UseConfigFile, Target::Config(path)) => {
                format!("set {path} in the file given by --config instead")
            }
            (Deprecation::UseConfigFile, Target::Own(_)) => {
                "use the file given by --config instead".to_owned()
            }
        };
        Some(format!("Flag --{} has been deprecated, {advice}", self.name))
    }
}

/// How a flag's text is read, and whether a second use replaces or adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The only kind that takes no value of its own: `--x` means true, `--x=false` is false, `--x false` is an argument.
    Bool,
    Text,
    Int32,
    Int64,
    Duration,
    /// An empty text leaves the value as it is.
    Ip,
    /// Comma-separated with CSV quoting; later uses add.
    List,
    /// `key=value` pairs separated by commas; later uses add.
    StringMap,
    /// A single `key=value` whose value may hold commas; later uses add.
    OnePair,
    /// `key=value` or a bare `key`; later uses add.
    Labels,
    /// `signal<amount` pairs; later uses add.
    Thresholds,
    /// `Name=true|false` pairs; later uses add.
    BoolMap,
    /// `name:value` pairs, a name may repeat; later uses add.
    Headers,
    /// `node:type=amount[,type=amount]`, nodes separated by `;`; later uses add.
    ReservedMemory,
    /// `key=value:effect` separated by commas; a later use replaces.
    Taints,
    /// Log level.
    Level,
    /// `pattern=N` pairs; always adds, also to the values of a file.
    VModule,
    Quantity,
    /// `true`, `raw` or a version.
    Version,
}

impl Kind {
    /// The value of a use without `=value`, for flags that need none.
    #[must_use]
    pub const fn bare_value(self) -> Option<&'static str> {
        match self {
            Self::Bool | Self::Version => Some("true"),
            _ => None,
        }
    }

    /// The type's name in upstream's help.
    #[must_use]
    pub const fn type_name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Text => "string",
            Self::Int32 => "int32",
            Self::Int64 => "int",
            Self::Duration => "duration",
            Self::Ip => "ip",
            Self::List => "strings",
            Self::StringMap | Self::OnePair | Self::Labels | Self::Thresholds => "mapStringString",
            Self::BoolMap => "mapStringBool",
            Self::Headers => "colonSeparatedMultimapStringString",
            Self::ReservedMemory => "reserved-memory",
            Self::Taints => "[]v1.Taint",
            Self::Level => "Level",
            Self::VModule => "pattern=N,...",
            Self::Quantity => "quantity",
            Self::Version => "version",
        }
    }
}

/// What a flag sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A field of `KubeletConfiguration`, by its path in JSON.
    Config(&'static str),
    /// A setting that only exists on the command line.
    Own(OwnFlag),
}

/// The settings that are not part of `KubeletConfiguration`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnFlag {
    Help,
    Version,
    RootDir,
    LockFile,
    ExitOnLockContention,
    HousekeepingInterval,
    Config,
    ConfigDir,
    RubeletConfig,
    Kubeconfig,
    BootstrapKubeconfig,
    HostnameOverride,
    NodeIp,
    NodeLabels,
    CloudProvider,
    RuntimeCgroups,
    SeccompDefault,
    ImageCredentialProviderConfig,
    ImageCredentialProviderBinDir,
    CertDir,
    MinimumContainerTtl,
    MaximumDeadContainersPerContainer,
    MaximumDeadContainers,
    ExperimentalMounterPath,
    ExperimentalAllocatableIgnoreEviction,
}

/// Whether a flag is on its way out, and what to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deprecation {
    None,
    /// The same setting exists in the configuration file.
    UseConfigFile,
    /// Some other reason, as text that follows "has been deprecated,".
    Because(&'static str),
}

/// The heading a flag is listed under in the help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    General,
    Config,
    Node,
    Runtime,
    Pods,
    Network,
    Images,
    Server,
    Auth,
    Tls,
    Resources,
    Eviction,
    Volumes,
    Logging,
    Deprecated,
}

impl Section {
    pub(super) const ALL: [Self; 15] = [
        Self::General,
        Self::Config,
        Self::Node,
        Self::Runtime,
        Self::Pods,
        Self::Network,
        Self::Images,
        Self::Server,
        Self::Auth,
        Self::Tls,
        Self::Resources,
        Self::Eviction,
        Self::Volumes,
        Self::Logging,
        Self::Deprecated,
    ];

    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::General => "General",
            Self::Config => "Configuration files",
            Self::Node => "Node and API server",
            Self::Runtime => "Container runtime",
            Self::Pods => "Pods",
            Self::Network => "Network",
            Self::Images => "Images",
            Self::Server => "HTTP server",
            Self::Auth => "Authentication and authorization",
            Self::Tls => "Certificates",
            Self::Resources => "Resources",
            Self::Eviction => "Eviction and local storage",
            Self::Volumes => "Volumes",
            Self::Logging => "Logging",
            Self::Deprecated => "On their way out",
        }
    }
}
