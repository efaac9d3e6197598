//! What is set up for which volume.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use rubelet_model::volume_step::{HostPathKind, Ownership, OwnershipPolicy, VolumeAction};
use rubelet_storage::{ObjectAnswers, StorageNode, plan_set_up, uses_volumes};
use serde_json::{Value, json};

use crate::{layout, node, pod, pod_with};

fn actions(pod: &Pod, node: &StorageNode) -> Vec<Result<Vec<VolumeAction>, String>> {
    let plan = plan_set_up(pod, node, &layout(), &ObjectAnswers::default());
    plan.volumes
        .into_iter()
        .map(|volume| {
            let steps = volume.plan.map_err(|error| error.to_string())?;
            assert!(steps.iter().all(|step| step.volume == volume.volume));
            Ok(steps.into_iter().map(|step| step.action).collect())
        })
        .collect()
}

/// The only volume of the pod.
#[track_caller]
fn one(pod: &Pod, node: &StorageNode) -> Result<Vec<VolumeAction>, String> {
    let mut all = actions(pod, node);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Verbs and paths below the pod's directory, with what is special.
fn words(actions: &[VolumeAction]) -> Vec<String> {
    let pod = layout().directory().to_owned();
    actions
        .iter()
        .map(|action| {
            let path = action
                .path()
                .strip_prefix(&pod)
                .unwrap_or(action.path())
                .display();
            let more = match action {
                VolumeAction::MakeDirectory { mode, .. } => format!(" {mode:o}"),
                VolumeAction::MountTmpfs { size_bytes, .. } => format!(" {size_bytes:?}"),
                VolumeAction::MountHugePages {
                    page_size_bytes,
                    any_page_size,
                    ..
                } => {
                    format!(" {page_size_bytes} {any_page_size}")
                }
                VolumeAction::EndIfReady { mounted, .. } => format!(" {mounted}"),
                VolumeAction::CheckHostPath { kind, .. } => format!(" {kind:?}"),
                _ => String::new(),
            };
            format!("{} {path}{more}", action.verb())
        })
        .collect()
}

#[track_caller]
fn check(volume: Value, expected: Result<&[&str], &str>) {
    let pod = pod_with(json!([volume]));
    let found = one(&pod, &node()).map(|actions| words(&actions));
    let expected = expected
        .map(|lines| lines.iter().map(ToString::to_string).collect::<Vec<_>>())
        .map_err(ToOwned::to_owned);
    assert_eq!(found, expected, "{volume}");
}

#[test]
fn volumes_by_kind() {
    check(
        json!({ "name": "a", "emptyDir": {} }),
        Ok(&[
            "look whether it is ready volumes/kubernetes.io~empty-dir/a false",
            "make directory volumes/kubernetes.io~empty-dir/a 777",
            "mark as ready plugins/kubernetes.io~empty-dir/a",
        ]),
    );
    check(
        json!({ "name": "a", "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }),
        Ok(&[
            "look whether it is ready volumes/kubernetes.io~empty-dir/a true",
            "make directory volumes/kubernetes.io~empty-dir/a 777",
            "mount tmpfs volumes/kubernetes.io~empty-dir/a Some(1048576)",
            "mark as ready plugins/kubernetes.io~empty-dir/a",
        ]),
    );
    check(
        json!({ "name": "d", "downwardAPI": { "items": [] } }),
        Ok(&[
            "make directory volumes/kubernetes.io~downward-api/d 777",
            "mount tmpfs volumes/kubernetes.io~downward-api/d Some(8589934592)",
            "mark as ready plugins/kubernetes.io~empty-dir/wrapped_d",
            "write files volumes/kubernetes.io~downward-api/d",
        ]),
    );
    check(
        json!({ "name": "p", "projected": { "sources": [] } }),
        Ok(&[
            "make directory volumes/kubernetes.io~projected/p 777",
            "mount tmpfs volumes/kubernetes.io~projected/p Some(8589934592)",
            "mark as ready plugins/kubernetes.io~empty-dir/wrapped_p",
            "write files volumes/kubernetes.io~projected/p",
        ]),
    );
    check(json!({ "name": "i", "image": { "reference": "r" } }), Ok(&[]));
    check(json!({ "name": "h", "hostPath": { "path": "/data" } }), Ok(&[]));
    check(
        json!({ "name": "h", "hostPath": { "path": "/data", "type": "" } }),
        Ok(&[]),
    );
    for (word, kind) in [
        ("DirectoryOrCreate", HostPathKind::DirectoryOrCreate),
        ("Directory", HostPathKind::Directory),
        ("FileOrCreate", HostPathKind::FileOrCreate),
        ("File", HostPathKind::File),
        ("Socket", HostPathKind::Socket),
        ("CharDevice", HostPathKind::CharDevice),
        ("BlockDevice", HostPathKind::BlockDevice),
    ] {
        check(
            json!({ "name": "h", "hostPath": { "path": "/data", "type": word } }),
            Ok(&[&format!("check hostPath /data {kind:?}")]),
        );
    }
}

#[test]
fn what_cannot_be_had_says_why() {
    check(
        json!({ "name": "x", "emptyDir": { "medium": "Ssd" } }),
        Err("unknown storage medium \"Ssd\""),
    );
    check(
        json!({ "name": "x", "hostPath": { "path": "/a/../b" } }),
        Err("invalid HostPath `/a/../b`: must not contain '..'"),
    );
    check(
        json!({ "name": "x", "hostPath": { "path": "/a", "type": "Door" } }),
        Err("Door is an invalid volume type"),
    );
    check(
        json!({ "name": "x", "emptyDir": { "medium": "HugePages" } }),
        Err("medium HugePages: hugePages storage requested, but there is no resource request for huge pages"),
    );
    check(
        json!({ "name": "x", "nfs": { "server": "s", "path": "/" } }),
        Err("spec.volumes[0].nfs: volumes of this type are not supported yet"),
    );
    check(
        json!({ "name": "x", "projected": { "sources": [{ }] } }),
        Err("empty volumes are not supported yet"),
    );
    check(
        json!({ "name": "x", "downwardAPI": { "items": [{ "path": "f", "fieldRef": { "fieldPath": "spec.none" } }] } }),
        Err("file \"f\": fieldPath \"spec.none\" is not supported"),
    );
    check(
        json!({ "name": "x", "downwardAPI": { "items": [
            { "path": "f", "fieldRef": { "fieldPath": "spec.none" } },
            { "path": "g", "fieldRef": { "fieldPath": "spec.none" } },
            { "path": "g", "fieldRef": { "fieldPath": "spec.none" } },
        ] } }),
        Err(
            "[file \"f\": fieldPath \"spec.none\" is not supported, file \"g\": fieldPath \"spec.none\" is not supported]",
        ),
    );
    let long_name = "n".repeat(256);
    let long_path = "n/".repeat(2049);
    for (path, reason) in [
        ("../f", "must not contain '..': ../f"),
        ("/f", "must be relative path: /f"),
        ("a/../../f", "must not contain '..': a/../../f"),
        ("..f", "must not start with '..': ..f"),
        ("./..f", "must not start with '..': ./..f"),
        ("", "must not be empty: \"\""),
        (".", "must not be empty: \".\""),
        (
            &long_name,
            "filenames must be less than or equal to 255 characters",
        ),
        (&long_path, "must be less than or equal to 4096 characters"),
    ] {
        let items = json!([{ "path": path, "fieldRef": { "fieldPath": "metadata.name" } }]);
        let words = format!("invalid path: {reason}");
        check(
            json!({ "name": "x", "downwardAPI": { "items": items } }),
            Err(&words),
        );
    }
}

#[test]
fn only_used_volumes_are_set_up() {
    let volumes = json!([
        { "name": "init", "emptyDir": {} }, { "name": "nobody", "hostPath": { "path": "/x", "type": "File" } },
        { "name": "main", "emptyDir": {} }, { "name": "debug", "emptyDir": {} },
    ]);
    let mount = |name: &str| json!([{ "name": name, "mountPath": "/m" }]);
    let used = pod(json!({
        "volumes": volumes,
        "initContainers": [{ "name": "i", "volumeMounts": mount("init") }],
        "containers": [{ "name": "c", "volumeMounts": mount("main") }],
        "ephemeralContainers": [{ "name": "e", "volumeMounts": mount("debug") }],
    }));
    let plan = plan_set_up(&used, &node(), &layout(), &ObjectAnswers::default());
    let names: Vec<&str> = plan.volumes.iter().map(|volume| volume.volume.as_str()).collect();
    assert_eq!(names, ["init", "main", "debug"]);
    assert!(uses_volumes(&used));
    let unused = pod(json!({ "volumes": volumes, "containers": [{ "name": "c" }] }));
    assert!(!uses_volumes(&unused));
}

#[test]
fn sizes_in_memory() {
    let size = |limit: Option<&str>, memory: Option<&str>, pod_level: Option<&str>| {
        let mut empty_dir = json!({ "medium": "Memory" });
        if let Some(limit) = limit {
            empty_dir["sizeLimit"] = json!(limit);
        }
        let mut container = json!({ "name": "c", "volumeMounts": [{ "name": "v", "mountPath": "/v" }] });
        if let Some(memory) = memory {
            container["resources"] = json!({ "limits": { "memory": memory } });
        }
        let mut spec =
            json!({ "containers": [container], "volumes": [{ "name": "v", "emptyDir": empty_dir }] });
        if let Some(memory) = pod_level {
            spec["resources"] = json!({ "limits": { "memory": memory } });
        }
        let actions = one(&pod(spec), &node()).unwrap();
        actions.into_iter().find_map(|action| match action {
            VolumeAction::MountTmpfs { size_bytes, .. } => Some(size_bytes),
            _ => None,
        })
    };
    let check = |limit, memory, pod_level, expected: u64| {
        assert_eq!(
            size(limit, memory, pod_level),
            Some(Some(expected)),
            "{limit:?} {memory:?} {pod_level:?}"
        );
    };
    check(None, None, None, 8 << 30);
    check(Some("1Gi"), None, None, 1 << 30);
    check(Some("20Gi"), None, None, 8 << 30);
    check(Some("0"), None, None, 8 << 30);
    check(None, Some("64Mi"), None, 64 << 20);
    check(Some("1Gi"), Some("64Mi"), None, 64 << 20);
    check(Some("32Mi"), Some("64Mi"), None, 32 << 20);
    check(None, None, Some("48Mi"), 48 << 20);
    check(Some("1500m"), None, None, 2);
}

#[test]
fn huge_pages() {
    let plan = |medium: &str, requests: &[Value]| {
        let containers: Vec<Value> = requests
            .iter()
            .enumerate()
            .map(|(index, requests)| {
                json!({ "name": format!("c{index}"), "resources": { "requests": requests, "limits": requests },
                    "volumeMounts": [{ "name": "v", "mountPath": "/v" }] })
            })
            .collect();
        let volumes = json!([{ "name": "v", "emptyDir": { "medium": medium } }]);
        one(
            &pod(json!({ "containers": containers, "volumes": volumes })),
            &node(),
        )
        .map(|actions| {
            let mount = actions
                .iter()
                .find(|action| matches!(action, VolumeAction::MountHugePages { .. }));
            words(&[mount.unwrap().clone()]).remove(0)
        })
    };
    let (small, large) = (
        json!({ "hugepages-2Mi": "4Mi" }),
        json!({ "hugepages-1Gi": "1Gi" }),
    );
    let at = "mount hugetlbfs volumes/kubernetes.io~empty-dir/v";
    assert_eq!(
        plan("HugePages", std::slice::from_ref(&small)),
        Ok(format!("{at} 2097152 true"))
    );
    assert_eq!(
        plan("HugePages", &[small.clone(), small.clone()]),
        Ok(format!("{at} 2097152 true"))
    );
    assert_eq!(
        plan("HugePages", &[small.clone(), large.clone()]),
        Err("medium: HugePages can't be used if container requests multiple huge page sizes".to_owned())
    );
    assert_eq!(
        plan("HugePages-1Gi", &[small.clone(), large]),
        Ok(format!("{at} 1073741824 false"))
    );
    assert!(plan("HugePages-1Gi", std::slice::from_ref(&small)).is_err());
    assert!(plan("HugePages-x", &[small]).is_err());
}

/// The files of the only volume, as `path mode owner content`.
#[track_caller]
fn files(pod: &Pod, node: &StorageNode) -> Vec<String> {
    let actions = one(pod, node).unwrap();
    let Some(VolumeAction::WritePayload { files, .. }) = actions.last() else {
        panic!("{actions:?}");
    };
    files
        .iter()
        .map(|file| {
            let content = String::from_utf8_lossy(&file.content);
            format!(
                "{} {:o} {:?} {content}",
                file.path.display(),
                file.mode,
                file.owner
            )
        })
        .collect()
}

fn field(path: &str, field: &str) -> Value {
    json!({ "path": path, "fieldRef": { "fieldPath": field } })
}

#[test]
fn files_of_the_downward_api() {
    let mut private = field("sub/./name", "metadata.name");
    private["mode"] = json!(0o400);
    private["user"] = json!(7);
    let items = json!([
        private,
        field("labels", "metadata.labels"),
        field("annotation", "metadata.annotations['note']"),
        { "path": "cpu", "resourceFieldRef": { "containerName": "main", "resource": "limits.cpu" } },
        { "path": "memory", "resourceFieldRef": { "containerName": "main", "resource": "limits.memory", "divisor": "1Mi" } },
    ]);
    let volumes = json!([{ "name": "d", "downwardAPI": { "items": items, "defaultMode": 0o640 } }]);
    let pod = pod_with(volumes);
    let expected = [
        "annotation 640 None a \"b\"",
        "cpu 640 None 4",
        "labels 640 None app=\"web\"\ntier=\"front\"",
        "memory 640 None 8192",
        "sub/name 400 None web",
    ];
    assert_eq!(files(&pod, &node()), expected);
    let mut node = node();
    node.gates.file_users = true;
    assert_eq!(files(&pod, &node)[4], "sub/name 400 Some(7) web");
}

#[test]
fn later_sources_of_a_projected_volume_win() {
    let source = |items: Value| json!({ "downwardAPI": { "items": items } });
    let sources = json!([
        source(json!([field("a", "metadata.name"), field("b", "metadata.name")])),
        source(json!([field("b", "metadata.namespace"), { "path": "c" }])),
    ]);
    let pod = pod_with(json!([{ "name": "p", "projected": { "sources": sources } }]));
    assert_eq!(
        files(&pod, &node()),
        ["a 644 None web", "b 644 None default", "c 644 None "]
    );
}

#[test]
fn groups() {
    let with_group = |volume: Value| {
        let mut pod = pod_with(json!([volume]));
        pod.spec.as_mut().unwrap().security_context =
            serde_json::from_value(json!({ "fsGroup": 2000, "fsGroupChangePolicy": "OnRootMismatch" }))
                .unwrap();
        one(&pod, &node()).unwrap()
    };
    let group = |read_only| Ownership {
        group: 2000,
        policy: OwnershipPolicy::Always,
        read_only,
    };
    let disk = with_group(json!({ "name": "a", "emptyDir": {} }));
    let path = layout().volume("kubernetes.io~empty-dir", "a");
    let change = VolumeAction::SetOwnership {
        path,
        ownership: group(false),
    };
    assert_eq!(disk[2], change, "after the directory and before the marker");
    assert_eq!(disk.len(), 4);
    let written = with_group(json!({ "name": "d", "downwardAPI": {} }));
    let Some(VolumeAction::WritePayload { ownership, .. }) = written.last() else {
        panic!("{written:?}");
    };
    assert_eq!(*ownership, Some(group(true)));
    let host = with_group(json!({ "name": "h", "hostPath": { "path": "/h", "type": "Directory" } }));
    assert_eq!(host.len(), 1, "the node's files are not the pod's");
}

#[test]
fn modes_of_directories_have_a_gate() {
    let pod = pod_with(json!([{ "name": "a", "emptyDir": { "mode": 0o1770 } }]));
    let mode = |node: &StorageNode| {
        one(&pod, node)
            .unwrap()
            .into_iter()
            .find_map(|action| match action {
                VolumeAction::MakeDirectory { mode, .. } => Some(mode),
                _ => None,
            })
    };
    let mut node = node();
    assert_eq!(mode(&node), Some(0o777));
    node.gates.empty_dir_mode = true;
    assert_eq!(mode(&node), Some(0o1770));
}

#[test]
fn directories_for_mounts_below_a_read_only_volume() {
    let check = |points: &[(&str, &str)], expected: &[&str]| {
        let mounts: Vec<Value> = points
            .iter()
            .map(|(name, path)| json!({ "name": name, "mountPath": path }))
            .collect();
        let volumes =
            json!([{ "name": "d", "downwardAPI": {} }, { "name": "e", "hostPath": { "path": "/e" } }]);
        let pod = pod(json!({ "containers": [{ "name": "c", "volumeMounts": mounts }], "volumes": volumes }));
        let root = layout().volume("kubernetes.io~downward-api", "d");
        let made: Vec<PathBuf> = actions(&pod, &node())
            .remove(0)
            .unwrap()
            .iter()
            .filter(|action| matches!(action, VolumeAction::MakeDirectory { .. }))
            .filter_map(|action| action.path().strip_prefix(&root).ok().map(Path::to_owned))
            .filter(|path| !path.as_os_str().is_empty())
            .collect();
        let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
        assert_eq!(made, expected, "{points:?}");
    };
    check(&[("d", "/a")], &[]);
    check(&[("d", "/a"), ("e", "/b")], &[]);
    check(&[("d", "/a"), ("e", "/a/b")], &["b"]);
    check(&[("e", "/a/b/c"), ("d", "/a/")], &["b", "b/c"]);
    check(
        &[("d", "/a"), ("e", "/a/b"), ("e", "/a/b/c"), ("e", "/ab")],
        &["b"],
    );
    check(
        &[
            ("d", "/a"),
            ("e", "/a/nested"),
            ("e", "/a/nested-vol"),
            ("e", "/a/nested/double"),
        ],
        &["nested", "nested-vol"],
    );
    check(&[("d", "/a"), ("e", "/a/x/../b")], &["b"]);
}
