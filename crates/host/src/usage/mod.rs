//! What cgroups use, read from the kernel on demand.
//!
//! Owns the directories that are held open between questions, their number in time, and the deadline of a question. Rows are read
//! in jobs on a pool of two threads, so that hundreds of cgroups delay no other work of the process. No directory is searched:
//! the caller names each cgroup. The figures' meaning is `rubelet_usage`'s.

mod detail;
mod machine;
mod row;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use rubelet_ports::{Clock, MachineReading, Moment, SignalError, UsageQuestion, UsageReader, UsageReading};
use rubelet_usage::{MachineMemory, boot_time};

use crate::blocking::{BlockingPool, PoolLimits};
use crate::cgroups::{Layout, own_cgroup};
use row::{Gone, Row, Trees};

/// For all rows of a question together.
const DEADLINE: Duration = Duration::from_secs(5);
const ROWS_PER_JOB: usize = 64;
/// A directory stays open this long after its last use.
const IDLE: Duration = Duration::from_mins(5);
/// Larger than any file that is read; a larger one is read in pieces.
const BUFFER_BYTES: usize = 16 << 10;

/// The cgroups of this machine.
#[derive(Clone)]
pub struct HostUsage {
    shared: Arc<Shared>,
    pool: BlockingPool,
}

struct Shared {
    trees: Trees,
    clock: Arc<dyn Clock>,
    // A std mutex: it is held to look a row up, never while one is read.
    open: Mutex<BTreeMap<Arc<str>, Opened>>,
}

struct Opened {
    row: Arc<Row>,
    asked_at: Moment,
}

impl HostUsage {
    /// With the machine's cgroups as they are mounted.
    #[must_use]
    pub fn new(layout: &Layout, clock: Arc<dyn Clock>) -> Self {
        Self {
            shared: Arc::new(Shared {
                trees: Trees::of_layout(layout),
                clock,
                open: Mutex::default(),
            }),
            pool: BlockingPool::new(PoolLimits {
                threads: 2,
                stuck_threads: 4,
                queue: 128,
                idle: Duration::from_secs(2),
                stuck_after: DEADLINE,
            }),
        }
    }

    /// How many cgroups are held open.
    #[must_use]
    pub fn open_rows(&self) -> usize {
        self.shared.open().len()
    }
}

#[async_trait]
impl UsageReader for HostUsage {
    async fn read(&self, mut questions: Vec<UsageQuestion>) -> Vec<Option<UsageReading>> {
        self.shared.close_idle();
        let mut jobs = Vec::new();
        while !questions.is_empty() {
            let rest = questions.split_off(questions.len().min(ROWS_PER_JOB));
            let job = std::mem::replace(&mut questions, rest);
            let (shared, rows) = (Arc::clone(&self.shared), job.len());
            let call = move || {
                let mut buffer = Vec::with_capacity(BUFFER_BYTES);
                job.iter()
                    .map(|question| shared.answer(question, &mut buffer))
                    .collect()
            };
            let answers = self.pool.run(Path::new("/sys/fs/cgroup"), DEADLINE, call);
            jobs.push(async move {
                answers.await.unwrap_or_else(|error| {
                    tracing::warn!(rows, %error, "Cgroups could not be read in time; they are left out");
                    vec![None; rows]
                })
            });
        }
        join_all(jobs).await.into_iter().flatten().collect()
    }

    async fn machine(&self) -> Result<MachineReading, SignalError> {
        let call = || machine_below(Path::new("/"));
        let answer = self.pool.run(Path::new("/proc"), DEADLINE, call).await;
        answer.unwrap_or_else(|error| Err(SignalError::new("/proc", error.to_string())))
    }

    async fn own_cgroup(&self) -> Option<Arc<str>> {
        // A file of the process itself, which no other process can delay.
        own_cgroup().map(Arc::from)
    }

    fn close(&self) {
        self.shared.open().clear();
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Opened>> {
        // No step under the lock can panic half way.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close_idle(&self) {
        let now = self.clock.moment();
        self.open().retain(|_, opened| now.since(opened.asked_at) < IDLE);
    }

    fn answer(&self, question: &UsageQuestion, buffer: &mut Vec<u8>) -> Option<UsageReading> {
        question.paths.iter().find_map(|path| {
            let row = self.row(path)?;
            match row.read(question.classes, &self.trees, buffer) {
                Ok(figures) => Some(UsageReading {
                    path: Arc::clone(path),
                    read_at: self.clock.now(),
                    read_moment: self.clock.moment(),
                    made_at: row.made_at(),
                    figures,
                }),
                Err(Gone) => {
                    self.open().remove(path);
                    None
                }
            }
        })
    }

    /// The cgroup's directories, from an earlier question or opened now.
    fn row(&self, path: &Arc<str>) -> Option<Arc<Row>> {
        let asked_at = self.clock.moment();
        if let Some(opened) = self.open().get_mut(path) {
            opened.asked_at = asked_at;
            return Some(Arc::clone(&opened.row));
        }
        let row = Arc::new(Row::open(&self.trees, path)?);
        let opened = Opened {
            row: Arc::clone(&row),
            asked_at,
        };
        self.open().insert(Arc::clone(path), opened);
        Some(row)
    }
}

fn machine_below(root: &Path) -> Result<MachineReading, SignalError> {
    let read = |path: &str| {
        let path: PathBuf = root.join(path);
        std::fs::read(&path).map_err(|error| SignalError::new(path.display().to_string(), error.to_string()))
    };
    Ok(MachineReading {
        memory: MachineMemory::of_meminfo(&read("proc/meminfo")?),
        figures: machine::figures_below(root),
        booted_at: boot_time(&read("proc/stat")?),
    })
}

#[cfg(test)]
mod tests;
