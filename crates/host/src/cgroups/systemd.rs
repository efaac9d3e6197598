//! Slices of systemd, over the system bus.
//!
//! Owns the connection and the few calls that slices need. A lost connection is made again once per call. Every call has a
//! deadline, also the wait for systemd's own job. Which properties a slice has was decided elsewhere.

use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt;
use rubelet_model::cgroup::{PropertyValue, UnitProperty, UnitValues};
use thiserror::Error;
use tokio::sync::Mutex;
use zbus::{
    Connection, MatchRule, Message, MessageStream, OwnedObjectPath, OwnedVariant, Variant, connection,
};

use crate::cgroup::CgroupVersion;

const SERVICE: &str = "org.freedesktop.systemd1";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
/// A new job replaces one for the same unit that waits.
const MODE: &str = "replace";
/// As long as upstream waits for a slice.
const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Error)]
pub enum SystemdError {
    #[error("cannot reach systemd: {0}")]
    Unreachable(String),
    #[error("systemd refuses to {what} {unit}: {problem}")]
    Refused {
        what: &'static str,
        unit: String,
        problem: String,
    },
    #[error("systemd did not {what} {unit} within {} s", DEADLINE.as_secs())]
    TimedOut { what: &'static str, unit: String },
}

/// The manager of all units.
pub struct Systemd {
    cgroup: CgroupVersion,
    version: u32,
    /// Where the bus is, if not where the machine has it.
    address: Option<String>,
    // Held to copy or replace the handle, and while connecting.
    connection: Mutex<Option<Connection>>,
}

/// Properties as the bus has them.
type Properties<'a> = Vec<(&'static str, Variant<'a>)>;

impl Systemd {
    /// Connects to the manager.
    ///
    /// # Errors
    /// When systemd does not answer on the system bus.
    pub async fn connect(cgroup: CgroupVersion) -> Result<Self, SystemdError> {
        Self::connect_at(cgroup, None).await
    }

    async fn connect_at(cgroup: CgroupVersion, address: Option<String>) -> Result<Self, SystemdError> {
        let connection = connect(address.as_deref()).await?;
        let version = version_of(&connection).await?;
        Ok(Self {
            cgroup,
            version,
            address,
            connection: Mutex::new(Some(connection)),
        })
    }

    /// Makes a slice that does not exist yet.
    pub(super) async fn start_slice(&self, unit: &UnitValues) -> Result<(), SystemdError> {
        let io_accounting = match self.cgroup {
            CgroupVersion::V1 => "BlockIOAccounting",
            CgroupVersion::V2 => "IOAccounting",
        };
        let properties: Properties<'_> = vec![
            (
                "Description",
                Variant::from(format!("cgroup of pods {}", unit.name)),
            ),
            ("Wants", Variant::from(vec![unit.parent.as_str()])),
            ("MemoryAccounting", Variant::from(true)),
            ("CPUAccounting", Variant::from(true)),
            (io_accounting, Variant::from(true)),
            ("TasksAccounting", Variant::from(true)),
            ("DefaultDependencies", Variant::from(false)),
        ];
        let auxiliary: Vec<(&str, Properties<'_>)> = Vec::new();
        let body = (unit.name.as_str(), MODE, properties, auxiliary);
        let started = self.job("start", &unit.name, "StartTransientUnit", &body).await;
        match started {
            Err(Failure::Method { name, .. }) if name.ends_with(".UnitExists") => Ok(()),
            other => other.map_err(|failure| failure.into_error("start", &unit.name)),
        }
    }

    /// Sets the properties of a slice, until the next boot.
    pub(super) async fn set_properties(&self, unit: &UnitValues) -> Result<(), SystemdError> {
        let known = |property: &&UnitProperty| property.since_version <= self.version;
        let properties: Properties<'_> = unit
            .properties
            .iter()
            .filter(known)
            .map(|property| (property.name, variant(&property.value)))
            .collect();
        if properties.is_empty() {
            return Ok(());
        }
        let body = (unit.name.as_str(), true, properties);
        let set = self.call("SetUnitProperties", &body);
        let set = within(set).await.map(|_| ());
        set.map_err(|failure| failure.into_error("set the properties of", &unit.name))
    }

    /// Stops a slice; one that is not there is stopped.
    pub(super) async fn stop_slice(&self, unit: &str) -> Result<(), SystemdError> {
        let stopped = self.job("stop", unit, "StopUnit", &(unit, MODE)).await;
        match stopped {
            Err(Failure::Method { name, .. })
                if name.ends_with(".NoSuchUnit") || name.ends_with(".NotLoaded") =>
            {
                return Ok(());
            }
            other => other.map_err(|failure| failure.into_error("stop", unit))?,
        }
        // A failed unit would stay in the list; one that is gone already is fine.
        let _ = within(self.call("ResetFailedUnit", &(unit,))).await;
        Ok(())
    }

    /// A call whose effect is there when its job is removed.
    async fn job<B>(
        &self,
        what: &'static str,
        unit: &str,
        method: &'static str,
        body: &B,
    ) -> Result<(), Failure>
    where
        B: serde::Serialize + zbus::DynamicType + Sync,
    {
        within(async {
            match self.job_once(what, unit, method, body).await {
                // The whole call is repeated: systemd signals the end of a job on the connection that requested it, and answers
                // a call that is already done with an error that counts as success.
                Err(Failure::Lost(_)) => {
                    self.forget_connection().await;
                    self.job_once(what, unit, method, body).await
                }
                other => other,
            }
        })
        .await
    }

    async fn job_once<B>(
        &self,
        what: &'static str,
        unit: &str,
        method: &'static str,
        body: &B,
    ) -> Result<(), Failure>
    where
        B: serde::Serialize + zbus::DynamicType + Sync,
    {
        let connection = self.connection().await?;
        let mut removals = removals_of(&connection, unit).await?;
        let answer = call(&connection, method, body).await?;
        let job: OwnedObjectPath = answer.body().deserialize()?;
        while let Some(message) = removals.next().await {
            let body = message?.body();
            let (_, removed, _, result): (u32, OwnedObjectPath, String, String) = body.deserialize()?;
            if removed == job {
                return match result.as_str() {
                    "done" => Ok(()),
                    other => Err(Failure::Job {
                        what,
                        result: other.to_owned(),
                    }),
                };
            }
        }
        Err(Failure::Lost("the connection ended".to_owned()))
    }

    async fn call<B>(&self, method: &'static str, body: &B) -> Result<Message, Failure>
    where
        B: serde::Serialize + zbus::DynamicType + Sync,
    {
        let connection = self.connection().await?;
        match call(&connection, method, body).await {
            Err(Failure::Lost(_)) => {
                self.forget_connection().await;
                let connection = self.connection().await?;
                call(&connection, method, body).await
            }
            other => other,
        }
    }

    async fn forget_connection(&self) {
        *self.connection.lock().await = None;
    }

    async fn connection(&self) -> Result<Connection, Failure> {
        let mut held = self.connection.lock().await;
        if let Some(connection) = &*held {
            return Ok(connection.clone());
        }
        let connection = connect(self.address.as_deref())
            .await
            .map_err(|error| Failure::Lost(error.to_string()))?;
        *held = Some(connection.clone());
        Ok(connection)
    }
}

/// Why a call had no effect.
#[derive(Debug)]
enum Failure {
    Lost(String),
    Method { name: String, message: String },
    Job { what: &'static str, result: String },
    TimedOut,
}

impl Failure {
    fn into_error(self, what: &'static str, unit: &str) -> SystemdError {
        let unit = unit.to_owned();
        match self {
            Self::Lost(problem) => SystemdError::Unreachable(problem),
            Self::Method { name, message } => SystemdError::Refused {
                what,
                unit,
                problem: format!("{message} ({name})"),
            },
            Self::Job { what, result } => SystemdError::Refused {
                what,
                unit,
                problem: format!("its job ended with {result:?}"),
            },
            Self::TimedOut => SystemdError::TimedOut { what, unit },
        }
    }
}

impl From<zbus::Error> for Failure {
    fn from(error: zbus::Error) -> Self {
        match &error {
            zbus::Error::MethodError(name, message, _) => Self::Method {
                name: name.as_str().to_owned(),
                message: message.clone().unwrap_or_default(),
            },
            zbus::Error::FDO(error) => Self::Method {
                name: "org.freedesktop.DBus.Error".to_owned(),
                message: error.to_string(),
            },
            other => Self::Lost(other.to_string()),
        }
    }
}

async fn within<T>(call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(answer) => answer,
        Err(_) => Err(Failure::TimedOut),
    }
}

async fn connect(address: Option<&str>) -> Result<Connection, SystemdError> {
    let unreachable = |failure: Failure| match failure {
        Failure::TimedOut => SystemdError::Unreachable("no answer on the system bus".to_owned()),
        Failure::Lost(problem) => SystemdError::Unreachable(problem),
        Failure::Method { message, .. } => SystemdError::Unreachable(message),
        Failure::Job { result, .. } => SystemdError::Unreachable(result),
    };
    let connected = within(async {
        let bus = match address {
            Some(address) => connection::Builder::address(address),
            None => connection::Builder::system(),
        };
        let connection = bus.build().await?;
        // Without it systemd sends no signal when a job ends.
        call(&connection, "Subscribe", &()).await?;
        Ok(connection)
    });
    connected.await.map_err(unreachable)
}

async fn call<B>(connection: &Connection, method: &'static str, body: &B) -> Result<Message, Failure>
where
    B: serde::Serialize + zbus::DynamicType + Sync,
{
    let answer = connection
        .call_method(Some(SERVICE), MANAGER_PATH, Some(MANAGER), method, body)
        .await?;
    Ok(answer)
}

/// The removals of a unit's jobs from now on.
async fn removals_of(connection: &Connection, unit: &str) -> Result<MessageStream, Failure> {
    let rule = MatchRule::builder()
        .msg_type(zbus::message::Type::Signal)
        .sender(SERVICE)
        .interface(MANAGER)
        .member("JobRemoved")
        .arg(2, unit.to_owned())
        .build()?;
    Ok(MessageStream::for_match_rule(rule, connection, None).await?)
}

async fn version_of(connection: &Connection) -> Result<u32, SystemdError> {
    let body = (MANAGER, "Version");
    let asked = within(async {
        let answer = connection
            .call_method(Some(SERVICE), MANAGER_PATH, Some(PROPERTIES), "Get", &body)
            .await?;
        let value: OwnedVariant = answer.body().deserialize()?;
        Ok(String::try_from(value)?)
    });
    let text = asked
        .await
        .map_err(|failure| failure.into_error("report its version to", "rubelet"))?;
    Ok(version_number(&text))
}

/// `252.38-1~deb12u1` is 252. One that cannot be read is as old as can be.
fn version_number(text: &str) -> u32 {
    let digits = text.trim_start_matches(['v', '"']);
    let end = digits
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end].parse().unwrap_or(0)
}

fn variant(value: &PropertyValue) -> Variant<'static> {
    match value {
        PropertyValue::Number(number) => Variant::from(*number),
        PropertyValue::Bits(bits) => Variant::from(bits.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use tokio::net::{UnixListener, UnixStream};
    use tokio::task::JoinSet;
    use zbus::ObjectPath;

    use super::*;

    const GUID: &str = "0123456789abcdef0123456789abcdef";

    /// A bus with a systemd on it that does everything at once. Dropping it cuts all connections.
    struct TestBus {
        started: Arc<std::sync::Mutex<Vec<String>>>,
        _acceptor: JoinSet<()>,
    }

    impl TestBus {
        fn listen(path: &Path) -> Self {
            let _ = std::fs::remove_file(path);
            let listener = UnixListener::bind(path).unwrap();
            let started = Arc::default();
            let seen = Arc::clone(&started);
            let mut acceptor = JoinSet::new();
            acceptor.spawn(async move {
                let mut connections = JoinSet::new();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    connections.spawn(serve(stream, Arc::clone(&seen)));
                }
            });
            Self {
                started,
                _acceptor: acceptor,
            }
        }
    }

    async fn serve(stream: UnixStream, started: Arc<std::sync::Mutex<Vec<String>>>) {
        let stream = stream.into_std().unwrap();
        let server = connection::Builder::unix_stream(stream).server(GUID).p2p();
        let mut messages = server.build_message_stream().await.unwrap();
        let connection = Connection::from(&messages);
        while let Some(Ok(message)) = messages.next().await {
            let header = message.header();
            let reply = Message::method_return(&header);
            let reply = match header.member().map(zbus::names::MemberName::as_str) {
                Some("Hello") => reply.build(&":1.1"),
                Some("Get") => reply.build(&Variant::from("252")),
                Some("StartTransientUnit") => {
                    let unit: String = message
                        .body()
                        .deserialize::<(
                            String,
                            String,
                            Vec<(String, OwnedVariant)>,
                            Vec<(String, Vec<(String, OwnedVariant)>)>,
                        )>()
                        .unwrap()
                        .0;
                    let job = ObjectPath::try_from("/job/1").unwrap();
                    connection.send(&reply.build(&job).unwrap()).await.unwrap();
                    let removed = Message::signal(MANAGER_PATH, MANAGER, "JobRemoved");
                    started.lock().unwrap().push(unit.clone());
                    removed.build(&(1_u32, job, unit, "done"))
                }
                _ => reply.build(&()),
            };
            if connection.send(&reply.unwrap()).await.is_err() {
                return;
            }
        }
    }

    /// The held connection is dead, and nothing has reported it.
    #[tokio::test]
    async fn a_bus_that_was_restarted_is_used_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bus");
        let first = TestBus::listen(&path);
        let address = format!("unix:path={}", path.display());
        let systemd = Systemd::connect_at(CgroupVersion::V2, Some(address))
            .await
            .unwrap();
        let unit = UnitValues {
            name: "kubepods-a.slice".to_owned(),
            parent: "kubepods.slice".to_owned(),
            properties: Vec::new(),
        };
        systemd.start_slice(&unit).await.unwrap();
        assert_eq!(*first.started.lock().unwrap(), ["kubepods-a.slice"]);
        drop(first);
        let second = TestBus::listen(&path);
        systemd.start_slice(&unit).await.unwrap();
        assert_eq!(*second.started.lock().unwrap(), ["kubepods-a.slice"]);
        drop(second);
        let gone = systemd.start_slice(&unit).await;
        assert!(matches!(gone, Err(SystemdError::Unreachable(_))), "{gone:?}");
        let _third = TestBus::listen(&path);
        systemd.start_slice(&unit).await.unwrap();
    }

    #[test]
    fn versions_are_the_number_in_front() {
        let check = |text: &str, number: u32| assert_eq!(version_number(text), number, "{text}");
        check("252.38-1~deb12u1", 252);
        check("v245.4-1.fc32", 245);
        check("257", 257);
        check("unknown", 0);
    }
}
