//! The API server's side of reviews, and a clock that a test turns.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewStatus, UserInfo};
use k8s_openapi::api::authorization::v1::{
    SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use rubelet_fakes::ManualClock;
use rubelet_model::Timestamp;
use rubelet_ports::api::{ApiError, ApiErrorKind, Reviewer};

#[derive(Default)]
struct State {
    users: BTreeMap<String, UserInfo>,
    /// Tokens about which the API server has something to say.
    complaints: BTreeMap<String, String>,
    /// User, verb and subresource.
    rights: BTreeSet<(String, String, String)>,
    failures: Vec<ApiErrorKind>,
    tokens_asked: usize,
    access_asked: Vec<SubjectAccessReviewSpec>,
}

/// Knows the users and rights that a test gives it.
#[derive(Default)]
pub(crate) struct FakeReviewer {
    state: Mutex<State>,
}

impl FakeReviewer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn know(&self, token: &str, name: &str, groups: &[&str]) {
        let user = UserInfo {
            username: Some(name.to_owned()),
            uid: Some(format!("uid-of-{name}")),
            groups: Some(groups.iter().map(|group| (*group).to_owned()).collect()),
            ..UserInfo::default()
        };
        self.state().users.insert(token.to_owned(), user);
    }

    pub(crate) fn forget(&self, token: &str) {
        self.state().users.remove(token);
    }

    pub(crate) fn complain(&self, token: &str, complaint: &str) {
        let complaint = (token.to_owned(), complaint.to_owned());
        self.state().complaints.extend([complaint]);
    }

    pub(crate) fn allow(&self, user: &str, verb: &str, subresource: &str) {
        let right = (user.to_owned(), verb.to_owned(), subresource.to_owned());
        self.state().rights.insert(right);
    }

    pub(crate) fn take_rights(&self) {
        self.state().rights.clear();
    }

    /// The next reviews fail like this, the last first.
    pub(crate) fn fail(&self, kinds: &[ApiErrorKind]) {
        self.state().failures = kinds.to_vec();
    }

    pub(crate) fn tokens_asked(&self) -> usize {
        self.state().tokens_asked
    }

    pub(crate) fn access_asked(&self) -> Vec<SubjectAccessReviewSpec> {
        self.state().access_asked.clone()
    }
}

fn failure(state: &mut State) -> Result<(), ApiError> {
    match state.failures.pop() {
        Some(kind) => Err(ApiError::new("review", kind, "out of order")),
        None => Ok(()),
    }
}

#[async_trait]
impl Reviewer for FakeReviewer {
    async fn review_token(&self, review: &TokenReview) -> Result<TokenReviewStatus, ApiError> {
        let mut state = self.state();
        state.tokens_asked += 1;
        failure(&mut state)?;
        let user = state.users.get(&review.spec.token).cloned();
        Ok(TokenReviewStatus {
            authenticated: Some(user.is_some()),
            error: state.complaints.get(&review.spec.token).cloned(),
            user,
            ..TokenReviewStatus::default()
        })
    }

    async fn review_access(
        &self,
        review: &SubjectAccessReview,
    ) -> Result<SubjectAccessReviewStatus, ApiError> {
        let mut state = self.state();
        state.access_asked.push(review.spec.clone());
        failure(&mut state)?;
        let attributes = review.spec.resource_attributes.clone().unwrap_or_default();
        let right = (
            review.spec.user.clone().unwrap_or_default(),
            attributes.verb.unwrap_or_default(),
            attributes.subresource.unwrap_or_default(),
        );
        Ok(SubjectAccessReviewStatus {
            allowed: state.rights.contains(&right),
            ..SubjectAccessReviewStatus::default()
        })
    }
}

/// A clock that begins at the present, so that certificates hold.
pub(crate) fn clock_of_now() -> Arc<ManualClock> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Arc::new(ManualClock::new(Timestamp::EPOCH.plus(now)))
}
