//! The current context of a kubeconfig, field by field.

use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use rubelet_model::address::split_host_port;
use rubelet_proxy::{Proxy, ProxyError};
use secrecy::ExposeSecret;
use tokio_rustls::rustls::pki_types::ServerName;

use super::content::{Cluster, Context, Kubeconfig, User};
use super::{CertificateSource, ConnectError, Login, Text, Trust};
use crate::exec_plugin::ExecPlugin;

/// What the current context points to.
pub(super) struct Chosen<'a> {
    path: &'a Path,
    cluster_name: &'a str,
    pub(super) cluster: Cluster,
    user_name: &'a str,
    user: User,
}

impl<'a> Chosen<'a> {
    pub(super) fn of(path: &'a Path, file: &'a Kubeconfig) -> Result<Self, ConnectError> {
        let bad = |field: &str, problem: String| ConnectError::Field {
            path: path.to_owned(),
            field: field.to_owned(),
            problem,
        };
        let current = file
            .current_context
            .as_deref()
            .filter(|name| !name.is_empty())
            .ok_or_else(|| bad("current-context", "is not set".to_owned()))?;
        let context: &Context = file
            .contexts
            .iter()
            .find(|named| named.name == current)
            .and_then(|named| named.value.as_ref())
            .ok_or_else(|| bad("current-context", format!("there is no context {current:?}")))?;
        let cluster = file
            .clusters
            .iter()
            .find(|named| named.name == context.cluster)
            .and_then(|named| named.value.clone())
            .ok_or_else(|| {
                let problem = format!("there is no cluster {:?}", context.cluster);
                bad(&format!("contexts[{current}].context.cluster"), problem)
            })?;
        let user_field = format!("contexts[{current}].context.user");
        let user_name = context
            .user
            .as_deref()
            .filter(|name| !name.is_empty())
            .ok_or_else(|| bad(&user_field, "is not set".to_owned()))?;
        let user = file
            .users
            .iter()
            .find(|named| named.name == user_name)
            .ok_or_else(|| bad(&user_field, format!("there is no user {user_name:?}")))?
            .value
            .clone();
        Ok(Self {
            path,
            cluster_name: &context.cluster,
            cluster,
            user_name,
            user: user.unwrap_or_default(),
        })
    }

    fn cluster_field(&self, field: &str) -> String {
        format!("clusters[{}].cluster.{field}", self.cluster_name)
    }

    fn user_field(&self, field: &str) -> String {
        format!("users[{}].user.{field}", self.user_name)
    }

    fn bad(&self, field: String, problem: impl Into<String>) -> ConnectError {
        ConnectError::Field {
            path: self.path.to_owned(),
            field,
            problem: problem.into(),
        }
    }

    /// An address without scheme is HTTPS when anything about TLS is set, as for upstream.
    pub(super) fn server(&self, speaks_tls: bool) -> Result<Uri, ConnectError> {
        let field = || self.cluster_field("server");
        let given = present(self.cluster.server.as_deref()).ok_or_else(|| self.bad(field(), "is not set"))?;
        let spelled = if given.contains("://") {
            given.to_owned()
        } else if speaks_tls {
            format!("https://{given}")
        } else {
            format!("http://{given}")
        };
        let parsed: Uri = spelled
            .parse()
            .map_err(|_| self.bad(field(), format!("{given:?} is no URL")))?;
        let authority = parsed.authority().map_or("", |authority| authority.as_str());
        let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place);
        let is_complete = split_host_port(place).is_some();
        match parsed.scheme_str() {
            Some("https" | "http") if is_complete => Ok(parsed),
            Some("https" | "http") => Err(self.bad(
                field(),
                format!("{given:?} names no host, or a port that is not a number up to 65535"),
            )),
            _ => Err(self.bad(field(), format!("{given:?} is neither https nor http"))),
        }
    }

    pub(super) fn trust(&self) -> Result<Trust, ConnectError> {
        let authorities = self.text(
            self.cluster.certificate_authority_data.as_deref(),
            self.cluster.certificate_authority.as_deref(),
            |field| self.cluster_field(field),
            "certificate-authority",
        )?;
        match (authorities, self.cluster.insecure_skip_tls_verify) {
            (Some(_), Some(true)) => Err(self.bad(
                self.cluster_field("insecure-skip-tls-verify"),
                "cannot be used together with a certificate authority",
            )),
            (None, Some(true)) => Ok(Trust::AnyServer),
            (Some(authorities), _) => Ok(Trust::These(authorities)),
            (None, _) => Ok(Trust::System),
        }
    }

    pub(super) fn server_name(&self) -> Result<Option<ServerName<'static>>, ConnectError> {
        let Some(name) = present(self.cluster.tls_server_name.as_deref()) else {
            return Ok(None);
        };
        let problem = || {
            self.bad(
                self.cluster_field("tls-server-name"),
                format!("{name:?} is no host name"),
            )
        };
        ServerName::try_from(name.to_owned())
            .map(Some)
            .map_err(|_| problem())
    }

    pub(super) fn proxy(&self) -> Result<Option<Proxy>, ConnectError> {
        let Some(given) = present(self.cluster.proxy_url.as_deref()) else {
            return Ok(None);
        };
        // It may hold a password, so it is not repeated.
        let bad = |problem: ProxyError| self.bad(self.cluster_field("proxy-url"), problem.to_string());
        Proxy::parse(given).map(Some).map_err(bad)
    }

    pub(super) fn certificate(&self) -> Result<Option<CertificateSource>, ConnectError> {
        let certificate = self.text(
            self.user.client_certificate_data.as_deref(),
            self.user.client_certificate.as_deref(),
            |field| self.user_field(field),
            "client-certificate",
        )?;
        let key_data = self
            .user
            .client_key_data
            .as_ref()
            .map(ExposeSecret::expose_secret);
        let key = self.text(
            key_data,
            self.user.client_key.as_deref(),
            |field| self.user_field(field),
            "client-key",
        )?;
        match (certificate, key) {
            (Some(certificate), Some(key)) => Ok(Some(CertificateSource { certificate, key })),
            (None, None) => Ok(None),
            (Some(_), None) => Err(self.bad(
                self.user_field("client-key"),
                "is not set, but there is a client certificate",
            )),
            (None, Some(_)) => Err(self.bad(
                self.user_field("client-certificate"),
                "is not set, but there is a client key",
            )),
        }
    }

    /// Data wins over a file, as for upstream.
    fn text(
        &self,
        data: Option<&str>,
        file: Option<&str>,
        spell: impl Fn(&str) -> String,
        field: &str,
    ) -> Result<Option<Text>, ConnectError> {
        if let Some(data) = present(data) {
            let field = spell(&format!("{field}-data"));
            let compact: String = data
                .chars()
                .filter(|letter| !letter.is_ascii_whitespace())
                .collect();
            return match STANDARD.decode(compact) {
                Ok(pem) => Ok(Some(Text::Data { field, pem })),
                Err(_) => Err(self.bad(field, "is not base64")),
            };
        }
        Ok(present(file).map(|path| Text::File {
            field: spell(field),
            path: path.into(),
        }))
    }

    pub(super) fn login(&self, server: &Uri) -> Result<Login, ConnectError> {
        let user = &self.user;
        if user.has_auth_provider {
            return Err(self.bad(
                self.user_field("auth-provider"),
                "is not supported; use exec, a token or a client certificate",
            ));
        }
        let token = user
            .token
            .clone()
            .filter(|token| !token.expose_secret().is_empty());
        let token_file = present(user.token_file.as_deref());
        let basic = match (present(user.username.as_deref()), &user.password) {
            (Some(name), Some(password)) => Some((name.to_owned(), password.clone())),
            _ => None,
        };
        match (token_file, token, basic) {
            (None, None, None) => {}
            (_, _, Some(_)) if user.token.is_some() || token_file.is_some() => {
                return Err(self.bad(
                    self.user_field("username"),
                    "cannot be used together with a token",
                ));
            }
            (Some(path), fallback, _) => {
                let path = path.into();
                return Ok(Login::TokenFile { path, fallback });
            }
            (None, Some(token), _) => return Ok(Login::Token(token)),
            (None, None, Some((user, password))) => return Ok(Login::Basic { user, password }),
        }
        let Some(exec) = &user.exec else {
            return Ok(Login::Anonymous);
        };
        ExecPlugin::new(exec, &self.cluster, server)
            .map(|plugin| Login::Exec(Arc::new(plugin)))
            .map_err(|(field, problem)| self.bad(self.user_field(&format!("exec.{field}")), problem))
    }

    pub(super) fn impersonation(&self) -> Result<HeaderMap, ConnectError> {
        let user = &self.user;
        let mut headers = HeaderMap::new();
        let mut add = |field: &str, name: &str, value: &str| {
            let bad = |_| {
                self.bad(
                    self.user_field(field),
                    format!("{value:?} cannot be sent in a header"),
                )
            };
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
                self.bad(
                    self.user_field(field),
                    format!("{name:?} cannot be the name of a header"),
                )
            })?;
            headers.append(name, HeaderValue::from_str(value).map_err(bad)?);
            Ok(())
        };
        if let Some(name) = present(user.impersonate.as_deref()) {
            add("as", "Impersonate-User", name)?;
        }
        if let Some(uid) = present(user.impersonate_uid.as_deref()) {
            add("as-uid", "Impersonate-Uid", uid)?;
        }
        for group in &user.impersonate_groups {
            add("as-groups", "Impersonate-Group", group)?;
        }
        for (key, values) in &user.impersonate_user_extra {
            for value in values {
                add("as-user-extra", &format!("Impersonate-Extra-{key}"), value)?;
            }
        }
        Ok(headers)
    }
}

fn present(value: Option<&str>) -> Option<&str> {
    value.filter(|value| !value.is_empty())
}
