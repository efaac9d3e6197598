//! The standard gRPC health service (`grpc.health.v1.Health/Check`), with a state that HTTP requests switch.
//!
//! It answers for the server as a whole (no service named) and for the services `test` and `arrive-…`, and notes when the latter are
//! asked for; others are unknown.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::{Grpc, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::serve::Shared;

const CHECK: &str = "/grpc.health.v1.Health/Check";
/// Services that are asked for to note when.
const ARRIVAL: &str = "arrive-";
const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

#[derive(Clone)]
struct Health(Shared);

impl UnaryService<HealthCheckRequest> for Health {
    type Response = HealthCheckResponse;
    type Future = Answer<Result<Response<HealthCheckResponse>, Status>>;

    fn call(&mut self, request: Request<HealthCheckRequest>) -> Self::Future {
        let service = request.into_inner().service;
        let status = if self.0.lock().not_serving {
            NOT_SERVING
        } else {
            SERVING
        };
        let is_arrival = service.starts_with(ARRIVAL);
        if is_arrival {
            self.0.lock().arrive(&service);
        }
        Box::pin(async move {
            match service.as_str() {
                _ if is_arrival => Ok(Response::new(HealthCheckResponse { status })),
                "" | "test" => Ok(Response::new(HealthCheckResponse { status })),
                "unimplemented" => Err(Status::unimplemented("no health here")),
                _ => Err(Status::not_found("unknown service")),
            }
        })
    }
}

impl Service<http::Request<Body>> for Health {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let health = self.clone();
        Box::pin(async move {
            if request.uri().path() != CHECK {
                return Ok(Status::unimplemented("only Check").into_http());
            }
            Ok(Grpc::new(ProstCodec::default()).unary(health, request).await)
        })
    }
}

pub(crate) async fn serve(listener: TcpListener, shared: Shared) {
    let server = tonic::transport::Server::builder();
    if let Err(error) = server
        .serve_with_incoming(Health(shared), TcpIncoming::from(listener))
        .await
    {
        eprintln!("grpc: {error}");
        std::process::exit(70);
    }
}
