//! A filesystem of its own that can stop answering: what a dead network mount looks like to the kernel.
//!
//! Speaks the kernel's FUSE protocol on `/dev/fuse`, as far as looking around in two directories needs it. While it is
//! silent, requests are taken and not answered, so that whoever asked cannot even be killed. Dropping it answers everything and
//! unmounts.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// The name of the one directory in the root.
pub const DIRECTORY: &str = "sub";

const ROOT: u64 = 1;
const SUB: u64 = 2;

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const INTERRUPT: u32 = 36;
const DESTROY: u32 = 38;
const BATCH_FORGET: u32 = 42;

/// A bit more than the largest request, which the kernel insists on.
const BUFFER_BYTES: usize = 256 << 10;
const HEADER_BYTES: usize = 40;

/// Whether the filesystem is one of the kind that says goodbye when it is unmounted, and so can keep an unmount waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    None,
    /// On a block device; it needs `losetup`.
    Waits,
}

/// A mounted filesystem and the thread that answers for it.
pub struct SilentFuse {
    mount_point: PathBuf,
    shared: Arc<Shared>,
    block_device: Option<String>,
}

struct Shared {
    device: File,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    silent: bool,
    unanswered: Vec<Request>,
}

struct Request {
    opcode: u32,
    unique: u64,
    node: u64,
    body: Vec<u8>,
}

impl SilentFuse {
    /// Mounts the filesystem at a directory, which it makes. A file beside it backs the block device, if there has to be one.
    pub fn mount(mount_point: &Path, farewell: Farewell) -> Result<Self> {
        std::fs::create_dir_all(mount_point).context("create the mount point")?;
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .context("open /dev/fuse")?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
            device.as_raw_fd()
        );
        let options = std::ffi::CString::new(options)?;
        let block_device = match farewell {
            Farewell::None => None,
            Farewell::Waits => Some(loop_device(&mount_point.with_extension("img"))?),
        };
        let (source, kind) = match &block_device {
            Some(device) => (device.as_str(), "fuseblk"),
            None => ("silent", "fuse"),
        };
        mount(
            source,
            mount_point,
            kind,
            MountFlags::empty(),
            Some(options.as_c_str()),
        )
        .with_context(|| format!("mount {kind}"))?;
        let shared = Arc::new(Shared {
            device,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let server = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("fuse".to_owned())
            .spawn(move || server.serve())
            .context("start the thread")?;
        // The kernel asks other things only after it has been greeted.
        std::fs::metadata(mount_point).context("look at the mounted filesystem")?;
        Ok(Self {
            mount_point: mount_point.to_owned(),
            shared,
            block_device,
        })
    }

    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// From now on nothing is answered.
    pub fn fall_silent(&self) {
        self.shared.lock().silent = true;
    }

    /// Answers again, and what was asked meanwhile too.
    pub fn recover(&self) {
        let unanswered = {
            let mut state = self.shared.lock();
            state.silent = false;
            std::mem::take(&mut state.unanswered)
        };
        for request in unanswered {
            self.shared.answer(&request);
        }
    }

    /// As if the program that answers had died: everybody gets an error from now on.
    pub fn end_connection(&self) -> Result<()> {
        let flags = AtFlags::STATX_DONT_SYNC;
        let stat =
            statx(CWD, &self.mount_point, flags, StatxFlags::BASIC_STATS).context("look at the mount")?;
        let control = self.mount_point.with_extension("control");
        std::fs::create_dir_all(&control).context("create a directory for the kernel's control files")?;
        mount("control", &control, "fusectl", MountFlags::empty(), None).context("mount fusectl")?;
        let ended = std::fs::write(control.join(stat.stx_dev_minor.to_string()).join("abort"), "1");
        unmount(&control, UnmountFlags::DETACH).context("unmount fusectl")?;
        ended.context("end the connection")
    }

    /// Waits until somebody waits for an answer.
    pub fn wait_for_victim(&self, deadline: Duration) -> Result<()> {
        let state = self.shared.lock();
        let (_state, timeout) = self
            .shared
            .changed
            .wait_timeout_while(state, deadline, |state| state.unanswered.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            bail!("nobody has asked the filesystem anything within {deadline:?}");
        }
        Ok(())
    }

    /// How many wait for an answer.
    pub fn victims(&self) -> usize {
        self.shared.lock().unanswered.len()
    }
}

impl Drop for SilentFuse {
    fn drop(&mut self) {
        self.recover();
        let _ = unmount(&self.mount_point, UnmountFlags::DETACH);
        if let Some(device) = &self.block_device {
            let _ = Command::new("losetup").args(["--detach", device]).status();
        }
    }
}

fn loop_device(image: &Path) -> Result<String> {
    File::create(image)
        .and_then(|file| file.set_len(1 << 20))
        .context("create the image")?;
    let output = Command::new("losetup")
        .args(["--find", "--show"])
        .arg(image)
        .output()
        .context("run losetup")?;
    if !output.status.success() {
        bail!("losetup: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until nothing is mounted any more.
    fn serve(&self) {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let length = match (&self.device).read(&mut buffer) {
                Ok(length) => length,
                Err(error)
                    if matches!(
                        Errno::from_io_error(&error),
                        Some(Errno::INTR | Errno::AGAIN | Errno::NOENT)
                    ) =>
                {
                    continue;
                }
                Err(_) => return,
            };
            let Some(request) = buffer.get(..length).and_then(Request::parse) else {
                continue;
            };
            let mut state = self.lock();
            if state.silent && !request.wants_no_answer() {
                state.unanswered.push(request);
                self.changed.notify_all();
            } else {
                drop(state);
                self.answer(&request);
            }
        }
    }

    fn answer(&self, request: &Request) {
        let (error, body) = match request.reply() {
            Reply::None => return,
            Reply::Error(errno) => (-errno.raw_os_error(), Vec::new()),
            Reply::Body(body) => (0, body),
        };
        let length = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
        let mut message = Vec::new();
        message.extend(length.to_ne_bytes());
        message.extend(error.to_ne_bytes());
        message.extend(request.unique.to_ne_bytes());
        message.extend(body);
        // Who asked may have gone.
        let _ = (&self.device).write(&message);
    }
}

enum Reply {
    None,
    Error(Errno),
    Body(Vec<u8>),
}

impl Request {
    /// Length, operation, number, node, and who asks.
    fn parse(message: &[u8]) -> Option<Self> {
        let number = |from: usize| Some(u32::from_ne_bytes(message.get(from..from + 4)?.try_into().ok()?));
        let long = |from: usize| Some(u64::from_ne_bytes(message.get(from..from + 8)?.try_into().ok()?));
        Some(Self {
            opcode: number(4)?,
            unique: long(8)?,
            node: long(16)?,
            body: message.get(HEADER_BYTES..)?.to_vec(),
        })
    }

    fn wants_no_answer(&self) -> bool {
        matches!(self.opcode, FORGET | BATCH_FORGET | INTERRUPT)
    }

    fn reply(&self) -> Reply {
        match self.opcode {
            FORGET | BATCH_FORGET | INTERRUPT => Reply::None,
            INIT => Reply::Body(protocol()),
            // Attributes are never kept by the kernel, so that each look is a question.
            GETATTR => Reply::Body([[0; 16].as_slice(), &attributes(self.node)].concat()),
            LOOKUP if self.node == ROOT && self.body.strip_suffix(&[0]) == Some(DIRECTORY.as_bytes()) => {
                let mut entry = Vec::new();
                entry.extend(SUB.to_ne_bytes());
                entry.extend([0; 32]);
                entry.extend(attributes(SUB));
                Reply::Body(entry)
            }
            LOOKUP => Reply::Error(Errno::NOENT),
            OPENDIR => Reply::Body(vec![0; 16]),
            READDIR => Reply::Body(Vec::new()),
            STATFS => Reply::Body(vec![0; 80]),
            RELEASE | RELEASEDIR | DESTROY => Reply::Body(Vec::new()),
            _ => Reply::Error(Errno::NOSYS),
        }
    }
}

/// The version of the protocol, without anything that may be left out.
fn protocol() -> Vec<u8> {
    let mut body = Vec::new();
    for number in [7_u32, 31, 0, 0] {
        body.extend(number.to_ne_bytes());
    }
    // Requests in the background: how many, and from when on others wait.
    body.extend(16_u16.to_ne_bytes());
    body.extend(12_u16.to_ne_bytes());
    // Largest write.
    body.extend(4096_u32.to_ne_bytes());
    body.resize(64, 0);
    body
}

/// A directory that everybody may enter.
fn attributes(node: u64) -> Vec<u8> {
    const DIRECTORY_0755: u32 = 0o040_755;
    let mut body = Vec::new();
    body.extend(node.to_ne_bytes());
    // Size, blocks, three times.
    body.extend([0; 40]);
    body.extend([0; 12]);
    body.extend(DIRECTORY_0755.to_ne_bytes());
    // Links, owner, group, device, block size, flags.
    for number in [2_u32, 0, 0, 0, 4096, 0] {
        body.extend(number.to_ne_bytes());
    }
    body
}
