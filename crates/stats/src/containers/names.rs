//! What images are called on the page.
//!
//! Owns the choice among an image's names: the first tag that the runtime has of it, as containerd itself refers to it. Sandboxes are made
//! from the image that the runtime keeps for itself, which the runtime's lists do not name.

use std::collections::{BTreeMap, BTreeSet};

use rubelet_wire::cri::v1;
use serde::Deserialize;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ImageNames {
    by_reference: BTreeMap<String, String>,
    sandbox: String,
}

impl ImageNames {
    pub(super) fn of_list(images: Vec<v1::Image>) -> Self {
        let mut names = Self::default();
        let pinned: Vec<String> = images
            .iter()
            .filter(|image| image.pinned)
            .filter_map(name)
            .collect();
        if let [only] = pinned.as_slice() {
            names.sandbox.clone_from(only);
        }
        for image in images {
            let Some(name) = name(&image) else {
                continue;
            };
            let references = image.repo_tags.into_iter().chain(image.repo_digests);
            for reference in references.chain([image.id]) {
                names.by_reference.insert(reference, name.clone());
            }
        }
        names
    }

    /// From a sandbox's own description, where no list names its image.
    pub(super) fn with_sandbox(self, info: &BTreeMap<String, String>) -> Self {
        #[derive(Deserialize)]
        struct Described {
            #[serde(default)]
            image: String,
        }
        let described = info
            .get("info")
            .and_then(|text| serde_json::from_str::<Described>(text).ok());
        Self {
            sandbox: described.map(|described| described.image).unwrap_or_default(),
            ..self
        }
    }

    /// Whether the image of sandboxes and all of these are known.
    pub(super) fn know(&self, images: &BTreeSet<&str>) -> bool {
        self.knows_sandboxes() && images.iter().all(|image| self.by_reference.contains_key(*image))
    }

    pub(super) fn knows_sandboxes(&self) -> bool {
        !self.sandbox.is_empty()
    }

    /// The name of an image; an unknown one is called as the runtime refers to it.
    pub(super) fn of<'a>(&'a self, image: &'a str) -> &'a str {
        self.by_reference.get(image).map_or(image, String::as_str)
    }

    pub(super) fn of_sandboxes(&self) -> &str {
        &self.sandbox
    }
}

fn name(image: &v1::Image) -> Option<String> {
    let mut names = image.repo_tags.iter().chain(&image.repo_digests);
    names.next().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, tags: &[&str], digests: &[&str], pinned: bool) -> v1::Image {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        v1::Image {
            id: id.to_owned(),
            repo_tags: texts(tags),
            repo_digests: texts(digests),
            pinned,
            ..v1::Image::default()
        }
    }

    #[test]
    fn an_image_is_called_by_its_first_tag() {
        let names = ImageNames::of_list(vec![
            image("sha256:1", &["a:1", "a:2"], &["a@sha256:9"], false),
            image("sha256:2", &[], &["b@sha256:8"], false),
            image("sha256:3", &[], &[], false),
            image("sha256:4", &["pause:3"], &[], true),
        ]);
        let found = ["sha256:1", "a@sha256:9", "sha256:2", "sha256:3", "other"].map(|image| names.of(image));
        assert_eq!(found, ["a:1", "a:1", "b@sha256:8", "sha256:3", "other"]);
        assert_eq!(names.of_sandboxes(), "pause:3");
        assert!(names.know(&BTreeSet::from(["sha256:1"])));
        assert!(!names.know(&BTreeSet::from(["sha256:1", "other"])));
    }

    #[test]
    fn a_sandbox_describes_its_image_where_several_are_kept() {
        let several = vec![image("1", &["a"], &[], true), image("2", &["b"], &[], true)];
        let names = ImageNames::of_list(several);
        assert!(!names.knows_sandboxes());
        let info = BTreeMap::from([("info".to_owned(), r#"{"pid": 7, "image": "pause:3"}"#.to_owned())]);
        assert_eq!(names.clone().with_sandbox(&info).of_sandboxes(), "pause:3");
        assert_eq!(names.with_sandbox(&BTreeMap::new()).of_sandboxes(), "");
    }
}
