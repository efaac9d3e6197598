//! The logs of services: from the journal where it knows them, else from files with their names.
//!
//! Owns the order, the texts between the logs and the limit in time, which are upstream's. The status is sent before the first
//! log is looked for, so that every failure is a line in the text.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::StreamExt;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use rubelet_ports::{FileError, FileErrorKind, NodeLog, NodeLogReader};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::query::NodeLogQuery;
use super::{PIECE_BYTES, channel};
use crate::response::{Answer, stream};

/// For everything in a query.
const QUERY_LIMIT: Duration = Duration::from_secs(30);

/// The client has gone.
struct Gone;

/// The permit is held as long as the query runs.
pub(super) fn answer(
    reader: Arc<dyn NodeLogReader>,
    headers: &HeaderMap,
    query: NodeLogQuery,
    place: OwnedSemaphorePermit,
) -> Answer {
    let packs = headers
        .get(ACCEPT_ENCODING)
        .is_some_and(|encoding| encoding.as_bytes() == b"gzip");
    let (sender, receiver) = channel();
    let mut answer = stream(receiver);
    let text = HeaderValue::from_static("text/plain;charset=UTF-8");
    answer.headers_mut().insert(CONTENT_TYPE, text);
    if packs {
        let gzip = HeaderValue::from_static("gzip");
        answer.headers_mut().insert(CONTENT_ENCODING, gzip);
    }
    let out = Out {
        packer: packs.then(|| GzEncoder::new(Vec::new(), Compression::fast())),
        sender,
    };
    tokio::spawn(async move {
        copy_within_limit(reader, query, out).await;
        drop(place);
    });
    answer
}

async fn copy_within_limit(reader: Arc<dyn NodeLogReader>, query: NodeLogQuery, mut out: Out) {
    let client = out.sender.clone();
    let copied = tokio::select! {
        biased;
        // Dropping the query ends its programs, which may be silent for long.
        () = client.closed() => return,
        copied = tokio::time::timeout(QUERY_LIMIT, copy(reader.as_ref(), &query, &mut out)) => copied,
    };
    if let Ok(Err(Gone)) = copied {
        return;
    }
    if copied.is_err() {
        tracing::info!("A query of the node's logs took too long and was cut off");
    }
    // What is packed already needs its end, also when time is over.
    let _ = tokio::time::timeout(QUERY_LIMIT, out.finish()).await;
}

async fn copy(reader: &dyn NodeLogReader, query: &NodeLogQuery, out: &mut Out) -> Result<(), Gone> {
    let units = reader.journal_units().await.unwrap_or_default();
    let (native, files): (Vec<&str>, Vec<&str>) = query
        .services
        .iter()
        .map(String::as_str)
        .partition(|service| units.contains(&format!("{service}.service")));
    if !native.is_empty() {
        copy_journal(reader, query.journal_arguments(&native), out).await?;
    }
    if files.is_empty() {
        return Ok(());
    }
    if query.has_options() {
        let names = files.join(" ");
        let text = format!(
            "\noptions present and query resolved to log files for [{names}]\ntry without specifying options\n"
        );
        return out.text(&text).await;
    }
    for service in files {
        copy_files_of(reader, service, out).await?;
    }
    Ok(())
}

async fn copy_journal(reader: &dyn NodeLogReader, arguments: Vec<String>, out: &mut Out) -> Result<(), Gone> {
    let mut pieces = reader.journal(arguments);
    while let Some(piece) = pieces.next().await {
        match piece {
            Ok(piece) => out.send(piece).await?,
            Err(error) => {
                tracing::info!(%error, "The journal cannot be read");
                return out.text("\nerror: journal output not available\n").await;
            }
        }
    }
    Ok(())
}

/// The first of the files that a service may log to.
async fn copy_files_of(reader: &dyn NodeLogReader, service: &str, out: &mut Out) -> Result<(), Gone> {
    for name in [
        service.to_owned(),
        format!("{service}.log"),
        format!("{service}/{service}.log"),
    ] {
        match copy_file(reader, &name, out).await? {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => {
                let text = format!("\nerror getting log for {service}: {}\n", error.message);
                return out.text(&text).await;
            }
        }
    }
    out.text(&format!("\nlog not found for {service}\n")).await
}

/// Whether there is such a file.
async fn copy_file(
    reader: &dyn NodeLogReader,
    name: &str,
    out: &mut Out,
) -> Result<Result<bool, FileError>, Gone> {
    let file = match reader.open(name).await {
        Ok(NodeLog::File(file)) => file,
        Ok(NodeLog::Directory(_)) => return Ok(Ok(false)),
        Err(error) if error.kind == FileErrorKind::NotFound => return Ok(Ok(false)),
        Err(error) => return Ok(Err(error)),
    };
    let mut offset = 0;
    loop {
        let piece = match file.content.read_at(offset, PIECE_BYTES).await {
            Ok(piece) if piece.is_empty() => return Ok(Ok(true)),
            Ok(piece) => piece,
            Err(error) => return Ok(Err(error)),
        };
        offset += piece.len() as u64;
        out.send(piece).await?;
    }
}

/// Where the text goes, packed if the client wants that.
struct Out {
    packer: Option<GzEncoder<Vec<u8>>>,
    sender: mpsc::Sender<Bytes>,
}

impl Out {
    async fn text(&mut self, text: &str) -> Result<(), Gone> {
        self.send(text.as_bytes().to_vec()).await
    }

    async fn send(&mut self, piece: Vec<u8>) -> Result<(), Gone> {
        let piece = match &mut self.packer {
            None => piece,
            Some(packer) => {
                // Packing into memory cannot fail.
                let _ = packer.write_all(&piece);
                std::mem::take(packer.get_mut())
            }
        };
        if piece.is_empty() {
            return Ok(());
        }
        self.sender.send(piece.into()).await.map_err(|_| Gone)
    }

    async fn finish(self) {
        if let Some(packer) = self.packer {
            let rest = packer.finish().unwrap_or_default();
            let _ = self.sender.send(rest.into()).await;
        }
    }
}
