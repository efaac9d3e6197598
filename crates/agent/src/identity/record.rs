//! What is remembered of the UIDs of static pods over restarts.
//!
//! Owns the document and its version. Pure: the actor reads and writes the file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::sources::Source;

const VERSION: u32 = 1;
/// UIDs that are remembered beyond those of the newest sets: of older versions that may still run.
const KEPT: usize = 64;

/// A UID of another kubelet that a static pod keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Taken {
    uid: String,
    /// The value of `kubernetes.io/config.source`.
    source: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// UIDs under which rubelet runs static pods, the oldest first.
    own: Vec<String>,
    /// By the UID that the recipe makes of the manifest: another manifest is another key.
    taken: BTreeMap<String, Taken>,
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    own: Vec<String>,
    taken: BTreeMap<String, Taken>,
}

impl Record {
    pub(super) fn read(content: &[u8]) -> Result<Self, String> {
        let document: Document = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        if document.version != VERSION {
            return Err(format!("version {} is not known", document.version));
        }
        Ok(Self {
            own: document.own,
            taken: document.taken,
        })
    }

    pub(super) fn text(&self) -> String {
        let document = Document {
            version: VERSION,
            own: self.own.clone(),
            taken: self.taken.clone(),
        };
        // Texts and numbers always become JSON.
        serde_json::to_string(&document).unwrap_or_default()
    }

    /// The UID that a static pod has on this node.
    pub(super) fn identity<'a>(&'a self, recipe_uid: &'a str) -> &'a str {
        self.taken
            .get(recipe_uid)
            .map_or(recipe_uid, |taken| taken.uid.as_str())
    }

    /// Whether every static pod has the UID that the recipe makes.
    pub(super) fn is_plain(&self) -> bool {
        self.taken.is_empty()
    }

    /// Whether rubelet has run a static pod under this UID.
    pub(super) fn is_ours(&self, uid: &str) -> bool {
        self.own.iter().any(|own| own == uid) || self.taken.values().any(|taken| taken.uid == uid)
    }

    pub(super) fn take_over(&mut self, recipe_uid: &str, uid: &str, source: Source) {
        let taken = Taken {
            uid: uid.to_owned(),
            source: source.as_str().to_owned(),
        };
        self.taken.insert(recipe_uid.to_owned(), taken);
    }

    /// Forgets pods of the source whose manifests it has no longer. The answer is whether there were any.
    pub(super) fn retain(&mut self, source: Source, is_there: impl Fn(&str) -> bool) -> bool {
        let before = self.taken.len();
        self.taken
            .retain(|recipe_uid, taken| taken.source != source.as_str() || is_there(recipe_uid));
        self.taken.len() != before
    }

    /// Static pods run under these UIDs from now on; `is_current` and `current` are about all that do. The answer is whether anything of
    /// this is new.
    pub(super) fn note_own<'a>(
        &mut self,
        uids: impl Iterator<Item = &'a str>,
        is_current: impl Fn(&str) -> bool,
        current: usize,
    ) -> bool {
        let mut is_news = false;
        for uid in uids {
            if !self.own.iter().any(|own| own == uid) {
                self.own.push(uid.to_owned());
                is_news = true;
            }
        }
        let mut surplus = self.own.len().saturating_sub(current + KEPT);
        if surplus > 0 {
            is_news = true;
            self.own.retain(|uid| {
                let goes = surplus > 0 && !is_current(uid);
                surplus -= usize::from(goes);
                !goes
            });
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(record: &mut Record, current: &[&str]) -> bool {
        record.note_own(
            current.iter().copied(),
            |uid| current.contains(&uid),
            current.len(),
        )
    }

    #[test]
    fn a_record_survives_its_text() {
        let mut record = Record::default();
        assert!(note(&mut record, &["a", "b"]) && !note(&mut record, &["b"]));
        record.take_over("a", "upstream", Source::File);
        assert_eq!(Record::read(record.text().as_bytes()), Ok(record.clone()));
        assert_eq!((record.identity("a"), record.identity("b")), ("upstream", "b"));
        assert!(record.is_ours("b") && record.is_ours("upstream") && !record.is_ours("c"));
        assert!(Record::read(b"{").is_err());
        let newer = record.text().replace("\"version\":1", "\"version\":2");
        assert_eq!(
            Record::read(newer.as_bytes()),
            Err("version 2 is not known".to_owned())
        );
    }

    #[test]
    fn an_identity_goes_with_its_manifest() {
        let mut record = Record::default();
        record.take_over("a", "upstream", Source::File);
        assert!(!record.retain(Source::Http, |_| false));
        assert_eq!(record.identity("a"), "upstream");
        assert!(record.retain(Source::File, |uid| uid == "b"));
        assert_eq!(record.identity("a"), "a");
    }

    #[test]
    fn uids_are_remembered_up_to_a_bound() {
        let mut record = Record::default();
        note(&mut record, &["current"]);
        for number in 0..1000 {
            note(&mut record, &["current", &format!("uid-{number:04}")]);
        }
        assert!(record.is_ours("current") && record.is_ours("uid-0999") && record.is_ours("uid-0960"));
        assert!(!record.is_ours("uid-0900"));
        assert_eq!(record.own.len(), 2 + KEPT);
    }
}
