//! The watch of the manifests: when its hints are taken, and when it is made anew.
//!
//! Owns the stream of hints, the pauses between hints that come in a row and the delay after an end. What a hint means is the
//! file source's.

use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use rubelet_ports::{Clock, FileError, Moment, Removal, Touched, WatchHint, WatchStream};

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(20);
/// The pause after a look while hints keep coming: it doubles from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LAST_PAUSE: Duration = Duration::from_millis(200);
/// Hints that are taken at a time without waiting; a folder that changes without end holds up nothing else.
const MAX_READY: usize = 64;

/// Why the file source does something.
pub(super) enum Wake {
    Hint(WatchHint),
    WatchEnded(Option<FileError>),
    Timer,
    NobodyListens,
}

/// The watch and what is known of it.
pub(super) struct ManifestWatch {
    stream: Option<WatchStream>,
    /// It has given its first hint.
    stands: bool,
    /// What was taken from the stream after the last look began.
    pub(super) touched: Touched,
    /// The end of the stream, when it was met while taking what was there.
    end: Option<Option<FileError>>,
    retry_at: Option<Moment>,
    retry_delay: Duration,
    /// Hints are not taken before this.
    paused_until: Moment,
    pause: Duration,
}

impl ManifestWatch {
    pub(super) fn new(stream: WatchStream) -> Self {
        Self {
            stream: Some(stream),
            stands: false,
            touched: Touched::nothing(),
            end: None,
            retry_at: None,
            retry_delay: FIRST_RETRY,
            paused_until: Moment::default(),
            pause: FIRST_PAUSE,
        }
    }

    pub(super) fn stands(&self) -> bool {
        self.stands
    }

    /// When a watch that has ended is to be made anew.
    pub(super) fn retry_at(&self) -> Option<Moment> {
        self.retry_at
    }

    /// The next hint, after the pause. It may be dropped: the stream keeps its events.
    pub(super) async fn next(&mut self, clock: &dyn Clock) -> Wake {
        let pause = self.paused_until.since(clock.moment());
        if !pause.is_zero() {
            clock.sleep(pause).await;
        }
        if !self.touched.is_nothing() {
            // Its removals were noted when it was taken.
            return Wake::Hint(WatchHint {
                removed: Vec::new(),
                touched: std::mem::replace(&mut self.touched, Touched::nothing()),
            });
        }
        if let Some(error) = self.end.take() {
            return Wake::WatchEnded(error);
        }
        let Some(stream) = &mut self.stream else {
            return std::future::pending().await;
        };
        match stream.next().await {
            Some(Ok(hint)) => Wake::Hint(hint),
            Some(Err(error)) => Wake::WatchEnded(Some(error)),
            None => Wake::WatchEnded(None),
        }
    }

    /// Takes the hints that are there already. The answer is what was taken away.
    pub(super) fn take_ready(&mut self) -> Vec<Removal> {
        let mut all = Vec::new();
        for _ in 0..MAX_READY {
            // A stream that has not given its first hint is not taken from: that one begins the looks.
            if !self.stands || self.end.is_some() {
                break;
            }
            let Some(item) = self
                .stream
                .as_mut()
                .and_then(|stream| stream.next().now_or_never())
            else {
                break;
            };
            match item {
                Some(Ok(WatchHint { removed, touched })) => {
                    self.touched.add(touched);
                    all.extend(removed);
                }
                Some(Err(error)) => self.end = Some(Some(error)),
                None => self.end = Some(None),
            }
        }
        all
    }

    /// A hint has come. Hints that come in a row are taken with growing pauses.
    pub(super) fn stood(&mut self, now: Moment) {
        self.stands = true;
        self.retry_delay = FIRST_RETRY;
        let is_in_a_row = now.since(self.paused_until) < self.pause;
        self.pause = match is_in_a_row {
            true => (self.pause * 2).min(LAST_PAUSE),
            false => FIRST_PAUSE,
        };
    }

    pub(super) fn looked(&mut self, now: Moment) {
        self.paused_until = now.plus(self.pause);
    }

    /// Another watch takes the place of this one. Its first hint is taken at once.
    pub(super) fn renew(&mut self, stream: WatchStream, now: Moment) {
        self.stream = Some(stream);
        self.stands = false;
        self.touched = Touched::nothing();
        self.end = None;
        self.retry_at = None;
        self.paused_until = now;
    }

    /// There is no watch until it is time to try again: soon for what is missing, later and later for other trouble.
    pub(super) fn ended(&mut self, now: Moment, is_missing: bool) {
        self.stream = None;
        self.stands = false;
        self.touched = Touched::nothing();
        self.end = None;
        if is_missing {
            self.retry_delay = FIRST_RETRY;
        }
        self.retry_at = Some(now.plus(self.retry_delay));
        if !is_missing {
            self.retry_delay = (self.retry_delay * 2).min(LAST_RETRY);
        }
    }
}
