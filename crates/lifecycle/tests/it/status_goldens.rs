//! Statuses against upstream's own answers, kept in `testbed/goldens`.

use serde_json::Value;

use crate::status_oracle::{comparable, our_answer};

fn check(golden: &str) {
    let mut asked = 0;
    for line in golden.lines() {
        let line: Value = serde_json::from_str(line).expect("a golden is JSON");
        let op = line["op"].as_str().expect("a golden names its operation");
        asked += 1;
        let upstream = comparable(op, line["output"].clone());
        assert_eq!(
            our_answer(op, &line["input"]),
            upstream,
            "{op}: {}",
            line["input"]
        );
    }
    assert!(asked > 20, "only {asked} questions are in the golden");
}

#[test]
fn statuses_are_upstreams() {
    check(include_str!(
        "../../../../testbed/goldens/status_conditions.jsonl"
    ));
    check(include_str!(
        "../../../../testbed/goldens/status_containers.jsonl"
    ));
    check(include_str!("../../../../testbed/goldens/status_merging.jsonl"));
    check(include_str!("../../../../testbed/goldens/status_phases.jsonl"));
    check(include_str!("../../../../testbed/goldens/status_settling.jsonl"));
}
