//! The image actor with a real containerd, a real registry and real files.

mod faults;
mod garbage;
mod proxy;
mod registry;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rubelet_cri::CriClient;
use rubelet_fakes::PodEvents;
use rubelet_host::{HostClock, HostFiles, TokioSpawner};
use rubelet_images::{
    CredentialProviders, CredentialSources, Images, ImagesSettings, NodeDockerConfig, PullBackoffLimits,
    PullRecords, RecordsPorts, VerificationPolicy,
};
use rubelet_ports::{ImageFailure, ImageProvider as _, ImageRequest, PresentImage};
use rubelet_testbed::Scope;
use rubelet_testbed::bare_pod::connect;
use rubelet_testbed::containerd::{Containerd, Flavour};
use rubelet_wire::cri::v1;
use tokio::runtime::Handle;
use tracing::Dispatch;
use tracing::subscriber::{DefaultGuard, NoSubscriber};
use tracing_subscriber::fmt::MakeWriter;

use crate::edges::FakeObjects;
pub(crate) use crate::small_disk::unique_image;

/// Far beyond what anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// What this thread logs, at whatever level.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Log {
    /// Until the guard is dropped.
    pub(crate) fn keep(&self) -> (Dispatch, DefaultGuard) {
        // With a single dispatcher tracing asks the thread that happens to meet an event first, which may be another test's.
        let second = Dispatch::new(NoSubscriber::default());
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(self.clone())
            .finish();
        (second, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

/// A node with its own containerd.
pub(crate) struct Node {
    pub(crate) objects: Arc<FakeObjects>,
    pub(crate) cri: Arc<CriClient>,
    pub(crate) events: Arc<PodEvents>,
    pub(crate) containerd: Containerd,
    pub(crate) root_dir: PathBuf,
    pub(crate) scope: Scope,
}

impl Node {
    pub(crate) async fn start(name: &str, flavour: Flavour) -> Result<Self> {
        let scope = Scope::new(name)?;
        let containerd = Containerd::start(&scope, flavour)?;
        let cri = Arc::new(connect(&containerd).await?);
        let root_dir = scope.path("root-dir");
        std::fs::create_dir(&root_dir)?;
        Ok(Self {
            objects: Arc::default(),
            cri,
            events: Arc::default(),
            containerd,
            root_dir,
            scope,
        })
    }

    /// The agent's images, as after a start of it. Other pulls go on while one does, and a failed one may be tried again at once.
    pub(crate) fn images(&self, providers: Option<CredentialProviders>) -> Result<Arc<Images>> {
        let clock = Arc::new(HostClock::new());
        let files = Arc::new(HostFiles::new());
        let settings = ImagesSettings {
            serialize_pulls: false,
            registry_pull_qps: 0.0,
            backoff: PullBackoffLimits {
                initial: Duration::ZERO,
                max: Duration::ZERO,
            },
            ..ImagesSettings::default()
        };
        let ports = RecordsPorts {
            reader: files.clone(),
            writer: files.clone(),
            images: self.cri.clone(),
            clock: clock.clone(),
            spawner: Arc::new(TokioSpawner::new(Handle::current())),
        };
        let policy = VerificationPolicy::new("NeverVerifyPreloadedImages", &[]).context("no such policy")?;
        let nowhere = self.root_dir.join("nowhere");
        let sources = CredentialSources {
            objects: Some(self.objects.clone()),
            node_files: Some(NodeDockerConfig::usual_places(
                files,
                self.root_dir.clone(),
                nowhere.clone(),
                nowhere,
            )),
            providers: providers.map(Arc::new),
        };
        let images = Images::new(
            settings,
            self.cri.clone(),
            self.cri.clone(),
            clock,
            self.events.clone(),
        )
        .with_credentials(sources)
        .with_progress(self.cri.clone())
        .with_records(PullRecords::new(&self.root_dir, policy, ports));
        Ok(Arc::new(images))
    }

    /// Sends pulls of `registry/…` to a server with TLS.
    pub(crate) fn route_tls(&self, registry: &str, host: &str, ca: Option<&Path>) -> Result<()> {
        let directory = self.containerd.dir().join("hosts").join(registry);
        std::fs::create_dir_all(&directory)?;
        let ca = ca.map(|path| format!("ca = {path:?}\n")).unwrap_or_default();
        let text = format!(
            "server = \"https://{host}\"\n\n[host.\"https://{host}\"]\ncapabilities = [\"pull\", \"resolve\"]\n{ca}"
        );
        Ok(std::fs::write(directory.join("hosts.toml"), text)?)
    }

    pub(crate) async fn remove(&self, image: &str) -> Result<()> {
        use rubelet_ports::ImageWriter as _;
        let spec = v1::ImageSpec {
            image: image.to_owned(),
            ..v1::ImageSpec::default()
        };
        Ok(self.cri.remove_image(spec).await?)
    }

    /// Names of what is noted of pulls, in a directory of `image_manager`.
    pub(crate) fn noted(&self, directory: &str) -> Vec<String> {
        let directory = self.root_dir.join("image_manager").join(directory);
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }
}

pub(crate) async fn ensure(
    images: &Arc<Images>,
    request: ImageRequest,
) -> Result<PresentImage, ImageFailure> {
    let asked = tokio::time::timeout(LONG, images.ensure(request)).await;
    asked.expect("no answer about an image")
}
