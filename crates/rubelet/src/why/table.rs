//! Answers as tables for people.

use std::io::Write;

use anyhow::Result;
use rubelet_model::explanation::{NodeExplanation, PodExplanation};
use serde_json::Value;

const GAP: usize = 2;

/// A table whose last column is not padded.
fn write_table(out: &mut Vec<u8>, rows: &[Vec<String>]) -> Result<()> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0) + GAP
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:<width$}"));
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn header(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// One pod a line; the error of the last try is on a line of its own below.
pub(super) fn write_pods(out: &mut Vec<u8>, pods: &[PodExplanation]) -> Result<()> {
    if pods.is_empty() {
        return Ok(writeln!(out, "No pods on this node.")?);
    }
    let mut rows = vec![header(&[
        "NAMESPACE/NAME",
        "PHASE",
        "READY",
        "RESTARTS",
        "WAITING FOR",
    ])];
    for pod in pods {
        let waits_for = pod.waits_for.as_ref().map_or_else(
            || "-".to_owned(),
            |wait| format!("{} ({})", one_line(&wait.what), age(wait.age_seconds)),
        );
        rows.push(vec![
            format!("{}/{}", pod.namespace, pod.name),
            pod.phase.clone(),
            format!("{}/{}", pod.containers_ready, pod.containers),
            pod.restarts.to_string(),
            waits_for,
        ]);
    }
    let mut table = Vec::new();
    write_table(&mut table, &rows)?;
    let table = String::from_utf8_lossy(&table).into_owned();
    let mut lines = table.lines();
    writeln!(out, "{}", lines.next().unwrap_or_default())?;
    for (line, pod) in lines.zip(pods) {
        writeln!(out, "{line}")?;
        let error = pod.waits_for.as_ref().and_then(|wait| wait.last_error.as_ref());
        if let Some(error) = error {
            writeln!(out, "  last error: {}", one_line(error))?;
        }
    }
    Ok(())
}

/// What concerns all pods comes below them, and only when there is something.
pub(super) fn write_node(out: &mut Vec<u8>, node: &NodeExplanation) -> Result<()> {
    if !node.waits_for.is_empty() {
        writeln!(out, "\nAll pods on this node wait for:")?;
    }
    for wait in &node.waits_for {
        writeln!(out, "  {} ({})", one_line(&wait.what), age(wait.age_seconds))?;
        if let Some(error) = &wait.last_error {
            writeln!(out, "    last error: {}", one_line(error))?;
        }
    }
    if !node.manifests.is_empty() {
        writeln!(out, "\nManifests that cannot be used:")?;
    }
    for manifest in &node.manifests {
        writeln!(
            out,
            "  {}: {}",
            one_line(&manifest.file),
            one_line(&manifest.problem)
        )?;
    }
    Ok(())
}

/// Events as the recorder keeps them: the fields of a Kubernetes event.
pub(super) fn write_events(out: &mut Vec<u8>, events: &[Value]) -> Result<()> {
    if events.is_empty() {
        return Ok(writeln!(out, "No events.")?);
    }
    let text = |event: &Value, path: &str| {
        let value = event.pointer(path);
        value.and_then(Value::as_str).map(one_line).unwrap_or_default()
    };
    let mut rows = vec![header(&["TIME", "TYPE", "REASON", "COUNT", "POD", "MESSAGE"])];
    for event in events {
        let pod = format!(
            "{}/{}",
            text(event, "/involvedObject/namespace"),
            text(event, "/involvedObject/name")
        );
        let count = event.get("count").and_then(Value::as_u64).unwrap_or(1);
        rows.push(vec![
            text(event, "/lastTimestamp"),
            text(event, "/type"),
            text(event, "/reason"),
            count.to_string(),
            pod,
            text(event, "/message"),
        ]);
    }
    write_table(out, &rows)
}

/// Two units at most: `45s`, `3m20s`, `2h5m`, `3d4h`.
fn age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, _, _) => format!("{hours}h{}m", minutes % 60),
        (_, _, _) => format!("{days}d{}h", hours % 24),
    }
}

/// Texts of runtimes may have several lines, and control characters that a terminal would obey.
fn one_line(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    text.trim().chars().map(clean).collect()
}

#[cfg(test)]
mod tests {
    use rubelet_model::Timestamp;
    use rubelet_model::explanation::{ManifestExplanation, WaitExplanation};
    use serde_json::json;

    use super::*;

    fn pod(name: &str, waits_for: Option<(&str, u64, Option<&str>)>) -> PodExplanation {
        PodExplanation {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: "u".into(),
            phase: "Running".to_owned(),
            containers_ready: 1,
            containers: 2,
            restarts: 3,
            waits_for: waits_for.map(|(what, age_seconds, error)| WaitExplanation {
                what: what.to_owned(),
                since: Timestamp::EPOCH,
                age_seconds,
                last_error: error.map(str::to_owned),
            }),
        }
    }

    #[test]
    fn pods_stand_in_columns() {
        let check = |pods: &[PodExplanation], expected: &str| {
            let mut out = Vec::new();
            write_pods(&mut out, pods).unwrap();
            assert_eq!(String::from_utf8_lossy(&out), expected);
        };
        check(&[], "No pods on this node.\n");
        check(
            &[
                pod("a", None),
                pod(
                    "longer",
                    Some(("pull image x", 65, Some("no such\nhost\x1b[31m"))),
                ),
            ],
            "NAMESPACE/NAME  PHASE    READY  RESTARTS  WAITING FOR\n\
             default/a       Running  1/2    3         -\n\
             default/longer  Running  1/2    3         pull image x (1m5s)\n  \
             last error: no such host [31m\n",
        );
    }

    #[test]
    fn what_concerns_the_node_stands_below() {
        let check = |node: &NodeExplanation, expected: &str| {
            let mut out = Vec::new();
            write_node(&mut out, node).unwrap();
            assert_eq!(String::from_utf8_lossy(&out), expected);
        };
        check(&NodeExplanation::default(), "");
        let node = NodeExplanation {
            waits_for: vec![WaitExplanation {
                what: "the container runtime to be ready".to_owned(),
                since: Timestamp::EPOCH,
                age_seconds: 7,
                last_error: Some("no such\nfile".to_owned()),
            }],
            manifests: vec![ManifestExplanation {
                file: "/m/a.yaml".to_owned(),
                problem: "it holds no pod".to_owned(),
            }],
        };
        check(
            &node,
            "\nAll pods on this node wait for:\n  the container runtime to be ready (7s)\n    last error: no such file\n\
             \nManifests that cannot be used:\n  /m/a.yaml: it holds no pod\n",
        );
    }

    #[test]
    fn events_stand_in_columns() {
        let mut out = Vec::new();
        let event = json!({
            "lastTimestamp": "2026-01-01T00:00:00Z", "type": "Warning", "reason": "BackOff", "count": 4,
            "involvedObject": { "namespace": "default", "name": "web" }, "message": "Back-off",
        });
        write_events(&mut out, &[event, json!({})]).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&out),
            "TIME                  TYPE     REASON   COUNT  POD          MESSAGE\n\
             2026-01-01T00:00:00Z  Warning  BackOff  4      default/web  Back-off\n                                        1      /\n"
        );
        let mut out = Vec::new();
        write_events(&mut out, &[]).unwrap();
        assert_eq!(out, b"No events.\n");
    }

    #[test]
    fn ages_have_two_units() {
        let check = |seconds: u64, expected: &str| assert_eq!(age(seconds), expected);
        check(0, "0s");
        check(59, "59s");
        check(200, "3m20s");
        check(7_500, "2h5m");
        check(273_600, "3d4h");
    }
}
