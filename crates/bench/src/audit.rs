//! The requests that a kubelet makes, as the API server's audit log has them: one line for each.
//!
//! The log is the API server's own, so that requests of both kubelets are counted the same way, also those that are refused.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use anyhow::{Context, Result};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Deserialize;
use serde_json::json;

use rubelet_testbed::Scope;

/// A log that is rotated in between would lose lines; no run fills this much.
const MAX_LOG_MEGABYTES: u64 = 4096;

/// The audit log of an API server.
pub(super) struct Audit {
    policy: PathBuf,
    log: PathBuf,
}

/// A point in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position(u64);

/// The requests of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Count {
    pub(super) requests: usize,
    /// When the first and the last of them came, in seconds after the first request of any kind.
    pub(super) first_seconds: f64,
    pub(super) last_seconds: f64,
}

/// Requests by kind, such as `list configmaps` or `create serviceaccounts/token`.
pub(super) type Requests = BTreeMap<String, Count>;

impl Audit {
    /// Writes the policy: every request of a node is logged once, when it comes, and nothing else.
    pub(super) fn prepare(scope: &Scope) -> Result<Self> {
        let audit = Self {
            policy: scope.path("audit/policy.json"),
            log: scope.path("audit/requests.log"),
        };
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"],
            "rules": [
                { "level": "Metadata", "userGroups": ["system:nodes"] },
                { "level": "None" },
            ],
        });
        fs::write(&audit.policy, policy.to_string()).context("write the audit policy")?;
        Ok(audit)
    }

    /// What makes an API server keep the log.
    pub(super) fn apiserver_flags(&self) -> Vec<String> {
        vec![
            format!("--audit-policy-file={}", self.policy.display()),
            format!("--audit-log-path={}", self.log.display()),
            format!("--audit-log-maxsize={MAX_LOG_MEGABYTES}"),
        ]
    }

    /// The log's end as it is now.
    pub(super) fn end(&self) -> Result<Position> {
        let metadata = fs::metadata(&self.log).context("look at the audit log")?;
        Ok(Position(metadata.len()))
    }

    /// The requests of a node since then.
    pub(super) fn requests_since(&self, position: Position, node: &str) -> Result<Requests> {
        let mut log = File::open(&self.log).context("open the audit log")?;
        log.seek(SeekFrom::Start(position.0))?;
        let mut lines = String::new();
        log.read_to_string(&mut lines).context("read the audit log")?;
        count(&lines, node)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    user: User,
    verb: String,
    request_received_timestamp: MicroTime,
    #[serde(rename = "requestURI")]
    uri: String,
    object_ref: Option<Object>,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Deserialize)]
struct Object {
    resource: String,
    subresource: Option<String>,
}

impl Event {
    fn kind(&self) -> String {
        let target = match &self.object_ref {
            Some(object) => match &object.subresource {
                Some(subresource) => format!("{}/{subresource}", object.resource),
                None => object.resource.clone(),
            },
            None => self.uri.split('?').next().unwrap_or_default().to_owned(),
        };
        format!("{} {target}", self.verb)
    }
}

fn count(lines: &str, node: &str) -> Result<Requests> {
    let user = format!("system:node:{node}");
    let mut requests = Requests::new();
    let mut start = None;
    for line in lines.split_inclusive('\n') {
        // The last line may still be in the making.
        let Some(line) = line.strip_suffix('\n') else {
            break;
        };
        let event: Event = serde_json::from_str(line).context("a line of the audit log")?;
        if event.user.username != user {
            continue;
        }
        let at = event.request_received_timestamp.0;
        let begin = *start.get_or_insert(at);
        let seconds = (at - begin).total(k8s_openapi::jiff::Unit::Second)?;
        let kind = requests.entry(event.kind()).or_insert(Count {
            requests: 0,
            first_seconds: seconds,
            last_seconds: seconds,
        });
        kind.requests += 1;
        kind.last_seconds = seconds;
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn line(user: &str, second: &str, verb: &str, object: &Value) -> String {
        let event = json!({
            "kind": "Event", "level": "Metadata", "stage": "RequestReceived",
            "requestURI": "/healthz?x=y", "verb": verb,
            "user": { "username": user, "groups": ["system:nodes"] },
            "requestReceivedTimestamp": format!("2026-01-02T03:04:{second}Z"),
            "objectRef": object,
        });
        format!("{event}\n")
    }

    #[test]
    fn requests_of_one_node_are_counted_by_kind() {
        let config_map = json!({ "resource": "configmaps", "name": "a", "apiVersion": "v1" });
        let token = json!({ "resource": "serviceaccounts", "subresource": "token" });
        let log = [
            line("system:node:a", "05.000000", "watch", &config_map),
            line("system:node:b", "05.100000", "watch", &config_map),
            line("system:node:a", "05.250000", "create", &token),
            line("system:node:a", "06.500000", "watch", &config_map),
            line("system:node:a", "07.000000", "get", &Value::Null),
            "{\"half\":".to_owned(),
        ]
        .concat();
        let expected = |requests, first_seconds, last_seconds| Count {
            requests,
            first_seconds,
            last_seconds,
        };
        let expected = Requests::from([
            ("watch configmaps".to_owned(), expected(2, 0.0, 1.5)),
            ("create serviceaccounts/token".to_owned(), expected(1, 0.25, 0.25)),
            ("get /healthz".to_owned(), expected(1, 2.0, 2.0)),
        ]);
        assert_eq!(count(&log, "a").unwrap(), expected);
        assert!(count("no\n", "a").is_err());
    }
}
