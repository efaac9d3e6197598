//! `make run` from its first line to its last, and what it leaves: nothing.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rubelet_testbed::{run, scope};
use tokio::sync::Notify;

#[test]
fn the_demo_comes_up_answers_and_goes_without_a_trace() {
    let lines = Mutex::new(Vec::new());
    let is_up = Notify::new();
    let tell = |line: &str| {
        lines.lock().unwrap().push(line.to_owned());
        if line.ends_with("Ctrl-C ends everything") {
            is_up.notify_one();
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let rubelet = Path::new(env!("CARGO_BIN_EXE_rubelet"));
    let result = runtime.block_on(run::run_until(rubelet, is_up.notified(), &tell));
    let lines = lines.into_inner().unwrap();
    let log = lines.join("\n");
    assert!(result.is_ok(), "{result:?} after:\n{log}");
    for words in [
        "init container setup     ended with code 0",
        "sidecar ticker           runs",
        "container web            runs",
        "pod                      Running, Ready",
        "/hostname says 200: demo-node-",
        " why --root-dir ",
    ] {
        assert!(log.contains(words), "no {words:?} in:\n{log}");
    }
    assert_eq!(lines.last().map(String::as_str), Some("cleaning up"));
    let dir = lines
        .iter()
        .find_map(|line| line.strip_prefix("starting a private containerd in "))
        .map(PathBuf::from)
        .unwrap();
    assert_eq!(scope::traces_of(&dir), Vec::<String>::new());
    assert!(!dir.exists());
}
