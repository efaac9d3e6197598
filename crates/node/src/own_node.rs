//! The Node object as this process knows it.
//!
//! Owns the newest version, from the watch or from the answer to a call of our own. A version that is older than the known
//! one is ignored: a watch may lag behind an answer.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use rubelet_ports::api::Change;
use tokio::sync::watch;

pub(crate) struct OwnNode {
    object: watch::Sender<Option<Arc<Node>>>,
}

impl OwnNode {
    pub(crate) fn new() -> (Self, watch::Receiver<Option<Arc<Node>>>) {
        let (object, receiver) = watch::channel(None);
        (Self { object }, receiver)
    }

    pub(crate) fn current(&self) -> Option<Arc<Node>> {
        self.object.borrow().clone()
    }

    /// A version of the Node that was just read.
    pub(crate) fn learn(&self, node: Arc<Node>) {
        self.object.send_if_modified(|known| {
            let is_news = known.as_ref().is_none_or(|known| !is_older(&node, known));
            if is_news {
                *known = Some(node);
            }
            is_news
        });
    }

    /// A change from the watch.
    pub(crate) fn apply(&self, change: Change<Node>) {
        match change {
            // A list is the truth, also when the server's numbers have gone back.
            Change::All(nodes) => self.replace(nodes.into_iter().next()),
            Change::Applied(node) => self.learn(node),
            Change::Deleted(node) => {
                let is_known = |known: &Arc<Node>| known.metadata.uid == node.metadata.uid;
                if self.current().as_ref().is_some_and(is_known) {
                    self.replace(None);
                }
            }
            Change::Broken(_) | Change::Resumed => {}
        }
    }

    /// There is no such Node.
    pub(crate) fn forget(&self) {
        self.replace(None);
    }

    fn replace(&self, node: Option<Arc<Node>>) {
        self.object.send_if_modified(|known| {
            let is_news = *known != node;
            *known = node;
            is_news
        });
    }
}

/// Whether `node` is an earlier version of the same object. Versions that are no numbers cannot be compared.
fn is_older(node: &Node, known: &Node) -> bool {
    let version = |node: &Node| node.metadata.resource_version.as_deref()?.parse::<u64>().ok();
    let is_same = node.metadata.uid == known.metadata.uid;
    match (version(node), version(known)) {
        (Some(version), Some(known)) => is_same && version < known,
        (None, _) | (_, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(uid: &str, version: &str) -> Arc<Node> {
        let mut node = Node::default();
        node.metadata.uid = Some(uid.to_owned());
        node.metadata.resource_version = Some(version.to_owned());
        Arc::new(node)
    }

    #[test]
    fn older_versions_are_no_news() {
        let (own, mut object) = OwnNode::new();
        let mut check = |change: Change<Node>, is_news: bool, expected: Option<&str>| {
            own.apply(change);
            assert_eq!(object.has_changed().unwrap(), is_news);
            let known = object.borrow_and_update().clone();
            let version = known.and_then(|node| node.metadata.resource_version.clone());
            assert_eq!(version.as_deref(), expected);
        };
        check(Change::All(vec![]), false, None);
        check(Change::Applied(node("a", "5")), true, Some("5"));
        check(Change::Applied(node("a", "4")), false, Some("5"));
        check(Change::Applied(node("a", "10")), true, Some("10"));
        check(Change::Deleted(node("b", "11")), false, Some("10"));
        check(Change::Deleted(node("a", "11")), true, None);
        check(Change::Applied(node("b", "12")), true, Some("12"));
        check(Change::Applied(node("c", "3")), true, Some("3"));
        check(Change::All(vec![node("c", "2")]), true, Some("2"));
        check(Change::Applied(node("c", "odd")), true, Some("odd"));
    }
}
