//! The rounds: all signals are read, `rubelet_resources::pressure` compares them with the thresholds, and a watch passes the result to
//! the node's conditions and to admission.
//!
//! Owns when the next round comes: after ten seconds, sooner near a threshold or at a hint of the kernel, and at once for
//! [`PressureHandle::look`]. Nothing is reclaimed here.

use std::sync::Arc;

use rubelet_model::{Pressure, Timestamp};
use rubelet_ports::Moment;
use rubelet_resources::pressure::pace::{LONGEST, SHORTEST};
use rubelet_resources::pressure::{
    DiskLayout, Findings, Pace, PressureSettings, PressureState, is_any_crossed, memory_marks, step,
};
use tokio::sync::{mpsc, oneshot, watch};

use crate::hints::KernelHints;
use crate::signals::{PressurePlaces, SignalPorts, SignalReader};

/// How many looks may wait.
const ASK_BUFFER: usize = 8;

/// What one round has shown.
#[derive(Clone, Debug)]
pub struct Round {
    /// When its readings began.
    pub read_at: Timestamp,
    pub findings: Findings,
    /// Whether any threshold is crossed, soft ones without their grace period, each with its minimum reclaim.
    pub is_any_crossed: bool,
}

type Ask = oneshot::Sender<Arc<Round>>;

/// Passes on what the rounds show.
#[derive(Clone, Debug)]
pub struct PressureHandle {
    rounds: watch::Receiver<Option<Arc<Round>>>,
    asks: mpsc::Sender<Ask>,
}

impl PressureHandle {
    pub(crate) fn rounds(&self) -> watch::Receiver<Option<Arc<Round>>> {
        self.rounds.clone()
    }

    /// Reads all signals now. Nothing when the rounds have ended.
    pub async fn look(&self) -> Option<Arc<Round>> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(reply).await.ok()?;
        answer.await.ok()
    }
}

/// The rounds before they begin.
pub struct PressureWatch {
    settings: PressureSettings,
    reader: SignalReader,
    ports: SignalPorts,
    hints: KernelHints,
    state: PressureState,
    pace: Pace,
    pressure: watch::Sender<Option<Pressure>>,
    rounds: watch::Sender<Option<Arc<Round>>>,
    asked: mpsc::Receiver<Ask>,
}

impl PressureWatch {
    /// The pressure goes to the watch, which has nothing before the first round.
    #[must_use]
    pub fn new(
        ports: SignalPorts,
        settings: PressureSettings,
        places: PressurePlaces,
        pressure: watch::Sender<Option<Pressure>>,
    ) -> (Self, PressureHandle) {
        let (rounds, seen_rounds) = watch::channel(None);
        let (asks, asked) = mpsc::channel(ASK_BUFFER);
        let handle = PressureHandle {
            rounds: seen_rounds,
            asks,
        };
        let watch = Self {
            settings,
            hints: KernelHints::new(&ports, places.pods_cgroup.clone()),
            reader: SignalReader::new(ports.clone(), places),
            ports,
            state: PressureState::default(),
            pace: Pace::default(),
            pressure,
            rounds,
            asked,
        };
        (watch, handle)
    }

    /// Runs until no receiver of the pressure is left.
    pub async fn run(mut self) {
        for signal in &self.settings.overridden {
            tracing::warn!(%signal, "This eviction threshold does not count: it follows from those of nodefs or imagefs");
        }
        let has_thresholds = !self.settings.thresholds.is_empty();
        if !has_thresholds {
            tracing::info!("No eviction thresholds are set: the node is never under pressure");
            self.pressure.send_replace(Some(Pressure::default()));
        }
        let mut asks: Vec<Ask> = Vec::new();
        while !self.pressure.is_closed() {
            let mut pause = LONGEST;
            if has_thresholds || !asks.is_empty() {
                let (round, next) = self.round().await;
                pause = next;
                for ask in asks.drain(..) {
                    // The caller may have stopped waiting.
                    let _ = ask.send(Arc::clone(&round));
                }
            }
            let (clock, alarm) = (Arc::clone(&self.ports.clock), Arc::clone(&self.ports.alarm));
            let read_at = clock.moment();
            // Every arm is cancel-safe: the channel keeps what was not taken, and the timer is made anew.
            tokio::select! {
                biased;
                ask = self.asked.recv() => match ask {
                    Some(ask) => asks.push(ask),
                    // The handle is gone: what is left listens to the pressure alone.
                    None => clock.sleep(pause).await,
                },
                () = self.pressure.closed() => return,
                () = alarm.rings(), if has_thresholds => {
                    tracing::debug!("The kernel gives a hint that memory runs short");
                    self.hints.rang();
                    // A kernel that gives hints all the time does not keep the node busy.
                    clock.sleep(SHORTEST.saturating_sub(clock.moment().since(read_at))).await;
                }
                () = clock.sleep(pause), if has_thresholds => {}
            }
            while let Ok(ask) = self.asked.try_recv() {
                asks.push(ask);
            }
        }
    }

    async fn round(&mut self) -> (Arc<Round>, std::time::Duration) {
        let read_at = self.ports.clock.now();
        let readings = self.reader.read().await;
        let now = self.ports.clock.moment().since(Moment::default());
        let state = std::mem::take(&mut self.state);
        let (state, findings) = step(&self.settings, state, &readings, now);
        self.state = state;
        let layout = findings.layout;
        let pace = std::mem::take(&mut self.pace);
        let (pace, pause) = pace.next(&self.settings, layout, &readings, now);
        self.pace = pace;
        self.hints.set(memory_marks(&self.settings, &readings)).await;
        log_changes(&findings);
        self.publish(findings.pressure);
        let round = Arc::new(Round {
            read_at,
            is_any_crossed: is_any_crossed(&self.settings, layout, &readings),
            findings,
        });
        self.rounds.send_replace(Some(Arc::clone(&round)));
        (round, pause)
    }

    fn publish(&self, pressure: Pressure) {
        let has_changed = self.pressure.send_if_modified(|known| {
            let is_new = *known != Some(pressure);
            *known = Some(pressure);
            is_new
        });
        if has_changed {
            let Pressure { memory, disk, pid } = pressure;
            tracing::info!(memory, disk, pid, "Pressure on the node");
        }
    }
}

impl PressureHandle {
    /// Where images and containers are, by the last round.
    pub(crate) async fn layout(&self) -> Option<DiskLayout> {
        let last = self.rounds.borrow().clone();
        let round = match last {
            Some(round) => round,
            None => self.look().await?,
        };
        Some(round.layout())
    }
}

impl Round {
    pub(crate) fn layout(&self) -> DiskLayout {
        self.findings.layout
    }
}

fn log_changes(findings: &Findings) {
    for crossing in &findings.crossed {
        tracing::warn!(%crossing, "An eviction threshold is crossed");
    }
    for key in &findings.left {
        tracing::info!(signal = %key.signal, "An eviction threshold is not crossed any more");
    }
}
