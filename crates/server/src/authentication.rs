//! Who asks, and whether the settings can be honoured at all.
//!
//! Owns the two ways that need no API server: client certificates and anonymous requests. Everybody who is known may do
//! everything, because the only authorization mode without an API server is `AlwaysAllow`.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rubelet_config::KubeletConfiguration;
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::UnixTime;
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use webpki::EndEntityCert;

use crate::ServerError;
use crate::connection::Peer;

/// Fails as upstream does where there is no API server to ask.
pub(crate) fn check(configuration: &KubeletConfiguration) -> Result<(), ServerError> {
    let authentication = &configuration.authentication;
    if authentication.webhook.enabled == Some(true) {
        return Err(ServerError::WebhookAuthentication);
    }
    if authentication.x509.client_ca_file.is_empty() && authentication.anonymous.enabled != Some(true) {
        return Err(ServerError::NoAuthenticationMethod);
    }
    match configuration.authorization.mode.as_str() {
        "AlwaysAllow" => Ok(()),
        "Webhook" => Err(ServerError::WebhookAuthorization),
        "" => Err(ServerError::NoAuthorizationMode),
        mode => Err(ServerError::UnknownAuthorizationMode(mode.to_owned())),
    }
}

/// Checks certificates against the authorities in force, which a changed file replaces. `None` where none are configured.
pub(crate) type ClientAuthorities = watch::Receiver<Option<Arc<dyn ClientCertVerifier>>>;

pub(crate) struct Authenticator {
    pub(crate) anonymous: bool,
    pub(crate) authorities: ClientAuthorities,
}

impl Authenticator {
    /// Whether the peer is known. A certificate that does not hold is refused even where anonymous requests are welcome.
    pub(crate) fn knows(&self, peer: &Peer) -> bool {
        let authorities = self.authorities.borrow().clone();
        let (Some(authorities), Some((certificate, intermediates))) =
            (authorities, peer.certificates.split_first())
        else {
            return self.anonymous;
        };
        // At every request, for certificates run out and authorities change while connections live.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(now);
        if let Err(error) = authorities.verify_client_cert(certificate, intermediates, now) {
            tracing::info!(%error, "A client's certificate was refused");
            return false;
        }
        let named = EndEntityCert::try_from(certificate)
            .ok()
            .is_some_and(|certificate| {
                common_name(certificate.subject()).is_some_and(|name| !name.is_empty())
            });
        named || self.anonymous
    }
}

/// 2.5.4.3
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];

/// The first common name in a subject: a sequence of sets of (kind, text), without the outer tag.
fn common_name(mut subject: &[u8]) -> Option<&[u8]> {
    const SEQUENCE: u8 = 0x30;
    const SET: u8 = 0x31;
    const OBJECT_IDENTIFIER: u8 = 0x06;
    while !subject.is_empty() {
        let (tag, mut set, rest) = element(subject)?;
        subject = rest;
        if tag != SET {
            return None;
        }
        while !set.is_empty() {
            let (tag, attribute, rest) = element(set)?;
            set = rest;
            let (kind_tag, kind, value) = element(attribute)?;
            if tag != SEQUENCE || kind_tag != OBJECT_IDENTIFIER {
                return None;
            }
            if kind == COMMON_NAME {
                return element(value).map(|(_, text, _)| text);
            }
        }
    }
    None
}

/// Tag, content and what follows of the first DER element.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, bytes) = bytes.split_first()?;
    let (&first, bytes) = bytes.split_first()?;
    let (length, bytes) = match first {
        0..=0x7f => (usize::from(first), bytes),
        0x81..=0x84 => {
            let (digits, bytes) = bytes.split_at_checked(usize::from(first & 0x7f))?;
            let length = digits
                .iter()
                .fold(0usize, |sum, digit| (sum << 8) | usize::from(*digit));
            (length, bytes)
        }
        _ => return None,
    };
    let (content, rest) = bytes.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn subject_of(names: &[(DnType, &str)]) -> Vec<u8> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, name) in names {
            parameters.distinguished_name.push(kind.clone(), *name);
        }
        let certificate = parameters.self_signed(&KeyPair::generate().unwrap()).unwrap();
        EndEntityCert::try_from(certificate.der())
            .unwrap()
            .subject()
            .to_vec()
    }

    #[test]
    fn the_common_name_is_found() {
        let check = |names: &[(DnType, &str)], expected: Option<&str>| {
            let subject = subject_of(names);
            assert_eq!(common_name(&subject), expected.map(str::as_bytes), "{names:?}");
        };
        check(&[(DnType::CommonName, "me")], Some("me"));
        let organization = DnType::OrganizationName;
        check(
            &[
                (organization.clone(), "system:masters"),
                (DnType::CommonName, "me"),
            ],
            Some("me"),
        );
        check(&[(organization, "system:masters")], None);
        check(&[], None);
        let long = "x".repeat(300);
        check(&[(DnType::CommonName, &long)], Some(&long));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_upset_the_reader(bytes: Vec<u8>) {
            let _ = common_name(&bytes);
        }
    }

    #[test]
    fn modes_without_an_api_server_are_told() {
        let check = |change: &dyn Fn(&mut KubeletConfiguration), expected: &str| {
            let mut configuration = KubeletConfiguration::default();
            configuration.authentication.anonymous.enabled = Some(true);
            configuration.authorization.mode = "AlwaysAllow".to_owned();
            change(&mut configuration);
            let told = check(&configuration).map_or_else(|error| error.to_string(), |()| String::new());
            assert!(
                told.starts_with(expected) && told.is_empty() == expected.is_empty(),
                "{told}"
            );
        };
        check(&|_| {}, "");
        check(
            &|c| c.authentication.webhook.enabled = Some(true),
            "no client provided, cannot use webhook authentication",
        );
        check(
            &|c| c.authorization.mode = "Webhook".to_owned(),
            "no client provided, cannot use webhook authorization",
        );
        check(
            &|c| c.authentication.anonymous.enabled = Some(false),
            "no authentication method configured",
        );
        check(
            &|c| c.authorization.mode.clear(),
            "no authorization mode specified",
        );
        check(
            &|c| c.authorization.mode = "Maybe".to_owned(),
            "unknown authorization mode Maybe",
        );
    }
}
