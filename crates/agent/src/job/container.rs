//! Starting one container: image, files, configuration, create, start.
//!
//! Owns the waiting reason that the status shows when it fails, and the adoption of what an unanswered call has made.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use k8s_openapi::api::core::v1::Container;
use rubelet_lifecycle::configuration::container::ephemeral_as_container;
use rubelet_lifecycle::configuration::security::ImageUser;
use rubelet_lifecycle::configuration::{ContainerInputs, container_config, log_paths};
use rubelet_lifecycle::hash::container_hash;
use rubelet_lifecycle::plan::{
    ContainerRecovery, InFlightContainer, Plan, RemoveReason, StartContainer, StartReason, recover_container,
    reserved_for,
};
use rubelet_lifecycle::pod_state::Retry;
use rubelet_lifecycle::status::StartFailure;
use rubelet_model::message::bounded;
use rubelet_model::observation::{ContainerId, ContainerKind, PodObservation};
use rubelet_ports::{ImageRequest, PodEvent, PresentImage, RuntimeError, RuntimeErrorKind};
use rubelet_wire::cri::v1::ContainerConfig;
use tokio::sync::OwnedSemaphorePermit;

use super::files::{ContainerFiles, create_container_files, restart_count_from_logs};
use super::hooks::is_on_node;
use super::sandbox::{ActiveSandbox, IN_FLIGHT_LOOK, outcome_is_unknown};
use super::stop::not_found_is_fine;
use super::volumes::VolumeImages;
use super::{ASIDE_PATIENCE, PodJob, Stop, giving_way};
use crate::garbage::{LogLink, link_log, remove_logs};
use crate::metrics::container_type;

/// Why containers wait that the runtime did not make.
const CREATE_ERROR: &str = "CreateContainerError";
/// How the runtime's words begin when it could not mount an image volume.
const IMAGE_VOLUME_MOUNT_FAILED: &str = "ImageVolumeMountFailed";

/// Images that need no pull, by container.
pub(super) type PresentImages = BTreeMap<String, Option<PresentImage>>;

/// Why a container did not start, or when it is worth another try.
pub(super) type Started = Result<(), Retry>;

/// A start on its way.
struct Start<'a> {
    container: Container,
    kind: ContainerKind,
    restart_count: u32,
    observation: &'a PodObservation,
    volume_images: VolumeImages,
}

impl PodJob {
    fn container_of(&self, start: &StartContainer) -> Option<Container> {
        let spec = self.pod.spec.as_ref()?;
        match start.kind {
            ContainerKind::Init | ContainerKind::Sidecar => {
                spec.init_containers.as_ref()?.get(start.index).cloned()
            }
            ContainerKind::Regular => spec.containers.get(start.index).cloned(),
            ContainerKind::Ephemeral => spec
                .ephemeral_containers
                .as_ref()?
                .get(start.index)
                .map(ephemeral_as_container),
        }
    }

    /// Looks which images of the plan are there already. Nothing is pulled.
    pub(super) fn present_images(&self, plan: &Plan) -> BoxFuture<'static, PresentImages> {
        let provider = Arc::clone(&self.ports().images);
        let requests: Vec<ImageRequest> = plan
            .starts()
            .filter_map(|start| self.container_of(start))
            .map(|container| ImageRequest {
                pod: Arc::clone(&self.pod),
                container,
                sandbox_config: None,
            })
            .collect();
        async move {
            let looks = requests.into_iter().map(|request| {
                let provider = Arc::clone(&provider);
                async move { (request.container.name.clone(), provider.present(&request).await) }
            });
            join_all(looks).await.into_iter().collect()
        }
        .boxed()
    }

    /// Starts the container in the sandbox.
    pub(super) async fn start_container(
        &mut self,
        observation: &PodObservation,
        start: &StartContainer,
        sandbox: &mut ActiveSandbox,
        image: Option<PresentImage>,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Started, Stop> {
        let container_type = container_type(start.kind);
        let starts = &self.shared.ports.metrics.starts;
        starts.containers.with_label_values(&[container_type]).inc();
        let started = self
            .try_start_container(observation, start, sandbox, image, permit)
            .await;
        if let Ok(Err(_)) = &started {
            // Of reasons there are few: they are upstream's.
            let failure = self.work.start_failures.get(&start.name);
            let code = failure.map_or("", |failure| failure.reason.as_str());
            let starts = &self.shared.ports.metrics.starts;
            starts
                .container_errors
                .with_label_values(&[container_type, code])
                .inc();
        }
        started
    }

    async fn try_start_container(
        &mut self,
        observation: &PodObservation,
        start: &StartContainer,
        sandbox: &mut ActiveSandbox,
        image: Option<PresentImage>,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Started, Stop> {
        let Some(container) = self.container_of(start) else {
            return Err(self.fail(format!("the pod has no container {}", start.name), Retry::Later));
        };
        if let Some((key, exited_at)) = &start.backoff {
            self.work.backoff.step(key.clone(), *exited_at, self.now());
        }
        if let Some(created) = left_created(observation, start, sandbox, &container) {
            let count = observation
                .newest_container(&container.name)
                .map_or(0, |seen| seen.restart_count);
            // Also when it fails: the answer may be lost and the container run, so only a new look may make another one.
            return self
                .run_created(&container, &created, count, sandbox, permit)
                .await;
        }
        self.remove_outdated(observation, start, sandbox).await?;
        let image = match image {
            Some(image) => {
                let request = ImageRequest {
                    pod: Arc::clone(&self.pod),
                    container: container.clone(),
                    sandbox_config: None,
                };
                self.ports().images.record_present(&request);
                image
            }
            None => {
                // A pull can take long: others may start meanwhile, and what is already there shows.
                permit.take();
                if self.work.acted_at > self.published_at && !self.has_killed {
                    let so_far = self.look().await?;
                    self.publish(&so_far, false).await;
                }
                match self.pull(&container, sandbox).await? {
                    Ok(image) => image,
                    Err(retry) => return Ok(Err(retry)),
                }
            }
        };
        let volume_images = match self.volume_images(&container, sandbox, permit).await? {
            Ok(images) => images,
            Err(retry) => return Ok(Err(retry)),
        };
        let mut start = Start {
            container,
            kind: start.kind,
            restart_count: 0,
            observation,
            volume_images,
        };
        let started = self.create_and_start(&mut start, sandbox, image, permit).await;
        if started.is_ok() {
            self.count_image_volumes(&start);
        }
        started
    }

    /// One that was created from an older definition: if its start got no answer, it may still come to life, beside its successor.
    async fn remove_outdated(
        &mut self,
        observation: &PodObservation,
        start: &StartContainer,
        sandbox: &ActiveSandbox,
    ) -> Result<(), Stop> {
        let seen = observation.newest_container(&start.name);
        let is_outdated = start.reason == StartReason::OnlyCreated;
        let Some(seen) = seen.filter(|seen| is_outdated && seen.sandbox_id == sandbox.id) else {
            return Ok(());
        };
        let writer = Arc::clone(&self.ports().runtime_writer);
        let removal = writer.remove_container(seen.id.as_str());
        let what = format!("the runtime to remove container {} of before", start.name);
        not_found_is_fine(self.write(what, removal).await?).map_err(|error| self.runtime_failed(&error))
    }

    /// How often the container was started before.
    async fn restart_count(&self, start: &Start<'_>, sandbox: &ActiveSandbox) -> Result<u32, Stop> {
        let name = &start.container.name;
        let restart_count = match start.observation.newest_container(name) {
            Some(seen) => seen.restart_count.saturating_add(1),
            None => {
                let logs = restart_count_from_logs(&self.shared, &self.pod, name);
                self.read(format!("a look at the logs of container {name}"), logs)
                    .await?
            }
        };
        // A try that got no answer keeps its number: the runtime may still be at it, and two must not come of it.
        let asked = self.work.containers_asked.get(name);
        Ok(asked
            .filter(|asked| asked.sandbox_id == sandbox.id)
            .map_or(restart_count, |asked| asked.restart_count.max(restart_count)))
    }

    /// What became of the container's image volumes.
    fn count_image_volumes(&self, start: &Start<'_>) {
        let count = u64::try_from(start.volume_images.len()).unwrap_or(u64::MAX);
        if count == 0 {
            return;
        }
        let volumes = &self.shared.ports.metrics.starts.image_volumes;
        volumes.requested.inc_by(count);
        let failure = self.work.start_failures.get(&start.container.name);
        let is_mount_failure = |failure: &StartFailure| {
            failure.reason == CREATE_ERROR && failure.message.starts_with(IMAGE_VOLUME_MOUNT_FAILED)
        };
        if failure.is_some_and(is_mount_failure) {
            volumes.failed.inc_by(count);
        } else {
            volumes.mounted.inc_by(count);
        }
    }

    pub(super) async fn pull(
        &mut self,
        container: &Container,
        sandbox: &mut ActiveSandbox,
    ) -> Result<Result<PresentImage, Retry>, Stop> {
        let request = ImageRequest {
            pod: Arc::clone(&self.pod),
            container: container.clone(),
            sandbox_config: Some(self.config_of(sandbox).await?),
        };
        let provider = Arc::clone(&self.ports().images);
        let what = format!(
            "image {} for container {}",
            container.image.as_deref().unwrap_or_default(),
            container.name
        );
        let begun = self.ports().clock.moment();
        let progress = {
            let (provider, uid) = (Arc::clone(&provider), self.uid.clone());
            let image = container.image.clone().unwrap_or_default();
            Box::new(move || provider.progress(&uid, &image))
        };
        let ensuring = self.or_cancelled(self.with_fresh_files(provider.ensure(request)));
        let pulled = self.waits.named_with_progress(what, progress, ensuring).await;
        self.startup.pulled(self.ports().clock.moment().since(begun));
        match pulled? {
            Ok(image) => Ok(Ok(image)),
            Err(failure) => {
                // A failed pull is shown first; that its next try waits is shown a moment later, as upstream does.
                let retry = match failure.reason {
                    "ErrImagePull" => Retry::At(self.now().plus(IN_FLIGHT_LOOK)),
                    _ => failure.retry_at.map_or(Retry::Later, Retry::At),
                };
                self.start_failed(&container.name, failure.reason, &failure.message);
                Ok(Err(retry))
            }
        }
    }

    /// Remembers why the container waits.
    pub(super) fn start_failed(&mut self, name: &str, reason: &str, message: &str) {
        self.waits
            .failed(format!("container {name}: {reason}: {message}"));
        let failure = StartFailure {
            reason: reason.to_owned(),
            message: bounded(message),
        };
        self.work.start_failures.insert(name.to_owned(), failure);
    }

    /// The same, with the event that upstream records for it.
    fn refuse(&mut self, name: &str, reason: &str, message: &str, retry: Retry) -> Retry {
        let event = PodEvent::warning("Failed", format!("Error: {message}"));
        self.record(event.of_container(name));
        self.start_failed(name, reason, message);
        retry
    }

    /// Everything that the container needs before the runtime is asked for it.
    async fn prepare(
        &mut self,
        start: &mut Start<'_>,
        sandbox: &ActiveSandbox,
        image: PresentImage,
    ) -> Result<Result<ContainerConfig, Retry>, Stop> {
        const CONFIG_ERROR: &str = "CreateContainerConfigError";
        start.restart_count = self.restart_count(start, sandbox).await?;
        let name = start.container.name.clone();
        self.ensure_place().await?;
        self.ensure_own_users().await?;
        let shared = Arc::clone(&self.shared);
        let files = create_container_files(&shared, &self.pod, &self.uid, &start.container, &sandbox.ips);
        let files = match self.read(format!("the files of container {name}"), files).await? {
            Ok(files) => files,
            Err(error) => {
                let text = error.to_string();
                return Ok(Err(self.refuse(&name, CONFIG_ERROR, &text, Retry::Later)));
            }
        };
        let variables = match self.variables(&start.container).await? {
            Ok(variables) => variables,
            Err(problem) => {
                let soon = Retry::At(self.now().plus(IN_FLIGHT_LOOK));
                return Ok(Err(self.refuse(&name, CONFIG_ERROR, &problem, soon)));
            }
        };
        let mounts =
            self.container_mounts(&start.container, start.volume_images.clone(), sandbox, &variables);
        let mounts = match mounts.await? {
            Ok(mounts) => mounts,
            Err(failure) => {
                return Ok(Err(self.refuse(
                    &name,
                    CONFIG_ERROR,
                    &failure.message,
                    Retry::Later,
                )));
            }
        };
        let inputs = ContainerInputs {
            mounts,
            env_files: variables.files,
            env_objects: variables.objects,
            service_environment: variables.services,
            ..self.inputs(start, sandbox, image, files)
        };
        let config = container_config(&self.pod, &start.container, &shared.settings.node, &inputs);
        Ok(config.map_err(|error| self.refuse(&name, CONFIG_ERROR, &error.to_string(), Retry::Later)))
    }

    async fn create_and_start(
        &mut self,
        start: &mut Start<'_>,
        sandbox: &mut ActiveSandbox,
        image: PresentImage,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Started, Stop> {
        let name = start.container.name.clone();
        let clock = Arc::clone(&self.ports().clock);
        let prepared = self.prepare(start, sandbox, image);
        let config = match giving_way(clock.as_ref(), permit, ASIDE_PATIENCE, prepared).await? {
            Ok(config) => config,
            Err(retry) => return Ok(Err(retry)),
        };
        let sandbox_config = self.config_of(sandbox);
        let sandbox_config = giving_way(clock.as_ref(), permit, ASIDE_PATIENCE, sandbox_config).await?;
        self.take_permit(permit).await?;
        self.check_cancelled()?;
        let writer = Arc::clone(&self.ports().runtime_writer);
        let asked_at = self.now();
        let create = writer.create_container(sandbox.id.as_str(), config, sandbox_config);
        let what = format!("the runtime to create container {name}");
        let id = match self.write_permitted(permit, what, create).await? {
            Ok(id) => {
                self.work.containers_asked.remove(&name);
                let created = PodEvent::normal("Created", "Container created");
                self.record(created.of_container(&name));
                ContainerId::new(id)
            }
            Err(error) => {
                permit.take();
                let asked = InFlightContainer {
                    name: name.clone(),
                    sandbox_id: sandbox.id.clone(),
                    restart_count: start.restart_count,
                    hash: container_hash(&start.container),
                    asked_at,
                    holder: reserved_for(error.message()).map(ContainerId::from),
                };
                match self.create_failed(asked, &error).await? {
                    Ok(Some(id)) => id,
                    Ok(None) => return Ok(Ok(())),
                    Err(retry) => return Ok(Err(retry)),
                }
            }
        };
        self.run_created(&start.container, &id, start.restart_count, sandbox, permit)
            .await
    }

    fn inputs(
        &self,
        start: &Start<'_>,
        sandbox: &ActiveSandbox,
        image: PresentImage,
        files: ContainerFiles,
    ) -> ContainerInputs {
        let target = match start.kind {
            ContainerKind::Ephemeral => self.target_of(&start.container.name, start.observation),
            ContainerKind::Init | ContainerKind::Sidecar | ContainerKind::Regular => None,
        };
        ContainerInputs {
            image_ref: image.image_ref,
            image_user: match image.uid {
                Some(uid) => ImageUser::Id(uid),
                None if image.username.is_empty() => ImageUser::default(),
                None => ImageUser::Name(image.username),
            },
            restart_count: start.restart_count,
            hash: container_hash(&start.container),
            pod_ips: self.addresses_in(sandbox),
            host_ips: self.host_ips(),
            hosts_file: files.hosts_file,
            termination_message_file: files.termination_message_file,
            target_container_id: target,
            own_users: self.work.own_users.clone(),
            ..ContainerInputs::default()
        }
    }

    /// A pod on the node's network has the node's addresses, once there is a cluster that knows them.
    fn addresses_in(&self, sandbox: &ActiveSandbox) -> Vec<String> {
        let is_nodes = sandbox.ips.is_empty() && is_on_node(&self.pod) && self.shared.ports.api.is_some();
        match is_nodes {
            true => self.host_ips().iter().map(ToString::to_string).collect(),
            false => sandbox.ips.clone(),
        }
    }

    /// The container whose processes an ephemeral container joins.
    fn target_of(&self, name: &str, observation: &PodObservation) -> Option<String> {
        let ephemeral = self.pod.spec.as_ref()?.ephemeral_containers.as_ref()?;
        let target = ephemeral
            .iter()
            .find(|one| one.name == name)?
            .target_container_name
            .as_ref()?;
        observation
            .newest_active_container(target)
            .map(|container| container.id.to_string())
    }

    /// `Ok(Some)`: it was created after all and needs its start. `Ok(None)`: it runs or ran, the next plan sees it.
    async fn create_failed(
        &mut self,
        mut asked: InFlightContainer,
        error: &RuntimeError,
    ) -> Result<Result<Option<ContainerId>, Retry>, Stop> {
        let name = asked.name.clone();
        if !outcome_is_unknown(error) {
            if error.kind() == RuntimeErrorKind::Unavailable {
                self.work.containers_asked.entry(name.clone()).or_insert(asked);
            }
            let retry = self.retry_after(error);
            return Ok(Err(self.refuse(&name, CREATE_ERROR, error.message(), retry)));
        }
        let first = self.work.containers_asked.get(&name);
        if let Some(first) = first.filter(|first| first.restart_count == asked.restart_count) {
            asked.asked_at = first.asked_at.min(asked.asked_at);
        }
        self.work.containers_asked.insert(name.clone(), asked.clone());
        let observation = self.look().await?;
        let recovery = recover_container(&asked, &observation, self.now());
        self.recorder.note(self.now(), format!("{error}; {recovery:?}"));
        let soon = Retry::At(self.now().plus(IN_FLIGHT_LOOK));
        match recovery {
            ContainerRecovery::Start { id } => Ok(Ok(Some(id))),
            ContainerRecovery::Adopt { .. } => {
                self.work.containers_asked.remove(&name);
                Ok(Ok(None))
            }
            ContainerRecovery::Remove { id } => {
                let writer = Arc::clone(&self.ports().runtime_writer);
                let removal = writer.remove_container(id.as_str());
                let what = format!("the runtime to remove a broken container {name}");
                if let Err(error) = not_found_is_fine(self.write(what, removal).await?) {
                    return Err(self.runtime_failed(&error));
                }
                self.work.containers_asked.remove(&name);
                Ok(Err(self.refuse(&name, CREATE_ERROR, error.message(), soon)))
            }
            ContainerRecovery::Wait { .. } | ContainerRecovery::Retry => {
                Ok(Err(self.refuse(&name, CREATE_ERROR, error.message(), soon)))
            }
        }
    }

    /// Starts a container that exists, and runs its hook.
    async fn run_created(
        &mut self,
        container: &Container,
        id: &ContainerId,
        restart_count: u32,
        sandbox: &ActiveSandbox,
        permit: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Started, Stop> {
        let name = container.name.as_str();
        self.take_permit(permit).await?;
        // A pod that has to end meanwhile starts nothing any more, whatever has been made for it.
        self.check_cancelled()?;
        let writer = Arc::clone(&self.ports().runtime_writer);
        let call = writer.start_container(id.as_str());
        let what = format!("the runtime to start container {name}");
        match self.write_permitted(permit, what, call).await? {
            Ok(()) => {
                let started = PodEvent::normal("Started", "Container started");
                self.record(started.of_container(name));
                self.work.start_failures.remove(name);
                self.work.containers_asked.remove(name);
                self.restarted |= restart_count > 0;
                let clock = Arc::clone(&self.ports().clock);
                let linked = self.link_log(name, id, restart_count);
                giving_way(clock.as_ref(), permit, ASIDE_PATIENCE, linked).await;
                self.run_post_start(container, id, sandbox, permit).await
            }
            Err(error) => {
                let retry = self.retry_after(&error);
                Ok(Err(self.refuse(
                    name,
                    "RunContainerError",
                    error.message(),
                    retry,
                )))
            }
        }
    }

    /// Log agents find the log by a link that names pod and container.
    async fn link_log(&self, name: &str, id: &ContainerId, restart_count: u32) {
        let settings = &self.shared.settings;
        let logs = log_paths::pod_logs_dir(&settings.node.pod_logs_dir, &self.pod);
        let log_file = Path::new(&logs).join(log_paths::container_log_path(name, restart_count));
        let link = LogLink {
            directory: &settings.container_logs_dir,
            pod: &self.pod,
            container: name,
            container_id: id.as_str(),
            log_file: &log_file,
        };
        let ports = self.ports();
        let linked = link_log(ports.file_reader.as_ref(), ports.file_writer.as_ref(), link);
        let linked = self.waits.named("the link to the container's log", linked).await;
        if let Err(error) = linked {
            tracing::warn!(pod = %self.uid, container = name, %error, "The link to the container's log cannot be made");
        }
    }

    /// Removes a dead container, and its log unless that is kept.
    pub(super) async fn remove_container(
        &mut self,
        observation: &PodObservation,
        id: &ContainerId,
        name: &str,
        reason: RemoveReason,
    ) -> Result<(), Stop> {
        let writer = Arc::clone(&self.ports().runtime_writer);
        let what = format!("the runtime to remove old container {name}");
        let call = writer.remove_container(id.as_str());
        if let Err(error) = not_found_is_fine(self.write(what, call).await?) {
            return Err(self.runtime_failed(&error));
        }
        let seen = observation
            .containers
            .iter()
            .find(|container| container.id == *id);
        if let Some(seen) = seen.filter(|_| !reason.keeps_logs()) {
            let ports = self.ports();
            let log = Path::new(&seen.log_path);
            // A log that stays goes with its pod.
            let _ = remove_logs(ports.file_reader.as_ref(), ports.file_writer.as_ref(), log).await;
        }
        Ok(())
    }
}

/// A container that was created and never started, as after a crash between the two calls: it is started, not doubled.
fn left_created(
    observation: &PodObservation,
    start: &StartContainer,
    sandbox: &ActiveSandbox,
    container: &Container,
) -> Option<ContainerId> {
    if start.reason != StartReason::OnlyCreated {
        return None;
    }
    let seen = observation.newest_container(&container.name)?;
    (seen.sandbox_id == sandbox.id && seen.hash == container_hash(container)).then(|| seen.id.clone())
}
