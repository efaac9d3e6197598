//! What happens at the API server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container, ContainerResizePolicy, EphemeralContainer, Node, PersistentVolumeClaimVolumeSource, Pod,
    Toleration, Volume, VolumeMount,
};
use rubelet_agent::{ApiPorts, NodeNow};
use rubelet_config::FeatureGates;
use rubelet_model::pod::{CONFIG_ANNOTATION_PREFIX, is_mirror_pod};
use rubelet_ports::NoReporter;
use tokio::sync::watch;

use super::{Check, Due, PROMPT_LIMIT, World};
use crate::api::uid_of;
use crate::dice::Dice;
use crate::executor::Life;
use crate::node;
use crate::scenario::{ApiAction, PodShape, ResourceShape};

impl World {
    /// The API server as this life of rubelet sees it, and what it reports through.
    pub(super) fn api_ports(&self, life: &Life) -> (ApiPorts, NodeNow) {
        let Some(api) = &self.api else {
            let api = ApiPorts {
                pods: None,
                objects: None,
                reporter: Arc::new(NoReporter),
            };
            return (api, NodeNow::standalone());
        };
        let node = NodeNow {
            object: watch::channel(Some(Arc::new(known_node()))).1,
            host_ips: Arc::new(node::host_ips()),
            ..NodeNow::standalone()
        };
        let reporter = api.reporter(Arc::new(life.clone()), node.object.clone());
        let api = ApiPorts {
            pods: Some(Arc::new(api.clone())),
            objects: None,
            reporter: Arc::new(reporter),
        };
        (api, node)
    }

    pub(super) fn act_on_api(&mut self, action: ApiAction) {
        match action {
            ApiAction::Create => {
                let shape = self.api_shape(false);
                self.create_api_pod(&shape);
            }
            ApiAction::Replace => {
                if let Some(pod) = self.some_api_pod() {
                    let mut shape = self.api_shape(false);
                    shape.name = pod.metadata.name.clone().unwrap_or_default();
                    self.delete_api_pod(&uid_of(&pod), Some(0));
                    self.create_api_pod(&shape);
                }
            }
            ApiAction::Delete => self.delete_some(None),
            ApiAction::DeleteWithin { seconds } => self.delete_some(Some(seconds)),
            ApiAction::ForceDelete => self.delete_some(Some(0)),
            ApiAction::Edit => self.edit_api_pod(),
            ApiAction::Debug => self.debug_api_pod(),
            ApiAction::Resize(resources) => self.resize_api_pod(resources),
            ApiAction::LoseStatus => {
                if let (Some(pod), Some(api)) = (self.some_api_pod(), &self.api) {
                    api.lose_status(&uid_of(&pod));
                }
            }
            ApiAction::Condition { holds } => {
                if let (Some(pod), Some(api)) = (self.some_api_pod(), &self.api) {
                    api.set_condition(&uid_of(&pod), "example.com/checked", holds);
                }
            }
            ApiAction::Overwrite(overwrite) => {
                // Mirror pods as well.
                let pods = self
                    .api
                    .as_ref()
                    .map(crate::api::SimApi::pods)
                    .unwrap_or_default();
                let place = self.api_dice.aside("overwrite").below(pods.len());
                if let (Some(pod), Some(api)) = (pods.get(place), &self.api) {
                    api.overwrite(&uid_of(pod), overwrite);
                }
            }
            ApiAction::Undecodable {
                restart_after,
                time,
                deletion,
            } => {
                let pods = self.own_api_pods();
                let place = self.api_dice.aside("undecodable").below(pods.len());
                if let (Some(pod), Some(api)) = (pods.get(place), &self.api) {
                    let uid = uid_of(pod);
                    api.set_undecodable(&uid, true);
                    self.after(restart_after, Due::CrashNow);
                    self.after(restart_after + time, Due::Decodable(uid.clone()));
                    if let Some((after, grace)) = deletion {
                        self.after(after, Due::DeleteApiPod(uid, grace));
                    }
                }
            }
            ApiAction::MarkNotReady => {
                if let Some(api) = &self.api {
                    api.mark_all_not_ready();
                }
            }
            ApiAction::Outage { time } => {
                if let Some(api) = &self.api {
                    api.set_up(false);
                    self.after(time, Due::ApiUp);
                }
            }
        }
    }

    pub(super) fn api_up(&self) {
        if let Some(api) = &self.api {
            api.set_up(true);
        }
    }

    fn own_api_pods(&self) -> Vec<Arc<Pod>> {
        let pods = self
            .api
            .as_ref()
            .map(crate::api::SimApi::pods)
            .unwrap_or_default();
        pods.into_iter().filter(|pod| !is_mirror_pod(pod)).collect()
    }

    fn some_api_pod(&mut self) -> Option<Arc<Pod>> {
        let pods = self.own_api_pods();
        let place = self.api_dice.below(pods.len());
        pods.get(place).cloned()
    }

    fn delete_some(&mut self, grace_seconds: Option<i64>) {
        if let Some(pod) = self.some_api_pod() {
            self.delete_api_pod(&uid_of(&pod), grace_seconds);
        }
    }

    pub(super) fn delete_api_pod(&mut self, uid: &str, grace_seconds: Option<i64>) {
        if let Some(api) = &self.api {
            api.delete(uid, grace_seconds);
        }
    }

    pub(super) fn api_shape(&mut self, is_tame: bool) -> PodShape {
        let number = self.next_api_number;
        self.next_api_number += 1;
        let dice = &mut self.api_dice;
        let mut shape = if is_tame {
            PodShape::tame(dice, number)
        } else {
            PodShape::roll(dice, number)
        };
        shape.name = format!("api{number}");
        shape.uid = Some(format!("{number:08x}-api"));
        // Whoever asks for nothing is nobody's victim.
        shape.milli_cpu = 0;
        if !is_tame && dice.aside("drivers").percent(8) {
            shape.needs_driver = true;
            shape.deadline_seconds = None;
        }
        shape
    }

    pub(super) fn create_api_pod(&mut self, shape: &PodShape) {
        let mut pod = api_pod(shape);
        give_resources(&mut pod, &mut self.api_dice.aside("resources"));
        if let Some(api) = &self.api {
            api.create(pod);
        }
    }

    fn edit_api_pod(&mut self) {
        let Some(pod) = self.some_api_pod() else { return };
        let wants_image = self.api_dice.percent(60);
        let Some(api) = &self.api else { return };
        api.change(&uid_of(&pod), |pod| {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert("revision".to_owned(), "edited".to_owned());
            let spec = pod.spec.get_or_insert_default();
            let may_change = wants_image && spec.restart_policy.as_deref() == Some("Always");
            if let Some(container) = spec.containers.first_mut().filter(|_| may_change) {
                container.image = Some("registry.test/app:2".to_owned());
                *pod.metadata.generation.get_or_insert_default() += 1;
            }
        });
    }

    /// Only pods that began with resources in every container, so that the pod as a whole is limited too.
    fn resize_api_pod(&mut self, resources: ResourceShape) {
        let dice = &mut self.api_dice.aside("resizes");
        let is_resizable = |pod: &&Arc<Pod>| {
            let spec = pod.spec.as_ref();
            let mut containers = spec.iter().flat_map(|spec| &spec.containers);
            let has_limits = |one: &Container| one.resources.as_ref().is_some_and(|all| all.limits.is_some());
            pod.metadata.deletion_timestamp.is_none() && containers.any(has_limits)
        };
        let pods = self.own_api_pods();
        let uids: Vec<String> = pods.iter().filter(is_resizable).map(|pod| uid_of(pod)).collect();
        let (Some(api), false) = (&self.api, uids.is_empty()) else {
            return;
        };
        let uid = dice.pick(&uids).clone();
        self.say(format!("{uid} is resized to {resources:?}"));
        api.change(&uid, |pod| {
            let spec = pod.spec.get_or_insert_default();
            let place = dice.below(spec.containers.len());
            if let Some(container) = spec.containers.get_mut(place) {
                container.resources = serde_json::from_value(resources.json()).ok();
            }
            *pod.metadata.generation.get_or_insert_default() += 1;
        });
    }

    /// A container that runs once, beside the others.
    fn debug_api_pod(&mut self) {
        let dice = &mut self.api_dice.aside("debug");
        let pods = self.own_api_pods();
        let mut uids: Vec<String> = Vec::new();
        for pod in pods
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        {
            uids.push(uid_of(pod));
        }
        let (Some(api), false) = (&self.api, uids.is_empty()) else {
            return;
        };
        let uid = dice.pick(&uids).clone();
        let args = *dice.pick(&["runs=forever", "runs=300:0", "runs=4000:1", "runs=5:0"]);
        let image = *dice.pick(&[
            "registry.test/tool:1",
            "registry.test/tool:1",
            "registry.test/missing:1",
        ]);
        self.say(format!("{uid} gets an ephemeral container {args}"));
        api.change(&uid, |pod| {
            let spec = pod.spec.get_or_insert_default();
            let list = spec.ephemeral_containers.get_or_insert_default();
            list.push(EphemeralContainer {
                name: format!("debug{}", list.len()),
                image: Some(image.to_owned()),
                image_pull_policy: Some("IfNotPresent".to_owned()),
                command: Some(vec!["/sim".to_owned()]),
                args: Some(vec![args.to_owned()]),
                ..EphemeralContainer::default()
            });
            *pod.metadata.generation.get_or_insert_default() += 1;
        });
    }

    /// In a calm world a pod from the API server is there at once, and gone at once.
    pub(super) fn come_and_go_by_api(&mut self) -> Check {
        let Some(api) = self.api.clone() else {
            return Ok(());
        };
        let shape = self.api_shape(true);
        let uid = shape.uid.clone().unwrap_or_default();
        self.create_api_pod(&shape);
        self.settle_one(&uid)?;
        self.overwrite_calmly(&uid)?;
        api.delete(&uid, None);
        let until = self.executor.elapsed() + PROMPT_LIMIT;
        if self.run(until, |_| api.pod_of(&uid).is_none())? {
            return Ok(());
        }
        let why = self.explanations();
        Err(format!(
            "{uid} was deleted and is not gone within {PROMPT_LIMIT:?}:\n  {}",
            why.join("\n  ")
        ))
    }

    /// In a calm world the status is the node's again soon after another client has changed it just before a patch.
    fn overwrite_calmly(&mut self, uid: &str) -> Check {
        let overwrites = self.scenario.api.as_ref().map_or(0, |plan| plan.calm_overwrites);
        let (Some(api), 1..) = (self.api.clone(), overwrites) else {
            return Ok(());
        };
        api.overwrite_next(uid, overwrites);
        // Nothing but the generation that the status tells of.
        api.change(uid, |pod| {
            let spec = pod.spec.get_or_insert_default();
            let tolerations = spec.tolerations.get_or_insert_default();
            tolerations.push(Toleration {
                key: Some("example.com/added".to_owned()),
                operator: Some("Exists".to_owned()),
                ..Toleration::default()
            });
            *pod.metadata.generation.get_or_insert_default() += 1;
        });
        let until = self.executor.elapsed() + PROMPT_LIMIT;
        let is_healed = self.run(until, |world| {
            api.has_overwritten(overwrites) && world.checker.check_reported(uid).is_ok()
        })?;
        if is_healed {
            // A change that the patch itself undoes brings no further patch.
            api.overwrite_no_more();
            self.say(format!("{uid} was overwritten: settled"));
            return Ok(());
        }
        let open = match self.checker.check_reported(uid) {
            Ok(()) => format!("{uid} was not patched after another client changed its status"),
            Err(sentence) => sentence,
        };
        Err(format!(
            "overwritten, and not healed within {PROMPT_LIMIT:?}:\n  {open}"
        ))
    }

    /// A static pod that is edited around a restart of rubelet starts without the API server, which may be that pod itself.
    pub(super) fn repair_without_api(&mut self) -> Check {
        let Some(api) = self.api.clone() else {
            return Ok(());
        };
        let mut shape = self.api_shape(true);
        shape.name = format!("static{}", self.next_api_number);
        // Every edit is a new pod.
        shape.uid = None;
        let path = node::manifest_path(&shape.name);
        self.put_manifest(&path, shape.clone());
        self.settle_one(&static_uid(&shape, &path))?;
        api.set_up(false);
        let down = self.api_dice.millis(0, 3000);
        let edited_after = self.api_dice.millis(0, 6000);
        self.crash_rubelet(down);
        let until = self.executor.elapsed() + edited_after;
        self.run(until, |_| false)?;
        shape.edit_image(&mut self.api_dice);
        let uid = static_uid(&shape, &path);
        self.put_manifest(&path, shape);
        self.settle_one(&uid)?;
        self.api_up();
        Ok(())
    }

    pub(super) fn delete_all_api_pods(&mut self) {
        for pod in self.own_api_pods() {
            self.delete_api_pod(&uid_of(&pod), None);
        }
    }

    pub(super) fn api_leftovers(&self) -> Vec<String> {
        let pods = self
            .api
            .as_ref()
            .map(crate::api::SimApi::pods)
            .unwrap_or_default();
        pods.iter()
            .map(|pod| format!("{} at the API server", uid_of(pod)))
            .collect()
    }

    pub(super) fn plan_api(&mut self) {
        let planned: Vec<(Duration, ApiAction)> = match &self.scenario.api {
            Some(scenario) => scenario.actions.clone(),
            None => Vec::new(),
        };
        for (at, action) in planned {
            self.after(at, Due::Api(action));
        }
    }
}

/// Some pods have limits in all of their containers, and some of those are restarted for new ones.
fn give_resources(pod: &mut Pod, dice: &mut Dice) {
    let has_resources = dice.percent(50);
    let Some(spec) = pod.spec.as_mut().filter(|_| has_resources) else {
        return;
    };
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(&mut spec.containers) {
        container.resources = serde_json::from_value(ResourceShape::first(dice).json()).ok();
        if dice.percent(25) && spec.restart_policy.as_deref() == Some("Always") {
            container.resize_policy = Some(vec![ContainerResizePolicy {
                resource_name: "memory".to_owned(),
                restart_policy: "RestartContainer".to_owned(),
            }]);
        }
    }
}

/// The identity that the recipe gives to a static pod.
fn static_uid(shape: &PodShape, path: &Path) -> String {
    let path = path.to_string_lossy();
    let read = rubelet_manifest::read_file(
        &shape.manifest(),
        &path,
        node::NODE_NAME,
        &FeatureGates::default(),
    );
    // Generated pods are all good; a test of the scenarios sees to it.
    let pod = read.ok().and_then(|mut read| read.pods.pop()).unwrap_or_default();
    uid_of(&pod)
}

/// The pod as the API server has it: with all defaults, and nothing of a static pod.
fn api_pod(shape: &PodShape) -> Pod {
    let read = rubelet_manifest::read_file(
        &shape.manifest(),
        "/api.json",
        node::NODE_NAME,
        &FeatureGates::default(),
    );
    // Generated pods are all good; a test of the scenarios sees to it.
    let mut pod = read.ok().and_then(|mut read| read.pods.pop()).unwrap_or_default();
    pod.metadata.name = Some(shape.name.clone());
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.retain(|key, _| !key.starts_with(CONFIG_ANNOTATION_PREFIX));
    }
    if let Some(spec) = pod.spec.as_mut().filter(|_| shape.needs_driver) {
        let claim = PersistentVolumeClaimVolumeSource {
            claim_name: shape.name.clone(),
            read_only: None,
        };
        spec.volumes.get_or_insert_default().push(Volume {
            name: "data".to_owned(),
            persistent_volume_claim: Some(claim),
            ..Volume::default()
        });
        if let Some(container) = spec.containers.first_mut() {
            container.volume_mounts.get_or_insert_default().push(VolumeMount {
                name: "data".to_owned(),
                mount_path: "/data".to_owned(),
                ..VolumeMount::default()
            });
        }
    }
    pod
}

/// The Node object, as far as anybody reads it here.
fn known_node() -> Node {
    let mut known = Node::default();
    known.metadata.name = Some(node::NODE_NAME.to_owned());
    known.metadata.uid = Some("uid-of-node".to_owned());
    known
}
