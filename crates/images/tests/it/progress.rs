//! What a pod that waits for a pull is told.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use rubelet_images::ImagesSettings;
use rubelet_model::observation::PodUid;
use rubelet_ports::{ImageProvider as _, Ingest, PullProgress, RuntimeError, RuntimeErrorKind};
use tokio::sync::Semaphore;

use crate::fakes::{Bench, START, image, poll, request, runtime_error};

#[derive(Default)]
struct FakeProgress {
    ingests: Mutex<Vec<Ingest>>,
    failure: Mutex<Option<RuntimeErrorKind>>,
    asked: Mutex<usize>,
}

#[async_trait]
impl PullProgress for FakeProgress {
    async fn ingests(&self) -> Result<Vec<Ingest>, RuntimeError> {
        *self.asked.lock().unwrap() += 1;
        match *self.failure.lock().unwrap() {
            Some(kind) => Err(runtime_error(kind, "no")),
            None => Ok(self.ingests.lock().unwrap().clone()),
        }
    }
}

impl FakeProgress {
    fn show(&self, arrived_mb: u64, total_mb: u64) {
        *self.ingests.lock().unwrap() = vec![Ingest {
            reference: "layer-sha256:a".to_owned(),
            arrived_bytes: arrived_mb * 1_000_000,
            total_bytes: Some(total_mb * 1_000_000),
            updated_at: START.plus(Duration::from_secs(1)),
        }];
    }
}

fn bench(serialize_pulls: bool) -> (Bench, Arc<FakeProgress>) {
    let progress = Arc::<FakeProgress>::default();
    let settings = ImagesSettings {
        serialize_pulls,
        ..ImagesSettings::default()
    };
    let bench = Bench::built(settings, Some(Semaphore::new(0)), |images, _, _| {
        images.with_progress(progress.clone())
    });
    for name in ["a:1", "b:1"] {
        bench.service.add_to_registry(name, image(name, 1));
    }
    (bench, progress)
}

fn words(bench: &Bench, uid: &str, image: &str) -> Option<String> {
    bench.images.progress(&PodUid::from(uid), image)
}

#[test]
fn a_pull_tells_its_time_and_its_bytes() {
    let (bench, progress) = bench(true);
    assert_eq!(words(&bench, "u", "a:1"), None);
    let mut asking = bench.asking(request("u", "a:1", "IfNotPresent"));
    assert!(poll(&mut asking).is_none());
    assert_eq!(words(&bench, "u", "a:1").as_deref(), Some("pulling for 0 s"));
    assert_eq!(words(&bench, "u", "b:1"), None);
    progress.show(120, 480);
    bench.clock.advance(Duration::from_secs(34));
    assert!(poll(&mut asking).is_none());
    let told = words(&bench, "u", "a:1");
    assert_eq!(
        told.as_deref(),
        Some("pulling for 34 s, 120 of 480 MB of the layers begun")
    );
    // Who waits behind it, and who shares it.
    let mut behind = bench.asking(request("v", "b:1", "IfNotPresent"));
    let mut beside = bench.asking(request("w", "a:1", "IfNotPresent"));
    assert!(poll(&mut behind).is_none() && poll(&mut beside).is_none());
    assert_eq!(
        words(&bench, "v", "b:1").as_deref(),
        Some("waiting for other pulls")
    );
    assert_eq!(words(&bench, "w", "a:1"), told);
    bench.service.finish(1);
    assert!(poll(&mut asking).is_some() && poll(&mut beside).is_some());
    assert_eq!(words(&bench, "u", "a:1"), None);
    assert_eq!(words(&bench, "w", "a:1"), None);
    // Given up, nobody waits any more.
    assert!(poll(&mut behind).is_none());
    assert_eq!(words(&bench, "v", "b:1").as_deref(), Some("pulling for 0 s"));
    drop(behind);
    assert_eq!(words(&bench, "v", "b:1"), None);
}

#[test]
fn of_two_pulls_at_a_time_only_the_time_is_told() {
    let (bench, progress) = bench(false);
    progress.show(1, 2);
    let mut one = bench.asking(request("u", "a:1", "IfNotPresent"));
    let mut two = bench.asking(request("v", "b:1", "IfNotPresent"));
    assert!(poll(&mut one).is_none() && poll(&mut two).is_none());
    bench.clock.advance(Duration::from_secs(4));
    assert!(poll(&mut one).is_none() && poll(&mut two).is_none());
    assert_eq!(words(&bench, "u", "a:1").as_deref(), Some("pulling for 4 s"));
    assert_eq!(words(&bench, "v", "b:1").as_deref(), Some("pulling for 4 s"));
    assert_eq!(*progress.asked.lock().unwrap(), 0);
}

#[test]
fn a_runtime_that_does_not_know_is_not_asked_again() {
    let (bench, progress) = bench(true);
    let mut asking = bench.asking(request("u", "a:1", "IfNotPresent"));
    let mut step = || {
        assert!(poll(&mut asking).is_none());
        bench.clock.advance(Duration::from_secs(2));
        assert!(poll(&mut asking).is_none());
        *progress.asked.lock().unwrap()
    };
    *progress.failure.lock().unwrap() = Some(RuntimeErrorKind::Unavailable);
    assert_eq!(step(), 1);
    *progress.failure.lock().unwrap() = Some(RuntimeErrorKind::Unimplemented);
    assert_eq!(step(), 2);
    assert_eq!(step(), 2);
    assert_eq!(words(&bench, "u", "a:1").as_deref(), Some("pulling for 6 s"));
}
