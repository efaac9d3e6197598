//! Certificate authorities, certificates and keys of one private control plane, fresh for every test.
//!
//! Keys exist in memory and in files that only the owner may read, below the scope's directory and never below its logs.
//! Nothing here has a `Debug` form, so that no key can reach a message by accident.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Longer than any test, and far from the limits of what a certificate or a Go duration can hold.
const LIFETIME: Duration = DAY.saturating_mul(365);
/// A clock that a test moves back a little must not make every certificate invalid.
const BACKDATE: Duration = DAY;
/// The object identifier of `O`, as which the API server reads a user's groups.
const ORGANIZATION: [u64; 4] = [2, 5, 4, 10];

/// A certificate authority that signs for one control plane.
pub(super) struct Authority {
    certificate_pem: String,
    certificate_der: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key.
pub(super) struct Credentials {
    pub(super) certificate_pem: String,
    pub(super) key_pem: String,
}

/// Where a certificate and its key are.
#[derive(Clone, Debug)]
pub struct CredentialFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Which ends of a connection a certificate may be shown at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Client,
    Server,
    /// etcd's members call themselves with the certificate that they serve with.
    Both,
}

impl Authority {
    pub(super) fn new(name: &str) -> Result<Self> {
        let mut params = parameters(name, &[], Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let key = new_key()?;
        let certificate = params
            .self_signed(&key)
            .with_context(|| format!("sign the certificate of {name}"))?;
        Ok(Self {
            certificate_pem: certificate.pem(),
            certificate_der: certificate.der().to_vec(),
            issuer: Issuer::new(params, key),
        })
    }

    pub(super) fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    pub(super) fn certificate_der(&self) -> &[u8] {
        &self.certificate_der
    }

    /// The authority's own certificate and key, for the controller that signs in its name.
    pub(super) fn credentials(&self) -> Credentials {
        Credentials {
            certificate_pem: self.certificate_pem.clone(),
            key_pem: self.issuer.key().serialize_pem(),
        }
    }

    /// What a user proves its name and groups with.
    pub(super) fn client(&self, user: &str, groups: &[&str]) -> Result<Credentials> {
        self.issue(user, groups, Vec::new(), Role::Client)
    }

    /// What a server proves its host names and addresses with.
    pub(super) fn server(&self, name: &str, groups: &[&str], hosts: Vec<String>) -> Result<Credentials> {
        self.issue(name, groups, hosts, Role::Server)
    }

    /// The same for a server that is a client too.
    pub(super) fn peer(&self, name: &str, hosts: Vec<String>) -> Result<Credentials> {
        self.issue(name, &[], hosts, Role::Both)
    }

    fn issue(&self, name: &str, groups: &[&str], hosts: Vec<String>, role: Role) -> Result<Credentials> {
        let mut params = parameters(name, groups, hosts)?;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        if role != Role::Server {
            params.insert_extended_key_usage(ExtendedKeyUsagePurpose::ClientAuth);
        }
        if role != Role::Client {
            params.insert_extended_key_usage(ExtendedKeyUsagePurpose::ServerAuth);
        }
        let key = new_key()?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .with_context(|| format!("sign the certificate of {name}"))?;
        Ok(Credentials {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }
}

impl Credentials {
    /// Writes `<name>.crt` and `<name>.key` into `dir`.
    pub(super) fn write(&self, dir: &Path, name: &str) -> Result<CredentialFiles> {
        let files = CredentialFiles {
            certificate: dir.join(format!("{name}.crt")),
            key: dir.join(format!("{name}.key")),
        };
        write_private(&files.certificate, &self.certificate_pem)?;
        write_private(&files.key, &self.key_pem)?;
        Ok(files)
    }
}

/// The key that signs service account tokens, as `sa.key` and `sa.pub`.
pub(super) fn write_service_account_keys(dir: &Path) -> Result<CredentialFiles> {
    let key = new_key()?;
    let files = CredentialFiles {
        certificate: dir.join("sa.pub"),
        key: dir.join("sa.key"),
    };
    write_private(&files.certificate, &key.public_key_pem())?;
    write_private(&files.key, &key.serialize_pem())?;
    Ok(files)
}

/// Creates a directory that only the owner may enter; it must not exist yet.
pub(super) fn create_private_dir(dir: &Path) -> Result<()> {
    DirBuilder::new()
        .mode(0o700)
        .create(dir)
        .with_context(|| format!("create {}", dir.display()))
}

/// Writes a file that only the owner may read.
pub(super) fn write_private(path: &Path, text: &str) -> Result<()> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("write {}", path.display()))
}

/// Lower-case letters and digits that nobody can guess.
pub(super) fn random_word(length: usize) -> Result<String> {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut bytes = vec![0; length];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .context("read random bytes")?;
    Ok(bytes
        .into_iter()
        .map(|byte| char::from(LETTERS[usize::from(byte) % LETTERS.len()]))
        .collect())
}

fn new_key() -> Result<KeyPair> {
    KeyPair::generate().context("generate a key")
}

fn parameters(name: &str, groups: &[&str], hosts: Vec<String>) -> Result<CertificateParams> {
    // The library keeps one value per attribute type; a type given by number counts as another one.
    ensure!(
        groups.len() <= 2,
        "{name}: a certificate made here carries at most two groups, not {}",
        groups.len()
    );
    let mut params = CertificateParams::new(hosts).with_context(|| format!("host names of {name}"))?;
    let organizations = [
        DnType::OrganizationName,
        DnType::CustomDnType(ORGANIZATION.to_vec()),
    ];
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    for (organization, group) in organizations.into_iter().zip(groups) {
        params.distinguished_name.push(organization, *group);
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .context("the clock is before 1970")?;
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(BACKDATE);
    params.not_after = epoch + now + LIFETIME;
    Ok(params)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn keys_are_for_the_owner_only_and_differ() {
        let dir = tempfile::tempdir().unwrap();
        let private = dir.path().join("pki");
        create_private_dir(&private).unwrap();
        assert_eq!(
            std::fs::metadata(&private).unwrap().permissions().mode() & 0o777,
            0o700
        );
        assert!(
            create_private_dir(&private).is_err(),
            "a directory of somebody else is not taken over"
        );

        let authority = Authority::new("ca").unwrap();
        let first = authority.client("user", &["one", "two"]).unwrap();
        let second = authority.client("user", &["one", "two"]).unwrap();
        assert_ne!(first.key_pem, second.key_pem);
        let files = first.write(&private, "user").unwrap();
        assert_eq!(
            std::fs::metadata(&files.key).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert!(
            std::fs::read_to_string(&files.key)
                .unwrap()
                .starts_with("-----BEGIN PRIVATE KEY-----")
        );
        assert!(
            std::fs::read_to_string(&files.certificate)
                .unwrap()
                .starts_with("-----BEGIN CERTIFICATE-----")
        );
    }

    #[test]
    fn a_third_group_is_refused_rather_than_lost() {
        let authority = Authority::new("ca").unwrap();
        assert!(authority.client("user", &["one", "two", "three"]).is_err());
    }

    #[test]
    fn random_words_have_the_length_asked_for() {
        let word = random_word(16).unwrap();
        assert_eq!(word.len(), 16);
        assert!(
            word.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        );
        assert_ne!(word, random_word(16).unwrap());
    }
}
