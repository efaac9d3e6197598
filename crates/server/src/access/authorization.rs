//! Authorization: whether the user may have the answer.
//!
//! Owns what a request is called in a review of access (verb, subresources) and how long a verdict holds. All names are
//! upstream's, because roles of clusters are written for them.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use rubelet_ports::Clock;
use rubelet_ports::api::Reviewer;
use sha2::{Digest, Sha256};

use super::remembered::{Answered, Remembered, Worth};
use super::review::{Trouble, ask_patiently};
use super::user::User;

/// Verdicts that are remembered, as many as upstream does.
const VERDICTS: usize = 8192;
pub(super) const RESOURCE: &str = "nodes";

/// The verb of a method in roles; `None` for methods that have no verb.
pub(super) fn verb(method: &Method) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "GET" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    }
}

/// Whether a path opens a session in a pod. Upstream accepts the verb `get`, because browsers open WebSockets by GET.
pub(super) fn is_session(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next();
    matches!(first, Some("exec" | "attach" | "run" | "portForward"))
}

/// Access to one of these subresources of the node is access to the path; they are tried in this order.
pub(super) fn subresources(path: &str) -> &'static [&'static str] {
    const TABLE: &[(&str, &[&str])] = &[
        ("/allocatedPods", &["pods", "proxy"]),
        ("/pods", &["pods", "proxy"]),
        ("/runningpods", &["pods", "proxy"]),
        ("/healthz", &["healthz", "proxy"]),
        ("/configz", &["configz", "proxy"]),
        ("/stats", &["stats"]),
        ("/metrics", &["metrics"]),
        ("/logs", &["log"]),
        ("/checkpoint", &["checkpoint"]),
        ("/statusz", &["statusz"]),
        ("/flagz", &["configz"]),
    ];
    let covers = |root: &str| {
        path.strip_prefix(root)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    TABLE
        .iter()
        .find(|(root, _)| covers(root))
        .map_or(&["proxy"], |(_, subresources)| subresources)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Allowed,
    Refused,
    /// The review failed.
    Failed(Arc<str>),
}

/// How long verdicts hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct VerdictTimes {
    pub(super) allowed: Duration,
    pub(super) refused: Duration,
}

pub(super) enum Authorizer {
    /// Every authenticated user may do everything.
    AlwaysAllow,
    Webhook(AccessReviews),
}

impl Authorizer {
    pub(super) async fn decide(&self, user: &User, verb: &str, subresource: &str) -> Decision {
        match self {
            Self::AlwaysAllow => Decision::Allowed,
            Self::Webhook(reviews) => reviews.decide(user, verb, subresource).await,
        }
    }
}

pub(super) struct AccessReviews {
    node_name: String,
    reviewer: Arc<dyn Reviewer>,
    clock: Arc<dyn Clock>,
    times: VerdictTimes,
    remembered: Arc<Remembered<Decision>>,
    trouble: Arc<Trouble>,
}

impl AccessReviews {
    pub(super) fn new(
        node_name: &str,
        reviewer: Arc<dyn Reviewer>,
        clock: Arc<dyn Clock>,
        times: VerdictTimes,
    ) -> Self {
        Self {
            node_name: node_name.to_owned(),
            reviewer,
            remembered: Remembered::new(Arc::clone(&clock), VERDICTS),
            clock,
            times,
            trouble: Arc::default(),
        }
    }

    async fn decide(&self, user: &User, verb: &str, subresource: &str) -> Decision {
        let review = SubjectAccessReview {
            spec: spec(user, verb, subresource, &self.node_name),
            ..SubjectAccessReview::default()
        };
        // Writing plain fields into memory cannot fail; an empty key would only be shared by others that failed.
        let key = serde_json::to_vec(&review.spec).unwrap_or_default();
        let (reviewer, clock) = (Arc::clone(&self.reviewer), Arc::clone(&self.clock));
        let (times, trouble) = (self.times, Arc::clone(&self.trouble));
        let ask = async move {
            let answer = ask_patiently(clock.as_ref(), "review access", || {
                reviewer.review_access(&review)
            });
            let answer = answer.await.map_err(|error| Arc::<str>::from(error.to_string()));
            trouble.note("Asking the API server about access", answer.as_ref().err());
            match answer {
                Ok(status) => {
                    let (keep_for, worth) = if status.allowed {
                        (times.allowed, Worth::Grant)
                    } else {
                        (times.refused, Worth::Refusal)
                    };
                    Answered {
                        value: decision(&status),
                        keep_for,
                        worth,
                    }
                }
                Err(error) => Answered {
                    value: Decision::Failed(error),
                    keep_for: Duration::ZERO,
                    worth: Worth::Refusal,
                },
            }
        };
        self.remembered.get(Sha256::digest(&key).into(), || Ok(ask)).await
    }
}

fn spec(user: &User, verb: &str, subresource: &str, node_name: &str) -> SubjectAccessReviewSpec {
    let filled = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    SubjectAccessReviewSpec {
        user: filled(&user.name),
        uid: filled(&user.uid),
        groups: Some(user.groups.clone()).filter(|groups| !groups.is_empty()),
        extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
        resource_attributes: Some(ResourceAttributes {
            verb: filled(verb),
            version: Some("v1".to_owned()),
            resource: Some(RESOURCE.to_owned()),
            subresource: filled(subresource),
            name: filled(node_name),
            ..ResourceAttributes::default()
        }),
        non_resource_attributes: None,
    }
}

fn decision(status: &SubjectAccessReviewStatus) -> Decision {
    match (status.allowed, status.denied == Some(true)) {
        (true, false) => Decision::Allowed,
        (false, _) => Decision::Refused,
        (true, true) => Decision::Failed("the review of access says both yes and no".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_belongs_to_the_subresources_that_upstream_names() {
        let check = |path: &str, expected: &[&str]| assert_eq!(subresources(path), expected, "{path}");
        check("/pods", &["pods", "proxy"]);
        check("/pods/", &["pods", "proxy"]);
        check("/pods/x", &["pods", "proxy"]);
        check("/podsx", &["proxy"]);
        check("/runningpods/", &["pods", "proxy"]);
        check("/allocatedPods/a/b", &["pods", "proxy"]);
        check("/healthz", &["healthz", "proxy"]);
        check("/healthz/syncloop", &["healthz", "proxy"]);
        check("/healthzx", &["proxy"]);
        check("/configz", &["configz", "proxy"]);
        check("/stats/summary", &["stats"]);
        check("/metrics", &["metrics"]);
        check("/metrics/cadvisor", &["metrics"]);
        check("/logs/", &["log"]);
        check("/logs/syslog", &["log"]);
        check("/checkpoint/a/b/c", &["checkpoint"]);
        check("/statusz", &["statusz"]);
        check("/flagz", &["configz"]);
        check("/exec/a/b/c", &["proxy"]);
        check("/run/a/b/c", &["proxy"]);
        check("/attach/a/b/c", &["proxy"]);
        check("/portForward/a/b", &["proxy"]);
        check("/containerLogs/a/b/c", &["proxy"]);
        check("/debug/pprof/heap", &["proxy"]);
        check("/", &["proxy"]);
    }

    #[test]
    fn methods_have_their_words() {
        let check = |method: Method, expected: &str| assert_eq!(verb(&method), expected);
        check(Method::GET, "get");
        check(Method::POST, "create");
        check(Method::PUT, "update");
        check(Method::PATCH, "patch");
        check(Method::DELETE, "delete");
        check(Method::HEAD, "");
        check(Method::OPTIONS, "");
    }

    #[test]
    fn a_status_decides() {
        let check = |allowed: bool, denied: Option<bool>, expected: &Decision| {
            let status = SubjectAccessReviewStatus {
                allowed,
                denied,
                ..SubjectAccessReviewStatus::default()
            };
            assert_eq!(&decision(&status), expected);
        };
        check(true, None, &Decision::Allowed);
        check(true, Some(false), &Decision::Allowed);
        check(false, None, &Decision::Refused);
        check(false, Some(true), &Decision::Refused);
        let both = Decision::Failed("the review of access says both yes and no".into());
        check(true, Some(true), &both);
    }
}
