//! The collection of images with Debian's containerd.

use anyhow::Result;
use rubelet_testbed::containerd::Flavour;

use crate::small_disk::full_disk;

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_loses_what_nobody_uses() -> Result<()> {
    full_disk("image-garbage", Flavour::Debian).await
}
