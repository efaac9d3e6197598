//! The cgroups of the node's own programs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use rubelet_cgroups::{SystemCgroupPorts, SystemCgroupSettings, keep_processes_in_place};
use rubelet_ports::{CgroupError, CgroupErrorKind, OwnProcess, ProcessCgroupReader, ProcessCgroupWriter};
use rubelet_sim::executor::{Executor, Group, Step};

const OWN: u32 = 100;

/// Processes by their cgroup; what was moved, call by call.
#[derive(Default)]
struct State {
    places: BTreeMap<u32, String>,
    moves: Vec<(String, Vec<u32>)>,
    /// Each move brings one of these into the root: a process that was started meanwhile.
    forked: Vec<u32>,
    is_in_container: bool,
    is_refused: bool,
}

#[derive(Clone, Default)]
struct Machine(Arc<Mutex<State>>);

impl Machine {
    fn with(processes: &[(u32, &str)]) -> Self {
        let machine = Self::default();
        for (process, path) in processes {
            machine.state().places.insert(*process, (*path).to_owned());
        }
        machine
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn moves(&self) -> Vec<(String, Vec<u32>)> {
        std::mem::take(&mut self.state().moves)
    }

    fn keep(&self, kubelet: Option<&str>, system: Option<&str>) -> Executor {
        let executor = Executor::new(1);
        let settings = SystemCgroupSettings {
            kubelet: kubelet.map(str::to_owned),
            system: system.map(str::to_owned),
        };
        let ports = SystemCgroupPorts {
            clock: Arc::new(executor.clone()),
            reader: Arc::new(self.clone()),
            writer: Arc::new(self.clone()),
        };
        let keeping = keep_processes_in_place(settings, ports);
        executor.spawn(Group::Rubelet, "system cgroups", Box::pin(keeping));
        pass(&executor, 0);
        executor
    }
}

fn pass(executor: &Executor, seconds: u64) {
    let until = executor.elapsed() + Duration::from_secs(seconds);
    loop {
        while executor.step() != Step::Idle {}
        if !executor.advance(until) {
            return;
        }
    }
}

fn moved(path: &str, processes: &[u32]) -> (String, Vec<u32>) {
    (path.to_owned(), processes.to_vec())
}

#[async_trait]
impl ProcessCgroupReader for Machine {
    async fn own_process(&self) -> Result<OwnProcess, CgroupError> {
        let state = self.state();
        Ok(OwnProcess {
            id: OWN,
            cgroup: state.places.get(&OWN).cloned(),
            is_among_all_processes: !state.is_in_container,
        })
    }

    async fn processes_in_root(&self) -> Result<Vec<u32>, CgroupError> {
        let state = self.state();
        let in_root = state.places.iter().filter(|(_, path)| *path == "/");
        Ok(in_root.map(|(process, _)| *process).collect())
    }
}

#[async_trait]
impl ProcessCgroupWriter for Machine {
    async fn move_processes(&self, path: &str, processes: Vec<u32>) -> Result<(), CgroupError> {
        let mut state = self.state();
        state.moves.push((path.to_owned(), processes.clone()));
        if state.is_refused {
            return Err(CgroupError::new(path, CgroupErrorKind::Other, "not now"));
        }
        for process in processes {
            state.places.insert(process, path.to_owned());
        }
        if let Some(process) = state.forked.pop() {
            state.places.insert(process, "/".to_owned());
        }
        Ok(())
    }
}

#[test]
fn rubelet_moves_into_its_cgroup_and_comes_back_within_a_minute() {
    let machine = Machine::with(&[(OWN, "/login"), (7, "/")]);
    let executor = machine.keep(Some("/kubelet"), None);
    assert_eq!(machine.moves(), [moved("/kubelet", &[OWN])]);
    pass(&executor, 600);
    assert_eq!(machine.moves(), [], "it is there");
    machine.state().places.insert(OWN, "/login".to_owned());
    pass(&executor, 59);
    pass(&executor, 1);
    assert_eq!(machine.moves(), [moved("/kubelet", &[OWN])]);
    // Where the hierarchies do not agree, it is moved in all of them.
    machine.state().places.remove(&OWN);
    pass(&executor, 61);
    assert_eq!(machine.moves(), [moved("/kubelet", &[OWN])]);
}

#[test]
fn in_a_container_rubelet_stays_where_it_is() {
    let machine = Machine::with(&[(OWN, "/container")]);
    machine.state().is_in_container = true;
    let executor = machine.keep(Some("/kubelet"), None);
    pass(&executor, 120);
    assert_eq!(machine.moves(), []);
}

#[test]
fn the_systems_processes_leave_the_root_until_none_is_left() {
    let machine = Machine::with(&[(7, "/"), (8, "/"), (9, "/other"), (OWN, "/")]);
    machine.state().forked = vec![21, 20];
    let executor = machine.keep(Some("/kubelet"), Some("/system"));
    assert_eq!(
        machine.moves(),
        [
            moved("/system", &[7, 8, OWN]),
            moved("/system", &[20]),
            moved("/system", &[21]),
            moved("/kubelet", &[OWN]),
        ]
    );
    assert_eq!(machine.state().places[&9], "/other");
    pass(&executor, 61);
    assert_eq!(machine.moves(), []);
    // A program that starts later.
    machine.state().places.insert(30, "/".to_owned());
    pass(&executor, 61);
    assert_eq!(machine.moves(), [moved("/system", &[30])]);
}

#[test]
fn what_cannot_be_moved_is_tried_again_every_minute() {
    let machine = Machine::with(&[(7, "/"), (OWN, "/login")]);
    machine.state().is_refused = true;
    let executor = machine.keep(Some("/kubelet"), Some("/system"));
    let tried = machine.moves();
    assert_eq!(tried.len(), 12, "as often as upstream: {tried:?}");
    machine.state().is_refused = false;
    pass(&executor, 61);
    assert_eq!(
        machine.moves(),
        [moved("/system", &[7]), moved("/kubelet", &[OWN])]
    );
}
