//! What a container gets mounted.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rubelet_model::volume_step::VolumeAction;
use rubelet_storage::{ContainerMounts, MountInputs, StorageNode, image_volumes, plan_mounts};
use rubelet_wire::cri::v1::{ImageSpec, Mount, MountPropagation};
use serde_json::{Value, json};

use crate::{layout, node, pod};

struct Case {
    node: StorageNode,
    supports_recursive_read_only: bool,
    environment: BTreeMap<String, String>,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            node: node(),
            supports_recursive_read_only: true,
            environment: [
                ("POD".to_owned(), "web-0".to_owned()),
                ("NONE".to_owned(), String::new()),
            ]
            .into(),
        }
    }
}

impl Case {
    fn plan(&self, mounts: Value) -> Result<ContainerMounts, String> {
        let pod = pod(json!({
            "containers": [{ "name": "main", "volumeMounts": mounts }],
            "volumes": [
                { "name": "empty", "emptyDir": {} },
                { "name": "host", "hostPath": { "path": "/srv/data" } },
                { "name": "down", "downwardAPI": {} },
                { "name": "proj", "projected": {} },
                { "name": "map", "configMap": { "name": "m" } },
                { "name": "key", "secret": { "secretName": "s" } },
                { "name": "image", "image": { "reference": "registry/data:1", "pullPolicy": "Never" } },
            ],
        }));
        let image = ImageSpec {
            image: "sha256:1".to_owned(),
            ..ImageSpec::default()
        };
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let inputs = MountInputs {
            layout: &layout(),
            environment: &self.environment,
            images: &[("image".to_owned(), image)].into(),
            supports_recursive_read_only: self.supports_recursive_read_only,
            node: &self.node,
        };
        plan_mounts(&pod, container, inputs).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn one(&self, mount: Value) -> Result<Mount, String> {
        self.plan(json!([mount]))
            .map(|mut planned| planned.mounts.remove(0))
    }
}

#[test]
fn places_of_volumes() {
    let place = |name: &str| {
        let mount = Case::default()
            .one(json!({ "name": name, "mountPath": "m" }))
            .unwrap();
        assert_eq!(mount.container_path, "/m");
        (mount.host_path, mount.readonly)
    };
    let volumes = "/var/lib/kubelet/pods/u1/volumes";
    assert_eq!(
        place("map"),
        (format!("{volumes}/kubernetes.io~configmap/map"), true)
    );
    assert_eq!(
        place("key"),
        (format!("{volumes}/kubernetes.io~secret/key"), true)
    );
    assert_eq!(
        place("empty"),
        (format!("{volumes}/kubernetes.io~empty-dir/empty"), false)
    );
    assert_eq!(place("host"), ("/srv/data".to_owned(), false));
    assert_eq!(
        place("down"),
        (format!("{volumes}/kubernetes.io~downward-api/down"), true)
    );
    assert_eq!(
        place("proj"),
        (format!("{volumes}/kubernetes.io~projected/proj"), true)
    );
    let image = Case::default()
        .one(json!({ "name": "image", "mountPath": "/m", "subPath": "etc" }))
        .unwrap();
    assert_eq!(image.host_path, "");
    assert_eq!(image.image.unwrap().image, "sha256:1");
    assert_eq!(image.image_sub_path, "etc");
    assert!(image.readonly);
}

#[test]
fn labels_only_where_the_pod_owns_the_files() {
    let mut case = Case::default();
    case.node.is_selinux_enabled = true;
    for (name, expected) in [
        ("empty", true),
        ("down", true),
        ("proj", true),
        ("host", false),
        ("image", false),
    ] {
        let mount = case.one(json!({ "name": name, "mountPath": "/m" })).unwrap();
        assert_eq!(mount.selinux_relabel, expected, "{name}");
    }
}

#[test]
fn read_only_and_propagation() {
    let case = Case::default();
    let mount = case
        .one(json!({ "name": "host", "mountPath": "/m", "readOnly": true }))
        .unwrap();
    assert!(mount.readonly && !mount.recursive_read_only);
    let check = |mode: Value, expected: Result<MountPropagation, &str>| {
        let found = case.one(json!({ "name": "host", "mountPath": "/m", "mountPropagation": mode }));
        assert_eq!(
            found.map(|mount| mount.propagation),
            expected.map(i32::from).map_err(ToOwned::to_owned),
            "{mode}"
        );
    };
    check(json!(null), Ok(MountPropagation::PropagationPrivate));
    check(json!("None"), Ok(MountPropagation::PropagationPrivate));
    check(
        json!("HostToContainer"),
        Ok(MountPropagation::PropagationHostToContainer),
    );
    check(
        json!("Bidirectional"),
        Ok(MountPropagation::PropagationBidirectional),
    );
    check(
        json!("Sideways"),
        Err("invalid MountPropagation mode: \"Sideways\""),
    );
}

#[test]
fn recursive_read_only() {
    let check = |mode: &str,
                 read_only: bool,
                 propagation: &str,
                 supported: bool,
                 expected: Result<bool, &str>| {
        let case = Case {
            supports_recursive_read_only: supported,
            ..Case::default()
        };
        let mount = json!({ "name": "host", "mountPath": "/m", "readOnly": read_only, "recursiveReadOnly": mode,
            "mountPropagation": propagation });
        let found = case.one(mount).map(|mount| mount.recursive_read_only);
        let start = "failed to resolve recursive read-only mode: ";
        let expected = expected.map_err(|text| format!("{start}{text}"));
        assert_eq!(found, expected, "{mode} {read_only} {propagation} {supported}");
    };
    check("Disabled", false, "None", false, Ok(false));
    check("IfPossible", true, "None", false, Ok(false));
    check("IfPossible", true, "None", true, Ok(true));
    check("Enabled", true, "None", true, Ok(true));
    let volume = "volume \"host\" requested recursive read-only mode, but it is not ";
    check(
        "Enabled",
        true,
        "None",
        false,
        Err(&format!("{volume}supported by the runtime")),
    );
    check(
        "IfPossible",
        false,
        "None",
        true,
        Err(&format!("{volume}read-only")),
    );
    check(
        "Enabled",
        true,
        "HostToContainer",
        true,
        Err(&format!(
            "{volume}compatible with propagation \"HostToContainer\""
        )),
    );
    check(
        "Maybe",
        true,
        "None",
        true,
        Err("unknown recursive read-only mode \"Maybe\""),
    );
}

#[test]
fn sub_paths_are_bound() {
    let planned = Case::default()
        .plan(json!([
            { "name": "empty", "mountPath": "/a" },
            { "name": "empty", "mountPath": "/b", "subPath": "x/y" },
            { "name": "host", "mountPath": "/c", "subPathExpr": "logs/$(POD)/$$(POD)", "readOnly": true },
        ]))
        .unwrap();
    let target = "/var/lib/kubelet/pods/u1/volume-subpaths";
    let hosts: Vec<&str> = planned
        .mounts
        .iter()
        .map(|mount| mount.host_path.as_str())
        .collect();
    assert_eq!(
        hosts[1..],
        [format!("{target}/empty/main/1"), format!("{target}/host/main/2")]
    );
    let binds: Vec<String> = planned
        .binds
        .iter()
        .map(|step| match &step.action {
            VolumeAction::BindSubPath {
                volume_root,
                relative,
                target,
            } => format!(
                "{} {} {}",
                volume_root.display(),
                relative.display(),
                target.display()
            ),
            other => panic!("{other:?}"),
        })
        .collect();
    let empty = "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/empty";
    assert_eq!(
        binds,
        [
            format!("{empty} x/y {target}/empty/main/1"),
            format!("/srv/data logs/web-0/$(POD) {target}/host/main/2"),
        ]
    );
}

#[test]
fn sub_paths_that_are_refused() {
    let check = |field: &str, path: &str, expected: &str| {
        let found = Case::default().plan(json!([{ "name": "empty", "mountPath": "/m", field: path }]));
        assert_eq!(found, Err(expected.to_owned()), "{path}");
    };
    check(
        "subPath",
        "/etc",
        "error SubPath `/etc` must not be an absolute path",
    );
    check(
        "subPath",
        "a/../b",
        "unable to provision SubPath `a/../b`: must not contain '..'",
    );
    check(
        "subPathExpr",
        "$(POD)/..",
        "unable to provision SubPath `web-0/..`: must not contain '..'",
    );
    check("subPathExpr", "$(B)/$(NONE)/$(A)", "missing value for A, B, NONE");
}

#[test]
fn what_is_missing_is_named() {
    let missing = Case::default().plan(json!([{ "name": "gone", "mountPath": "/m" }]));
    assert_eq!(
        missing,
        Err("cannot find volume \"gone\" to mount into container \"main\"".to_owned())
    );
    let device = pod(
        json!({ "containers": [{ "name": "main", "volumeDevices": [{ "name": "d", "devicePath": "/dev/x" }] }] }),
    );
    let container = &device.spec.as_ref().unwrap().containers[0];
    let case = Case::default();
    let inputs = MountInputs {
        layout: &layout(),
        environment: &case.environment,
        images: &BTreeMap::new(),
        supports_recursive_read_only: true,
        node: &case.node,
    };
    let refused = plan_mounts(&device, container, inputs).unwrap_err().to_string();
    assert_eq!(
        refused,
        "volume \"d\" is a block device, which is not supported yet"
    );
}

#[test]
fn images_of_a_container() {
    let pod = pod(json!({
        "containers": [{ "name": "main", "volumeMounts": [{ "name": "one", "mountPath": "/1" }, { "name": "e", "mountPath": "/e" }] }],
        "volumes": [
            { "name": "one", "image": { "reference": "r1", "pullPolicy": "Always" } },
            { "name": "two", "image": { "reference": "r2" } },
            { "name": "e", "emptyDir": {} },
        ],
    }));
    let mounts = pod.spec.as_ref().unwrap().containers[0]
        .volume_mounts
        .clone()
        .unwrap();
    let found = image_volumes(&pod, &mounts);
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].volume.as_str(), found[0].reference.as_str()),
        ("one", "r1")
    );
    assert_eq!(found[0].pull_policy.as_deref(), Some("Always"));
}

proptest! {
    /// Whatever a sub path says, what is opened lies below the volume and the target below the pod's own directory.
    #[test]
    fn no_sub_path_leads_elsewhere_by_its_text(path in "[a./$()A]{0,12}", expr in any::<bool>()) {
        let field = if expr { "subPathExpr" } else { "subPath" };
        let planned = Case::default().plan(json!([{ "name": "empty", "mountPath": "/m", field: path }]));
        if let Ok(planned) = planned {
            for step in planned.binds {
                let VolumeAction::BindSubPath { relative, target, .. } = step.action else { panic!() };
                prop_assert!(relative.is_relative());
                prop_assert!(relative.components().all(|part| part != std::path::Component::ParentDir));
                prop_assert!(target.starts_with(layout().sub_paths()));
            }
        }
    }
}
