//! `/configz`: the configuration in effect.
//!
//! Owns what start-up has added to it. Secrets are masked where the settings are.

use rubelet_config::Settings;
use serde_json::{Value, json};

use crate::tls::CertificateFiles;

/// What upstream shows: the settings, with the certificate that was made and the runtime's cgroup driver.
pub(crate) fn configz(
    settings: &Settings,
    certificate: Option<&CertificateFiles>,
    cgroup_driver: &str,
) -> Value {
    let mut configuration = settings.configz_json();
    if let Some(fields) = configuration.as_object_mut() {
        let mut set = |name: &str, value: String| fields.insert(name.to_owned(), Value::String(value));
        if let Some(files) = certificate {
            set("tlsCertFile", files.certificate.to_string_lossy().into_owned());
            set("tlsPrivateKeyFile", files.key.to_string_lossy().into_owned());
        }
        set("cgroupDriver", cgroup_driver.to_owned());
    }
    json!({ "kubeletconfig": configuration })
}
