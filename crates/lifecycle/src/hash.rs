//! The hash that shows whether a container's definition changed.
//!
//! Owns upstream's algorithm. Every container carries its hash as an annotation, so another algorithm would restart every container
//! when a node changes between rubelet and upstream's kubelet. It covers the name and the image only.

use k8s_openapi::api::core::v1::{Container, EphemeralContainer};
use rubelet_model::go_json;

const FNV_32_OFFSET: u32 = 0x811c_9dc5;
const FNV_32_PRIME: u32 = 0x0100_0193;

/// The hash of a container's name and image; [`hash_text`] is its form in the annotation.
#[must_use]
pub fn container_hash(container: &Container) -> u64 {
    name_and_image_hash(&container.name, container.image.as_deref().unwrap_or_default())
}

/// The same of an ephemeral container.
#[must_use]
pub fn ephemeral_container_hash(container: &EphemeralContainer) -> u64 {
    name_and_image_hash(&container.name, container.image.as_deref().unwrap_or_default())
}

/// The form of the annotation: lower-case hexadecimal without leading zeros.
#[must_use]
pub fn hash_text(hash: u64) -> String {
    format!("{hash:x}")
}

/// FNV-1a over Go's dump of the bytes of the JSON object of both fields.
#[must_use]
pub fn name_and_image_hash(name: &str, image: &str) -> u64 {
    let json = format!("{{\"image\":{},\"name\":{}}}", go_json(image), go_json(name));
    let mut hash = FNV_32_OFFSET;
    let mut feed = |text: &str| {
        for byte in text.bytes() {
            hash = (hash ^ u32::from(byte)).wrapping_mul(FNV_32_PRIME);
        }
    };
    feed("([]uint8)[");
    for (index, byte) in json.bytes().enumerate() {
        if index > 0 {
            feed(" ");
        }
        feed(&byte.to_string());
    }
    feed("]");
    u64::from(hash)
}
