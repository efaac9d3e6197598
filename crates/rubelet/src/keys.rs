//! Generating keys for pods on blocking threads, because it may take long.

use async_trait::async_trait;
use rubelet_objects::{KeyAndProof, KeyError, KeyMaker, KeyType, make_key};

pub(crate) struct PodKeys;

#[async_trait]
impl KeyMaker for PodKeys {
    async fn make(&self, key_type: KeyType) -> Result<KeyAndProof, KeyError> {
        let made = tokio::task::spawn_blocking(move || make_key(key_type)).await;
        made.unwrap_or_else(|error| {
            Err(KeyError {
                key_type,
                message: error.to_string(),
            })
        })
    }
}
