//! What happens at the API server in a run.
//!
//! Owns its plan, with dice of its own, so that everything else of a seed is the same with and without it.

use std::time::Duration;

use crate::dice::Dice;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiAction {
    Create,
    /// A new pod takes the place of one that is gone at once, under its name.
    Replace,
    Delete,
    /// With a grace of the caller's own, perhaps while the pod is already on its way out.
    DeleteWithin {
        seconds: i64,
    },
    /// The object is gone at once.
    ForceDelete,
    /// A new image or grace, or only an annotation.
    Edit,
    /// Somebody puts an ephemeral container into a pod.
    Debug,
    LoseStatus,
    /// Somebody else says something in a pod's status.
    Condition {
        holds: bool,
    },
    Outage {
        time: Duration,
    },
}

#[derive(Clone, Debug)]
pub struct ApiScenario {
    /// Actions with their times, in order.
    pub actions: Vec<(Duration, ApiAction)>,
}

impl ApiScenario {
    /// Every other seed has an API server.
    #[must_use]
    pub fn roll(seed: u64, chaos: Duration) -> Option<Self> {
        let dice = &mut Dice::new(seed, "api");
        if dice.percent(45) {
            return None;
        }
        let mut actions = Vec::new();
        if dice.percent(20) {
            let time = dice.millis(100, 30_000);
            actions.push((Duration::ZERO, ApiAction::Outage { time }));
        }
        for _ in 0..dice.between(1, 4) {
            actions.push((dice.millis(0, 4000), ApiAction::Create));
        }
        let limit_ms = u64::try_from(chaos.as_millis()).unwrap_or(u64::MAX);
        for _ in 0..dice.between(2, 14) {
            let at = dice.millis(500, limit_ms);
            actions.push((at, roll_action(dice)));
        }
        let aside = &mut dice.aside("debug");
        for _ in 0..aside.below(4) {
            actions.push((aside.millis(500, limit_ms), ApiAction::Debug));
        }
        actions.sort_by_key(|(at, _)| *at);
        Some(Self { actions })
    }
}

fn roll_action(dice: &mut Dice) -> ApiAction {
    match dice.below(100) {
        0..22 => ApiAction::Create,
        22..32 => ApiAction::Replace,
        32..50 => ApiAction::Delete,
        50..62 => ApiAction::DeleteWithin {
            seconds: *dice.pick(&[1, 2, 5, 30]),
        },
        62..72 => ApiAction::ForceDelete,
        72..80 => ApiAction::Edit,
        80..85 => ApiAction::LoseStatus,
        85..90 => ApiAction::Condition {
            holds: dice.percent(50),
        },
        _ => ApiAction::Outage {
            time: dice.millis(100, 40_000),
        },
    }
}
