//! The targets. The name of each is the name of its corpus.

use rubelet_apiserver::fuzz as apiserver;
use rubelet_config::FeatureGates;
use rubelet_images::fuzz as images;
use rubelet_lifecycle::configuration::{env_file, termination_message};
use rubelet_lifecycle::user_namespaces::Record;
use rubelet_server::fuzz as server;

/// The first byte chooses where the rest is cut: a reader may not depend on how its input arrives.
fn cut(bytes: &[u8]) -> (usize, &[u8]) {
    match bytes.split_first() {
        Some((first, rest)) => (usize::from(*first) % (rest.len() + 1), rest),
        None => (0, bytes),
    }
}

pub(super) fn spdy(bytes: &[u8]) {
    assert_eq!(
        server::spdy_frames(bytes, usize::MAX),
        server::spdy_frames(bytes, 1)
    );
}

pub(super) fn websocket(bytes: &[u8]) {
    assert_eq!(
        server::websocket_pieces(bytes, usize::MAX),
        server::websocket_pieces(bytes, 1)
    );
}

pub(super) fn subject(bytes: &[u8]) {
    server::subject(bytes);
}

/// Container logs as clients get them, in both formats.
pub(super) fn transcript(bytes: &[u8]) {
    let (cut, log) = cut(bytes);
    for timestamps in [false, true] {
        let whole = server::transcript(&[log], timestamps);
        let (first, second) = log.split_at(cut);
        assert_eq!(whole, server::transcript(&[first, second], timestamps));
    }
}

/// Container logs as termination messages.
pub(super) fn cri_log(bytes: &[u8]) {
    let whole = termination_message::message_of_log(bytes);
    assert!(whole.chars().count() <= termination_message::MAX_LOG_BYTES);
    termination_message::message_of_cut_log(bytes);
    let (cut, log) = cut(bytes);
    if let Some(of_end) = termination_message::message_of_log_end(&log[cut..]) {
        assert_eq!(
            of_end,
            termination_message::message_of_log(log),
            "the end was enough"
        );
    }
}

pub(super) fn mount_table(bytes: &[u8]) {
    let lines = bytes.split(|byte| *byte == b'\n').count();
    assert!(rubelet_host::volumes::mount_targets(bytes).len() <= lines);
}

pub(super) fn env_file(bytes: &[u8]) {
    for key in ["A", "PATH", "", "a b", "é"] {
        if let Ok(value) = env_file::value_of(bytes, key) {
            assert!(value.len() <= bytes.len());
        }
    }
}

pub(super) fn docker_config(bytes: &[u8]) {
    images::docker_config(bytes);
}

pub(super) fn pull_record(bytes: &[u8]) {
    if let Some((first, second)) = images::pull_record(bytes) {
        assert_eq!(first, second, "what was read is what is written");
    }
}

pub(super) fn user_namespace_record(bytes: &[u8]) {
    if let Ok(record) = Record::read(bytes) {
        assert_eq!(Record::read(record.text().as_bytes()), Ok(record));
    }
}

pub(super) fn manifest(bytes: &[u8]) {
    let gates = FeatureGates::every(true);
    let read = || rubelet_manifest::read_file(bytes, "/etc/kubernetes/manifests/a.yaml", "node", &gates);
    let pods = read();
    assert_eq!(pods, read(), "the same file is the same pod");
    for pod in pods.iter().flat_map(|found| &found.pods) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        assert!(!uid.is_empty(), "a static pod has an identity");
    }
    // An answer of an address may hold a list.
    let _ = rubelet_manifest::read_url(bytes, "http://127.0.0.1/pods", "node", &gates);
}

/// Objects as the API server writes them.
pub(super) fn api_object(bytes: &[u8]) {
    apiserver::objects(bytes);
}

/// The body of a watch.
pub(super) fn watch_line(bytes: &[u8]) {
    let (cut, body) = cut(bytes);
    let (first, second) = body.split_at(cut);
    let whole = apiserver::watch_lines(&[body]);
    assert_eq!(whole, apiserver::watch_lines(&[first, second]));
}
