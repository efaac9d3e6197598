//! Authentication and authorization of requests.
//!
//! Owns these two steps in front of every endpoint, and whether the settings about them can be honoured at all. Texts and codes of refusals are upstream's. It must not know what an endpoint does.

mod authentication;
mod authorization;
mod pending_reviews;
mod remembered;
mod review;
mod subject;
mod tokens;
mod user;

use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;
use http::request::Parts;
use rubelet_config::{Gate, KubeletConfiguration, Settings};
use rubelet_ports::Clock;
use rubelet_ports::api::Reviewer;

use crate::ServerError;
use crate::connection::Peer;
use crate::response::{Answer, text, too_many_for_now, unauthorized};
pub(crate) use authentication::ClientAuthorities;
use authentication::{Authenticator, Unauthenticated};
use authorization::{
    AccessReviews, Authorizer, Decision, RESOURCE, VerdictTimes, is_session, subresources, verb,
};
use tokens::TokenReviews;

/// A subject as text; `None` where it is none.
#[cfg(feature = "fuzz")]
pub(crate) fn subject_text(subject: &[u8]) -> Option<String> {
    subject::Subject::parse(subject).map(|found| format!("{found:?} {:?}", found.uid()))
}
pub(crate) use tokens::protocols_without_token;

/// Fails as upstream does: where a webhook is configured and there is no API server, and where no authenticator is.
pub(crate) fn check(configuration: &KubeletConfiguration, has_api_server: bool) -> Result<(), ServerError> {
    let authentication = &configuration.authentication;
    let asks_about_tokens = authentication.webhook.enabled == Some(true);
    if asks_about_tokens && !has_api_server {
        return Err(ServerError::WebhookAuthentication);
    }
    let knows_nobody = authentication.x509.client_ca_file.is_empty() && !asks_about_tokens;
    if knows_nobody && authentication.anonymous.enabled != Some(true) {
        return Err(ServerError::NoAuthenticationMethod);
    }
    match configuration.authorization.mode.as_str() {
        "AlwaysAllow" => Ok(()),
        "Webhook" if has_api_server => Ok(()),
        "Webhook" => Err(ServerError::WebhookAuthorization),
        "" => Err(ServerError::NoAuthorizationMode),
        mode => Err(ServerError::UnknownAuthorizationMode(mode.to_owned())),
    }
}

/// Insecure settings in force, with their meaning. They are upstream's defaults without a
/// configuration file, so they are only logged.
pub(crate) fn insecure_settings(configuration: &KubeletConfiguration) -> Vec<&'static str> {
    let doors = [
        (
            configuration.authentication.anonymous.enabled == Some(true),
            "authentication.anonymous.enabled lets requests without credentials in",
        ),
        (
            configuration.authorization.mode == "AlwaysAllow",
            "authorization.mode AlwaysAllow lets every client that authenticates enter every container",
        ),
        (
            configuration.read_only_port > 0,
            "readOnlyPort shows the node's pods, their environment included, to every client that can connect",
        ),
    ];
    let open = doors.into_iter().filter(|(is_open, _)| *is_open);
    open.map(|(_, meaning)| meaning).collect()
}

pub(crate) struct Access {
    authenticator: Authenticator,
    authorizer: Authorizer,
    /// Whether access to a container counts as `create`, with any method.
    sessions_need_create: bool,
    /// Logged once: clients could else fill the log. Held for a comparison, never across an await.
    last_refusal: Mutex<String>,
}

impl Access {
    /// As the settings want it, which [`check`] has found to be possible. Without an API server tokens are not reviewed, and
    /// only `AlwaysAllow` is left.
    pub(crate) fn new(
        settings: &Settings,
        node_name: &str,
        authorities: ClientAuthorities,
        reviewer: Option<&Arc<dyn Reviewer>>,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        let configuration = settings.configuration();
        let authentication = &configuration.authentication;
        let tokens = reviewer
            .filter(|_| authentication.webhook.enabled == Some(true))
            .map(|reviewer| {
                let keep_for = authentication.webhook.cache_ttl.to_std().unwrap_or_default();
                TokenReviews::new(Arc::clone(reviewer), Arc::clone(clock), keep_for)
            });
        let webhook = &configuration.authorization.webhook;
        let times = VerdictTimes {
            allowed: webhook.cache_authorized_ttl.to_std().unwrap_or_default(),
            refused: webhook.cache_unauthorized_ttl.to_std().unwrap_or_default(),
        };
        let authorizer = match reviewer.filter(|_| configuration.authorization.mode == "Webhook") {
            Some(reviewer) => Authorizer::Webhook(AccessReviews::new(
                node_name,
                Arc::clone(reviewer),
                Arc::clone(clock),
                times,
            )),
            None => Authorizer::AlwaysAllow,
        };
        Self {
            authenticator: Authenticator {
                anonymous: authentication.anonymous.enabled == Some(true),
                authorities,
                certificate_uids: settings.gates().enabled(Gate::AllowParsingUserUIDFromCertAuth),
                tokens,
                clock: Arc::clone(clock),
            },
            authorizer,
            sessions_need_create: settings.rubelet().sessions_need_create,
            last_refusal: Mutex::default(),
        }
    }

    /// Lets a request for this path pass, or answers it.
    pub(crate) async fn admit(&self, request: &Parts, path: &str, peer: &Peer) -> Result<(), Answer> {
        let user = match self.authenticator.user(&request.headers, peer).await {
            Ok(user) => user,
            Err(Unauthenticated::Refused(reasons)) => {
                self.tell_refusal(&reasons);
                return Err(unauthorized());
            }
            Err(Unauthenticated::NotReviewed) => return Err(too_many_for_now()),
        };
        let verb = if self.sessions_need_create && is_session(path) {
            "create"
        } else {
            verb(&request.method)
        };
        let subresources = subresources(path);
        for subresource in subresources {
            match self.authorizer.decide(&user, verb, subresource).await {
                Decision::Allowed => return Ok(()),
                Decision::Refused => {}
                Decision::Failed(error) => {
                    tracing::info!(user = user.name, verb, subresource, %error, "A user's access could not be reviewed");
                    let message = format!(
                        "Authorization error (user={}, verb={verb}, resource={RESOURCE}, subresource={subresource})",
                        user.name
                    );
                    return Err(text(StatusCode::INTERNAL_SERVER_ERROR, message));
                }
            }
        }
        tracing::debug!(user = user.name, verb, ?subresources, "Forbidden");
        let message = format!(
            "Forbidden (user={}, verb={verb}, resource={RESOURCE}, subresource(s)=[{}])\n",
            user.name,
            subresources.join(" ")
        );
        Err(text(StatusCode::FORBIDDEN, message))
    }

    fn tell_refusal(&self, reasons: &[String]) {
        if reasons.is_empty() {
            return;
        }
        let reasons = reasons.join("; ");
        let mut last = self.last_refusal.lock().unwrap_or_else(PoisonError::into_inner);
        if *last == reasons {
            tracing::debug!(reasons, "A request's credentials were refused");
        } else {
            tracing::info!(reasons, "A request's credentials were refused");
            *last = reasons;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_open_door_is_named() {
        let check = |change: &dyn Fn(&mut KubeletConfiguration), expected: &[&str]| {
            let mut configuration = KubeletConfiguration::default();
            configuration.authorization.mode = "Webhook".to_owned();
            change(&mut configuration);
            let warnings = insecure_settings(&configuration);
            let settings: Vec<&str> = warnings
                .iter()
                .filter_map(|text| text.split(' ').next())
                .collect();
            assert_eq!(settings, expected);
        };
        check(&|_| {}, &[]);
        check(
            &|c| c.authentication.anonymous.enabled = Some(true),
            &["authentication.anonymous.enabled"],
        );
        check(
            &|c| {
                c.authorization.mode = "AlwaysAllow".to_owned();
                c.read_only_port = 10255;
            },
            &["authorization.mode", "readOnlyPort"],
        );
    }

    #[test]
    fn settings_that_nobody_could_satisfy_are_told() {
        let check = |has_api_server: bool, change: &dyn Fn(&mut KubeletConfiguration), expected: &str| {
            let mut configuration = KubeletConfiguration::default();
            configuration.authentication.anonymous.enabled = Some(true);
            configuration.authorization.mode = "AlwaysAllow".to_owned();
            change(&mut configuration);
            let warnings = check(&configuration, has_api_server)
                .map_or_else(|error| error.to_string(), |()| String::new());
            assert!(
                warnings.starts_with(expected) && warnings.is_empty() == expected.is_empty(),
                "{warnings}"
            );
        };
        let tokens = |c: &mut KubeletConfiguration| c.authentication.webhook.enabled = Some(true);
        let webhook = |c: &mut KubeletConfiguration| c.authorization.mode = "Webhook".to_owned();
        let no_anonymous = |c: &mut KubeletConfiguration| c.authentication.anonymous.enabled = Some(false);
        check(false, &|_| {}, "");
        check(true, &|_| {}, "");
        check(
            false,
            &tokens,
            "no client provided, cannot use webhook authentication",
        );
        check(true, &tokens, "");
        check(
            false,
            &webhook,
            "no client provided, cannot use webhook authorization",
        );
        check(true, &webhook, "");
        check(true, &no_anonymous, "no authentication method configured");
        check(
            true,
            &|c| {
                no_anonymous(c);
                tokens(c);
            },
            "",
        );
        check(
            false,
            &|c| c.authorization.mode.clear(),
            "no authorization mode specified",
        );
        check(
            true,
            &|c| c.authorization.mode = "Maybe".to_owned(),
            "unknown authorization mode Maybe",
        );
    }
}
