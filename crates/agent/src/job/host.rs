//! What the node has for the pod beside its volumes: runtime handler, directories, cgroup, user ids.
//!
//! Owns which of these this run of the agent has made, and the events when one cannot be made. The plan says when.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::allocation::Allocation;
use rubelet_lifecycle::configuration::namespaces::has_own_users;
use rubelet_lifecycle::plan::{CgroupCheck, HostFacts, PrepareReason};
use rubelet_lifecycle::pod_state::Retry;
use rubelet_ports::{ObjectFailure, PodEvent};
use rubelet_wire::cri::v1::UserNamespace;

use super::context::{Interrupted, JobContext};
use super::files::create_pod_directories;
use crate::runtime_health;

/// Killed processes leave a cgroup within moments; one that hangs in the kernel needs further tries.
const CGROUP_REMOVAL_RETRY: Duration = Duration::from_secs(2);

/// What this run of the agent has made for the pod.
#[derive(Default)]
pub(super) struct HostMemory {
    is_prepared: bool,
    cgroup: CgroupCheck,
    user_namespace: Option<UserNamespace>,
    /// Empty for the runtime's default.
    runtime_handler: Option<String>,
}

pub(super) struct PodHost {
    context: Arc<JobContext>,
    pub(super) memory: HostMemory,
}

impl PodHost {
    pub(super) fn new(context: Arc<JobContext>, memory: HostMemory) -> Self {
        Self { context, memory }
    }

    pub(super) fn facts(&self) -> HostFacts {
        HostFacts {
            is_prepared: self.memory.is_prepared,
            cgroup: self.memory.cgroup,
            has_user_ids: self.memory.user_namespace.is_some(),
            has_runtime_handler: self.memory.runtime_handler.is_some(),
        }
    }

    pub(super) fn user_namespace(&self) -> Option<UserNamespace> {
        self.memory.user_namespace.clone()
    }

    pub(super) fn runtime_handler(&self) -> &str {
        self.memory.runtime_handler.as_deref().unwrap_or_default()
    }

    /// Whether the runtime can make a mount read-only with everything below it.
    pub(super) fn supports_recursive_read_only(&self) -> bool {
        let health = self.context.agent.health.borrow();
        let features = health.handlers.get(self.runtime_handler());
        features.is_some_and(|features| features.recursive_read_only_mounts)
    }

    /// The pod counts for its QoS tier and its objects are watched, from its first sync on.
    pub(super) fn register(&self) {
        let context = &self.context;
        context.ports().cgroups.hold(&context.pod);
        if let Some(objects) = &context.ports().api.objects {
            objects.register(&context.pod);
        }
    }

    pub(super) fn unregister_objects(&self) {
        if let Some(objects) = &self.context.ports().api.objects {
            objects.unregister(&self.context.uid);
        }
    }

    /// Containers of an earlier pod of the same UID are gone, and its directories and cgroup with them.
    pub(super) fn forget_prepared(&mut self) {
        self.memory.is_prepared = false;
    }

    /// The status shows whether mounts are recursively read-only, which depends on the handler. A failure counts as no.
    pub(super) async fn find_mount_handler(&mut self) -> Result<(), Interrupted> {
        if !asks_for_recursive_read_only(&self.context.pod) || self.memory.runtime_handler.is_some() {
            return Ok(());
        }
        let Some(class) = runtime_class(&self.context.pod) else {
            return Ok(());
        };
        match self.look_up_handler(&class).await {
            Ok(()) => Ok(()),
            Err(Interrupted::Cancelled) => Err(Interrupted::Cancelled),
            Err(Interrupted::Failed(problem)) => {
                tracing::debug!(problem, "The pod's runtime handler is not known");
                Ok(())
            }
        }
    }

    pub(super) async fn find_runtime_handler(&mut self, class: &str) -> Result<(), Interrupted> {
        let found = self.look_up_handler(class).await;
        found.map_err(|error| error.map(|problem| sandbox_failed(&self.context, &problem)))
    }

    async fn look_up_handler(&mut self, class: &str) -> Result<(), Interrupted<String>> {
        let lookup = async {
            match &self.context.ports().api.objects {
                Some(objects) => objects.runtime_class(class).await,
                None => Err(ObjectFailure::Unavailable("there is no API server".to_owned())),
            }
        };
        let found = self
            .context
            .try_read(format!("the runtime class {class}"), lookup)
            .await;
        let found = found.map_err(|error| {
            error.map(|failure| match failure {
                ObjectFailure::NotFound(text) => text,
                ObjectFailure::Unavailable(text) => format!("failed to lookup RuntimeClass {class}: {text}"),
            })
        })?;
        self.memory.runtime_handler = Some(found.handler.clone());
        Ok(())
    }

    /// The cgroup of a pod that goes on gets what its containers have; a resize changes it in its own order.
    pub(super) async fn create_directories_and_cgroup(
        &mut self,
        reason: PrepareReason,
    ) -> Result<(), Interrupted> {
        let context = &self.context;
        let actuated = &context.agent.resources.actuated;
        let known = actuated.get(&context.uid);
        let has = match (reason, known) {
            (PrepareReason::AgentRestarted, Some(known)) => known.applied(&context.pod),
            (PrepareReason::NewSandbox, _) | (_, None) => {
                actuated.set(&context.uid, Allocation::asked(&context.pod));
                None
            }
        };
        let pod = has.as_ref().unwrap_or(&context.pod);
        self.memory.is_prepared = false;
        let directories = create_pod_directories(&context.agent, &context.pod, &context.uid);
        let directories = context.try_read("the pod's directories", directories);
        // A cancellation does not interrupt the cgroup: one that is half made is more work than a whole one. It has a deadline.
        let cgroup = context.ports().cgroups.create(pod);
        let cgroup = context.waits.named("the pod's cgroup", cgroup);
        let (cgroup, directories) = join(cgroup, directories).await;
        cgroup.map_err(|error| {
            let text = format!("unable to ensure pod container exists: {error}");
            context.record(PodEvent::warning("FailedCreatePodContainer", text));
            context.fail(error.to_string(), Retry::Later)
        })?;
        directories.map_err(|error| {
            error.map(|error| {
                let text = format!("error making pod data directories: {error}");
                context.record(PodEvent::warning("Failed", text));
                context.failed(error.to_string(), Retry::Later)
            })
        })?;
        self.memory.is_prepared = true;
        Ok(())
    }

    /// Whether the cgroup of a pod that ran before this agent exists.
    pub(super) async fn check_cgroup(&mut self) -> Result<(), Interrupted> {
        let context = &self.context;
        let look = context.ports().cgroups.exists(&context.pod);
        self.memory.cgroup = match context.read("a look at the pod's cgroup", look).await? {
            Ok(true) => CgroupCheck::Present,
            Ok(false) => {
                tracing::warn!("The pod's cgroup is gone; the pod is stopped to start under a new one");
                CgroupCheck::Lost
            }
            Err(error) => {
                // No pod is stopped because of a failed check.
                tracing::debug!(%error, "The pod's cgroup cannot be checked");
                CgroupCheck::Present
            }
        };
        Ok(())
    }

    /// Nothing of the pod runs any more, as far as the runtime knows.
    pub(super) fn release_cgroup(&self) {
        self.context.ports().cgroups.release(&self.context.uid);
    }

    /// Kills what the runtime has left in it.
    pub(super) async fn remove_cgroup(&self) -> Result<(), Interrupted> {
        let context = &self.context;
        let removal = context.ports().cgroups.remove(&context.uid);
        let removed = context.waits.named("the pod's cgroup to go", removal).await;
        removed.map_err(|error| {
            let retry = Retry::At(context.now().plus(CGROUP_REMOVAL_RETRY));
            context.fail(error.to_string(), retry)
        })
    }

    /// The pod's directory exists: the allocation is recorded there.
    pub(super) async fn allocate_user_ids(&mut self) -> Result<(), Interrupted> {
        let context = &self.context;
        let agent = &context.agent;
        let handler = self.runtime_handler();
        if let Some(problem) = runtime_health::user_namespace_problem(&agent.health, handler) {
            return Err(Interrupted::Failed(sandbox_failed(context, &problem)));
        }
        // A cancellation does not interrupt it: the record has to be on disk when the range counts as the pod's.
        let range = agent.user_ids.of_pod(&agent.ports, &context.uid);
        let range = context.waits.named("user ids for the pod", range).await;
        let record = range.map_err(|error| {
            let problem = format!("create user namespace: {error}");
            Interrupted::Failed(sandbox_failed(context, &problem))
        })?;
        self.memory.user_namespace = Some(record.namespace());
        Ok(())
    }

    /// Another pod may get the range.
    pub(super) async fn release_user_ids(&mut self) -> Result<(), Interrupted> {
        let context = &self.context;
        if !context.pod.spec.as_ref().is_some_and(has_own_users) {
            return Ok(());
        }
        self.memory.user_namespace = None;
        let released = context.agent.user_ids.release(context.ports(), &context.uid);
        let released = context
            .waits
            .named("the pod's user ids to be released", released)
            .await;
        released.map_err(|error| context.fail(error.to_string(), Retry::Later))
    }
}

/// The sandbox cannot be created for a reason that is not the runtime's.
pub(super) fn sandbox_failed(context: &JobContext, problem: &str) -> Retry {
    let text = format!("Failed to create pod sandbox: {problem}");
    context.record(PodEvent::warning("FailedCreatePodSandBox", text));
    context.failed(problem, Retry::Later)
}

fn runtime_class(pod: &Pod) -> Option<String> {
    let class = pod.spec.as_ref()?.runtime_class_name.clone();
    class.filter(|class| !class.is_empty())
}

fn asks_for_recursive_read_only(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| {
        let init = spec.init_containers.iter().flatten();
        init.chain(&spec.containers)
    });
    let mut mounts = containers.flat_map(|container| container.volume_mounts.iter().flatten());
    mounts.any(|mount| mount.recursive_read_only.is_some())
}
