//! Metrics of the node's certificates, from the handles of the tasks that renew them.

use std::sync::Arc;

use anyhow::{Context, Result};
use prometheus::Registry;
use rubelet_certificates::{CertificateHandle, ROTATION_AGE_BUCKETS_SECONDS};
use rubelet_ports::Clock;

use super::sampled::{Reading, Sampled, cumulated, register};

const CLIENT_TTL: Sampled = Sampled::gauge(
    "kubelet_certificate_manager_client_ttl_seconds",
    &[],
    "[ALPHA] Seconds until the client certificate expires, negative when it has, infinite while there is none.",
);
const CLIENT_ERRORS: Sampled = Sampled::counter(
    "kubelet_certificate_manager_client_expiration_renew_errors",
    &[],
    "[ALPHA] Client certificates that were asked for in vain.",
);
const SERVER_TTL: Sampled = Sampled::gauge(
    "kubelet_certificate_manager_server_ttl_seconds",
    &[],
    "[ALPHA] Seconds until the serving certificate expires, negative when it has, infinite while there is none.",
);
const SERVER_AGES: Sampled = Sampled::histogram(
    "kubelet_certificate_manager_server_rotation_seconds",
    &[],
    "[ALPHA] How old serving certificates were when they were replaced, in seconds.",
);
/// Irregular, as upstream's is.
const SERVER_ERRORS: Sampled = Sampled::counter(
    "kubelet_server_expiration_renew_errors",
    &[],
    "[ALPHA] Serving certificates that were asked for in vain.",
);

/// Shows only certificates that this node renews itself.
pub(crate) fn show_certificates(
    registry: &Registry,
    clock: &Arc<impl Clock + 'static>,
    client: Option<&CertificateHandle>,
    serving: Option<&CertificateHandle>,
) -> Result<()> {
    if let Some(client) = client.cloned() {
        let clock = Arc::clone(clock);
        register(registry, &[CLIENT_TTL, CLIENT_ERRORS], move || {
            vec![
                CLIENT_TTL.number(client.ttl_seconds(clock.now())),
                CLIENT_ERRORS.number(whole(client.renew_errors())),
            ]
        })
        .context("register metrics of the client certificate")?;
    }
    if let Some(serving) = serving.cloned() {
        let clock = Arc::clone(clock);
        register(registry, &[SERVER_TTL, SERVER_AGES, SERVER_ERRORS], move || {
            let ages = serving.rotation_ages();
            let ages = Reading::Distribution {
                buckets: cumulated(ROTATION_AGE_BUCKETS_SECONDS, &ages.counts),
                count: ages.counts.iter().sum(),
                sum: ages.sum_seconds,
            };
            vec![
                SERVER_TTL.number(serving.ttl_seconds(clock.now())),
                SERVER_AGES.family([(Vec::new(), ages)]),
                SERVER_ERRORS.number(whole(serving.renew_errors())),
            ]
        })
        .context("register metrics of the serving certificate")?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "no renewal fails that often")]
fn whole(count: u64) -> f64 {
    count as f64
}
