//! What the process of a simulated container does, read from its arguments.
//!
//! `runs=500:1,2000:0,forever` is the life of each attempt (milliseconds and exit code; the last one is repeated), and
//! `term=200:0` or `term=ignore` is the answer to the stop signal. `startup=`, `readiness=` and `liveness=` say what a probe of
//! that kind finds: `good`, `bad`, `silent`, `bad:2` in the first two attempts, `warm:500` after so many milliseconds. `port=7000`
//! is the first of three ports, one for each kind of probe.

use std::time::Duration;

use rubelet_ports::ProbeKind;

/// How one attempt goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    pub after: Duration,
    pub code: i32,
}

/// What probes find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    #[default]
    Good,
    Bad,
    /// No answer at all.
    Silent,
    /// Bad in the attempts before this one.
    BadBefore(u32),
    /// Good once it has run for this time.
    WarmsUp(Duration),
}

/// What one probe is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Good,
    Bad,
    Silent,
}

impl Health {
    #[must_use]
    pub fn answer(self, attempt: u32, age: Duration) -> Answer {
        let is_good = match self {
            Self::Silent => return Answer::Silent,
            Self::Good => true,
            Self::Bad => false,
            Self::BadBefore(good) => attempt >= good,
            Self::WarmsUp(time) => age >= time,
        };
        if is_good { Answer::Good } else { Answer::Bad }
    }

    fn parse(text: &str) -> Self {
        match text.split_once(':') {
            None if text == "bad" => Self::Bad,
            None if text == "silent" => Self::Silent,
            Some(("bad", attempts)) => Self::BadBefore(attempts.parse().unwrap_or(0)),
            Some(("warm", millis)) => Self::WarmsUp(Duration::from_millis(millis.parse().unwrap_or(0))),
            Some(_) | None => Self::Good,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Good => "good".to_owned(),
            Self::Bad => "bad".to_owned(),
            Self::Silent => "silent".to_owned(),
            Self::BadBefore(attempts) => format!("bad:{attempts}"),
            Self::WarmsUp(time) => format!("warm:{}", time.as_millis()),
        }
    }
}

/// The kinds of probes, in the order of their ports.
pub const PROBE_KINDS: [ProbeKind; 3] = [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness];

/// The word for a kind in arguments and commands.
#[must_use]
pub fn probe_word(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::Startup => "startup",
        ProbeKind::Readiness => "readiness",
        ProbeKind::Liveness => "liveness",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// By attempt; `None` runs until it is stopped.
    pub runs: Vec<Option<Exit>>,
    /// `None` ignores the stop signal.
    pub on_term: Option<Exit>,
    /// By the order of [`PROBE_KINDS`].
    pub health: [Health; 3],
    /// The first port it listens on.
    pub port: Option<u16>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            runs: vec![None],
            on_term: Some(Exit {
                after: Duration::from_millis(50),
                code: 143,
            }),
            health: [Health::Good; 3],
            port: None,
        }
    }
}

fn exit(text: &str) -> Option<Exit> {
    let (after_ms, code) = text.split_once(':')?;
    Some(Exit {
        after: Duration::from_millis(after_ms.parse().ok()?),
        code: code.parse().ok()?,
    })
}

impl Script {
    /// Arguments that are none of ours are left alone.
    #[must_use]
    pub fn parse(arguments: &[String]) -> Self {
        let mut script = Self::default();
        for argument in arguments {
            match argument.split_once('=') {
                Some(("runs", runs)) => script.runs = runs.split(',').map(exit).collect(),
                Some(("term", answer)) => script.on_term = exit(answer),
                Some(("port", port)) => script.port = port.parse().ok(),
                Some((word, health)) => {
                    if let Some(place) = PROBE_KINDS.iter().position(|kind| probe_word(*kind) == word) {
                        script.health[place] = Health::parse(health);
                    }
                }
                None => {}
            }
        }
        script
    }

    #[must_use]
    pub fn health(&self, kind: ProbeKind) -> Health {
        let of_kind = PROBE_KINDS.iter().zip(self.health).find(|(one, _)| **one == kind);
        of_kind.map(|(_, health)| health).unwrap_or_default()
    }

    /// The kind of probe that a port of it is for.
    #[must_use]
    pub fn kind_of_port(&self, port: u16) -> Option<ProbeKind> {
        let place = port.checked_sub(self.port?)?;
        PROBE_KINDS.get(usize::from(place)).copied()
    }

    /// The life of this attempt.
    #[must_use]
    pub fn run(&self, attempt: u32) -> Option<Exit> {
        let last = self.runs.len().saturating_sub(1);
        let place = usize::try_from(attempt).unwrap_or(last).min(last);
        self.runs.get(place).copied().flatten()
    }

    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let text = |exit: &Exit| format!("{}:{}", exit.after.as_millis(), exit.code);
        let runs: Vec<String> = self
            .runs
            .iter()
            .map(|run| run.as_ref().map_or("forever".to_owned(), text))
            .collect();
        let term = self.on_term.as_ref().map_or("ignore".to_owned(), text);
        let mut arguments = vec![format!("runs={}", runs.join(",")), format!("term={term}")];
        for (kind, health) in PROBE_KINDS.iter().zip(self.health) {
            if health != Health::Good {
                arguments.push(format!("{}={}", probe_word(*kind), health.text()));
            }
        }
        arguments.extend(self.port.map(|port| format!("port={port}")));
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_survive_their_arguments() {
        let check = |runs: &str, term: &str| {
            let arguments = vec![format!("runs={runs}"), format!("term={term}")];
            assert_eq!(Script::parse(&arguments).arguments(), arguments);
        };
        check("forever", "ignore");
        check("500:1,20:0,forever", "200:0");
        let probed: Vec<String> = [
            "runs=forever",
            "term=ignore",
            "startup=warm:50",
            "readiness=silent",
            "liveness=bad:2",
            "port=7000",
        ]
        .map(str::to_owned)
        .into();
        let script = Script::parse(&probed);
        assert_eq!(script.arguments(), probed);
        assert_eq!(script.kind_of_port(7002), Some(ProbeKind::Liveness));
        assert_eq!(
            [script.kind_of_port(6999), script.kind_of_port(7003)],
            [None, None]
        );
        let answer =
            |kind, attempt, millis| script.health(kind).answer(attempt, Duration::from_millis(millis));
        assert_eq!(answer(ProbeKind::Startup, 0, 49), Answer::Bad);
        assert_eq!(answer(ProbeKind::Startup, 0, 50), Answer::Good);
        assert_eq!(answer(ProbeKind::Readiness, 9, 9), Answer::Silent);
        assert_eq!(answer(ProbeKind::Liveness, 1, 0), Answer::Bad);
        assert_eq!(answer(ProbeKind::Liveness, 2, 0), Answer::Good);
        let script = Script::parse(&["x".to_owned(), "runs=5:1,forever".to_owned()]);
        assert_eq!(script.run(0).map(|exit| exit.code), Some(1));
        assert_eq!(script.run(1), None);
        assert_eq!(script.run(9), None);
    }
}
