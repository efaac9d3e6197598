//! What the server does about signals: it reports each one, and ends on SIGTERM and SIGINT as its command line says.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::arguments::Arguments;
use crate::serve::Shared;

/// Signals that are reported, with their numbers' usual names.
const WATCHED: [(&str, SignalKind); 7] = [
    ("HUP", SignalKind::hangup()),
    ("INT", SignalKind::interrupt()),
    ("QUIT", SignalKind::quit()),
    ("TERM", SignalKind::terminate()),
    ("USR1", SignalKind::user_defined1()),
    ("USR2", SignalKind::user_defined2()),
    ("WINCH", SignalKind::window_change()),
];

/// What SIGTERM and SIGINT lead to.
#[derive(Clone, Copy)]
pub(crate) struct OnTerm {
    ignore: bool,
    code: u8,
    delay: Duration,
}

impl OnTerm {
    pub(crate) fn from_arguments(arguments: &mut Arguments) -> Result<Self, String> {
        let ignore = match arguments.value("--on-term")?.as_deref() {
            None | Some("exit") => false,
            Some("ignore") => true,
            Some(other) => return Err(format!("--on-term exit or ignore, not {other:?}")),
        };
        let code = arguments.number("--term-code")?.unwrap_or(0);
        let delay = Duration::from_millis(arguments.number("--term-delay-ms")?.unwrap_or(0));
        Ok(Self { ignore, code, delay })
    }
}

/// Watches all signals from now on; each gets a task of its own.
pub(crate) fn watch(shared: &Shared, on_term: OnTerm) -> Result<(), String> {
    for (name, kind) in WATCHED {
        let mut signals = signal(kind).map_err(|error| format!("watch SIG{name}: {error}"))?;
        let shared = shared.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                println!("signal {name}");
                shared.lock().signals.push(name);
                if matches!(name, "TERM" | "INT") && !on_term.ignore {
                    tokio::time::sleep(on_term.delay).await;
                    println!("exit {}", on_term.code);
                    std::process::exit(on_term.code.into());
                }
            }
        });
    }
    Ok(())
}
