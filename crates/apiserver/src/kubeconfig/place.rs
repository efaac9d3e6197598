//! A value of a kubeconfig together with its place, for messages.
//!
//! Owns how values that do not fit are named: by their place and kind. It must not show a value, which may be a credential.

use rubelet_model::document::Node;

/// The field, spelled as in the file, and what is wrong with it.
pub(super) type Misfit = (String, String);

/// As in Go, `null` is the same as nothing.
pub(super) struct Place<'a> {
    node: &'a Node,
    field: String,
}

impl<'a> Place<'a> {
    pub(super) const fn root(node: &'a Node) -> Self {
        Self {
            node,
            field: String::new(),
        }
    }

    pub(super) fn is_absent(&self) -> bool {
        *self.node == Node::Null
    }

    pub(super) const fn node(&self) -> &'a Node {
        self.node
    }

    /// The value of a field; the value at hand must be an object.
    pub(super) fn get(&self, name: &str) -> Result<Self, Misfit> {
        let node = match self.node {
            Node::Null => None,
            Node::Map(entries) => entries.iter().find(|(key, _)| key == name),
            _ => return Err(self.unfit("an object")),
        };
        let field = if self.field.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.field)
        };
        Ok(Self {
            node: node.map_or(&Node::Null, |(_, node)| node),
            field,
        })
    }

    pub(super) fn text(&self) -> Result<Option<String>, Misfit> {
        match self.node {
            Node::Null => Ok(None),
            Node::Text(text) => Ok(Some(text.clone())),
            _ => Err(self.unfit("a string")),
        }
    }

    pub(super) fn flag(&self) -> Result<Option<bool>, Misfit> {
        match self.node {
            Node::Null => Ok(None),
            Node::Bool(flag) => Ok(Some(*flag)),
            _ => Err(self.unfit("a boolean")),
        }
    }

    /// Each item of a list, read by `read`.
    pub(super) fn items<T>(&self, read: fn(&Self) -> Result<T, Misfit>) -> Result<Vec<T>, Misfit> {
        let items = match self.node {
            Node::Null => &[][..],
            Node::List(items) => items,
            _ => return Err(self.unfit("a list")),
        };
        let places = items.iter().enumerate().map(|(position, node)| Self {
            node,
            field: format!("{}[{position}]", self.field),
        });
        places.map(|place| read(&place)).collect()
    }

    /// Each value of an object under its key, read by `read`.
    pub(super) fn entries<T>(
        &self,
        read: fn(&Self) -> Result<T, Misfit>,
    ) -> Result<Vec<(String, T)>, Misfit> {
        let entries = match self.node {
            Node::Null => &[][..],
            Node::Map(entries) => entries,
            _ => return Err(self.unfit("an object")),
        };
        let read_entry = |(key, node): &'a (String, Node)| {
            let place = Self {
                node,
                field: format!("{}.{key}", self.field),
            };
            read(&place).map(|value| (key.clone(), value))
        };
        entries.iter().map(read_entry).collect()
    }

    /// The items of a list that have a name, under it; messages name them by it, too.
    pub(super) fn named<T>(
        &self,
        value_field: &str,
        read: fn(&Self) -> Result<T, Misfit>,
    ) -> Result<Vec<Named<T>>, Misfit> {
        let items = match self.node {
            Node::Null => &[][..],
            Node::List(items) => items,
            _ => return Err(self.unfit("a list")),
        };
        let mut found = Vec::with_capacity(items.len());
        for (position, node) in items.iter().enumerate() {
            let by_position = Self {
                node,
                field: format!("{}[{position}]", self.field),
            };
            let name = by_position.get("name")?.text()?.unwrap_or_default();
            let by_name = Self {
                node,
                field: format!("{}[{name}]", self.field),
            };
            let value = by_name.get(value_field)?;
            let value = if value.is_absent() {
                None
            } else {
                Some(read(&value)?)
            };
            found.push(Named { name, value });
        }
        Ok(found)
    }

    pub(super) fn misfit(&self, problem: impl Into<String>) -> Misfit {
        (self.field.clone(), problem.into())
    }

    fn unfit(&self, needed: &str) -> Misfit {
        self.misfit(format!("is {} where {needed} is needed", self.node.kind()))
    }
}

pub(super) struct Named<T> {
    pub(super) name: String,
    pub(super) value: Option<T>,
}
