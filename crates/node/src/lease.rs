//! The node's lease: the heartbeat that shows the cluster that the node is alive.
//!
//! Owns one Lease object and when it is renewed: every quarter of its duration. It is made only once the Node is known, because
//! it goes with the Node.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use k8s_openapi::jiff;
use rubelet_model::Timestamp;
use rubelet_ports::api::{ApiError, ApiErrorKind};
use tokio::sync::watch;

use crate::heartbeat::{Heartbeat, TRIES};
use crate::registration::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::settings::{NodePorts, NodeSettings};
use rubelet_ports::LogThrottle;

const NAMESPACE: &str = "kube-node-lease";
/// A lease is renewed this often in its duration.
const RENEWALS: u32 = 4;
const JITTER_DIVISOR: u32 = 25;

pub(crate) struct LeaseTask {
    ports: NodePorts,
    heartbeat: Heartbeat,
    node_name: String,
    duration_seconds: i32,
    object: watch::Receiver<Option<Arc<Node>>>,
    /// As the last answer had it: this task alone writes it, so that it need not be read.
    latest: Option<Lease>,
    throttle: LogThrottle,
}

impl LeaseTask {
    pub(crate) fn new(
        ports: NodePorts,
        settings: &NodeSettings,
        object: watch::Receiver<Option<Arc<Node>>>,
    ) -> Self {
        Self {
            heartbeat: Heartbeat::new(&ports, settings),
            ports,
            node_name: settings.node_name.clone(),
            duration_seconds: settings.reporting.lease_duration_seconds,
            object,
            latest: None,
            throttle: LogThrottle::default(),
        }
    }

    pub(crate) async fn run(mut self) {
        let seconds = u64::try_from(self.duration_seconds).unwrap_or_default();
        let interval = Duration::from_secs(seconds.max(1)) / RENEWALS;
        loop {
            self.renew().await;
            let jitter = self.ports.randomness.part_of(interval / JITTER_DIVISOR);
            self.ports.clock.sleep(interval + jitter).await;
        }
    }

    async fn renew(&mut self) {
        if let Some(latest) = self.latest.take()
            && self.update(latest).await.is_ok()
        {
            return self.well();
        }
        let (lease, is_new) = self.ensure().await;
        if is_new {
            self.latest = Some(lease);
            return self.well();
        }
        match self.update(lease).await {
            Ok(()) => self.well(),
            Err(error) => self.complain(&error),
        }
    }

    /// Writes the lease anew from this version of it, which may turn out to be old.
    async fn update(&mut self, mut base: Lease) -> Result<(), ApiError> {
        let mut attempt = 0;
        loop {
            let wanted = self.renewed(base.clone());
            let keeper = Arc::clone(&self.ports.lease_keeper);
            let call = keeper.replace_lease(&wanted);
            let error = match self.heartbeat.call("replace the lease of the node", call).await {
                Ok(lease) => {
                    self.latest = Some(lease);
                    return Ok(());
                }
                Err(error) => error,
            };
            attempt += 1;
            if attempt == TRIES || error.kind == ApiErrorKind::NotFound {
                return Err(error);
            }
            if error.kind == ApiErrorKind::Conflict {
                let (lease, _) = self.ensure().await;
                base = lease;
            } else {
                self.heartbeat.failed(attempt - 1, &error).await;
            }
        }
    }

    /// The lease as the server has it, made where it is missing; tries until that works.
    async fn ensure(&mut self) -> (Lease, bool) {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.try_ensure().await {
                Ok(found) => return found,
                Err(error) => {
                    self.complain(&error);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    self.ports.clock.sleep(error.pause(pause)).await;
                }
            }
        }
    }

    async fn try_ensure(&mut self) -> Result<(Lease, bool), ApiError> {
        let keeper = Arc::clone(&self.ports.lease_keeper);
        let get = keeper.lease(&self.node_name);
        match self.heartbeat.call("get the lease of the node", get).await {
            Ok(lease) => return Ok((lease, false)),
            Err(error) if error.kind == ApiErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // There is no deadline: without a Node there is nothing to keep alive.
        if self.object.wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
        let wanted = self.renewed(Lease {
            metadata: ObjectMeta {
                name: Some(self.node_name.clone()),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.node_name.clone()),
                ..LeaseSpec::default()
            }),
        });
        let create = keeper.create_lease(&wanted);
        let lease = self
            .heartbeat
            .call("create the lease of the node", create)
            .await?;
        Ok((lease, true))
    }

    fn renewed(&self, mut lease: Lease) -> Lease {
        let spec = lease.spec.get_or_insert_default();
        spec.lease_duration_seconds = Some(self.duration_seconds);
        spec.renew_time = Some(micro_time(self.ports.clock.now()));
        if let Some(owner) = self.owner() {
            lease.metadata.owner_references = Some(vec![owner]);
        }
        lease
    }

    /// The Node of today: one that was deleted and made anew would take the lease with it.
    fn owner(&self) -> Option<OwnerReference> {
        let node = self.object.borrow();
        let uid = node.as_ref()?.metadata.uid.clone()?;
        Some(OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node_name.clone(),
            uid,
            ..OwnerReference::default()
        })
    }

    fn well(&mut self) {
        if self.throttle.end() {
            tracing::info!("The node's lease is renewed again");
        }
    }

    fn complain(&mut self, error: &ApiError) {
        if self
            .throttle
            .is_due(&error.to_string(), self.ports.clock.moment())
        {
            tracing::warn!(node = self.node_name, %error, "The node's lease cannot be renewed; it is tried again");
        }
    }
}

fn micro_time(at: Timestamp) -> MicroTime {
    let time = jiff::Timestamp::from_nanosecond(i128::from(at.unix_nanos()));
    MicroTime(time.unwrap_or(jiff::Timestamp::UNIX_EPOCH))
}
