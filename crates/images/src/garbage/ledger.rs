//! The images on the node: when each was detected and last used, and which of them may be removed.
//!
//! Owns the choice: the order in which unused images are removed, and why the others stay. It is pure: it removes nothing.
//!
//! ```text
//! on the node ─► used? pinned? too young? ─► stays, and is named when space is short
//!                       │ no
//!                       └─► goes: the one that was unused longest first
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rubelet_ports::Moment;
use rubelet_wire::cri::v1;

/// What an image is known by: the runtime's id, and with the gate `RuntimeClassInImageCriApi` also the handler that it was pulled for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageKey {
    pub id: String,
    /// Empty where handlers do not count.
    pub runtime_handler: String,
}

impl ImageKey {
    #[must_use]
    pub fn new(id: &str, runtime_handler: &str) -> Self {
        Self {
            id: id.to_owned(),
            runtime_handler: runtime_handler.to_owned(),
        }
    }

    /// With the handler, if handlers count.
    pub(crate) fn counted(mut self, by_handler: bool) -> Self {
        if !by_handler {
            self.runtime_handler.clear();
        }
        self
    }
}

/// Which images are used, and by what, as text for users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holders(BTreeMap<ImageKey, BTreeSet<String>>);

impl Holders {
    pub(crate) fn add(&mut self, image: ImageKey, holder: impl Into<String>) {
        self.0.entry(image).or_default().insert(holder.into());
    }

    /// An image held by its id is held for every handler that it was pulled for.
    pub(crate) fn of(&self, image: &ImageKey) -> Option<&BTreeSet<String>> {
        let for_all = || self.0.get(&ImageKey::new(&image.id, ""));
        self.0.get(image).or_else(for_all)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    name: String,
    size_bytes: u64,
    is_pinned: bool,
    first_detected: Moment,
    last_used: Option<Moment>,
}

/// An image that may be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unused {
    pub(crate) image: ImageKey,
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    /// `None`: never, as long as this agent has looked.
    last_used: Option<Moment>,
    first_detected: Moment,
}

impl Unused {
    /// Unused for so long, as far as is known.
    fn unused_since(&self) -> Moment {
        self.last_used.unwrap_or(self.first_detected)
    }

    /// Whether it is unused for longer than `max_age`. Before the agent has run for so long that is not known.
    pub(crate) fn is_too_old(&self, max_age: Duration, started_at: Moment, now: Moment) -> bool {
        !max_age.is_zero() && now.since(started_at) > max_age && now.since(self.unused_since()) > max_age
    }

    pub(crate) fn is_too_young(&self, min_age: Duration, now: Moment) -> bool {
        now.since(self.first_detected) < min_age
    }
}

/// Why an image stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stays {
    InUse(Vec<String>),
    Pinned,
    TooYoung,
    /// It may go, and it could not be removed or need not.
    MayGo,
}

/// An image that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    pub(crate) why: Stays,
}

/// The images of the node, from look to look.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    images: BTreeMap<ImageKey, Known>,
}

impl Ledger {
    /// Takes in what the runtime lists; what it does not list is forgotten.
    pub(crate) fn detect(&mut self, listed: &[v1::Image], holders: &Holders, by_handler: bool, now: Moment) {
        let mut images = BTreeMap::new();
        for image in listed {
            let handler = image
                .spec
                .as_ref()
                .map_or("", |spec| spec.runtime_handler.as_str());
            let key = ImageKey::new(&image.id, handler).counted(by_handler);
            let earlier = self.images.get(&key);
            let is_used = holders.of(&key).is_some();
            let known = Known {
                name: name_of(image),
                size_bytes: image.size,
                is_pinned: image.pinned,
                first_detected: earlier.map_or(now, |earlier| earlier.first_detected),
                last_used: match is_used {
                    true => Some(now),
                    false => earlier.and_then(|earlier| earlier.last_used),
                },
            };
            images.insert(key, known);
        }
        self.images = images;
    }

    pub(crate) fn forget(&mut self, image: &ImageKey) {
        self.images.remove(image);
    }

    /// Images that are neither used nor pinned, the one that was unused longest first.
    pub(crate) fn unused(&self, holders: &Holders) -> Vec<Unused> {
        let unused = self
            .images
            .iter()
            // Without an id the runtime would not know what to remove.
            .filter(|(image, known)| !known.is_pinned && !image.id.is_empty() && holders.of(image).is_none());
        let mut unused: Vec<Unused> = unused
            .map(|(image, known)| Unused {
                image: image.clone(),
                name: known.name.clone(),
                size_bytes: known.size_bytes,
                last_used: known.last_used,
                first_detected: known.first_detected,
            })
            .collect();
        unused.sort_by_key(|one| (one.last_used, one.first_detected));
        unused
    }

    /// What is left, the largest first, each with why.
    pub(crate) fn left(&self, holders: &Holders, min_age: Duration, now: Moment) -> Vec<Left> {
        let mut left: Vec<Left> = self
            .images
            .iter()
            .map(|(image, known)| Left {
                name: known.name.clone(),
                size_bytes: known.size_bytes,
                why: match holders.of(image) {
                    Some(who) => Stays::InUse(who.iter().cloned().collect()),
                    None if known.is_pinned => Stays::Pinned,
                    None if now.since(known.first_detected) < min_age => Stays::TooYoung,
                    None => Stays::MayGo,
                },
            })
            .collect();
        left.sort_by(|one, other| (other.size_bytes, &one.name).cmp(&(one.size_bytes, &other.name)));
        left
    }
}

fn name_of(image: &v1::Image) -> String {
    let names = image.repo_tags.iter().chain(&image.repo_digests);
    names
        .chain([&image.id])
        .find(|name| !name.is_empty())
        .cloned()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_start(Duration::from_secs(seconds))
    }

    fn image(id: &str, size: u64) -> v1::Image {
        v1::Image {
            id: id.to_owned(),
            size,
            repo_tags: vec![format!("{id}:tag")],
            ..v1::Image::default()
        }
    }

    fn pinned(id: &str) -> v1::Image {
        v1::Image {
            pinned: true,
            ..image(id, 1)
        }
    }

    fn for_handler(id: &str, handler: &str) -> v1::Image {
        v1::Image {
            spec: Some(v1::ImageSpec {
                runtime_handler: handler.to_owned(),
                ..v1::ImageSpec::default()
            }),
            ..image(id, 1)
        }
    }

    fn holders(ids: &[&str]) -> Holders {
        let mut holders = Holders::default();
        for id in ids {
            holders.add(ImageKey::new(id, ""), format!("user of {id}"));
        }
        holders
    }

    fn ids(unused: &[Unused]) -> Vec<&str> {
        unused.iter().map(|one| one.image.id.as_str()).collect()
    }

    /// Looks at `(seconds, images, images in use)`, and who goes in which order after the last of them.
    fn check(looks: &[(u64, &[&str], &[&str])], expected: &[&str]) {
        let mut ledger = Ledger::default();
        let mut last = Holders::default();
        for (seconds, listed, used) in looks {
            let listed: Vec<v1::Image> = listed.iter().map(|id| image(id, 1)).collect();
            last = holders(used);
            ledger.detect(&listed, &last, false, at(*seconds));
        }
        assert_eq!(ids(&ledger.unused(&last)), expected, "{looks:?}");
    }

    #[test]
    fn the_one_unused_longest_goes_first() {
        // Never used comes before used; then by use, then by first sight, then by name.
        check(&[(0, &["b", "a"], &[])], &["a", "b"]);
        check(&[(0, &["b"], &[]), (1, &["a", "b"], &[])], &["b", "a"]);
        check(
            &[
                (0, &["a", "b", "c"], &["a"]),
                (1, &["a", "b", "c"], &["b"]),
                (2, &["a", "b", "c"], &[]),
            ],
            &["c", "a", "b"],
        );
        check(&[(0, &["a", "b"], &["a", "b"])], &[]);
        // Removed and pulled again, it is a new one.
        check(
            &[(0, &["a", "b"], &["a"]), (1, &["b"], &[]), (2, &["a", "b"], &[])],
            &["b", "a"],
        );
        check(&[(0, &[""], &[])], &[]);
    }

    #[test]
    fn pinned_images_stay() {
        let mut ledger = Ledger::default();
        ledger.detect(&[pinned("p"), image("a", 1)], &Holders::default(), false, at(0));
        assert_eq!(ids(&ledger.unused(&Holders::default())), ["a"]);
        // The runtime may change its mind.
        ledger.detect(&[image("p", 1), pinned("a")], &Holders::default(), false, at(1));
        assert_eq!(ids(&ledger.unused(&Holders::default())), ["p"]);
    }

    #[test]
    fn handlers_count_where_they_do() {
        let listed = [for_handler("a", "x"), for_handler("a", "y")];
        let mut used = Holders::default();
        used.add(ImageKey::new("a", "x"), "c");
        let mut ledger = Ledger::default();
        ledger.detect(&listed, &used, true, at(0));
        let unused = ledger.unused(&used);
        assert_eq!(unused.len(), 1);
        assert_eq!(unused[0].image, ImageKey::new("a", "y"));
        // A pod that wants it by name holds it for every handler.
        assert!(ledger.unused(&holders(&["a"])).is_empty());
        let mut ledger = Ledger::default();
        ledger.detect(&listed, &Holders::default(), false, at(0));
        assert_eq!(ids(&ledger.unused(&Holders::default())), ["a"]);
    }

    #[test]
    fn ages() {
        let unused = |last_used: Option<u64>, first_detected: u64| Unused {
            image: ImageKey::new("a", ""),
            name: String::new(),
            size_bytes: 0,
            last_used: last_used.map(at),
            first_detected: at(first_detected),
        };
        let seconds = Duration::from_secs;
        let old = |one: Unused, max: u64, started: u64, now: u64, expected: bool| {
            assert_eq!(
                one.is_too_old(seconds(max), at(started), at(now)),
                expected,
                "{one:?} at {now}"
            );
        };
        old(unused(None, 0), 10, 0, 10, false);
        old(unused(None, 0), 10, 0, 11, true);
        old(unused(None, 0), 0, 0, 1000, false);
        // Not before the agent has run for so long.
        old(unused(None, 0), 10, 5, 15, false);
        old(unused(Some(6), 0), 10, 0, 16, false);
        old(unused(Some(6), 0), 10, 0, 17, true);
        // One that came a moment ago was not unused for long.
        old(unused(None, 95), 10, 0, 100, false);
        assert!(unused(Some(0), 9).is_too_young(seconds(2), at(10)));
        assert!(!unused(Some(0), 8).is_too_young(seconds(2), at(10)));
        assert!(!unused(None, 10).is_too_young(seconds(0), at(10)));
    }

    #[test]
    fn what_is_left_says_why() {
        let mut ledger = Ledger::default();
        let used = holders(&["used"]);
        ledger.detect(&[image("used", 5), image("old", 7)], &used, false, at(0));
        let listed = [image("used", 5), pinned("p"), image("new", 9), image("old", 7)];
        ledger.detect(&listed, &used, false, at(100));
        let left = ledger.left(&used, Duration::from_secs(60), at(100));
        let told: Vec<(&str, &Stays)> = left.iter().map(|one| (one.name.as_str(), &one.why)).collect();
        assert_eq!(
            told,
            [
                ("new:tag", &Stays::TooYoung),
                ("old:tag", &Stays::MayGo),
                ("used:tag", &Stays::InUse(vec!["user of used".to_owned()])),
                ("p:tag", &Stays::Pinned),
            ]
        );
    }

    proptest! {
        /// Nothing that is used or pinned ever goes; everything else does, in the order of its last use.
        #[test]
        fn who_goes(looks in prop::collection::vec(
            prop::collection::vec((0_u8..6, any::<bool>(), any::<bool>()), 0..8), 1..6)) {
            let mut ledger = Ledger::default();
            let (mut used, mut fixed, mut all) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
            let mut last_use: BTreeMap<String, usize> = BTreeMap::new();
            let mut held = Holders::default();
            for (number, look) in looks.iter().enumerate() {
                let unique: BTreeMap<String, (bool, bool)> =
                    look.iter().map(|(id, used, pin)| (format!("i{id}"), (*used, *pin))).collect();
                let listed: Vec<v1::Image> = unique
                    .iter()
                    .map(|(id, (_, pin))| v1::Image { pinned: *pin, ..image(id, 1) })
                    .collect();
                let names = |pick: fn(&(bool, bool)) -> bool| -> BTreeSet<String> {
                    unique.iter().filter(|(_, flags)| pick(flags)).map(|(id, _)| id.clone()).collect()
                };
                (used, fixed, all) = (names(|flags| flags.0), names(|flags| flags.1), names(|_| true));
                last_use.retain(|id, _| all.contains(id));
                last_use.extend(used.iter().map(|id| (id.clone(), number)));
                let ids: Vec<&str> = used.iter().map(String::as_str).collect();
                held = holders(&ids);
                ledger.detect(&listed, &held, false, at(number as u64));
            }
            let unused = ledger.unused(&held);
            let gone: BTreeSet<String> = unused.iter().map(|one| one.image.id.clone()).collect();
            let expected: BTreeSet<String> =
                all.iter().filter(|id| !used.contains(*id) && !fixed.contains(*id)).cloned().collect();
            prop_assert_eq!(&gone, &expected);
            let order: Vec<Option<usize>> = unused.iter().map(|one| last_use.get(&one.image.id).copied()).collect();
            prop_assert!(order.is_sorted(), "{:?}", order);
        }
    }
}
