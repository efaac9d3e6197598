//! The gRPC health service, asked by a client of tonic's.

use anyhow::Result;
use tonic::codegen::http::uri::PathAndQuery;

use crate::server::{Server, get};

#[derive(Clone, PartialEq, prost::Message)]
struct Question {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Answer {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// The outer error is a connection that failed, the inner one is the service's answer.
async fn call(address: &str, path: &'static str, service: &str) -> Result<Result<i32, tonic::Code>> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?;
    let mut client = tonic::client::Grpc::new(endpoint.connect().await?);
    client.ready().await?;
    let codec = tonic_prost::ProstCodec::<Question, Answer>::default();
    let question = tonic::Request::new(Question {
        service: service.to_owned(),
    });
    let answer = client
        .unary(question, PathAndQuery::from_static(path), codec)
        .await;
    Ok(answer
        .map(|answer| answer.into_inner().status)
        .map_err(|status| status.code()))
}

#[tokio::test]
async fn health_follows_the_switch() -> Result<()> {
    let server = Server::start(&["--http", "0", "--grpc", "0"])?;
    let http = server.line("http on ")?;
    let grpc = server.line("grpc on ")?;
    let check = "/grpc.health.v1.Health/Check";
    assert_eq!(call(&grpc, check, "").await?, Ok(1));
    assert_eq!(call(&grpc, check, "test").await?, Ok(1));
    assert_eq!(get(&http, "/grpc/off")?.0, 200);
    assert_eq!(call(&grpc, check, "").await?, Ok(2));
    assert_eq!(get(&http, "/grpc/on")?.0, 200);
    assert_eq!(call(&grpc, check, "").await?, Ok(1));
    assert_eq!(call(&grpc, check, "other").await?, Err(tonic::Code::NotFound));
    assert_eq!(
        call(&grpc, "/grpc.health.v1.Health/Watch", "").await?,
        Err(tonic::Code::Unimplemented)
    );
    Ok(())
}
