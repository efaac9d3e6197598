//! Running a flight recorder's dump again through the pure decisions.
//!
//! Owns the comparison. Decisions depend on nothing but what the dump has, so that every difference is either a change of
//! the code since then or a defect.

use anyhow::{Context, Result, bail};
use rubelet_agent::recorder::{Entry, RECORD_VERSION, Record, actions_as_text, replay_plan};
use rubelet_lifecycle::pod_state::step;

/// What came out of a dump.
#[derive(Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Decisions that were made again.
    pub decisions: usize,
    /// Where the result is another one, in words.
    pub differences: Vec<String>,
}

/// Makes the decisions of a dump again, with the feature gates that it was made with.
///
/// # Errors
/// When the text is no dump, or one of another version.
pub fn replay(dump: &str) -> Result<Replayed> {
    let record: Record = serde_json::from_str(dump).context("the file is no flight record")?;
    if record.version != RECORD_VERSION {
        bail!(
            "the record has version {}, this build reads version {RECORD_VERSION}",
            record.version
        );
    }
    let mut replayed = Replayed {
        decisions: 0,
        differences: Vec::new(),
    };
    for (place, entry) in record.entries.iter().enumerate() {
        let difference = match entry {
            Entry::Step {
                at,
                state,
                event,
                next,
                effects,
            } => {
                let result = step(*state, *event, *at);
                (result != (*next, effects.clone())).then(|| {
                    format!(
                        "entry {place}: step({state:?}, {event:?})\n  was: {next:?} {effects:?}\n  is:  {:?} {:?}",
                        result.0, result.1
                    )
                })
            }
            Entry::Plan { actions, .. } => {
                let plan = replay_plan(entry, &record);
                let text = plan.as_ref().map(actions_as_text).unwrap_or_default();
                (text != *actions)
                    .then(|| format!("entry {place}: plan\n  was: {actions:#?}\n  is:  {text:#?}"))
            }
            Entry::Note { .. } => continue,
        };
        replayed.decisions += 1;
        replayed.differences.extend(difference);
    }
    Ok(replayed)
}
