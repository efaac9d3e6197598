//! The edges of the image actor, in memory. Futures are polled by hand, so that tests see each state in between.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_fakes::events::Recorded;
pub(crate) use rubelet_fakes::{ManualClock, PodEvents};
use rubelet_images::{Images, ImagesSettings};
use rubelet_model::Timestamp;
use rubelet_ports::{
    Clock, EventRecorder, ImageFailure, ImageProvider, ImageReader, ImageRequest, ImageWriter, PresentImage,
    RuntimeError, RuntimeErrorKind,
};
use rubelet_wire::cri::v1;
use tokio::sync::Semaphore;

/// Wall time when the clock begins.
pub(crate) const START: Timestamp = Timestamp::from_unix_seconds(1_000_000);

#[derive(Default)]
struct ServiceState {
    images: BTreeMap<String, v1::Image>,
    /// What registries have: pulling makes it an image of the node.
    registry: BTreeMap<String, v1::Image>,
    inspect_error: Option<RuntimeError>,
    pull_error: Option<RuntimeError>,
    /// The status of a pulled image cannot be had.
    blind_after_pull: bool,
    /// Pulls are answered with something else than the image's id.
    answers_with_digests: bool,
    pulled: Vec<v1::ImageSpec>,
    sandboxes: Vec<Option<v1::PodSandboxConfig>>,
    /// Images that need one of these passwords.
    passwords: BTreeMap<String, Vec<String>>,
    /// Passwords that were shown, in order.
    shown: Vec<Option<String>>,
    in_flight: usize,
    most_in_flight: usize,
}

/// An image service. Pulls end only when told, if it is a slow one.
pub(crate) struct FakeService {
    state: Mutex<ServiceState>,
    slow: Option<Semaphore>,
}

impl FakeService {
    fn with<T>(&self, act: impl FnOnce(&mut ServiceState) -> T) -> T {
        act(&mut self.state.lock().unwrap())
    }

    pub(crate) fn add_present(&self, name: &str, image: v1::Image) {
        self.with(|state| state.images.insert(name.to_owned(), image));
    }

    pub(crate) fn add_to_registry(&self, name: &str, image: v1::Image) {
        self.with(|state| state.registry.insert(name.to_owned(), image));
    }

    pub(crate) fn fail_inspect(&self, error: Option<RuntimeError>) {
        self.with(|state| state.inspect_error = error);
    }

    pub(crate) fn fail_pull(&self, error: Option<RuntimeError>) {
        self.with(|state| state.pull_error = error);
    }

    pub(crate) fn hide_status_after_pull(&self) {
        self.with(|state| state.blind_after_pull = true);
    }

    pub(crate) fn answer_with_digests(&self) {
        self.with(|state| state.answers_with_digests = true);
    }

    pub(crate) fn pulls(&self) -> Vec<String> {
        self.with(|state| state.pulled.iter().map(|spec| spec.image.clone()).collect())
    }

    /// The registry gives this image for these passwords only.
    pub(crate) fn protect(&self, name: &str, passwords: &[&str]) {
        let passwords = passwords.iter().map(|password| (*password).to_owned()).collect();
        self.with(|state| state.passwords.insert(name.to_owned(), passwords));
    }

    /// The passwords that pulls showed since the last time.
    pub(crate) fn shown(&self) -> Vec<Option<String>> {
        self.with(|state| std::mem::take(&mut state.shown))
    }

    pub(crate) fn remove(&self, name: &str) {
        self.with(|state| state.images.remove(name));
    }

    pub(crate) fn last_pull(&self) -> (v1::ImageSpec, Option<v1::PodSandboxConfig>) {
        self.with(|state| {
            (
                state.pulled.last().unwrap().clone(),
                state.sandboxes.last().unwrap().clone(),
            )
        })
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.with(|state| state.in_flight)
    }

    pub(crate) fn most_in_flight(&self) -> usize {
        self.with(|state| state.most_in_flight)
    }

    /// Lets this many pulls end.
    pub(crate) fn finish(&self, count: usize) {
        self.slow.as_ref().unwrap().add_permits(count);
    }
}

struct InFlight<'s>(&'s FakeService);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.with(|state| state.in_flight -= 1);
    }
}

pub(crate) fn runtime_error(kind: RuntimeErrorKind, message: &str) -> RuntimeError {
    RuntimeError::new("Call", "unix:///fake.sock", kind, message)
}

#[async_trait]
impl ImageReader for FakeService {
    async fn list_images(&self, _: Option<v1::ImageFilter>) -> Result<Vec<v1::Image>, RuntimeError> {
        Ok(self.with(|state| state.images.values().cloned().collect()))
    }

    async fn image_status(
        &self,
        image: v1::ImageSpec,
        _: bool,
    ) -> Result<v1::ImageStatusResponse, RuntimeError> {
        self.with(|state| match &state.inspect_error {
            Some(error) => Err(error.clone()),
            None => Ok(v1::ImageStatusResponse {
                image: state.images.get(&image.image).cloned(),
                ..v1::ImageStatusResponse::default()
            }),
        })
    }

    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse, RuntimeError> {
        Err(runtime_error(RuntimeErrorKind::Unimplemented, "no such call"))
    }
}

#[async_trait]
impl ImageWriter for FakeService {
    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String, RuntimeError> {
        let password = auth.map(|auth| auth.password);
        self.with(|state| {
            state.shown.push(password.clone());
            state.pulled.push(image.clone());
            state.sandboxes.push(sandbox_config);
            state.in_flight += 1;
            state.most_in_flight = state.most_in_flight.max(state.in_flight);
        });
        let in_flight = InFlight(self);
        if let Some(slow) = &self.slow {
            slow.acquire().await.unwrap().forget();
        }
        drop(in_flight);
        self.with(|state| {
            if let Some(error) = &state.pull_error {
                return Err(error.clone());
            }
            if let Some(passwords) = state.passwords.get(&image.image)
                && !password
                    .as_ref()
                    .is_some_and(|password| passwords.contains(password))
            {
                let shown = password.unwrap_or_default();
                let message = format!("401 Unauthorized for password {shown}");
                return Err(runtime_error(RuntimeErrorKind::Unknown, &message));
            }
            let Some(found) = state.registry.get(&image.image).cloned() else {
                return Err(runtime_error(RuntimeErrorKind::NotFound, "no such image"));
            };
            if state.blind_after_pull {
                state.inspect_error = Some(runtime_error(RuntimeErrorKind::Unavailable, "gone"));
            }
            let id = found.id.clone();
            state.images.insert(image.image, found);
            Ok(match state.answers_with_digests {
                true => format!("digest of {id}"),
                false => id,
            })
        })
    }

    async fn remove_image(&self, image: v1::ImageSpec) -> Result<(), RuntimeError> {
        self.with(|state| state.images.remove(&image.image));
        Ok(())
    }
}

/// The actor with its edges.
pub(crate) struct Bench {
    pub(crate) images: Arc<Images>,
    pub(crate) service: Arc<FakeService>,
    pub(crate) clock: Arc<ManualClock>,
    events: Arc<PodEvents>,
}

impl Bench {
    /// Pulls of a fast service end at once.
    pub(crate) fn fast(settings: ImagesSettings) -> Self {
        Self::new(settings, None)
    }

    /// Pulls of a slow service end when told.
    pub(crate) fn slow(settings: ImagesSettings) -> Self {
        Self::new(settings, Some(Semaphore::new(0)))
    }

    fn new(settings: ImagesSettings, slow: Option<Semaphore>) -> Self {
        Self::built(settings, slow, |images, _, _| images)
    }

    /// With credentials, records or both.
    pub(crate) fn built(
        settings: ImagesSettings,
        slow: Option<Semaphore>,
        build: impl FnOnce(Images, &Arc<FakeService>, &Arc<ManualClock>) -> Images,
    ) -> Self {
        let service = Arc::new(FakeService {
            state: Mutex::default(),
            slow,
        });
        let clock = Arc::new(ManualClock::new(START));
        let events = Arc::new(PodEvents::default());
        let images = Images::new(
            settings,
            Arc::clone(&service) as Arc<dyn ImageReader>,
            Arc::clone(&service) as Arc<dyn ImageWriter>,
            Arc::clone(&clock) as Arc<dyn Clock>,
            Arc::clone(&events) as Arc<dyn EventRecorder>,
        );
        let images = build(images, &service, &clock);
        Self {
            images: Arc::new(images),
            service,
            clock,
            events,
        }
    }

    /// Events since the last time, as `pod/container type reason: message`.
    pub(crate) fn events(&self) -> Vec<String> {
        let shown = |Recorded { pod_uid, event }: Recorded| {
            format!(
                "{pod_uid}/{} {} {}: {}",
                event.container.as_deref().unwrap_or_default(),
                event.event_type.as_str(),
                event.reason,
                event.message
            )
        };
        self.events.take().into_iter().map(shown).collect()
    }

    pub(crate) fn asking(
        &self,
        request: ImageRequest,
    ) -> BoxFuture<'static, Result<PresentImage, ImageFailure>> {
        let images = Arc::clone(&self.images);
        async move { images.ensure(request).await }.boxed()
    }

    /// An answer that needs nobody else.
    pub(crate) fn ensure(&self, request: ImageRequest) -> Result<PresentImage, ImageFailure> {
        self.asking(request).now_or_never().expect("it waits")
    }
}

/// Polls once.
pub(crate) fn poll<T>(future: &mut BoxFuture<'static, T>) -> Option<T> {
    future.now_or_never()
}

pub(crate) fn image(id: &str, size: u64) -> v1::Image {
    v1::Image {
        id: id.to_owned(),
        size,
        ..v1::Image::default()
    }
}

pub(crate) fn request(uid: &str, image: &str, policy: &str) -> ImageRequest {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(uid.to_owned());
    ImageRequest {
        pod: Arc::new(pod),
        container: Container {
            name: "c".to_owned(),
            image: Some(image.to_owned()),
            image_pull_policy: Some(policy.to_owned()),
            ..Container::default()
        },
        sandbox_config: None,
    }
}
