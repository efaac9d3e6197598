//! The collection of images with containerd 2, which knows pinned ones.

use anyhow::Result;
use rubelet_testbed::containerd::Flavour;

#[path = "../../../images/tests/it/small_disk.rs"]
mod small_disk;

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_loses_what_nobody_uses() -> Result<()> {
    small_disk::full_disk("image-garbage-v2", Flavour::V2).await
}
