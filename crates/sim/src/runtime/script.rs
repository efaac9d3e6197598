//! What the process of a simulated container does, read from its arguments.
//!
//! `runs=500:1,2000:0,forever` is the life of each attempt (milliseconds and exit code; the last one is repeated), and
//! `term=200:0` or `term=ignore` is the answer to the stop signal.

use std::time::Duration;

/// How one attempt goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    pub after: Duration,
    pub code: i32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// By attempt; `None` runs until it is stopped.
    pub runs: Vec<Option<Exit>>,
    /// `None` ignores the stop signal.
    pub on_term: Option<Exit>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            runs: vec![None],
            on_term: Some(Exit {
                after: Duration::from_millis(50),
                code: 143,
            }),
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
                Some(_) | None => {}
            }
        }
        script
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
        vec![format!("runs={}", runs.join(",")), format!("term={term}")]
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
        let script = Script::parse(&["x".to_owned(), "runs=5:1,forever".to_owned()]);
        assert_eq!(script.run(0).map(|exit| exit.code), Some(1));
        assert_eq!(script.run(1), None);
        assert_eq!(script.run(9), None);
    }
}
