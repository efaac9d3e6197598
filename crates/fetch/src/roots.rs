//! The certificate authorities that are trusted over TLS: those of the machine.

use std::sync::Arc;

use rubelet_x509::Authorities;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;

/// Reads the machine's certificates; some that cannot be read are no reason to trust none.
pub(crate) fn client_config() -> Result<Arc<ClientConfig>, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut authorities = Authorities::default();
    for certificate in found.certs {
        let _ = authorities.add(certificate);
    }
    if authorities.is_empty() {
        let errors: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
        return Err(format!(
            "the machine has no certificate authorities to trust; install its package of them or set SSL_CERT_FILE ({})",
            errors.join("; ")
        ));
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = authorities
        .server_verifier(&provider)
        .map_err(|error| error.to_string())?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    Ok(Arc::new(builder.with_no_client_auth()))
}
