//! Image garbage collection: removes unused images when they are too old, and when the disk is too full.
//!
//! Owns the rounds and the events about them. Which images go and in which order is decided in `ledger`, how much has to go in `space`,
//! and `holders` finds what holds each image. Nothing is removed before every source of pods has delivered.
//!
//! ```text
//! every 5 minutes: look (images, containers, pods) ─► too old: remove ─► filesystem too full? ─► remove until enough is free
//!                                                                              └─ not enough could go: event, with what holds it
//! ```
//!
//! Only the filesystem of images counts: where containers write to another one, removing images does not help it.

mod holders;
mod ledger;
mod space;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Node;
use rubelet_model::GoDuration;
use rubelet_ports::{
    Clock, EventType, FreedImages, ImageReader, ImageWriter, Moment, NoAnswer, NodeEvent, NodeEventRecorder,
    NodeSignals, RuntimeError, SignalError, Spawner, UnusedImages,
};
use rubelet_wire::cri::v1;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

use crate::garbage::holders::needs_of;
use crate::garbage::ledger::{Holders, Ledger, Unused};
use crate::garbage::space::{NoCapacity, judge, not_enough};
use crate::messages::runtime_errors;
use crate::metrics::{ImagesMetrics, Removed};
use crate::records::PullRecords;
use crate::request::image_id;
use rubelet_model::image_reference::with_default_tag;

pub use crate::garbage::holders::{HeldImage, ImageHolders, NodeHolders};
pub use crate::garbage::ledger::ImageKey;

/// As often as upstream.
const INTERVAL: Duration = Duration::from_secs(5 * 60);
/// Until the sources of pods have delivered, which takes seconds.
const EARLY_INTERVAL: Duration = Duration::from_secs(10);
/// How many requests for a round may wait.
const ASK_BUFFER: usize = 4;

const FREE_FAILED: &str = "FreeDiskSpaceFailed";
const NO_CAPACITY: &str = "InvalidDiskCapacity";
const FAILED_AGAIN: &str = "ImageGCFailed";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GarbageSettings {
    /// `imageGCHighThresholdPercent`
    pub high_percent: u8,
    /// `imageGCLowThresholdPercent`
    pub low_percent: u8,
    /// `imageMinimumGCAge`
    pub min_age: Duration,
    /// `imageMaximumGCAge`; zero is none.
    pub max_age: Duration,
    /// The gate `RuntimeClassInImageCriApi`.
    pub by_runtime_handler: bool,
}

impl GarbageSettings {
    /// As upstream: no image is removed when the high threshold is 100 % and no maximum age is set.
    #[must_use]
    pub fn is_switched_off(&self) -> bool {
        self.high_percent >= 100 && self.max_age.is_zero()
    }
}

/// The ports that the collection uses.
#[derive(Clone)]
pub struct GarbagePorts {
    pub clock: Arc<dyn Clock>,
    pub spawner: Arc<dyn Spawner>,
    pub reader: Arc<dyn ImageReader>,
    pub writer: Arc<dyn ImageWriter>,
    pub holders: Arc<dyn ImageHolders>,
    pub signals: Arc<dyn NodeSignals>,
    pub events: Arc<dyn NodeEventRecorder>,
    /// The Node object, once it is known.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// Where pulls are noted, if they are.
    pub records: Option<PullRecords>,
    pub metrics: Option<ImagesMetrics>,
}

/// What a round has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    pub images: usize,
    /// By the sizes that the runtime reports. Layers that other images share stay.
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GarbageError {
    #[error("not every source of pods has delivered yet: it is not known which images are needed")]
    TooEarly,
    #[error("ask the agent for its pods: {0}")]
    Agent(#[from] NoAnswer),
    #[error("{}", runtime_errors(std::slice::from_ref(.0)))]
    Runtime(#[from] RuntimeError),
    #[error("imageFs information is unavailable")]
    NoFilesystem,
    #[error("get filesystem info: {0}")]
    Filesystem(#[from] SignalError),
    #[error("invalid capacity 0 on image filesystem")]
    NoCapacity,
    #[error("wanted to free images older than {max_age}, encountered errors in image deletion: {}", runtime_errors(.errors))]
    OldImages {
        max_age: GoDuration,
        errors: Vec<RuntimeError>,
    },
    #[error(
        "wanted to free {to_free_bytes} bytes, but freed {freed_bytes} bytes space with errors in image deletion: {}",
        runtime_errors(.errors)
    )]
    Removal {
        to_free_bytes: u64,
        freed_bytes: u64,
        errors: Vec<RuntimeError>,
    },
    /// With the images that hold the space.
    #[error("{0}")]
    NotEnough(String),
    #[error("the collection of images has ended")]
    Over,
}

type Ask = oneshot::Sender<Result<Freed, GarbageError>>;

/// A handle of the collection. It ends with the last one.
#[derive(Clone)]
pub struct GarbageHandle {
    asks: mpsc::Sender<Ask>,
    _stop: Arc<oneshot::Sender<()>>,
}

impl GarbageHandle {
    /// Removes every unused image now, without regard to the thresholds; images below the minimum age and pinned ones stay. Eviction calls it.
    ///
    /// # Errors
    /// When it is not known what is used, or an image could not be removed.
    pub async fn free_unused(&self) -> Result<Freed, GarbageError> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(reply).await.map_err(|_| GarbageError::Over)?;
        answer.await.map_err(|_| GarbageError::Over)?
    }
}

#[async_trait]
impl UnusedImages for GarbageHandle {
    async fn remove_unused(&self) -> Result<FreedImages, String> {
        let freed = self.free_unused().await.map_err(|error| error.to_string())?;
        Ok(FreedImages {
            images: freed.images,
            bytes: freed.bytes,
        })
    }
}

/// Starts the collection.
#[must_use]
pub fn start(ports: GarbagePorts, settings: GarbageSettings) -> GarbageHandle {
    let (asks, asked) = mpsc::channel(ASK_BUFFER);
    let (stop, stopped) = oneshot::channel();
    let spawner = Arc::clone(&ports.spawner);
    let collector = Collector {
        started_at: ports.clock.moment(),
        ports,
        settings,
        ledger: Ledger::default(),
        has_failed: false,
    };
    let run = async move {
        // Whatever it does may be given up: the next start looks again.
        tokio::select! {
            biased;
            _ = stopped => {}
            () = collector.run(asked) => {}
        }
    };
    spawner.spawn("image garbage", Box::pin(run));
    GarbageHandle {
        asks,
        _stop: Arc::new(stop),
    }
}

struct Collector {
    ports: GarbagePorts,
    settings: GarbageSettings,
    ledger: Ledger,
    started_at: Moment,
    /// The last round failed.
    has_failed: bool,
}

/// What one look found.
struct Look {
    at: Moment,
    holders: Holders,
    needs: Needs,
    /// Whether it is known which pods there are.
    is_complete: bool,
}

/// The names that pods have for images, as far as the runtime was asked what they stand for.
#[derive(Default)]
struct Needs {
    ids: BTreeMap<String, String>,
}

/// What one round does to images.
#[derive(Default)]
struct Sweep {
    freed: Freed,
    removed: BTreeSet<String>,
    errors: Vec<RuntimeError>,
}

impl Collector {
    async fn run(mut self, mut asked: mpsc::Receiver<Ask>) {
        if self.settings.is_switched_off() {
            tracing::info!(
                "Images are not removed by themselves: imageGCHighThresholdPercent is 100 and imageMaximumGCAge 0"
            );
        }
        let mut tick = self.ports.clock.sleep(Duration::ZERO);
        loop {
            // Both arms are cancel-safe: the channel keeps what was not taken, the timer is kept.
            tokio::select! {
                biased;
                ask = asked.recv() => match ask {
                    Some(reply) => {
                        let answer = self.sweep_everything().await;
                        // The caller may be gone by now.
                        let _ = reply.send(answer);
                    }
                    None => return,
                },
                () = tick.as_mut() => {
                    let pause = self.round().await;
                    tick = self.ports.clock.sleep(pause);
                }
            }
        }
    }

    /// One round; the answer is when the next one is due.
    async fn round(&mut self) -> Duration {
        let result = match self.settings.is_switched_off() {
            // The times of last use are needed when space is asked for.
            true => self.look().await.map(|_| Freed::default()),
            false => self.collect().await,
        };
        match result {
            Ok(freed) => {
                if std::mem::take(&mut self.has_failed) {
                    tracing::info!("Images are collected again");
                }
                tracing::debug!(
                    images = freed.images,
                    bytes = freed.bytes,
                    "unused images are collected"
                );
            }
            Err(GarbageError::TooEarly) => return EARLY_INTERVAL,
            Err(error) => {
                if std::mem::replace(&mut self.has_failed, true) {
                    tracing::error!(%error, "Images could not be collected again");
                    let uid = self
                        .ports
                        .node
                        .borrow()
                        .as_ref()
                        .and_then(|node| node.metadata.uid.clone());
                    self.record_event(FAILED_AGAIN, error.to_string(), uid);
                } else {
                    tracing::warn!(%error, "Images could not be collected");
                }
            }
        }
        INTERVAL
    }

    async fn collect(&mut self) -> Result<Freed, GarbageError> {
        let mut look = self.look().await?;
        if !look.is_complete {
            return Err(GarbageError::TooEarly);
        }
        let old = self.remove_old(&mut look).await?;
        let (capacity_bytes, available_bytes) = self.filesystem().await?;
        let GarbageSettings {
            high_percent,
            low_percent,
            ..
        } = self.settings;
        let too_full = match judge(capacity_bytes, available_bytes, high_percent, low_percent) {
            Ok(None) => return Ok(old),
            Ok(Some(too_full)) => too_full,
            Err(NoCapacity) => {
                self.record_event(NO_CAPACITY, GarbageError::NoCapacity.to_string(), None);
                return Err(GarbageError::NoCapacity);
            }
        };
        let to_free_bytes = too_full.to_free_bytes;
        tracing::info!(
            used_percent = too_full.used_percent,
            high_percent,
            low_percent,
            to_free_bytes,
            "The filesystem of images is too full"
        );
        let freed = self.remove_unused(&mut look, to_free_bytes).await?;
        if freed.bytes < to_free_bytes {
            let left = self.ledger.left(&look.holders, self.settings.min_age, look.at);
            let message = not_enough(too_full, capacity_bytes, freed.bytes, &left);
            self.record_event(FREE_FAILED, message.clone(), None);
            return Err(GarbageError::NotEnough(message));
        }
        Ok(Freed {
            images: old.images + freed.images,
            bytes: old.bytes.saturating_add(freed.bytes),
        })
    }

    async fn sweep_everything(&mut self) -> Result<Freed, GarbageError> {
        let mut look = self.look().await?;
        if !look.is_complete {
            return Err(GarbageError::TooEarly);
        }
        self.remove_unused(&mut look, u64::MAX).await
    }

    // ---- looking

    /// Images first: what is pulled meanwhile is not among them, and who begins to use one meanwhile is seen.
    async fn look(&mut self) -> Result<Look, GarbageError> {
        let listed = self.ports.reader.list_images(None).await?;
        let mut holders = Holders::default();
        let by_handler = self.settings.by_runtime_handler;
        for held in self.ports.holders.containers().await? {
            holders.add(held.image.counted(by_handler), held.holder);
        }
        let mut needs = Needs::of(&listed);
        if !listed.iter().any(|image| image.pinned)
            && let Some(name) = self.ports.holders.sandbox_image().await?
            && let Some(id) = self.resolve(&mut needs, &name).await?
        {
            holders.add(ImageKey::new(&id, ""), "the runtime, for sandboxes");
        }
        let is_complete = self.add_pods(&mut holders, &mut needs).await?;
        let at = self.ports.clock.moment();
        self.ledger.detect(&listed, &holders, by_handler, at);
        Ok(Look {
            at,
            holders,
            needs,
            is_complete,
        })
    }

    /// Adds what pods need; `false` when it is not known which pods there are.
    async fn add_pods(&self, holders: &mut Holders, needs: &mut Needs) -> Result<bool, GarbageError> {
        let Some(pods) = self.ports.holders.pods().await? else {
            return Ok(false);
        };
        for pod in pods {
            for (name, holder) in needs_of(&pod) {
                if let Some(id) = self.resolve(needs, &name).await? {
                    holders.add(ImageKey::new(&id, ""), holder);
                }
            }
        }
        Ok(true)
    }

    /// The id of an image by a pod's name for it; `None` when it is not there.
    async fn resolve(&self, needs: &mut Needs, name: &str) -> Result<Option<String>, GarbageError> {
        // A name that is none stands for nothing.
        let Ok(name) = with_default_tag(name) else {
            return Ok(None);
        };
        if let Some(id) = needs.ids.get(&name) {
            return Ok(Some(id.clone()));
        }
        let id = image_id(self.ports.reader.as_ref(), &name).await?;
        if let Some(id) = &id {
            needs.ids.insert(name, id.clone());
        }
        Ok(id)
    }

    /// Capacity and what is left of the first filesystem of images, as upstream; nothing where the runtime does not name it.
    async fn filesystem(&self) -> Result<(u64, u64), GarbageError> {
        let answer = self.ports.reader.image_fs_info().await?;
        let first = answer
            .image_filesystems
            .into_iter()
            .next()
            .ok_or(GarbageError::NoFilesystem)?;
        let Some(id) = first.fs_id else { return Ok((0, 0)) };
        let reading = self
            .ports
            .signals
            .filesystem(&PathBuf::from(id.mountpoint))
            .await?;
        Ok((reading.capacity_bytes, reading.available_bytes))
    }

    // ---- removing

    async fn remove_old(&mut self, look: &mut Look) -> Result<Freed, GarbageError> {
        let max_age = self.settings.max_age;
        let (now, started_at) = (look.at, self.started_at);
        let mut old = self.ledger.unused(&look.holders);
        old.retain(|one| one.is_too_old(max_age, started_at, now));
        let sweep = self.remove(look, old, u64::MAX, Removed::Age).await?;
        if !sweep.errors.is_empty() {
            let nanos = i64::try_from(max_age.as_nanos()).unwrap_or(i64::MAX);
            return Err(GarbageError::OldImages {
                max_age: GoDuration::from_nanos(nanos),
                errors: sweep.errors,
            });
        }
        Ok(sweep.freed)
    }

    async fn remove_unused(&mut self, look: &mut Look, to_free_bytes: u64) -> Result<Freed, GarbageError> {
        let (min_age, now) = (self.settings.min_age, look.at);
        let mut unused = self.ledger.unused(&look.holders);
        unused.retain(|one| !one.is_too_young(min_age, now));
        let sweep = self.remove(look, unused, to_free_bytes, Removed::Space).await?;
        if !sweep.errors.is_empty() {
            return Err(GarbageError::Removal {
                to_free_bytes,
                freed_bytes: sweep.freed.bytes,
                errors: sweep.errors,
            });
        }
        Ok(sweep.freed)
    }

    /// Removes one after the other until enough is free.
    async fn remove(
        &mut self,
        look: &mut Look,
        unused: Vec<Unused>,
        to_free_bytes: u64,
        why: Removed,
    ) -> Result<Sweep, GarbageError> {
        let began = self.ports.clock.now();
        let mut sweep = Sweep::default();
        let mut result = Ok(());
        for one in unused {
            if sweep.freed.bytes >= to_free_bytes {
                break;
            }
            // Removing takes its time, and a pod may have come meanwhile.
            match self.add_pods(&mut look.holders, &mut look.needs).await {
                Ok(_) if look.holders.of(&one.image).is_some() => continue,
                Ok(_) => self.remove_one(one, why, &mut sweep).await,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if let Some(records) = &self.ports.records {
            records.removed(&sweep.removed, began).await;
        }
        result.map(|()| sweep)
    }

    async fn remove_one(&mut self, one: Unused, why: Removed, sweep: &mut Sweep) {
        let spec = v1::ImageSpec {
            image: one.image.id.clone(),
            runtime_handler: one.image.runtime_handler.clone(),
            ..v1::ImageSpec::default()
        };
        if let Err(error) = self.ports.writer.remove_image(spec).await {
            tracing::warn!(image = one.name, %error, "An unused image cannot be removed");
            sweep.errors.push(error);
            return;
        }
        tracing::info!(
            image = one.name,
            id = one.image.id,
            bytes = one.size_bytes,
            reason = ?why,
            "Removed an unused image"
        );
        self.ledger.forget(&one.image);
        sweep.freed.images += 1;
        sweep.freed.bytes = sweep.freed.bytes.saturating_add(one.size_bytes);
        sweep.removed.insert(one.image.id);
        if let Some(metrics) = &self.ports.metrics {
            metrics.removed(why);
        }
    }

    fn record_event(&self, reason: &'static str, message: String, node_uid: Option<String>) {
        self.ports.events.record_node(NodeEvent {
            event_type: EventType::Warning,
            reason: reason.into(),
            message,
            node_uid,
        });
    }
}

impl Needs {
    /// Names that the runtime's own list explains need no further question.
    fn of(listed: &[v1::Image]) -> Self {
        let mut ids = BTreeMap::new();
        for image in listed {
            for name in image.repo_tags.iter().chain(&image.repo_digests) {
                ids.insert(name.clone(), image.id.clone());
            }
        }
        Self { ids }
    }
}
