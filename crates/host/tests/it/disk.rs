//! What files take, on filesystems that answer and on one that does not.

use std::fs;

use rubelet_host::HostDisk;
use rubelet_ports::{DiskReader, DiskSubject};
use rubelet_testbed::Scope;
use rubelet_testbed::fuse::{Farewell, SilentFuse};

#[tokio::test]
async fn a_dead_mount_costs_its_own_figures_only() {
    let scope = Scope::new("disk-dead").unwrap();
    let disk = HostDisk::new();
    let alive = scope.path("volume");
    fs::create_dir(&alive).unwrap();
    fs::write(alive.join("file"), "x").unwrap();
    let fuse = SilentFuse::mount(&scope.path("dead"), Farewell::None).unwrap();
    fuse.fall_silent();
    let (dead, space, walked, files) = tokio::join!(
        disk.filesystem(fuse.mount_point()),
        disk.filesystem(&alive),
        disk.walk(&alive),
        disk.measure(vec![DiskSubject::FilesIn(alive.clone())]),
    );
    let dead = dead.unwrap_err().to_string();
    assert!(dead.contains("no answer within"), "{dead}");
    assert!(space.is_ok());
    assert_eq!(walked.unwrap().inodes, 2);
    assert_eq!(files[0].map(|files| files.inodes), Some(1));
    // The next question does not wait for it again.
    let again = disk.filesystem(fuse.mount_point()).await.unwrap_err();
    assert!(again.to_string().ends_with("still hangs"), "{again}");
}
