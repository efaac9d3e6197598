//! What is rotated when, and what stays.

use std::fs;
use std::io::{Read as _, Write as _};
use std::sync::atomic::Ordering;
use std::time::Duration;

use flate2::read::GzDecoder;
use futures_util::FutureExt as _;
use rubelet_logs::RotationSettings;

use crate::scene::{MAX_SIZE_BYTES, Process, Reopening, Scene, wait_for};

/// So long that only growth can be the reason.
const NEVER: Duration = Duration::from_secs(100_000);
/// After so many lists a log that was too large would have been rotated long ago.
const LOOKS: usize = 5;
const SOON: Duration = Duration::from_millis(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_rotated_when_it_has_grown_and_loses_no_line() {
    let scene = Scene::new();
    let container = &scene.container;
    let _process = Process::start(&scene, scene.settings(4, NEVER), None);
    const ROUNDS: usize = 12;
    for round in 1..=ROUNDS {
        if round == ROUNDS {
            // One that is removed while it is compressed leaves its compressed self until the next rotation.
            wait_for("tidied up", || scene.is_tidy()).await;
        }
        container.write_to(MAX_SIZE_BYTES);
        wait_for("a new log", || container.reopened.load(Ordering::SeqCst) == round).await;
        assert!(fs::metadata(&container.log).unwrap().len() < MAX_SIZE_BYTES);
    }
    container.write_to(100);
    wait_for("two older ones are compressed", || {
        let files = scene.files();
        let packed = files.iter().filter(|name| name.ends_with(".gz")).count();
        packed == 2 && scene.is_tidy()
    })
    .await;
    let files = scene.files();
    assert_eq!(files.len(), 4, "{files:?}");
    // The newest one is left as it is; the names of files sort by time without their ending.
    let newest = files
        .iter()
        .max_by_key(|name| name.trim_end_matches(".gz"))
        .unwrap();
    assert!(!newest.ends_with(".gz") && files[0] == "0.log", "{files:?}");
    scene.check_lines();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_not_left_alone_for_longer_than_it_takes_to_double() {
    let scene = Scene::new();
    let process = Process::start(&scene, scene.settings(3, NEVER), None);
    for round in 1..=5 {
        scene.container.write_to(MAX_SIZE_BYTES);
        wait_for("a new log", || {
            scene.container.reopened.load(Ordering::SeqCst) == round
        })
        .await;
    }
    let pauses = process.pauses();
    let between: Vec<_> = pauses.into_iter().filter(|pause| *pause < NEVER).collect();
    assert!(
        !between.is_empty() && between.iter().all(|pause| *pause <= Duration::from_millis(5)),
        "{between:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_hangs_for_one_container_holds_up_no_other() {
    let scene = Scene::new();
    let (stuck, neighbour) = (&scene.container, &scene.neighbour);
    *neighbour.runs.lock().unwrap() = true;
    *stuck.reopening.lock().unwrap() = Reopening::Hangs;
    stuck.write_to(MAX_SIZE_BYTES);
    // One place for all of them.
    let _process = Process::start(&scene, scene.settings(3, SOON), None);
    wait_for("the log is put away", || !stuck.log.exists()).await;
    for round in 1..=3 {
        neighbour.write_to(MAX_SIZE_BYTES);
        wait_for("a new log", || neighbour.reopened.load(Ordering::SeqCst) == round).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_still_written_is_compressed_later() {
    let scene = Scene::new();
    let (old, newest) = ("0.log.20250101-000000", "0.log.20250101-000001");
    for name in [old, newest] {
        fs::write(scene.path(name), "text\n").unwrap();
    }
    let mut writer = fs::File::options().append(true).open(scene.path(old)).unwrap();
    let _process = Process::start(&scene, scene.settings(4, SOON), None);
    wait_for("several looks", || {
        scene.container.lists.load(Ordering::SeqCst) > LOOKS
    })
    .await;
    assert_eq!(scene.files(), ["0.log", old, newest]);
    writer.write_all(b"late\n").unwrap();
    drop(writer);
    let packed = scene.path(&format!("{old}.gz"));
    wait_for("it is compressed", || scene.is_tidy() && packed.exists()).await;
    let mut text = String::new();
    let packed = fs::File::open(packed).unwrap();
    GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    assert_eq!(text, "text\nlate\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_has_just_started_is_found_by_its_link() {
    let scene = Scene::new();
    *scene.container.runs.lock().unwrap() = false;
    let _process = Process::start(&scene, scene.settings(3, NEVER), None);
    *scene.container.runs.lock().unwrap() = true;
    scene.container.write_to(MAX_SIZE_BYTES);
    scene.link();
    wait_for("a new log", || {
        scene.container.reopened.load(Ordering::SeqCst) == 1
    })
    .await;
    scene.check_lines();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_log_and_one_of_a_container_that_ended_stay() {
    let scene = Scene::new();
    scene.container.write_to(MAX_SIZE_BYTES - 200);
    let process = Process::start(&scene, scene.settings(3, SOON), None);
    wait_for("several looks", || {
        scene.container.lists.load(Ordering::SeqCst) > LOOKS
    })
    .await;
    assert_eq!(scene.files(), ["0.log"]);
    process.cut_off();
    *scene.container.runs.lock().unwrap() = false;
    scene.container.write_to(2 * MAX_SIZE_BYTES);
    scene.link();
    let _process = Process::start(&scene, scene.settings(3, SOON), None);
    let before = scene.container.lists.load(Ordering::SeqCst);
    wait_for("several looks", || {
        scene.container.lists.load(Ordering::SeqCst) > before + LOOKS
    })
    .await;
    assert_eq!(scene.files(), ["0.log"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_refuses_costs_no_line() {
    let scene = Scene::new();
    let container = &scene.container;
    *container.reopening.lock().unwrap() = Reopening::Fails;
    let _process = Process::start(&scene, scene.settings(3, SOON), None);
    for size in 1..20 {
        container.write_to(size * MAX_SIZE_BYTES / 4);
        tokio::task::yield_now().await;
    }
    *container.reopening.lock().unwrap() = Reopening::Works;
    wait_for("a new log", || container.reopened.load(Ordering::SeqCst) >= 1).await;
    wait_for("the log is there", || container.log.exists()).await;
    container.write_to(100);
    wait_for("tidied up", || scene.is_tidy()).await;
    let numbers = scene.numbers();
    assert_eq!(numbers, (0..container.lines()).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_does_not_bring_the_old_file_back() {
    let scene = Scene::new();
    let container = &scene.container;
    *container.reopening.lock().unwrap() = Reopening::AnswerIsLost;
    let _process = Process::start(&scene, scene.settings(5, NEVER), None);
    for round in 1..=3 {
        container.write_to(MAX_SIZE_BYTES);
        wait_for("a new log", || container.reopened.load(Ordering::SeqCst) == round).await;
    }
    container.write_to(100);
    wait_for("tidied up", || scene.is_tidy()).await;
    let numbers = scene.numbers();
    assert_eq!(numbers, (0..container.lines()).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_somebody_removed_is_opened_anew() {
    let scene = Scene::new();
    let container = &scene.container;
    let _process = Process::start(&scene, scene.settings(3, NEVER), None);
    container.write_to(1000);
    wait_for("it is looked at", || container.looks.load(Ordering::SeqCst) >= 1).await;
    fs::remove_file(&container.log).unwrap();
    wait_for("a new log", || container.log.exists()).await;
    assert_eq!(container.reopened.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_the_middle_of_a_rotation_leaves_a_log() {
    let scene = Scene::new();
    let container = &scene.container;
    let held = container.rename_told.lock().await;
    container.write_to(MAX_SIZE_BYTES);
    let process = Process::start(&scene, scene.settings(3, NEVER), None);
    wait_for("the log is put away", || !container.log.exists()).await;
    let mut stop = std::pin::pin!(process.stop());
    assert_eq!(stop.as_mut().now_or_never(), None, "a rotation is under way");
    drop(held);
    stop.await;
    assert!(container.log.exists());
    assert_eq!(container.reopened.load(Ordering::SeqCst), 1);
    scene.check_lines();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_at_a_time_tidies_up_beside_a_log() {
    let scene = Scene::new();
    let container = &scene.container;
    for name in ["0.log.20250101-000000", "0.log.20250101-000001"] {
        fs::write(scene.path(name), "text\n").unwrap();
    }
    let (first_look, compressing) = (
        container.first_look.lock().await,
        container.compressing.lock().await,
    );
    let settings = RotationSettings {
        max_workers: 2,
        ..scene.settings(6, NEVER)
    };
    let _process = Process::start(&scene, settings, None);
    wait_for("the first look", || container.looks.load(Ordering::SeqCst) == 1).await;
    let rotate = async |round: usize| {
        container.write_to(MAX_SIZE_BYTES);
        wait_for("a new log", || container.reopened.load(Ordering::SeqCst) == round).await;
    };
    // Each of them wants the files beside the log to be tidied up.
    rotate(1).await;
    rotate(2).await;
    drop(first_look);
    wait_for("a compression", || {
        container.compressions.load(Ordering::SeqCst) > 0
    })
    .await;
    rotate(3).await;
    drop(compressing);
    wait_for("tidied up", || scene.is_tidy()).await;
    assert_eq!(container.most_compressions.load(Ordering::SeqCst), 1);
}
