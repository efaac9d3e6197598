//! The node's resolver file.
//!
//! Owns its reading and the check of its size. It gets text and must not open files.

use super::dns::{MAX_SEARCH_LENGTH, MAX_SEARCH_LINE_LENGTH, MAX_SEARCHES};

/// The reason of the event for a [`ResolvConfWarning`].
pub const WARNING_REASON: &str = "CheckLimitsForResolvConf";
/// More than this is not read.
pub const MAX_LENGTH_BYTES: usize = 10 << 20;

/// Servers, search domains and options of a resolver file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvConf {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum ResolvConfError {
    #[error("line {line}: a nameserver line without an address")]
    NoAddress { line: usize },
    #[error("the file has {length} bytes, at most {MAX_LENGTH_BYTES} are read")]
    TooLong { length: usize },
}

/// A limit that the node's own file exceeds; pods still get what fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResolvConfWarning {
    Searches { count: usize, limit: usize },
    SearchLength { search: String },
    SearchLine { length: usize },
}

impl ResolvConfWarning {
    /// For the event, with the file that it is about.
    #[must_use]
    pub fn message(&self, file: &str) -> String {
        match self {
            Self::Searches { count, limit } => {
                format!("{file} has {count} search domains; pods on this node can use {limit} of them")
            }
            Self::SearchLength { search } => format!(
                "{file} has a search domain of {} characters; more than {MAX_SEARCH_LENGTH} are not used: {search}",
                search.len()
            ),
            Self::SearchLine { length } => format!(
                "the search line of {file} has {length} characters; pods get {MAX_SEARCH_LINE_LENGTH} at most"
            ),
        }
    }
}

impl ResolvConf {
    /// Servers add up; the last search line wins; of options with one name the last wins.
    pub fn parse(text: &str) -> Result<Self, ResolvConfError> {
        if text.len() > MAX_LENGTH_BYTES {
            return Err(ResolvConfError::TooLong { length: text.len() });
        }
        let mut file = Self::default();
        for (index, line) in text.split('\n').enumerate() {
            if line.trim().starts_with('#') {
                continue;
            }
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let address = words
                        .next()
                        .ok_or(ResolvConfError::NoAddress { line: index + 1 })?;
                    file.servers.push(address.to_owned());
                }
                Some("search") => {
                    let domains = words.filter(|word| *word != ".");
                    file.searches = domains
                        .map(|word| word.strip_suffix('.').unwrap_or(word).to_owned())
                        .collect();
                }
                Some("options") => words.for_each(|word| file.set_option(word)),
                Some(_) | None => {}
            }
        }
        Ok(file)
    }

    fn set_option(&mut self, option: &str) {
        let name = |text: &str| text.split(':').next().unwrap_or_default().to_owned();
        match self.options.iter_mut().find(|own| name(own) == name(option)) {
            Some(own) => option.clone_into(own),
            None => self.options.push(option.to_owned()),
        }
    }

    /// Whether the node's search list leaves room for the cluster's.
    pub fn warning(&self, has_cluster_domain: bool) -> Option<ResolvConfWarning> {
        let limit = if has_cluster_domain {
            MAX_SEARCHES - 3
        } else {
            MAX_SEARCHES
        };
        if self.searches.len() > limit {
            let count = self.searches.len();
            return Some(ResolvConfWarning::Searches { count, limit });
        }
        if let Some(search) = self
            .searches
            .iter()
            .find(|search| search.len() > MAX_SEARCH_LENGTH)
        {
            return Some(ResolvConfWarning::SearchLength {
                search: search.clone(),
            });
        }
        let length = self.searches.join(" ").len();
        (length > MAX_SEARCH_LINE_LENGTH).then_some(ResolvConfWarning::SearchLine { length })
    }
}
