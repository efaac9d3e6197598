//! The identity of a static pod whose manifest gives none: a frozen recipe, so that an upgrade never restarts a pod.
//!
//! Recipe v1: SHA-256 over the tag and then, each with its length in bytes before it (8 bytes, big-endian), the parts that
//! name the origin and the canonical text of the manifest; the first 16 bytes in hexadecimal. The parts are `file`, the node
//! name and the path, or `url` and the URL. The canonical text is the document as JSON without white space, keys sorted by
//! bytes, of equal keys the last, no nulls in objects, before any default. A changed recipe is a new version next to this one.

use std::collections::BTreeMap;
use std::fmt::Write;

use rubelet_model::document::Node;
use sha2::{Digest, Sha256};

use crate::static_pod::Origin;

const TAG: &[u8] = b"rubelet static pod uid v1\n";
const UID_BYTES: usize = 16;

/// The UID of the pod with this canonical text from this origin.
pub fn static_pod_uid(canonical: &str, origin: &Origin<'_>, node_name: &str) -> String {
    let parts = match origin {
        Origin::File { path } => vec!["file", node_name, path, canonical],
        Origin::Url { url } => vec!["url", url, canonical],
    };
    let mut digest = Sha256::new();
    digest.update(TAG);
    for part in parts {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part.as_bytes());
    }
    digest
        .finalize()
        .iter()
        .take(UID_BYTES)
        .fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Whether the UID looks like one of the recipe. A manifest may give any other.
#[must_use]
pub fn is_recipe_uid(uid: &str) -> bool {
    uid.len() == 2 * UID_BYTES && uid.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The document's canonical text; see the recipe.
pub(crate) fn canonical_text(node: &Node) -> String {
    let mut text = String::new();
    write_canonical(node, &mut text);
    text
}

fn write_canonical(node: &Node, out: &mut String) {
    match node {
        Node::Null => out.push_str("null"),
        Node::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Node::Number(number) => out.push_str(&number.to_string()),
        Node::Text(text) => write_text(text, out),
        Node::List(items) => {
            out.push('[');
            for (position, item) in items.iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        Node::Map(entries) => {
            let sorted: BTreeMap<&str, &Node> =
                entries.iter().map(|(key, value)| (key.as_str(), value)).collect();
            out.push('{');
            let given = sorted.into_iter().filter(|(_, value)| **value != Node::Null);
            for (position, (key, value)) in given.enumerate() {
                if position > 0 {
                    out.push(',');
                }
                write_text(key, out);
                out.push(':');
                write_canonical(value, out);
            }
            out.push('}');
        }
    }
}

/// Escapes what JSON must escape and nothing else.
fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            control if control < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::decode;

    const MANIFEST: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {b: \"1\", a: x}}\nspec:\n  containers:\n  - name: c\n    image: \"i:1\"\n    args: [\"a\\tb\", 'é\"']\n    tty: ~\n";

    /// The values below are frozen: a change restarts every static pod of every node that upgrades.
    #[test]
    fn the_recipe_never_changes() {
        let canonical = decode(MANIFEST.as_bytes()).unwrap().canonical;
        assert_eq!(
            canonical,
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"a":"x","b":"1"},"name":"web"},"spec":{"containers":[{"args":["a\u0009b","é\""],"image":"i:1","name":"c"}]}}"#
        );
        let file = Origin::File {
            path: "/etc/kubernetes/manifests/web.yaml",
        };
        let url = Origin::Url {
            url: "http://10.0.0.1/pods",
        };
        assert_eq!(
            static_pod_uid(&canonical, &file, "Node-1"),
            "eef29726dfa4dff27b49a7ce3ac58be3"
        );
        assert_eq!(
            static_pod_uid(&canonical, &url, "Node-1"),
            "1f4049b9f020333fcedf3c4398535a43"
        );
        assert!(is_recipe_uid("1f4049b9f020333fcedf3c4398535a43"));
        assert!(!is_recipe_uid("1f4049b9-f020-333f-cedf-3c4398535a43"));
    }

    #[test]
    fn spelling_does_not_matter_and_everything_else_does() {
        let uid = |text: &str, path: &str, node: &str| {
            static_pod_uid(
                &decode(text.as_bytes()).unwrap().canonical,
                &Origin::File { path },
                node,
            )
        };
        let json = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","labels":{"a":"x","b":"1"}},"spec":{"containers":[{"image":"i:1","name":"c","args":["a\tb","é\""]}]}}"#;
        let reference = uid(MANIFEST, "/p", "n");
        assert_eq!(uid(json, "/p", "n"), reference);
        assert_ne!(uid(MANIFEST, "/q", "n"), reference);
        assert_ne!(uid(MANIFEST, "/p", "m"), reference);
        assert_ne!(uid(&MANIFEST.replace("i:1", "i:2"), "/p", "n"), reference);
    }
}
