//! `exec`, `attach`, `portForward` and `run`: sessions in a pod.
//!
//! Owns how a request becomes a session of the runtime: the options, the container, the session's address, and the hand-over of the
//! client's connection. The bytes of a session are passed through as they are, SPDY and WebSocket alike; only protocols that no runtime
//! supports are translated. It must not change a pod otherwise, and must not show a session's address to any client.

mod address;
mod options;
mod problem;
mod runtime_side;
pub(crate) mod spdy;
mod splice;
mod stream_protocol;
mod target;
mod translate;
pub(crate) mod websocket;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use rubelet_model::observation::PodObservation;
use rubelet_ports::{PodView, RuntimeWriter};
use rubelet_wire::cri::v1;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body::{self, Unreadable};
use crate::metrics::ServerMetrics;
use crate::response::{Answer, Body, json, too_many};
use crate::stopping::Stopping;
use crate::upgrade::can_upgrade;
use address::StreamingAddress;
use options::{Form, StreamOptions, ports};
use problem::Problem;
use runtime_side::{Opened, open};
use splice::splice;
use stream_protocol::StreamProtocol;
use target::{Target, has_terminal, observe, running_container};
use translate::{translate, tunnel};

/// Sessions at a time; each holds two connections.
const SESSIONS: usize = 1000;
/// Commands without streams at a time: unlike a session each keeps its slot among the port's connections.
const RUNS: usize = 256;
const FORM_LIMIT_BYTES: usize = 64 * 1024;

/// The kinds of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Session {
    Exec,
    Attach,
    PortForward,
    /// A command without streams, run to its end.
    Run,
}

impl Session {
    /// As in the `Allow` header.
    pub(crate) fn methods(self) -> &'static str {
        match self {
            Self::Exec | Self::Attach | Self::PortForward => "GET, POST",
            Self::Run => "POST",
        }
    }

    pub(crate) fn takes(self, method: &Method) -> bool {
        self.methods().split(", ").any(|taken| taken == method.as_str())
    }

    fn target(self, rest: &str) -> Option<Target<'_>> {
        match self {
            Self::Exec | Self::Attach | Self::Run => Target::of_container(rest),
            Self::PortForward => Target::of_pod(rest),
        }
    }

    /// Whether the rest of a path names something that this is possible with.
    pub(crate) fn is_at(self, rest: &str) -> bool {
        self.target(rest).is_some()
    }
}

/// A request, taken apart so that its connection can be handed over.
pub(crate) struct SessionRequest {
    pub(crate) head: Parts,
    pub(crate) body: Incoming,
    /// Gives the connection once HTTP has ended there.
    pub(crate) upgrade: OnUpgrade,
}

/// Opens sessions, a bounded number at a time.
pub(crate) struct Streams {
    pub(crate) pods: Arc<dyn PodView>,
    pub(crate) runtime: Arc<dyn RuntimeWriter>,
    idle_limit: Option<Duration>,
    /// Gate `ExtendWebSocketsToKubelet`.
    translates: bool,
    places: Arc<Semaphore>,
    run_places: Arc<Semaphore>,
    metrics: ServerMetrics,
    stopping: Stopping,
}

impl Streams {
    /// Sessions in which nothing moves for the limit are closed.
    pub(crate) fn new(
        pods: Arc<dyn PodView>,
        runtime: Arc<dyn RuntimeWriter>,
        idle_limit: Option<Duration>,
        translates: bool,
        metrics: ServerMetrics,
        stopping: Stopping,
    ) -> Self {
        Self {
            pods,
            runtime,
            idle_limit,
            translates,
            places: Arc::new(Semaphore::new(SESSIONS)),
            run_places: Arc::new(Semaphore::new(RUNS)),
            metrics,
            stopping,
        }
    }

    /// `rest` is the part of the path that names the target.
    pub(crate) async fn answer(&self, session: Session, rest: &str, request: SessionRequest) -> Answer {
        let (places, limit) = match session {
            Session::Run => (&self.run_places, RUNS),
            Session::Exec | Session::Attach | Session::PortForward => (&self.places, SESSIONS),
        };
        let Ok(place) = Arc::clone(places).try_acquire_owned() else {
            return too_many(format!(
                "{limit} sessions are open on this node, and no more at a time; try again later"
            ));
        };
        let answer = match session {
            Session::Run => self.run(rest, request).await,
            Session::Exec | Session::Attach | Session::PortForward => {
                self.open(session, rest, request, place).await
            }
        };
        answer.unwrap_or_else(Problem::answer)
    }

    async fn open(
        &self,
        session: Session,
        rest: &str,
        request: SessionRequest,
        place: OwnedSemaphorePermit,
    ) -> Result<Answer, Problem> {
        let SessionRequest { head, body, upgrade } = request;
        let target = named(session, rest)?;
        let protocol = StreamProtocol::of(session, &head.headers, self.translates);
        protocol.check(&head.headers)?;
        let (address, wanted) = match session {
            Session::PortForward => {
                let address = self.prepare_port_forward(&target, &head, &protocol).await?;
                (address, StreamOptions::default())
            }
            Session::Attach => self.prepare_attach(&target, &head, body).await?,
            Session::Exec | Session::Run => self.prepare_exec(&target, &head, body).await?,
        };
        let address =
            StreamingAddress::parse(&address).map_err(|problem| Problem::line(problem.to_string()))?;
        if protocol != StreamProtocol::PassedThrough {
            self.metrics.translates(session);
        }
        let (method, asked) = protocol.request(&head);
        let (headers, runtime) = match open(&address, method, &asked).await? {
            Opened::Refused(answer) => return Ok(answer),
            Opened::Session(headers, runtime) => (headers, TokioIo::new(runtime)),
        };
        let headers = protocol.answer(&head.headers, headers)?;
        let (idle_limit, mut stopping) = (self.idle_limit, self.stopping.clone());
        let takeover = Box::pin(async move {
            let _place = place;
            let client = match upgrade.await {
                Ok(client) => TokioIo::new(client),
                Err(error) => {
                    return tracing::debug!(%error, "A client left before its session began");
                }
            };
            let stopping = stopping.begun();
            let end = match protocol {
                StreamProtocol::PassedThrough => splice(client, runtime, idle_limit, stopping).await,
                StreamProtocol::Translated => translate(client, runtime, wanted, idle_limit, stopping).await,
                StreamProtocol::Tunnelled(_) => tunnel(client, runtime, idle_limit, stopping).await,
            };
            tracing::debug!(?session, ?end, "A session has ended");
        });
        let mut answer = Response::new(Body::handing_over(takeover));
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *answer.headers_mut() = headers;
        Ok(answer)
    }

    async fn prepare_exec(
        &self,
        target: &Target<'_>,
        head: &Parts,
        body: Incoming,
    ) -> Result<(String, StreamOptions), Problem> {
        let options = StreamOptions::of(&form(head, body).await?).map_err(Problem::bad_request)?;
        let (_, observed) = self.look(target).await?;
        let container = running_container(observed.as_deref(), target.container)
            .ok_or_else(|| no_container(target.container))?;
        require_upgrade(head)?;
        let request = v1::ExecRequest {
            container_id: container.to_owned(),
            cmd: query(head).all("command").map(str::to_owned).collect(),
            tty: options.tty,
            stdin: options.stdin,
            stdout: options.stdout,
            stderr: options.stderr,
        };
        let address = self.runtime.exec(request).await;
        let address = address.map_err(|error| Problem::of_runtime(&error))?;
        Ok((address, options))
    }

    async fn prepare_attach(
        &self,
        target: &Target<'_>,
        head: &Parts,
        body: Incoming,
    ) -> Result<(String, StreamOptions), Problem> {
        let options = StreamOptions::of(&form(head, body).await?).map_err(Problem::bad_request)?;
        let (pod, observed) = self.look(target).await?;
        let full_name = target.full_name();
        let missing = || {
            Problem::internal(&format!(
                "container {} not found in pod {full_name}",
                target.container
            ))
        };
        let container = running_container(observed.as_deref(), target.container).ok_or_else(missing)?;
        if target.is_another(&pod, self.pods.as_ref()) {
            return Err(Problem::internal(&format!("pod {full_name} not found")));
        }
        // A process has a terminal from its start or never: the pod decides, not the client.
        let tty = has_terminal(&pod, target.container).ok_or_else(missing)?;
        require_upgrade(head)?;
        let request = v1::AttachRequest {
            container_id: container.to_owned(),
            stdin: options.stdin,
            tty,
            stdout: options.stdout,
            stderr: options.stderr,
        };
        let address = self.runtime.attach(request).await;
        let address = address.map_err(|error| Problem::of_runtime(&error))?;
        Ok((address, StreamOptions { tty, ..options }))
    }

    async fn prepare_port_forward(
        &self,
        target: &Target<'_>,
        head: &Parts,
        protocol: &StreamProtocol,
    ) -> Result<String, Problem> {
        let ports = match protocol {
            // Each stream in the tunnel names its own.
            StreamProtocol::Tunnelled(_) => Vec::new(),
            StreamProtocol::PassedThrough | StreamProtocol::Translated => {
                ports(&head.headers, &query(head)).map_err(Problem::bad_request)?
            }
        };
        let pod = target.find_pod(self.pods.as_ref()).await?;
        if target.is_another(&pod, self.pods.as_ref()) {
            return Err(Problem::new(StatusCode::NOT_FOUND, "pod not found".to_owned()));
        }
        let observed = observe(&pod, self.pods.as_ref()).await?;
        let sandbox = observed
            .as_deref()
            .and_then(|observed| observed.sandboxes.first())
            .ok_or_else(|| Problem::internal(&format!("pod not found ({:?})", target.full_name())))?;
        require_upgrade(head)?;
        let request = v1::PortForwardRequest {
            pod_sandbox_id: sandbox.id.as_str().to_owned(),
            port: ports,
        };
        let address = self.runtime.port_forward(request).await;
        address.map_err(|error| Problem::of_runtime(&error))
    }

    async fn run(&self, rest: &str, request: SessionRequest) -> Result<Answer, Problem> {
        let target = named(Session::Run, rest)?;
        let form = form(&request.head, request.body).await?;
        let (_, observed) = self.look(&target).await?;
        let container = running_container(observed.as_deref(), target.container)
            .ok_or_else(|| no_container(target.container))?;
        let command: Vec<String> = form.first("cmd").split(' ').map(str::to_owned).collect();
        let command_line = command.join(" ");
        let result = self.runtime.exec_sync(container, command, None).await;
        let result = result.map_err(|error| Problem::internal(&error))?;
        if result.exit_code != 0 {
            let stderr = String::from_utf8_lossy(&result.stderr);
            let message = format!(
                "command '{command_line}' exited with {}: {stderr}",
                result.exit_code
            );
            return Err(Problem::internal(&message));
        }
        let mut output = result.stdout;
        output.extend(result.stderr);
        if output.is_empty() {
            return Ok(Response::new(Body::whole(Bytes::new())));
        }
        Ok(json(output))
    }

    /// The pod that is named, and what the runtime has of it.
    async fn look(&self, target: &Target<'_>) -> Result<(Arc<Pod>, Option<Arc<PodObservation>>), Problem> {
        let pod = target.find_pod(self.pods.as_ref()).await?;
        let observed = observe(&pod, self.pods.as_ref()).await?;
        Ok((pod, observed))
    }
}

fn named(session: Session, rest: &str) -> Result<Target<'_>, Problem> {
    let nothing = || Problem::new(StatusCode::NOT_FOUND, "404: Page Not Found".to_owned());
    session.target(rest).ok_or_else(nothing)
}

fn no_container(name: &str) -> Problem {
    Problem::internal(&format!("container not found ({name:?})"))
}

/// A session needs the connection for itself.
fn require_upgrade(head: &Parts) -> Result<(), Problem> {
    if can_upgrade(head) {
        Ok(())
    } else {
        Err(Problem::line("Upgrade request required".to_owned()))
    }
}

fn query(head: &Parts) -> Form {
    Form::parse([head.uri.query().unwrap_or_default().as_bytes()])
}

/// The query, and the form that a `POST` may carry, which counts first.
async fn form(head: &Parts, body: Incoming) -> Result<Form, Problem> {
    let has_form = head.method == Method::POST
        && head.headers.get(CONTENT_TYPE).is_some_and(|kind| {
            let kind = kind.to_str().unwrap_or_default();
            let kind = kind.split(';').next().unwrap_or_default().trim();
            kind.eq_ignore_ascii_case("application/x-www-form-urlencoded")
        });
    if !has_form {
        return Ok(query(head));
    }
    let unreadable = |problem: Unreadable| {
        Problem::new(
            problem.status,
            format!("the form cannot be read: {}", problem.why),
        )
    };
    let body = body::read(body, FORM_LIMIT_BYTES).await.map_err(unreadable)?;
    let query = head.uri.query().unwrap_or_default();
    Ok(Form::parse([body.as_ref(), query.as_bytes()]))
}
