//! Who may use an image that is on the node: policies, records, and what a crash leaves.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use rubelet_images::{CredentialSources, ImagesSettings, PullRecords, RecordsPorts, VerificationPolicy};
use rubelet_ports::{Clock as _, ImageProvider as _, ImageRequest, RuntimeErrorKind};
use tokio::sync::Semaphore;

use crate::edges::{FakeFiles, FakeObjects, FakeSpawner, pod_request};
use crate::fakes::{Bench, START, image, poll, runtime_error};

const IMAGE: &str = "r.io/team/app:1";
const PULLED: &str = "/root-dir/image_manager/pulled";
const PULLING: &str = "/root-dir/image_manager/pulling";

/// What outlives the agent.
#[derive(Default)]
struct Disk {
    files: Arc<FakeFiles>,
    objects: Arc<FakeObjects>,
}

struct Place {
    bench: Bench,
    records: PullRecords,
    spawner: Arc<FakeSpawner>,
}

impl Disk {
    fn new() -> Self {
        let disk = Self::default();
        for (namespace, password) in [("a", "good"), ("b", "good"), ("c", "other")] {
            disk.objects.put_login(namespace, "login", "r.io", password);
        }
        disk
    }

    fn start(&self, policy: &str) -> Place {
        self.start_with(policy, None)
    }

    fn start_with(&self, policy: &str, slow: Option<Semaphore>) -> Place {
        self.start_queueing(policy, slow, false)
    }

    fn start_queueing(&self, policy: &str, slow: Option<Semaphore>, serialize_pulls: bool) -> Place {
        let settings = ImagesSettings {
            registry_pull_qps: 0.0,
            serialize_pulls,
            ..ImagesSettings::default()
        };
        let policy = VerificationPolicy::new(policy, &["r.io/team/*".to_owned()]).unwrap();
        let spawner = Arc::<FakeSpawner>::default();
        let mut made = None;
        let bench = Bench::built(settings, slow, |images, service, clock| {
            let ports = RecordsPorts {
                reader: self.files.clone(),
                writer: self.files.clone(),
                images: service.clone(),
                clock: clock.clone(),
                spawner: spawner.clone(),
            };
            let records = PullRecords::new(Path::new("/root-dir"), policy, ports);
            made = Some(records.clone());
            let sources = CredentialSources {
                objects: Some(self.objects.clone()),
                ..CredentialSources::default()
            };
            images.with_credentials(sources).with_records(records)
        });
        bench.service.add_to_registry(IMAGE, image("sha256:app", 1));
        bench.service.protect(IMAGE, &["good"]);
        bench.service.add_to_registry("open:1", image("sha256:open", 1));
        Place {
            bench,
            records: made.unwrap(),
            spawner,
        }
    }
}

fn pod(namespace: &str, image: &str, secrets: &[&str]) -> ImageRequest {
    pod_request(
        namespace,
        &format!("uid-{namespace}"),
        image,
        "IfNotPresent",
        secrets,
        None,
    )
}

/// Whether the pod got the image, whether the quick look had it, and how many times the registry was asked.
fn ask(place: &Place, request: ImageRequest) -> (bool, bool, usize) {
    let quick = place
        .bench
        .images
        .present(&request)
        .now_or_never()
        .unwrap()
        .is_some();
    let got = place.bench.ensure(request).is_ok();
    (got, quick, place.bench.service.shown().len())
}

const DENIED: (bool, bool, usize) = (false, false, 1);
const THERE: (bool, bool, usize) = (true, true, 0);
const PULLED_NOW: (bool, bool, usize) = (true, false, 1);

#[test]
fn a_private_image_is_for_those_who_could_pull_it() {
    let disk = Disk::new();
    let place = disk.start("NeverVerifyPreloadedImages");
    assert_eq!(ask(&place, pod("a", IMAGE, &["login"])), PULLED_NOW);
    assert_eq!(ask(&place, pod("a", IMAGE, &["login"])), THERE);
    assert_eq!(
        ask(&place, pod("b", IMAGE, &["login"])),
        THERE,
        "the same credentials in another secret"
    );
    assert_eq!(ask(&place, pod("c", IMAGE, &["login"])), DENIED);
    assert_eq!(ask(&place, pod("d", IMAGE, &[])), DENIED);
    let never = pod_request("e", "uid-e", IMAGE, "Never", &[], None);
    let failure = place.bench.ensure(never).unwrap_err();
    assert_eq!(failure.reason, "ErrImageNeverPull");
    // A restart forgets nothing.
    let place = disk.start("NeverVerifyPreloadedImages");
    place.bench.service.add_present(IMAGE, image("sha256:app", 1));
    assert_eq!(ask(&place, pod("b", IMAGE, &["login"])), THERE);
    assert_eq!(ask(&place, pod("d", IMAGE, &[])), DENIED);
    assert!(
        !disk.files.all_text().contains("good"),
        "no credential is written down"
    );
}

#[test]
fn a_secret_that_changes_is_still_the_same_secret() {
    let disk = Disk::new();
    let place = disk.start("AlwaysVerify");
    assert_eq!(ask(&place, pod("a", IMAGE, &["login"])), PULLED_NOW);
    disk.objects.put_login("a", "login", "r.io", "rotated");
    assert_eq!(ask(&place, pod("a", IMAGE, &["login"])), THERE);
    // What it holds now is known too.
    disk.objects.put_login("f", "new", "r.io", "rotated");
    assert_eq!(ask(&place, pod("f", IMAGE, &["new"])), THERE);
    let writes = *disk.files.writes.lock().unwrap();
    assert_eq!(ask(&place, pod("f", IMAGE, &["new"])), THERE);
    assert_eq!(
        *disk.files.writes.lock().unwrap(),
        writes,
        "nothing new is nothing written"
    );
}

#[test]
fn policies_say_what_an_image_that_was_there_before_is() {
    let check = |policy: &str, name: &str, expected: (bool, bool, usize)| {
        let place = Disk::new().start(policy);
        place.bench.service.add_present(name, image("sha256:before", 1));
        assert_eq!(ask(&place, pod("d", name, &[])), expected, "{policy} {name}");
    };
    check("NeverVerify", IMAGE, THERE);
    check("NeverVerifyPreloadedImages", IMAGE, THERE);
    check("NeverVerifyAllowlistedImages", IMAGE, THERE);
    check("AlwaysVerify", IMAGE, DENIED);
    check("NeverVerifyAllowlistedImages", "open:1", PULLED_NOW);
    check("AlwaysVerify", "open:1", PULLED_NOW);
}

#[test]
fn what_needs_no_credentials_is_for_everybody_from_then_on() {
    let disk = Disk::new();
    let place = disk.start("AlwaysVerify");
    assert_eq!(ask(&place, pod("d", "open:1", &[])), PULLED_NOW);
    assert_eq!(ask(&place, pod("e", "open:1", &[])), THERE);
    // Under another name it is another image, as far as anybody knows.
    place
        .bench
        .service
        .add_present("r.io/alias:1", image("sha256:open", 1));
    place
        .bench
        .service
        .add_to_registry("r.io/alias:1", image("sha256:open", 1));
    assert_eq!(ask(&place, pod("e", "r.io/alias:1", &[])), PULLED_NOW);
    assert_eq!(disk.files.below(PULLED).len(), 1);
    assert_eq!(disk.files.below(PULLING).len(), 0);
}

#[test]
fn an_intent_stands_while_a_pull_goes_on() {
    let disk = Disk::new();
    let place = disk.start_with("NeverVerifyPreloadedImages", Some(Semaphore::new(0)));
    let mut first = place.bench.asking(pod("a", IMAGE, &["login"]));
    let mut second = place.bench.asking(pod("b", IMAGE, &["login"]));
    let mut wrong = place.bench.asking(pod("c", IMAGE, &["login"]));
    for asking in [&mut first, &mut second, &mut wrong] {
        assert_eq!(poll(asking), None);
    }
    let intents = disk.files.below(PULLING);
    assert_eq!(intents.len(), 1);
    let text = disk.files.text(&intents[0]).unwrap();
    assert_eq!(
        text,
        format!(
            "{{\"kind\":\"ImagePullIntent\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"image\":\"{IMAGE}\"}}\n"
        )
    );
    assert_eq!(disk.files.below(PULLED).len(), 0);
    place.bench.service.finish(2);
    assert!(poll(&mut first).unwrap().is_ok());
    assert_eq!(disk.files.below(PULLING).len(), 1, "others are still at it");
    assert!(poll(&mut second).unwrap().is_ok());
    assert!(poll(&mut wrong).unwrap().is_err());
    assert_eq!(disk.files.below(PULLING).len(), 0);
    // Both secrets are known, though only one pull was made for them.
    let text = disk.files.text(&disk.files.below(PULLED)[0]).unwrap();
    assert!(
        text.contains("uid of a/login")
            && text.contains("uid of b/login")
            && !text.contains("uid of c/login"),
        "{text}"
    );
}

#[test]
fn what_came_while_a_pull_queued_is_for_those_who_could_pull_it() {
    let disk = Disk::new();
    let place = disk.start_queueing("NeverVerifyPreloadedImages", Some(Semaphore::new(0)), true);
    let mut annotated = pod("b", IMAGE, &["login"]);
    let annotations = [("vendor.example/key".to_owned(), "b".to_owned())].into();
    Arc::make_mut(&mut annotated.pod).metadata.annotations = Some(annotations);
    let mut first = place.bench.asking(pod("a", IMAGE, &["login"]));
    let mut same = place.bench.asking(annotated);
    let mut wrong = place.bench.asking(pod("c", IMAGE, &["login"]));
    let mut without = place.bench.asking(pod("d", IMAGE, &[]));
    for asking in [&mut first, &mut same, &mut wrong, &mut without] {
        assert_eq!(poll(asking), None);
    }
    place.bench.service.finish(1);
    assert!(poll(&mut first).unwrap().is_ok());
    assert!(poll(&mut same).unwrap().is_ok());
    assert_eq!(place.bench.service.shown(), [Some("good".to_owned())]);
    // What is there is not for the others: they queue once more and ask the registry, which refuses them.
    place.bench.service.finish(2);
    for asking in [&mut wrong, &mut without] {
        assert_eq!(poll(asking), None);
    }
    for asking in [&mut wrong, &mut without] {
        assert_eq!(poll(asking).unwrap().unwrap_err().reason, "ErrImagePull");
    }
    assert_eq!(place.bench.service.shown(), [Some("other".to_owned()), None]);
    assert_eq!(disk.files.below(PULLING).len(), 0);
}

#[test]
fn a_pull_that_is_given_up_is_looked_after() {
    let check = |image_came: bool| {
        let disk = Disk::new();
        let place = disk.start_with("NeverVerifyPreloadedImages", Some(Semaphore::new(0)));
        let mut asking = place.bench.asking(pod("a", IMAGE, &["login"]));
        assert_eq!(poll(&mut asking), None);
        drop(asking);
        assert_eq!(
            disk.files.below(PULLING).len(),
            1,
            "who knows what the runtime does"
        );
        if image_came {
            place.bench.service.add_present(IMAGE, image("sha256:app", 1));
            assert_eq!(
                place
                    .bench
                    .images
                    .present(&pod("d", IMAGE, &[]))
                    .now_or_never()
                    .unwrap(),
                None
            );
        }
        assert_eq!(place.spawner.run(), 1);
        place.bench.clock.advance(Duration::from_secs(30));
        assert_eq!(place.spawner.run(), 0);
        assert_eq!(disk.files.below(PULLING).len(), 0);
        assert_eq!(disk.files.below(PULLED).len(), usize::from(image_came));
        let denied = place
            .bench
            .images
            .present(&pod("d", IMAGE, &[]))
            .now_or_never()
            .unwrap();
        assert_eq!(denied, None);
    };
    check(true);
    check(false);
}

#[test]
fn a_crash_at_any_write_leaves_nothing_open_to_everybody() {
    for writes in 0..8 {
        let disk = Disk::new();
        let place = disk.start("NeverVerifyPreloadedImages");
        disk.files.allow_changes(Some(writes));
        // Whatever this gives: after the crash the image may be there.
        let got = place.bench.ensure(pod("a", IMAGE, &["login"])).is_ok();
        let was_asked = !place.bench.service.pulls().is_empty();
        assert!(got <= was_asked);
        drop(place);
        disk.files.allow_changes(None);
        let place = disk.start("NeverVerifyPreloadedImages");
        if was_asked {
            place.bench.service.add_present(IMAGE, image("sha256:app", 1));
        }
        assert_eq!(ask(&place, pod("d", IMAGE, &[])), DENIED, "{writes} writes");
        assert!(ask(&place, pod("a", IMAGE, &["login"])).0, "{writes} writes");
        assert_eq!(ask(&place, pod("a", IMAGE, &["login"])), THERE, "{writes} writes");
        assert_eq!(disk.files.below(PULLING).len(), 0, "{writes} writes");
    }
}

#[test]
fn without_a_place_for_records_nothing_is_pulled_and_nothing_is_given() {
    let disk = Disk::new();
    disk.files.allow_changes(Some(0));
    let place = disk.start("NeverVerify");
    place.bench.service.add_present(IMAGE, image("sha256:app", 1));
    let failure = place.bench.ensure(pod("a", IMAGE, &["login"])).unwrap_err();
    assert_eq!(failure.reason, "ErrImagePull");
    assert!(
        failure
            .message
            .starts_with("Failed to record image pull intent for container image"),
        "{failure}"
    );
    assert_eq!(place.bench.service.pulls().len(), 0);
    // It heals by itself.
    disk.files.allow_changes(None);
    place.bench.clock.advance(Duration::from_secs(10));
    assert_eq!(ask(&place, pod("a", IMAGE, &["login"])), THERE);
}

#[test]
fn what_upstream_wrote_is_read_and_what_is_broken_is_not_trusted() {
    let disk = Disk::new();
    let name = |hash: &str| format!("{PULLED}/sha256-{hash}");
    // sha256 of "testimageref" and of "testimage-anonpull".
    let private = name("b3c0cc4278800b03a308ceb2611161430df571ca733122f0a40ac8b9792a9064");
    let open = name("a2eace2182b24cdbbb730798e47b10709b9ef5e0f0c1624a3bc06c8ca987727a");
    disk.files.put(&private, r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":"2024-10-21T12:26:40Z","imageRef":"testimageref","credentialMapping":{"r.io/x":{"kubernetesSecrets":[{"uid":"uid of a/login","namespace":"a","name":"login","credentialHash":"old"}]}}}"#);
    disk.files.put(&open, r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1alpha1","lastUpdatedTime":"2024-10-21T12:26:40Z","imageRef":"testimage-anonpull","credentialMapping":{"r.io/y":{"nodePodsAccessible":true}}}"#);
    disk.files.put(&format!("{PULLED}/.sha256-1.0.tmp"), "half");
    disk.files.put(&format!("{PULLED}/sha256-2.tmp"), "half");
    let place = disk.start("NeverVerifyPreloadedImages");
    place
        .bench
        .service
        .add_present("r.io/x:1", image("testimageref", 1));
    place
        .bench
        .service
        .add_present("r.io/y:1", image("testimage-anonpull", 1));
    assert_eq!(ask(&place, pod("a", "r.io/x:1", &["login"])), THERE);
    assert_eq!(ask(&place, pod("d", "r.io/x:1", &[])), DENIED);
    assert_eq!(ask(&place, pod("d", "r.io/y:1", &[])), THERE);
    assert!(
        disk.files.text(Path::new(&open)).unwrap().contains("v1beta1"),
        "written anew"
    );

    disk.files.put(&open, "broken");
    let place = disk.start("NeverVerifyPreloadedImages");
    place
        .bench
        .service
        .add_present("r.io/y:1", image("testimage-anonpull", 1));
    assert_eq!(
        ask(&place, pod("d", "r.io/y:1", &[])),
        DENIED,
        "it is not taken for one that was always there"
    );
    place
        .bench
        .service
        .add_to_registry("r.io/y:1", image("testimage-anonpull", 1));
    assert_eq!(ask(&place, pod("e", "r.io/y:1", &[])), PULLED_NOW);
    assert_eq!(ask(&place, pod("f", "r.io/y:1", &[])), THERE, "a pull heals it");
}

#[test]
fn an_intent_of_another_life_opens_nothing() {
    // sha256 of the image's name.
    let file = format!("{PULLING}/sha256-abcb6e97f9d35ba66825a1b569cf84e6e059b0cf6070e951f81f7c0609ddf77e");
    let intent = |image: &str| {
        format!(
            "{{\"kind\":\"ImagePullIntent\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"image\":\"{image}\"}}"
        )
    };
    let check = |content: &str, runtime_answers: bool| {
        let disk = Disk::new();
        disk.files.put(&file, content);
        let place = disk.start("NeverVerifyPreloadedImages");
        let service = &place.bench.service;
        service.add_present(IMAGE, image("sha256:app", 1));
        if !runtime_answers {
            service.fail_inspect(Some(runtime_error(RuntimeErrorKind::Unavailable, "not yet")));
            let none = BTreeSet::new();
            place.records.prune(&none, START).now_or_never().unwrap();
            service.fail_inspect(None);
        }
        // A pull that failed says nothing about the one before.
        for namespace in ["d", "e", "f"] {
            assert_eq!(ask(&place, pod(namespace, IMAGE, &[])), DENIED, "{content}");
        }
        let again = disk.start("NeverVerifyPreloadedImages");
        again.bench.service.add_present(IMAGE, image("sha256:app", 1));
        assert_eq!(ask(&again, pod("g", IMAGE, &[])), DENIED, "{content}");
        assert_eq!(ask(&again, pod("a", IMAGE, &["login"])), PULLED_NOW, "{content}");
        assert_eq!(ask(&again, pod("b", IMAGE, &["login"])), THERE, "{content}");
        assert_eq!(ask(&again, pod("d", IMAGE, &[])), DENIED, "{content}");
        assert_eq!(disk.files.below(PULLING).len(), 0, "{content}");
    };
    check("broken", true);
    check("", true);
    check(&intent("r.io/another:1"), true);
    check(&intent(IMAGE), true);
    check(&intent(IMAGE), false);
}

#[test]
fn records_of_images_that_are_gone_go_too() {
    let disk = Disk::new();
    let place = disk.start("NeverVerifyPreloadedImages");
    assert_eq!(ask(&place, pod("a", IMAGE, &["login"])), PULLED_NOW);
    assert_eq!(ask(&place, pod("a", "open:1", &[])), PULLED_NOW);
    let prune = |refs: &[&str], at| {
        let refs: BTreeSet<String> = refs.iter().map(|one| (*one).to_owned()).collect();
        place.records.prune(&refs, at).now_or_never().unwrap();
        disk.files.below(PULLED).len()
    };
    assert_eq!(prune(&[], START), 2, "they are newer than the list");
    place.bench.clock.advance(Duration::from_secs(5));
    assert_eq!(prune(&["sha256:open"], place.bench.clock.now()), 1);
    place.bench.service.remove(IMAGE);
    assert_eq!(ask(&place, pod("c", IMAGE, &["login"])), DENIED);
    assert_eq!(ask(&place, pod("a", IMAGE, &["login"])), PULLED_NOW);

    // From time to time, unless the runtime knows no image at all.
    let mut cleaning = place.records.clone().keep_clean().boxed();
    let mut pass = || {
        assert_eq!(poll(&mut cleaning), None);
        place.bench.clock.advance(Duration::from_secs(5 * 60));
        assert_eq!(poll(&mut cleaning), None);
        disk.files.below(PULLED).len()
    };
    assert_eq!(pass(), 2);
    place.bench.service.remove(IMAGE);
    assert_eq!(pass(), 1);
    place.bench.service.remove("open:1");
    assert_eq!(pass(), 1);
}

#[test]
fn an_image_that_came_back_keeps_its_record() {
    let disk = Disk::new();
    let place = disk.start("NeverVerifyPreloadedImages");
    assert_eq!(ask(&place, pod("a", IMAGE, &["login"])), PULLED_NOW);
    place.bench.clock.advance(Duration::from_secs(5));
    place.bench.service.remove(IMAGE);
    let listed_at = place.bench.clock.now();
    place.bench.clock.advance(Duration::from_secs(1));
    // The same pod pulls it again before the records are looked through: nothing new is to be noted.
    assert_eq!(ask(&place, pod("a", IMAGE, &["login"])), PULLED_NOW);
    let none = BTreeSet::new();
    place.records.prune(&none, listed_at).now_or_never().unwrap();
    assert_eq!(ask(&place, pod("d", IMAGE, &[])), DENIED);
    assert_eq!(ask(&place, pod("a", IMAGE, &["login"])), THERE);
}

#[test]
fn an_image_is_found_again_whatever_the_runtime_called_it_when_it_came() {
    let disk = Disk::new();
    let place = disk.start("NeverVerifyPreloadedImages");
    place.bench.service.answer_with_digests();
    assert_eq!(ask(&place, pod("a", IMAGE, &["login"])), PULLED_NOW);
    assert_eq!(ask(&place, pod("d", IMAGE, &[])), DENIED);
    assert_eq!(ask(&place, pod("b", IMAGE, &["login"])), THERE);
}
