//! One look at every cgroup of the node.
//!
//! Owns what is remembered between two looks: where each cgroup was found, what images are called, what the machine is made of, and the
//! runtime's last lists for the time when it does not answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{join4, try_join};
use rubelet_model::Timestamp;
use rubelet_ports::{
    Clock, DiskReader, ImageReader, MachineReading, RuntimeError, RuntimeErrorKind, RuntimeReader,
    UsageReader, UsageReading, within,
};
use rubelet_usage::Devices;
use rubelet_wire::cri::v1;

use super::labels::Labels;
use super::names::ImageNames;
use super::rows::{Asked, Listed, Subject, questions, root};
use crate::places::CgroupPlaces;

/// What the runtime may take for its lists.
const LIST_LIMIT: Duration = Duration::from_secs(4);
const ROOT: &str = "/";

/// What the machine and its system are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineNames {
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel_version: String,
    pub os_image: String,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Look {
    pub(super) at: Timestamp,
    pub(super) names: Arc<MachineNames>,
    pub(super) machine_labels: Labels,
    /// `None` where the kernel does not describe it.
    pub(super) machine: Option<MachineReading>,
    /// By their cgroups.
    pub(super) rows: Vec<PageRow>,
    pub(super) devices: Devices,
    /// The runtime does not say what runs, and never did.
    pub(super) has_failed: bool,
    /// Only the machine was looked at.
    pub(super) is_of_machine: bool,
}

#[derive(Debug, Default)]
pub(super) struct PageRow {
    pub(super) labels: Labels,
    pub(super) is_root: bool,
    pub(super) created_at: Timestamp,
    pub(super) started_at: Timestamp,
    pub(super) read_at: Timestamp,
    pub(super) figures: rubelet_usage::Figures,
}

/// The edges and settings of looks.
pub(crate) struct ContainerLooks {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) runtime: Arc<dyn RuntimeReader>,
    pub(crate) images: Arc<dyn ImageReader>,
    pub(crate) usage: Arc<dyn UsageReader>,
    pub(crate) disk: Arc<dyn DiskReader>,
    pub(crate) places: CgroupPlaces,
    /// The cgroups of QoS classes and of the node's own programs.
    pub(crate) node_cgroups: Vec<Arc<str>>,
    /// Also the cgroup that rubelet is in, wherever that is.
    pub(crate) shows_own_cgroup: bool,
    pub(crate) names: Arc<MachineNames>,
    // A std mutex: it is held for steps in memory, never across an await.
    pub(crate) known: Mutex<Known>,
}

#[derive(Default)]
pub(crate) struct Known {
    listed: Option<Arc<Listed>>,
    images: Arc<ImageNames>,
    machine: Option<MachineReading>,
    places: BTreeMap<Subject, Arc<str>>,
}

impl ContainerLooks {
    /// Gives back everything that is remembered.
    pub(crate) fn forget(&self) {
        *self.known() = Known::default();
    }

    pub(crate) async fn look(&self) -> Look {
        let (listed, is_fresh) = self.listed().await;
        let images = self.images(listed.as_deref(), is_fresh).await;
        let has_failed = listed.is_none();
        let listed = listed.unwrap_or_default();
        let node_cgroups = self.node_cgroups().await;
        let asked = {
            let known = self.known();
            let place = |subject: &Subject| known.places.get(subject).cloned();
            questions(&listed, &node_cgroups, &self.places, &images, place)
        };
        let wanted = asked.iter().map(|asked| asked.question.clone()).collect();
        let root_path: Arc<str> = Arc::from(ROOT);
        // The root comes last: on machines with many cgroups it takes longest.
        let (rows, root, devices, machine) = join4(
            self.usage.read(wanted),
            self.usage.read(vec![root(&root_path)]),
            self.disk.devices(),
            self.machine(),
        )
        .await;
        self.remember(&asked, &rows);
        let booted_at = machine.as_ref().and_then(|machine| machine.booted_at);
        let mut found: BTreeMap<Arc<str>, PageRow> = BTreeMap::new();
        for (asked, reading) in asked.iter().zip(rows) {
            let Some(reading) = reading else {
                continue;
            };
            let labels = asked.labels.with_path(&reading.path);
            // A cgroup of the node's programs may be one of the others.
            let path = Arc::clone(&reading.path);
            found.insert(path, page_row(labels, reading, asked.created_at, booted_at));
        }
        if let Some(reading) = root.into_iter().flatten().next() {
            let labels = super::rows::RowLabels::default().with_path(ROOT);
            let mut row = page_row(labels, reading, None, booted_at);
            row.is_root = true;
            found.insert(root_path, row);
        }
        let devices =
            devices.inspect_err(|error| tracing::warn!(%error, "Disks cannot be read; they are left out"));
        Look {
            at: self.clock.now(),
            names: Arc::clone(&self.names),
            machine_labels: self.machine_labels(),
            machine,
            rows: found.into_values().collect(),
            devices: devices.unwrap_or_default(),
            has_failed,
            is_of_machine: false,
        }
    }

    /// Of the machine alone, where the runtime has the figures of its containers.
    pub(crate) async fn look_at_machine(&self) -> Look {
        Look {
            at: self.clock.now(),
            names: Arc::clone(&self.names),
            machine_labels: self.machine_labels(),
            machine: self.machine().await,
            is_of_machine: true,
            ..Look::default()
        }
    }

    fn machine_labels(&self) -> Labels {
        let names = &self.names;
        Labels::new(&[
            &[("boot_id", &names.boot_id), ("machine_id", &names.machine_id)],
            &[("system_uuid", &names.system_uuid)],
        ])
    }

    async fn node_cgroups(&self) -> Vec<Arc<str>> {
        let mut paths = self.node_cgroups.clone();
        if self.shows_own_cgroup {
            let own = self.usage.own_cgroup().await;
            // The root has its row in any case.
            paths.extend(own.filter(|own| **own != *ROOT && !self.node_cgroups.contains(own)));
        }
        paths
    }

    /// What runs, and whether the runtime has said so just now.
    async fn listed(&self) -> (Option<Arc<Listed>>, bool) {
        let running = v1::ContainerFilter {
            state: Some(v1::ContainerStateValue {
                state: v1::ContainerState::ContainerRunning.into(),
            }),
            ..v1::ContainerFilter::default()
        };
        let lists = try_join(
            self.runtime.list_pod_sandboxes(None),
            self.runtime.list_containers(Some(running)),
        );
        let lists = within(self.clock.as_ref(), LIST_LIMIT, lists).await;
        let lists = lists.unwrap_or_else(|elapsed| {
            let kind = RuntimeErrorKind::DeadlineExceeded;
            Err(RuntimeError::new("list pods", "", kind, &elapsed.to_string()))
        });
        match lists {
            Ok((sandboxes, containers)) => {
                let listed = Arc::new(Listed::of_lists(sandboxes, containers));
                self.known().listed = Some(Arc::clone(&listed));
                (Some(listed), true)
            }
            Err(error) => {
                tracing::warn!(%error, "The runtime does not list its pods; container metrics are of those that it had");
                (self.known().listed.clone(), false)
            }
        }
    }

    /// Images are listed when one of them is not known yet.
    async fn images(&self, listed: Option<&Listed>, is_fresh: bool) -> Arc<ImageNames> {
        let known = Arc::clone(&self.known().images);
        let Some(listed) = listed.filter(|listed| is_fresh && !listed.sandboxes.is_empty()) else {
            return known;
        };
        if known.know(&listed.images()) {
            return known;
        }
        let list = within(self.clock.as_ref(), LIST_LIMIT, self.images.list_images(None)).await;
        let problem = match list {
            Ok(Ok(images)) => {
                let names = Arc::new(self.with_sandbox(ImageNames::of_list(images), listed).await);
                self.known().images = Arc::clone(&names);
                return names;
            }
            Ok(Err(error)) => error.to_string(),
            Err(elapsed) => elapsed.to_string(),
        };
        tracing::warn!(
            problem,
            "The runtime does not list its images; their names are left out"
        );
        known
    }

    async fn with_sandbox(&self, names: ImageNames, listed: &Listed) -> ImageNames {
        let Some(first) = listed.sandboxes.first().filter(|_| !names.knows_sandboxes()) else {
            return names;
        };
        let status = self.runtime.pod_sandbox_status(&first.id, true);
        match within(self.clock.as_ref(), LIST_LIMIT, status).await {
            Ok(Ok(status)) => names.with_sandbox(&status.info.into_iter().collect()),
            Ok(Err(_)) | Err(_) => names,
        }
    }

    async fn machine(&self) -> Option<MachineReading> {
        let known = self.known().machine.clone();
        if known.is_some() {
            return known;
        }
        let machine = self.usage.machine().await;
        let machine = machine.inspect_err(|error| tracing::warn!(%error, "The machine cannot be read"));
        let machine = machine.ok();
        self.known().machine.clone_from(&machine);
        machine
    }

    fn remember(&self, asked: &[Asked], rows: &[Option<UsageReading>]) {
        let found = asked.iter().zip(rows).filter_map(|(asked, reading)| {
            Some((asked.subject.clone(), Arc::clone(&reading.as_ref()?.path)))
        });
        self.known().places = found.collect();
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn page_row(
    labels: Labels,
    reading: UsageReading,
    created_at: Option<Timestamp>,
    booted_at: Option<Timestamp>,
) -> PageRow {
    let started_at = booted_at.map_or(reading.made_at, |booted_at| reading.made_at.max(booted_at));
    PageRow {
        labels,
        is_root: false,
        created_at: created_at.unwrap_or(started_at),
        started_at,
        read_at: reading.read_at,
        figures: reading.figures,
    }
}
