//! The labels of a row, as text.
//!
//! Owns their order: by name, as upstream's library writes them, and the labels that some families add have their places among them. What
//! is the same in all families is made once for each row.

use std::ops::Range;

use crate::exposition::push_escaped;

/// Labels between which others may stand: before `id`, before `name`, before `pod`, and behind.
const PARTS: usize = 4;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Labels {
    text: String,
    /// Where each part ends, and the name with which the next one begins.
    ends: Vec<(usize, &'static str)>,
}

impl Labels {
    /// Parts in the order of their names, each of labels with nothing between them.
    pub(crate) fn new(parts: &[&[(&'static str, &str)]]) -> Self {
        debug_assert!(parts.len() <= PARTS);
        let mut labels = Self::default();
        for (at, part) in parts.iter().enumerate() {
            for (name, value) in *part {
                push_label(&mut labels.text, name, value);
            }
            let next = parts.get(at + 1).and_then(|next| next.first());
            labels
                .ends
                .push((labels.text.len(), next.map_or("", |(name, _)| name)));
        }
        labels
    }

    /// With further labels, which are in the order of their names.
    pub(crate) fn push(&self, page: &mut String, mut further: &[(&str, &str)]) {
        if self.text.is_empty() && further.is_empty() {
            return;
        }
        page.push('{');
        let mut begin = 0;
        for (end, next) in &self.ends {
            page.push_str(part(&self.text, begin..*end));
            begin = *end;
            let fit = further
                .iter()
                .take_while(|(name, _)| next.is_empty() || name < next);
            let (now, later) = further.split_at(fit.count());
            for (name, value) in now {
                push_label(page, name, value);
            }
            further = later;
        }
        for (name, value) in further {
            push_label(page, name, value);
        }
        // The last comma.
        page.pop();
        page.push('}');
    }
}

fn part(text: &str, range: Range<usize>) -> &str {
    text.get(range).unwrap_or_default()
}

fn push_label(text: &mut String, name: &str, value: &str) {
    text.push_str(name);
    text.push_str("=\"");
    push_escaped(text, value, true);
    text.push_str("\",");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_in_the_order_of_their_names() {
        let labels = Labels::new(&[
            &[("container", "main")],
            &[("id", "/a"), ("image", "i")],
            &[("name", "n"), ("namespace", "default")],
            &[("pod", "we\"b")],
        ]);
        let check = |further: &[(&str, &str)], expected: &str| {
            let mut text = String::new();
            labels.push(&mut text, further);
            assert_eq!(text, expected, "{further:?}");
        };
        check(
            &[],
            r#"{container="main",id="/a",image="i",name="n",namespace="default",pod="we\"b"}"#,
        );
        check(
            &[
                ("device", "d"),
                ("major", "8"),
                ("minor", "0"),
                ("operation", "Read"),
            ],
            r#"{container="main",device="d",id="/a",image="i",major="8",minor="0",name="n",namespace="default",operation="Read",pod="we\"b"}"#,
        );
        check(
            &[("failure_type", "pgfault"), ("scope", "container")],
            r#"{container="main",failure_type="pgfault",id="/a",image="i",name="n",namespace="default",pod="we\"b",scope="container"}"#,
        );
        let mut text = String::new();
        Labels::default().push(&mut text, &[]);
        Labels::default().push(&mut text, &[("a", "b")]);
        assert_eq!(text, r#"{a="b"}"#);
    }
}
