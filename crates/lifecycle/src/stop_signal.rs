//! Stop signals by Kubernetes' names and by the runtime's.
//!
//! Owns the translation in both directions. Which names a pod may use is decided by the rules for manifests.

use rubelet_wire::cri::v1::Signal;

const PREFIX: &str = "SIGNAL_";

/// The runtime's signal of a name such as `SIGRTMIN+3`.
#[must_use]
pub fn signal_by_name(name: &str) -> Option<Signal> {
    let name = name.replace('+', "PLUS").replace('-', "MINUS");
    let signal = Signal::from_str_name(&format!("{PREFIX}{name}"))?;
    (signal != Signal::RuntimeDefault).then_some(signal)
}

/// The name of a signal; `None` for the runtime's default.
#[must_use]
pub fn name_of_signal(signal: Signal) -> Option<String> {
    if signal == Signal::RuntimeDefault {
        return None;
    }
    let name = signal.as_str_name().strip_prefix(PREFIX)?;
    Some(name.replace("PLUS", "+").replace("MINUS", "-"))
}
