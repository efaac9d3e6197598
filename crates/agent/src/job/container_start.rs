//! Starting one container: image, files, configuration, create, start, postStart hook.
//!
//! Owns the backoff of restarts, the waiting reason when a start fails, and the adoption of what an unanswered call has made. It
//! cannot stop anything: a container whose hook failed is handed back to be killed.

use futures_util::future::FutureExt as _;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Container;
use rubelet_lifecycle::allocation::{Allocation, ResourceNumbers};
use rubelet_lifecycle::backoff::CrashBackoff;
use rubelet_lifecycle::configuration::security::ImageUser;
use rubelet_lifecycle::configuration::{ContainerInputs, container_config, log_paths};
use rubelet_lifecycle::deliberate::{Bug, is_on};
use rubelet_lifecycle::hash::container_hash;
use rubelet_lifecycle::plan::{
    ContainerRecovery, InFlightContainer, KillContainer, StartContainer, StartReason, recover_container,
    reserved_for,
};
use rubelet_lifecycle::pod_state::Retry;
use rubelet_lifecycle::status::StartFailure;
use rubelet_model::message::bounded;
use rubelet_model::observation::{ContainerId, ContainerKind, PodObservation};
use rubelet_ports::{PodEvent, PresentImage, RuntimeError, RuntimeErrorKind};
use rubelet_storage::image_volumes;
use rubelet_wire::cri::v1::{ContainerConfig, ImageSpec};

use super::IN_FLIGHT_LOOK;
use super::context::{Interrupted, JobContext, not_found_is_fine};
use super::files::{ContainerFiles, create_container_files, restart_count_from_logs};
use super::hooks::run_post_start;
use super::host::PodHost;
use super::images::{self, VolumeImages};
use super::permit::StartPermit;
use super::sandbox::{ActiveSandbox, outcome_is_unknown};
use super::status::StatusPublisher;
use super::variables::read_variables;
use super::volumes::Volumes;
use crate::garbage::{LogLink, link_log};
use crate::metrics::container_type;
use crate::startup::StartupTimes;

/// Waiting reasons of containers that the runtime did not create or start.
const CONFIG_ERROR: &str = "CreateContainerConfigError";
const CREATE_ERROR: &str = "CreateContainerError";
const RUN_ERROR: &str = "RunContainerError";
/// How the runtime's message begins when it could not mount an image volume.
const IMAGE_VOLUME_MOUNT_FAILED: &str = "ImageVolumeMountFailed";

/// What is known of the pod's starts from one job to the next.
#[derive(Default)]
pub(super) struct ContainerMemory {
    pub(super) backoff: CrashBackoff,
    /// Containers that were asked for, with an unknown outcome, by name.
    in_flight: BTreeMap<String, InFlightContainer>,
    /// Whether a container was started that had a predecessor, since this was last reported.
    has_restarted: bool,
}

impl ContainerMemory {
    pub(super) fn new(backoff: CrashBackoff) -> Self {
        Self {
            backoff,
            ..Self::default()
        }
    }

    pub(super) fn take_restarted(&mut self) -> bool {
        std::mem::take(&mut self.has_restarted)
    }
}

/// Why a container did not start.
pub(super) enum StartError {
    /// The job cannot go on.
    Job(Interrupted),
    /// The container waits, for a reason that its status shows, and is worth another try at this time.
    Container { failure: StartFailure, retry: Retry },
    /// It runs, but its postStart hook failed: it has to be killed.
    Hook {
        failure: StartFailure,
        kill: Box<KillContainer>,
    },
}

impl StartError {
    fn failure(&self) -> Option<&StartFailure> {
        match self {
            Self::Job(_) => None,
            Self::Container { failure, .. } | Self::Hook { failure, .. } => Some(failure),
        }
    }
}

impl From<Interrupted> for StartError {
    fn from(interrupted: Interrupted) -> Self {
        Self::Job(interrupted)
    }
}

pub(super) fn failure(reason: &str, message: &str) -> StartFailure {
    StartFailure {
        reason: reason.to_owned(),
        message: bounded(message),
    }
}

/// The start of one container.
pub(super) struct ContainerStart<'a> {
    pub(super) context: &'a JobContext,
    pub(super) permit: &'a StartPermit<'a>,
    pub(super) memory: &'a mut ContainerMemory,
    pub(super) host: &'a PodHost,
    pub(super) volumes: &'a Volumes,
    pub(super) times: &'a StartupTimes,
    /// The status shows what was done so far while an image is pulled.
    pub(super) status: &'a mut StatusPublisher,
    pub(super) observation: &'a PodObservation,
    pub(super) sandbox: &'a mut ActiveSandbox,
    pub(super) step: &'a StartContainer,
    pub(super) container: Container,
}

impl ContainerStart<'_> {
    pub(super) async fn run(mut self, image: Option<PresentImage>) -> Result<(), StartError> {
        let starts = &self.context.ports().metrics.starts;
        let container_type = container_type(self.step.kind);
        starts.containers.with_label_values(&[container_type]).inc();
        let started = self.start(image).boxed().await;
        if let Some(failure) = started.as_ref().err().and_then(StartError::failure) {
            // There are few reasons: they are upstream's.
            let labels = [container_type, failure.reason.as_str()];
            starts.container_errors.with_label_values(&labels).inc();
        }
        started
    }

    async fn start(&mut self, image: Option<PresentImage>) -> Result<(), StartError> {
        if let Some((key, exited_at)) = &self.step.backoff {
            let now = self.context.now();
            self.memory.backoff.step(key.clone(), *exited_at, now);
        }
        if let Some((created, count)) = self.left_created() {
            // Also when it fails: the answer may be lost and the container run, so only a new look may make another one.
            return self.run_created(&created, count).boxed().await;
        }
        self.remove_outdated().await?;
        let image = match image {
            Some(image) => {
                let request = images::request(self.context, &self.container);
                self.context.ports().images.record_present(&request);
                image
            }
            None => {
                // A pull can take long: others may start meanwhile, and the status shows what was done so far.
                self.permit.release();
                if self.context.acted_at() > self.status.published_at() && self.step.publishes_progress {
                    let so_far = self.context.look().await?;
                    self.status.publish(&so_far, self.host).await;
                }
                let container = self.container.clone();
                self.pull(&container).await?
            }
        };
        let volume_images = self.volume_images().await?;
        let count = u64::try_from(volume_images.len()).unwrap_or(u64::MAX);
        let started = self.create_and_start(image, volume_images).boxed().await;
        self.count_image_volumes(count, &started);
        started
    }

    async fn pull(&mut self, container: &Container) -> Result<PresentImage, StartError> {
        let config = self.sandbox.config(self.context, self.host).await?;
        images::pull(self.context, container, config, self.volumes, self.times).await
    }

    /// The images of the container's image volumes, pulled where they have to be.
    async fn volume_images(&mut self) -> Result<VolumeImages, StartError> {
        let context = self.context;
        let mut found = VolumeImages::new();
        let mounts = self.container.volume_mounts.clone().unwrap_or_default();
        for volume in image_volumes(&context.pod, &mounts) {
            // Events and status name the container: it is the container that waits for the image.
            let wanted = Container {
                name: self.container.name.clone(),
                image: Some(volume.reference.clone()),
                image_pull_policy: volume.pull_policy,
                ..Container::default()
            };
            let request = images::request(context, &wanted);
            let provider = &context.ports().images;
            let what = format!("a look at the image of volume {}", volume.volume);
            let look = context.read(what, provider.present(&request));
            let image = match self.permit.during_call(look).await? {
                Some(image) => {
                    provider.record_present(&request);
                    image
                }
                None => {
                    self.permit.release();
                    self.pull(&wanted).await?
                }
            };
            let spec = ImageSpec {
                image: image.image_ref,
                user_specified_image: volume.reference,
                annotations: context.pod.metadata.annotations.clone().unwrap_or_default(),
                ..ImageSpec::default()
            };
            found.insert(volume.volume, spec);
        }
        Ok(found)
    }

    /// What became of the container's image volumes.
    fn count_image_volumes(&self, count: u64, started: &Result<(), StartError>) {
        if count == 0 || matches!(started, Err(StartError::Job(_))) {
            return;
        }
        let volumes = &self.context.ports().metrics.starts.image_volumes;
        volumes.requested.inc_by(count);
        let failure = started.as_ref().err().and_then(StartError::failure);
        let is_mount_failure = failure.is_some_and(|failure| {
            failure.reason == CREATE_ERROR && failure.message.starts_with(IMAGE_VOLUME_MOUNT_FAILED)
        });
        if is_mount_failure {
            volumes.failed.inc_by(count);
        } else {
            volumes.mounted.inc_by(count);
        }
    }

    /// A container that was created and never started, as after a crash between the two calls: it is started, not doubled.
    fn left_created(&self) -> Option<(ContainerId, u32)> {
        if self.step.reason != StartReason::OnlyCreated {
            return None;
        }
        let seen = self.observation.newest_container(&self.container.name)?;
        let is_usable = seen.sandbox_id == self.sandbox.id && seen.hash == container_hash(&self.container);
        is_usable.then(|| (seen.id.clone(), seen.restart_count))
    }

    /// One that was created from an older definition: if its start got no answer, it may still come to life, beside its successor.
    async fn remove_outdated(&self) -> Result<(), Interrupted> {
        let seen = self.observation.newest_container(&self.step.name);
        let is_outdated = self.step.reason == StartReason::OnlyCreated;
        let Some(seen) = seen.filter(|seen| is_outdated && seen.sandbox_id == self.sandbox.id) else {
            return Ok(());
        };
        let what = format!("the runtime to remove container {} of before", self.step.name);
        remove_container(self.context, &seen.id, what).await
    }

    /// How often the container was started before.
    async fn restart_count(&self) -> Result<u32, Interrupted> {
        let context = self.context;
        let name = &self.container.name;
        let restart_count = match self.observation.newest_container(name) {
            Some(seen) => seen.restart_count.saturating_add(1),
            None => {
                let logs = restart_count_from_logs(&context.agent, &context.pod, name);
                let what = format!("a look at the logs of container {name}");
                context.read(what, logs).await?
            }
        };
        // A try without an answer keeps its number: the runtime may still be at it, and two must not come of it.
        let asked = self.memory.in_flight.get(name);
        Ok(asked
            .filter(|asked| asked.sandbox_id == self.sandbox.id)
            .map_or(restart_count, |asked| asked.restart_count.max(restart_count)))
    }

    /// The container waits, and an event says why, as upstream's does.
    fn refuse(&self, reason: &str, message: &str, retry: Retry) -> StartError {
        let event = PodEvent::warning("Failed", format!("Error: {message}"));
        self.context.record(event.of_container(&self.container.name));
        StartError::Container {
            failure: failure(reason, message),
            retry,
        }
    }

    /// The same for something that may also be cancelled.
    fn refuse_config(&self, error: Interrupted<String>, retry: Retry) -> StartError {
        match error {
            Interrupted::Cancelled => StartError::Job(Interrupted::Cancelled),
            Interrupted::Failed(message) => self.refuse(CONFIG_ERROR, &message, retry),
        }
    }

    fn soon(&self) -> Retry {
        Retry::At(self.context.now().plus(IN_FLIGHT_LOOK))
    }

    /// Everything that the container needs before the runtime creates it.
    async fn prepare(
        &self,
        image: PresentImage,
        volume_images: VolumeImages,
        restart_count: u32,
    ) -> Result<ContainerConfig, StartError> {
        let (context, container) = (self.context, &self.container);
        let pod_ips = &self.sandbox.ips;
        let files = create_container_files(&context.agent, &context.pod, &context.uid, container, pod_ips);
        let files = context
            .try_read(format!("the files of container {}", container.name), files)
            .await
            .map_err(|error| self.refuse_config(error.map(|error| error.to_string()), Retry::Later))?;
        let variables = read_variables(context, container)
            .await
            .map_err(|error| self.refuse_config(error, self.soon()))?;
        let mounts = self
            .volumes
            .container_mounts(container, volume_images, self.host, pod_ips, &variables)
            .await
            .map_err(|error| self.refuse_config(error, Retry::Later))?;
        let inputs = ContainerInputs {
            mounts,
            restart_count,
            env_files: variables.files,
            env_objects: variables.objects,
            service_environment: variables.services,
            ..self.inputs(image, files)
        };
        let config = container_config(&context.pod, container, &context.agent.settings.node, &inputs);
        config.map_err(|error| self.refuse(CONFIG_ERROR, &error.to_string(), Retry::Later))
    }

    fn inputs(&self, image: PresentImage, files: ContainerFiles) -> ContainerInputs {
        let target = match self.step.kind {
            ContainerKind::Ephemeral => self.target(),
            ContainerKind::Init | ContainerKind::Sidecar | ContainerKind::Regular => None,
        };
        ContainerInputs {
            image_ref: image.image_ref,
            image_user: match image.uid {
                Some(uid) => ImageUser::Id(uid),
                None if image.username.is_empty() => ImageUser::default(),
                None => ImageUser::Name(image.username),
            },
            hash: container_hash(&self.container),
            pod_ips: self.addresses(),
            host_ips: self.context.host_ips(),
            hosts_file: files.hosts_file,
            termination_message_file: files.termination_message_file,
            target_container_id: target,
            own_users: self.host.user_namespace(),
            ..ContainerInputs::default()
        }
    }

    /// A pod on the node's network has the node's addresses, once there is a cluster that knows them.
    fn addresses(&self) -> Vec<String> {
        let context = self.context;
        let has_api = context.ports().api.pods.is_some();
        match self.sandbox.ips.is_empty() && context.is_on_host_network() && has_api {
            true => context.host_ips().iter().map(ToString::to_string).collect(),
            false => self.sandbox.ips.clone(),
        }
    }

    /// The container whose processes an ephemeral container joins.
    fn target(&self) -> Option<String> {
        let mut ephemeral = self
            .context
            .pod
            .spec
            .as_ref()?
            .ephemeral_containers
            .iter()
            .flatten();
        let this = ephemeral.find(|one| one.name == self.container.name)?;
        let target = this.target_container_name.as_ref()?;
        let target = self.observation.newest_active_container(target);
        target.map(|container| container.id.to_string())
    }

    async fn create_and_start(
        &mut self,
        image: PresentImage,
        volume_images: VolumeImages,
    ) -> Result<(), StartError> {
        let (context, permit) = (self.context, self.permit);
        let name = self.container.name.clone();
        let prepared = async {
            let restart_count = self.restart_count().await?;
            let config = self.prepare(image, volume_images, restart_count).await?;
            Ok::<_, StartError>((restart_count, config))
        }
        .boxed();
        let (restart_count, config) = permit.during_host_work(prepared).await?;
        let sandbox_config = self.sandbox.config(context, self.host);
        let sandbox_config = permit.during_host_work(sandbox_config).await?;
        permit.during_host_work(self.record_resources()).await?;
        permit.acquire().await?;
        context.check_cancelled()?;
        let writer = &context.ports().runtime_writer;
        let asked_at = context.now();
        let create = writer.create_container(self.sandbox.id.as_str(), config, sandbox_config);
        let what = format!("the runtime to create container {name}");
        let id = match permit.write(what, create).await {
            Ok(id) => {
                self.memory.in_flight.remove(&name);
                let created = PodEvent::normal("Created", "Container created");
                context.record(created.of_container(&name));
                ContainerId::new(id)
            }
            Err(Interrupted::Cancelled) => return Err(StartError::Job(Interrupted::Cancelled)),
            Err(Interrupted::Failed(error)) => {
                permit.release();
                let asked = InFlightContainer {
                    name,
                    sandbox_id: self.sandbox.id.clone(),
                    restart_count,
                    hash: container_hash(&self.container),
                    asked_at,
                    holder: reserved_for(error.message()).map(ContainerId::from),
                };
                match self.create_failed(asked, &error).await? {
                    Some(id) => id,
                    None => return Ok(()),
                }
            }
        };
        self.run_created(&id, restart_count).boxed().await
    }

    /// The container gets what is allocated to it. A container that gets something else than the one before has this on disk first: after
    /// a crash it would be restarted for its resize again.
    async fn record_resources(&self) -> Result<(), StartError> {
        let (context, name) = (self.context, &self.container.name);
        let is_resizable = self.step.kind != ContainerKind::Ephemeral;
        if !is_resizable || is_on(Bug::ActuationForgotten) {
            return Ok(());
        }
        let records = &context.agent.resources.actuated;
        let known = records.get(&context.uid);
        let before = known.as_ref().and_then(|known| known.numbers(name));
        let mut record = known.map_or_else(|| Allocation::asked(&context.pod), |known| (*known).clone());
        let own = self.container.resources.clone().unwrap_or_default();
        let pod = context.pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
        let numbers = ResourceNumbers::of(pod, &own);
        if before == Some(numbers) {
            return Ok(());
        }
        record.containers.insert(name.clone(), numbers.written(own));
        records.set(&context.uid, record);
        if before.is_none() {
            return Ok(());
        }
        let saved = context
            .waits
            .named("the record of the pod's resources", records.saved());
        saved.await.map_err(|error| {
            let message = format!("cannot record the container's new resources: {error}");
            self.refuse(CREATE_ERROR, &message, Retry::Later)
        })
    }

    /// The container that was created after all and needs its start. `None`: it runs or ran, and the next plan finds it.
    async fn create_failed(
        &mut self,
        mut asked: InFlightContainer,
        error: &RuntimeError,
    ) -> Result<Option<ContainerId>, StartError> {
        let context = self.context;
        let name = asked.name.clone();
        let in_flight = &mut self.memory.in_flight;
        if !outcome_is_unknown(error) {
            if error.kind() == RuntimeErrorKind::Unavailable {
                in_flight.entry(name).or_insert(asked);
            }
            return Err(self.refuse(CREATE_ERROR, error.message(), context.retry_after(error)));
        }
        let first = in_flight.get(&name);
        if let Some(first) = first.filter(|first| first.restart_count == asked.restart_count) {
            asked.asked_at = first.asked_at.min(asked.asked_at);
        }
        in_flight.insert(name.clone(), asked.clone());
        let observation = context.look().await?;
        let recovery = recover_container(&asked, &observation, context.now());
        context.note(format!("{error}; {recovery:?}"));
        match recovery {
            ContainerRecovery::Start { id } => return Ok(Some(id)),
            ContainerRecovery::Adopt { .. } => {
                self.memory.in_flight.remove(&name);
                return Ok(None);
            }
            ContainerRecovery::Remove { id } => {
                let what = format!("the runtime to remove a broken container {name}");
                remove_container(context, &id, what).await?;
                self.memory.in_flight.remove(&name);
            }
            ContainerRecovery::Wait { .. } | ContainerRecovery::Retry => {}
        }
        Err(self.refuse(CREATE_ERROR, error.message(), self.soon()))
    }

    /// Starts a container that exists, and runs its hook.
    async fn run_created(&mut self, id: &ContainerId, restart_count: u32) -> Result<(), StartError> {
        let (context, permit) = (self.context, self.permit);
        let name = self.container.name.as_str();
        permit.acquire().await?;
        // A pod that has to end meanwhile starts nothing any more, whatever was created for it.
        context.check_cancelled()?;
        let call = context.ports().runtime_writer.start_container(id.as_str());
        let what = format!("the runtime to start container {name}");
        match permit.write(what, call).await {
            Ok(()) => {}
            Err(Interrupted::Cancelled) => return Err(StartError::Job(Interrupted::Cancelled)),
            Err(Interrupted::Failed(error)) => {
                return Err(self.refuse(RUN_ERROR, error.message(), context.retry_after(&error)));
            }
        }
        let started = PodEvent::normal("Started", "Container started");
        context.record(started.of_container(name));
        self.memory.in_flight.remove(name);
        self.memory.has_restarted |= restart_count > 0;
        permit.during_host_work(self.link_log(id, restart_count)).await;
        run_post_start(context, permit, self.volumes, &self.container, id, self.sandbox).await
    }

    /// Log agents find the log by a link that names pod and container.
    async fn link_log(&self, id: &ContainerId, restart_count: u32) {
        let context = self.context;
        let settings = &context.agent.settings;
        let container = &self.container.name;
        let logs = log_paths::pod_logs_dir(&settings.node.pod_logs_dir, &context.pod);
        let log_file = Path::new(&logs).join(log_paths::container_log_path(container, restart_count));
        let link = LogLink {
            directory: &settings.container_logs_dir,
            pod: &context.pod,
            container,
            container_id: id.as_str(),
            log_file: &log_file,
        };
        let ports = context.ports();
        let linked = link_log(ports.file_reader.as_ref(), ports.file_writer.as_ref(), link);
        let linked = context
            .waits
            .named("the link to the container's log", linked)
            .await;
        if let Err(error) = linked {
            tracing::warn!(container, %error, "The link to the container's log cannot be made");
        }
    }
}

/// Removes a container at the runtime; its log stays.
pub(super) async fn remove_container(
    context: &JobContext,
    id: &ContainerId,
    what: String,
) -> Result<(), Interrupted> {
    let writer = Arc::clone(&context.ports().runtime_writer);
    let removal = async { not_found_is_fine(writer.remove_container(id.as_str()).await) };
    let removed = context.write(what, removal).await;
    removed.map_err(|error| error.map(|error| context.runtime_failed(&error)))
}
