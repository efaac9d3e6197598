//! The client's credentials, kept up to date.
//!
//! Owns the `Authorization` header and the client certificate: files are read again when they changed, a plugin is run again
//! when its credential expired or was rejected. A file that cannot be read leaves what was read before. Nothing here is shown.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::HeaderValue;
use secrecy::ExposeSecret;
use serde::Deserialize;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use crate::exec_plugin::{ExecCredential, ExecPlugin};
use crate::failure::spell_time;
use crate::identity::ClientIdentity;
use crate::kubeconfig::{CertificateSource, ConnectError, Login};
use crate::stamp::Stamp;

/// Files are looked at this often, and a plugin is not run more often than this.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// A difference of clocks from which a 401 mentions it.
const CLOCK_SKEW: Duration = Duration::from_secs(60);

pub(crate) struct Credentials {
    login: Login,
    certificate: Option<CertificateSource>,
    identity: ClientIdentity,
    /// Held by a plugin while it runs.
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    authorization: Option<HeaderValue>,
    /// When the token expires, as far as we can know.
    expires_at: Option<SystemTime>,
    looked_at: Option<Instant>,
    certificate_stamps: Option<[Option<Stamp>; 2]>,
    token_stamp: Option<Stamp>,
    plugin_ran_at: Option<Instant>,
    is_rejected: bool,
    /// Why there is no credential.
    plugin_problem: Option<String>,
    last_warning: String,
}

impl Credentials {
    /// Reads everything for the first time.
    pub(crate) fn new(
        kubeconfig: &Path,
        login: Login,
        certificate: Option<CertificateSource>,
        may_lack_certificate: bool,
    ) -> Result<Self, ConnectError> {
        let mut state = State::default();
        let bad = |problem: String| ConnectError::File {
            path: kubeconfig.to_owned(),
            problem,
        };
        match &login {
            Login::Anonymous | Login::Exec(_) => {}
            Login::Token(token) => state.set_token(token.expose_secret()).map_err(bad)?,
            Login::TokenFile { path, fallback } => {
                if let Some(token) = fallback {
                    state.set_token(token.expose_secret()).map_err(bad)?;
                }
                match state.read_token(path) {
                    Err(problem) if fallback.is_none() => return Err(bad(problem)),
                    Ok(()) | Err(_) => {}
                }
            }
            Login::Basic { user, password } => {
                let text = STANDARD.encode(format!("{user}:{}", password.expose_secret()));
                state.authorization = Some(header(&format!("Basic {text}")).map_err(bad)?);
            }
        }
        let credentials = Self {
            login,
            certificate,
            identity: ClientIdentity::none(),
            state: Arc::default(),
        };
        match credentials.read_certificate(&mut state) {
            Err(_) if may_lack_certificate => {}
            result => result.map_err(|(field, problem)| ConnectError::Field {
                path: kubeconfig.to_owned(),
                field,
                problem,
            })?,
        }
        Ok(Self {
            state: Arc::new(Mutex::new(state)),
            ..credentials
        })
    }

    pub(crate) fn identity(&self) -> &ClientIdentity {
        &self.identity
    }

    /// The header for the next request. It may wait for a plugin, as long as the caller's deadline allows.
    pub(crate) async fn authorization(&self) -> Result<Option<HeaderValue>, String> {
        let mut state = Arc::clone(&self.state).lock_owned().await;
        let now = Instant::now();
        if state.looked_at.is_none_or(|at| now - at >= LOOK_AGAIN) {
            state.looked_at = Some(now);
            self.look_at_files(&mut state);
        }
        if let Login::Exec(plugin) = &self.login {
            if state.is_plugin_due(now) {
                let run = run(Arc::clone(plugin), self.identity.clone(), state);
                // In a task of its own: it comes to its end when the caller gives up, and serves the callers that wait then.
                let ended = tokio::spawn(run).await;
                state = ended.map_err(|error| format!("the credential plugin was not run: {error}"))?;
            }
            if let Some(problem) = &state.plugin_problem {
                return Err(problem.clone());
            }
        }
        Ok(state.authorization.clone())
    }

    /// The server does not know us: the next request looks at everything again. Returns what we know about the cause.
    pub(crate) async fn rejected(&self, server_time: Option<SystemTime>) -> String {
        let mut state = self.state.lock().await;
        state.looked_at = None;
        state.is_rejected = true;
        let now = SystemTime::now();
        let mut causes = Vec::new();
        if let Some(at) = self.identity.expires_at().filter(|at| *at <= now) {
            causes.push(format!("our client certificate expired at {}", spell_time(at)));
        }
        if let Some(from) = self.identity.valid_from().filter(|from| *from > now) {
            causes.push(format!(
                "our client certificate is valid only from {}, this node's clock may be behind",
                spell_time(from)
            ));
        }
        if let Some(at) = state.expires_at.filter(|at| *at <= now) {
            causes.push(format!("our token expired at {}", spell_time(at)));
        }
        causes.extend(server_time.and_then(|theirs| clock_skew(now, theirs)));
        if causes.is_empty() && state.authorization.is_none() && self.identity.expires_at().is_none() {
            causes.push("we have no credentials".to_owned());
        }
        causes.join("; ")
    }

    fn look_at_files(&self, state: &mut State) {
        let certificate = self
            .read_certificate(state)
            .map_err(|(field, problem)| format!("{field}: {problem}"));
        let token = match &self.login {
            Login::TokenFile { path, .. } if Stamp::of(path) != state.token_stamp => state.read_token(path),
            _ => Ok(()),
        };
        let problems: Vec<String> = [certificate, token].into_iter().filter_map(Result::err).collect();
        let warning = problems.join("; ");
        if state.last_warning != warning {
            if !warning.is_empty() {
                tracing::warn!(problem = warning, "credentials cannot be read again");
            }
            state.last_warning = warning;
        }
    }

    /// An error names the field and the problem.
    fn read_certificate(&self, state: &mut State) -> Result<(), (String, String)> {
        let Some(source) = &self.certificate else {
            return Ok(());
        };
        let stamps = [&source.certificate, &source.key].map(|text| text.path().and_then(Stamp::of));
        if state.certificate_stamps.as_ref() == Some(&stamps) {
            return Ok(());
        }
        let mut pem = [Vec::new(), Vec::new()];
        for (pem, text) in pem.iter_mut().zip([&source.certificate, &source.key]) {
            let failed = |error| {
                let place = text
                    .path()
                    .map_or(String::new(), |path| format!("{}: ", path.display()));
                (text.field().to_owned(), format!("{place}{error}"))
            };
            *pem = text.read().map_err(failed)?;
        }
        let [certificate, key] = pem;
        self.identity
            .replace(&certificate, &key)
            .map_err(|error| (source.certificate.field().to_owned(), error.to_string()))?;
        state.certificate_stamps = Some(stamps);
        Ok(())
    }
}

/// Runs a plugin and takes what it answers. It has a deadline of its own.
async fn run(
    plugin: Arc<ExecPlugin>,
    identity: ClientIdentity,
    mut state: OwnedMutexGuard<State>,
) -> OwnedMutexGuard<State> {
    state.plugin_problem = match plugin.run().await {
        Ok(credential) => state.take(&credential, &identity).err(),
        Err(problem) => Some(problem),
    };
    state.plugin_ran_at = Some(Instant::now());
    state.is_rejected = false;
    state
}

impl State {
    fn is_plugin_due(&self, now: Instant) -> bool {
        let is_expired = self.expires_at.is_some_and(|at| at <= SystemTime::now());
        let has_run = self.plugin_ran_at.is_some() && self.plugin_problem.is_none();
        let is_needed = !has_run || is_expired || self.is_rejected;
        let is_early = self.plugin_ran_at.is_some_and(|at| now - at < LOOK_AGAIN);
        is_needed && !is_early
    }

    fn take(&mut self, credential: &ExecCredential, identity: &ClientIdentity) -> Result<(), String> {
        self.authorization = None;
        if let Some(token) = &credential.token {
            self.set_token(token.expose_secret())?;
        }
        if let Some((certificate, key)) = &credential.certificate {
            let replaced = identity.replace(certificate, key);
            replaced.map_err(|error| format!("the credential plugin's certificate: {error}"))?;
        }
        self.expires_at = credential.expires_at;
        Ok(())
    }

    fn read_token(&mut self, path: &Path) -> Result<(), String> {
        let stamp = Stamp::of(path);
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("tokenFile {}: {error}", path.display()))?;
        let token = text.trim();
        if token.is_empty() {
            return Err(format!("tokenFile {}: it is empty", path.display()));
        }
        self.set_token(token)?;
        self.token_stamp = stamp;
        Ok(())
    }

    fn set_token(&mut self, token: &str) -> Result<(), String> {
        self.authorization = Some(header(&format!("Bearer {token}"))?);
        self.expires_at = expiry(token);
        Ok(())
    }
}

fn header(text: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| "the token or password has characters that cannot be sent".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

/// When a token of the usual form (JWT) expires. Nothing is verified: it only serves a message.
fn expiry(token: &str) -> Option<SystemTime> {
    #[derive(Deserialize)]
    struct Claims {
        exp: u64,
    }
    let payload = token.split('.').nth(1)?;
    let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(claims.exp))
}

fn clock_skew(ours: SystemTime, theirs: SystemTime) -> Option<String> {
    let (distance, direction) = match ours.duration_since(theirs) {
        Ok(ahead) => (ahead, "ahead of"),
        Err(behind) => (behind.duration(), "behind"),
    };
    (distance >= CLOCK_SKEW).then(|| {
        format!(
            "this node's clock is {} s {direction} the API server's",
            distance.as_secs()
        )
    })
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;

    const PATH: &str = "/etc/kubernetes/kubelet.conf";

    fn with(login: Login) -> Credentials {
        Credentials::new(Path::new(PATH), login, None, false).unwrap()
    }

    async fn shown(credentials: &Credentials) -> String {
        let header = credentials.authorization().await.unwrap().unwrap();
        assert!(header.is_sensitive());
        header.to_str().unwrap().to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_file_is_read_again_when_it_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        std::fs::write(&path, "first\n").unwrap();
        let credentials = with(Login::TokenFile {
            path: path.clone(),
            fallback: None,
        });
        assert_eq!(shown(&credentials).await, "Bearer first");
        std::fs::write(&path, "second-and-longer\n").unwrap();
        tokio::time::advance(LOOK_AGAIN).await;
        assert_eq!(shown(&credentials).await, "Bearer second-and-longer");
        // Gone or empty: the last one stays.
        std::fs::remove_file(&path).unwrap();
        tokio::time::advance(LOOK_AGAIN).await;
        assert_eq!(shown(&credentials).await, "Bearer second-and-longer");
        std::fs::write(&path, "third\n").unwrap();
        credentials.rejected(None).await;
        assert_eq!(shown(&credentials).await, "Bearer third");
    }

    #[tokio::test]
    async fn a_missing_token_file_is_an_error_unless_there_is_a_token() {
        let path = Path::new("/nonexistent/token");
        let login = Login::TokenFile {
            path: path.to_owned(),
            fallback: None,
        };
        let error = Credentials::new(Path::new(PATH), login, None, false)
            .err()
            .unwrap();
        assert!(error.to_string().contains("/nonexistent/token"), "{error}");
        let credentials = with(Login::TokenFile {
            path: path.to_owned(),
            fallback: Some(SecretString::from("spare")),
        });
        assert_eq!(shown(&credentials).await, "Bearer spare");
    }

    #[tokio::test]
    async fn user_and_password_are_sent_as_basic() {
        let credentials = with(Login::Basic {
            user: "a".to_owned(),
            password: SecretString::from("b"),
        });
        assert_eq!(shown(&credentials).await, "Basic YTpi");
    }

    #[tokio::test]
    async fn a_rejection_is_explained() {
        let payload = URL_SAFE_NO_PAD.encode(r#"{"exp":1000000000}"#);
        let credentials = with(Login::Token(SecretString::from(format!("x.{payload}.y"))));
        let words = credentials
            .rejected(Some(SystemTime::now() + Duration::from_secs(3600)))
            .await;
        assert!(
            words.contains("our token expired at 2001-09-09T01:46:40Z"),
            "{words}"
        );
        assert!(words.contains("behind the API server's"), "{words}");
        let words = with(Login::Anonymous).rejected(None).await;
        assert_eq!(words, "we have no credentials");
        let opaque = with(Login::Token(SecretString::from("opaque")));
        assert_eq!(opaque.rejected(Some(SystemTime::now())).await, "");
    }
}
