//! Compressing what was rotated away, and removing what a killed process has left.
//!
//! Owns which log is next; a file that is still written is tried again in the next interval.

use futures_util::future::FutureExt;

use super::{Done, Rotator, Tidying};
use crate::rotation::{RotationError, compress, plan_tidying};

impl Rotator {
    pub(super) fn begin_tidying(&mut self, id: String) {
        let Some(tracked) = self.logs.get_mut(&id) else {
            return;
        };
        match &mut tracked.tidying {
            Tidying::Nothing => tracked.tidying = Tidying::Looking { again: false },
            Tidying::Looking { again } => {
                *again = true;
                return;
            }
            // Its end looks again.
            Tidying::Compressing(_) => return,
        }
        let (ports, log) = (self.ports.clone(), tracked.log.clone());
        self.tidying += 1;
        let work = async move {
            let next = plan_tidying(&ports, &log).await;
            Done::Tidied { id, next }
        };
        self.works.push(work.boxed());
    }

    pub(super) fn tidied(&mut self, id: String, next: Result<Option<String>, RotationError>) {
        let Some(tracked) = self.logs.get_mut(&id) else {
            self.tidying -= 1;
            return;
        };
        let file = match next {
            Ok(Some(file)) => file,
            Ok(None) => {
                self.tidying -= 1;
                let looked = std::mem::replace(&mut tracked.tidying, Tidying::Nothing);
                if looked == (Tidying::Looking { again: true }) {
                    self.untidy.push_back(id);
                }
                return;
            }
            Err(error) => {
                self.tidying -= 1;
                tracked.tidying = Tidying::Nothing;
                self.tidy_later(&id);
                return self.complain(&id, &error, "Rotated logs cannot be tidied up");
            }
        };
        tracked.tidying = Tidying::Compressing(file.clone());
        let (ports, log) = (self.ports.clone(), tracked.log.clone());
        let work = async move {
            let result = compress(&ports, &log, &file).await;
            Done::Compressed { id, result }
        };
        self.works.push(work.boxed());
    }

    fn tidy_later(&mut self, id: &str) {
        if let Some(tracked) = self.logs.get_mut(id) {
            tracked.is_untidy = true;
        }
    }

    pub(super) fn compressed(&mut self, id: String, result: Result<bool, RotationError>) {
        self.tidying -= 1;
        if let Some(tracked) = self.logs.get_mut(&id) {
            tracked.tidying = Tidying::Nothing;
        }
        match result {
            // There may be more, or a rotation has come meanwhile.
            Ok(true) => self.untidy.push_back(id),
            Ok(false) => self.tidy_later(&id),
            Err(error) => {
                self.tidy_later(&id);
                self.complain(&id, &error, "A rotated log cannot be compressed");
            }
        }
    }
}
