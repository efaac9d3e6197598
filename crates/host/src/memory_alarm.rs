//! Hints of the kernel that memory runs short: thresholds of cgroups on version 1, stalls of the machine (PSI) on version 2.
//!
//! Owns the open triggers. What a hint means is decided elsewhere.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures_util::future::{pending, select_all};
use rubelet_ports::{MemoryAlarm, MemoryMark, SignalError};
use rustix::event::{EventfdFlags, eventfd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::cgroup::CgroupVersion;
use crate::cgroups::Layout;
use crate::oom_log::registered;

const STALLS: &str = "/proc/pressure/memory";
/// Some program waited for memory for 50 ms in half a second. It takes a right that not every rubelet has.
const FINE_TRIGGER: &[u8] = b"some 50000 500000\0";
/// What every program may ask for: windows of multiples of two seconds.
const COARSE_TRIGGER: &[u8] = b"some 100000 2000000\0";

/// The hints of this machine.
pub struct HostMemoryAlarm {
    version: CgroupVersion,
    mount: PathBuf,
    stalls: PathBuf,
    // A std mutex: it is held to swap the triggers.
    triggers: Mutex<Vec<Arc<Trigger>>>,
    changed: Notify,
}

/// Something that the kernel wakes a reader of.
struct Trigger {
    file: AsyncFd<File>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Read to be quiet again.
    Counter,
    /// Quiet by itself until the next window.
    Stalls,
}

impl HostMemoryAlarm {
    #[must_use]
    pub fn new(layout: &Layout) -> Self {
        let mount = layout.memory_mount().unwrap_or(Path::new("/sys/fs/cgroup"));
        Self {
            version: layout.version(),
            mount: mount.to_owned(),
            stalls: PathBuf::from(STALLS),
            triggers: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn triggers(&self) -> Vec<Arc<Trigger>> {
        self.triggers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn put(&self, triggers: Vec<Arc<Trigger>>) {
        *self.triggers.lock().unwrap_or_else(PoisonError::into_inner) = triggers;
        self.changed.notify_waiters();
    }

    /// The kernel writes to the counter when the cgroup's use crosses the mark, upwards or downwards.
    fn counter(&self, mark: &MemoryMark) -> io::Result<Trigger> {
        let directory = self.mount.join(mark.cgroup.trim_start_matches('/'));
        let usage = File::open(directory.join("memory.usage_in_bytes"))?;
        let counter: OwnedFd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mut control = OpenOptions::new()
            .write(true)
            .open(directory.join("cgroup.event_control"))?;
        let (counted, used) = (counter.as_raw_fd(), usage.as_raw_fd());
        control.write_all(format!("{counted} {used} {}", mark.usage_bytes).as_bytes())?;
        Ok(Trigger {
            file: registered(File::from(counter), Interest::READABLE)?,
            kind: Kind::Counter,
        })
    }

    fn stalls(&self) -> io::Result<Trigger> {
        let open = |trigger: &[u8]| {
            let mut options = OpenOptions::new();
            let mut file = options.read(true).write(true).open(&self.stalls)?;
            // One call: the kernel takes each as a trigger of its own.
            let written = file.write(trigger)?;
            match written == trigger.len() {
                true => Ok(file),
                false => Err(io::Error::from(io::ErrorKind::WriteZero)),
            }
        };
        let file = open(FINE_TRIGGER).or_else(|_| open(COARSE_TRIGGER))?;
        Ok(Trigger {
            file: registered(file, Interest::PRIORITY)?,
            kind: Kind::Stalls,
        })
    }
}

#[async_trait]
impl MemoryAlarm for HostMemoryAlarm {
    async fn set(&self, marks: Vec<MemoryMark>) -> Result<(), SignalError> {
        let failed = |place: &Path, error: &io::Error| {
            SignalError::new(place.display().to_string(), error.to_string())
        };
        match self.version {
            CgroupVersion::V1 => {
                let mut triggers = Vec::new();
                let mut problem = None;
                for mark in &marks {
                    match self.counter(mark) {
                        Ok(trigger) => triggers.push(Arc::new(trigger)),
                        // The cgroup of all pods may not be there yet.
                        Err(error) => {
                            problem = Some(failed(
                                &self.mount.join(mark.cgroup.trim_start_matches('/')),
                                &error,
                            ));
                        }
                    }
                }
                self.put(triggers);
                problem.map_or(Ok(()), Err)
            }
            CgroupVersion::V2 if self.triggers().is_empty() => {
                let trigger = self.stalls().map_err(|error| failed(&self.stalls, &error))?;
                self.put(vec![Arc::new(trigger)]);
                Ok(())
            }
            CgroupVersion::V2 => Ok(()),
        }
    }

    async fn rings(&self) {
        loop {
            let changed = self.changed.notified();
            let triggers = self.triggers();
            let waits: Vec<_> = triggers.iter().map(|trigger| Box::pin(trigger.rings())).collect();
            let rung = async {
                match waits.is_empty() {
                    true => pending().await,
                    false => select_all(waits).await.0,
                }
            };
            // Both arms are cancel-safe: a counter that was not read rings again.
            tokio::select! {
                biased;
                () = rung => return,
                () = changed => {}
            }
        }
    }
}

impl Trigger {
    async fn rings(&self) {
        let interest = match self.kind {
            Kind::Counter => Interest::READABLE,
            Kind::Stalls => Interest::PRIORITY,
        };
        match self.file.ready(interest).await {
            Ok(mut ready) => {
                if self.kind == Kind::Counter {
                    let mut count = [0; 8];
                    // Nothing to read is as good: it is quiet.
                    let _ = self.file.get_ref().read(&mut count);
                }
                ready.clear_ready();
            }
            // The runtime is ending.
            Err(_) => pending().await,
        }
    }
}
