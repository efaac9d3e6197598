//! Compressing what was rotated away, and removing what a killed process has left.
//!
//! Owns whose turn it is; a file that is still written has its turn again in the next interval.

use futures_util::future::FutureExt;

use super::{Done, Keeper};
use crate::rotation::{RotationError, compress, plan_tidying};

impl Keeper {
    pub(super) fn begin_tidying(&mut self, id: String) {
        let Some(tracked) = self.logs.get(&id) else { return };
        if tracked.compressing.is_some() {
            // Its end looks again.
            return;
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
        let file = match next {
            Ok(Some(file)) => file,
            Ok(None) => {
                self.tidying -= 1;
                return;
            }
            Err(error) => {
                self.tidying -= 1;
                self.tidy_later(&id);
                return self.complain(&id, &error, "Rotated logs cannot be tidied up");
            }
        };
        let Some(tracked) = self.logs.get_mut(&id) else {
            self.tidying -= 1;
            return;
        };
        tracked.compressing = Some(file.clone());
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
            tracked.compressing = None;
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
