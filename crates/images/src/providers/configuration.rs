//! `CredentialProviderConfig`: which plugins there are, and for which images.
//!
//! Owns the reading of its three versions and the rules. All problems are reported at once. Files are opened by the caller.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use rubelet_model::document::{self, Limits, SyntaxError};
use rubelet_model::{GoDuration, names};
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::credential::hex_sha256;
use crate::keyring::Address;

const GROUP: &str = "kubelet.config.k8s.io";
const KIND: &str = "CredentialProviderConfig";
const LIMITS: Limits = Limits {
    max_bytes: 1 << 20,
    max_nodes: 100_000,
};

/// The API version of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginApi {
    V1,
    V1Beta1,
    V1Alpha1,
}

impl PluginApi {
    const ALL: [Self; 3] = [Self::V1, Self::V1Alpha1, Self::V1Beta1];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V1 => "credentialprovider.kubelet.k8s.io/v1",
            Self::V1Beta1 => "credentialprovider.kubelet.k8s.io/v1beta1",
            Self::V1Alpha1 => "credentialprovider.kubelet.k8s.io/v1alpha1",
        }
    }
}

/// By what credentials that a service account's token gave are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCache {
    ServiceAccount,
    Token,
}

/// A plugin that gets a token of the pod's service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenAttributes {
    pub audience: String,
    pub cache: TokenCache,
    /// Pods without a service account get nothing from this plugin.
    pub require_service_account: bool,
    /// Service accounts without these get nothing from this plugin.
    pub required_annotations: Vec<String>,
    pub optional_annotations: Vec<String>,
}

/// A plugin, checked.
#[derive(Clone, PartialEq, Eq)]
pub struct ProviderSettings {
    pub name: String,
    pub match_images: Vec<String>,
    pub default_cache_duration: Duration,
    pub api: PluginApi,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub token: Option<TokenAttributes>,
}

/// Arguments and variables may be secret.
impl fmt::Debug for ProviderSettings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ProviderSettings")
            .field("name", &self.name)
            .field("match_images", &self.match_images)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProviderProblem {
    #[error("error decoding config {file:?}: {problem}")]
    Unreadable { file: String, problem: String },
    #[error("duplicate provider name {0:?} found in configuration file(s)")]
    Duplicate(String),
    #[error("{field}: {problem}")]
    Invalid { field: String, problem: String },
}

/// Reads the files in their order; the plugins of all of them count. `with_tokens`: the gate
/// `KubeletServiceAccountTokenForCredentialProviders`.
///
/// # Errors
/// Everything that is wrong with them.
pub fn read_configuration(
    files: &[(String, Vec<u8>)],
    with_tokens: bool,
) -> Result<Vec<ProviderSettings>, Vec<ProviderProblem>> {
    let mut problems = Vec::new();
    let mut entries: Vec<Entry> = Vec::new();
    for (file, bytes) in files {
        match read_file(bytes) {
            Ok(found) => entries.extend(found),
            Err(problem) => problems.push(ProviderProblem::Unreadable {
                file: file.clone(),
                problem,
            }),
        }
    }
    let mut names = BTreeSet::new();
    let twice = entries.iter().filter(|entry| !names.insert(entry.name.clone()));
    problems.extend(twice.map(|entry| ProviderProblem::Duplicate(entry.name.clone())));
    if entries.is_empty() && problems.is_empty() {
        let mut rules = Rules {
            problems: &mut problems,
        };
        rules.refuse("providers", "at least 1 item in plugins is required");
    }
    let mut providers = Vec::new();
    for entry in entries {
        let mut rules = Rules {
            problems: &mut problems,
        };
        providers.extend(rules.check(entry, with_tokens));
    }
    if problems.is_empty() {
        Ok(providers)
    } else {
        Err(problems)
    }
}

/// The hash of what was read, as `kubelet_credential_provider_config_info` shows it: of the files in turn, each behind its length.
#[must_use]
pub fn configuration_hash(files: &[(String, Vec<u8>)]) -> String {
    let mut all = Vec::new();
    for (_, bytes) in files {
        all.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
        all.extend_from_slice(bytes);
    }
    format!("sha256:{}", hex_sha256(&all))
}

fn read_file(bytes: &[u8]) -> Result<Vec<Entry>, String> {
    let document = document::read(bytes, LIMITS).map_err(|error: SyntaxError| error.to_string())?;
    if let Some(path) = document.duplicates.first() {
        return Err(format!("{path} stands twice"));
    }
    let value = Value::from(document.root);
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion").to_owned(), text("kind").to_owned());
    let version = match api_version.split_once('/') {
        Some((GROUP, version @ ("v1" | "v1beta1" | "v1alpha1"))) => version.to_owned(),
        _ => {
            return Err(format!(
                "apiVersion is {api_version:?}, not {GROUP}/v1, {GROUP}/v1beta1 or {GROUP}/v1alpha1"
            ));
        }
    };
    if kind != KIND {
        return Err(format!("kind is {kind:?}, not {KIND}"));
    }
    let file: File = serde_json::from_value(value).map_err(|error| error.to_string())?;
    let entries = file.providers.unwrap_or_default();
    // The field is one of v1 only.
    if version != "v1" && entries.iter().any(|entry| entry.token_attributes.is_some()) {
        return Err(format!("unknown field `tokenAttributes` in {GROUP}/{version}"));
    }
    Ok(entries)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    providers: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[derive(Default)]
struct Entry {
    name: String,
    match_images: Option<Vec<String>>,
    default_cache_duration: Option<String>,
    api_version: String,
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
    token_attributes: Option<TokenEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Variable {
    #[serde(default)]
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct TokenEntry {
    service_account_token_audience: String,
    cache_type: String,
    require_service_account: Option<bool>,
    required_service_account_annotation_keys: Option<Vec<String>>,
    optional_service_account_annotation_keys: Option<Vec<String>>,
}

struct Rules<'p> {
    problems: &'p mut Vec<ProviderProblem>,
}

impl Rules<'_> {
    fn refuse(&mut self, field: &str, problem: impl Into<String>) {
        self.problems.push(ProviderProblem::Invalid {
            field: field.to_owned(),
            problem: problem.into(),
        });
    }

    fn check(&mut self, entry: Entry, with_tokens: bool) -> Option<ProviderSettings> {
        self.check_name(&entry.name);
        let api = PluginApi::ALL
            .into_iter()
            .find(|api| api.name() == entry.api_version);
        if api.is_none() {
            let known = PluginApi::ALL.map(PluginApi::name).join(", ");
            self.refuse(
                "providers.apiVersion",
                format!("{:?} is none of {known}", entry.api_version),
            );
        }
        let match_images = entry.match_images.unwrap_or_default();
        if match_images.is_empty() {
            self.refuse(
                "providers.matchImages",
                "at least 1 item in matchImages is required",
            );
        }
        for pattern in match_images
            .iter()
            .filter(|pattern| Address::parse(pattern).is_none())
        {
            self.refuse(
                "providers.matchImages",
                format!("match image is invalid: {pattern:?}"),
            );
        }
        let default_cache_duration = self.cache_duration(entry.default_cache_duration.as_deref());
        let token = match entry.token_attributes {
            Some(attributes) => Some(self.check_token(attributes, api, with_tokens)?),
            None => None,
        };
        Some(ProviderSettings {
            name: entry.name,
            match_images,
            default_cache_duration: default_cache_duration?,
            api: api?,
            args: entry.args.unwrap_or_default(),
            env: entry
                .env
                .into_iter()
                .flatten()
                .map(|one| (one.name, one.value))
                .collect(),
            token,
        })
    }

    fn check_name(&mut self, name: &str) {
        let problem = match name {
            // Upstream would run the directory of plugins itself.
            "" => "provider name cannot be empty",
            "." => "provider name cannot be '.'",
            ".." => "provider name cannot be '..'",
            name if name.contains('/') => "provider name cannot contain '/'",
            name if name.contains(' ') => "provider name cannot contain spaces",
            _ => return,
        };
        self.refuse("providers.name", format!("{name:?}: {problem}"));
    }

    fn cache_duration(&mut self, text: Option<&str>) -> Option<Duration> {
        const FIELD: &str = "providers.defaultCacheDuration";
        let Some(text) = text else {
            self.refuse(FIELD, "it is required");
            return None;
        };
        let duration = text.parse::<GoDuration>().ok().and_then(GoDuration::to_std);
        if duration.is_none() {
            self.refuse(
                FIELD,
                format!("{text:?} must be a duration greater than or equal to 0"),
            );
        }
        duration
    }

    fn check_token(
        &mut self,
        entry: TokenEntry,
        api: Option<PluginApi>,
        with_tokens: bool,
    ) -> Option<TokenAttributes> {
        let field = |name: &str| format!("providers.tokenAttributes.{name}");
        if !with_tokens {
            self.refuse(
                "providers.tokenAttributes",
                "needs the feature gate KubeletServiceAccountTokenForCredentialProviders",
            );
        }
        if api.is_some_and(|api| api != PluginApi::V1) {
            let problem = format!("is only supported for {} API version", PluginApi::V1.name());
            self.refuse("providers.tokenAttributes", problem);
        }
        if entry.service_account_token_audience.is_empty() {
            self.refuse(&field("serviceAccountTokenAudience"), "it is required");
        }
        if entry.require_service_account.is_none() {
            self.refuse(&field("requireServiceAccount"), "it is required");
        }
        let required = entry.required_service_account_annotation_keys.unwrap_or_default();
        let optional = entry.optional_service_account_annotation_keys.unwrap_or_default();
        if entry.require_service_account == Some(false) && !required.is_empty() {
            self.refuse(
                &field("requiredServiceAccountAnnotationKeys"),
                "requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set",
            );
        }
        self.check_keys(&field("requiredServiceAccountAnnotationKeys"), &required);
        self.check_keys(&field("optionalServiceAccountAnnotationKeys"), &optional);
        for key in required.iter().filter(|key| optional.contains(key)) {
            let problem = format!("{key:?}: annotation keys cannot be both required and optional");
            self.refuse("providers.tokenAttributes", problem);
        }
        let cache = match entry.cache_type.as_str() {
            "ServiceAccount" => Some(TokenCache::ServiceAccount),
            "Token" => Some(TokenCache::Token),
            other => {
                self.refuse(
                    &field("cacheType"),
                    format!("{other:?} is none of ServiceAccount, Token"),
                );
                None
            }
        };
        Some(TokenAttributes {
            audience: entry.service_account_token_audience,
            cache: cache?,
            require_service_account: entry.require_service_account?,
            required_annotations: required,
            optional_annotations: optional,
        })
    }

    fn check_keys(&mut self, field: &str, keys: &[String]) {
        let mut seen = BTreeSet::new();
        for key in keys {
            if !names::is_qualified_name(&key.to_lowercase()) {
                self.refuse(field, format!("{key:?} is no name of an annotation"));
            }
            if !seen.insert(key) {
                self.refuse(field, format!("{key:?} stands twice"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(files: &[Value], with_tokens: bool) -> Result<Vec<ProviderSettings>, Vec<String>> {
        let files: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(number, file)| (format!("{number}.json"), file.to_string().into_bytes()))
            .collect();
        read_configuration(&files, with_tokens)
            .map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    fn file(version: &str, providers: &Value) -> Value {
        json!({"apiVersion": format!("{GROUP}/{version}"), "kind": KIND, "providers": providers})
    }

    fn provider(changes: &Value) -> Value {
        let mut provider = json!({
            "name": "ecr", "matchImages": ["*.dkr.ecr.*.amazonaws.com"], "defaultCacheDuration": "12h",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        });
        for (key, value) in changes.as_object().unwrap() {
            match value {
                Value::Null => provider.as_object_mut().unwrap().remove(key),
                value => provider
                    .as_object_mut()
                    .unwrap()
                    .insert(key.clone(), value.clone()),
            };
        }
        provider
    }

    #[test]
    fn all_three_versions_are_read() {
        for (version, api) in [
            ("v1", PluginApi::V1),
            ("v1beta1", PluginApi::V1Beta1),
            ("v1alpha1", PluginApi::V1Alpha1),
        ] {
            let entry = provider(
                &json!({"apiVersion": api.name(), "args": ["-v"], "env": [{"name": "A", "value": "b"}]}),
            );
            let found = read(&[file(version, &json!([entry]))], true).unwrap();
            let expected = ProviderSettings {
                name: "ecr".to_owned(),
                match_images: vec!["*.dkr.ecr.*.amazonaws.com".to_owned()],
                default_cache_duration: Duration::from_secs(12 * 60 * 60),
                api,
                args: vec!["-v".to_owned()],
                env: vec![("A".to_owned(), "b".to_owned())],
                token: None,
            };
            assert_eq!(found, [expected]);
        }
        let yaml = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: a\n  matchImages: ['a.io']\n  \
                    defaultCacheDuration: 0s\n  apiVersion: credentialprovider.kubelet.k8s.io/v1\n  tokenAttributes:\n    \
                    serviceAccountTokenAudience: aud\n    cacheType: Token\n    requireServiceAccount: true\n    \
                    requiredServiceAccountAnnotationKeys: [team/Key]\n";
        let found = read_configuration(&[("a.yaml".to_owned(), yaml.into())], true).unwrap();
        let token = found[0].token.as_ref().unwrap();
        assert_eq!(
            (token.cache, token.required_annotations.as_slice()),
            (TokenCache::Token, &["team/Key".to_owned()][..])
        );
    }

    #[test]
    fn what_is_wrong_is_told() {
        let check = |changes: Value, expected: &[&str]| {
            assert_eq!(
                read(&[file("v1", &json!([provider(&changes)]))], true).unwrap_err(),
                expected
            );
        };
        check(
            json!({"name": "a/b"}),
            &["providers.name: \"a/b\": provider name cannot contain '/'"],
        );
        check(
            json!({"name": ".."}),
            &["providers.name: \"..\": provider name cannot be '..'"],
        );
        check(
            json!({"matchImages": null}),
            &["providers.matchImages: at least 1 item in matchImages is required"],
        );
        check(
            json!({"matchImages": ["%invalid%"]}),
            &["providers.matchImages: match image is invalid: \"%invalid%\""],
        );
        check(
            json!({"defaultCacheDuration": null}),
            &["providers.defaultCacheDuration: it is required"],
        );
        check(
            json!({"defaultCacheDuration": "-1s"}),
            &["providers.defaultCacheDuration: \"-1s\" must be a duration greater than or equal to 0"],
        );
        check(
            json!({"apiVersion": "v1", "name": "a b"}),
            &[
                "providers.name: \"a b\": provider name cannot contain spaces",
                "providers.apiVersion: \"v1\" is none of credentialprovider.kubelet.k8s.io/v1, \
             credentialprovider.kubelet.k8s.io/v1alpha1, credentialprovider.kubelet.k8s.io/v1beta1",
            ],
        );
        check(
            json!({"tokenAttributes": {"requireServiceAccount": false, "requiredServiceAccountAnnotationKeys": ["a", "a", "b b"],
            "optionalServiceAccountAnnotationKeys": ["a"]}}),
            &[
                "providers.tokenAttributes.serviceAccountTokenAudience: it is required",
                "providers.tokenAttributes.requiredServiceAccountAnnotationKeys: requireServiceAccount cannot be false when \
             requiredServiceAccountAnnotationKeys is set",
                "providers.tokenAttributes.requiredServiceAccountAnnotationKeys: \"a\" stands twice",
                "providers.tokenAttributes.requiredServiceAccountAnnotationKeys: \"b b\" is no name of an annotation",
                "providers.tokenAttributes: \"a\": annotation keys cannot be both required and optional",
                "providers.tokenAttributes: \"a\": annotation keys cannot be both required and optional",
                "providers.tokenAttributes.cacheType: \"\" is none of ServiceAccount, Token",
            ],
        );
    }

    #[test]
    fn tokens_need_their_gate_and_their_version() {
        let attributes = json!({"serviceAccountTokenAudience": "a", "cacheType": "ServiceAccount", "requireServiceAccount": true});
        let with =
            |api: PluginApi| provider(&json!({"tokenAttributes": attributes, "apiVersion": api.name()}));
        assert!(read(&[file("v1", &json!([with(PluginApi::V1)]))], true).is_ok());
        assert_eq!(
            read(&[file("v1", &json!([with(PluginApi::V1)]))], false)
                .unwrap_err()
                .len(),
            1
        );
        assert_eq!(
            read(&[file("v1", &json!([with(PluginApi::V1Beta1)]))], true)
                .unwrap_err()
                .len(),
            1
        );
        let old = read(&[file("v1beta1", &json!([with(PluginApi::V1)]))], true).unwrap_err();
        assert_eq!(
            old,
            [
                "error decoding config \"0.json\": unknown field `tokenAttributes` in kubelet.config.k8s.io/v1beta1"
            ]
        );
    }

    #[test]
    fn files_are_laid_together() {
        let named = |name: &str| provider(&json!({"name": name}));
        let found = read(
            &[
                file("v1", &json!([named("b")])),
                file("v1beta1", &json!([named("a")])),
            ],
            true,
        )
        .unwrap();
        let names: Vec<_> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
        let twice = read(
            &[file("v1", &json!([named("a")])), file("v1", &json!([named("a")]))],
            true,
        )
        .unwrap_err();
        assert_eq!(
            twice,
            ["duplicate provider name \"a\" found in configuration file(s)"]
        );
        assert_eq!(
            read(&[file("v1", &json!([]))], true).unwrap_err(),
            ["providers: at least 1 item in plugins is required"]
        );
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let check = |text: &str, expected: &str| {
            let problems = read_configuration(&[("f".to_owned(), text.into())], true).unwrap_err();
            let shown = problems[0].to_string();
            assert!(shown.contains(expected), "{shown}");
        };
        check("", "the file is empty");
        check("{", "not valid JSON");
        check(r#"{"kind":"CredentialProviderConfig"}"#, "apiVersion is \"\"");
        check(
            r#"{"apiVersion":"kubelet.config.k8s.io/v1","kind":"X"}"#,
            "kind is \"X\"",
        );
        check(
            r#"{"apiVersion":"kubelet.config.k8s.io/v1","kind":"CredentialProviderConfig","x":1}"#,
            "unknown field `x`",
        );
        check(
            r#"{"apiVersion":"kubelet.config.k8s.io/v1","kind":"CredentialProviderConfig","kind":"CredentialProviderConfig"}"#,
            "kind stands twice",
        );
    }
}
