//! Images on the node: whether a container's image is there, and pulling it when its policy says so.
//!
//! Owns pull policies, the default tag, backoff, the queue in front of the registries, and the events and waiting reasons that
//! tell about them. Pulls have no credentials yet: pods with pull secrets are refused before they come here. It must not know
//! the runtime's client nor the agent: it meets both through ports.

mod backoff;
mod pulls;
mod rate;
mod reference;
mod words;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use rubelet_model::observation::PodUid;
use rubelet_ports::{
    Clock, EventRecorder, ImageFailure, ImageProvider, ImageReader, ImageRequest, ImageWriter, PodEvent,
    PresentImage,
};
use rubelet_wire::cri::v1;

use crate::backoff::{PullBackoff, PullWait};
use crate::pulls::{Pull, PullError, Pulled, Pulls, unpoisoned};
use crate::rate::PullRate;
use crate::words::{event, reason};

pub use crate::backoff::PullBackoffLimits;
pub use crate::reference::{ReferenceError, with_default_tag};

const TOO_MANY_PULLS: &str = "pull QPS exceeded";

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImagesSettings {
    /// `serializeImagePulls`: one pull at a time.
    pub serialize_pulls: bool,
    /// `maxParallelImagePulls`, when pulls are not serialized; zero is no limit.
    pub max_parallel_pulls: u32,
    /// `registryPullQPS`; zero is no limit.
    pub registry_pull_qps: f64,
    /// `registryBurst`
    pub registry_burst: u32,
    pub backoff: PullBackoffLimits,
    /// The gate `KubeletEnsureSecretPulledImages`, which shows in the text of an event.
    pub ensure_secret_pulled_images: bool,
}

impl Default for ImagesSettings {
    fn default() -> Self {
        Self {
            serialize_pulls: true,
            max_parallel_pulls: 0,
            registry_pull_qps: 5.0,
            registry_burst: 10,
            backoff: PullBackoffLimits::default(),
            ensure_secret_pulled_images: true,
        }
    }
}

impl ImagesSettings {
    fn places(&self) -> Option<usize> {
        match (self.serialize_pulls, self.max_parallel_pulls) {
            (true, _) => Some(1),
            (false, 0) => None,
            (false, limit) => usize::try_from(limit).ok(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    /// Validation lets no other words through; to pull is what upstream does with them.
    fn of(request: &ImageRequest) -> Self {
        match request.container.image_pull_policy.as_deref() {
            Some("IfNotPresent") => Self::IfNotPresent,
            Some("Never") => Self::Never,
            Some(_) | None => Self::Always,
        }
    }
}

pub struct Images {
    settings: ImagesSettings,
    reader: Arc<dyn ImageReader>,
    clock: Arc<dyn Clock>,
    events: Arc<dyn EventRecorder>,
    pulls: Pulls,
    /// Held to look up and to note, never across an await.
    backoff: Mutex<PullBackoff>,
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
        let rate = (settings.registry_pull_qps > 0.0).then(|| {
            PullRate::new(
                settings.registry_pull_qps,
                settings.registry_burst,
                clock.moment(),
            )
        });
        Self {
            pulls: Pulls::new(
                Arc::clone(&reader),
                writer,
                Arc::clone(&clock),
                settings.places(),
                rate,
            ),
            backoff: Mutex::new(PullBackoff::new(settings.backoff)),
            settings,
            reader,
            clock,
            events,
        }
    }

    async fn obtain(&self, request: &ImageRequest) -> Result<PresentImage, ImageFailure> {
        let image = image_of(request);
        let spec = image_spec(request).map_err(|error| {
            let message = words::invalid_name(image, &error);
            self.tell(request, PodEvent::warning(event::INSPECT_FAILED, &message));
            failure(reason::INVALID_NAME, message)
        })?;
        let policy = PullPolicy::of(request);
        if policy != PullPolicy::Always
            && let Some(found) = self.inspect(request, &spec).await?
        {
            self.record_present(request);
            return Ok(found);
        }
        if policy == PullPolicy::Never {
            let message = words::not_present(image);
            self.tell(request, PodEvent::warning(event::NEVER, &message));
            return Err(failure(reason::NEVER, message));
        }
        self.pull(request, spec, policy == PullPolicy::Always).await
    }

    async fn inspect(
        &self,
        request: &ImageRequest,
        spec: &v1::ImageSpec,
    ) -> Result<Option<PresentImage>, ImageFailure> {
        match self.reader.image_status(spec.clone(), false).await {
            Ok(answer) => Ok(answer.image.and_then(present_image)),
            Err(error) => {
                let message = words::inspect_failed(image_of(request), &error);
                self.tell(request, PodEvent::warning(event::INSPECT_FAILED, &message));
                Err(failure(reason::INSPECT, message))
            }
        }
    }

    async fn pull(
        &self,
        request: &ImageRequest,
        spec: v1::ImageSpec,
        must_be_fresh: bool,
    ) -> Result<PresentImage, ImageFailure> {
        let image = image_of(request);
        let asked_at = self.clock.moment();
        let may_begin = unpoisoned(&self.backoff).begin(&uid_of(request), image, asked_at);
        if let Err(wait) = may_begin {
            return Err(self.back_off(request, wait));
        }
        self.tell(request, PodEvent::normal(event::PULLING, words::pulling(image)));
        let pull = Pull {
            spec,
            sandbox_config: request.sandbox_config.clone(),
            must_be_fresh,
        };
        match self.pulls.pull(pull).await {
            Ok(pulled) => {
                let with_waiting = self.clock.moment().since(asked_at);
                let size_bytes = match &pulled.status {
                    Ok(Some(status)) => status.size,
                    Ok(None) | Err(_) => 0,
                };
                // Who joined late did not wait for the whole pull.
                let pull = pulled.duration.min(with_waiting);
                let message = words::pulled(image, pull, with_waiting, size_bytes);
                self.tell(request, PodEvent::normal(event::PULLED, message));
                self.image_of_pull(request, pulled)
            }
            Err(PullError::TooManyPulls) => Err(self.pull_failed(request, TOO_MANY_PULLS)),
            Err(PullError::Runtime(error)) => Err(self.pull_failed(request, &words::runtime_error(&error))),
        }
    }

    fn back_off(&self, request: &ImageRequest, wait: PullWait) -> ImageFailure {
        let message = words::backing_off(image_of(request));
        self.tell(request, PodEvent::normal(event::BACKOFF, &message));
        ImageFailure {
            reason: reason::BACKOFF,
            message: match wait.error {
                Some(error) => format!("{message}: {error}"),
                None => message,
            },
            retry_at: Some(self.clock.now().plus(wait.remaining)),
        }
    }

    fn pull_failed(&self, request: &ImageRequest, error: &str) -> ImageFailure {
        let image = image_of(request);
        self.tell(
            request,
            PodEvent::warning(event::FAILED, words::pull_failed(image, error)),
        );
        let (reason, message) = words::pull_failure(image, error);
        let delay = unpoisoned(&self.backoff).fail(
            &uid_of(request),
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

    /// The runtime's own word for the image, with its user. Without the status nobody knows which user that is, and a guess
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
                let message = words::inspect_failed(image_of(request), &error);
                self.tell(request, PodEvent::warning(event::INSPECT_FAILED, &message));
                Err(failure(reason::INSPECT, message))
            }
        }
    }

    fn tell(&self, request: &ImageRequest, event: PodEvent) {
        self.events
            .record(&request.pod, event.of_container(&request.container.name));
    }
}

#[async_trait]
impl ImageProvider for Images {
    async fn ensure(&self, request: ImageRequest) -> Result<PresentImage, ImageFailure> {
        let result = self.obtain(&request).await;
        if let Err(failure) = &result {
            let message = format!("Error: {}", failure.reason);
            self.tell(&request, PodEvent::warning(event::FAILED, message));
        }
        result
    }

    async fn present(&self, request: &ImageRequest) -> Option<PresentImage> {
        if PullPolicy::of(request) == PullPolicy::Always {
            return None;
        }
        let spec = image_spec(request).ok()?;
        let answer = self.reader.image_status(spec, false).await.ok()?;
        answer.image.and_then(present_image)
    }

    fn record_present(&self, request: &ImageRequest) {
        let verified = self.settings.ensure_secret_pulled_images;
        let message = words::already_present(image_of(request), verified);
        self.tell(request, PodEvent::normal(event::PULLED, message));
    }

    fn forget_pod(&self, uid: &PodUid) {
        unpoisoned(&self.backoff).forget_pod(uid);
    }
}

fn image_of(request: &ImageRequest) -> &str {
    request.container.image.as_deref().unwrap_or_default()
}

fn uid_of(request: &ImageRequest) -> PodUid {
    PodUid::new(request.pod.metadata.uid.clone().unwrap_or_default())
}

fn image_spec(request: &ImageRequest) -> Result<v1::ImageSpec, ReferenceError> {
    Ok(v1::ImageSpec {
        image: with_default_tag(image_of(request))?,
        annotations: request.pod.metadata.annotations.clone().unwrap_or_default(),
        ..v1::ImageSpec::default()
    })
}

/// An image without an id counts as none.
fn present_image(image: v1::Image) -> Option<PresentImage> {
    if image.id.is_empty() {
        return None;
    }
    let image_ref = image.id.clone();
    let (uid, username) = user_of(image);
    Some(PresentImage {
        image_ref,
        uid,
        username,
    })
}

fn user_of(image: v1::Image) -> (Option<i64>, String) {
    match image.uid {
        Some(uid) => (Some(uid.value), String::new()),
        None => (None, image.username),
    }
}

fn failure(reason: &'static str, message: String) -> ImageFailure {
    ImageFailure {
        reason,
        message,
        retry_at: None,
    }
}
