//! Services, as far as containers get variables for them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_ports::ObjectFailure;
use rubelet_ports::api::{Changes, ObjectReader};

use crate::pods::{Pods, namespace_of};
use crate::table::Key;
use crate::whole_set::{NotListed, Owner, WholeSet};

/// How long a container waits for the first list.
const FIRST_LIST_LIMIT: Duration = Duration::from_secs(5);
const DEFAULT_NAMESPACE: &str = "default";
const API_SERVICE: &str = "kubernetes";

pub(crate) struct Services {
    pub(crate) reader: Arc<dyn ObjectReader>,
    pub(crate) pods: Arc<Pods>,
    /// Namespaces whose pods were refused because nothing was known yet.
    pub(crate) refused: Mutex<BTreeSet<String>>,
}

impl Services {
    fn refused(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owner for Services {
    type Object = Service;
    const WORD: &'static str = "services";

    fn follow(&self) -> Changes<Service> {
        self.reader.follow_services()
    }

    /// Only what variables are made from: a cluster may have very many services.
    fn keep(&self, service: Arc<Service>) -> Option<Arc<Service>> {
        let spec = service.spec.as_ref()?;
        let address = spec.cluster_ip.as_ref()?;
        if address.is_empty() || address == "None" {
            return None;
        }
        let kept = Service {
            metadata: ObjectMeta {
                name: service.metadata.name.clone(),
                namespace: service.metadata.namespace.clone(),
                ..ObjectMeta::default()
            },
            spec: Some(ServiceSpec {
                cluster_ip: spec.cluster_ip.clone(),
                ports: spec.ports.clone(),
                ..ServiceSpec::default()
            }),
            status: None,
        };
        Some(Arc::new(kept))
    }

    /// A container's variables are what they were when it started.
    fn on_change(&self, _: &[Arc<Service>]) {}

    fn on_first_list(&self) {
        let refused = std::mem::take(&mut *self.refused());
        self.pods
            .resync_where(|registered| refused.contains(namespace_of(&registered.pod)));
    }
}

/// The services of the namespace, and the API server's.
pub(crate) async fn services_of(
    set: &Arc<WholeSet<Services>>,
    namespace: &str,
) -> Result<Vec<Arc<Service>>, ObjectFailure> {
    if let Err(NotListed(error)) = set.listed(FIRST_LIST_LIMIT).await {
        set.owner.refused().insert(namespace.to_owned());
        let message = "services have not yet been read at least once, cannot construct envvars";
        return Err(ObjectFailure::Unavailable(match error {
            Some(error) => format!("{message}: {error}"),
            None => message.to_owned(),
        }));
    }
    Ok(set.with(|members| {
        let own = members
            .range(Key::new(namespace, "")..)
            .take_while(|(key, _)| key.namespace == namespace)
            .map(|(_, service)| service);
        let api = members.get(&Key::new(DEFAULT_NAMESPACE, API_SERVICE));
        let api = api.filter(|_| namespace != DEFAULT_NAMESPACE);
        own.chain(api).cloned().collect()
    }))
}
