//! The certificate that the server shows, and what it negotiates.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rubelet_server::{BadPair, ServingCertificate};
use rubelet_testbed::in_scope;
use rubelet_testbed::wait::wait_until;
use serde_json::json;
use tokio_rustls::rustls::crypto::aws_lc_rs::{self, cipher_suite as suite};
use tokio_rustls::rustls::version::{TLS12, TLS13};

use crate::client::{Connection, DEADLINE};
use crate::fixture::{Setup, pair};

#[test]
fn a_self_signed_pair_is_made_once() {
    in_scope("self-signed", async |scope| {
        let (certificate, key) = (scope.path("pki/kubelet.crt"), scope.path("pki/kubelet.key"));
        let running = Setup::new(scope)?.without_certificate()?.start().await?;
        let mode =
            |path: &std::path::Path| fs::metadata(path).map(|found| found.permissions().mode() & 0o777);
        assert_eq!((mode(&certificate)?, mode(&key)?), (0o644, 0o600));
        let text = String::from_utf8(
            Command::new("openssl")
                .args(["x509", "-noout", "-text", "-in"])
                .arg(&certificate)
                .output()?
                .stdout,
        )?;
        for words in [
            "Issuer: CN = node-a-ca@",
            "Subject: CN = node-a@",
            "Public-Key: (2048 bit)",
            "sha256WithRSAEncryption",
            "Digital Signature, Key Encipherment",
            "TLS Web Server Authentication",
            "CA:FALSE",
            "DNS:node-a",
        ] {
            assert!(text.contains(words), "{words} is missing in:\n{text}");
        }
        let made = (fs::read(&certificate)?, fs::read(&key)?);
        assert_eq!(
            String::from_utf8_lossy(&made.0)
                .matches("BEGIN CERTIFICATE")
                .count(),
            2
        );
        running.server.stop().await;

        let running = Setup::new(scope)?.start().await?;
        assert_eq!(made, (fs::read(&certificate)?, fs::read(&key)?));
        running.server.stop().await;

        fs::remove_file(&key)?;
        let told = Setup::new(scope)?
            .try_start()
            .await?
            .err()
            .context("it started")?;
        assert!(told.to_string().contains("must both be there"), "{told}");

        // What a power loss between the two files leaves.
        fs::write(&key, "half")?;
        fs::remove_file(&certificate)?;
        let running = Setup::new(scope)?.start().await?;
        assert_eq!(running.tls().await?.get("/healthz").await?.status, 200);
        assert_eq!(fs::read(scope.path("pki/kubelet.key.old"))?, b"half");
        Ok(())
    });
}

#[test]
fn a_given_pair_is_used_and_read_again_when_it_changes() {
    in_scope("given-pair", async |scope| {
        let (certificate, key) = (scope.path("tls/tls.crt"), scope.path("tls/tls.key"));
        let (first, second) = (pair()?, pair()?);
        fs::write(&certificate, &first.0)?;
        fs::write(&key, &first.1)?;
        let running = Setup::new(scope)?
            .without_certificate()?
            .with("tlsCertFile", json!(certificate))
            .with("tlsPrivateKeyFile", json!(key))
            .start()
            .await?;
        assert!(!scope.path("pki/kubelet.crt").exists());
        let trusted = |content: &str| -> Result<std::path::PathBuf> {
            let path = scope.path("trusted.crt");
            fs::write(&path, content)?;
            Ok(path)
        };
        let port = running.ports.tls;
        let mut before = Connection::tls(port, &trusted(&first.0)?, None).await?;
        assert_eq!(before.get("/healthz").await?.status, 200);
        // One after the other, so that there is a moment where they do not fit.
        fs::write(&certificate, &second.0)?;
        fs::write(&key, &second.1)?;
        let path = trusted(&second.0)?;
        wait_until("the new certificate is shown", DEADLINE, async || {
            Connection::tls(port, &path, None).await.map(drop)
        })
        .await?;
        assert_eq!(before.get("/healthz").await?.status, 200);
        Ok(())
    });
}

#[test]
fn a_pair_that_does_not_fit_keeps_it_from_starting() {
    in_scope("bad-pair", async |scope| {
        let (certificate, key) = (scope.path("tls.crt"), scope.path("tls.key"));
        fs::write(&certificate, pair()?.0)?;
        for (content, expected) in [
            (pair()?.1, "tlsCertFile: "),
            ("-----BEGIN secret".to_owned(), "tlsPrivateKeyFile: "),
        ] {
            fs::write(&key, content)?;
            let setup = Setup::new(scope)?
                .with("tlsCertFile", json!(certificate))
                .with("tlsPrivateKeyFile", json!(key));
            let told = setup.try_start().await?.err().context("it started")?.to_string();
            assert!(told.starts_with(expected) && !told.contains("secret"), "{told}");
        }
        Ok(())
    });
}

#[test]
fn versions_are_as_configured() {
    in_scope("versions", async |scope| {
        for (minimum, older) in [("VersionTLS12", true), ("VersionTLS13", false)] {
            let running = Setup::new(scope)?
                .with("tlsMinVersion", json!(minimum))
                .start()
                .await?;
            let port = running.ports.tls;
            let newest = Connection::tls_with(port, &running.certificate, None, &[&TLS13]).await;
            assert_eq!(newest?.get("/healthz").await?.status, 200);
            let old = Connection::tls_with(port, &running.certificate, None, &[&TLS12]).await;
            ensure!(old.is_ok() == older, "{minimum}: TLS 1.2 spoken: {}", old.is_ok());
            running.server.stop().await;
        }
        Ok(())
    });
}

#[test]
fn cipher_suites_are_as_configured() {
    use suite::{
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 as SMALL, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 as LARGE,
    };
    in_scope("suites", async |scope| {
        for (configured, small, large) in [
            (json!([]), true, true),
            (json!(["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"]), false, true),
            (json!(["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"]), true, false),
        ] {
            let running = Setup::new(scope)?
                .with("tlsCipherSuites", configured.clone())
                .start()
                .await?;
            let port = running.ports.tls;
            for (offered, expected) in [(SMALL, small), (LARGE, large)] {
                let mut provider = aws_lc_rs::default_provider();
                provider.cipher_suites = vec![offered];
                let spoken =
                    Connection::tls_speaking(port, &running.certificate, None, &[&TLS12], provider).await;
                ensure!(
                    spoken.is_ok() == expected,
                    "{configured}: {offered:?}: {}",
                    spoken.is_ok()
                );
                if let Ok(mut spoken) = spoken {
                    assert_eq!(spoken.get("/healthz").await?.status, 200);
                }
            }
            // The suites of the newest version are not chosen.
            let newest = Connection::tls_with(port, &running.certificate, None, &[&TLS13]).await;
            assert_eq!(newest?.get("/healthz").await?.status, 200);
            running.server.stop().await;
        }
        Ok(())
    });
}

#[test]
fn a_certificate_of_somebody_else_is_shown_from_when_it_is_there() {
    in_scope("given-certificate", async |scope| {
        let certificate = ServingCertificate::new();
        let mut setup = Setup::new(scope)?.without_certificate()?;
        setup.certificate = Some(Arc::clone(&certificate));
        let running = setup.start().await?;
        // With a given certificate the server writes none of its own.
        assert!(!scope.path("pki/kubelet.crt").exists());
        let port = running.ports.tls;
        let connect = async |content: &str| {
            let path = scope.path("trusted.crt");
            fs::write(&path, content)?;
            Connection::tls(port, &path, None).await
        };
        let (first, second) = (pair()?, pair()?);
        ensure!(
            connect(&first.0).await.is_err(),
            "a handshake without a certificate"
        );
        certificate.replace(first.0.as_bytes(), first.1.as_bytes())?;
        let mut before = connect(&first.0).await?;
        assert_eq!(before.get("/healthz").await?.status, 200);

        let crossed = certificate.replace(first.0.as_bytes(), second.1.as_bytes());
        let crossed = crossed.err().context("a pair that does not fit")?;
        assert!(
            crossed.to_string().starts_with("it does not fit its key"),
            "{crossed}"
        );
        let empty = certificate.replace(b"", first.1.as_bytes());
        assert_eq!(
            empty,
            Err(BadPair::Certificate("it holds no certificate".to_owned()))
        );
        let no_key = certificate.replace(first.0.as_bytes(), b"-----BEGIN secret");
        assert_eq!(no_key, Err(BadPair::Key));
        connect(&first.0).await?;

        certificate.replace(second.0.as_bytes(), second.1.as_bytes())?;
        connect(&second.0).await?;
        ensure!(
            connect(&first.0).await.is_err(),
            "the old certificate is still shown"
        );
        assert_eq!(before.get("/healthz").await?.status, 200);
        assert_eq!(format!("{certificate:?}"), "ServingCertificate(a pair)");
        let shown = before.get("/configz").await?.json()?;
        assert_eq!(shown["kubeletconfig"]["tlsCertFile"], serde_json::Value::Null);
        Ok(())
    });
}
