//! Metrics of pod certificates, from the figures of `rubelet-objects`.

use std::sync::Arc;

use anyhow::{Context, Result};
use prometheus::Registry;
use rubelet_objects::Objects;

use super::sampled::{Reading, Sampled, register};

const STATES: Sampled = Sampled::gauge(
    "kubelet_podcertificate_states",
    &["signer_name", "state"],
    "[ALPHA] Certificates that volumes of pods ask for, by signer and by how far they are.",
);

pub(crate) fn show_pod_certificates(registry: &Registry, objects: &Arc<Objects>) -> Result<()> {
    let objects = Arc::clone(objects);
    register(registry, &[STATES], move || {
        let states = objects.certificate_states().into_iter();
        let series = states.map(|((signer, state), count)| {
            let count = f64::from(u32::try_from(count).unwrap_or(u32::MAX));
            (vec![signer, state.to_owned()], Reading::Number(count))
        });
        vec![STATES.family(series)]
    })
    .context("register metrics of pod certificates")
}
