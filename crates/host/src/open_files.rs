//! How many files this process may have open. Programs it starts inherit the limit.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit that was asked for is not possible.
#[derive(Debug, thiserror::Error)]
#[error("the limit of open files is {limit:?} instead of {wanted}")]
pub struct FewerOpenFiles {
    pub wanted: u64,
    /// What the process has instead; `None` is no limit.
    pub limit: Option<u64>,
    #[source]
    pub source: io::Error,
}

/// Sets both limits, the one in force and the highest it can get. Where that is not allowed, the one in force is raised as far
/// as it goes: service managers start their programs with a low one, for the sake of programs that use `select`.
pub fn set_limit(wanted: u64) -> Result<(), FewerOpenFiles> {
    let both = Rlimit {
        current: Some(wanted),
        maximum: Some(wanted),
    };
    setrlimit(Resource::Nofile, both).map_err(|error| {
        let maximum = getrlimit(Resource::Nofile).maximum;
        let highest = Rlimit {
            current: maximum,
            maximum,
        };
        // Raising it up to the maximum is always allowed; if it fails, the error has the limit in force.
        let _ = setrlimit(Resource::Nofile, highest);
        FewerOpenFiles {
            wanted,
            limit: getrlimit(Resource::Nofile).current,
            source: error.into(),
        }
    })
}
