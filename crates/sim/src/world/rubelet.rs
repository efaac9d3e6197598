//! One life of rubelet in the simulated node.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use prometheus::Registry;
use rubelet_agent::{AgentHandle, AgentMetrics, AgentPorts};
use rubelet_cgroups::{CgroupPorts, Cgroups};
use rubelet_images::{Images, ImagesSettings};
use rubelet_ports::{
    Clock, NoMemoryKills, NoNodeEvents, PodCgroups, PodView, ProbeFiguresReader as _, Spawner,
};
use rubelet_probes::{Probes, ProbesPorts, ProbesSettings};

use super::{Due, World, load};
use crate::dialer::SimDialer;
use crate::executor::{Group, Life, Step};
use crate::history::Fact;
use crate::node;

/// How many pods and containers rubelet knows, by the metrics of its census.
const COUNTS: [&str; 6] = [
    "kubelet_active_pods",
    "kubelet_desired_pods",
    "kubelet_mirror_pods",
    "kubelet_running_containers",
    "kubelet_running_pods",
    "kubelet_working_pods",
];
/// Steps that an answer may take.
const MAX_ANSWER_STEPS: usize = 100_000;

pub(super) struct Rubelet {
    life: Life,
    handle: AgentHandle,
    probes: Arc<Probes>,
    registry: Registry,
}

impl World {
    pub(super) fn start_rubelet(&mut self) {
        if self.rubelet.is_some() {
            return;
        }
        self.say("rubelet starts");
        self.history.add(self.executor.elapsed(), Fact::RubeletStarted);
        let life = self.executor.life();
        let clock: Arc<dyn Clock> = Arc::new(self.executor.clone());
        let runtime = Arc::new(self.runtime.clone());
        let files = Arc::new(self.files.clone());
        let events = Arc::new(self.events.clone());
        let images = Images::new(
            ImagesSettings::default(),
            runtime.clone(),
            runtime.clone(),
            clock.clone(),
            events.clone(),
        );
        let settings = match self.is_measured {
            true => load::settings(&self.scenario),
            false => node::settings(&self.scenario),
        };
        let volumes = node::volumes(&settings, &clock, &life, events.clone(), &self.volumes);
        let cgroups = self.start_cgroups(&life, &clock);
        let dialer = SimDialer::new(&self.executor, self.dialer_dice.clone());
        let dialer = Arc::new(dialer.of_pods(self.runtime.clone(), self.history.clone()));
        let registry = Registry::new();
        let probes = Arc::new(Probes::new(
            ProbesSettings::default(),
            ProbesPorts {
                clock: clock.clone(),
                spawner: Arc::new(life.clone()),
                randomness: Arc::new(self.randomness.clone()),
                runtime_writer: runtime.clone(),
                dialer: dialer.clone(),
                events: events.clone(),
            },
        ));
        let (api, node_now) = self.api_ports(&life);
        let ports = AgentPorts {
            clock,
            spawner: Arc::new(life.clone()),
            randomness: Arc::new(self.randomness.clone()),
            runtime_reader: runtime.clone(),
            runtime_writer: runtime,
            images: Arc::new(images),
            volumes: Arc::new(volumes),
            file_reader: files.clone(),
            file_writer: files,
            http: Arc::new(self.http.clone()),
            dialer,
            probes: probes.clone(),
            events,
            node_events: Arc::new(NoNodeEvents),
            cgroups,
            memory_kills: Arc::new(NoMemoryKills),
            api,
            node: node_now,
            metrics: Arc::new(node::registered(&registry, AgentMetrics::register)),
        };
        let (handle, mut fatal) = rubelet_agent::start(ports, settings);
        let (history, executor) = (self.history.clone(), self.executor.clone());
        life.spawn(
            "fatal",
            Box::pin(async move {
                if let Some(text) = fatal.recv().await {
                    history.add(executor.elapsed(), Fact::Fatal { text });
                }
            }),
        );
        if !self.is_measured {
            self.watch_rubelet(&life, handle.clone());
        }
        self.rubelet = Some(Rubelet {
            life,
            handle,
            probes,
            registry,
        });
    }

    /// The real keeper of the tree on simulated cgroups.
    fn start_cgroups(&self, life: &Life, clock: &Arc<dyn Clock>) -> Arc<dyn PodCgroups> {
        let edge = Arc::new(self.cgroups.clone());
        let ports = CgroupPorts {
            clock: clock.clone(),
            reader: edge.clone(),
            writer: edge,
            events: Arc::new(NoNodeEvents),
        };
        let keeper = Arc::new(Cgroups::new(node::cgroups(), ports));
        let running = keeper.clone();
        life.spawn("cgroups", Box::pin(running.run()));
        keeper
    }

    /// Asks rubelet what it says of its pods, again and again.
    fn watch_rubelet(&self, life: &Life, handle: AgentHandle) {
        let (history, executor, dice) = (
            self.history.clone(),
            self.executor.clone(),
            self.randomness.clone(),
        );
        life.spawn(
            "spectator",
            Box::pin(async move {
                loop {
                    executor.sleep(dice.with(|dice| dice.millis(50, 1000))).await;
                    let fact = match handle.pods().await {
                        Ok(pods) => Fact::Published { pods },
                        Err(no_answer) => Fact::Fatal {
                            text: no_answer.to_string(),
                        },
                    };
                    history.add(executor.elapsed(), fact);
                }
            }),
        );
    }

    pub(super) fn end_rubelet(&mut self) {
        self.crash = None;
        if let Some(rubelet) = self.rubelet.take() {
            rubelet.life.end();
        }
    }

    /// Rubelet dies where it is.
    pub(super) fn crash_rubelet(&mut self, down: Duration) {
        if self.rubelet.is_none() {
            self.crash = None;
            return;
        }
        self.say(format!("rubelet is killed for {down:?}"));
        self.end_rubelet();
        self.history.add(self.executor.elapsed(), Fact::RubeletCrashed);
        self.after(down, Due::StartRubelet);
    }

    /// What rubelet says its pods wait for.
    pub(super) fn explanations(&mut self) -> Vec<String> {
        let asked = self.ask(|handle| async move { handle.explanations().await.ok() });
        let explanations = asked.flatten().unwrap_or_default();
        explanations.iter().map(|one| format!("why: {one:?}")).collect()
    }

    /// The flight records of all pods that rubelet has.
    pub(super) fn flight_records(&mut self) -> Vec<String> {
        let asked = self.ask(|handle| async move {
            let mut records = Vec::new();
            for pod in handle.pods().await.unwrap_or_default() {
                let uid = pod.metadata.uid.clone().unwrap_or_default();
                let record = handle.flight_record(&uid).await.ok().flatten();
                records.extend(record.map(|record| record.to_string()));
            }
            records
        });
        asked.unwrap_or_default()
    }

    /// What rubelet still keeps of pods, in words. Waits and flight records go with the pods they belong to.
    pub(super) fn kept(&mut self) -> Vec<String> {
        let census = self.ask(|handle| async move { handle.take_census().await.is_ok() });
        if census != Some(true) {
            return vec!["no answer".to_owned()];
        }
        let mut kept = Vec::new();
        let sizes = self.ask(|handle| async move { handle.table_sizes().await.unwrap_or_default() });
        let filled = sizes.into_iter().flatten().filter(|(_, size)| *size > 0);
        kept.extend(filled.map(|(table, size)| format!("{table} has {size}")));
        let Some(rubelet) = self.rubelet.as_ref() else {
            return kept;
        };
        for family in rubelet.registry.gather() {
            let sum: f64 = family
                .get_metric()
                .iter()
                .map(|one| one.get_gauge().get_value())
                .sum();
            if COUNTS.contains(&family.name()) && sum > 0.0 {
                kept.push(format!("{} is {sum}", family.name()));
            }
        }
        kept.extend(
            rubelet
                .probes
                .figures()
                .iter()
                .map(|one| format!("a probe of {}", one.pod)),
        );
        kept
    }

    /// Gathers rubelet's metrics, as for a scrape.
    pub(super) fn gather(&self) -> usize {
        self.rubelet
            .as_ref()
            .map_or(0, |rubelet| rubelet.registry.gather().len())
    }

    /// Asks rubelet something and lets the world go on until the answer is there.
    pub(super) fn ask<T, F>(&mut self, question: impl FnOnce(AgentHandle) -> F) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let asked = question(self.rubelet.as_ref()?.handle.clone());
        let (sender, mut receiver) = tokio::sync::oneshot::channel();
        let ask = async move {
            // The receiver waits below.
            let _ = sender.send(asked.await);
        };
        self.executor.spawn(Group::World, "question", Box::pin(ask));
        for _ in 0..MAX_ANSWER_STEPS {
            if let Some(answer) = (&mut receiver).now_or_never() {
                return answer.ok();
            }
            if self.executor.step() == Step::Idle {
                self.executor
                    .advance(self.executor.elapsed() + Duration::from_secs(1));
            }
        }
        None
    }
}
