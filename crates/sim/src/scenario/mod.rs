//! What a seed makes of a run: the pods, and everything that happens to them.
//!
//! Owns the plan of a run. Which pod an action hits is decided when it happens, by the same dice.

mod api;
mod handlers;
mod resources;
mod shape;

use std::time::Duration;

pub use api::{ApiAction, ApiScenario};
pub use handlers::{HookShape, ProbeShape, Way};
pub use resources::ResourceShape;
pub use shape::{ContainerShape, PodShape, Rule};

use crate::dice::Dice;
use crate::files::FileFaults;
use crate::history::Ask;
use crate::runtime::Faults;

/// A kind of call to the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    RunSandbox,
    Create,
    Start,
    Stop,
    Hook,
    Update,
}

impl CallKind {
    #[must_use]
    pub fn is_of(self, ask: &Ask) -> bool {
        match self {
            Self::RunSandbox => matches!(ask, Ask::RunSandbox { .. }),
            Self::Create => matches!(ask, Ask::Create { .. }),
            Self::Start => matches!(ask, Ask::Start { .. }),
            Self::Stop => matches!(ask, Ask::Stop { .. }),
            Self::Hook => matches!(ask, Ask::Hook { .. }),
            Self::Update => matches!(ask, Ask::Update { .. }),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Add,
    Remove,
    /// Away, and the same again a moment later.
    ReAdd {
        away: Duration,
    },
    Edit,
    /// A pod that is edited right after it was added.
    AddAndEdit {
        after: Duration,
    },
    /// The same pod under another file name.
    Rename,
    /// The file is cut in half for a while, as an editor may do.
    HalfWrite {
        time: Duration,
    },
    CrashContainer {
        code: i32,
    },
    RestartRuntime {
        down: Duration,
    },
    LoseState,
    /// A sandbox cannot be read or torn down until the calm.
    LoseNetwork,
    CutEvents,
    /// Rubelet dies after this many further polls of its tasks, and comes back after a time.
    CrashRubelet {
        polls: u64,
        down: Duration,
    },
    /// Rubelet dies while a call of this kind is under way.
    CrashDuringCall {
        call: CallKind,
        down: Duration,
    },
    LosePower,
    MoveClock {
        seconds: i64,
    },
    NetworkDown {
        time: Duration,
    },
    /// Calls about one pod get no answer from now on.
    HangPod,
    /// The whole manifest folder is gone for a time.
    FolderAway {
        time: Duration,
    },
}

#[derive(Clone, Debug)]
pub struct Scenario {
    /// Actions with their times, in order.
    pub actions: Vec<(Duration, Action)>,
    pub chaos: Duration,
    pub runtime_faults: Faults,
    pub file_faults: FileFaults,
    pub has_events: bool,
    /// A second source, over HTTP, which answers from this time on.
    pub http_from: Option<Duration>,
    /// A third source, with an API server behind it.
    pub api: Option<ApiScenario>,
    pub relist: Duration,
}

impl Scenario {
    #[must_use]
    pub fn roll(seed: u64) -> Self {
        let dice = &mut Dice::new(seed, "scenario");
        let chaos = Duration::from_secs(dice.between(20, 150));
        let mut actions = Vec::new();
        for _ in 0..dice.between(1, 5) {
            actions.push((dice.millis(0, 3000), Action::Add));
        }
        let limit_ms = u64::try_from(chaos.as_millis()).unwrap_or(u64::MAX);
        for _ in 0..dice.between(2, 18) {
            let at = dice.millis(500, limit_ms);
            let action = roll_action(dice);
            actions.push((at, action));
        }
        // By dice of their own, so that a seed without them is the run that it was.
        let network = &mut dice.aside("networks");
        if network.percent(15) {
            for _ in 0..network.between(1, 3) {
                actions.push((network.millis(2000, limit_ms), Action::LoseNetwork));
            }
        }
        let updates = &mut dice.aside("crashes in updates");
        if updates.percent(25) {
            let call = CallKind::Update;
            let down = updates.millis(0, 3000);
            actions.push((
                updates.millis(2000, limit_ms),
                Action::CrashDuringCall { call, down },
            ));
        }
        actions.sort_by_key(|(at, _)| *at);
        Self {
            actions,
            chaos,
            runtime_faults: Faults::roll(dice),
            file_faults: FileFaults::roll(dice),
            has_events: dice.percent(75),
            http_from: dice.percent(25).then(|| dice.millis(0, 60_000)),
            api: ApiScenario::roll(seed, chaos),
            relist: Duration::from_secs(dice.between(2, 20)),
        }
    }
}

fn roll_action(dice: &mut Dice) -> Action {
    match dice.below(100) {
        0..12 => Action::Add,
        12..24 => Action::Remove,
        24..32 => Action::ReAdd {
            away: dice.millis(0, 8000),
        },
        32..42 => Action::Edit,
        42..46 => Action::AddAndEdit {
            after: dice.millis(0, 400),
        },
        46..49 => Action::Rename,
        49..52 => Action::HalfWrite {
            time: dice.millis(1, 6000),
        },
        52..64 => Action::CrashContainer {
            code: *dice.pick(&[0, 1, 42, 137]),
        },
        64..70 => Action::RestartRuntime {
            down: dice.millis(100, 20_000),
        },
        70..72 => Action::LoseState,
        72..75 => Action::CutEvents,
        75..81 => Action::CrashDuringCall {
            call: *dice.pick(&[
                CallKind::RunSandbox,
                CallKind::RunSandbox,
                CallKind::Create,
                CallKind::Start,
                CallKind::Stop,
                CallKind::Hook,
            ]),
            down: dice.millis(0, 3000),
        },
        81..91 => Action::CrashRubelet {
            polls: dice.between(0, 400),
            down: dice.millis(0, 10_000),
        },
        91..93 => Action::LosePower,
        93..96 => Action::MoveClock {
            seconds: *dice.pick(&[-7200, -3600, -60, 60, 3600, 7200]),
        },
        96..98 => Action::NetworkDown {
            time: dice.millis(100, 20_000),
        },
        98 => Action::FolderAway {
            time: dice.millis(1, 10_000),
        },
        _ => Action::HangPod,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rubelet_lifecycle::configuration::unsupported;

    #[test]
    fn every_generated_pod_can_run() {
        let gates = rubelet_config::FeatureGates::default();
        for seed in 0..300 {
            let dice = &mut Dice::new(seed, "shapes");
            let mut shape = PodShape::roll(dice, 7);
            for _ in 0..3 {
                let read = rubelet_manifest::read_file(&shape.manifest(), "/m/p.json", "sim", &gates);
                let read = read.unwrap_or_else(|error| panic!("{error}: {shape:?}"));
                assert_eq!(unsupported(&read.pods[0], &crate::node::configuration()), []);
                shape.edit(dice);
            }
        }
    }

    #[test]
    fn equal_seeds_make_equal_scenarios() {
        let actions = |seed| Scenario::roll(seed).actions;
        assert_eq!(actions(4), actions(4));
        assert_ne!(actions(4), actions(5));
    }
}
