//! The announcements of shutdowns, from a bus with a logind on it that each test scripts. Both sides speak real D-Bus.

use std::io::{PipeReader, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use rubelet_host::LoginManager;
use rubelet_ports::{ShutdownConnection, ShutdownNews, ShutdownService as _};
use tempfile::TempDir;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use zbus::names::MemberName;
use zbus::{Connection, Fd, Message, Variant, connection};

const GUID: &str = "0123456789abcdef0123456789abcdef";
const BUS: &str = "org.freedesktop.DBus";
const LOGIND: &str = ":1.5";
const LIMIT: Duration = Duration::from_secs(30);

/// What logind has and was asked for.
struct Logind {
    owner: String,
    longest_delay_micros: u64,
    is_shutting_down: bool,
    calls: Vec<String>,
    locks: Vec<PipeReader>,
}

impl Default for Logind {
    fn default() -> Self {
        Self {
            owner: LOGIND.to_owned(),
            longest_delay_micros: 5_000_000,
            is_shutting_down: false,
            calls: Vec::new(),
            locks: Vec::new(),
        }
    }
}

/// A bus with one client. Dropping it cuts the connection.
struct Bus {
    dir: TempDir,
    logind: Arc<Mutex<Logind>>,
    signals: Arc<Mutex<Option<mpsc::UnboundedSender<Message>>>>,
    _acceptor: JoinSet<()>,
}

impl Bus {
    fn listen() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("bus")).unwrap();
        let (logind, signals) = (Arc::default(), Arc::<Mutex<_>>::default());
        let mut acceptor = JoinSet::new();
        let (state, sender) = (Arc::clone(&logind), Arc::clone(&signals));
        acceptor.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (to_client, queued) = mpsc::unbounded_channel();
                *sender.lock().unwrap() = Some(to_client);
                connections.spawn(serve(stream, Arc::clone(&state), queued));
            }
        });
        Self {
            dir,
            logind,
            signals,
            _acceptor: acceptor,
        }
    }

    fn settings(&self) -> PathBuf {
        self.dir.path().join("etc/logind.conf.d")
    }

    fn service(&self) -> LoginManager {
        let address = format!("unix:path={}", self.dir.path().join("bus").display());
        LoginManager::at(address, &self.settings())
    }

    async fn connected(&self) -> Box<dyn ShutdownConnection> {
        self.service().connect().await.unwrap()
    }

    fn logind(&self) -> std::sync::MutexGuard<'_, Logind> {
        self.logind.lock().unwrap()
    }

    fn send(&self, signal: Message) {
        let signals = self.signals.lock().unwrap();
        signals.as_ref().unwrap().send(signal).unwrap();
    }

    fn announce(&self, sender: &str, is_beginning: bool) {
        let path = "/org/freedesktop/login1";
        let interface = "org.freedesktop.login1.Manager";
        let signal = Message::signal(path, interface, "PrepareForShutdown");
        let signal = signal.sender(sender.to_owned());
        self.send(signal.build(&is_beginning).unwrap());
    }

    fn change_owner(&self, sender: &str, owner: &str) {
        let signal = Message::signal("/org/freedesktop/DBus", BUS, "NameOwnerChanged");
        let signal = signal.sender(sender.to_owned());
        let body = ("org.freedesktop.login1", LOGIND, owner);
        self.send(signal.build(&body).unwrap());
    }
}

async fn serve(
    stream: UnixStream,
    logind: Arc<Mutex<Logind>>,
    mut signals: mpsc::UnboundedReceiver<Message>,
) {
    let stream = stream.into_std().unwrap();
    let server = connection::Builder::unix_stream(stream).server(GUID).p2p();
    let mut messages = server.build_message_stream().await.unwrap();
    let connection = Connection::from(&messages);
    loop {
        let reply = tokio::select! {
            signal = signals.recv() => signal.unwrap(),
            message = messages.next() => match message {
                Some(Ok(message)) => answer(&message, &logind),
                Some(Err(_)) | None => return,
            },
        };
        if connection.send(&reply).await.is_err() {
            return;
        }
    }
}

fn answer(message: &Message, logind: &Mutex<Logind>) -> Message {
    let mut logind = logind.lock().unwrap();
    let header = message.header();
    let member = header.member().map(MemberName::as_str).unwrap_or_default();
    let reply = Message::method_return(&header);
    let from_logind = Message::method_return(&header).sender(logind.owner.clone());
    let reply = match member {
        "Hello" => reply.build(&":1.1"),
        "GetNameOwner" => reply.build(&logind.owner.clone()),
        "Get" => {
            let (_, name): (String, String) = message.body().deserialize().unwrap();
            match name.as_str() {
                "InhibitDelayMaxUSec" => from_logind.build(&Variant::from(logind.longest_delay_micros)),
                "PreparingForShutdown" => from_logind.build(&Variant::from(logind.is_shutting_down)),
                other => panic!("no property {other}"),
            }
        }
        "Inhibit" => {
            let asked: (String, String, String, String) = message.body().deserialize().unwrap();
            logind.calls.push(format!("Inhibit{asked:?}"));
            let (reader, writer) = std::io::pipe().unwrap();
            logind.locks.push(reader);
            from_logind.build(&Fd::from(OwnedFd::from(writer)))
        }
        "KillUnit" => {
            let asked: (String, String, i32) = message.body().deserialize().unwrap();
            logind.calls.push(format!("KillUnit{asked:?}"));
            reply.build(&())
        }
        _ => reply.build(&()),
    };
    reply.unwrap()
}

async fn next(connection: &mut Box<dyn ShutdownConnection>) -> Option<ShutdownNews> {
    tokio::time::timeout(LIMIT, connection.next()).await.unwrap()
}

#[tokio::test]
async fn only_the_owner_of_loginds_name_announces_a_shutdown() {
    let bus = Bus::listen();
    let mut connection = bus.connected().await;
    bus.announce(":1.66", true);
    bus.announce(LOGIND, false);
    assert_eq!(next(&mut connection).await, Some(ShutdownNews::Cancelled));
    bus.announce(LOGIND, true);
    assert_eq!(next(&mut connection).await, Some(ShutdownNews::Begins));
}

#[tokio::test]
async fn a_logind_that_was_started_again_is_noticed_and_believed() {
    let bus = Bus::listen();
    let mut connection = bus.connected().await;
    // Only the bus says who has a name.
    bus.change_owner(":1.66", ":1.66");
    // It is gone; the new one is not there yet.
    bus.change_owner(BUS, "");
    bus.logind().owner = ":1.9".to_owned();
    bus.change_owner(BUS, ":1.9");
    assert_eq!(next(&mut connection).await, Some(ShutdownNews::ServiceRestarted));
    bus.announce(LOGIND, true);
    bus.announce(":1.9", false);
    assert_eq!(next(&mut connection).await, Some(ShutdownNews::Cancelled));
}

#[tokio::test]
async fn a_lock_is_held_until_it_is_dropped() {
    let bus = Bus::listen();
    let connection = bus.connected().await;
    let lock = connection.take_lock().await.unwrap();
    let asked = r#"Inhibit("shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay")"#;
    assert_eq!(bus.logind().calls, [asked]);
    let mut reader = bus.logind().locks.pop().unwrap();
    // The end of the pipe is what logind waits for.
    let released = tokio::task::spawn_blocking(move || reader.read(&mut [0; 1]).unwrap());
    let mut released = std::pin::pin!(released);
    assert!(
        futures_util::FutureExt::now_or_never(released.as_mut()).is_none(),
        "released too early"
    );
    // Another call, so that what the connection kept of the last answer is gone.
    assert!(!connection.is_shutting_down().await.unwrap());
    assert!(
        futures_util::FutureExt::now_or_never(released.as_mut()).is_none(),
        "released too early"
    );
    drop(lock);
    let end = tokio::time::timeout(LIMIT, released).await.unwrap().unwrap();
    assert_eq!(end, 0);
}

#[tokio::test]
async fn the_longest_delay_is_read_and_raised_as_upstream_does() {
    let bus = Bus::listen();
    let connection = bus.connected().await;
    let delay = connection.longest_delay().await.unwrap();
    assert_eq!(delay, Duration::from_secs(5));
    bus.service().allow_delay(Duration::from_secs(90)).await.unwrap();
    let written = std::fs::read_to_string(bus.settings().join("99-kubelet.conf")).unwrap();
    assert_eq!(
        written,
        "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=90\n"
    );
    connection.reload().await.unwrap();
    let asked = r#"KillUnit("systemd-logind.service", "all", 1)"#;
    assert_eq!(bus.logind().calls, [asked]);
    bus.logind().is_shutting_down = true;
    assert!(connection.is_shutting_down().await.unwrap());
}

#[tokio::test]
async fn a_lost_bus_ends_the_connection() {
    let bus = Bus::listen();
    let mut connection = bus.connected().await;
    let service = bus.service();
    drop(bus);
    assert_eq!(next(&mut connection).await, None);
    let refused = service.connect().await.map(drop).unwrap_err();
    assert!(
        refused.to_string().starts_with("connect to the system bus: "),
        "{refused}"
    );
}

#[tokio::test]
async fn settings_that_cannot_be_written_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let service = LoginManager::at("unix:path=/nowhere".to_owned(), &Path::new(&file).join("below"));
    let refused = service.allow_delay(Duration::from_secs(1)).await.unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("InhibitDelayMaxSec") && text.contains("/file"),
        "{text}"
    );
}
