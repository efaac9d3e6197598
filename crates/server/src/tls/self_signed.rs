//! The certificate that the node makes for itself when none is configured.
//!
//! Owns `kubelet.crt` and `kubelet.key` below `--cert-dir`: names, validity and key type are upstream's, and a pair that is
//! there is used as it is. The authority that signs it is thrown away.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, KeyUsagePurpose, PKCS_RSA_SHA256, RsaKeySize, SanType, date_time_ymd,
};

use super::CertificateFiles;
use crate::ServerError;

const LIFETIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// For clients whose clock is behind.
const BEFORE_NOW: Duration = Duration::from_secs(60 * 60);

/// Makes the pair unless it is there.
pub(super) async fn ensure(files: &CertificateFiles, host: &str) -> Result<(), ServerError> {
    let (files, host) = (files.clone(), host.to_owned());
    // Two RSA keys take a moment.
    tokio::task::spawn_blocking(move || ensure_now(&files, &host))
        .await
        .map_err(|error| ServerError::SelfSigned(error.to_string()))?
}

fn ensure_now(files: &CertificateFiles, host: &str) -> Result<(), ServerError> {
    match (can_read(&files.certificate)?, can_read(&files.key)?) {
        (true, true) => return Ok(()),
        (false, false) => {}
        (true, false) => {
            return Err(ServerError::HalfAPair {
                certificate: files.certificate.clone(),
                key: files.key.clone(),
            });
        }
        // The key is written first, so this is what a power loss between the two leaves.
        (false, true) => set_aside(&files.key)?,
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let pair = generate(host, now).map_err(|error| ServerError::SelfSigned(error.to_string()))?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| ServerError::File {
            setting: "--cert-dir",
            path,
            problem: error.to_string(),
        }
    };
    write(&files.key, pair.key.as_bytes(), 0o600).map_err(failed(&files.key))?;
    write(&files.certificate, pair.certificate.as_bytes(), 0o644).map_err(failed(&files.certificate))?;
    tracing::info!(certificate = %files.certificate.display(), "A self-signed certificate was made");
    Ok(())
}

fn can_read(path: &Path) -> Result<bool, ServerError> {
    match File::open(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(ServerError::File {
            setting: "--cert-dir",
            path: path.to_owned(),
            problem: error.to_string(),
        }),
    }
}

fn set_aside(key: &Path) -> Result<(), ServerError> {
    let mut aside = key.as_os_str().to_owned();
    aside.push(".old");
    tracing::warn!(key = %key.display(), "A key without its certificate is set aside");
    fs::rename(key, &aside).map_err(|error| ServerError::File {
        setting: "--cert-dir",
        path: key.to_owned(),
        problem: error.to_string(),
    })
}

/// As temporary file, fsync, rename.
fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(directory)?;
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

struct Pair {
    /// The certificate, followed by its authority's.
    certificate: String,
    key: String,
}

fn generate(host: &str, now: Duration) -> Result<Pair, rcgen::Error> {
    let key = || KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048);
    // Side by side: each takes tenths of a second.
    let (authority_key, own_key) = std::thread::scope(|scope| {
        let authority_key = scope.spawn(key);
        let own_key = key();
        (
            authority_key
                .join()
                .unwrap_or(Err(rcgen::Error::KeyGenerationUnavailable)),
            own_key,
        )
    });
    let (authority_key, own_key) = (authority_key?, own_key?);
    let seconds = now.as_secs();

    let mut authority = parameters(&format!("{host}-ca@{seconds}"), now);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages.push(KeyUsagePurpose::KeyCertSign);
    let authority = CertifiedIssuer::self_signed(authority, authority_key)?;

    let mut own = parameters(&format!("{host}@{seconds}"), now);
    own.is_ca = IsCa::ExplicitNoCa;
    own.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    own.use_authority_key_identifier_extension = true;
    own.subject_alt_names = vec![match host.parse::<IpAddr>() {
        Ok(address) => SanType::IpAddress(address),
        Err(_) => SanType::DnsName(host.try_into()?),
    }];
    let certificate = own.signed_by(&own_key, &authority)?;
    Ok(Pair {
        certificate: format!("{}{}", certificate.pem(), authority.pem()),
        key: own_key.serialize_pem(),
    })
}

/// What both certificates have in common.
fn parameters(name: &str, now: Duration) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    let from = now.saturating_sub(BEFORE_NOW);
    parameters.not_before = date_time_ymd(1970, 1, 1) + from;
    parameters.not_after = date_time_ymd(1970, 1, 1) + from + LIFETIME;
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
    ];
    parameters
}
