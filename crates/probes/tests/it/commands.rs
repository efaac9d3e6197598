//! Commands in containers.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bed::{Bed, results};

fn exec(command: &str, more: &Value) -> Value {
    let mut probe = json!({"exec": {"command": [command]}, "periodSeconds": 10, "timeoutSeconds": 1});
    let fields = more.as_object().unwrap().clone();
    probe.as_object_mut().unwrap().extend(fields);
    probe
}

fn set(bed: &Bed, command: &str, takes_ms: u64, exit_code: i32) {
    let takes = Duration::from_millis(takes_ms);
    let mut commands = bed.edges.commands.lock().unwrap();
    commands.insert(command.to_owned(), (takes, exit_code));
}

#[tokio::test(start_paused = true)]
async fn exit_codes_decide() {
    let probe = |command| exec(command, &json!({"failureThreshold": 1}));
    let mut bed = Bed::new(&json!([
        {"name": "good", "livenessProbe": probe("good")},
        {"name": "bad", "livenessProbe": probe("bad")},
        {"name": "slow", "livenessProbe": probe("slow")},
    ]));
    set(&bed, "good", 10, 0);
    set(&bed, "bad", 10, 3);
    set(&bed, "slow", 5000, 0);
    for name in ["good", "bad", "slow"] {
        bed.runs(name, name);
    }
    bed.at(12_000).await;
    let reading = bed.show();
    assert_eq!(results(&reading, "good"), "--+");
    assert_eq!(results(&reading, "bad"), "--x");
    assert_eq!(results(&reading, "slow"), "--x");
    assert_eq!(
        bed.events(),
        [
            "Warning Unhealthy bad: Liveness probe failed: out err",
            "Warning Unhealthy slow: Liveness probe failed: command timed out: \"slow\" timed out after 1s",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_runtime_do_not_count() {
    let probe = exec("gone", &json!({"failureThreshold": 1}));
    let mut bed = Bed::new(&json!([{"name": "c", "livenessProbe": probe}]));
    set(&bed, "gone", 0, -1);
    bed.runs("c", "a");
    bed.at(25_000).await;
    assert_eq!(results(&bed.show(), "a"), "--+");
    assert_eq!(bed.edges.executed.lock().unwrap().len(), 6, "three tries each");
    assert_eq!(
        bed.events()[0],
        "Warning Unhealthy c: Liveness probe errored and resulted in unknown state: rpc error: code = NotFound desc = gone"
    );
}

/// A runtime that never answers to twenty commands at once keeps nobody else waiting.
#[tokio::test(start_paused = true)]
async fn stuck_commands_delay_no_other() {
    let probe = |command| exec(command, &json!({"failureThreshold": 1, "initialDelaySeconds": 1}));
    let mut containers: Vec<Value> = (0..20)
        .map(|number| json!({"name": format!("stuck-{number}"), "livenessProbe": probe("stuck")}))
        .collect();
    containers.push(json!({"name": "good", "livenessProbe": probe("good")}));
    let mut bed = Bed::new(&Value::Array(containers));
    set(&bed, "good", 10, 0);
    for number in 0..20 {
        let name = format!("stuck-{number}");
        bed.runs(&name, &name);
    }
    bed.runs("good", "good");
    bed.at(35_000).await;
    let executed = bed.edges.executed.lock().unwrap().clone();
    let good: Vec<u128> = executed
        .iter()
        .filter(|(_, command)| command == "good")
        .map(|(at, _)| *at)
        .collect();
    assert!(
        good[0] <= 1000 + 3 * 500,
        "behind twenty that hang, eight at a time: {good:?}"
    );
    assert_eq!(good[1..], [11_000, 21_000, 31_000], "and then on time");
    assert_eq!(results(&bed.show(), "good"), "--+");
    assert_eq!(results(&bed.show(), "stuck-7"), "--x", "given up after a while");
}

/// Also in every later period: commands that hang again and again have their own places.
#[tokio::test(start_paused = true)]
async fn commands_that_get_stuck_again_delay_no_other() {
    let probe = |command| exec(command, &json!({"failureThreshold": 1000, "periodSeconds": 5}));
    let mut containers: Vec<Value> = (0..60)
        .map(|number| json!({"name": format!("stuck-{number}"), "livenessProbe": probe("stuck")}))
        .collect();
    containers.push(json!({"name": "good", "livenessProbe": probe("good")}));
    let mut bed = Bed::new(&Value::Array(containers));
    set(&bed, "stuck", 4000, 0);
    set(&bed, "good", 10, 0);
    for number in 0..60 {
        let name = format!("stuck-{number}");
        bed.runs(&name, &name);
    }
    bed.runs("good", "good");
    bed.at(62_000).await;
    let executed = bed.edges.executed.lock().unwrap().clone();
    let of = |wanted: &str| -> Vec<u128> {
        let of = executed.iter().filter(|(_, command)| command == wanted);
        of.map(|(at, _)| *at).collect()
    };
    let good = of("good");
    let on_time: Vec<u128> = (2..=12).map(|period| period * 5000).collect();
    assert_eq!(good[1..], on_time, "behind all of them once: {good:?}");
    let stuck = of("stuck");
    assert!(stuck.len() > 300, "they are run on: {}", stuck.len());
}

/// A container that is gone has no use for the rest of its command.
#[tokio::test(start_paused = true)]
async fn a_command_ends_with_its_container() {
    let probe = exec(
        "stuck",
        &json!({"failureThreshold": 1, "initialDelaySeconds": 1, "timeoutSeconds": 30}),
    );
    let mut bed = Bed::new(&json!([{"name": "c", "livenessProbe": probe}]));
    bed.runs("c", "a");
    bed.at(2000).await;
    bed.ended("c", "a");
    bed.runs("c", "b");
    bed.at(4000).await;
    let executed = bed.edges.executed.lock().unwrap().clone();
    assert_eq!(executed, [(1000, "stuck".to_owned()), (3000, "stuck".to_owned())]);
}
