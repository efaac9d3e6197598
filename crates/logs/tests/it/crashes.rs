//! Killed before and after every step, and started again.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::scene::{Kill, MAX_SIZE_BYTES, Process, Reopening, Scene, wait_for};

const SOON: Duration = Duration::from_millis(20);

/// A log with three rotated files, one of them twice, and one half compressed.
fn scene_with_a_past() -> Scene {
    let scene = Scene::new();
    let container = &scene.container;
    for name in [
        "0.log.20250101-000000",
        "0.log.20250101-000001",
        "0.log.20250101-000002",
    ] {
        container.write_to(2000);
        let file = scene.path(name);
        fs::copy(&container.log, &file).unwrap();
        fs::File::options()
            .write(true)
            .open(&container.log)
            .unwrap()
            .set_len(0)
            .unwrap();
    }
    fs::write(scene.path("0.log.20250101-000001.tmp"), "half").unwrap();
    scene
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_step_loses_nothing() {
    let mut steps = 0;
    for step in 0.. {
        let mut came_that_far = false;
        for after in [false, true] {
            let kill = Kill { step, after };
            let scene = scene_with_a_past();
            let container = &scene.container;
            container.write_to(MAX_SIZE_BYTES);
            // Five files are allowed: nothing has to go, so every line has to be there in the end.
            let process = Process::start(&scene, scene.settings(5, SOON), Some(kill));
            wait_for("killed or done", || process.is_killed() || is_settled(&scene)).await;
            came_that_far |= process.is_killed();
            process.cut_off();
            container.write_to(300);
            let _process = Process::start(&scene, scene.settings(5, SOON), None);
            if fs::metadata(&container.log).is_ok_and(|log| log.len() < MAX_SIZE_BYTES) {
                // Rotated before the kill: what was left behind is tidied up all the same.
                wait_for("tidied up", || scene.is_tidy()).await;
            } else {
                wait_for("settled", || is_settled(&scene)).await;
            }
            container.write_to(400);
            wait_for("everything is there", || {
                container.log.exists() && scene.files().iter().all(|name| !name.ends_with(".tmp"))
            })
            .await;
            let numbers = scene.numbers();
            let expected: Vec<u64> = (0..container.lines()).collect();
            assert!(numbers == expected, "{kill:?}: {:?}", scene.files());
            assert!(scene.files().len() <= 5, "{kill:?}: {:?}", scene.files());
        }
        if !came_that_far {
            steps = step;
            break;
        }
    }
    // A removal, a rename, a reopening, and the compression of two.
    assert!(steps >= 5, "only {steps} steps");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_ends_while_nobody_looks_has_its_log() {
    let mut was_missing = false;
    for step in 0..2 {
        for after in [false, true] {
            let kill = Kill { step, after };
            let scene = Scene::new();
            let container = &scene.container;
            container.write_to(MAX_SIZE_BYTES);
            let process = Process::start(&scene, scene.settings(5, SOON), Some(kill));
            wait_for("killed", || process.is_killed()).await;
            process.cut_off();
            container.write_to(300);
            *container.runs.lock().unwrap() = false;
            was_missing |= !container.log.exists();
            let _process = Process::start(&scene, scene.settings(5, SOON), None);
            wait_for("the log is there", || container.log.exists()).await;
            let expected: Vec<u64> = (0..container.lines()).collect();
            assert!(scene.numbers() == expected, "{kill:?}: {:?}", scene.files());
        }
    }
    assert!(was_missing, "no kill came between the steps");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_ends_before_its_log_is_opened_anew_has_its_log() {
    let scene = Scene::new();
    let container = &scene.container;
    container.write_to(MAX_SIZE_BYTES);
    // As a kill has left it. The container still runs when it is listed.
    fs::rename(&container.log, scene.path("0.log.20250101-000000")).unwrap();
    *container.reopening.lock().unwrap() = Reopening::Fails;
    let _process = Process::start(&scene, scene.settings(5, SOON), None);
    wait_for("the log is there", || container.log.exists()).await;
    scene.check_lines();
}

fn is_settled(scene: &Scene) -> bool {
    scene.container.reopened.load(Ordering::SeqCst) > 0 && scene.is_tidy()
}
