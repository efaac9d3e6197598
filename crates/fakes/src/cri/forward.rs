//! Calls that a real runtime answers, with faults on the way back.
//!
//! Owns the way to the other runtime and what happens to an answer: it comes late, it is another one, or an error takes its place
//! after the effect.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::stream::StreamExt;
use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message;
use rubelet_wire::cri::v1;
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use super::{Answers, RawCodec};

/// Makes another answer of one.
pub type Edit = fn(Bytes) -> Bytes;

/// An answer of `ListContainers` without its first container.
pub fn omit_first_container(answer: Bytes) -> Bytes {
    edit_containers(answer, |list| {
        let rest = list.split_off(list.len().min(1));
        *list = rest;
    })
}

/// An answer of `ListContainers` that has its first container twice.
pub fn repeat_first_container(answer: Bytes) -> Bytes {
    edit_containers(answer, |list| list.extend(list.first().cloned()))
}

/// What is no such answer stays as it is.
fn edit_containers(answer: Bytes, change: impl Fn(&mut Vec<v1::Container>)) -> Bytes {
    let Ok(mut list) = v1::ListContainersResponse::decode(answer.clone()) else {
        return answer;
    };
    change(&mut list.containers);
    list.encode_to_vec().into()
}

/// A call that the other runtime answers.
#[derive(Clone, Debug, Default)]
pub struct Forward {
    pub(super) late: Duration,
    pub(super) edit: Option<Edit>,
    pub(super) failure: Option<(Code, String)>,
}

/// Connects to another runtime by its socket.
pub(super) fn connect(socket: &Path) -> Result<Channel> {
    let socket = socket.to_owned();
    let dial = move |_: Uri| {
        let socket = socket.clone();
        async move { anyhow::Ok(TokioIo::new(UnixStream::connect(socket).await?)) }
    };
    let endpoint = Endpoint::try_from("http://runtime").context("an address that is never looked up")?;
    Ok(endpoint.connect_with_connector_lazy(tower::service_fn(dial)))
}

pub(super) async fn forward(
    channel: Channel,
    path: &str,
    request: Request<Bytes>,
    how: Forward,
) -> Result<Response<Answers>, Status> {
    let path = PathAndQuery::try_from(path).map_err(|error| Status::internal(error.to_string()))?;
    let mut client = Grpc::new(channel).max_decoding_message_size(usize::MAX);
    let ready = client.ready().await;
    ready.map_err(|error| Status::unavailable(error.to_string()))?;
    let answer = client.server_streaming(request, path, RawCodec).await;
    tokio::time::sleep(how.late).await;
    if let Some((code, message)) = how.failure {
        // The effect is awaited before it is denied.
        drop(answer?.into_inner().collect::<Vec<_>>().await);
        return Err(Status::new(code, message));
    }
    let edit = how.edit.unwrap_or(std::convert::identity);
    let answers = answer?.into_inner().map(move |item| item.map(edit));
    Ok(Response::new(answers.boxed()))
}
