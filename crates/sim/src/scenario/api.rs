//! What happens at the API server in a run.
//!
//! Owns its plan, with dice of its own, so that everything else of a seed is the same with and without it.

use std::time::Duration;

use super::resources::ResourceShape;
use crate::api::Overwrite;
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
    /// A container gets other resources while its pod runs.
    Resize(ResourceShape),
    LoseStatus,
    /// Somebody else says something in a pod's status.
    Condition {
        holds: bool,
    },
    /// Another client changes what the node has written into a pod's status.
    Overwrite(Overwrite),
    /// The adapter cannot decode a pod for a time, in which rubelet is started anew after a while.
    Undecodable {
        restart_after: Duration,
        time: Duration,
        /// The pod is deleted meanwhile, after this time and with this grace.
        deletion: Option<(Duration, Option<i64>)>,
    },
    /// The node lifecycle controller marks all pods of the node as not ready.
    MarkNotReady,
    Outage {
        time: Duration,
    },
}

#[derive(Clone, Debug)]
pub struct ApiScenario {
    /// Of a hundred status patches so many find a status that another client has changed since.
    pub overwritten_percent: u64,
    /// So many patches in a row find one when the world is calm.
    pub calm_overwrites: u64,
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
        let resizes = &mut dice.aside("resizes");
        if resizes.percent(40) {
            for _ in 0..resizes.between(1, 6) {
                let action = ApiAction::Resize(ResourceShape::roll(resizes));
                actions.push((resizes.millis(500, limit_ms), action));
            }
        }
        let others = &mut dice.aside("overwrites");
        let mut scenario = Self {
            overwritten_percent: 0,
            calm_overwrites: 0,
            actions,
        };
        if others.percent(35) {
            scenario.roll_overwrites(others, limit_ms);
        }
        let undecodable = &mut dice.aside("undecodable");
        if undecodable.percent(25) {
            scenario.roll_undecodable(undecodable, limit_ms);
        }
        scenario.actions.sort_by_key(|(at, _)| *at);
        Some(scenario)
    }

    fn roll_undecodable(&mut self, dice: &mut Dice, limit_ms: u64) {
        for _ in 0..dice.between(1, 3) {
            let at = dice.millis(500, limit_ms);
            let time = dice.millis(1000, 60_000);
            let restart_after = dice.millis(0, 10_000);
            let deletion = dice.percent(40).then(|| {
                let grace = *dice.pick(&[None, Some(5), Some(0)]);
                (dice.millis(0, 60_000), grace)
            });
            let action = ApiAction::Undecodable {
                restart_after,
                time,
                deletion,
            };
            self.actions.push((at, action));
        }
    }

    /// Other clients write into statuses, at any time and just before a patch of the node.
    fn roll_overwrites(&mut self, dice: &mut Dice, limit_ms: u64) {
        self.overwritten_percent = *dice.pick(&[0, 10, 40]);
        self.calm_overwrites = dice.between(1, 3);
        for _ in 0..dice.between(1, 6) {
            let action = match dice.percent(30) {
                true => ApiAction::MarkNotReady,
                false => ApiAction::Overwrite(Overwrite::roll(dice)),
            };
            self.actions.push((dice.millis(500, limit_ms), action));
        }
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
