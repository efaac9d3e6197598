//! Who gets an answer.

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, date_time_ymd,
};
use rubelet_testbed::in_scope;
use rubelet_testbed::wait::wait_until;
use serde_json::json;
use tokio_rustls::rustls::version::{TLS12, TLS13};

use crate::client::{Connection, DEADLINE, Identity};
use crate::fixture::Setup;

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// What is wrong with a client's certificate, if anything.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    NoName,
    Expired,
    /// None yet: it ends with the year 2099.
    Ending,
    ForServers,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Result<Self> {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(DnType::CommonName, name);
        Ok(Self(CertifiedIssuer::self_signed(
            parameters,
            KeyPair::generate()?,
        )?))
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn identity(&self, flaw: Flaw) -> Result<Identity> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = DistinguishedName::new();
        let kind = if flaw == Flaw::NoName {
            DnType::OrganizationName
        } else {
            DnType::CommonName
        };
        parameters.distinguished_name.push(kind, "me");
        parameters.extended_key_usages = vec![if flaw == Flaw::ForServers {
            ExtendedKeyUsagePurpose::ServerAuth
        } else {
            ExtendedKeyUsagePurpose::ClientAuth
        }];
        match flaw {
            Flaw::Expired => parameters.not_after = date_time_ymd(2020, 1, 1),
            Flaw::Ending => parameters.not_after = date_time_ymd(2100, 1, 1),
            Flaw::None | Flaw::NoName | Flaw::ForServers => {}
        }
        let key = KeyPair::generate()?;
        Ok(Identity {
            certificate: parameters.signed_by(&key, &self.0)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// One of the certificates that plain openssl made, by its name.
fn plain_certificate(name: &str) -> Result<String> {
    let all = include_str!("../../../x509/testdata/certificates.pem");
    let mut parts = all.split("# ").filter_map(|part| part.split_once('\n'));
    let found = parts.find(|(own, _)| *own == name);
    Ok(found.context("no such certificate")?.1.to_owned())
}

#[test]
fn certificates_of_plain_openssl_hold_as_for_go() {
    in_scope("plain-certificates", async |scope| {
        let file = scope.path("ca.crt");
        std::fs::write(&file, plain_certificate("root")?)?;
        let running = Setup::new(scope)?
            .with(
                "authentication",
                json!({
                    "anonymous": { "enabled": false }, "webhook": { "enabled": false },
                    "x509": { "clientCAFile": file },
                }),
            )
            .start()
            .await?;
        let version_1 = include_str!("../../../x509/testdata/v1-by-root.key");
        let authority = include_str!("../../../x509/testdata/ca-by-root.key");
        let stranger = include_str!("../../../x509/testdata/self-signed.key");
        for (name, key, expected) in [
            ("v1-by-root", version_1, 200),
            ("ca-by-root", authority, 200),
            ("self-signed", stranger, 401),
        ] {
            let identity = Identity {
                certificate: plain_certificate(name)?,
                key: key.to_owned(),
            };
            for version in [&TLS12, &TLS13] {
                let mut connection = Connection::tls_with(
                    running.ports.tls,
                    &running.certificate,
                    Some(&identity),
                    &[version],
                )
                .await?;
                assert_eq!(
                    connection.get("/pods").await?.status,
                    expected,
                    "{name} {version:?}"
                );
            }
        }
        // The key of another certificate does not do.
        let forged = Identity {
            certificate: plain_certificate("v1-by-root")?,
            key: stranger.to_owned(),
        };
        for version in [&TLS12, &TLS13] {
            let answer = async {
                let (port, trusted) = (running.ports.tls, &running.certificate);
                let mut connection = Connection::tls_with(port, trusted, Some(&forged), &[version]).await?;
                connection.get("/pods").await
            };
            assert!(answer.await.is_err(), "{version:?}");
        }
        Ok(())
    });
}

#[test]
fn certificates_decide_and_strangers_are_anonymous_or_refused() {
    in_scope("authentication", async |scope| {
        let (authority, other) = (Authority::new("ours")?, Authority::new("other")?);
        let file = scope.path("ca.crt");
        std::fs::write(&file, authority.pem())?;
        for anonymous in [true, false] {
            let running = Setup::new(scope)?
                .with(
                    "authentication",
                    json!({
                        "anonymous": { "enabled": anonymous }, "webhook": { "enabled": false },
                        "x509": { "clientCAFile": file },
                    }),
                )
                .start()
                .await?;
            let status = |known: bool| if known { 200 } else { 401 };
            for (identity, expected) in [
                (authority.identity(Flaw::None)?, status(true)),
                (authority.identity(Flaw::NoName)?, status(anonymous)),
                // A certificate that does not hold is worse than none.
                (authority.identity(Flaw::Expired)?, status(false)),
                (authority.identity(Flaw::ForServers)?, status(false)),
                (other.identity(Flaw::None)?, status(false)),
            ] {
                let mut connection = running.tls_as(&identity).await?;
                let answer = connection.get("/pods").await?;
                assert_eq!(answer.status, expected, "anonymous: {anonymous}, {answer:?}");
                if expected == 401 {
                    assert_eq!(answer.text(), "Unauthorized");
                }
                assert_eq!(connection.get("/foo").await?.status, 404);
            }
            let mut nobody = running.tls().await?;
            for path in [
                "/pods",
                "/healthz",
                "/configz",
                "/metrics",
                "/containerLogs/a/b/c",
                "/exec/a/b/c",
            ] {
                let refused = nobody.get(path).await?.status == 401;
                assert_eq!(refused, !anonymous, "{path}");
            }
            // These ports do not authenticate.
            assert_eq!(running.read_only().await?.get("/pods").await?.status, 200);
            assert_eq!(running.healthz().await?.get("/healthz").await?.status, 200);
            running.server.stop().await;
        }
        Ok(())
    });
}

#[test]
fn changed_authorities_count_at_once_and_nonsense_does_not() {
    in_scope("authorities-reload", async |scope| {
        let (old, new) = (Authority::new("old")?, Authority::new("new")?);
        let file = scope.path("ca/ca.crt");
        std::fs::write(&file, old.pem())?;
        let running = Setup::new(scope)?
            .with(
                "authentication",
                json!({
                    "anonymous": { "enabled": false }, "webhook": { "enabled": false },
                    "x509": { "clientCAFile": file },
                }),
            )
            .start()
            .await?;
        let mut with_old = running.tls_as(&old.identity(Flaw::None)?).await?;
        assert_eq!(with_old.get("/pods").await?.status, 200);
        let replace = |content: String| -> Result<()> {
            let temporary = scope.path("ca/.new");
            std::fs::write(&temporary, content)?;
            Ok(std::fs::rename(temporary, &file)?)
        };
        replace("nonsense".to_owned())?;
        replace(new.pem())?;
        let identity = new.identity(Flaw::None)?;
        wait_until("the new authority is known", DEADLINE, async || {
            let status = running.tls_as(&identity).await?.get("/pods").await?.status;
            anyhow::ensure!(status == 200, "{status}");
            Ok(())
        })
        .await?;
        // On the connection that was made before.
        assert_eq!(with_old.get("/pods").await?.status, 401);
        Ok(())
    });
}

#[test]
fn settings_that_cannot_be_honoured_keep_it_from_starting() {
    in_scope("bad-settings", async |scope| {
        let missing = scope.path("missing.crt");
        let empty = scope.path("empty.crt");
        std::fs::write(&empty, "")?;
        let x509 = |file: &std::path::Path| json!({ "anonymous": { "enabled": false }, "webhook": { "enabled": false }, "x509": { "clientCAFile": file } });
        for (field, value, expected) in [
            (
                "authentication",
                json!({}),
                "no client provided, cannot use webhook authentication".to_owned(),
            ),
            (
                "authorization",
                json!({}),
                "no client provided, cannot use webhook authorization".to_owned(),
            ),
            (
                "authentication",
                json!({ "anonymous": { "enabled": false }, "webhook": { "enabled": false } }),
                "no authentication method configured".to_owned(),
            ),
            (
                "authentication",
                x509(&missing),
                format!("authentication.x509.clientCAFile: {}: ", missing.display()),
            ),
            (
                "authentication",
                x509(&empty),
                format!(
                    "authentication.x509.clientCAFile: {}: it holds no certificate",
                    empty.display()
                ),
            ),
            (
                "tlsMinVersion",
                json!("VersionTLS09"),
                "tlsMinVersion: unknown tls version \"VersionTLS09\"".to_owned(),
            ),
            (
                "tlsCipherSuites",
                json!(["TLS_X"]),
                "tlsCipherSuites: Cipher suite TLS_X not supported or doesn't exist".to_owned(),
            ),
        ] {
            let told = match Setup::new(scope)?.with(field, value.clone()).try_start().await? {
                Ok(_) => "it started".to_owned(),
                Err(error) => error.to_string(),
            };
            assert!(told.starts_with(&expected), "{field} {value}: {told}");
        }
        Ok(())
    });
}
