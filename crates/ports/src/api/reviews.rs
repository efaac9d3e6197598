//! Token and access reviews: who a client is and what it may do.

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewStatus};
use k8s_openapi::api::authorization::v1::{SubjectAccessReview, SubjectAccessReviewStatus};

use super::ApiError;

#[async_trait]
pub trait Reviewer: Send + Sync {
    /// The token in it is secret.
    async fn review_token(&self, review: &TokenReview) -> Result<TokenReviewStatus, ApiError>;

    async fn review_access(
        &self,
        review: &SubjectAccessReview,
    ) -> Result<SubjectAccessReviewStatus, ApiError>;
}
