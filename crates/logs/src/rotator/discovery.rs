//! Which containers have a log: by a list in every interval, and between two lists by the links of containers that have just started.
//!
//! Owns which lists and requests are under way and which containers need a request for their log's path. It makes no request itself.

use std::collections::{BTreeSet, VecDeque};

use rubelet_ports::{Touched, WatchHint};

/// Containers whose log path is requested at a time.
const MAX_REQUESTS: usize = 4;
const LOG_SUFFIX: &str = ".log";

#[derive(Default)]
pub(super) struct Discovery {
    /// Containers whose log is not known yet.
    unknown: VecDeque<String>,
    requested: BTreeSet<String>,
    /// Containers that have links and are not looked at, such as those that have ended.
    passed_over: BTreeSet<String>,
    is_listing: bool,
    /// A container may have started since the list under way was requested.
    list_again: bool,
    have_links_been_read: bool,
    is_reading_links: bool,
    /// The links have changed since they were read.
    are_links_stale: bool,
}

impl Discovery {
    /// Whether a list of the containers has to be requested. If one is under way, another one follows it.
    pub(super) fn begin_list(&mut self) -> bool {
        let is_listing = std::mem::replace(&mut self.is_listing, true);
        self.list_again |= is_listing;
        !is_listing
    }

    /// Whether a list has to follow the one that has ended.
    pub(super) fn end_list(&mut self) -> bool {
        self.is_listing = false;
        std::mem::take(&mut self.list_again)
    }

    /// Takes a hint about the links. What it names need not be searched for among all of them.
    pub(super) fn links_changed(&mut self, hint: &WatchHint, is_tracked: impl Fn(&str) -> bool) {
        let names = match &hint.touched {
            Touched::Names(names) if self.have_links_been_read && !self.are_links_stale => names,
            Touched::Names(_) | Touched::Anything => {
                self.are_links_stale = true;
                return;
            }
        };
        let is_there = |name: &&String| hint.removed.iter().all(|removal| removal.name != **name);
        for id in names
            .iter()
            .filter(is_there)
            .filter_map(|name| container_of(name))
        {
            self.want_unknown(id, &is_tracked);
        }
    }

    fn want_unknown(&mut self, id: &str, is_tracked: impl Fn(&str) -> bool) {
        if !self.passed_over.contains(id) && !is_tracked(id) {
            self.want_path(id.to_owned());
        }
    }

    /// Whether the links have to be read.
    pub(super) fn begin_reading_links(&mut self) -> bool {
        let begins = self.are_links_stale && !self.is_reading_links;
        if begins {
            (self.are_links_stale, self.is_reading_links) = (false, true);
        }
        begins
    }

    /// Takes the names of all links. Whether the containers have to be listed: most of the containers that have links at the start
    /// ended long ago, and one list shows all that run.
    pub(super) fn end_reading_links(&mut self, names: &[String], is_tracked: impl Fn(&str) -> bool) -> bool {
        self.is_reading_links = false;
        let ids: BTreeSet<&str> = names.iter().filter_map(|name| container_of(name)).collect();
        if !std::mem::replace(&mut self.have_links_been_read, true) {
            self.passed_over = ids.into_iter().map(str::to_owned).collect();
            return true;
        }
        self.passed_over.retain(|id| ids.contains(id.as_str()));
        for id in ids {
            self.want_unknown(id, &is_tracked);
        }
        false
    }

    /// Notes that a list shows a container.
    pub(super) fn is_running(&mut self, id: &str) {
        self.passed_over.remove(id);
    }

    /// Queues a request for the path of a container's log.
    pub(super) fn want_path(&mut self, id: String) {
        if !self.requested.contains(&id) && !self.unknown.contains(&id) {
            self.unknown.push_back(id);
        }
    }

    /// The container whose log path is requested next.
    pub(super) fn begin_request(&mut self) -> Option<String> {
        if self.requested.len() >= MAX_REQUESTS {
            return None;
        }
        let id = self.unknown.pop_front()?;
        self.requested.insert(id.clone());
        Some(id)
    }

    /// Without a path the container is passed over until a list shows that it runs.
    pub(super) fn end_request(&mut self, id: &str, has_path: bool) {
        self.requested.remove(id);
        if !has_path {
            self.passed_over.insert(id.to_owned());
        }
    }
}

/// The container whose log a link of this name leads to.
fn container_of(link: &str) -> Option<&str> {
    let (_, id) = link.strip_suffix(LOG_SUFFIX)?.rsplit_once('-')?;
    Some(id)
}
