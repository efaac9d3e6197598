//! The request to a plugin and its response.
//!
//! Owns both JSON forms. A response that is not valid is an error, and no error repeats it.

use std::collections::BTreeMap;

use rubelet_model::GoDuration;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::credential::RegistryUser;
use crate::keyring::docker_config::DockerConfig;
use crate::providers::configuration::PluginApi;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'r> {
    kind: &'static str,
    api_version: &'static str,
    image: &'r str,
    #[serde(skip_serializing_if = "str::is_empty")]
    service_account_token: &'r str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    service_account_annotations: &'r BTreeMap<String, String>,
}

/// What a plugin reads.
pub(crate) fn request(
    api: PluginApi,
    image: &str,
    token: &str,
    annotations: &BTreeMap<String, String>,
) -> Vec<u8> {
    let request = Request {
        kind: "CredentialProviderRequest",
        api_version: api.name(),
        image,
        service_account_token: token,
        service_account_annotations: annotations,
    };
    // Texts and a map of texts are always JSON.
    let mut text = serde_json::to_vec(&request).unwrap_or_default();
    text.push(b'\n');
    text
}

/// For how many images an answer is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheScope {
    Image,
    Registry,
    Global,
}

/// Prints nothing of the credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PluginAnswer {
    pub(crate) scope: CacheScope,
    /// `None`: as long as the configuration sets.
    pub(crate) duration: Option<GoDuration>,
    pub(crate) users: DockerConfig,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum AnswerError {
    #[error("its answer is no JSON object with apiVersion and kind")]
    Syntax,
    #[error("apiVersion from credential plugin response did not match expected apiVersion:{expected}")]
    Version { expected: &'static str },
    #[error("error decoding credential provider plugin response from stdout")]
    Content,
    #[error("credential provider plugin did not return a valid cacheKeyType")]
    CacheKeyType,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Response {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(default)]
    cache_key_type: String,
    #[serde(default)]
    cache_duration: Option<String>,
    #[serde(default)]
    auth: Option<BTreeMap<String, User>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct User {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

pub(crate) fn answer(api: PluginApi, output: &[u8]) -> Result<PluginAnswer, AnswerError> {
    let header: Header = serde_json::from_slice(output).map_err(|_| AnswerError::Syntax)?;
    if header.api_version != api.name() {
        return Err(AnswerError::Version { expected: api.name() });
    }
    if header.kind != "CredentialProviderResponse" {
        return Err(AnswerError::Content);
    }
    let response: Response = serde_json::from_slice(output).map_err(|_| AnswerError::Content)?;
    let duration = match response.cache_duration {
        Some(text) => Some(text.parse().map_err(|_| AnswerError::Content)?),
        None => None,
    };
    let scope = match response.cache_key_type.as_str() {
        "Image" => CacheScope::Image,
        "Registry" => CacheScope::Registry,
        "Global" => CacheScope::Global,
        _ => return Err(AnswerError::CacheKeyType),
    };
    let users = response.auth.unwrap_or_default().into_iter();
    Ok(PluginAnswer {
        scope,
        duration,
        users: users
            .map(|(address, user)| (address, RegistryUser::new(&user.username, &user.password)))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn requests() {
        let check = |api, token: &str, annotations: &[(&str, &str)], expected: &str| {
            let annotations = annotations
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect();
            let text = String::from_utf8(request(api, "r.io/a", token, &annotations)).unwrap();
            assert_eq!(text, expected);
        };
        check(
            PluginApi::V1Alpha1,
            "",
            &[],
            "{\"kind\":\"CredentialProviderRequest\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1alpha1\",\
             \"image\":\"r.io/a\"}\n",
        );
        check(
            PluginApi::V1,
            "tok",
            &[("k", "v")],
            "{\"kind\":\"CredentialProviderRequest\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\
             \"image\":\"r.io/a\",\"serviceAccountToken\":\"tok\",\"serviceAccountAnnotations\":{\"k\":\"v\"}}\n",
        );
    }

    #[test]
    fn answers() {
        let good = |changes: &serde_json::Value| {
            let mut answer = json!({"apiVersion": PluginApi::V1.name(), "kind": "CredentialProviderResponse",
                "cacheKeyType": "Registry", "auth": {"r.io": {"username": "u", "password": "p"}}});
            for (key, value) in changes.as_object().unwrap() {
                answer[key] = value.clone();
            }
            answer.to_string()
        };
        let check = |text: &str, expected: Result<(CacheScope, Option<i64>, usize), AnswerError>| {
            let found = answer(PluginApi::V1, text.as_bytes()).map(|answer| {
                (
                    answer.scope,
                    answer.duration.map(|one| one.as_millis() / 1000),
                    answer.users.len(),
                )
            });
            assert_eq!(found, expected, "{text}");
        };
        check(&good(&json!({})), Ok((CacheScope::Registry, None, 1)));
        check(
            &good(&json!({"cacheDuration": "1m", "cacheKeyType": "Image"})),
            Ok((CacheScope::Image, Some(60), 1)),
        );
        check(
            &good(&json!({"cacheDuration": "0s", "cacheKeyType": "Global", "auth": null})),
            Ok((CacheScope::Global, Some(0), 0)),
        );
        check("", Err(AnswerError::Syntax));
        check("garbage", Err(AnswerError::Syntax));
        check("[1]", Err(AnswerError::Syntax));
        let version = Err(AnswerError::Version {
            expected: PluginApi::V1.name(),
        });
        check("{}", version.clone());
        check(&good(&json!({"apiVersion": PluginApi::V1Beta1.name()})), version);
        check(
            &good(&json!({"kind": "CredentialProviderRequest"})),
            Err(AnswerError::Content),
        );
        check(&good(&json!({"unknown": 1})), Err(AnswerError::Content));
        check(
            &good(&json!({"auth": {"r": {"username": 1}}})),
            Err(AnswerError::Content),
        );
        check(
            &good(&json!({"cacheDuration": "soon"})),
            Err(AnswerError::Content),
        );
        check(
            &good(&json!({"cacheKeyType": "Pod"})),
            Err(AnswerError::CacheKeyType),
        );
        let printed = format!(
            "{:?}",
            answer(PluginApi::V1, good(&json!({})).as_bytes()).unwrap()
        );
        assert!(
            !printed.contains("\"p\"") && !printed.contains("\"u\""),
            "{printed}"
        );
    }

    proptest! {
        #[test]
        fn any_output_is_an_answer_or_an_error(output in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = answer(PluginApi::V1, &output);
        }
    }
}
