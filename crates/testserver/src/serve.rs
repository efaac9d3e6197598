//! The `serve` command: listeners for HTTP, TCP and gRPC over one shared state.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::net::TcpListener;

use crate::arguments::Arguments;
use crate::signals::OnTerm;
use crate::{Outcome, health, http, runtime, signals};

const DEFAULT_HTTP_PORT: u16 = 8080;
/// The port of the first door; the others follow.
const FIRST_DOOR: u16 = 10_000;

/// What requests change and others see.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) not_ready: bool,
    pub(crate) not_live: bool,
    pub(crate) not_serving: bool,
    pub(crate) signals: Vec<&'static str>,
    pub(crate) hits: BTreeMap<String, u64>,
    pub(crate) eaten: Vec<Vec<u8>>,
    /// When somebody came, by what they asked for, in microseconds of the wall clock.
    pub(crate) arrivals: BTreeMap<String, Vec<u128>>,
}

impl State {
    pub(crate) fn arrive(&mut self, name: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.arrivals
            .entry(name.to_owned())
            .or_default()
            .push(now.as_micros());
    }

    /// One name a line with its times, which are forgotten.
    pub(crate) fn take_arrivals(&mut self) -> String {
        let taken = std::mem::take(&mut self.arrivals);
        taken
            .into_iter()
            .map(|(name, times)| {
                let times: Vec<String> = times.iter().map(ToString::to_string).collect();
                format!("{name} {}\n", times.join(" "))
            })
            .collect()
    }
}

/// The state, shared by all connections.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<State>>);

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn run(arguments: &mut Arguments) -> Outcome {
    let bind = arguments.value("--bind")?.unwrap_or_else(|| "0.0.0.0".to_owned());
    let mut http_port = arguments.number("--http")?;
    let tcp_port: Option<u16> = arguments.number("--tcp")?;
    let grpc_port: Option<u16> = arguments.number("--grpc")?;
    let doors: u16 = arguments.number("--doors")?.unwrap_or(0);
    let on_term = OnTerm::from_arguments(arguments)?;
    let shared = Shared::default();
    shared.lock().not_ready = arguments.switch("--not-ready");
    shared.lock().not_live = arguments.switch("--not-live");
    arguments.finish()?;
    if http_port.is_none() && tcp_port.is_none() && grpc_port.is_none() {
        http_port = Some(DEFAULT_HTTP_PORT);
    }
    runtime()?.block_on(async {
        signals::watch(&shared, on_term)?;
        if let Some(port) = http_port {
            tokio::spawn(http::serve(listen("http", &bind, port).await?, shared.clone()));
        }
        if let Some(port) = tcp_port {
            tokio::spawn(echo(listen("tcp", &bind, port).await?));
        }
        for door in 0..doors {
            let port = FIRST_DOOR + door;
            tokio::spawn(door_of(listen("door", &bind, port).await?, shared.clone()));
        }
        if let Some(port) = grpc_port {
            tokio::spawn(health::serve(listen("grpc", &bind, port).await?, shared.clone()));
        }
        std::future::pending().await
    })
}

/// Listens and says where: port 0 is the kernel's choice.
async fn listen(what: &str, bind: &str, port: u16) -> Result<TcpListener, String> {
    let listener = TcpListener::bind((bind, port))
        .await
        .map_err(|error| format!("{what} on {bind} port {port}: {error}"))?;
    let address = listener
        .local_addr()
        .map_err(|error| format!("{what}: {error}"))?;
    println!("{what} on {address}");
    Ok(listener)
}

/// Notes who comes, and closes again.
async fn door_of(listener: TcpListener, shared: Shared) {
    let name = listener
        .local_addr()
        .map(|address| format!("door-{}", address.port()));
    let name = name.unwrap_or_default();
    while listener.accept().await.is_ok() {
        shared.lock().arrive(&name);
    }
}

/// Gives back what it gets.
async fn echo(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let (mut input, mut output) = stream.split();
            let _ = tokio::io::copy(&mut input, &mut output).await;
        });
    }
}
