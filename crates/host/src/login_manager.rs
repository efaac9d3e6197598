//! The shutdown of the machine, as systemd's login manager (logind) announces it over the system bus.
//!
//! Owns the connections, the few calls, and the file that lets locks delay a shutdown for long enough. Any program on the machine may send
//! signals over the bus, so that only those count that come from the bus name's owner. Every call has a deadline. What follows
//! from an announcement is decided elsewhere.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use rubelet_ports::{
    FileWriter as _, ShutdownConnection, ShutdownError, ShutdownLock, ShutdownNews, ShutdownService,
};
use zbus::message::Type;
use zbus::names::UniqueName;
use zbus::{Connection, MatchRule, Message, MessageStream, OwnedVariant, connection};

use crate::HostFiles;

const SERVICE: &str = "org.freedesktop.login1";
const MANAGER_PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const ANNOUNCEMENT: &str = "PrepareForShutdown";
const LONGEST_DELAY: &str = "InhibitDelayMaxUSec";
const BUS: &str = "org.freedesktop.DBus";
const BUS_PATH: &str = "/org/freedesktop/DBus";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
const SYSTEMD: &str = "org.freedesktop.systemd1";
const SYSTEMD_PATH: &str = "/org/freedesktop/systemd1";
const SYSTEMD_MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT: &str = "systemd-logind.service";
/// logind reads its settings again on it.
const SIGHUP: i32 = 1;
/// What is locked, by whom, why, and how: shown by `systemd-inhibit --list`, with upstream's texts.
const LOCK: (&str, &str, &str, &str) = (
    "shutdown",
    "kubelet",
    "Kubelet needs time to handle node shutdown",
    "delay",
);
const SETTINGS_DIRECTORY: &str = "/etc/systemd/logind.conf.d";
/// As upstream's, which it replaces.
const SETTINGS_FILE: &str = "99-kubelet.conf";
const DIRECTORY_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;
const DEADLINE: Duration = Duration::from_secs(10);

/// The login manager of this machine.
pub struct LoginManager {
    /// Where the bus is, if not where the machine has it.
    bus: Option<String>,
    settings: PathBuf,
    files: HostFiles,
}

impl Default for LoginManager {
    fn default() -> Self {
        Self {
            bus: None,
            settings: PathBuf::from(SETTINGS_DIRECTORY),
            files: HostFiles::new(),
        }
    }
}

impl LoginManager {
    /// Another one than the machine's: a bus by its D-Bus address, and the directory of logind's settings.
    #[must_use]
    pub fn at(bus: String, settings: &Path) -> Self {
        Self {
            bus: Some(bus),
            settings: settings.to_owned(),
            files: HostFiles::new(),
        }
    }
}

#[async_trait]
impl ShutdownService for LoginManager {
    async fn connect(&self) -> Result<Box<dyn ShutdownConnection>, ShutdownError> {
        let connected = within("connect to the system bus", async {
            let bus = match self.bus.as_deref() {
                Some(address) => connection::Builder::address(address),
                None => connection::Builder::system(),
            };
            bus.build().await
        });
        let connection = connected.await?;
        // Both before the first question, so that no change after its answer is missed.
        let news = within("follow logind's signals", follow(&connection, announcements()?));
        let news = news.await?;
        let owners = within(
            "follow the owner of logind's name",
            follow(&connection, owners()?),
        );
        let owners = owners.await?;
        let mut logind = LogindConnection {
            connection,
            news,
            owners,
            owner: String::new(),
        };
        // The bus starts logind for the first call, if it does not run.
        logind.owner = logind.name_of_answerer().await?;
        Ok(Box::new(logind))
    }

    async fn allow_delay(&self, delay: Duration) -> Result<(), ShutdownError> {
        let path = self.settings.join(SETTINGS_FILE);
        let text = format!(
            "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={}\n",
            delay.as_secs()
        );
        let written = async {
            self.files
                .create_directory(&self.settings, DIRECTORY_MODE)
                .await?;
            self.files.write(&path, text.as_bytes(), FILE_MODE).await
        };
        written
            .await
            .map_err(|error| ShutdownError(format!("write logind's setting InhibitDelayMaxSec: {error}")))
    }
}

struct LogindConnection {
    connection: Connection,
    news: MessageStream,
    owners: MessageStream,
    /// The connection on the bus that has logind's name.
    owner: String,
}

impl LogindConnection {
    async fn call<B>(&self, method: (&'static str, &'static str), body: &B) -> Result<Message, ShutdownError>
    where
        B: serde::Serialize + zbus::DynamicType + Sync,
    {
        let (interface, member) = method;
        let call = self
            .connection
            .call_method(Some(SERVICE), MANAGER_PATH, Some(interface), member, body);
        within(member, call).await
    }

    async fn property<T: TryFrom<OwnedVariant>>(&self, name: &'static str) -> Result<T, ShutdownError> {
        let answer = self.call((PROPERTIES, "Get"), &(MANAGER, name)).await?;
        let value = answer.body().deserialize::<OwnedVariant>();
        let value = value.map_err(|error| failed(name, &error))?;
        T::try_from(value).map_err(|_| ShutdownError(format!("{name} of logind has another type")))
    }

    /// The unique name that answers calls to logind.
    async fn name_of_answerer(&self) -> Result<String, ShutdownError> {
        let answer = self.call((PROPERTIES, "Get"), &(MANAGER, LONGEST_DELAY)).await?;
        let sender = answer.header().sender().map(|sender| sender.as_str().to_owned());
        sender.ok_or_else(|| ShutdownError("logind answers without a name".to_owned()))
    }

    /// Whether a signal comes from logind. One that has just been started again may be ahead of the news of its name.
    async fn is_from_owner(&mut self, message: &Message) -> Result<bool, ShutdownError> {
        let header = message.header();
        let Some(sender) = header.sender().map(UniqueName::as_str) else {
            return Ok(false);
        };
        if sender != self.owner {
            self.owner = owner_of(&self.connection).await?;
        }
        Ok(sender == self.owner)
    }

    /// What a signal says, if it is one of logind's.
    async fn read(&mut self, message: &Message) -> Result<Option<ShutdownNews>, ShutdownError> {
        if !self.is_from_owner(message).await? {
            tracing::warn!(
                sender = message.header().sender().map(tracing::field::display),
                "A shutdown was announced on the system bus by another program than logind; it does not count"
            );
            return Ok(None);
        }
        match message.body().deserialize::<bool>() {
            Ok(true) => Ok(Some(ShutdownNews::Begins)),
            Ok(false) => Ok(Some(ShutdownNews::Cancelled)),
            Err(error) => {
                tracing::warn!(%error, "logind's signal {ANNOUNCEMENT} cannot be read");
                Ok(None)
            }
        }
    }
}

/// The new owner of logind's name, if there is one.
fn new_owner(message: &Message) -> Option<String> {
    let header = message.header();
    if header.sender().map(UniqueName::as_str) != Some(BUS) {
        return None;
    }
    let (name, _, owner): (String, String, String) = message.body().deserialize().ok()?;
    (name == SERVICE && !owner.is_empty()).then_some(owner)
}

#[async_trait]
impl ShutdownConnection for LogindConnection {
    async fn longest_delay(&self) -> Result<Duration, ShutdownError> {
        let micros: u64 = self.property(LONGEST_DELAY).await?;
        Ok(Duration::from_micros(micros))
    }

    async fn reload(&self) -> Result<(), ShutdownError> {
        let body = (UNIT, "all", SIGHUP);
        let call = self.connection.call_method(
            Some(SYSTEMD),
            SYSTEMD_PATH,
            Some(SYSTEMD_MANAGER),
            "KillUnit",
            &body,
        );
        within("let logind read its settings", call).await.map(drop)
    }

    async fn take_lock(&self) -> Result<ShutdownLock, ShutdownError> {
        let answer = self.call((MANAGER, "Inhibit"), &LOCK).await?;
        let lock = answer.body().deserialize::<zbus::OwnedFd>();
        let lock = lock.map_err(|error| failed("Inhibit", &error))?;
        Ok(ShutdownLock::new(OwnedFd::from(lock)))
    }

    async fn is_shutting_down(&self) -> Result<bool, ShutdownError> {
        self.property("PreparingForShutdown").await
    }

    async fn next(&mut self) -> Option<ShutdownNews> {
        loop {
            // Both arms are cancel-safe: a stream keeps what was not taken.
            let message = tokio::select! {
                biased;
                message = self.owners.next() => {
                    let Some(owner) = new_owner(&message?.ok()?) else { continue };
                    self.owner = owner;
                    return Some(ShutdownNews::ServiceRestarted);
                }
                message = self.news.next() => message?.ok()?,
            };
            match self.read(&message).await {
                Ok(Some(news)) => return Some(news),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "An announcement of a shutdown cannot be verified");
                    return None;
                }
            }
        }
    }
}

fn announcements() -> Result<MatchRule<'static>, ShutdownError> {
    let rule = MatchRule::builder()
        .msg_type(Type::Signal)
        .sender(SERVICE)
        .path(MANAGER_PATH)
        .interface(MANAGER)
        .member(ANNOUNCEMENT);
    rule.build().map_err(|error| failed(ANNOUNCEMENT, &error))
}

fn owners() -> Result<MatchRule<'static>, ShutdownError> {
    let member = "NameOwnerChanged";
    let rule = MatchRule::builder()
        .msg_type(Type::Signal)
        .sender(BUS)
        .path(BUS_PATH)
        .interface(BUS)
        .member(member)
        .arg(0, SERVICE);
    rule.build().map_err(|error| failed(member, &error))
}

async fn follow(connection: &Connection, rule: MatchRule<'static>) -> zbus::Result<MessageStream> {
    MessageStream::for_match_rule(rule, connection, None).await
}

async fn owner_of(connection: &Connection) -> Result<String, ShutdownError> {
    let member = "GetNameOwner";
    let call = connection.call_method(Some(BUS), BUS_PATH, Some(BUS), member, &SERVICE);
    let answer = within("find logind on the system bus", call).await?;
    let owner = answer.body().deserialize::<String>();
    owner.map_err(|error| failed(member, &error))
}

fn failed(what: &str, error: &zbus::Error) -> ShutdownError {
    ShutdownError(format!("{what}: {error}"))
}

async fn within<T>(
    what: &'static str,
    call: impl Future<Output = zbus::Result<T>>,
) -> Result<T, ShutdownError> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(done) => done.map_err(|error| failed(what, &error)),
        Err(_) => Err(ShutdownError(format!(
            "{what}: no answer within {} s",
            DEADLINE.as_secs()
        ))),
    }
}
