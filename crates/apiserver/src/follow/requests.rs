//! The requests of a list and of a watch.

use http::Request;

use super::Followed;

const PAGE_OBJECTS: u32 = 500;

/// The position in the server's history from which a list or a watch begins.
pub(super) enum History {
    /// Nothing is known yet: the server may answer from its cache.
    Unknown,
    /// Nothing older than the version that was delivered last.
    At(String),
    /// The server has dropped the known version.
    Lost,
}

impl History {
    /// Whether the server's version is older than the known one, as after a restore of its database: such a server sends no events
    /// until it has caught up.
    pub(super) fn is_after(&self, version: &str) -> bool {
        let Self::At(known) = self else {
            return false;
        };
        matches!((version.parse::<u64>(), known.parse::<u64>()), (Ok(new), Ok(known)) if new < known)
    }

    /// Moves on to a version of an event.
    pub(super) fn seen(&mut self, version: &str) {
        if !version.is_empty() && matches!(self, Self::At(_)) {
            *self = Self::At(version.to_owned());
        }
    }
}

type Built = Result<Request<Vec<u8>>, http::Error>;

impl Followed {
    pub(super) fn list_request(&self, path: usize, history: &History, next_page: Option<&str>) -> Built {
        let page = PAGE_OBJECTS.to_string();
        match (next_page, history) {
            (Some(token), _) => self.request(path, &[("limit", &page), ("continue", token)]),
            (None, History::Unknown) => self.request(path, &[("limit", &page), ("resourceVersion", "0")]),
            (None, History::At(version)) => {
                let pairs = [
                    ("resourceVersion", version.as_str()),
                    ("resourceVersionMatch", "NotOlderThan"),
                ];
                self.request(path, &pairs)
            }
            (None, History::Lost) => self.request(path, &[("limit", &page)]),
        }
    }

    /// `lists`: the watch begins with the whole set.
    pub(super) fn watch_request(&self, path: usize, history: &History, seconds: u64, lists: bool) -> Built {
        let version = match history {
            History::At(version) => version,
            History::Unknown if lists => "0",
            History::Unknown | History::Lost => "",
        };
        let seconds = seconds.to_string();
        let mut pairs = vec![
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", &seconds),
            ("resourceVersion", version),
        ];
        if lists {
            pairs.extend([
                ("sendInitialEvents", "true"),
                ("resourceVersionMatch", "NotOlderThan"),
            ]);
        }
        self.request(path, &pairs)
    }

    fn request(&self, path: usize, pairs: &[(&str, &str)]) -> Built {
        let url = format!("{}?", self.paths[path]);
        let start = url.len();
        let mut query = form_urlencoded::Serializer::for_suffix(url, start);
        if let Some(selector) = &self.field_selector {
            query.append_pair("fieldSelector", selector);
        }
        query.extend_pairs(pairs);
        Request::get(query.finish()).body(Vec::new())
    }
}
