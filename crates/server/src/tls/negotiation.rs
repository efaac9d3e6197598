//! `tlsMinVersion`, `tlsCipherSuites` and `tlsCurvePreferences`.
//!
//! Owns the names that upstream knows and which of them can be honoured. What upstream refuses is refused with its text; what
//! upstream takes and this build does not have (old suites, old curves) is left out with a warning, never added silently.

use std::sync::Arc;

use rubelet_config::KubeletConfiguration;
use tokio_rustls::rustls::crypto::aws_lc_rs::{self, cipher_suite as suite, kx_group};
use tokio_rustls::rustls::crypto::{CryptoProvider, SupportedKxGroup};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{SupportedCipherSuite, SupportedProtocolVersion};

use crate::ServerError;

pub(super) struct Negotiation {
    pub(super) provider: Arc<CryptoProvider>,
    pub(super) versions: &'static [&'static SupportedProtocolVersion],
}

const BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
const NEWEST: &[&SupportedProtocolVersion] = &[&TLS13];

impl Negotiation {
    pub(super) fn of(configuration: &KubeletConfiguration) -> Result<Self, ServerError> {
        let mut versions = versions(&configuration.tls_min_version)?;
        let mut provider = aws_lc_rs::default_provider();
        if let Some(suites) = suites(&configuration.tls_cipher_suites)? {
            if versions == NEWEST {
                tracing::warn!(
                    "tlsCipherSuites: the suites of TLS 1.3 cannot be chosen, so the list has no effect"
                );
            } else {
                if suites.is_empty() {
                    versions = NEWEST;
                }
                provider
                    .cipher_suites
                    .retain(|offered| offered.tls13().is_some() || suites.contains(offered));
            }
        }
        if let Some(groups) = groups(&configuration.tls_curve_preferences)? {
            provider.kx_groups = groups;
        }
        Ok(Self {
            provider: Arc::new(provider),
            versions,
        })
    }
}

fn error(setting: &'static str, problem: String) -> ServerError {
    ServerError::Tls { setting, problem }
}

fn versions(minimum: &str) -> Result<&'static [&'static SupportedProtocolVersion], ServerError> {
    match minimum {
        "" | "VersionTLS12" => Ok(BOTH),
        "VersionTLS13" => Ok(NEWEST),
        "VersionTLS10" | "VersionTLS11" => {
            tracing::warn!(minimum, "tlsMinVersion: nothing older than TLS 1.2 is spoken");
            Ok(BOTH)
        }
        other => Err(error("tlsMinVersion", format!("unknown tls version {other:?}"))),
    }
}

/// What a name of upstream's list is here.
enum Suite {
    Offered(SupportedCipherSuite),
    /// Belongs to TLS 1.3, whose suites are always offered.
    Newest,
    /// Too weak for this build.
    Left,
}

fn suite(name: &str) -> Option<Suite> {
    Some(match name {
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256" => {
            Suite::Offered(suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256)
        }
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384" => {
            Suite::Offered(suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384)
        }
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256" | "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305" => {
            Suite::Offered(suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256)
        }
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" => {
            Suite::Offered(suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256)
        }
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384" => {
            Suite::Offered(suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384)
        }
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256" | "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305" => {
            Suite::Offered(suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256)
        }
        "TLS_AES_128_GCM_SHA256" | "TLS_AES_256_GCM_SHA384" | "TLS_CHACHA20_POLY1305_SHA256" => Suite::Newest,
        "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA"
        | "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256"
        | "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA"
        | "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA"
        | "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA"
        | "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"
        | "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256"
        | "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA"
        | "TLS_ECDHE_RSA_WITH_RC4_128_SHA"
        | "TLS_RSA_WITH_3DES_EDE_CBC_SHA"
        | "TLS_RSA_WITH_AES_128_CBC_SHA"
        | "TLS_RSA_WITH_AES_128_CBC_SHA256"
        | "TLS_RSA_WITH_AES_128_GCM_SHA256"
        | "TLS_RSA_WITH_AES_256_CBC_SHA"
        | "TLS_RSA_WITH_AES_256_GCM_SHA384"
        | "TLS_RSA_WITH_RC4_128_SHA" => Suite::Left,
        _ => return None,
    })
}

/// The suites of TLS 1.2 to offer; `None` for all of them. An empty list leaves TLS 1.3 alone.
fn suites(names: &[String]) -> Result<Option<Vec<SupportedCipherSuite>>, ServerError> {
    if names.is_empty() {
        return Ok(None);
    }
    let (mut offered, mut left, mut newest) = (Vec::new(), Vec::new(), false);
    for name in names {
        match suite(name) {
            Some(Suite::Offered(suite)) => offered.push(suite),
            Some(Suite::Newest) => newest = true,
            Some(Suite::Left) => left.push(name.as_str()),
            None => {
                let problem = format!("Cipher suite {name} not supported or doesn't exist");
                return Err(error("tlsCipherSuites", problem));
            }
        }
    }
    let left = left.join(", ");
    if offered.is_empty() && !newest {
        let problem = format!("rubelet has none of these suites, which are too weak: {left}");
        return Err(error("tlsCipherSuites", problem));
    }
    if !left.is_empty() {
        tracing::warn!(
            suites = left,
            "tlsCipherSuites: these are too weak and are not offered"
        );
    }
    Ok(Some(offered))
}

/// The groups of the key exchange to offer, by their number in the TLS registry; `None` for the usual ones.
fn groups(numbers: &[i32]) -> Result<Option<Vec<&'static dyn SupportedKxGroup>>, ServerError> {
    const SETTING: &str = "tlsCurvePreferences";
    if numbers.is_empty() {
        return Ok(None);
    }
    let mut offered: Vec<&'static dyn SupportedKxGroup> = Vec::new();
    for (index, number) in numbers.iter().enumerate() {
        if !(1..=i32::from(u16::MAX)).contains(number) {
            let problem = format!("curve preference {number} is out of range (must be 1-65535)");
            return Err(error(SETTING, problem));
        }
        if numbers[..index].contains(number) {
            return Err(error(SETTING, format!("duplicate curve preference {number}")));
        }
        offered.push(match number {
            23 => kx_group::SECP256R1,
            24 => kx_group::SECP384R1,
            29 => kx_group::X25519,
            4587 => kx_group::SECP256R1MLKEM768,
            4588 => kx_group::X25519MLKEM768,
            // P-521 and the hybrid of P-384.
            25 | 4589 => {
                tracing::warn!(curve = number, "tlsCurvePreferences: this one is not offered");
                continue;
            }
            _ => {
                let problem = format!("curve preference {number} is not supported");
                return Err(error(SETTING, problem));
            }
        });
    }
    if offered.is_empty() {
        return Err(error(SETTING, "rubelet has none of these curves".to_owned()));
    }
    Ok(Some(offered))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiation(minimum: &str, suites: &[&str], curves: &[i32]) -> Result<Negotiation, ServerError> {
        Negotiation::of(&KubeletConfiguration {
            tls_min_version: minimum.to_owned(),
            tls_cipher_suites: suites.iter().map(|name| (*name).to_owned()).collect(),
            tls_curve_preferences: curves.to_vec(),
            ..KubeletConfiguration::default()
        })
    }

    #[test]
    fn what_cannot_be_honoured_is_refused() {
        let check = |minimum: &str, suites: &[&str], curves: &[i32], expected: &str| {
            let told = negotiation(minimum, suites, curves)
                .err()
                .map(|error| error.to_string());
            assert_eq!(told.as_deref(), Some(expected));
        };
        check(
            "VersionTLS14",
            &[],
            &[],
            "tlsMinVersion: unknown tls version \"VersionTLS14\"",
        );
        check(
            "",
            &["TLS_NONE"],
            &[],
            "tlsCipherSuites: Cipher suite TLS_NONE not supported or doesn't exist",
        );
        check(
            "",
            &["TLS_RSA_WITH_RC4_128_SHA"],
            &[],
            "tlsCipherSuites: rubelet has none of these suites, which are too weak: TLS_RSA_WITH_RC4_128_SHA",
        );
        check(
            "",
            &[],
            &[29, 29],
            "tlsCurvePreferences: duplicate curve preference 29",
        );
        check(
            "",
            &[],
            &[0],
            "tlsCurvePreferences: curve preference 0 is out of range (must be 1-65535)",
        );
        check(
            "",
            &[],
            &[7],
            "tlsCurvePreferences: curve preference 7 is not supported",
        );
        check(
            "",
            &[],
            &[25],
            "tlsCurvePreferences: rubelet has none of these curves",
        );
    }

    #[test]
    fn what_is_chosen_is_offered_and_nothing_else() {
        let check = |minimum: &str, suites: &[&str], curves: &[i32], expected: (usize, usize, usize)| {
            let negotiation = negotiation(minimum, suites, curves).unwrap();
            let older = negotiation
                .provider
                .cipher_suites
                .iter()
                .filter(|suite| suite.tls13().is_none())
                .count();
            let groups = negotiation.provider.kx_groups.len();
            assert_eq!(
                (negotiation.versions.len(), older, groups),
                expected,
                "{minimum} {suites:?}"
            );
        };
        let usual = aws_lc_rs::DEFAULT_KX_GROUPS.len();
        check("", &[], &[], (2, 6, usual));
        check("VersionTLS10", &[], &[], (2, 6, usual));
        check("VersionTLS13", &[], &[], (1, 6, usual));
        let one = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
        check("", &[one, "TLS_RSA_WITH_RC4_128_SHA"], &[], (2, 1, usual));
        check("", &["TLS_AES_128_GCM_SHA256"], &[], (1, 0, usual));
        check("VersionTLS13", &[one], &[], (1, 6, usual));
        check("", &[], &[29, 25, 23], (2, 6, 2));
    }
}
