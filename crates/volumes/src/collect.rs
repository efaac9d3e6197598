//! Reading the API objects that a pod's volumes show.
//!
//! Owns that all objects are requested at once and that each request has a deadline. Caches, watches and renewal are behind the
//! port, so that a repeated request costs little. The content is secret and is neither logged nor kept.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, join5};
use k8s_openapi::api::core::v1::Pod;
use rubelet_model::pod::{name_of, namespace_of, uid_text};
use rubelet_ports::{ObjectFailure, PodObjects, TokenQuestion, TrustQuestion, within};
use rubelet_storage::{
    Absence, Answer, BundleNeed, CertificateNeed, Credentials, ObjectAnswers, ObjectNeeds, TokenNeed,
};

use crate::Inner;

/// The deadline of each answer. Caches answer at once, and calls to the API server have a shorter deadline of their own
/// ([`LONGEST_CALL`](rubelet_ports::api::LONGEST_CALL)) with a better error message.
const ANSWER_DEADLINE: Duration = Duration::from_secs(120);

impl Inner {
    /// An answer for everything that the volumes of the pod need.
    pub(crate) async fn collect(&self, pod: &Arc<Pod>) -> ObjectAnswers {
        let needs = ObjectNeeds::of(pod);
        if needs.is_empty() {
            return ObjectAnswers::default();
        }
        match &self.ports.objects {
            Some(objects) => self.ask(&**objects, pod, needs).await,
            None => without_api_server(needs),
        }
    }

    async fn ask(&self, objects: &dyn PodObjects, pod: &Arc<Pod>, needs: ObjectNeeds) -> ObjectAnswers {
        let namespace = namespace_of(pod);
        let ObjectNeeds {
            config_maps,
            secrets,
            tokens,
            bundles,
            certificates,
        } = needs;
        let config_maps = config_maps.into_iter().map(|name| async move {
            let what = || format!("configmap {name:?}");
            let answer = self.answer(what, objects.config_map(namespace, &name)).await;
            (name, answer)
        });
        let secrets = secrets.into_iter().map(|name| async move {
            let what = || format!("secret {name:?}");
            let answer = self.answer(what, objects.secret(namespace, &name)).await;
            (name, answer)
        });
        let tokens = tokens.into_iter().map(|need| async move {
            let question = token_question(pod, namespace, &need);
            let what = || format!("a token of service account {:?}", question.service_account);
            let answer = self.answer(what, objects.token(&question)).await;
            (need, answer.map(|token| token.text))
        });
        let bundles = bundles.into_iter().map(|need| async move {
            let question = trust_question(&need);
            let what = || "trust anchors".to_owned();
            let answer = self.answer(what, objects.trust_bundle(&question)).await;
            (need, answer)
        });
        let certificates = certificates.into_iter().map(|need| async move {
            let CertificateNeed { volume, source } = &need;
            let what = || format!("the certificate of source {source}");
            let asked = objects.pod_certificate(pod, volume, *source);
            let answer = self.answer(what, asked).await;
            let answer = answer.map(|found| Credentials {
                key: found.key,
                chain: found.chain,
            });
            (need, answer)
        });
        let (config_maps, secrets, tokens, bundles, certificates) = join5(
            join_all(config_maps),
            join_all(secrets),
            join_all(tokens),
            join_all(bundles),
            join_all(certificates),
        )
        .await;
        ObjectAnswers {
            config_maps: config_maps.into_iter().collect(),
            secrets: secrets.into_iter().collect(),
            tokens: tokens.into_iter().collect(),
            bundles,
            certificates: certificates.into_iter().collect(),
        }
    }

    async fn answer<T>(
        &self,
        what: impl Fn() -> String,
        asked: impl Future<Output = Result<T, ObjectFailure>>,
    ) -> Answer<T> {
        match within(&*self.ports.clock, ANSWER_DEADLINE, asked).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(failure)) => Err(Absence {
                is_not_found: failure.is_not_found(),
                message: failure.to_string(),
            }),
            Err(elapsed) => Err(Absence {
                message: format!("{}: {elapsed}", what()),
                is_not_found: false,
            }),
        }
    }
}

fn token_question(pod: &Pod, namespace: &str, need: &TokenNeed) -> TokenQuestion {
    let account = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.service_account_name.clone());
    TokenQuestion {
        namespace: namespace.to_owned(),
        service_account: account.unwrap_or_default(),
        audiences: need.audience.iter().cloned().collect(),
        expiration_seconds: need.expiration_seconds,
        pod_name: name_of(pod).to_owned(),
        pod_uid: uid_text(pod).to_owned(),
    }
}

fn trust_question(need: &BundleNeed) -> TrustQuestion {
    match need.clone() {
        BundleNeed::Named(name) => TrustQuestion::Named(name),
        BundleNeed::Signed { signer, labels } => TrustQuestion::Signed { signer, labels },
    }
}

/// The answers on a node without an API server: an error for each object.
fn without_api_server(needs: ObjectNeeds) -> ObjectAnswers {
    fn no_api_server<T>(what: &str) -> Answer<T> {
        Err(Absence {
            message: format!("{what} cannot be had: this node has no API server"),
            is_not_found: false,
        })
    }
    let config_map = |name: String| {
        let answer = no_api_server(&format!("configmap {name:?}"));
        (name, answer)
    };
    let secret = |name: String| {
        let answer = no_api_server(&format!("secret {name:?}"));
        (name, answer)
    };
    ObjectAnswers {
        config_maps: needs.config_maps.into_iter().map(config_map).collect(),
        secrets: needs.secrets.into_iter().map(secret).collect(),
        tokens: needs
            .tokens
            .into_iter()
            .map(|need| (need, no_api_server("a service account token")))
            .collect(),
        bundles: needs
            .bundles
            .into_iter()
            .map(|need| (need, no_api_server("trust anchors")))
            .collect(),
        certificates: needs
            .certificates
            .into_iter()
            .map(|need| (need, no_api_server("a pod certificate")))
            .collect(),
    }
}
