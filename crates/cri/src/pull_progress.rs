//! The progress of pulls, where the runtime is a containerd: its content store is served on the same socket.
//!
//! Owns one call that is not of the CRI. It is not counted among the calls to the runtime, and a runtime that does not know it is no
//! failure.

use std::time::Duration;

use async_trait::async_trait;
use rubelet_model::Timestamp;
use rubelet_ports::{Ingest, PullProgress, RuntimeError};
use rubelet_wire::containerd::content::{ListStatusesRequest, ListStatusesResponse, Status};

use crate::client::CriClient;
use crate::deadline::Patience;
use crate::method;

/// It only reads a few small files, and no pod waits for it.
const LIMIT: Duration = Duration::from_secs(5);

#[async_trait]
impl PullProgress for CriClient {
    async fn ingests(&self) -> Result<Vec<Ingest>, RuntimeError> {
        let answer: ListStatusesResponse = self
            .images
            .exchange(
                &method::LIST_CONTENT_STATUSES,
                ListStatusesRequest::default(),
                Patience::Until(LIMIT),
            )
            .await?;
        Ok(answer.statuses.into_iter().map(ingest).collect())
    }
}

fn ingest(status: Status) -> Ingest {
    let updated = status.updated_at.unwrap_or_default();
    let nanos = updated
        .seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(i64::from(updated.nanos));
    Ingest {
        reference: status.r#ref,
        arrived_bytes: u64::try_from(status.offset).unwrap_or(0),
        total_bytes: u64::try_from(status.total).ok().filter(|total| *total > 0),
        updated_at: Timestamp::from_unix_nanos(nanos),
    }
}

#[cfg(test)]
mod tests {
    use rubelet_wire::containerd::content;

    use super::*;

    #[test]
    fn odd_numbers_are_no_numbers() {
        let status = |offset: i64, total: i64| Status {
            r#ref: "layer-sha256:a".to_owned(),
            updated_at: Some(content::Timestamp { seconds: 2, nanos: 5 }),
            offset,
            total,
            ..Status::default()
        };
        let check = |offset: i64, total: i64, arrived: u64, expected: Option<u64>| {
            let ingest = ingest(status(offset, total));
            assert_eq!((ingest.arrived_bytes, ingest.total_bytes), (arrived, expected));
            assert_eq!(ingest.updated_at, Timestamp::from_unix_nanos(2_000_000_005));
        };
        check(3, 9, 3, Some(9));
        check(3, 0, 3, None);
        check(-1, -1, 0, None);
    }
}
