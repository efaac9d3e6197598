//! The records of pulled images and their credentials, kept across restarts: a pod may use an image that is on the node only if it could have
//! pulled it.
//!
//! Owns the files under `image_manager/`, laid out as upstream's, so that either agent can follow the other. It must not pull.
//!
//! ```text
//! image_manager/pulling/sha256-<image>      written before a pull, removed after it
//! image_manager/pulled/sha256-<reference>   who could pull it
//! ```
//!
//! Whatever is uncertain counts against the pod, which then has to pull with its own credentials: an intent without a record, a record or an intent
//! that cannot be read, a pull whose end was not seen. A broken record stays in its place for that reason: without it, the image would look as if
//! it had been on the node from the beginning.

pub(crate) mod record;
mod store;
mod verification;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rubelet_model::Timestamp;
use rubelet_ports::{Clock, FileError, FileReader, FileWriter, ImageReader, Spawner};
use tokio::sync::OnceCell;

use crate::credential::Candidate;
use crate::metrics::ImagesMetrics;
use crate::pulls::unpoisoned;
use crate::records::record::{Grants, encode_intent, file_name};
use crate::records::store::{FILE_MODE, Store, leave};
use crate::records::verification::{Comparison, Known, Verdict, compare, verdict};

pub use crate::records::verification::{Allowlist, VerificationPolicy};

const DIRECTORY: &str = "image_manager";
const CLEANING_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// The edges that records need.
#[derive(Clone)]
pub struct RecordsPorts {
    pub reader: Arc<dyn FileReader>,
    pub writer: Arc<dyn FileWriter>,
    pub images: Arc<dyn ImageReader>,
    pub clock: Arc<dyn Clock>,
    pub spawner: Arc<dyn Spawner>,
}

/// Records of pulls.
#[derive(Clone)]
pub struct PullRecords {
    store: Arc<Store>,
}

/// What a pod may do with an image that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The policy asks for nothing.
    Exempt,
    /// Every pod of this node may use it.
    Granted,
    MustPull,
    /// The records cannot be read: the registry decides.
    Unknown,
    /// Its credentials have to be compared: [`PullRecords::compare`].
    Compare(Grants),
}

impl PullRecords {
    /// Nothing is read yet.
    #[must_use]
    pub fn new(root_dir: &Path, policy: VerificationPolicy, ports: RecordsPorts) -> Self {
        let directory = root_dir.join(DIRECTORY);
        Self {
            store: Arc::new(Store {
                policy,
                pulling: directory.join("pulling"),
                pulled: directory.join("pulled"),
                ports,
                contents: OnceCell::new(),
                metrics: OnceLock::new(),
                turn: tokio::sync::Mutex::default(),
                throttle: Mutex::default(),
            }),
        }
    }

    /// Counts what is on disk there; the first one stays.
    #[must_use]
    pub fn with_metrics(self, metrics: &ImagesMetrics) -> Self {
        self.store.metrics.get_or_init(|| metrics.clone());
        self
    }

    /// `image` is the name in the pod's container, `image_ref` the runtime's reference of the present image.
    pub(crate) async fn access(&self, image: &str, image_ref: &str) -> Access {
        let Some(contents) = self.store.contents().await else {
            return Access::Unknown;
        };
        let contents = unpoisoned(contents);
        let known = match contents.records.get(image_ref) {
            Some(record) => Known::Record(record),
            None if contents.broken.contains(&file_name(image_ref))
                || contents.intents.contains_key(image)
                || contents.doubtful.contains(&file_name(image)) =>
            {
                Known::OnlyThatWePulled
            }
            None => Known::Nothing,
        };
        match verdict(&self.store.policy, image, known) {
            Verdict::Exempt => Access::Exempt,
            Verdict::Granted => Access::Granted,
            Verdict::MustPull => Access::MustPull,
            Verdict::Compare(grants) => Access::Compare(grants),
        }
    }

    /// Whether one of the pod's credentials stands in the record.
    pub(crate) async fn compare(
        &self,
        image: &str,
        image_ref: &str,
        grants: &Grants,
        candidates: &[Candidate],
    ) -> bool {
        match compare(grants, candidates) {
            Comparison::Granted => true,
            Comparison::Refused => false,
            Comparison::GrantedAndLearned(secret) => {
                let learned = Grants {
                    kubernetes_secrets: vec![secret],
                    ..Grants::default()
                };
                if let Err(error) = self.store.record(image, image_ref, &learned).await {
                    tracing::warn!(%error, image, "Cannot note a further pull secret; it is compared again next time");
                }
                true
            }
        }
    }

    /// Before a pull. It must be ended; dropped, the intent stays until it is known whether the image came.
    pub(crate) async fn begin(&self, image: &str) -> Result<Intent, FileError> {
        let store = &self.store;
        let contents = store.try_contents().await?;
        let _turn = store.turn.lock().await;
        let is_new = !unpoisoned(contents).intents.contains_key(image);
        if is_new {
            let file = store.pulling.join(file_name(image));
            store
                .ports
                .writer
                .write(&file, &encode_intent(image), FILE_MODE)
                .await?;
        }
        *unpoisoned(contents).intents.entry(image.to_owned()).or_default() += 1;
        store.count(contents);
        Ok(Intent {
            store: Arc::clone(store),
            image: image.to_owned(),
            is_open: true,
        })
    }

    /// Drops records of images that are gone, for as long as the agent runs.
    pub async fn keep_clean(self) {
        loop {
            self.store.ports.clock.sleep(CLEANING_INTERVAL).await;
            let listed_at = self.store.ports.clock.now();
            match self.store.ports.images.list_images(None).await {
                // A runtime that has just begun may know none of its images yet, and without their records every pod could use them.
                Ok(images) if images.is_empty() => {}
                Ok(images) => {
                    self.prune(&images.into_iter().map(|image| image.id).collect(), listed_at)
                        .await;
                }
                Err(error) => tracing::debug!(%error, "records of pulls are not looked through"),
            }
        }
    }

    /// Drops records of images that are gone: those that are not in `image_refs` and were not touched since `listed_at`, the moment before
    /// the runtime was asked for them.
    pub async fn prune(&self, image_refs: &BTreeSet<String>, listed_at: Timestamp) {
        self.forget(|image_ref| !image_refs.contains(image_ref), listed_at)
            .await;
    }

    /// Drops the records of images that were just removed, if they were not pulled since `before`.
    pub(crate) async fn removed(&self, image_refs: &BTreeSet<String>, before: Timestamp) {
        if !image_refs.is_empty() {
            self.forget(|image_ref| image_refs.contains(image_ref), before)
                .await;
        }
    }

    async fn forget(&self, is_gone: impl Fn(&str) -> bool, before: Timestamp) {
        let Some(contents) = self.store.contents().await else {
            return;
        };
        let _turn = self.store.turn.lock().await;
        let gone: Vec<String> = unpoisoned(contents)
            .records
            .values()
            .filter(|record| record.updated_at < before && is_gone(&record.image_ref))
            .map(|record| record.image_ref.clone())
            .collect();
        for image_ref in gone {
            let file = self.store.pulled.join(file_name(&image_ref));
            match self.store.ports.writer.remove_file(&file).await {
                Ok(()) => {
                    unpoisoned(contents).records.remove(&image_ref);
                }
                Err(error) => tracing::warn!(%error, "Cannot remove the record of an image that is gone"),
            }
        }
        self.store.count(contents);
    }
}

/// A pull that has begun.
pub(crate) struct Intent {
    store: Arc<Store>,
    image: String,
    is_open: bool,
}

impl Intent {
    /// `image_refs`: all references by which the image may be requested.
    pub(crate) async fn pulled(self, image_refs: &BTreeSet<&str>, used: Option<&Candidate>) {
        let grants = Grants::of(used);
        for image_ref in image_refs {
            if let Err(error) = self.store.record(&self.image, image_ref, &grants).await {
                // The intent stays, so that the image still counts as pulled by us.
                tracing::warn!(%error, image = self.image, "Cannot write the record of a pull");
                return;
            }
        }
        if let Some(contents) = self.store.contents.get() {
            unpoisoned(contents).doubtful.remove(&file_name(&self.image));
        }
        self.end().await;
    }

    /// It failed, or another one was enough.
    pub(crate) async fn not_needed(self) {
        self.end().await;
    }

    async fn end(mut self) {
        self.is_open = false;
        let Some(contents) = self.store.contents.get() else {
            return;
        };
        // At once, so that an end that is given up half way counts as one.
        if leave(&mut unpoisoned(contents), &self.image) == 0 {
            self.store.tidy(contents, &self.image).await;
        }
    }
}

impl Drop for Intent {
    fn drop(&mut self) {
        let Some(contents) = self.store.contents.get().filter(|_| self.is_open) else {
            return;
        };
        if leave(&mut unpoisoned(contents), &self.image) == 0 {
            let settle = Arc::clone(&self.store).settle(self.image.clone());
            self.store
                .ports
                .spawner
                .spawn("pull that was given up", Box::pin(settle));
        }
    }
}
