//! The files of records, and what is in them.
//!
//! Owns reading them once, writing them in one order, and finding out what became of pulls whose end was not seen. It must not decide who may
//! use an image.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rubelet_ports::{FileError, LogThrottle};
use tokio::sync::OnceCell;

use crate::metrics::ImagesMetrics;
use crate::pulls::unpoisoned;
use crate::records::RecordsPorts;
use crate::records::record::{Grants, PulledRecord, decode_intent, encode_intent, file_name, is_file_name};
use crate::records::verification::VerificationPolicy;
use crate::request::image_id;
use rubelet_model::image_reference::without_tag;

const DIRECTORY_MODE: u32 = 0o700;
pub(crate) const FILE_MODE: u32 = 0o600;
/// A hundred secrets under each of a hundred names fit in.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// A pull that was given up may still end in the runtime.
const SETTLE_AFTER: Duration = Duration::from_secs(30);

/// What is on disk.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) records: BTreeMap<String, Arc<PulledRecord>>,
    /// Files of records that cannot be read.
    pub(crate) broken: BTreeSet<String>,
    /// Intents that are on disk, with the number of pulls under way.
    pub(crate) intents: BTreeMap<String, usize>,
    /// Intents from before a restart for which it is not known whether the image was pulled: they cannot be read, or the runtime
    /// gave no answer. A pull that fails does not end the doubt.
    pub(crate) doubtful: BTreeSet<String>,
}

pub(crate) struct Store {
    pub(crate) policy: VerificationPolicy,
    pub(crate) pulling: PathBuf,
    pub(crate) pulled: PathBuf,
    pub(crate) ports: RecordsPorts,
    /// Read when it is needed first; a failure is tried again.
    pub(crate) contents: OnceCell<Mutex<Contents>>,
    pub(crate) metrics: OnceLock<ImagesMetrics>,
    /// Held while a file changes, so that files and `contents` change in the same order.
    pub(crate) turn: tokio::sync::Mutex<()>,
    pub(crate) throttle: Mutex<LogThrottle>,
}

impl Store {
    pub(crate) async fn contents(&self) -> Option<&Mutex<Contents>> {
        self.try_contents().await.ok()
    }

    pub(crate) async fn try_contents(&self) -> Result<&Mutex<Contents>, FileError> {
        let contents = self.contents.get_or_try_init(|| self.load()).await;
        if let Err(error) = &contents {
            let now = self.ports.clock.moment();
            if unpoisoned(&self.throttle).is_due(&error.to_string(), now) {
                tracing::error!(%error, "Cannot read the records of image pulls, so that every image is pulled");
            }
        }
        contents
    }

    async fn load(&self) -> Result<Mutex<Contents>, FileError> {
        for directory in [&self.pulling, &self.pulled] {
            self.ports
                .writer
                .create_directory(directory, DIRECTORY_MODE)
                .await?;
        }
        let mut contents = Contents::default();
        for (name, bytes) in self.read_all(&self.pulled).await? {
            match PulledRecord::decode(&bytes) {
                Ok(decoded) if file_name(&decoded.value.image_ref) == name => {
                    if decoded.is_old {
                        self.renew(&self.pulled.join(&name), &decoded.value.encode())
                            .await;
                    }
                    let image_ref = decoded.value.image_ref.clone();
                    contents.records.insert(image_ref, Arc::new(decoded.value));
                }
                Ok(_) => {
                    tracing::warn!(file = name, "The record of a pull has the name of another image");
                    contents.broken.insert(name);
                }
                Err(error) => {
                    tracing::warn!(file = name, %error, "The record of a pull cannot be read; its image is pulled again");
                    contents.broken.insert(name);
                }
            }
        }
        for (name, bytes) in self.read_all(&self.pulling).await? {
            match decode_intent(&bytes) {
                Ok(decoded) if file_name(&decoded.value) == name => {
                    if decoded.is_old {
                        self.renew(&self.pulling.join(&name), &encode_intent(&decoded.value))
                            .await;
                    }
                    contents.intents.insert(decoded.value, 0);
                }
                Ok(_) => {
                    tracing::warn!(file = name, "The intent of a pull has the name of another image");
                    contents.doubtful.insert(name);
                }
                Err(error) => {
                    tracing::warn!(file = name, %error, "The intent of a pull cannot be read; its image is pulled again");
                    contents.doubtful.insert(name);
                }
            }
        }
        self.settle_all(&mut contents).await;
        let contents = Mutex::new(contents);
        self.count(&contents);
        Ok(contents)
    }

    /// Reports how much is on disk.
    pub(crate) fn count(&self, contents: &Mutex<Contents>) {
        if let Some(metrics) = self.metrics.get() {
            let contents = unpoisoned(contents);
            let mut intents = contents.doubtful.clone();
            intents.extend(contents.intents.keys().map(|image| file_name(image)));
            metrics.on_disk(intents.len(), contents.records.len() + contents.broken.len());
        }
    }

    async fn renew(&self, file: &Path, content: &[u8]) {
        if let Err(error) = self.ports.writer.write(file, content, FILE_MODE).await {
            tracing::warn!(%error, "Cannot write a record of an older version anew");
        }
    }

    /// A file that cannot be read at all counts as a broken one; only the directory has to be readable.
    async fn read_all(&self, directory: &Path) -> Result<Vec<(String, Vec<u8>)>, FileError> {
        let mut files = Vec::new();
        for entry in self.ports.reader.list(directory).await? {
            if !is_file_name(&entry.name) {
                continue;
            }
            let read = self
                .ports
                .reader
                .read(&directory.join(&entry.name), MAX_FILE_BYTES)
                .await;
            match read {
                Ok(bytes) => files.push((entry.name, bytes)),
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    tracing::warn!(%error, "A record of an image pull cannot be read");
                    files.push((entry.name, Vec::new()));
                }
            }
        }
        Ok(files)
    }

    /// Pulls from before a restart, which may or may not have ended.
    async fn settle_all(&self, contents: &mut Contents) {
        let images: Vec<String> = contents.intents.keys().cloned().collect();
        for image in images {
            let Ok(present) = image_id(self.ports.images.as_ref(), &image).await else {
                contents.doubtful.insert(file_name(&image));
                continue;
            };
            if let Some(image_ref) = present
                && !contents.records.contains_key(&image_ref)
            {
                let record = PulledRecord::new(&image_ref, self.ports.clock.now());
                let file = self.pulled.join(file_name(&image_ref));
                if let Err(error) = self.ports.writer.write(&file, &record.encode(), FILE_MODE).await {
                    tracing::warn!(%error, image, "Cannot note an image that was pulled before the start");
                    contents.doubtful.insert(file_name(&image));
                    continue;
                }
                contents.broken.remove(&file_name(&image_ref));
                contents.records.insert(image_ref, Arc::new(record));
            }
            if self.remove_intent(&image).await {
                contents.intents.remove(&image);
            }
        }
    }

    /// Notes further grants. Nothing is written when nothing is new.
    pub(crate) async fn record(
        &self,
        image: &str,
        image_ref: &str,
        grants: &Grants,
    ) -> Result<(), FileError> {
        let contents = self.try_contents().await?;
        let _turn = self.turn.lock().await;
        let now = self.ports.clock.now();
        let old = unpoisoned(contents).records.get(image_ref).cloned();
        let empty = PulledRecord::new(image_ref, now);
        let grown = match &old {
            Some(old) => old.with(without_tag(image), grants, now),
            None => empty.with(without_tag(image), grants, now).or(Some(empty)),
        };
        let Some(grown) = grown else {
            // A list that was made before this moment does not know that the image is there.
            if let Some(record) = unpoisoned(contents).records.get_mut(image_ref) {
                Arc::make_mut(record).updated_at = now;
            }
            return Ok(());
        };
        let name = file_name(image_ref);
        let file = self.pulled.join(&name);
        self.ports.writer.write(&file, &grown.encode(), FILE_MODE).await?;
        {
            let mut contents = unpoisoned(contents);
            contents.broken.remove(&name);
            contents.records.insert(image_ref.to_owned(), Arc::new(grown));
        }
        self.count(contents);
        Ok(())
    }

    async fn remove_intent(&self, image: &str) -> bool {
        let removed = self
            .ports
            .writer
            .remove_file(&self.pulling.join(file_name(image)))
            .await;
        removed
            .inspect_err(|error| tracing::warn!(%error, image, "Cannot remove the intent of a pull"))
            .is_ok()
    }

    /// Removes the intent of a pull that ended, if no other pull of the image is under way.
    pub(crate) async fn tidy(&self, contents: &Mutex<Contents>, image: &str) {
        let _turn = self.turn.lock().await;
        let is_left = {
            let contents = unpoisoned(contents);
            contents.intents.get(image) == Some(&0) && !contents.doubtful.contains(&file_name(image))
        };
        if is_left && self.remove_intent(image).await {
            unpoisoned(contents).intents.remove(image);
            self.count(contents);
        }
    }

    /// Finds out what became of a pull that was given up.
    pub(crate) async fn settle(self: Arc<Self>, image: String) {
        self.ports.clock.sleep(SETTLE_AFTER).await;
        let Some(contents) = self.contents().await else {
            return;
        };
        if unpoisoned(contents).intents.get(&image) != Some(&0) {
            return;
        }
        let Ok(present) = image_id(self.ports.images.as_ref(), &image).await else {
            return;
        };
        if let Some(image_ref) = present
            && self.record(&image, &image_ref, &Grants::default()).await.is_err()
        {
            return;
        }
        unpoisoned(contents).doubtful.remove(&file_name(&image));
        self.tidy(contents, &image).await;
    }
}

/// How many are left.
pub(crate) fn leave(contents: &mut Contents, image: &str) -> usize {
    let Some(count) = contents.intents.get_mut(image) else {
        return 0;
    };
    *count = count.saturating_sub(1);
    *count
}
