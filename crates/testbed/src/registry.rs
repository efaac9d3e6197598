//! A private image registry on a loopback port, with or without a password and TLS. Its content is the scope's and goes with it.

use std::fmt;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use serde_json::{Value, json};

use crate::http::{Request, Response, exchange};
use crate::images::ImageArchive;
use crate::process::Process;
use crate::scope::Scope;
use crate::wait::wait_for;

const PROGRAM: &str = "/usr/bin/docker-registry";
const DEADLINE: Duration = Duration::from_secs(30);

/// A user of the registry. The password shows in no output.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub username: String,
    pub password: String,
}

impl Credentials {
    /// A user by name and password.
    pub fn new(username: &str, password: &str) -> Self {
        Self {
            username: username.to_owned(),
            password: password.to_owned(),
        }
    }

    fn basic(&self) -> String {
        let pair = format!("{}:{}", self.username, self.password);
        format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
    }

    /// The line of a password file. Perl is there on every Debian, and its `crypt` knows bcrypt, the one hash that the
    /// registry takes; the password goes through a pipe, where the process list does not show it.
    fn password_line(&self) -> Result<String> {
        const SCRIPT: &str =
            r#"my $p = do { local $/; <STDIN> }; print crypt($p, '$2b$05$abcdefghijklmnopqrstuu')"#;
        let mut perl = Command::new("perl")
            .args(["-e", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("run perl")?;
        perl.stdin
            .take()
            .context("no pipe to perl")?
            .write_all(self.password.as_bytes())?;
        let output = perl.wait_with_output()?;
        let hash = String::from_utf8(output.stdout)?;
        ensure!(
            hash.starts_with("$2b$"),
            "this machine's crypt does not know bcrypt"
        );
        Ok(format!("{}:{hash}\n", self.username))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Credentials")
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

/// A running registry. Dropping it ends it.
pub struct Registry {
    host: String,
    dir: PathBuf,
    credentials: Option<Credentials>,
    process: Process,
}

/// Another way to the same content, with TLS. Dropping it ends it.
pub struct TlsDoor {
    host: String,
    certificate: PathBuf,
    _process: Process,
}

impl TlsDoor {
    /// `host:port`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The certificate that signs for it.
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }
}

impl Registry {
    /// Starts a registry that asks for these credentials, or for none.
    pub fn start(scope: &Scope, credentials: Option<Credentials>) -> Result<Self> {
        let port = scope.port()?;
        let host = format!("127.0.0.1:{port}");
        let dir = scope.path(&format!("registry-{port}"));
        fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))?;
        let mut passwords = None;
        if let Some(credentials) = &credentials {
            let path = dir.join("passwords");
            fs::write(&path, credentials.password_line()?).context("write the registry's password file")?;
            passwords = Some(path);
        }
        let config = configuration(scope, &host, &dir, passwords.as_deref());
        let process = serve(scope, &dir, port, &config)?;
        let mut registry = Self {
            host,
            dir,
            credentials,
            process,
        };
        wait_for("the registry answers", DEADLINE, || {
            registry.process.check_running()?;
            registry.ask("GET", "/v2/", None, &[])?.expect(&[200])
        })?;
        Ok(registry)
    }

    /// `host:port`: the first part of the names of its images.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Serves the same content, with the same password, over TLS too.
    pub fn open_tls_door(&self, scope: &Scope) -> Result<TlsDoor> {
        let port = scope.port()?;
        let host = format!("127.0.0.1:{port}");
        let made =
            rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).context("make a certificate")?;
        let (certificate, key) = (self.dir.join("tls.crt"), self.dir.join("tls.key"));
        fs::write(&certificate, made.cert.pem()).context("write the registry's certificate")?;
        fs::write(&key, made.signing_key.serialize_pem()).context("write the registry's key")?;
        let passwords = self.credentials.as_ref().map(|_| self.dir.join("passwords"));
        let mut config = configuration(scope, &host, &self.dir, passwords.as_deref());
        config["http"]["tls"] = json!({ "certificate": certificate, "key": key });
        let mut process = serve(scope, &self.dir, port, &config)?;
        wait_for("the registry listens with TLS", DEADLINE, || {
            process.check_running()?;
            TcpStream::connect(&host).map(drop).context("connect")
        })?;
        Ok(TlsDoor {
            host,
            certificate,
            _process: process,
        })
    }

    /// Stores an image under `repository:tag` and returns its full name.
    pub fn push(&self, archive: &ImageArchive, name: &str) -> Result<String> {
        let (repository, tag) = name
            .rsplit_once(':')
            .with_context(|| format!("{name}: no tag in the name"))?;
        let mut blobs = archive.blobs()?;
        let manifest = blobs.pop().context("an archive without a manifest")?;
        for blob in blobs {
            let upload = format!("/v2/{repository}/blobs/uploads/");
            let started = self.ask("POST", &upload, None, &[])?;
            started.expect(&[202])?;
            let location = started
                .header("Location")
                .context("the registry did not say where to upload to")?;
            let location = location
                .strip_prefix(&format!("http://{}", self.host))
                .unwrap_or(location);
            let separator = if location.contains('?') { '&' } else { '?' };
            let path = format!("{location}{separator}digest={}", blob.digest);
            self.ask("PUT", &path, Some("application/octet-stream"), &blob.bytes)?
                .expect(&[201])?;
        }
        let path = format!("/v2/{repository}/manifests/{tag}");
        self.ask("PUT", &path, Some(&manifest.media_type), &manifest.bytes)?
            .expect(&[201])?;
        Ok(format!("{}/{name}", self.host))
    }

    fn ask(&self, method: &str, path: &str, content_type: Option<&str>, body: &[u8]) -> Result<Response> {
        let mut headers = Vec::new();
        if let Some(kind) = content_type {
            headers.push(("Content-Type", kind.to_owned()));
        }
        if let Some(credentials) = &self.credentials {
            headers.push(("Authorization", credentials.basic()));
        }
        exchange(
            &self.host,
            &Request {
                method,
                path,
                headers,
                body,
            },
        )
    }
}

fn configuration(scope: &Scope, host: &str, dir: &Path, passwords: Option<&Path>) -> Value {
    let mut config = json!({
        "version": 0.1,
        "log": { "level": "info" },
        "storage": { "filesystem": { "rootdirectory": dir.join("data") }, "delete": { "enabled": true } },
        "http": { "addr": host, "secret": scope.id() },
    });
    if let Some(path) = passwords {
        config["auth"] = json!({ "htpasswd": { "realm": "rubelet-test", "path": path } });
    }
    config
}

fn serve(scope: &Scope, dir: &Path, port: u16, config: &Value) -> Result<Process> {
    // Every JSON document is a YAML document.
    let config_file = dir.join(format!("config-{port}.yml"));
    fs::write(&config_file, serde_json::to_vec_pretty(config)?)
        .context("write the registry's configuration")?;
    let mut command = Command::new(PROGRAM);
    command.arg("serve").arg(config_file).current_dir(dir);
    // Its settings can come from the environment too; the test's own must not.
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("OTEL_TRACES_EXPORTER", "none");
    scope.spawn(&format!("registry-{port}"), command)
}

impl Response {
    fn expect(&self, statuses: &[u16]) -> Result<()> {
        if !statuses.contains(&self.status) {
            bail!("the registry answered {}: {}", self.status, self.text());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_shows_nowhere() {
        let credentials = Credentials::new("someone", "hidden-word");
        assert!(!format!("{credentials:?}").contains("hidden"));
        let line = credentials.password_line().unwrap();
        assert!(
            line.starts_with("someone:$2b$05$") && !line.contains("hidden"),
            "{line}"
        );
    }
}
