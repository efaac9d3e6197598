//! Mounts whose server does not answer or has gone: they cost their own pod time, and no other pod.

use std::path::Path;
use std::time::{Duration, Instant};

use rubelet_host::HostVolumes;
use rubelet_ports::volume_host::{HostPathKind, VolumeAction, VolumeBatch, VolumeStep};
use rubelet_ports::{VolumeErrorKind, VolumeHostWriter};
use rubelet_testbed::fuse::{DIRECTORY, Farewell, SilentFuse};
use rubelet_testbed::wait::wait_for;

use super::{LONG, Node, clean_up, downward, empty_dir, mounts_below, of, sub_path};

const SHORT: Duration = Duration::from_millis(300);
/// For what has to be begun, or done, before the time is up: the machine may be busy.
const AMPLE: Duration = Duration::from_secs(5);

fn check_host_path(path: &Path) -> Vec<VolumeStep> {
    let action = VolumeAction::CheckHostPath {
        path: path.to_owned(),
        kind: HostPathKind::Directory,
    };
    vec![of("dead", action)]
}

/// What a pod with two volumes does from its beginning to its end.
async fn a_pod_comes_and_goes(node: &Node, name: &str) {
    let pod = node.pods().join(name);
    let mut steps = empty_dir(&pod, "memory", true);
    steps.extend(downward(&pod, "about", "text"));
    assert_eq!(node.execute(name, steps).await, []);
    let found = node.on_disk().await;
    let found = found.iter().find(|pod| pod.uid.as_str() == name).unwrap();
    assert_eq!(node.execute(name, clean_up(found, &node.pods())).await, []);
    assert!(!pod.exists());
}

/// Waits until calls under a key are executed again.
async fn comes_back(node: &Node, key: &str, steps: impl Fn() -> Vec<VolumeStep>) {
    let end = Instant::now() + LONG;
    while !node.execute(key, steps()).await.is_empty() {
        assert!(Instant::now() < end, "it does not come back");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_dead_host_path_stops_its_own_pod_only() {
    let node = Node::new("dead-hostpath");
    let fuse = SilentFuse::mount(&node.path("dead"), Farewell::None).unwrap();
    assert_eq!(node.execute("u", check_host_path(fuse.mount_point())).await, []);
    fuse.fall_silent();
    let pod = node.path("pods/u");
    let mut steps = empty_dir(&pod, "before", true);
    steps.extend(check_host_path(fuse.mount_point()));
    steps.extend(empty_dir(&pod, "after", true));
    let errors = node.execute_within("u", steps, AMPLE).await;
    let told: Vec<_> = errors.iter().map(|error| (&*error.volume, error.kind)).collect();
    assert_eq!(
        told,
        [
            ("dead", VolumeErrorKind::TimedOut),
            ("after", VolumeErrorKind::TimedOut)
        ]
    );
    assert_eq!(
        (errors[0].step, errors[0].path.as_path()),
        ("check hostPath", fuse.mount_point())
    );

    let start = Instant::now();
    for number in 0..20 {
        let again = node
            .execute_within("u", check_host_path(fuse.mount_point()), LONG)
            .await;
        assert_eq!(again[0].kind, VolumeErrorKind::TimedOut);
        a_pod_comes_and_goes(&node, &format!("other-{number}")).await;
    }
    assert_eq!(fuse.victims(), 1, "the pod has lost one thread");
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());

    // Many pods on the dead mount: more than threads that work at the same time.
    for number in 0..12 {
        let key = format!("dead-{number}");
        let errors = node
            .execute_within(&key, check_host_path(fuse.mount_point()), SHORT / 4)
            .await;
        assert_eq!(errors[0].kind, VolumeErrorKind::TimedOut);
    }
    let start = Instant::now();
    a_pod_comes_and_goes(&node, "last").await;
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());

    // What the pod has below its own directory does not wait for the dead mount.
    let found = node.on_disk().await;
    assert_eq!(
        node.execute("u's end", clean_up(&found[0], &node.pods())).await,
        []
    );
    assert_eq!(node.on_disk().await, []);

    fuse.recover();
    comes_back(&node, "u", || check_host_path(fuse.mount_point())).await;
    assert_eq!(node.mounts("pods"), [], "what was begun late was not done");
}

#[tokio::test]
async fn a_bound_part_of_a_dead_mount_is_found_and_removed() {
    let node = Node::new("dead-subpath");
    let fuse = SilentFuse::mount(&node.path("dead"), Farewell::None).unwrap();
    let target = node.path("pods/u/volume-subpaths/v/main/0");
    let bind = sub_path(fuse.mount_point(), DIRECTORY, &target);
    node.does(bind.clone()).await;
    fuse.fall_silent();
    let found = node.on_disk().await;
    assert_eq!(found[0].mounts[0].path, target);
    assert_eq!(found[0].sub_paths.len(), 1);
    let late = node.execute_within("late", vec![of("v", bind)], SHORT).await;
    assert_eq!(late[0].kind, VolumeErrorKind::TimedOut);
    assert_eq!(node.execute("end", clean_up(&found[0], &node.pods())).await, []);
    fuse.recover();
    // The one that was late comes to its end now, and leaves nothing mounted.
    comes_back(&node, "late", || Vec::from([of("v", unmount(&target))])).await;
    assert_eq!(mounts_below(&node.pods()), []);
}

fn unmount(target: &Path) -> VolumeAction {
    VolumeAction::Unmount {
        target: target.to_owned(),
        lazy: false,
    }
}

#[tokio::test]
async fn a_mount_whose_server_has_gone_is_replaced() {
    let node = Node::new("dead-server");
    let fuse = SilentFuse::mount(&node.path("gone"), Farewell::None).unwrap();
    let target = node.path("pods/u/volume-subpaths/v/main/0");
    node.does(sub_path(fuse.mount_point(), DIRECTORY, &target)).await;
    fuse.end_connection().unwrap();
    assert!(std::fs::metadata(&target).is_err(), "nobody answers");
    let volume = node.path("volume");
    std::fs::create_dir(&volume).unwrap();
    node.does(sub_path(&volume, "part", &target)).await;
    std::fs::write(volume.join("part/here"), "").unwrap();
    assert!(target.join("here").exists());
    assert_eq!(mounts_below(&target).len(), 1);
    let errors = node.execute("u", check_host_path(fuse.mount_point())).await;
    assert_eq!(errors[0].kind, VolumeErrorKind::Corrupted, "{errors:?}");
    drop(fuse);
    let found = node.on_disk().await;
    assert_eq!(node.execute("end", clean_up(&found[0], &node.pods())).await, []);
    assert_eq!(mounts_below(&node.pods()), []);
}

const HANGING: &str = "RUBELET_VOLUME_HANGING";
const PORT: &str = "RUBELET_VOLUME_PORT";

/// The process that is killed while it hangs. It has a port, as a kubelet has.
#[tokio::test]
#[ignore = "a part of the test below, which starts it as a process of its own"]
async fn child() {
    let (path, port) = (std::env::var(HANGING).unwrap(), std::env::var(PORT).unwrap());
    let _listener = std::net::TcpListener::bind(format!("127.0.0.1:{port}")).unwrap();
    let batch = VolumeBatch {
        key: "u".into(),
        steps: check_host_path(Path::new(&path)),
        deadline: LONG,
    };
    let errors = HostVolumes::new().execute(batch).await;
    panic!("it does not hang: {errors:?}");
}

#[test]
fn a_killed_process_that_hangs_gives_its_ports_back() {
    let node = Node::new("dead-and-killed");
    let port = node.scope.port().unwrap();
    let fuse = SilentFuse::mount(&node.path("dead"), Farewell::None).unwrap();
    fuse.fall_silent();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "volumes::dead_mounts::child", "--ignored"])
        .env(HANGING, fuse.mount_point())
        .env(PORT, port.to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let hung = fuse.wait_for_victim(LONG);
    child.kill().unwrap();
    hung.unwrap();
    let freed = wait_for("the port is free", LONG, || {
        Ok(std::net::TcpListener::bind(("127.0.0.1", port))?)
    });
    let ended = child.try_wait().unwrap();
    fuse.recover();
    child.wait().unwrap();
    freed.unwrap();
    assert_eq!(ended, None, "the process itself has to wait");
}

#[tokio::test]
async fn an_unmount_that_hangs_stops_its_own_pod_only() {
    let node = Node::new("dead-unmount");
    let mount_point = node.path("pods/u/volumes/plugin/v");
    let fuse = SilentFuse::mount(&mount_point, Farewell::Waits).unwrap();
    fuse.fall_silent();
    let found = node.on_disk().await;
    let steps = || clean_up(&found[0], &node.pods());
    let errors = node.execute_within("u", steps(), AMPLE).await;
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(
        (errors[0].kind, errors[0].step),
        (VolumeErrorKind::TimedOut, "unmount")
    );
    fuse.wait_for_victim(LONG).unwrap();
    for number in 0..5 {
        a_pod_comes_and_goes(&node, &format!("other-{number}")).await;
        let again = node.execute_within("u", steps(), LONG).await;
        assert_eq!(again[0].kind, VolumeErrorKind::TimedOut);
    }
    // It is not mounted any more, though the call has not come back: the directory can go.
    assert_eq!(mounts_below(&node.pods()), []);
    assert_eq!(node.execute("u's end", steps()).await, []);
    assert!(!node.pods().join("u").exists());
    fuse.recover();
    comes_back(&node, "u", steps).await;
}
