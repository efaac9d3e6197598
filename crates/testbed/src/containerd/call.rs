//! The few CRI calls that the test bed itself needs, made directly: the test bed must not stand on the client that it tests.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use prost::Message;
use rubelet_wire::cri::v1;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;

const DEADLINE: Duration = Duration::from_secs(60);

/// Fails, with the reason, unless the runtime says that it and its network are ready.
pub(super) fn check_ready(socket: &Path) -> Result<()> {
    let path = "/runtime.v1.RuntimeService/Status";
    let answer: v1::StatusResponse = call(socket, path, v1::StatusRequest { verbose: false })?;
    let conditions = answer.status.map(|status| status.conditions).unwrap_or_default();
    for wanted in [rubelet_wire::cri::RUNTIME_READY, rubelet_wire::cri::NETWORK_READY] {
        let condition = conditions.iter().find(|condition| condition.r#type == wanted);
        let condition = condition.with_context(|| format!("no condition {wanted}"))?;
        anyhow::ensure!(
            condition.status,
            "{wanted} is false: {} {}",
            condition.reason,
            condition.message
        );
    }
    Ok(())
}

/// The id of an image that the CRI knows by this name.
pub(super) fn image_id(socket: &Path, name: &str) -> Result<Option<String>> {
    let image = v1::ImageSpec {
        image: name.to_owned(),
        ..Default::default()
    };
    let request = v1::ImageStatusRequest {
        image: Some(image),
        verbose: false,
    };
    let answer: v1::ImageStatusResponse = call(socket, "/runtime.v1.ImageService/ImageStatus", request)?;
    Ok(answer.image.map(|image| image.id))
}

/// Stops and removes every pod.
pub(super) fn remove_pods(socket: &Path) -> Result<()> {
    let list = v1::ListPodSandboxRequest::default();
    let pods: v1::ListPodSandboxResponse = call(socket, "/runtime.v1.RuntimeService/ListPodSandbox", list)?;
    for pod in pods.items {
        let pod_sandbox_id = pod.id;
        let stop = v1::StopPodSandboxRequest {
            pod_sandbox_id: pod_sandbox_id.clone(),
        };
        let _: v1::StopPodSandboxResponse = call(socket, "/runtime.v1.RuntimeService/StopPodSandbox", stop)?;
        let remove = v1::RemovePodSandboxRequest { pod_sandbox_id };
        let _: v1::RemovePodSandboxResponse =
            call(socket, "/runtime.v1.RuntimeService/RemovePodSandbox", remove)?;
    }
    Ok(())
}

/// One unary call on a connection of its own, for callers that may or may not be inside an asynchronous runtime.
fn call<Q, A>(socket: &Path, path: &'static str, request: Q) -> Result<A>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?.timeout(DEADLINE);
    let exchange = async move {
        let mut client =
            tonic::client::Grpc::new(endpoint.connect().await?).max_decoding_message_size(16 << 20);
        client.ready().await?;
        let codec = tonic_prost::ProstCodec::<Q, A>::default();
        let answer = client
            .unary(
                tonic::Request::new(request),
                PathAndQuery::from_static(path),
                codec,
            )
            .await?;
        anyhow::Ok(answer.into_inner())
    };
    // On a thread of its own: a runtime can be neither entered nor dropped inside another one.
    let alone = move || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(exchange)
    };
    let answer = std::thread::spawn(alone)
        .join()
        .map_err(|_| anyhow::anyhow!("the call panicked"));
    answer.flatten().with_context(|| format!("call {path}"))
}
