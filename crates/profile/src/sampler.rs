//! Stacks of whatever runs, taken by a signal whenever the process has used another hundredth of a second of processor time.
//!
//! Owns SIGPROF, the timer behind it and the memory that the handler writes to. The handler may interrupt any code, also such as
//! holds a lock or allocates: it takes no lock, allocates nothing, and writes only to memory that is always there.
//!
//! ```text
//! start: slot taken ─► handler there ─► recording ─► timer on
//! stop:  timer off ─► not recording ─► no handler runs ─► memory is read ─► slot free
//! ```

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;

use rubelet_ports::ProfileError;

/// As often as Go samples.
const PERIOD_MICROS: libc::suseconds_t = 10_000;
pub(crate) const PERIOD_NANOS: i64 = 10_000_000;
const MAX_DEPTH: usize = 128;
/// 16 MiB, of which the kernel gives only what is written. Enough for five minutes of two busy processors, thirty frames deep.
const CAPACITY: usize = 1 << 21;

static TAKEN: AtomicBool = AtomicBool::new(false);
static RECORDING: AtomicBool = AtomicBool::new(false);
static HANDLERS: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);
/// Stacks one behind the other, each as its depth and then its addresses.
static WORDS: [AtomicUsize; CAPACITY] = [const { AtomicUsize::new(0) }; CAPACITY];

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    /// How often each stack was seen. The innermost address is the one that ran; the others lie within a call.
    pub(crate) stacks: BTreeMap<Vec<usize>, i64>,
    /// How often no stack could be kept.
    pub(crate) lost: usize,
}

/// The one sampling of the process; it ends with this value.
#[derive(Debug)]
pub(crate) struct Sampling(());

impl Sampling {
    pub(crate) fn start() -> Result<Self, ProfileError> {
        if TAKEN.swap(true, SeqCst) {
            return Err(ProfileError::InUse);
        }
        let sampling = Self(());
        USED.store(0, SeqCst);
        LOST.store(0, SeqCst);
        // What the unwinder prepares on its first use must not be prepared in the handler.
        backtrace::trace(|_| true);
        let failed = |error: io::Error| ProfileError::Failed(error.to_string());
        install_handler().map_err(failed)?;
        RECORDING.store(true, SeqCst);
        set_timer(PERIOD_MICROS).map_err(failed)?;
        Ok(sampling)
    }

    pub(crate) fn finish(self) -> Recording {
        stop();
        let mut recording = Recording {
            stacks: BTreeMap::new(),
            lost: LOST.load(SeqCst),
        };
        let used = USED.load(SeqCst);
        let mut words = WORDS.iter().take(used).map(|word| word.load(Relaxed));
        while let Some(depth) = words.next() {
            let stack = words.by_ref().take(depth).collect();
            *recording.stacks.entry(stack).or_default() += 1;
        }
        recording
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        stop();
        TAKEN.store(false, SeqCst);
    }
}

fn stop() {
    // Switching off what could be switched on does not fail; and if it did, nothing would be recorded.
    drop(set_timer(0));
    RECORDING.store(false, SeqCst);
    // One that runs takes microseconds; one that begins now sees that nothing is recorded.
    while HANDLERS.load(SeqCst) > 0 {
        thread::yield_now();
    }
}

/// The handler stays for good: a tick may be on its way when the timer is off, and the signal's default is the end of the
/// process. Programs that rubelet starts have the default again.
fn install_handler() -> io::Result<()> {
    #[expect(unsafe_code, reason = "the calls have no safe form")]
    // SAFETY: zeroes are a valid `sigaction` without flags and with an empty mask; the handler has the signature of one without
    // `SA_SIGINFO`, and does only what a handler may do.
    let result = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_tick as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGPROF, &raw const action, ptr::null_mut())
    };
    checked(result.into())
}

/// Ticks as often as this much processor time was used by all threads together; never with zero. The kernel gives a tick to the
/// thread that runs.
fn set_timer(period_micros: libc::suseconds_t) -> io::Result<()> {
    const ITIMER_PROF: c_int = 2;
    let period = libc::timeval {
        tv_sec: 0,
        tv_usec: period_micros,
    };
    // The pause between ticks, and the one before the first.
    let times = [period; 2];
    let previous = ptr::null_mut::<libc::timeval>();
    #[expect(unsafe_code, reason = "the call has no safe form")]
    // SAFETY: the kernel reads two times, which is what there is, and writes nothing to a null pointer.
    let result = unsafe { libc::syscall(libc::SYS_setitimer, ITIMER_PROF, times.as_ptr(), previous) };
    checked(result)
}

fn checked(result: libc::c_long) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

extern "C" fn on_tick(_: c_int) {
    HANDLERS.fetch_add(1, SeqCst);
    if RECORDING.load(SeqCst) {
        #[expect(unsafe_code, reason = "the interrupted code must find its error number again")]
        // SAFETY: the place belongs to this thread for as long as it lives.
        unsafe {
            let place = libc::__errno_location();
            let errno = *place;
            record();
            *place = errno;
        }
    }
    HANDLERS.fetch_sub(1, SeqCst);
}

/// Which frames the unwinder is at.
enum At {
    /// Those of the handler and what it calls.
    Handler,
    /// The one that the kernel made to call it.
    Trampoline,
    Interrupted,
}

fn record() {
    let mut stack = [0; MAX_DEPTH];
    let mut depth = 0;
    let mut at = At::Handler;
    let visit = |frame: &backtrace::Frame| {
        match at {
            At::Handler if frame.symbol_address() == on_tick as *const () as *mut c_void => {
                at = At::Trampoline;
            }
            At::Handler => {}
            At::Trampoline => at = At::Interrupted,
            At::Interrupted => {
                // All but the innermost are where a call returns to: the call is just before.
                let address = frame.ip().addr().saturating_sub(usize::from(depth > 0));
                if let Some(place) = stack.get_mut(depth) {
                    *place = address;
                    depth += 1;
                }
            }
        }
        depth < MAX_DEPTH
    };
    #[expect(
        unsafe_code,
        reason = "the safe form takes a lock, which the interrupted code may hold"
    )]
    // SAFETY: the lock is there for platforms whose unwinder must not run twice at a time; the one of Linux may.
    unsafe {
        backtrace::trace_unsynchronized(visit);
    }
    let claim = |used: usize| Some(used + 1 + depth).filter(|end| depth > 0 && *end <= CAPACITY);
    let Ok(start) = USED.fetch_update(SeqCst, SeqCst, claim) else {
        LOST.fetch_add(1, SeqCst);
        return;
    };
    let words = WORDS.iter().skip(start);
    let values = [depth].into_iter().chain(stack.into_iter().take(depth));
    words
        .zip(values)
        .for_each(|(word, value)| word.store(value, Relaxed));
}
