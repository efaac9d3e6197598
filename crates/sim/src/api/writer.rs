//! The writing half of the simulated API server, with the rules of the real one: preconditions, merged lists, lost answers.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_model::pod::is_mirror_pod;
use rubelet_ports::api::{ApiError, ApiErrorKind, PodWriter};
use serde_json::{Map, Value};

use super::{SimApi, text, uid_of, unreachable_server};

/// Lists whose elements are merged by a key.
const MERGED: [(&str, &str); 3] = [("conditions", "type"), ("hostIPs", "ip"), ("podIPs", "ip")];

/// A status that reached the API server.
#[derive(Clone, Debug)]
pub struct Written {
    pub at: Duration,
    pub uid: String,
    pub status: PodStatus,
}

fn error(operation: &str, kind: ApiErrorKind) -> ApiError {
    ApiError::new(operation, kind, format!("{kind:?}"))
}

/// A strategic merge patch of one object.
fn merge(fields: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (name, value) in patch {
        let key = MERGED.iter().find(|(list, _)| list == name).map(|(_, key)| *key);
        match (value, key) {
            _ if name.starts_with('$') => {}
            (Value::Null, _) => {
                fields.remove(name);
            }
            (Value::Array(elements), Some(key)) => merge_list(fields, name, key, elements),
            (Value::Object(inner), _) => {
                let place = fields
                    .entry(name.clone())
                    .or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(place) = place {
                    merge(place, inner);
                }
            }
            (value, _) => {
                fields.insert(name.clone(), value.clone());
            }
        }
    }
}

fn merge_list(fields: &mut Map<String, Value>, name: &str, key: &str, elements: &[Value]) {
    let list = fields
        .entry(name.to_owned())
        .or_insert_with(|| Value::Array(Vec::new()));
    let Value::Array(list) = list else { return };
    for element in elements {
        let place = list.iter().position(|one| one[key] == element[key]);
        let is_removal = element.get("$patch").is_some_and(|patch| patch == "delete");
        match (place, is_removal) {
            (Some(place), true) => {
                list.remove(place);
            }
            (None, true) => {}
            (Some(place), false) => {
                if let (Value::Object(old), Value::Object(patch)) = (&mut list[place], element) {
                    merge(old, patch);
                }
            }
            (None, false) => list.push(element.clone()),
        }
    }
}

impl SimApi {
    /// Whether an answer is lost on its way, though the call had its effect.
    async fn answer<T>(&self, operation: &str, answer: T) -> Result<T, ApiError> {
        self.delay().await;
        let percent = self.store().lost_percent;
        if !self.is_up() || self.inner.dice.with(|dice| dice.percent(percent)) {
            return Err(unreachable_server(operation));
        }
        Ok(answer)
    }

    async fn call(&self, operation: &str) -> Result<(), ApiError> {
        self.delay().await;
        if self.is_up() {
            Ok(())
        } else {
            Err(unreachable_server(operation))
        }
    }

    fn named(&self, operation: &str, namespace: &str, name: &str) -> Result<Arc<Pod>, ApiError> {
        let found = self.find(namespace, name);
        found.ok_or_else(|| error(operation, ApiErrorKind::NotFound))
    }

    /// Every status that was written, in order.
    #[must_use]
    pub fn written(&self) -> Vec<Written> {
        self.store().written.clone()
    }

    /// Of a hundred calls so many have their effect and no answer.
    pub fn set_lost_percent(&self, percent: u64) {
        self.store().lost_percent = percent;
    }
}

#[async_trait]
impl PodWriter for SimApi {
    async fn patch_pod_status(&self, namespace: &str, name: &str, patch: Value) -> Result<Pod, ApiError> {
        const OPERATION: &str = "patch status";
        self.call(OPERATION).await?;
        let found = self.named(OPERATION, namespace, name)?;
        self.overwrite_perhaps(&uid_of(&found));
        let mut pod = Pod::clone(&*self.named(OPERATION, namespace, name)?);
        if patch["metadata"]["uid"].as_str() != pod.metadata.uid.as_deref() {
            return Err(error(OPERATION, ApiErrorKind::Conflict));
        }
        let invalid = |_| error(OPERATION, ApiErrorKind::Invalid);
        let status = serde_json::to_value(pod.status.take().unwrap_or_default()).map_err(invalid)?;
        let (Value::Object(mut status), Value::Object(change)) = (status, &patch["status"]) else {
            return Err(error(OPERATION, ApiErrorKind::Invalid));
        };
        merge(&mut status, change);
        let status: PodStatus = serde_json::from_value(Value::Object(status)).map_err(invalid)?;
        let written = Written {
            at: self.inner.executor.elapsed(),
            uid: uid_of(&pod),
            status: status.clone(),
        };
        pod.status = Some(status);
        let pod = self.put(pod);
        self.store().written.push(written);
        let pod = self.as_decoded(pod);
        self.answer(OPERATION, Pod::clone(&pod)).await
    }

    async fn create_pod(&self, pod: &Pod) -> Result<Pod, ApiError> {
        const OPERATION: &str = "create pod";
        self.call(OPERATION).await?;
        let (namespace, name) = (text(&pod.metadata.namespace), text(&pod.metadata.name));
        if self.named(OPERATION, &namespace, &name).is_ok() {
            return Err(error(OPERATION, ApiErrorKind::AlreadyExists));
        }
        let mut made = pod.clone();
        let number = self.store().version + 1;
        made.metadata.uid = Some(format!("mirror{number}"));
        self.create(made);
        let made = self.named(OPERATION, &namespace, &name)?;
        self.answer(OPERATION, Pod::clone(&made)).await
    }

    async fn delete_pod(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        grace_seconds: i64,
    ) -> Result<(), ApiError> {
        const OPERATION: &str = "delete pod";
        self.call(OPERATION).await?;
        let pod = self.named(OPERATION, namespace, name)?;
        if pod.metadata.uid.as_deref() != Some(uid) {
            return Err(error(OPERATION, ApiErrorKind::Conflict));
        }
        if grace_seconds == 0 {
            self.remove(uid, !is_mirror_pod(&pod));
        } else {
            self.delete(uid, Some(grace_seconds));
        }
        self.answer(OPERATION, ()).await
    }
}
