//! Images on the node: checks whether a container's image is present, and pulls it as its pull policy requires.
//!
//! Owns pull policies, the default tag, backoff, the queue in front of the registries, the credentials that are tried there, which
//! pods may use an image that is on the node, and the events and waiting reasons about all of it. It must not know the runtime's client
//! nor the agent: it meets both through ports. No credential is logged, put into an event or written to disk.
//!
//! ```text
//! policy ─► is it there? ─► may this pod use it? (records) ─► yes: done
//!                │ no            │ no
//!                └───────────────┴─► backoff ─► credentials ─► intent ─► queue ─► pull, candidate by candidate ─► record
//! ```

mod access;
mod backoff;
mod credential;
mod credentials;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod garbage;
mod keyring;
mod messages;
mod metrics;
mod progress;
mod providers;
mod pulls;
mod rate;
mod records;
mod request;
mod settings;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use rubelet_model::observation::PodUid;
use rubelet_model::pod::uid_of;
use rubelet_ports::{
    Clock, EventRecorder, ImageFailure, ImageProvider, ImageReader, ImageRequest, ImageWriter, PodEvent,
    PresentImage, PullProgress,
};
use rubelet_wire::cri::v1;

use crate::access::Use;
use crate::backoff::{PullBackoff, PullWait};
use crate::credentials::Found;
use crate::messages::{event, reason};
use crate::progress::Waiting;
use crate::pulls::{Arrival, Pull, PullError, Pulled, Pulls, unpoisoned};
use crate::rate::PullRate;
use crate::records::Intent;
use crate::request::{PullPolicy, image_of, image_spec, present_image, user_of};
use rubelet_model::image_reference::repository;

pub use crate::backoff::PullBackoffLimits;
pub use crate::credentials::{CredentialSources, NodeDockerConfig};
pub use crate::metrics::ImagesMetrics;
pub use crate::providers::configuration::{
    PluginApi, ProviderProblem, ProviderSettings, TokenAttributes, TokenCache, configuration_hash,
    read_configuration,
};
pub use crate::providers::{CredentialProviders, PodAccounts};
pub use crate::records::{Allowlist, PullRecords, RecordsPorts, VerificationPolicy};
pub use crate::settings::ImagesSettings;
pub use rubelet_model::image_reference::{ReferenceError, with_default_tag};

const TOO_MANY_PULLS: &str = "pull QPS exceeded";

/// What the metrics record of one request.
#[derive(Default)]
struct Course {
    is_present: Option<bool>,
    must_pull: Option<bool>,
}

/// What a request waited for.
enum Landed {
    Pulled(Box<Pulled>),
    Present(PresentImage),
}

pub struct Images {
    settings: ImagesSettings,
    reader: Arc<dyn ImageReader>,
    writer: Arc<dyn ImageWriter>,
    clock: Arc<dyn Clock>,
    events: Arc<dyn EventRecorder>,
    pulls: Pulls,
    credentials: CredentialSources,
    /// `None`: every pod may use every image that is there.
    records: Option<PullRecords>,
    /// Held to look up and to note, never across an await.
    backoff: Mutex<PullBackoff>,
    waiting: Waiting,
    metrics: Option<ImagesMetrics>,
}

impl Images {
    #[must_use]
    pub fn new(
        settings: ImagesSettings,
        reader: Arc<dyn ImageReader>,
        writer: Arc<dyn ImageWriter>,
        clock: Arc<dyn Clock>,
        events: Arc<dyn EventRecorder>,
    ) -> Self {
        Self {
            pulls: pulls(&settings, &reader, &writer, &clock, None),
            backoff: Mutex::new(PullBackoff::new(settings.backoff)),
            credentials: CredentialSources::default(),
            records: None,
            waiting: Waiting::default(),
            metrics: None,
            settings,
            reader,
            writer,
            clock,
            events,
        }
    }

    /// With bytes of pulls, where the runtime reports them.
    #[must_use]
    pub fn with_progress(mut self, progress: Arc<dyn PullProgress>) -> Self {
        self.pulls = pulls(
            &self.settings,
            &self.reader,
            &self.writer,
            &self.clock,
            Some(progress),
        );
        self
    }

    #[must_use]
    pub fn with_metrics(mut self, metrics: ImagesMetrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// With credentials; without this, registries are asked without any.
    #[must_use]
    pub fn with_credentials(mut self, credentials: CredentialSources) -> Self {
        self.credentials = credentials;
        self
    }

    /// With the gate `KubeletEnsureSecretPulledImages`: an image that is there is for pods that could pull it.
    #[must_use]
    pub fn with_records(mut self, records: PullRecords) -> Self {
        self.records = Some(records);
        self
    }

    async fn obtain(
        &self,
        request: &ImageRequest,
        course: &mut Course,
    ) -> Result<PresentImage, ImageFailure> {
        let image = image_of(request);
        let spec = image_spec(request).map_err(|error| {
            let message = messages::invalid_name(image, &error);
            self.record(request, PodEvent::warning(event::INSPECT_FAILED, &message));
            failure(reason::INVALID_NAME, message)
        })?;
        let policy = PullPolicy::of(request);
        let mut found = None;
        if policy != PullPolicy::Always {
            let inspected = self.inspect(request, &spec).await?;
            course.is_present = Some(inspected.is_some());
            if let Some(image) = inspected {
                match self.may_use(request, &image).await {
                    Use::Granted => {
                        course.must_pull = Some(false);
                        self.tell_present(request);
                        return Ok(image);
                    }
                    Use::Refused(credentials) => found = credentials,
                }
            }
        }
        // With `Never`, what is not there is not even looked for further.
        if policy != PullPolicy::Never || course.is_present == Some(true) {
            course.must_pull = Some(true);
        }
        if policy == PullPolicy::Never {
            let message = messages::not_present(image);
            self.record(request, PodEvent::warning(event::NEVER, &message));
            return Err(failure(reason::NEVER, message));
        }
        self.pull(request, spec, found, policy == PullPolicy::Always)
            .await
    }

    fn count(&self, count: impl FnOnce(&ImagesMetrics)) {
        if let Some(metrics) = &self.metrics {
            count(metrics);
        }
    }

    fn tell_present(&self, request: &ImageRequest) {
        let verified = self.settings.ensure_secret_pulled_images;
        let message = messages::already_present(image_of(request), verified);
        self.record(request, PodEvent::normal(event::PULLED, message));
    }

    async fn inspect(
        &self,
        request: &ImageRequest,
        spec: &v1::ImageSpec,
    ) -> Result<Option<PresentImage>, ImageFailure> {
        match self.reader.image_status(spec.clone(), false).await {
            Ok(answer) => Ok(answer.image.and_then(present_image)),
            Err(error) => {
                let message = messages::inspect_failed(image_of(request), &error);
                self.record(request, PodEvent::warning(event::INSPECT_FAILED, &message));
                Err(failure(reason::INSPECT, message))
            }
        }
    }

    async fn pull(
        &self,
        request: &ImageRequest,
        spec: v1::ImageSpec,
        found: Option<Found>,
        must_be_fresh: bool,
    ) -> Result<PresentImage, ImageFailure> {
        let image = image_of(request);
        let may_begin = unpoisoned(&self.backoff).begin(&uid_of(&request.pod), image, self.clock.moment());
        if let Err(wait) = may_begin {
            return Err(self.back_off(request, wait));
        }
        let found = match found {
            Some(found) => found,
            None => match self.credentials.find(&repository(image), &request.pod).await {
                Ok(found) => found,
                Err(broken) => return Err(self.pull_failed(request, &broken.to_string(), &Found::default())),
            },
        };
        let intent = self.begin(request, &found).await?;
        let asked_at = self.clock.moment();
        self.record(
            request,
            PodEvent::normal(event::PULLING, messages::pulling(image)),
        );
        let pull = Pull {
            spec,
            sandbox_config: request.sandbox_config.clone(),
            candidates: found.candidates.clone(),
            must_be_fresh,
        };
        let error = match self.fly(request, pull).await {
            Ok(Landed::Present(present)) => {
                if let Some(intent) = intent {
                    intent.not_needed().await;
                }
                self.tell_present(request);
                return Ok(present);
            }
            Ok(Landed::Pulled(pulled)) => {
                if let Some(intent) = intent {
                    let used = pulled.used.and_then(|number| found.candidates.get(number));
                    intent.pulled(&pulled.references(), used).await;
                }
                let with_waiting = self.clock.moment().since(asked_at);
                let size_bytes = match &pulled.status {
                    Ok(Some(status)) => status.size,
                    Ok(None) | Err(_) => 0,
                };
                // Who joined late did not wait for the whole pull.
                let pull = pulled.duration.min(with_waiting);
                let message = messages::pulled(image, pull, with_waiting, size_bytes);
                self.record(request, PodEvent::normal(event::PULLED, message));
                self.count(|metrics| metrics.pulled(with_waiting, size_bytes));
                return self.image_of_pull(request, *pulled);
            }
            Err(PullError::TooManyPulls) => TOO_MANY_PULLS.to_owned(),
            Err(PullError::Runtime(errors)) => messages::runtime_errors(&errors),
        };
        if let Some(intent) = intent {
            intent.not_needed().await;
        }
        Err(self.pull_failed(request, &error, &found))
    }

    /// Waits for a pull. What came with another one meanwhile is taken if the pod may use it.
    async fn fly(&self, request: &ImageRequest, mut pull: Pull) -> Result<Landed, PullError> {
        loop {
            let (flight, stage) = self.pulls.flight(pull.clone());
            let arrival = {
                let _waits = self.waiting.enter(uid_of(&request.pod), image_of(request), stage);
                flight.await?
            };
            let image = match arrival {
                Arrival::Pulled(pulled) => return Ok(Landed::Pulled(Box::new(pulled))),
                Arrival::Meanwhile(image) => image,
            };
            if let Some(present) = present_image(image)
                && self
                    .may_use_at_once(request, &present, Some(&pull.candidates))
                    .await
            {
                return Ok(Landed::Present(present));
            }
            pull.must_be_fresh = true;
        }
    }

    /// Writes down that a pull begins.
    async fn begin(&self, request: &ImageRequest, found: &Found) -> Result<Option<Intent>, ImageFailure> {
        let Some(records) = &self.records else {
            return Ok(None);
        };
        match records.begin(image_of(request)).await {
            Ok(intent) => Ok(Some(intent)),
            Err(error) => {
                let message = messages::intent_failed(image_of(request), &error);
                Err(self.pull_failed(request, &message, found))
            }
        }
    }

    fn back_off(&self, request: &ImageRequest, wait: PullWait) -> ImageFailure {
        let message = messages::backing_off(image_of(request));
        self.record(request, PodEvent::normal(event::BACKOFF, &message));
        ImageFailure {
            reason: reason::BACKOFF,
            message: match wait.error {
                Some(error) => format!("{message}: {error}"),
                None => message,
            },
            retry_at: Some(self.clock.now().plus(wait.remaining)),
        }
    }

    fn pull_failed(&self, request: &ImageRequest, error: &str, found: &Found) -> ImageFailure {
        let image = image_of(request);
        // Why there were no credentials is often the root of it.
        let error = match found.failures.as_slice() {
            [] => error.to_owned(),
            failures => format!("{error} ({})", failures.join("; ")),
        };
        let error = error.as_str();
        self.record(
            request,
            PodEvent::warning(event::FAILED, messages::pull_failed(image, error)),
        );
        let (reason, message) = messages::pull_failure(image, error);
        if reason == reason::PULL && !found.missing_secrets.is_empty() {
            let message = messages::missing_secrets(&found.missing_secrets);
            self.events
                .record(&request.pod, PodEvent::warning(event::MISSING_SECRETS, message));
        }
        let delay = unpoisoned(&self.backoff).fail(
            &uid_of(&request.pod),
            image,
            format!("{reason}: {message}"),
            self.clock.moment(),
        );
        ImageFailure {
            reason,
            message,
            retry_at: Some(self.clock.now().plus(delay)),
        }
    }

    /// The runtime's own reference of the image, with its user. Without the status the user is not known, and a guess
    /// could run a container as root that must not.
    fn image_of_pull(&self, request: &ImageRequest, pulled: Pulled) -> Result<PresentImage, ImageFailure> {
        match pulled.status {
            Ok(status) => {
                let (uid, username) = status.map(user_of).unwrap_or_default();
                Ok(PresentImage {
                    image_ref: pulled.image_ref,
                    uid,
                    username,
                })
            }
            Err(error) => {
                let message = messages::inspect_failed(image_of(request), &error);
                self.record(request, PodEvent::warning(event::INSPECT_FAILED, &message));
                Err(failure(reason::INSPECT, message))
            }
        }
    }

    fn record(&self, request: &ImageRequest, event: PodEvent) {
        self.events
            .record(&request.pod, event.of_container(&request.container.name));
    }
}

#[async_trait]
impl ImageProvider for Images {
    async fn ensure(&self, request: ImageRequest) -> Result<PresentImage, ImageFailure> {
        let mut course = Course::default();
        let result = self.obtain(&request, &mut course).await;
        let policy = PullPolicy::of(&request);
        self.count(|metrics| metrics.requested(policy, course.is_present, course.must_pull));
        if let Err(failure) = &result {
            let message = format!("Error: {}", failure.reason);
            self.record(&request, PodEvent::warning(event::FAILED, message));
        }
        result
    }

    async fn present(&self, request: &ImageRequest) -> Option<PresentImage> {
        if PullPolicy::of(request) == PullPolicy::Always {
            return None;
        }
        let spec = image_spec(request).ok()?;
        let answer = self.reader.image_status(spec, false).await.ok()?;
        let present = answer.image.and_then(present_image)?;
        let may_use = self.may_use_at_once(request, &present, None).await;
        may_use.then_some(present)
    }

    fn record_present(&self, request: &ImageRequest) {
        self.tell_present(request);
        let policy = PullPolicy::of(request);
        self.count(|metrics| metrics.requested(policy, Some(true), Some(false)));
    }

    fn progress(&self, uid: &PodUid, image: &str) -> Option<String> {
        self.waiting.text(uid, image, self.clock.moment())
    }

    fn forget_pod(&self, uid: &PodUid) {
        unpoisoned(&self.backoff).forget_pod(uid);
    }
}

fn pulls(
    settings: &ImagesSettings,
    reader: &Arc<dyn ImageReader>,
    writer: &Arc<dyn ImageWriter>,
    clock: &Arc<dyn Clock>,
    progress: Option<Arc<dyn PullProgress>>,
) -> Pulls {
    let (qps, burst) = (settings.registry_pull_qps, settings.registry_burst);
    let rate = (qps > 0.0).then(|| PullRate::new(qps, burst, clock.moment()));
    Pulls::new(
        Arc::clone(reader),
        Arc::clone(writer),
        Arc::clone(clock),
        settings.places(),
        rate,
        progress,
    )
}

fn failure(reason: &'static str, message: String) -> ImageFailure {
    ImageFailure {
        reason,
        message,
        retry_at: None,
    }
}
