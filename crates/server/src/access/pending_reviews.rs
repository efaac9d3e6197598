//! How many token reviews may be pending at a time.
//!
//! Owns the bound, in all and for one client address. A client whose token is under review has not authenticated yet, so this
//! bounds the memory and the reviews that unauthenticated clients can cause. It must not know what is reviewed.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const MAX_PENDING: usize = 128;
/// One client that invents tokens leaves reviews for the others.
const MAX_PENDING_PER_ADDRESS: usize = 32;

/// Reviews by the address they are for.
type ByAddress = BTreeMap<Option<IpAddr>, usize>;

#[derive(Clone, Default)]
pub(super) struct PendingReviews {
    // Held for a few look-ups, never across an await.
    by_address: Arc<Mutex<ByAddress>>,
}

impl PendingReviews {
    /// A permit for a review on behalf of a client at this address; `None` when there are too many.
    pub(super) fn begin(&self, client: Option<IpAddr>) -> Option<PendingReview> {
        let client = client.map(network);
        let mut by_address = self.by_address();
        let own = by_address.get(&client).copied().unwrap_or_default();
        if own >= MAX_PENDING_PER_ADDRESS || by_address.values().sum::<usize>() >= MAX_PENDING {
            return None;
        }
        by_address.insert(client, own + 1);
        drop(by_address);
        Some(PendingReview {
            pending: self.clone(),
            client,
        })
    }

    fn by_address(&self) -> MutexGuard<'_, ByAddress> {
        self.by_address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One review's permit, free when it is dropped.
pub(super) struct PendingReview {
    pending: PendingReviews,
    client: Option<IpAddr>,
}

impl Drop for PendingReview {
    fn drop(&mut self) {
        let mut by_address = self.pending.by_address();
        if let Some(own) = by_address.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                by_address.remove(&self.client);
            }
        }
    }
}

/// What one client can be expected to have: an IPv4 address, or an IPv6 network of 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn one_address_leaves_places_for_the_others_and_all_together_are_bounded() {
        let pending = PendingReviews::default();
        let take = |client: &str| {
            let places: Vec<_> = std::iter::from_fn(|| pending.begin(address(client)))
                .take(1000)
                .collect();
            places
        };
        let first = take("10.0.0.1");
        assert_eq!(first.len(), MAX_PENDING_PER_ADDRESS);
        // The same client by other names.
        assert!(take("::ffff:10.0.0.1").is_empty());
        let second = take("fd00::1");
        assert_eq!(second.len(), MAX_PENDING_PER_ADDRESS);
        assert!(take("fd00::2").is_empty());
        let others: Vec<_> = (2..100)
            .flat_map(|last| take(&format!("10.0.0.{last}")))
            .collect();
        assert_eq!(first.len() + second.len() + others.len(), MAX_PENDING);
        assert!(take("10.0.1.1").is_empty());
        drop(first);
        assert_eq!(take("10.0.1.1").len(), MAX_PENDING_PER_ADDRESS);
        drop((second, others));
        assert!(pending.by_address().is_empty());
    }
}
