//! An API server with one Node and one Lease, which can fail.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use rubelet_ports::api::{ApiError, ApiErrorKind, Change, Changes, LeaseKeeper, NodeReader, NodeWriter};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::patch::apply;

#[derive(Clone)]
pub(crate) struct Api {
    start: Instant,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    node: Option<Value>,
    lease: Option<Lease>,
    version: u64,
    followers: Vec<mpsc::UnboundedSender<Change<Node>>>,
    /// When, in milliseconds since the start, and what.
    calls: Vec<(u128, &'static str)>,
    patches: Vec<Value>,
    /// Every state of `Ready` that the Node ever had.
    history: Vec<String>,
    /// How calls fail, and how often still.
    faults: BTreeMap<&'static str, (ApiErrorKind, usize)>,
    hanging: Option<&'static str>,
    /// A field of the status that this server does not know.
    unknown_field: Option<&'static str>,
}

pub(crate) const CALLS: [&str; 6] = [
    "create",
    "get",
    "patch",
    "lease get",
    "lease create",
    "lease replace",
];

impl Api {
    pub(crate) fn new(start: Instant) -> Self {
        Self {
            start,
            state: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn called(&self, what: &'static str) -> Result<MutexGuard<'_, State>, ApiError> {
        let at = self.start.elapsed().as_millis();
        let mut state = self.lock();
        state.calls.push((at, what));
        let kind = match state.faults.get_mut(what) {
            Some((kind, left)) if *left > 0 => {
                *left -= 1;
                Some(*kind)
            }
            Some(_) | None => None,
        };
        match kind {
            Some(kind) => Err(ApiError::new(what, kind, "no")),
            None => Ok(state),
        }
    }

    /// The next calls of this kind fail.
    pub(crate) fn fail(&self, what: &'static str, kind: ApiErrorKind, times: usize) {
        self.lock().faults.insert(what, (kind, times));
    }

    pub(crate) fn go_down(&self) {
        for call in CALLS {
            self.fail(call, ApiErrorKind::Unreachable, usize::MAX);
        }
    }

    /// Calls of this kind get no answer.
    pub(crate) fn hang(&self, what: &'static str) {
        self.lock().hanging = Some(what);
    }

    /// The server is older than this field of the status.
    pub(crate) fn does_not_know(&self, field: &'static str) {
        self.lock().unknown_field = Some(field);
    }

    pub(crate) fn come_back(&self) {
        let mut state = self.lock();
        state.faults.clear();
        state.hanging = None;
    }

    /// Another client writes the Node.
    pub(crate) fn put_node(&self, node: Value) {
        self.lock().put(node);
    }

    pub(crate) fn edit_node(&self, patch: &Value) {
        let mut state = self.lock();
        let mut node = state.node.clone().unwrap();
        apply(&mut node, patch);
        state.put(node);
    }

    pub(crate) fn delete_node(&self) {
        let mut state = self.lock();
        let node = state.node.take().unwrap();
        let node = serde_json::from_value(node).unwrap();
        state.tell(&Change::Deleted(Arc::new(node)));
    }

    pub(crate) fn node_value(&self) -> Option<Value> {
        self.lock().node.clone()
    }

    pub(crate) fn lease_object(&self) -> Option<Lease> {
        self.lock().lease.clone()
    }

    pub(crate) fn delete_lease(&self) {
        self.lock().lease = None;
    }

    /// Another client writes the lease.
    pub(crate) fn touch_lease(&self) {
        let mut state = self.lock();
        state.version += 1;
        let version = state.version.to_string();
        state.lease.as_mut().unwrap().metadata.resource_version = Some(version);
    }

    pub(crate) fn calls(&self) -> Vec<(u128, &'static str)> {
        self.lock().calls.clone()
    }

    /// When this was called.
    pub(crate) fn times(&self, what: &str) -> Vec<u128> {
        let calls = self.calls();
        let calls = calls.into_iter().filter(|(_, call)| *call == what);
        calls.map(|(at, _)| at).collect()
    }

    pub(crate) fn patches(&self) -> Vec<Value> {
        self.lock().patches.clone()
    }

    pub(crate) fn history(&self) -> Vec<String> {
        self.lock().history.clone()
    }
}

impl State {
    fn put(&mut self, mut node: Value) -> Node {
        self.version += 1;
        node["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if node["metadata"]["uid"].is_null() {
            node["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        }
        if let (Some(field), Some(status)) = (self.unknown_field, node["status"].as_object_mut()) {
            status.remove(field);
        }
        self.history.push(super::ready(&node).to_owned());
        self.history.dedup();
        self.node = Some(node.clone());
        let node: Node = serde_json::from_value(node).unwrap();
        self.tell(&Change::Applied(Arc::new(node.clone())));
        node
    }

    fn tell(&mut self, change: &Change<Node>) {
        self.followers
            .retain(|follower| follower.send(change.clone()).is_ok());
    }

    fn node(&self) -> Result<Node, ApiError> {
        let missing = || ApiError::new("get", ApiErrorKind::NotFound, "no such node");
        let node = self.node.clone().ok_or_else(missing)?;
        Ok(serde_json::from_value(node).unwrap())
    }

    fn put_lease(&mut self, lease: &Lease) -> Lease {
        self.version += 1;
        let mut lease = lease.clone();
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(lease.clone());
        lease
    }
}

#[async_trait]
impl NodeReader for Api {
    fn follow_node(&self, name: &str) -> Changes<Node> {
        assert_eq!(name, "n1");
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.lock();
        let all = state.node().ok().map(Arc::new).into_iter().collect();
        state.followers.push(sender);
        let rest = stream::unfold(receiver, async |mut receiver| {
            Some((receiver.recv().await?, receiver))
        });
        // A stream of changes never ends by itself.
        stream::iter([Change::All(all)])
            .chain(rest)
            .chain(stream::pending())
            .boxed()
    }

    async fn node(&self, _: &str) -> Result<Node, ApiError> {
        self.called("get")?.node()
    }
}

#[async_trait]
impl NodeWriter for Api {
    async fn create_node(&self, node: &Node) -> Result<Node, ApiError> {
        let mut state = self.called("create")?;
        if state.node.is_some() {
            return Err(ApiError::new("create", ApiErrorKind::AlreadyExists, "exists"));
        }
        Ok(state.put(serde_json::to_value(node).unwrap()))
    }

    async fn patch_node(&self, _: &str, _: Value) -> Result<Node, ApiError> {
        panic!("nothing but the status is patched")
    }

    async fn patch_node_status(&self, _: &str, patch: Value) -> Result<Node, ApiError> {
        if self.lock().hanging == Some("patch") {
            std::future::pending::<()>().await;
        }
        let mut state = self.called("patch")?;
        state.node()?;
        let mut node = state.node.clone().unwrap();
        assert!(patch.get("spec").is_none(), "{patch}");
        apply(&mut node, &patch);
        state.patches.push(patch);
        Ok(state.put(node))
    }

    fn reconnect(&self) {
        let at = self.start.elapsed().as_millis();
        self.lock().calls.push((at, "reconnect"));
    }
}

#[async_trait]
impl LeaseKeeper for Api {
    async fn lease(&self, name: &str) -> Result<Lease, ApiError> {
        assert_eq!(name, "n1");
        let state = self.called("lease get")?;
        let missing = || ApiError::new("get", ApiErrorKind::NotFound, "no such lease");
        state.lease.clone().ok_or_else(missing)
    }

    async fn create_lease(&self, lease: &Lease) -> Result<Lease, ApiError> {
        let mut state = self.called("lease create")?;
        assert!(state.lease.is_none(), "there is a lease already");
        Ok(state.put_lease(lease))
    }

    async fn replace_lease(&self, lease: &Lease) -> Result<Lease, ApiError> {
        let mut state = self.called("lease replace")?;
        let Some(known) = &state.lease else {
            return Err(ApiError::new("replace", ApiErrorKind::NotFound, "no such lease"));
        };
        if known.metadata.resource_version != lease.metadata.resource_version {
            return Err(ApiError::new("replace", ApiErrorKind::Conflict, "changed"));
        }
        Ok(state.put_lease(lease))
    }
}
