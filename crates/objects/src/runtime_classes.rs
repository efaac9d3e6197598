//! RuntimeClasses by name.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::node::v1::RuntimeClass;
use rubelet_ports::ObjectFailure;
use rubelet_ports::api::{Changes, ObjectReader};

use crate::pods::Pods;
use crate::table::Key;
use crate::whole_set::{NotListed, Owner, WholeSet};

const FIRST_LIST_LIMIT: Duration = Duration::from_secs(5);

pub(crate) struct RuntimeClasses {
    pub(crate) reader: Arc<dyn ObjectReader>,
    pub(crate) pods: Arc<Pods>,
}

impl Owner for RuntimeClasses {
    type Object = RuntimeClass;
    const WORD: &'static str = "runtime classes";

    fn follow(&self) -> Changes<RuntimeClass> {
        self.reader.follow_runtime_classes()
    }

    /// A pod may have been waiting for its class.
    fn on_change(&self, classes: &[Arc<RuntimeClass>]) {
        self.pods.resync_where(|registered| {
            let spec = registered.pod.spec.as_ref();
            let wanted = spec.and_then(|spec| spec.runtime_class_name.as_ref());
            wanted.is_some() && classes.iter().any(|class| class.metadata.name.as_ref() == wanted)
        });
    }
}

pub(crate) async fn runtime_class(
    set: &Arc<WholeSet<RuntimeClasses>>,
    name: &str,
) -> Result<Arc<RuntimeClass>, ObjectFailure> {
    if let Err(NotListed(error)) = set.listed(FIRST_LIST_LIMIT).await {
        let message = "runtime classes have not yet been read";
        return Err(ObjectFailure::Unavailable(match error {
            Some(error) => format!("{message}: {error}"),
            None => message.to_owned(),
        }));
    }
    let found = set.with(|members| members.get(&Key::new("", name)).cloned());
    found.ok_or_else(|| ObjectFailure::NotFound(format!("runtimeclass.node.k8s.io {name:?} not found")))
}
