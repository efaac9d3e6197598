//! The conditions of the Node that a kubelet keeps, with upstream's reasons and messages.
//!
//! Owns what is True, why, since when, and the events of a change. What is not known yet leaves the condition as the
//! Node has it: a restart flips nothing. Conditions of others are not touched.

use std::time::Duration;

use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rubelet_model::runtime_report::LIST_THRESHOLD;
use rubelet_model::{GoDuration, Pressure, RuntimeContact, RuntimeLists, RuntimeReport};

/// The runtime may be silent for this long before the node is not ready.
pub(crate) const RUNTIME_GRACE: Duration = Duration::from_secs(30);

const TRUE: &str = "True";
const FALSE: &str = "False";
const READY: &str = "Ready";
const UNCHECKED: &str = "container runtime status check may not have completed yet";
const UNKNOWN_NETWORK: &str = "network state unknown";
const SHUTTING_DOWN: &str = "node is shutting down";

/// What is known of the runtime, and how long it has been silent; before the first report that is the time since the start.
#[derive(Clone, Debug, Default)]
pub struct RuntimeFacts {
    pub report: RuntimeReport,
    pub silent_for: Duration,
    /// How long ago its last list of everything began, where that is too long ago.
    pub unlisted_for: Duration,
}

/// One of the three pressures.
struct PressureTexts {
    condition: &'static str,
    pressed: Side,
    free: Side,
}

struct Side {
    reason: &'static str,
    message: &'static str,
    event: &'static str,
}

const MEMORY: PressureTexts = PressureTexts {
    condition: "MemoryPressure",
    pressed: Side {
        reason: "KubeletHasInsufficientMemory",
        message: "kubelet has insufficient memory available",
        event: "NodeHasInsufficientMemory",
    },
    free: Side {
        reason: "KubeletHasSufficientMemory",
        message: "kubelet has sufficient memory available",
        event: "NodeHasSufficientMemory",
    },
};
const DISK: PressureTexts = PressureTexts {
    condition: "DiskPressure",
    pressed: Side {
        reason: "KubeletHasDiskPressure",
        message: "kubelet has disk pressure",
        event: "NodeHasDiskPressure",
    },
    free: Side {
        reason: "KubeletHasNoDiskPressure",
        message: "kubelet has no disk pressure",
        event: "NodeHasNoDiskPressure",
    },
};
const PID: PressureTexts = PressureTexts {
    condition: "PIDPressure",
    pressed: Side {
        reason: "KubeletHasInsufficientPID",
        message: "kubelet has insufficient PID available",
        event: "NodeHasInsufficientPID",
    },
    free: Side {
        reason: "KubeletHasSufficientPID",
        message: "kubelet has sufficient PID available",
        event: "NodeHasSufficientPID",
    },
};

/// Sets the three pressures; the result is the reasons of the events.
pub(super) fn set_pressure(
    conditions: &mut Vec<NodeCondition>,
    pressure: Option<Pressure>,
    now: &Time,
) -> Vec<&'static str> {
    let known = |part: fn(Pressure) -> bool| pressure.map(part);
    let pressures = [
        (MEMORY, known(|pressure| pressure.memory)),
        (DISK, known(|pressure| pressure.disk)),
        (PID, known(|pressure| pressure.pid)),
    ];
    pressures
        .into_iter()
        .filter_map(|(texts, is_pressed)| set_one_pressure(conditions, &texts, is_pressed, now))
        .collect()
}

fn set_one_pressure(
    conditions: &mut Vec<NodeCondition>,
    texts: &PressureTexts,
    is_pressed: Option<bool>,
    now: &Time,
) -> Option<&'static str> {
    let existing = conditions
        .iter_mut()
        .find(|condition| condition.type_ == texts.condition);
    let is_pressed = match (is_pressed, &existing) {
        (Some(is_pressed), _) => is_pressed,
        // It is not known yet, and was not before.
        (None, None) => false,
        (None, Some(_)) => return None,
    };
    let (status, side) = match is_pressed {
        true => (TRUE, &texts.pressed),
        false => (FALSE, &texts.free),
    };
    if let Some(condition) = existing {
        condition.last_heartbeat_time = Some(now.clone());
        if condition.status == status {
            return None;
        }
        *condition = new_condition((texts.condition, status), (side.reason, side.message), now);
    } else {
        conditions.push(new_condition(
            (texts.condition, status),
            (side.reason, side.message),
            now,
        ));
    }
    Some(side.event)
}

fn new_condition(
    (type_, status): (&str, &str),
    (reason, message): (&str, &str),
    now: &Time,
) -> NodeCondition {
    NodeCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: Some(now.clone()),
    }
}

/// Sets `Ready`; the result is the reason of the event. `None` in place of problems: it is not known yet.
pub(super) fn set_ready(
    conditions: &mut Vec<NodeCondition>,
    problems: Option<Vec<String>>,
    now: &Time,
) -> Option<&'static str> {
    let existing = conditions.iter().position(|condition| condition.type_ == READY);
    let problems = match (problems, existing) {
        (None, Some(_)) => return None,
        (None, None) => vec![UNCHECKED.to_owned(), UNKNOWN_NETWORK.to_owned()],
        (Some(problems), _) => problems,
    };
    let mut ready = if problems.is_empty() {
        new_condition(
            (READY, TRUE),
            ("KubeletReady", "kubelet is posting ready status"),
            now,
        )
    } else {
        new_condition((READY, FALSE), ("KubeletNotReady", &joined(problems)), now)
    };
    let Some(position) = existing else {
        conditions.push(ready);
        return None;
    };
    let before = &mut conditions[position];
    let is_same = before.status == ready.status;
    if is_same {
        ready.last_transition_time = before.last_transition_time.take();
    }
    let event = match (is_same, ready.status == TRUE) {
        (true, _) => None,
        (false, true) => Some("NodeReady"),
        (false, false) => Some("NodeNotReady"),
    };
    *before = ready;
    event
}

/// Whether the conditions have `Ready` as True.
pub(crate) fn is_ready(conditions: Option<&Vec<NodeCondition>>) -> bool {
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == READY);
    ready.is_some_and(|condition| condition.status == TRUE)
}

/// Why the runtime keeps the node from being ready; `None` while that is not known.
pub(super) fn runtime_problems(facts: &RuntimeFacts) -> Option<Vec<String>> {
    let report = &facts.report;
    let network = report.network_problem.clone();
    let lists = list_problem(facts);
    match report.contact {
        RuntimeContact::Answers => {
            let runtime = report.runtime_problem.clone();
            Some(lists.into_iter().chain(runtime).chain(network).collect())
        }
        RuntimeContact::Unknown | RuntimeContact::Silent { .. } if facts.silent_for < RUNTIME_GRACE => None,
        RuntimeContact::Unknown | RuntimeContact::Silent { .. } if report.abilities.is_none() => Some(vec![
            UNCHECKED.to_owned(),
            network.unwrap_or_else(|| UNKNOWN_NETWORK.to_owned()),
        ]),
        RuntimeContact::Unknown | RuntimeContact::Silent { .. } => {
            let down = "container runtime is down".to_owned();
            Some([down].into_iter().chain(lists).chain(network).collect())
        }
    }
}

/// A node that shuts down is not ready, whatever is known of its runtime.
pub(super) fn with_shutdown(problems: Option<Vec<String>>, is_shutting_down: bool) -> Option<Vec<String>> {
    if !is_shutting_down {
        return problems;
    }
    let problems = problems.into_iter().flatten();
    Some(problems.chain([SHUTTING_DOWN.to_owned()]).collect())
}

fn list_problem(facts: &RuntimeFacts) -> Option<String> {
    let text = match facts.report.lists {
        RuntimeLists::Fresh => return None,
        RuntimeLists::Never => "pleg has yet to be successful".to_owned(),
        RuntimeLists::Overdue { .. } => {
            let go =
                |time: Duration| GoDuration::from_secs(i64::try_from(time.as_secs()).unwrap_or(i64::MAX));
            let (ago, threshold) = (go(facts.unlisted_for), go(LIST_THRESHOLD));
            format!("pleg was last seen active {ago} ago; threshold is {threshold}")
        }
    };
    Some(format!("PLEG is not healthy: {text}"))
}

/// One problem stands alone, several in brackets; each once.
fn joined(problems: Vec<String>) -> String {
    let mut distinct: Vec<String> = Vec::new();
    for problem in problems {
        if !distinct.contains(&problem) {
            distinct.push(problem);
        }
    }
    match distinct.as_slice() {
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use rubelet_model::RuntimeAbilities;

    use super::*;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn text(conditions: &[NodeCondition]) -> Vec<String> {
        let second = |time: &Option<Time>| time.as_ref().unwrap().0.as_second();
        conditions
            .iter()
            .map(|one| {
                format!(
                    "{}={} {} {}/{}",
                    one.type_,
                    one.status,
                    one.reason.as_deref().unwrap_or_default(),
                    second(&one.last_transition_time),
                    second(&one.last_heartbeat_time)
                )
            })
            .collect()
    }

    #[test]
    fn pressure_changes_once_and_what_is_unknown_stays() {
        let mut conditions = Vec::new();
        let events = set_pressure(&mut conditions, None, &at(1));
        let free = [
            "MemoryPressure=False KubeletHasSufficientMemory 1/1",
            "DiskPressure=False KubeletHasNoDiskPressure 1/1",
            "PIDPressure=False KubeletHasSufficientPID 1/1",
        ];
        assert_eq!(text(&conditions), free);
        assert_eq!(
            events,
            [
                "NodeHasSufficientMemory",
                "NodeHasNoDiskPressure",
                "NodeHasSufficientPID"
            ]
        );
        assert!(set_pressure(&mut conditions, None, &at(2)).is_empty());
        assert_eq!(text(&conditions), free);
        let short = Some(Pressure {
            disk: true,
            ..Pressure::default()
        });
        assert_eq!(
            set_pressure(&mut conditions, short, &at(3)),
            ["NodeHasDiskPressure"]
        );
        assert_eq!(set_pressure(&mut conditions, short, &at(4)), [""; 0]);
        // A new process does not know yet: the pressure stays.
        assert_eq!(set_pressure(&mut conditions, None, &at(5)), [""; 0]);
        assert_eq!(
            text(&conditions),
            [
                "MemoryPressure=False KubeletHasSufficientMemory 1/4",
                "DiskPressure=True KubeletHasDiskPressure 3/4",
                "PIDPressure=False KubeletHasSufficientPID 1/4",
            ]
        );
    }

    #[test]
    fn ready_keeps_its_transition_and_its_place() {
        let problem = |text: &str| Some(vec![text.to_owned()]);
        let mut conditions = Vec::new();
        assert_eq!(set_ready(&mut conditions, None, &at(1)), None);
        let unknown = format!("[{UNCHECKED}, {UNKNOWN_NETWORK}]");
        assert_eq!(conditions[0].message, Some(unknown));
        assert_eq!(set_ready(&mut conditions, problem("a"), &at(2)), None);
        assert_eq!(text(&conditions), ["Ready=False KubeletNotReady 1/2"]);
        assert_eq!(
            set_ready(&mut conditions, Some(Vec::new()), &at(3)),
            Some("NodeReady")
        );
        conditions.push(new_condition(("Foreign", TRUE), ("", ""), &at(3)));
        assert_eq!(set_ready(&mut conditions, Some(Vec::new()), &at(4)), None);
        assert!(is_ready(Some(&conditions)));
        assert_eq!(set_ready(&mut conditions, None, &at(5)), None);
        assert_eq!(
            text(&conditions),
            ["Ready=True KubeletReady 3/4", "Foreign=True  3/3"]
        );
        assert_eq!(
            set_ready(&mut conditions, problem("b"), &at(6)),
            Some("NodeNotReady")
        );
        assert_eq!(conditions[0].message.as_deref(), Some("b"));
    }

    #[test]
    fn problems_are_joined_as_upstream_does() {
        let check = |problems: &[&str], expected: &str| {
            assert_eq!(
                joined(problems.iter().map(ToString::to_string).collect()),
                expected
            );
        };
        check(&["a"], "a");
        check(&["a", "b"], "[a, b]");
        check(&["a", "b", "a"], "[a, b]");
        check(&["a", "a"], "a");
    }

    #[test]
    fn silence_counts_only_after_the_grace() {
        let check =
            |contact: RuntimeContact, answered: bool, silent_seconds: u64, expected: Option<&[&str]>| {
                let facts = RuntimeFacts {
                    report: RuntimeReport {
                        contact,
                        network_problem: answered.then(|| "net".to_owned()),
                        abilities: answered.then(RuntimeAbilities::default),
                        runtime_problem: answered.then(|| "run".to_owned()),
                        lists: RuntimeLists::Fresh,
                    },
                    silent_for: Duration::from_secs(silent_seconds),
                    unlisted_for: Duration::ZERO,
                };
                let problems = runtime_problems(&facts);
                let expected = expected.map(|all| all.iter().map(ToString::to_string).collect());
                assert_eq!(problems, expected, "{facts:?}");
            };
        let silent = || RuntimeContact::Silent {
            already: Duration::ZERO,
        };
        check(RuntimeContact::Unknown, false, 29, None);
        check(
            RuntimeContact::Unknown,
            false,
            30,
            Some(&[UNCHECKED, UNKNOWN_NETWORK]),
        );
        check(RuntimeContact::Answers, true, 0, Some(&["run", "net"]));
        check(RuntimeContact::Answers, false, 90, Some(&[]));
        check(silent(), true, 29, None);
        check(silent(), true, 30, Some(&["container runtime is down", "net"]));
        check(silent(), false, 31, Some(&[UNCHECKED, UNKNOWN_NETWORK]));
    }

    #[test]
    fn a_shutdown_comes_after_the_runtime_and_counts_while_that_is_unknown() {
        let check = |problems: Option<&[&str]>, is_shutting_down: bool, expected: Option<&[&str]>| {
            let texts = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
            let found = with_shutdown(problems.map(texts), is_shutting_down);
            assert_eq!(found, expected.map(texts));
        };
        check(None, false, None);
        check(Some(&["run"]), false, Some(&["run"]));
        check(None, true, Some(&["node is shutting down"]));
        check(Some(&[]), true, Some(&["node is shutting down"]));
        check(Some(&["run"]), true, Some(&["run", "node is shutting down"]));
    }

    #[test]
    fn lists_that_fail_are_a_problem_of_their_own() {
        let check = |contact: RuntimeContact, lists: RuntimeLists, expected: &[&str]| {
            let facts = RuntimeFacts {
                report: RuntimeReport {
                    contact,
                    network_problem: Some("net".to_owned()),
                    abilities: Some(RuntimeAbilities::default()),
                    runtime_problem: Some("run".to_owned()),
                    lists,
                },
                silent_for: Duration::from_secs(60),
                unlisted_for: Duration::from_millis(185_500),
            };
            assert_eq!(
                runtime_problems(&facts).unwrap_or_default(),
                expected,
                "{facts:?}"
            );
        };
        let already = Duration::from_secs(181);
        let overdue = "PLEG is not healthy: pleg was last seen active 3m5s ago; threshold is 3m0s";
        let lists = RuntimeLists::Overdue { already };
        check(RuntimeContact::Answers, RuntimeLists::Fresh, &["run", "net"]);
        check(RuntimeContact::Answers, lists, &[overdue, "run", "net"]);
        check(
            RuntimeContact::Silent { already },
            lists,
            &["container runtime is down", overdue, "net"],
        );
        let never = "PLEG is not healthy: pleg has yet to be successful";
        check(
            RuntimeContact::Answers,
            RuntimeLists::Never,
            &[never, "run", "net"],
        );
    }
}
