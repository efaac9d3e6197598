//! Which logs there are: by a list in every interval, and between two lists by the links of containers that have just started.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use rubelet_ports::{LogThrottle, RuntimeError};

use super::{Done, Rotator, State, Tidying, Tracked};
use crate::containers::RunningContainer;
use crate::rotation::Log;

const LOG_SUFFIX: &str = ".log";

impl Rotator {
    pub(super) fn listed(&mut self, listed: Result<Vec<RunningContainer>, RuntimeError>) {
        self.is_listing = false;
        if std::mem::take(&mut self.list_again) {
            self.list();
        }
        let running: BTreeMap<String, Option<PathBuf>> = match listed {
            Ok(running) => running
                .into_iter()
                .map(|container| (container.id, container.log_path))
                .collect(),
            Err(error) => {
                if self
                    .list_throttle
                    .is_due(&error.to_string(), self.ports.clock.moment())
                {
                    tracing::warn!(%error, "Logs are not rotated: the containers cannot be listed");
                }
                return;
            }
        };
        self.list_throttle.end();
        self.logs.retain(|id, tracked| {
            let is_worked_on = tracked.state == State::Due || tracked.tidying != Tidying::Nothing;
            let stays = running.contains_key(id) || is_worked_on || tracked.is_untidy;
            if let Some(watch) = tracked.watch.take_if(|_| !stays) {
                watch.abort();
            }
            stays
        });
        for (id, tracked) in &mut self.logs {
            if std::mem::take(&mut tracked.is_untidy) {
                self.untidy.push_back(id.clone());
            }
        }
        self.survey();
        for (id, log_path) in running {
            self.passed_over.remove(&id);
            match log_path {
                Some(path) if !self.logs.contains_key(&id) => self.track(id, path),
                Some(_) => {}
                None => self.question(id),
            }
        }
    }

    /// Looks at every log, also at those that are watched, in case a watch failed.
    fn survey(&mut self) {
        let of = |state: State| {
            let logs = self.logs.values().filter(move |tracked| tracked.state == state);
            logs.map(|tracked| tracked.log.clone()).collect::<Vec<Log>>()
        };
        let (files, resting) = (of(State::Watched), of(State::Resting));
        for log in resting {
            // A failed rotation is tried again at once if the log is still too large.
            self.watch(&log.id, Duration::ZERO);
        }
        if files.is_empty() {
            return;
        }
        let (reader, max_size_bytes) = (Arc::clone(&self.ports.log_reader), self.settings.max_size_bytes);
        let survey = async move {
            let mut large = Vec::new();
            for log in files {
                // A log whose size cannot be read is rotated: that logs the error.
                if !matches!(reader.size(&log.path).await, Ok(size) if size < max_size_bytes) {
                    large.push(log.id);
                }
            }
            Done::Surveyed(large)
        };
        self.works.push(survey.boxed());
    }

    pub(super) fn linked(&mut self, names: &[String]) {
        self.is_reading_links = false;
        let ids: BTreeSet<&str> = names
            .iter()
            .filter_map(|name| name.strip_suffix(LOG_SUFFIX)?.rsplit_once('-'))
            .map(|(_, id)| id)
            .collect();
        self.passed_over.retain(|id| ids.contains(id.as_str()));
        if !std::mem::replace(&mut self.have_links_been_read, true) {
            // Most of the containers that have links at the start ended long ago; one list shows all that run.
            self.passed_over = ids.into_iter().map(str::to_owned).collect();
            return self.list();
        }
        for id in ids {
            if !self.passed_over.contains(id) {
                self.question(id.to_owned());
            }
        }
    }

    fn question(&mut self, id: String) {
        if !self.logs.contains_key(&id) && !self.asked.contains(&id) && !self.unknown.contains(&id) {
            self.unknown.push_back(id);
        }
    }

    pub(super) fn identified(&mut self, id: String, path: Result<Option<PathBuf>, RuntimeError>) {
        self.asked.remove(&id);
        let Ok(Some(path)) = path else {
            // Requested again when the list shows that it runs.
            self.passed_over.insert(id);
            return;
        };
        if !self.logs.contains_key(&id) {
            self.track(id, path);
        }
    }

    fn track(&mut self, id: String, path: PathBuf) {
        let log = Log { id: id.clone(), path };
        let tracked = Tracked {
            log,
            state: State::Watched,
            watch: None,
            tidying: Tidying::Nothing,
            is_untidy: false,
            throttle: LogThrottle::default(),
        };
        self.logs.insert(id.clone(), tracked);
        self.watch(&id, Duration::ZERO);
        self.untidy.push_back(id);
    }
}
