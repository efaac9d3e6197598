//! The local socket of `rubelet why` and `rubelet top`.
//!
//! Owns the socket file and its paths. Only root and rubelet's own user get an answer; a socket that no process serves any more
//! is replaced, one that is served is not.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use rubelet_model::explanation::PodExplanation;
use rubelet_ports::{NodeStatistics, PodView};
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;
use tokio::net::UnixListener;

use crate::connection::{Handler, Peer};
use crate::connection_phase::ConnectionPhase;
use crate::response::{Answer, error_line, json, unknown_path, wrong_method};
use crate::rfc3339;
use crate::statistics::extent as summary_extent;

/// The socket's name in the root directory.
pub const SOCKET_NAME: &str = "rubelet.sock";
const OWNER_ONLY: u32 = 0o600;
const SUMMARY: &str = "/stats/summary";

#[derive(Debug, Error)]
pub enum WhySocketError {
    #[error("another rubelet runs on this root directory: it serves {}", .0.display())]
    Taken(PathBuf),
    #[error("cannot serve {}", path.display())]
    Failed {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A socket's path that is short enough for the kernel, whatever the directory: it leads through the open directory, so it is
/// good only while that is open and only in this process.
#[must_use]
pub fn short_path(directory: &File, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}

/// A bound socket that accepts no connection yet.
pub(crate) struct WhySocket {
    listener: UnixListener,
    guard: SocketFile,
}

/// Removes the socket's file at the end, if it is still ours.
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            // A file that stays is replaced by the next rubelet.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl WhySocket {
    pub(crate) fn bind(root_dir: &Path) -> Result<Self, WhySocketError> {
        let path = root_dir.join(SOCKET_NAME);
        bind(root_dir, &path).map_err(|source| {
            if source.kind() == io::ErrorKind::AddrInUse {
                WhySocketError::Taken(path)
            } else {
                WhySocketError::Failed { path, source }
            }
        })
    }

    pub(crate) fn into_parts(self) -> (UnixListener, SocketFile) {
        (self.listener, self.guard)
    }
}

fn bind(root_dir: &Path, path: &Path) -> io::Result<WhySocket> {
    let directory = File::open(root_dir)?;
    let target = short_path(&directory, SOCKET_NAME);
    match UnixStream::connect(&target) {
        Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
        // No process listens, or nothing is there; any other file is replaced below.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
            ) => {}
        Err(error) => return Err(error),
    }
    // No client can connect before the mode is right: the file gets its name after that.
    let temporary = short_path(&directory, &format!(".{SOCKET_NAME}.{}", std::process::id()));
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&temporary)?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(OWNER_ONLY))?;
    let inode = fs::symlink_metadata(&temporary)?.ino();
    fs::rename(&temporary, &target)?;
    Ok(WhySocket {
        listener,
        guard: SocketFile {
            path: path.to_owned(),
            inode,
        },
    })
}

/// What the socket answers.
pub(crate) struct WhyApi {
    pods: Arc<dyn PodView>,
    statistics: Arc<dyn NodeStatistics>,
}

impl WhyApi {
    pub(crate) fn new(pods: Arc<dyn PodView>, statistics: Arc<dyn NodeStatistics>) -> Self {
        Self { pods, statistics }
    }

    /// The page of the HTTP API, for who needs neither its port nor its access.
    async fn summary(&self, query: &str) -> Answer {
        match self.statistics.summary(summary_extent(query, &[])).await {
            Ok(summary) => json(Bytes::from_owner(summary)),
            Err(error) => error_line(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
        }
    }
}

#[async_trait]
impl Handler for WhyApi {
    async fn answer(&self, request: Request<Incoming>, _: &Peer, phase: &ConnectionPhase) -> Answer {
        phase.admitted();
        let path = request.uri().path();
        let uid = path.strip_prefix("/flight/");
        if !matches!(path, "/why" | "/node" | "/events" | SUMMARY) && uid.is_none() {
            return unknown_path();
        }
        if request.method() != Method::GET {
            return wrong_method("GET");
        }
        if path == SUMMARY {
            return self.summary(request.uri().query().unwrap_or_default()).await;
        }
        let answer = match (path, uid) {
            (_, Some(uid)) => match self.pods.flight_record(&decoded(uid)).await {
                Ok(None) => {
                    return error_line(
                        StatusCode::NOT_FOUND,
                        &format!("no pod has the uid {:?}", decoded(uid)),
                    );
                }
                Ok(Some(record)) => Ok(encode(&record)),
                Err(error) => Err(error),
            },
            ("/node", None) => self.pods.node_explanation().await.map(|node| encode(&node)),
            ("/events", None) => self.pods.events().await.map(|events| encode(&events)),
            _ => self
                .pods
                .explanations()
                .await
                .map(|explanations| encode(&explanations.iter().map(readable).collect::<Vec<_>>())),
        };
        match answer {
            Ok(bytes) => json(bytes),
            Err(error) => error_line(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
        }
    }
}

/// A uid may be any text, for manifests may set it.
fn decoded(segment: &str) -> Cow<'_, str> {
    percent_decode_str(segment).decode_utf8_lossy()
}

/// With the time as people read it, beside the number.
fn readable(explanation: &PodExplanation) -> Value {
    let mut value = serde_json::to_value(explanation).unwrap_or_default();
    if let (Some(wait), Some(fields)) = (
        &explanation.waits_for,
        value.get_mut("waitsFor").and_then(Value::as_object_mut),
    ) {
        fields.insert("sinceTime".to_owned(), Value::String(rfc3339::format(wait.since)));
    }
    value
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    // Plain values with text keys can always be written into memory.
    serde_json::to_vec(value).unwrap_or_default()
}
