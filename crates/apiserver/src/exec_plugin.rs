//! Credentials from a program that the kubeconfig names.
//!
//! Owns running it (without a terminal, with a deadline) and reading its answer. What it writes to its standard error goes to
//! ours; its answer is secret and never shown.

use std::process::Stdio;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use k8s_openapi::jiff::Timestamp;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::kubeconfig::{Cluster, ExecConfig};

const DEADLINE: Duration = Duration::from_secs(60);

const API_VERSIONS: [&str; 2] = [
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
];

/// Where a cluster keeps what only the plugin understands.
const EXTENSION: &str = "client.authentication.k8s.io/exec";

pub(crate) struct ExecPlugin {
    command: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    api_version: String,
    /// `KUBERNETES_EXEC_INFO`
    input: String,
    install_hint: Option<String>,
}

/// What a plugin answered.
pub(crate) struct ExecCredential {
    pub(crate) token: Option<SecretString>,
    pub(crate) certificate: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) expires_at: Option<SystemTime>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "apiVersion")]
    api_version: String,
    status: Option<AnswerStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnswerStatus {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl ExecPlugin {
    /// An error names the field below `exec` and the problem with it.
    pub(crate) fn new(
        config: &ExecConfig,
        cluster: &Cluster,
        server: &Uri,
    ) -> Result<Self, (&'static str, String)> {
        let command = config
            .command
            .clone()
            .filter(|command| !command.is_empty())
            .ok_or_else(|| ("command", "is not set".to_owned()))?;
        let api_version = config.api_version.clone().unwrap_or_default();
        if !API_VERSIONS.contains(&api_version.as_str()) {
            let problem = format!("{api_version:?} is none of {}", API_VERSIONS.join(", "));
            return Err(("apiVersion", problem));
        }
        if config.interactive_mode.as_deref() == Some("Always") {
            return Err(("interactiveMode", "a node has no terminal".to_owned()));
        }
        let mut spec = json!({"interactive": false});
        if config.provide_cluster_info {
            spec["cluster"] = cluster_info(cluster, server);
        }
        let input = json!({"apiVersion": api_version, "kind": "ExecCredential", "spec": spec});
        Ok(Self {
            command,
            arguments: config.args.clone(),
            environment: config.env.clone(),
            api_version,
            input: input.to_string(),
            install_hint: config.install_hint.clone(),
        })
    }

    pub(crate) async fn run(&self) -> Result<ExecCredential, String> {
        let output = Command::new(&self.command)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env("KUBERNETES_EXEC_INFO", &self.input)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| self.failed(&self.cannot_start(&error)))?
            .wait_with_output();
        let output = tokio::time::timeout(DEADLINE, output)
            .await
            .map_err(|_| self.failed(&format!("no answer within {} s", DEADLINE.as_secs())))?
            .map_err(|error| self.failed(&error.to_string()))?;
        if !output.status.success() {
            return Err(self.failed(&format!(
                "{}; what it wrote to its standard error is in ours",
                output.status
            )));
        }
        self.parse(&output.stdout)
            .map_err(|problem| self.failed(&problem))
    }

    fn cannot_start(&self, error: &std::io::Error) -> String {
        match &self.install_hint {
            Some(hint) if error.kind() == std::io::ErrorKind::NotFound => format!("{error}; {hint}"),
            _ => error.to_string(),
        }
    }

    fn failed(&self, problem: &str) -> String {
        format!("the credential plugin {:?} failed: {problem}", self.command)
    }

    fn parse(&self, answer: &[u8]) -> Result<ExecCredential, String> {
        // The message of serde is left out: it may quote the credential.
        let answer: Answer =
            serde_json::from_slice(answer).map_err(|_| "its answer is no ExecCredential".to_owned())?;
        if answer.api_version != self.api_version {
            return Err(format!(
                "its answer is of version {:?}, asked for was {:?}",
                answer.api_version, self.api_version
            ));
        }
        let status = answer.status.ok_or("its answer has no status")?;
        let certificate = match (status.client_certificate_data, status.client_key_data) {
            (Some(certificate), Some(key)) => Some((certificate.into_bytes(), key.into_bytes())),
            (None, None) => None,
            _ => return Err("its answer has a certificate or a key, but not both".to_owned()),
        };
        let token = status.token.filter(|token| !token.is_empty());
        if token.is_none() && certificate.is_none() {
            return Err("its answer has neither a token nor a certificate".to_owned());
        }
        let expires_at = status.expiration_timestamp.map(|text| {
            let parsed = text.parse::<Timestamp>();
            parsed
                .map(SystemTime::from)
                .map_err(|_| format!("expirationTimestamp {text:?} is no time"))
        });
        Ok(ExecCredential {
            token: token.map(SecretString::from),
            certificate,
            expires_at: expires_at.transpose()?,
        })
    }
}

/// The authority is given as data, also when the kubeconfig names a file; a file that cannot be read is left out here and
/// reported where the authority is needed.
fn cluster_info(cluster: &Cluster, server: &Uri) -> Value {
    let mut info = json!({"server": server.to_string()});
    let mut set = |field: &str, value: Option<Value>| {
        if let Some(value) = value {
            info[field] = value;
        }
    };
    let authority = match (
        &cluster.certificate_authority_data,
        &cluster.certificate_authority,
    ) {
        (Some(data), _) => Some(data.clone()),
        (None, Some(path)) => std::fs::read(path).ok().map(|pem| STANDARD.encode(pem)),
        (None, None) => None,
    };
    set("certificate-authority-data", authority.map(Value::from));
    set(
        "tls-server-name",
        cluster.tls_server_name.clone().map(Value::from),
    );
    set(
        "insecure-skip-tls-verify",
        cluster.insecure_skip_tls_verify.map(Value::from),
    );
    set("proxy-url", cluster.proxy_url.clone().map(Value::from));
    set(
        "disable-compression",
        cluster.disable_compression.map(Value::from),
    );
    let extension = cluster
        .extensions
        .iter()
        .find(|extension| extension.name == EXTENSION);
    set("config", extension.map(|extension| extension.extension.clone()));
    info
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn plugin(script: &str) -> ExecPlugin {
        let config = ExecConfig {
            api_version: Some(API_VERSIONS[0].to_owned()),
            command: Some("/bin/sh".to_owned()),
            args: vec!["-c".to_owned(), script.to_owned()],
            provide_cluster_info: true,
            ..ExecConfig::default()
        };
        let cluster = Cluster {
            certificate_authority_data: Some("Q0E=".to_owned()),
            ..Cluster::default()
        };
        ExecPlugin::new(&config, &cluster, &Uri::from_static("https://api:6443"))
            .map_err(|(field, problem)| format!("{field}: {problem}"))
            .unwrap()
    }

    #[tokio::test]
    async fn a_token_comes_with_its_expiry() {
        let script = r#"
            case "$KUBERNETES_EXEC_INFO" in *'"server":"https://api:6443/"'*) ;; *) exit 3;; esac
            case "$KUBERNETES_EXEC_INFO" in *'"certificate-authority-data":"Q0E="'*) ;; *) exit 4;; esac
            echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",
                   "status":{"token":"t0ken","expirationTimestamp":"2030-01-02T03:04:05Z"}}'"#;
        let credential = plugin(script).run().await.unwrap();
        assert_eq!(credential.token.unwrap().expose_secret(), "t0ken");
        let expected = SystemTime::from("2030-01-02T03:04:05Z".parse::<Timestamp>().unwrap());
        assert_eq!(credential.expires_at, Some(expected));
        assert!(credential.certificate.is_none());
    }

    #[tokio::test]
    async fn failures_say_why_and_never_what_was_answered() {
        let check = async |script: &str, expected: &str| {
            let error = plugin(script).run().await.err().expect("it fails");
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("t0ken"), "{error}");
        };
        check("exit 7", "exit status: 7").await;
        check("echo t0ken", "no ExecCredential").await;
        check(
            r#"echo '{"apiVersion":"client.authentication.k8s.io/v1beta1","status":{"token":"t0ken"}}'"#,
            "asked for was",
        )
        .await;
        check(
            r#"echo '{"apiVersion":"client.authentication.k8s.io/v1","status":{}}'"#,
            "neither a token nor a certificate",
        )
        .await;
        check(
            r#"echo '{"apiVersion":"client.authentication.k8s.io/v1","status":{"clientKeyData":"t0ken"}}'"#,
            "not both",
        )
        .await;
    }

    #[tokio::test]
    async fn a_missing_program_comes_with_its_hint() {
        let config = ExecConfig {
            api_version: Some(API_VERSIONS[0].to_owned()),
            command: Some("/nonexistent/plugin".to_owned()),
            install_hint: Some("install it".to_owned()),
            ..ExecConfig::default()
        };
        let server = Uri::from_static("https://api");
        let Ok(plugin) = ExecPlugin::new(&config, &Cluster::default(), &server) else {
            panic!("the configuration is good");
        };
        let error = plugin.run().await.err().expect("there is no such program");
        assert!(
            error.contains("/nonexistent/plugin") && error.ends_with("install it"),
            "{error}"
        );
    }
}
