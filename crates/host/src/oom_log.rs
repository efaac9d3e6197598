//! Following the kernel's log for processes that it killed because memory ran out.
//!
//! Owns the open log and the waiting for records. What a record means is read by `rubelet_usage::OomRecords`.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use rubelet_ports::{OomLog, OomNews, SignalError};
use rubelet_usage::OomRecords;
use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

const DEVICE: &str = "/dev/kmsg";
/// More than a record can have.
const RECORD_BYTES: usize = 16 << 10;

/// The log of this machine's kernel.
#[derive(Clone, Debug)]
pub struct HostOomLog {
    device: PathBuf,
}

impl HostOomLog {
    #[must_use]
    pub fn new() -> Self {
        Self {
            device: PathBuf::from(DEVICE),
        }
    }

    fn failed(&self, error: &io::Error) -> SignalError {
        SignalError::new(self.device.display().to_string(), error.to_string())
    }

    fn open(&self) -> Result<AsyncFd<File>, SignalError> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
        let file = options.open(&self.device).map_err(|error| self.failed(&error))?;
        registered(file, Interest::READABLE).map_err(|error| self.failed(&error))
    }
}

impl Default for HostOomLog {
    fn default() -> Self {
        Self::new()
    }
}

impl OomLog for HostOomLog {
    fn follow(&self) -> BoxStream<'static, Result<OomNews, SignalError>> {
        let log = self.clone();
        let following = match log.open() {
            Ok(file) => Following {
                log,
                file,
                records: OomRecords::default(),
                newest: 0,
                is_up_to_date: false,
                found: VecDeque::new(),
                is_over: false,
            },
            Err(error) => return stream::iter([Err(error)]).boxed(),
        };
        stream::unfold(following, async |mut following| {
            if following.is_over {
                return None;
            }
            let news = following.next().await;
            following.is_over = news.is_err();
            Some((news, following))
        })
        .boxed()
    }
}

struct Following {
    log: HostOomLog,
    file: AsyncFd<File>,
    records: OomRecords,
    newest: u64,
    is_up_to_date: bool,
    found: VecDeque<OomNews>,
    is_over: bool,
}

impl Following {
    async fn next(&mut self) -> Result<OomNews, SignalError> {
        loop {
            if let Some(news) = self.found.pop_front() {
                return Ok(news);
            }
            let mut ready = match self.is_up_to_date {
                true => Some(
                    self.file
                        .readable()
                        .await
                        .map_err(|error| self.log.failed(&error))?,
                ),
                false => None,
            };
            let is_empty = read_on(
                self.file.get_ref(),
                &mut self.records,
                &mut self.newest,
                &mut self.found,
            )
            .map_err(|error| self.log.failed(&error))?;
            if is_empty && let Some(ready) = &mut ready {
                ready.clear_ready();
            }
            if is_empty && !self.is_up_to_date {
                self.is_up_to_date = true;
                self.found.push_back(OomNews::UpToDate { newest: self.newest });
            }
        }
    }
}

/// Registers with the runtime's poller, which does not block.
pub(crate) fn registered(file: File, interest: Interest) -> io::Result<AsyncFd<File>> {
    #[expect(
        unsafe_code,
        reason = "the poller asks for a descriptor that stays the same and open; that of a file does"
    )]
    // SAFETY: a `File` is open and names one description until it is dropped, and it is never exchanged.
    let registered = unsafe { AsyncFd::register_with_interest(file, interest) };
    registered.map_err(io::Error::from)
}

/// Reads until a kill is found; the answer is whether the log is at its end.
fn read_on(
    mut file: &File,
    records: &mut OomRecords,
    newest: &mut u64,
    found: &mut VecDeque<OomNews>,
) -> io::Result<bool> {
    let mut record = vec![0; RECORD_BYTES];
    loop {
        let length = match file.read(&mut record) {
            Ok(0) => return Ok(true),
            Ok(length) => length,
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::AGAIN) => return Ok(true),
                // Records that were overwritten before they were read, and signals.
                Some(Errno::PIPE | Errno::INTR) => continue,
                _ => return Err(error),
            },
        };
        if let Some((sequence, kill)) = records.take(&record[..length]) {
            *newest = sequence.max(*newest);
            if let Some(kill) = kill {
                found.push_back(OomNews::Kill(kill));
                return Ok(false);
            }
        }
    }
}
