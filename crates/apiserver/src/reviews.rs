//! TokenReviews and SubjectAccessReviews: who a client of the node is and what it may do.

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewStatus};
use k8s_openapi::api::authorization::v1::{SubjectAccessReview, SubjectAccessReviewStatus};
use kube_core::params::PostParams;
use rubelet_ports::api::{ApiError, ApiErrorKind, Reviewer};

use crate::ApiServer;
use crate::call::{body, request};

#[async_trait]
impl Reviewer for ApiServer {
    async fn review_token(&self, review: &TokenReview) -> Result<TokenReviewStatus, ApiError> {
        let reviews = request::<TokenReview>(None);
        let request = body(review).and_then(|body| reviews.create(&PostParams::default(), body));
        let operation = "review a token";
        let answer: TokenReview = self
            .core
            .call(&self.core.token_reviews, operation.to_owned(), request)
            .await?;
        answer.status.ok_or_else(|| no_status(operation))
    }

    async fn review_access(
        &self,
        review: &SubjectAccessReview,
    ) -> Result<SubjectAccessReviewStatus, ApiError> {
        let reviews = request::<SubjectAccessReview>(None);
        let request = body(review).and_then(|body| reviews.create(&PostParams::default(), body));
        let operation = "review access";
        let answer: SubjectAccessReview = self
            .core
            .call(&self.core.access_reviews, operation.to_owned(), request)
            .await?;
        answer.status.ok_or_else(|| no_status(operation))
    }
}

fn no_status(operation: &str) -> ApiError {
    ApiError::new(operation, ApiErrorKind::Malformed, "the answer has no status")
}
