//! `rubelet why`: asks the rubelet that runs on this node what its pods wait for.
//!
//! Owns the arguments of this one command and the form of its answer. It talks to the local socket under the root directory and
//! to nothing else: no settings are loaded, and no runtime is asked.

mod arguments;
mod table;

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use rubelet_model::explanation::{NodeExplanation, PodExplanation};
use serde::Deserialize;
use serde_json::Value;

use crate::local_socket;
use arguments::{Arguments, Request, USAGE};

/// The first argument.
pub(crate) const COMMAND: &str = "why";

/// Prints the answer; the exit code is 1 when there is none.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let mut out = Vec::new();
    let result = Arguments::parse(arguments)
        .map_err(|problem| anyhow::anyhow!("{problem}\n\n{USAGE}"))
        .and_then(|arguments| answer(&arguments, &mut out));
    // A reader that has gone away is no failure of ours.
    let _ = std::io::stdout().write_all(&out);
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rubelet why: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn answer(arguments: &Arguments, out: &mut Vec<u8>) -> Result<()> {
    let ask = |path: &str| local_socket::ask(&arguments.root_dir, path);
    match &arguments.request {
        Request::Help => write_line(out, USAGE),
        Request::Events => {
            let events = ask("/events")?;
            if arguments.json {
                return write_json(out, &events);
            }
            table::write_events(out, events.as_array().map_or(&[], Vec::as_slice))
        }
        Request::Record(uid) => write_json(out, &ask(&format!("/flight/{}", path_segment(uid)))?),
        Request::Pods(wanted) => {
            let values: Vec<Value> = serde_json::from_value(ask("/why")?).context("the answer is no list")?;
            let mut pods: Vec<(PodExplanation, Value)> = Vec::new();
            for value in values {
                let pod = PodExplanation::deserialize(&value).context("the answer makes no sense")?;
                let names = (pod.uid.as_str(), pod.namespace.as_str(), pod.name.as_str());
                if wanted.as_deref().is_none_or(|wanted| is_meant(names, wanted)) {
                    pods.push((pod, value));
                }
            }
            if let (Some(wanted), true) = (wanted, pods.is_empty()) {
                bail!("no pod {wanted:?} on this node");
            }
            let (pods, values): (Vec<PodExplanation>, Vec<Value>) = pods.into_iter().unzip();
            if arguments.json {
                return write_json(out, &Value::Array(values));
            }
            // An older rubelet on the node does not have this path.
            let node = ask("/node").and_then(|node| Ok(NodeExplanation::deserialize(&node)?));
            let mut node = node.unwrap_or_default();
            if wanted.is_some() {
                node.manifests.clear();
            }
            table::write_pods(out, &pods)?;
            table::write_node(out, &node)
        }
    }
}

/// By uid, `namespace/name` or name; of a static pod also the name in its manifest, which lacks the node's.
pub(crate) fn is_meant((uid, namespace, name): (&str, &str, &str), wanted: &str) -> bool {
    if uid == wanted {
        return true;
    }
    let (wanted_namespace, wanted) = match wanted.split_once('/') {
        Some((namespace, wanted)) => (Some(namespace), wanted),
        None => (None, wanted),
    };
    let is_begun = |rest: Option<&str>| rest.is_some_and(|rest| rest.starts_with('-'));
    let name_fits = name == wanted || (!wanted.is_empty() && is_begun(name.strip_prefix(wanted)));
    name_fits && wanted_namespace.is_none_or(|wanted| namespace == wanted)
}

/// A uid may be any text, for manifests may set it.
fn path_segment(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    text.bytes()
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

fn write_json(out: &mut Vec<u8>, value: &Value) -> Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    write_line(out, "")
}

fn write_line(out: &mut Vec<u8>, line: &str) -> Result<()> {
    Ok(writeln!(out, "{line}")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_may_be_any_text() {
        assert_eq!(path_segment("a-1._"), "a-1._");
        assert_eq!(path_segment("a b/ü"), "a%20b%2F%C3%BC");
    }

    #[test]
    fn a_pod_is_meant_by_its_names() {
        let names = ("u1", "default", "web-node-a");
        let check = |wanted: &str, expected: bool| assert_eq!(is_meant(names, wanted), expected, "{wanted}");
        check("web-node-a", true);
        check("web", true);
        check("default/web", true);
        check("default/web-node-a", true);
        check("u1", true);
        check("we", false);
        check("node-a", false);
        check("other/web", false);
        check("default/u1", false);
        check("", false);
        check("default/", false);
        check("web-", false);
    }
}
