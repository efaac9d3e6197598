//! The merger: which change each new set is, and that the changes, replayed, give what is wanted.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff;
use proptest::prelude::*;
use rubelet_agent::sources::{
    Merged, Merger, PodChange, SEEN_ANNOTATION, SOURCE_ANNOTATION, Source, SourceSet,
};
use rubelet_model::Timestamp;

const NOW: Timestamp = Timestamp::from_unix_nanos(1_700_000_000_120_000_000);

fn pod(uid: &str, name: &str, image: &str) -> Pod {
    Pod {
        metadata: ObjectMeta {
            uid: Some(uid.to_owned()),
            name: Some(name.to_owned()),
            namespace: Some("default".to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![Container {
                name: "c".to_owned(),
                image: Some(image.to_owned()),
                ..Container::default()
            }],
            ..PodSpec::default()
        }),
        status: None,
    }
}

fn with(mut pod: Pod, change: impl FnOnce(&mut Pod)) -> Pod {
    change(&mut pod);
    pod
}

fn set(source: Source, pods: &[Pod]) -> SourceSet {
    SourceSet {
        source,
        pods: pods.iter().cloned().map(Arc::new).collect(),
        is_complete: true,
        never_good: Vec::new(),
        unusable: Vec::new(),
        unreadable: Vec::new(),
    }
}

/// The changes as short words, e.g. `add a`.
fn words(merged: &Merged) -> Vec<String> {
    let word = |change: &PodChange| match change {
        PodChange::Add(_) => "add",
        PodChange::Update(_) => "update",
        PodChange::Delete(_) => "delete",
        PodChange::Remove(_) => "remove",
        PodChange::Reconcile(_) => "reconcile",
    };
    let uid = |change: &PodChange| change.pod().metadata.uid.clone().unwrap();
    merged
        .changes
        .iter()
        .map(|change| format!("{} {}", word(change), uid(change)))
        .collect()
}

fn annotation(pod: &Pod, key: &str) -> Option<String> {
    pod.metadata.annotations.as_ref()?.get(key).cloned()
}

#[test]
fn each_difference_has_its_change() {
    let base = || {
        with(pod("a", "web", "i"), |pod| {
            pod.metadata.annotations = Some(BTreeMap::from([("own".to_owned(), "1".to_owned())]));
            pod.metadata.labels = Some(BTreeMap::from([("app".to_owned(), "1".to_owned())]));
        })
    };
    let deleted = |pod: &mut Pod| {
        pod.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    };
    let annotate = |key: &str, value: &str| {
        let (key, value) = (key.to_owned(), value.to_owned());
        move |pod: &mut Pod| {
            pod.metadata
                .annotations
                .get_or_insert_default()
                .insert(key, value);
        }
    };
    let check = |what: &str, change: &dyn Fn(&mut Pod), expected: &[&str]| {
        let mut merger = Merger::new([Source::Api]);
        merger.merge(set(Source::Api, &[base()]), NOW);
        let newer = with(base(), change);
        let merged = merger.merge(
            set(Source::Api, std::slice::from_ref(&newer)),
            NOW.plus(std::time::Duration::from_secs(9)),
        );
        assert_eq!(words(&merged), expected, "{what}");
        if let Some(change) = merged.changes.first() {
            let pod = change.pod();
            assert_eq!(
                annotation(pod, SOURCE_ANNOTATION).as_deref(),
                Some("api"),
                "{what}"
            );
            assert_eq!(
                annotation(pod, SEEN_ANNOTATION).as_deref(),
                Some("2023-11-14T22:13:20.12Z"),
                "{what}"
            );
            assert_eq!((&pod.spec, &pod.status), (&newer.spec, &newer.status), "{what}");
            assert_eq!(pod.metadata.labels, newer.metadata.labels, "{what}");
            assert_eq!(pod.metadata.generation, newer.metadata.generation, "{what}");
        }
        let again = merger.merge(set(Source::Api, &[newer]), NOW);
        assert_eq!(
            again,
            Merged::default(),
            "the same set again is no change: {what}"
        );
    };
    check("nothing", &|_| (), &[]);
    check(
        "spec",
        &|pod| pod.spec.as_mut().unwrap().containers[0].image = Some("j".to_owned()),
        &["update a"],
    );
    check("labels", &|pod| pod.metadata.labels = None, &["update a"]);
    check("annotation", &|pod| annotate("own", "2")(pod), &["update a"]);
    check("new annotation", &|pod| annotate("other", "")(pod), &["update a"]);
    check(
        "annotation gone",
        &|pod| pod.metadata.annotations = None,
        &["update a"],
    );
    check(
        "local annotations",
        &|pod| {
            annotate(SOURCE_ANNOTATION, "file")(pod);
            annotate(SEEN_ANNOTATION, "yesterday")(pod);
            annotate("kubernetes.io/config.mirror", "hash")(pod);
        },
        &[],
    );
    check(
        "status",
        &|pod| pod.status = Some(PodStatus::default()),
        &["reconcile a"],
    );
    check(
        "status and spec",
        &|pod| {
            pod.status = Some(PodStatus::default());
            pod.spec.as_mut().unwrap().host_network = Some(true);
        },
        &["update a"],
    );
    check("deletion", &deleted, &["delete a"]);
    check(
        "grace",
        &|pod| pod.metadata.deletion_grace_period_seconds = Some(3),
        &["update a"],
    );
    check(
        "deletion and spec",
        &|pod| {
            deleted(pod);
            pod.spec = None;
        },
        &["delete a"],
    );
    check(
        "resource version and generation",
        &|pod| {
            pod.metadata.resource_version = Some("9".to_owned());
        },
        &[],
    );
}

#[test]
fn an_edited_static_pod_leaves_before_it_comes() {
    let mut merger = Merger::new([Source::File]);
    let first = merger.merge(
        set(Source::File, &[pod("b", "web", "i"), pod("a", "db", "i")]),
        NOW,
    );
    assert_eq!(words(&first), ["add b", "add a"], "in the source's order");
    let edited = merger.merge(
        set(
            Source::File,
            &[pod("a", "db", "k"), pod("0", "web", "j"), pod("c", "new", "i")],
        ),
        NOW,
    );
    assert_eq!(words(&edited), ["remove b", "add 0", "add c", "update a"]);
    assert_eq!(merger.pods().count(), 3);
}

#[test]
fn sources_are_counted_once_they_have_delivered() {
    let mut merger = Merger::new([Source::File, Source::Http]);
    assert!(!merger.seen_all());
    merger.merge(set(Source::File, &[]), NOW);
    merger.merge(set(Source::File, &[pod("a", "web", "i")]), NOW);
    assert!(!merger.seen_all());
    assert_eq!(merger.merge(set(Source::Http, &[]), NOW), Merged::default());
    assert!(merger.seen_all());
    assert!(Merger::new([]).seen_all());
}

#[test]
fn of_one_name_the_first_counts_and_the_other_is_told_of_once() {
    let mut merger = Merger::new([Source::File]);
    let both = [pod("a", "web", "i"), pod("b", "web", "j"), pod("c", "db", "i")];
    let merged = merger.merge(set(Source::File, &both), NOW);
    assert_eq!(words(&merged), ["add a", "add c"]);
    assert_eq!(merged.duplicates.len(), 1);
    assert_eq!(merged.duplicates[0].pod.metadata.uid.as_deref(), Some("b"));
    assert_eq!(
        merged.duplicates[0].message,
        "pod default/web from file is ignored: another pod of this source has the same name"
    );
    assert_eq!(
        merger.merge(set(Source::File, &both), NOW),
        Merged::default(),
        "not again"
    );
    let only_second = merger.merge(set(Source::File, &both[1..]), NOW);
    assert_eq!(words(&only_second), ["remove a", "add b"]);
    assert_eq!(
        merger.merge(set(Source::File, &both), NOW).duplicates.len(),
        1,
        "it was different meanwhile"
    );
    let other_namespace = with(pod("d", "web", "i"), |pod| {
        pod.metadata.namespace = Some("other".to_owned());
    });
    let mut merger = Merger::new([Source::File]);
    let merged = merger.merge(set(Source::File, &[both[0].clone(), other_namespace]), NOW);
    assert!(merged.duplicates.is_empty());
    assert_eq!(merged.changes.len(), 2);
}

#[test]
fn one_uid_has_one_pod_and_the_next_takes_over() {
    let mut merger = Merger::new([Source::File, Source::Http]);
    merger.merge(set(Source::File, &[pod("a", "web", "i")]), NOW);
    let second = merger.merge(
        set(Source::Http, &[pod("a", "other", "i"), pod("b", "third", "i")]),
        NOW,
    );
    assert_eq!(words(&second), ["add b"]);
    assert_eq!(
        second.duplicates[0].message,
        "pod default/other from http is ignored: its UID a is that of a pod from file"
    );
    let quiet = merger.merge(
        set(Source::Http, &[pod("a", "other", "j"), pod("b", "third", "i")]),
        NOW,
    );
    assert_eq!(quiet, Merged::default());
    let gone = merger.merge(set(Source::File, &[]), NOW);
    assert_eq!(words(&gone), ["remove a", "add a"]);
    let added = gone.changes[1].pod();
    assert_eq!(annotation(added, SOURCE_ANNOTATION).as_deref(), Some("http"));
    assert_eq!(
        added.spec.as_ref().unwrap().containers[0].image.as_deref(),
        Some("j")
    );
    assert_eq!(
        words(&merger.merge(set(Source::Http, &[]), NOW)),
        ["remove a", "remove b"]
    );

    let within = merger.merge(
        set(Source::File, &[pod("x", "one", "i"), pod("x", "two", "i")]),
        NOW,
    );
    assert_eq!(words(&within), ["add x"]);
    assert!(
        within.duplicates[0].message.ends_with("the same UID"),
        "{}",
        within.duplicates[0].message
    );
}

#[derive(Clone, Debug)]
struct Wish {
    uid: u8,
    name: u8,
    image: u8,
    status: bool,
    deleted: bool,
}

fn wished(wish: &Wish) -> Pod {
    let Wish {
        uid,
        name,
        image,
        status,
        deleted,
    } = wish;
    with(
        pod(&format!("u{uid}"), &format!("n{name}"), &format!("i{image}")),
        |pod| {
            pod.status = status.then(PodStatus::default);
            pod.metadata.deletion_timestamp = deleted.then(|| Time(jiff::Timestamp::UNIX_EPOCH));
        },
    )
}

fn wishes() -> impl Strategy<Value = Vec<(usize, Vec<Wish>)>> {
    let wish = (
        0..6_u8,
        0..6_u8,
        0..3_u8,
        any::<bool>(),
        proptest::bool::weighted(0.2),
    )
        .prop_map(|(uid, name, image, status, deleted)| Wish {
            uid,
            name,
            image,
            status,
            deleted,
        });
    prop::collection::vec((0..3_usize, prop::collection::vec(wish, 0..6)), 1..20)
}

proptest! {
    /// Whatever is delivered: changes are legal one by one, and replayed they give what the merger holds, which is one pod
    /// per UID, wanted by its source's last set, with each wanted UID present.
    #[test]
    fn replayed_changes_give_what_is_wanted(deliveries in wishes()) {
        let sources = [Source::File, Source::Http, Source::Api];
        let mut merger = Merger::new(sources);
        let mut replayed: BTreeMap<String, Arc<Pod>> = BTreeMap::new();
        let mut last: BTreeMap<Source, Vec<Pod>> = BTreeMap::new();
        for (index, wishes) in deliveries {
            let pods: Vec<Pod> = wishes.iter().map(wished).collect();
            let merged = merger.merge(set(sources[index], &pods), NOW);
            last.insert(sources[index], pods);
            let mut may_remove = true;
            for change in &merged.changes {
                let uid = change.pod().metadata.uid.clone().unwrap();
                match change {
                    PodChange::Remove(_) => {
                        prop_assert!(may_remove, "removals come first");
                        prop_assert!(replayed.remove(&uid).is_some());
                    }
                    PodChange::Add(pod) => {
                        may_remove = false;
                        prop_assert!(replayed.insert(uid, Arc::clone(pod)).is_none());
                    }
                    PodChange::Update(pod) | PodChange::Delete(pod) | PodChange::Reconcile(pod) => {
                        may_remove = false;
                        let is_deleted = pod.metadata.deletion_timestamp.is_some();
                        prop_assert!(!matches!(change, PodChange::Update(_)) || !is_deleted);
                        prop_assert!(!matches!(change, PodChange::Delete(_)) || is_deleted);
                        prop_assert!(replayed.insert(uid, Arc::clone(pod)).is_some_and(|old| old != *pod));
                    }
                }
            }
            let held: Vec<&Arc<Pod>> = merger.pods().collect();
            prop_assert_eq!(held, replayed.values().collect::<Vec<_>>());
            for pod in replayed.values() {
                let source = annotation(pod, SOURCE_ANNOTATION).unwrap();
                let source = sources.into_iter().find(|known| known.as_str() == source).unwrap();
                let wanted = last[&source].iter().find(|wanted| wanted.metadata.uid == pod.metadata.uid);
                prop_assert!(wanted.is_some());
            }
            // The first pod of a set has its name for itself, so that its UID is always there.
            for pods in last.values() {
                if let Some(first) = pods.first() {
                    let held = &replayed[first.metadata.uid.as_ref().unwrap()];
                    let source = annotation(held, SOURCE_ANNOTATION).unwrap();
                    let is_own = last.iter().any(|(known, own)| known.as_str() == source && std::ptr::eq(own, pods));
                    if is_own {
                        prop_assert_eq!(&held.spec, &first.spec);
                        prop_assert_eq!(&held.status, &first.status);
                    }
                }
            }
            prop_assert_eq!(merger.seen_all(), last.len() == sources.len());
        }
    }
}

/// Changes in an order that does not depend on that of the set before.
fn in_order(merged: Merged) -> Merged {
    let Merged {
        mut changes,
        duplicates,
    } = merged;
    changes.sort_by_key(|change| {
        let is_removal = matches!(change, PodChange::Remove(_));
        (!is_removal, change.pod().metadata.uid.clone())
    });
    Merged { changes, duplicates }
}

proptest! {
    /// What a source gives as the same value need not be looked at: the changes are those of sets that share nothing.
    #[test]
    fn pods_that_stay_the_same_value_change_nothing(deliveries in wishes()) {
        let sources = [Source::File, Source::Http, Source::Api];
        let (mut sharing, mut fresh) = (Merger::new(sources), Merger::new(sources));
        let mut known: BTreeMap<String, Arc<Pod>> = BTreeMap::new();
        for (index, wishes) in deliveries {
            let pods: Vec<Pod> = wishes.iter().map(wished).collect();
            let mut shared = set(sources[index], &pods);
            for (pod, wish) in shared.pods.iter_mut().zip(&wishes) {
                *pod = Arc::clone(known.entry(format!("{wish:?}")).or_insert_with(|| Arc::clone(pod)));
            }
            let (shared, expected) = (sharing.merge(shared, NOW), fresh.merge(set(sources[index], &pods), NOW));
            prop_assert_eq!(in_order(shared), in_order(expected));
        }
    }
}
