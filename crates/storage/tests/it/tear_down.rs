//! What is taken down, and in which order.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rubelet_model::observation::PodUid;
use rubelet_model::volume_step::{MountPoint, PodOnDisk, SubPathOnDisk, VolumeAction, VolumeOnDisk};
use rubelet_storage::{PodLayout, plan_tear_down, unknown_volumes};

use crate::{PODS, layout};

fn on_disk(
    volumes: &[(&str, &str)],
    markers: &[&str],
    sub_paths: &[(&str, &str)],
    mounts: &[&str],
) -> PodOnDisk {
    let layout = layout();
    PodOnDisk {
        uid: PodUid::from("u1"),
        volumes: volumes
            .iter()
            .map(|(plugin, name)| VolumeOnDisk {
                plugin: (*plugin).to_owned(),
                name: (*name).to_owned(),
                path: layout.volume(plugin, name),
            })
            .collect(),
        markers: markers.iter().map(ToString::to_string).collect(),
        sub_paths: sub_paths
            .iter()
            .map(|(volume, index)| SubPathOnDisk {
                volume: (*volume).to_owned(),
                container: "main".to_owned(),
                index: (*index).to_owned(),
                path: layout.sub_paths().join(volume).join("main").join(index),
            })
            .collect(),
        mounts: mounts
            .iter()
            .map(|path| MountPoint {
                path: layout.directory().join(path),
                filesystem: "tmpfs".to_owned(),
            })
            .collect(),
    }
}

fn words(found: &PodOnDisk) -> Vec<String> {
    let pod = layout().directory().to_owned();
    let plan = plan_tear_down(found, Path::new(PODS));
    let steps = plan.volumes.iter().flat_map(|volume| &volume.steps);
    steps
        .map(|step| {
            let path = step.action.path().strip_prefix(&pod).unwrap().display();
            let lazy = match &step.action {
                VolumeAction::Unmount { lazy: true, .. } => " lazily",
                _ => "",
            };
            format!("{}: {}{lazy} {path}", step.volume, step.action.verb())
        })
        .chain(
            plan.unknown
                .iter()
                .map(|volume| format!("unknown {}", volume.display())),
        )
        .collect()
}

#[track_caller]
fn check(found: &PodOnDisk, expected: &[&str]) {
    assert_eq!(words(found), expected, "{found:?}");
}

const EMPTY: &str = "kubernetes.io~empty-dir";

#[test]
fn nothing_is_nothing() {
    check(&on_disk(&[], &[], &[], &[]), &[]);
    assert!(plan_tear_down(&on_disk(&[], &[], &[], &[]), Path::new(PODS)).is_empty());
}

#[test]
fn markers_then_binds_then_mounts_then_directories() {
    let found = on_disk(
        &[(EMPTY, "a"), ("kubernetes.io~downward-api", "d")],
        &["a", "wrapped_d"],
        &[("a", "1")],
        &["volumes/kubernetes.io~downward-api/d", "volume-subpaths/a/main/1"],
    );
    check(
        &found,
        &[
            "a: remove plugins/kubernetes.io~empty-dir/a",
            "a: unmount lazily volume-subpaths/a/main/1",
            "a: remove volume-subpaths/a",
            "a: remove volume-subpaths",
            "a: remove volumes/kubernetes.io~empty-dir/a",
            "d: remove plugins/kubernetes.io~empty-dir/wrapped_d",
            "d: remove volume-subpaths/d",
            "d: remove volume-subpaths",
            "d: unmount volumes/kubernetes.io~downward-api/d",
            "d: remove volumes/kubernetes.io~downward-api/d",
        ],
    );
}

#[test]
fn mounts_of_containers_in_a_volume_go_first() {
    let found = on_disk(
        &[(EMPTY, "a")],
        &[],
        &[],
        &[
            "volumes/kubernetes.io~empty-dir/a",
            "volumes/kubernetes.io~empty-dir/a/x",
            "volumes/kubernetes.io~empty-dir/a/x/y",
            "volumes/kubernetes.io~empty-dir/ab",
        ],
    );
    check(
        &found,
        &[
            "a: remove volume-subpaths/a",
            "a: remove volume-subpaths",
            "a: unmount lazily volumes/kubernetes.io~empty-dir/a/x/y",
            "a: unmount lazily volumes/kubernetes.io~empty-dir/a/x",
            "a: unmount volumes/kubernetes.io~empty-dir/a",
            "a: remove volumes/kubernetes.io~empty-dir/a",
        ],
    );
}

#[test]
fn traces_without_a_volume_go_too() {
    // A hostPath has no directory; a crash may leave a marker; a bind may be mounted where no name is readable any more.
    check(
        &on_disk(&[], &["m"], &[], &["volume-subpaths/h/main/0"]),
        &[
            "h: unmount lazily volume-subpaths/h/main/0",
            "h: remove volume-subpaths/h",
            "h: remove volume-subpaths",
            "m: remove plugins/kubernetes.io~empty-dir/m",
            "m: remove volume-subpaths/m",
            "m: remove volume-subpaths",
        ],
    );
}

#[test]
fn volumes_of_others_stay() {
    let found = on_disk(
        &[("kubernetes.io~csi", "pv")],
        &[],
        &[],
        &["volumes/kubernetes.io~csi/pv/mount"],
    );
    let plan = plan_tear_down(&found, Path::new(PODS));
    assert_eq!(plan.unknown, [layout().volume("kubernetes.io~csi", "pv")]);
    let touched: Vec<&VolumeAction> = plan
        .volumes
        .iter()
        .flat_map(|volume| &volume.steps)
        .map(|step| &step.action)
        .collect();
    assert!(
        touched
            .iter()
            .all(|action| !action.path().starts_with(layout().directory().join("volumes"))),
        "{touched:?}"
    );
}

#[test]
fn mounted_volumes_of_others_are_found() {
    let found = on_disk(
        &[("kubernetes.io~csi", "left"), ("kubernetes.io~empty-dir", "a")],
        &[],
        &[],
        &[
            "volumes/kubernetes.io~csi/pv/mount",
            "volumes/kubernetes.io~csi/pv/mount/inner",
            "volumes/kubernetes.io~local-volume/disk",
            "volumes/kubernetes.io~empty-dir/a",
            "volumes/kubernetes.io~projected/token",
            "volume-subpaths/pv/main/0",
        ],
    );
    let unknown = unknown_volumes(&[found], Path::new(PODS)).into_iter();
    let unknown: Vec<String> = unknown
        .map(|one| format!("{} {} {}", one.uid, one.plugin, one.name))
        .collect();
    assert_eq!(
        unknown,
        ["u1 kubernetes.io/csi pv", "u1 kubernetes.io/local-volume disk"]
    );
}

proptest! {
    /// Every mount at or below what is removed is unmounted before, and nothing outside of the pod's directory is touched.
    #[test]
    fn nothing_is_removed_across_a_mount(
        names in proptest::collection::vec("[ab]", 1..4),
        mounts in proptest::collection::vec("(volumes/kubernetes\\.io~empty-dir|volume-subpaths)/[ab](/[xy]){0,2}", 0..6),
    ) {
        let volumes: Vec<(&str, &str)> = names.iter().map(|name| (EMPTY, name.as_str())).collect();
        let mounts: Vec<&str> = mounts.iter().map(String::as_str).collect();
        let found = on_disk(&volumes, &[], &[], &mounts);
        let plan = plan_tear_down(&found, Path::new(PODS));
        let pod = PodLayout::new(Path::new(PODS), &PodUid::from("u1"));
        let mut mounted: Vec<PathBuf> = found.mounts.iter().map(|mount| mount.path.clone()).collect();
        for step in plan.volumes.iter().flat_map(|volume| &volume.steps) {
            let path = step.action.path();
            prop_assert!(path.starts_with(pod.directory()) && path != pod.directory());
            match &step.action {
                VolumeAction::Unmount { target, .. } => {
                    let is_carrying = mounted.iter().any(|other| other.starts_with(target) && other != target);
                    prop_assert!(!is_carrying, "{target:?} carries another mount");
                    mounted.retain(|other| other != target);
                }
                VolumeAction::RemoveTree { path } => {
                    prop_assert!(!mounted.iter().any(|other| other.starts_with(path)), "{path:?} of {mounted:?}");
                }
                VolumeAction::RemoveEmptyDirectory { .. } => {}
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }
}
