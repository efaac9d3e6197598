//! From bytes to a tree: JSON where the first character is an opening brace, YAML otherwise.
//!
//! Owns syntax, size limits and the finding of duplicate keys. YAML becomes what it would be as JSON by the rules of the
//! YAML 1.1 reader that all Kubernetes components share (`yaml_scalar`). It knows no field names.

use std::collections::BTreeMap;
use std::fmt;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Tag};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

pub mod node;
mod yaml_scalar;
mod yaml_text;

pub use node::Node;
pub use yaml_text::yaml_text;

const MAX_NESTING: usize = 64;
/// How deep values may nest after aliases were unfolded. This is the limit of JSON, too: readers go down by recursion.
const MAX_UNFOLDED_NESTING: usize = 127;

/// How large a document may be; the reader of each kind sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub max_bytes: usize,
    /// Bounds what aliases can unfold to.
    pub max_nodes: usize,
}

/// A document that could be read.
#[derive(Clone, Debug)]
pub struct Document {
    pub root: Node,
    /// Paths of keys that stand twice in one object.
    pub duplicates: Vec<String>,
    /// Further YAML documents follow; they are not read.
    pub has_more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    #[error("the file is empty")]
    Empty,
    #[error("the file has {bytes} bytes, more than {limit}")]
    TooLarge { bytes: usize, limit: usize },
    #[error("the file is not UTF-8 text")]
    NotText,
    #[error("not valid JSON: {0}")]
    Json(String),
    #[error("not valid YAML: {problem}")]
    YamlText {
        problem: String,
        line: usize,
        column: usize,
    },
    #[error("not valid YAML: {0}")]
    Yaml(String),
    #[error("the document unfolds to more than {0} values")]
    TooManyNodes(usize),
    #[error("values are nested deeper than {0} levels")]
    TooDeep(usize),
}

pub fn read(bytes: &[u8], limits: Limits) -> Result<Document, SyntaxError> {
    if bytes.is_empty() {
        return Err(SyntaxError::Empty);
    }
    if bytes.len() > limits.max_bytes {
        return Err(SyntaxError::TooLarge {
            bytes: bytes.len(),
            limit: limits.max_bytes,
        });
    }
    let text = std::str::from_utf8(bytes).map_err(|_| SyntaxError::NotText)?;
    if text.trim_start().starts_with('{') {
        return read_json(text);
    }
    read_yaml(text, limits.max_nodes)
}

fn read_json(text: &str) -> Result<Document, SyntaxError> {
    let root: Node = serde_json::from_str(text).map_err(|error| SyntaxError::Json(error.to_string()))?;
    let mut duplicates = Vec::new();
    find_duplicates(&root, "", &mut duplicates);
    Ok(Document {
        root,
        duplicates,
        has_more: false,
    })
}

fn read_yaml(text: &str, max_nodes: usize) -> Result<Document, SyntaxError> {
    let options = granit_parser::options! {
        emit_comments: false,
        flow_nesting_limit: MAX_NESTING,
        block_nesting_limit: MAX_NESTING,
    };
    let text = text.trim_start_matches('\u{feff}');
    let parser = Parser::new_from_str_with_options(text, options);
    let unfinished_line_end = (!text.ends_with('\n')).then_some(text.len());
    let mut composer = Composer {
        parser,
        anchors: BTreeMap::new(),
        nodes: 0,
        max_nodes,
        nesting: 0,
        unfinished_line_end,
        at_unfinished_line: false,
    };
    let mut root = Node::Null;
    let mut has_more = false;
    while let Some(event) = composer.next() {
        match event? {
            Event::StreamStart | Event::DocumentStart(..) => {}
            Event::StreamEnd => break,
            Event::DocumentEnd => {
                // What comes after the first document is not read; not even its errors count.
                has_more = matches!(composer.next(), Some(Ok(Event::DocumentStart(..)) | Err(_)));
                break;
            }
            event => root = composer.compose(event)?,
        }
    }
    let mut duplicates = Vec::new();
    find_duplicates(&root, "", &mut duplicates);
    keep_last(&mut root);
    Ok(Document {
        root,
        duplicates,
        has_more,
    })
}

fn syntax_error(error: &ScanError) -> SyntaxError {
    SyntaxError::YamlText {
        problem: error.to_string(),
        line: error.marker().line(),
        column: error.marker().col() + 1,
    }
}

struct Composer<'input> {
    parser: Parser<'input, granit_parser::StrInput<'input>>,
    anchors: BTreeMap<usize, Node>,
    nodes: usize,
    max_nodes: usize,
    /// How many lists and objects are around the event at hand.
    nesting: usize,
    /// The end of the text where that is not a line break.
    unfinished_line_end: Option<usize>,
    /// Whether the event at hand ends there.
    at_unfinished_line: bool,
}

impl<'input> Composer<'input> {
    fn next(&mut self) -> Option<Result<Event<'input>, SyntaxError>> {
        match self.parser.next_event()? {
            Ok((event, span)) => {
                self.at_unfinished_line =
                    self.unfinished_line_end.is_some() && span.end.byte_offset() == self.unfinished_line_end;
                Some(Ok(event))
            }
            Err(error) => Some(Err(syntax_error(&error))),
        }
    }

    fn expect(&mut self) -> Result<Event<'input>, SyntaxError> {
        self.next()
            .unwrap_or_else(|| Err(SyntaxError::Yaml("the document ends too early".to_owned())))
    }

    fn count(&mut self, nodes: usize) -> Result<(), SyntaxError> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > self.max_nodes {
            Err(SyntaxError::TooManyNodes(self.max_nodes))
        } else {
            Ok(())
        }
    }

    fn compose(&mut self, event: Event<'input>) -> Result<Node, SyntaxError> {
        self.count(1)?;
        let (node, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
                // A block that the end of the file cuts off has no last line break.
                let text = if is_block && self.at_unfinished_line {
                    text.strip_suffix('\n').unwrap_or(&text)
                } else {
                    &text
                };
                (scalar(text, style, tag.as_deref())?, anchor)
            }
            Event::SequenceStart(_, anchor, _) => (self.compose_inside(Self::compose_list)?, anchor),
            Event::MappingStart(_, anchor, _) => (self.compose_inside(Self::compose_map)?, anchor),
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor).cloned() else {
                    return Err(SyntaxError::Yaml("an anchor contains itself".to_owned()));
                };
                self.count(size(&node))?;
                if self.nesting + depth(&node) > MAX_UNFOLDED_NESTING {
                    return Err(SyntaxError::TooDeep(MAX_UNFOLDED_NESTING));
                }
                (node, 0)
            }
            other => {
                return Err(SyntaxError::Yaml(format!(
                    "{} was not expected",
                    event_name(&other)
                )));
            }
        };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn compose_inside(
        &mut self,
        compose: fn(&mut Self) -> Result<Node, SyntaxError>,
    ) -> Result<Node, SyntaxError> {
        self.nesting += 1;
        let node = compose(self);
        self.nesting -= 1;
        node
    }

    fn compose_list(&mut self) -> Result<Node, SyntaxError> {
        let mut items = Vec::new();
        loop {
            match self.expect()? {
                Event::SequenceEnd => return Ok(Node::List(items)),
                event => items.push(self.compose(event)?),
            }
        }
    }

    fn compose_map(&mut self) -> Result<Node, SyntaxError> {
        let mut entries = Vec::new();
        loop {
            let event = match self.expect()? {
                Event::MappingEnd => return Ok(Node::Map(entries)),
                event => event,
            };
            let is_merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, _, None) if text == "<<");
            let key = self.compose(event)?;
            let event = self.expect()?;
            let value = self.compose(event)?;
            if is_merge {
                merge_into(&mut entries, value)?;
                continue;
            }
            let Some(key) = yaml_scalar::key(&key) else {
                return Err(SyntaxError::Yaml(format!("{} cannot be a key", key.kind())));
            };
            entries.push((key, value));
        }
    }
}

/// `<<: value` adds the entries of one object, or of a list of them in which earlier ones win.
fn merge_into(entries: &mut Vec<(String, Node)>, value: Node) -> Result<(), SyntaxError> {
    let refuse = || SyntaxError::Yaml("<< needs an object or a list of objects".to_owned());
    match value {
        Node::Map(merged) => entries.extend(merged),
        Node::List(items) => {
            for item in items.into_iter().rev() {
                let Node::Map(merged) = item else {
                    return Err(refuse());
                };
                entries.extend(merged);
            }
        }
        Node::Null | Node::Bool(_) | Node::Number(_) | Node::Text(_) => return Err(refuse()),
    }
    Ok(())
}

fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Node, SyntaxError> {
    let Some(tag) = tag else {
        return match style {
            ScalarStyle::Plain => yaml_scalar::resolve(text).map_err(SyntaxError::Yaml),
            ScalarStyle::SingleQuoted
            | ScalarStyle::DoubleQuoted
            | ScalarStyle::Literal
            | ScalarStyle::Folded => Ok(Node::Text(text.to_owned())),
        };
    };
    match tag.core_suffix() {
        None | Some("str") if !tag.suffix().ends_with("binary") => Ok(Node::Text(text.to_owned())),
        Some(kind) => {
            let node = yaml_scalar::resolve(text).map_err(SyntaxError::Yaml)?;
            let fits = match kind {
                "int" | "float" => matches!(node, Node::Number(_)),
                "bool" => matches!(node, Node::Bool(_)),
                "null" => node == Node::Null,
                _ => false,
            };
            if fits {
                Ok(node)
            } else {
                Err(SyntaxError::Yaml(format!("{node} is not of the type !!{kind}")))
            }
        }
        None => Err(SyntaxError::Yaml("binary values are not supported".to_owned())),
    }
}

fn event_name(event: &Event<'_>) -> &'static str {
    match event {
        Event::Alias(_) | Event::UnresolvedAlias(_) => "an alias",
        Event::MappingEnd | Event::SequenceEnd => "the end of a collection",
        Event::DocumentEnd | Event::StreamEnd => "the end of the document",
        _ => "this",
    }
}

fn size(node: &Node) -> usize {
    match node {
        Node::Null | Node::Bool(_) | Node::Number(_) | Node::Text(_) => 1,
        Node::List(items) => 1 + items.iter().map(size).sum::<usize>(),
        Node::Map(entries) => 1 + entries.iter().map(|(_, value)| size(value)).sum::<usize>(),
    }
}

fn depth(node: &Node) -> usize {
    match node {
        Node::Null | Node::Bool(_) | Node::Number(_) | Node::Text(_) => 0,
        Node::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Node::Map(entries) => 1 + entries.iter().map(|(_, value)| depth(value)).max().unwrap_or(0),
    }
}

fn find_duplicates(node: &Node, path: &str, found: &mut Vec<String>) {
    match node {
        Node::Null | Node::Bool(_) | Node::Number(_) | Node::Text(_) => {}
        Node::List(items) => {
            for (position, item) in items.iter().enumerate() {
                find_duplicates(item, &format!("{path}[{position}]"), found);
            }
        }
        Node::Map(entries) => {
            let mut seen = BTreeMap::new();
            for (key, value) in entries {
                let child = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                let times = seen.entry(key).or_insert(0_usize);
                *times += 1;
                if *times == 2 {
                    found.push(child.clone());
                }
                find_duplicates(value, &child, found);
            }
        }
    }
}

/// Of equal keys the last one stays.
fn keep_last(node: &mut Node) {
    match node {
        Node::Null | Node::Bool(_) | Node::Number(_) | Node::Text(_) => {}
        Node::List(items) => items.iter_mut().for_each(keep_last),
        Node::Map(entries) => {
            let mut last = BTreeMap::new();
            for (position, (key, _)) in entries.iter().enumerate() {
                last.insert(key.clone(), position);
            }
            let mut position = 0;
            entries.retain(|(key, _)| {
                let keep = last.get(key) == Some(&position);
                position += 1;
                keep
            });
            entries.iter_mut().for_each(|(_, value)| keep_last(value));
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Node, E> {
        Ok(Node::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Node, E> {
        Ok(Number::from_f64(number).map_or(Node::Null, Node::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Node::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        max_bytes: 1 << 20,
        max_nodes: 100_000,
    };

    /// As many lists around each other as `levels`, written with one alias per 60 of them.
    fn nested_by_aliases(levels: usize) -> String {
        let mut text = "a0: &a0 x\n".to_owned();
        for step in 1..=levels / 60 {
            let (open, close) = ("[".repeat(60), "]".repeat(60));
            text.push_str(&format!("a{step}: &a{step} {open}*a{}{close}\n", step - 1));
        }
        text
    }

    #[test]
    fn aliases_do_not_nest_deeper_than_text_may() {
        assert!(read(nested_by_aliases(60).as_bytes(), LIMITS).is_ok());
        let read = read(nested_by_aliases(600).as_bytes(), LIMITS);
        assert_eq!(read.map(|_| ()), Err(SyntaxError::TooDeep(MAX_UNFOLDED_NESTING)));
    }
}
