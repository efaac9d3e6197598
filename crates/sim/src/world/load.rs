//! A calm node with many pods: how much work each part of their life is for rubelet.
//!
//! Owns the phases. Each takes the same time however many pods there are, so that what rubelet does every few seconds is a part of it
//! in proportion. What is counted, and how much of it is too much, is the caller's.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_agent::AgentSettings;
use rubelet_ports::PodView as _;

use super::World;
use crate::api::uid_of;
use crate::executor::{Group, Meter, Step, Work};
use crate::files::FileFaults;
use crate::node;
use crate::runtime::Faults;
use crate::scenario::{ApiScenario, PodShape, Scenario};

const START: Duration = Duration::from_secs(40);
/// Two resyncs of each pod and two searches for garbage.
const REST: Duration = Duration::from_secs(180);
/// In which every pod has its turn.
const ROUND: Duration = Duration::from_secs(60);
const SYNC_FREQUENCY: Duration = Duration::from_secs(60);
const QUESTIONS: usize = 10;
/// More than there are pods.
const NO_LIMIT: usize = 10_000;

/// What rubelet did in a part of its pods' life.
#[derive(Clone, Debug)]
pub struct Phase {
    pub name: &'static str,
    pub work: Work,
}

/// Leads so many pods through their life, half of them from manifests and half from the API server.
///
/// # Errors
/// When they do not live as they should.
pub fn measure(pods: u32, meter: Meter) -> Result<Vec<Phase>, String> {
    let mut run = Measured::begin(pods, meter);
    let phases = run.live();
    run.world.end_rubelet();
    run.world.executor.drop_group(Group::World);
    phases
}

/// Everything starts at once, so that the start takes as long for many pods as for few.
pub(super) fn settings(scenario: &Scenario) -> AgentSettings {
    let mut settings = node::settings(scenario);
    settings.sync_frequency = SYNC_FREQUENCY;
    settings.starts_in_flight = NO_LIMIT;
    settings.stops_in_flight = NO_LIMIT;
    settings.admission.allocatable.pods = i64::MAX;
    settings
}

fn scenario() -> Scenario {
    Scenario {
        actions: Vec::new(),
        chaos: Duration::ZERO,
        runtime_faults: Faults::calm(),
        file_faults: FileFaults::default(),
        has_events: true,
        http_from: None,
        api: Some(ApiScenario {
            overwritten_percent: 0,
            calm_overwrites: 0,
            actions: Vec::new(),
        }),
        relist: Duration::from_secs(20),
    }
}

struct Measured {
    world: World,
    meter: Meter,
    /// Of each source.
    pods: u32,
    manifests: Vec<(PathBuf, PodShape)>,
    phases: Vec<Phase>,
}

impl Measured {
    fn begin(pods: u32, meter: Meter) -> Self {
        let mut world = World::of(0, scenario());
        world.is_measured = true;
        world.calm_down();
        world.executor.set_meter(meter);
        Self {
            world,
            meter,
            pods: pods / 2,
            manifests: Vec::new(),
            phases: Vec::new(),
        }
    }

    fn live(&mut self) -> Result<Vec<Phase>, String> {
        self.world.runtime.add_image("registry.test/app:1");
        for number in 1..=self.pods {
            let shape = same(PodShape::tame(&mut self.world.dice, number));
            let path = node::manifest_path(&shape.name);
            self.world.put_manifest(&path, shape.clone());
            self.manifests.push((path, shape));
            let shape = same(self.world.api_shape(true));
            self.world.create_api_pod(&shape);
        }
        self.world.start_rubelet();
        self.pass("start", START)?;
        self.all_run()?;
        self.pass("rest", REST)?;
        self.all_in_turn("statuses", Self::lose_status)?;
        self.all_in_turn("edits of manifests", Self::edit_manifest)?;
        self.all_in_turn("edits at the API server", Self::edit_api_pod)?;
        self.all_in_turn("crashes of containers", Self::crash)?;
        self.questions()?;
        self.world.end_rubelet();
        self.world.start_rubelet();
        self.pass("restart", START)?;
        self.all_run()?;
        self.all_in_turn("removals and garbage", Self::remove)?;
        self.wait(REST)?;
        self.end_phase("removals and garbage");
        if self.world.runtime.has_anything() {
            return Err(format!(
                "left in the runtime: {:?}",
                self.world.runtime.leftovers()
            ));
        }
        Ok(std::mem::take(&mut self.phases))
    }

    fn pass(&mut self, name: &'static str, time: Duration) -> Result<(), String> {
        self.wait(time)?;
        self.end_phase(name);
        Ok(())
    }

    /// Does something to one pod of each source after the other.
    fn all_in_turn(&mut self, name: &'static str, act: fn(&mut Self, usize)) -> Result<(), String> {
        for number in 0..self.manifests.len() {
            act(self, number);
            self.wait(ROUND / self.pods)?;
        }
        self.pass(name, Duration::from_secs(20))
    }

    fn end_phase(&mut self, name: &'static str) {
        let work = self.world.executor.take_work();
        self.phases.push(Phase { name, work });
    }

    fn wait(&mut self, time: Duration) -> Result<(), String> {
        let until = self.world.executor.elapsed() + time;
        loop {
            self.world.apply_due();
            let is_idle = self.world.executor.step() == Step::Idle;
            if is_idle && !self.world.executor.advance(until) && self.world.executor.elapsed() >= until {
                break;
            }
        }
        drop(self.world.history.take());
        self.world.executor.take_panics().pop().map_or(Ok(()), Err)
    }

    fn api_uid(number: usize) -> String {
        format!("{:08x}-api", number + 1)
    }

    fn lose_status(&mut self, number: usize) {
        if let Some(api) = &self.world.api {
            api.lose_status(&Self::api_uid(number));
        }
    }

    fn edit_manifest(&mut self, number: usize) {
        let (path, shape) = &mut self.manifests[number];
        shape.revision += 1;
        self.world.put_manifest(path, shape.clone());
    }

    fn edit_api_pod(&mut self, number: usize) {
        if let Some(api) = &self.world.api {
            api.change(&Self::api_uid(number), |pod| {
                let annotations = pod.metadata.annotations.get_or_insert_default();
                annotations.insert("revision".to_owned(), "edited".to_owned());
            });
        }
    }

    fn crash(&mut self, number: usize) {
        let uid = self.manifests[number].1.uid.clone().unwrap_or_default();
        for uid in [uid, Self::api_uid(number)] {
            self.world.runtime.crash_pod(&uid, 1);
        }
    }

    fn remove(&mut self, number: usize) {
        self.world.take_manifest(&self.manifests[number].0.clone());
        self.world.delete_api_pod(&Self::api_uid(number), None);
    }

    fn questions(&mut self) -> Result<(), String> {
        for _ in 0..QUESTIONS {
            let asked = self.world.ask(|handle| async move {
                let census = handle.take_census().await;
                let pods = handle.pods().await;
                let runtime = handle.runtime_pods().await.map_err(|_| rubelet_ports::NoAnswer);
                let why = handle.explanations().await;
                census
                    .and(pods.map(drop))
                    .and(runtime.map(drop))
                    .and(why.map(drop))
            });
            if asked != Some(Ok(())) {
                return Err("rubelet does not answer".to_owned());
            }
        }
        let before = (self.meter)();
        for _ in 0..QUESTIONS {
            self.world.gather();
        }
        let metrics = (self.meter)() - before;
        self.end_phase("questions");
        let work = Work::from([("/metrics".to_owned(), metrics)]);
        self.phases.push(Phase {
            name: "questions",
            work,
        });
        Ok(())
    }

    fn all_run(&mut self) -> Result<(), String> {
        let asked = self
            .world
            .ask(|handle| async move { handle.pods().await.unwrap_or_default() });
        let running = asked.iter().flatten().filter(|pod| is_running(pod)).count();
        let wanted = 2 * self.manifests.len();
        // What the question itself costs is counted nowhere.
        drop(self.world.executor.take_work());
        match running == wanted && self.is_reported() {
            true => Ok(()),
            false => Err(format!("{running} of {wanted} pods run")),
        }
    }

    /// Whether the API server shows every pod and every mirror as running.
    fn is_reported(&self) -> bool {
        let pods = self.world.api.as_ref().map(crate::api::SimApi::pods);
        let running = pods
            .iter()
            .flatten()
            .filter(|pod| is_running(pod))
            .map(|pod| uid_of(pod));
        running.count() == 2 * self.manifests.len()
    }
}

/// Pods differ in nothing that work depends on.
fn same(shape: PodShape) -> PodShape {
    PodShape {
        init: Vec::new(),
        has_volumes: true,
        ..shape
    }
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running")
}
