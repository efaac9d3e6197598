//! Generated pods: conditions, container statuses, phases, and what may be said after what, alike.

use anyhow::Result;
use rubelet_testkit::goldens::{STATUS_OPS, status_question};
use rubelet_testkit::oracle::Oracle;

use crate::oracle_ours::{Differences, seeds};

#[path = "../../../lifecycle/tests/it/status_oracle.rs"]
mod status_oracle;

const CASES: u64 = 2_000;

#[test]
fn statuses_are_derived_alike() -> Result<()> {
    let mut oracle = Oracle::start()?;
    let mut differences = Differences::default();
    for op in STATUS_OPS {
        let questions: Vec<_> = seeds(CASES).map(|seed| status_question(op, seed)).collect();
        let answers = oracle.ask_all(op, questions.clone())?;
        for ((seed, question), answer) in seeds(CASES).zip(&questions).zip(answers) {
            let upstream = status_oracle::comparable(op, answer?);
            let ours = status_oracle::our_answer(op, question);
            differences.compare(format!("{seed} of {op}"), question, &upstream, &ours);
        }
    }
    differences.assert_none();
    Ok(())
}
