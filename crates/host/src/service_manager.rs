//! The service manager's side of the process: readiness and the watchdog, over systemd's notification socket.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// A shorter watchdog cannot be served reliably; upstream refuses it too.
const SHORTEST_WATCHDOG: Duration = Duration::from_secs(1);
/// How long a service manager that reads nothing is waited for: the thread that waits has other work.
const PATIENCE: Duration = Duration::from_millis(100);

/// Why the watchdog that the environment asks for is not possible.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchdogError {
    #[error("WATCHDOG_USEC={value:?} is not a positive number of microseconds")]
    NotANumber { value: String },
    #[error("WATCHDOG_PID={value:?} is not a process id")]
    NotAPid { value: String },
    #[error("the watchdog interval {interval:?} is too short: it must be longer than {SHORTEST_WATCHDOG:?}")]
    TooShort { interval: Duration },
}

/// The connection to the service manager, if there is one.
#[derive(Debug)]
pub struct ServiceManager {
    socket: Option<SocketAddr>,
}

impl ServiceManager {
    /// Takes the socket from `NOTIFY_SOCKET`.
    pub fn from_environment() -> io::Result<Self> {
        let socket = match env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) {
            None => None,
            Some(path) => Some(match path.as_bytes().strip_prefix(b"@") {
                Some(name) => SocketAddr::from_abstract_name(name)?,
                None => SocketAddr::from_pathname(&path)?,
            }),
        };
        Ok(Self { socket })
    }

    /// Reports that start-up is complete.
    pub fn ready(&self) -> io::Result<()> {
        self.send("READY=1")
    }

    /// Reports that the process is shutting down.
    pub fn stopping(&self) -> io::Result<()> {
        self.send("STOPPING=1")
    }

    /// Reports that the process is alive, for the watchdog.
    pub fn alive(&self) -> io::Result<()> {
        self.send("WATCHDOG=1")
    }

    fn send(&self, message: &str) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let sender = UnixDatagram::unbound()?;
        sender.set_write_timeout(Some(PATIENCE))?;
        sender.send_to_addr(message.as_bytes(), socket).map(drop)
    }
}

/// How often the service manager expects a report: half of `WATCHDOG_USEC`; `None` without a watchdog.
pub fn watchdog_interval_from_environment() -> Result<Option<Duration>, WatchdogError> {
    let text = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    watchdog_interval(text("WATCHDOG_USEC"), text("WATCHDOG_PID"), std::process::id())
}

fn watchdog_interval(
    usec: Option<String>,
    pid: Option<String>,
    own: u32,
) -> Result<Option<Duration>, WatchdogError> {
    let Some(usec) = usec.filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let interval = match usec.parse::<u64>() {
        Ok(value) if value > 0 => Duration::from_micros(value),
        _ => return Err(WatchdogError::NotANumber { value: usec }),
    };
    if let Some(pid) = pid.filter(|value| !value.is_empty()) {
        // The watchdog is meant for another process of the unit.
        if pid
            .parse::<u32>()
            .map_err(|_| WatchdogError::NotAPid { value: pid })?
            != own
        {
            return Ok(None);
        }
    }
    if interval <= SHORTEST_WATCHDOG {
        return Err(WatchdogError::TooShort { interval });
    }
    Ok(Some(interval / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_served_at_half_its_interval() {
        let check = |usec: Option<&str>, pid: Option<&str>| {
            watchdog_interval(usec.map(str::to_owned), pid.map(str::to_owned), 7)
        };
        assert_eq!(check(None, None), Ok(None));
        assert_eq!(check(Some(""), None), Ok(None));
        assert_eq!(check(Some("30000000"), None), Ok(Some(Duration::from_secs(15))));
        assert_eq!(
            check(Some("30000000"), Some("7")),
            Ok(Some(Duration::from_secs(15)))
        );
        assert_eq!(check(Some("30000000"), Some("8")), Ok(None));
        assert_eq!(
            check(Some("1000000"), None),
            Err(WatchdogError::TooShort {
                interval: Duration::from_secs(1)
            })
        );
        assert_eq!(
            check(Some("soon"), None),
            Err(WatchdogError::NotANumber { value: "soon".into() })
        );
        assert_eq!(
            check(Some("0"), None),
            Err(WatchdogError::NotANumber { value: "0".into() })
        );
        assert_eq!(
            check(Some("30000000"), Some("me")),
            Err(WatchdogError::NotAPid { value: "me".into() })
        );
    }

    #[test]
    fn messages_reach_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager {
            socket: Some(SocketAddr::from_pathname(&path).unwrap()),
        };
        manager.ready().unwrap();
        manager.alive().unwrap();
        let mut buffer = [0; 64];
        let mut next = || {
            let length = listener.recv(&mut buffer).unwrap();
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        };
        assert_eq!(next(), "READY=1");
        assert_eq!(next(), "WATCHDOG=1");
    }

    #[test]
    fn a_manager_that_reads_nothing_holds_nobody_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let _listener = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager {
            socket: Some(SocketAddr::from_pathname(&path).unwrap()),
        };
        // The kernel keeps some for later.
        let refused = (0..100_000).find_map(|_| manager.alive().err()).unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn without_a_socket_nothing_is_sent() {
        assert!(ServiceManager { socket: None }.ready().is_ok());
    }
}
