//! The state machine of one probe: from the verdicts of single runs to the result that the agent reads.
//!
//! Owns counts, thresholds, initial values and the hold after a verdict. It is pure: no clock, no probe is run here. A result
//! belongs to one instance of a container, and a new instance begins with the initial value.
//!
//! ```text
//!                  ┌──────────── another instance of the container ─────────────┐
//!                  ▼                                                            │
//! no instance ─► initial value ─► thresholds reached: success or failure ─► on hold (startup: always, liveness: failure)
//!                  │                     │
//!                  └── the instance ended: failure; the pod ends: success (startup, liveness), and nothing more
//! ```

use rubelet_model::observation::{ContainerId, ProbeResult};
use rubelet_ports::ProbeKind;

/// How often in a row a verdict must come to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    pub success: u32,
    pub failure: u32,
}

/// The result of one run of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Success,
    Failure,
}

impl From<Verdict> for ProbeResult {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Success => Self::Success,
            Verdict::Failure => Self::Failure,
        }
    }
}

/// An instance of the container, as the runtime shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sight {
    pub id: ContainerId,
    pub state: SightState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SightState {
    /// Not started yet, or unknown.
    Waiting,
    Running {
        /// It started long before the agent: its earlier result holds until a probe of this agent has another.
        is_inherited: bool,
        /// The last status shows that it has started, and this instance is a sidecar, whose start other containers wait for.
        seed_started: bool,
    },
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Seen(Sight),
    /// The probe was run against this instance.
    Probed {
        id: ContainerId,
        verdict: Verdict,
        /// A try before its regular time: only its success counts.
        is_early: bool,
    },
    PodEnds,
}

/// The state of one probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Course {
    kind: ProbeKind,
    instance: Option<Sight>,
    result: Option<ProbeResult>,
    last: Option<Verdict>,
    run: u32,
    is_on_hold: bool,
    is_over: bool,
}

impl Course {
    #[must_use]
    pub fn new(kind: ProbeKind) -> Self {
        Self {
            kind,
            instance: None,
            result: None,
            last: None,
            run: 0,
            is_on_hold: false,
            is_over: false,
        }
    }

    /// The instance that is probed, with what is known of it.
    #[must_use]
    pub fn result(&self) -> Option<(&ContainerId, ProbeResult)> {
        let instance = self.instance.as_ref()?;
        Some((&instance.id, self.result?))
    }

    #[must_use]
    pub fn instance(&self) -> Option<&ContainerId> {
        self.instance.as_ref().map(|instance| &instance.id)
    }

    /// Nothing more will be probed.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// The instance to probe. `has_started`: the container's startup probe has passed, or it has none.
    #[must_use]
    pub fn target(&self, has_started: bool) -> Option<&ContainerId> {
        let instance = self.instance.as_ref()?;
        let is_running = matches!(instance.state, SightState::Running { .. });
        let is_its_turn = match self.kind {
            ProbeKind::Startup => !has_started,
            ProbeKind::Readiness | ProbeKind::Liveness => has_started,
        };
        (is_running && is_its_turn && !self.is_on_hold && !self.is_over).then_some(&instance.id)
    }

    #[must_use]
    pub fn step(mut self, event: Event, thresholds: Thresholds) -> Self {
        if self.is_over {
            return self;
        }
        match event {
            Event::Seen(sight) => self.seen(sight),
            Event::Probed {
                id,
                verdict,
                is_early,
            } => {
                if self.instance() == Some(&id) && !(is_early && verdict == Verdict::Failure) {
                    self.probed(verdict, thresholds);
                }
            }
            Event::PodEnds => match self.kind {
                // The result stays as it is: after a crash of the agent, `started` still counts for a container that is found running.
                ProbeKind::Startup => self.is_over = true,
                ProbeKind::Liveness => {
                    self.is_over = true;
                    self.result = Some(ProbeResult::Success);
                }
                ProbeKind::Readiness => {}
            },
        }
        self
    }

    fn seen(&mut self, sight: Sight) {
        if self.instance() != Some(&sight.id) {
            self.last = None;
            self.run = 0;
            self.is_on_hold = false;
            self.result = self.initial(sight.state);
        }
        if sight.state == SightState::Ended && !self.is_on_hold {
            self.result = Some(ProbeResult::Failure);
        }
        self.instance = Some(sight);
    }

    fn initial(&self, state: SightState) -> Option<ProbeResult> {
        match state {
            SightState::Running {
                seed_started: true, ..
            } if self.kind == ProbeKind::Startup => Some(ProbeResult::Success),
            SightState::Running {
                is_inherited: true, ..
            } => None,
            SightState::Waiting | SightState::Running { .. } | SightState::Ended => Some(match self.kind {
                ProbeKind::Startup => ProbeResult::Unknown,
                ProbeKind::Readiness => ProbeResult::Failure,
                ProbeKind::Liveness => ProbeResult::Success,
            }),
        }
    }

    fn probed(&mut self, verdict: Verdict, thresholds: Thresholds) {
        let is_running = self
            .instance
            .as_ref()
            .is_some_and(|instance| matches!(instance.state, SightState::Running { .. }));
        if self.is_on_hold || !is_running {
            return;
        }
        if self.last == Some(verdict) {
            self.run = self.run.saturating_add(1);
        } else {
            self.last = Some(verdict);
            self.run = 1;
        }
        let needed = match verdict {
            Verdict::Success => thresholds.success,
            Verdict::Failure => thresholds.failure,
        };
        if self.run < needed {
            return;
        }
        self.result = Some(verdict.into());
        self.is_on_hold = match self.kind {
            // A startup probe has nothing more to find out.
            ProbeKind::Startup => true,
            // The container is about to be replaced.
            ProbeKind::Liveness => verdict == Verdict::Failure,
            ProbeKind::Readiness => false,
        };
    }
}

#[cfg(test)]
#[path = "course_tests.rs"]
mod tests;
