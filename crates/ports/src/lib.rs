//! Narrow, object-safe traits at the edges of the agent.
//!
//! Owns the shape of each edge and its errors; the adapters implement it, the actors and the program use it through
//! `Arc<dyn Trait>`. Every edge is cut in two: the **reading** half changes nothing on the node, the **writing** half may.
//! Code with reading halves only cannot change a pod, which is what a shadow run beside a live kubelet needs. A port must
//! not know any implementation of itself: no socket, no file, no executor. Actors meet each other here too: an actor that
//! serves others (images, events, the view of pods) implements a port, and the program joins them.

pub mod api;
pub mod cgroups;
pub mod clock;
pub mod cpu_profile;
pub mod credential_plugins;
pub mod csi;
pub mod dial;
pub mod disk;
pub mod events;
pub mod eviction;
pub mod files;
pub mod host_addresses;
pub mod http_fetch;
pub mod image;
pub mod image_provider;
pub mod log_files;
pub mod log_throttle;
pub mod memory_alarm;
pub mod memory_kills;
pub mod meters;
pub mod metrics_pages;
pub mod node_logs;
pub mod node_shutdown;
pub mod node_signals;
pub mod oom_log;
pub mod packet_filter;
pub mod plugins;
pub mod pod_objects;
pub mod pod_usage;
pub mod pod_view;
pub mod pods_to_run;
pub mod probe;
pub mod pull_progress;
pub mod reporting;
pub mod runtime;
pub mod runtime_error;
pub mod statistics;
pub mod tasks;
pub mod usage;
pub mod volume_host;
pub mod volumes;

pub use cgroups::{
    CgroupError, CgroupErrorKind, CgroupReader, CgroupWriter, NoPodCgroups, OwnProcess, PodCgroups,
    ProcessCgroupReader, ProcessCgroupWriter,
};
pub use clock::{Clock, Elapsed, Moment, Randomness, within};
pub use cpu_profile::{CpuProfiler, ProfileError};
pub use credential_plugins::{CredentialPlugins, PluginCall, PluginFailure};
pub use csi::{
    Confidential, CsiCode, CsiDriverFacts, CsiDrivers, CsiError, CsiErrorKind, CsiUsage, CsiVolumeStats,
    DriverChanges, ExpandVolume, PublishVolume, StageVolume, UnpublishVolume, UnstageVolume,
    VolumeAccessMode, VolumeAccessType, VolumeStatsQuestion,
};
pub use dial::{
    BODY_LIMIT_BYTES, ConnectError, Dialer, GrpcCall, GrpcHealth, HttpAnswer, HttpCall, HttpCallError,
    HttpPurpose, HttpScheme, PortError, TcpCall, container_port, host_and_port,
};
pub use disk::{DiskReader, DiskSubject};
pub use events::{EventRecorder, EventType, NoNodeEvents, NodeEvent, NodeEventRecorder, PodEvent};
pub use eviction::{EvictionFailure, FreedImages, PodEviction, PodEvictor, UnusedImages};
pub use files::{
    DirectoryEntry, FileError, FileErrorKind, FileKind, FileReader, FileWriter, Removal, Touched, WatchHint,
    WatchStream,
};
pub use host_addresses::{AddressError, AddressReader, HostAddresses, HostIps};
pub use http_fetch::{FetchError, HttpFetcher};
pub use image::{ImageReader, ImageWriter};
pub use image_provider::{ImageFailure, ImageProvider, ImageRequest, PresentImage};
pub use log_files::{FileIdentity, Growth, LogFileReader, LogFileWriter};
pub use log_throttle::LogThrottle;
pub use memory_alarm::{MemoryAlarm, MemoryMark, NoMemoryAlarm};
pub use memory_kills::{MemoryKills, NoMemoryKills};
pub use meters::Meters;
pub use metrics_pages::{MetricsPage, MetricsPages};
pub use node_logs::{FileContent, NodeLog, NodeLogFile, NodeLogReader};
pub use node_shutdown::{ShutdownConnection, ShutdownError, ShutdownLock, ShutdownNews, ShutdownService};
pub use node_signals::{NodeSignals, SignalError};
pub use oom_log::{OomLog, OomNews};
pub use plugins::{PluginHandler, PluginKind, PluginOffer};
pub use pod_objects::{ObjectFailure, PodCertificate, PodObjects, Token, TokenQuestion, TrustQuestion};
pub use pod_usage::{
    Aged, ContainerUsage, NoPodUsage, PodStorageReader, PodUsage, PodUsageReader, StorageQuestion,
    UsageExtent, VolumeUsage,
};
pub use pod_view::{NoAnswer, PodView};
pub use pods_to_run::PodsToRun;
pub use probe::{ProbeFigures, ProbeFiguresReader, ProbeKind, ProbeReading, ProbedPod, Prober};
pub use pull_progress::{Ingest, PullProgress};
pub use reporting::{NoReporter, PodReport, PodReporter};
pub use runtime::{EventStream, RuntimeReader, RuntimeWriter};
pub use runtime_error::{RuntimeError, RuntimeErrorKind};
pub use statistics::{NoSummary, NodeStatistics, PagePieces, SummaryExtent};
pub use tasks::Spawner;
pub use usage::{MachineReading, UsageQuestion, UsageReader, UsageReading};
pub use volume_host::{
    MountPoint, PodOnDisk, SubPathOnDisk, VolumeBatch, VolumeErrorKind, VolumeHostReader, VolumeHostWriter,
    VolumeOnDisk, VolumeStepError,
};
pub use volumes::{MountRequest, PodVolumes, VolumeFailure};
