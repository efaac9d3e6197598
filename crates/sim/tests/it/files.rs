//! Simulated files through their port.

use std::path::Path;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use rubelet_ports::{FileErrorKind, FileReader, FileWriter, Removal, Touched, WatchHint};
use rubelet_sim::dice::SharedDice;
use rubelet_sim::executor::{Executor, Group, Step};
use rubelet_sim::files::{FileFaults, SimFiles};
use rubelet_sim::history::History;
use rubelet_sim::trace::Trace;

fn files() -> (Executor, SimFiles) {
    let executor = Executor::new(1);
    let dice = SharedDice::new(1, "files");
    let files = SimFiles::new(
        &executor,
        dice,
        History::default(),
        Trace::default(),
        Path::new("/m"),
    );
    (executor, files)
}

fn settle(executor: &Executor) {
    let limit = executor.elapsed() + Duration::from_secs(60);
    loop {
        if executor.step() == Step::Idle && !executor.advance(limit) {
            return;
        }
    }
}

#[test]
fn a_watch_hints_when_it_stands_and_after_each_change() {
    let (executor, files) = files();
    let mut watch = files.watch(Path::new("/m"));
    let nothing_removed = Some(Some(Ok(WatchHint::default())));
    assert_eq!(watch.next().now_or_never(), nothing_removed);
    assert_eq!(watch.next().now_or_never(), None);
    files.place(Path::new("/m/a"), b"x");
    settle(&executor);
    let touched = || Touched::Names(["a".to_owned()].into());
    let written = WatchHint {
        removed: Vec::new(),
        touched: touched(),
    };
    assert_eq!(watch.next().now_or_never(), Some(Some(Ok(written))));
    files.take_away(Path::new("/m/a"));
    settle(&executor);
    let removal = Removal {
        name: "a".to_owned(),
        renamed_to: None,
    };
    let removed = WatchHint {
        removed: vec![removal],
        touched: touched(),
    };
    assert_eq!(watch.next().now_or_never(), Some(Some(Ok(removed))));
    let mut missing = files.watch(Path::new("/none"));
    let first = missing.next().now_or_never().flatten().expect("an answer");
    assert!(first.is_err_and(|error| error.is_not_found()));
    assert_eq!(missing.next().now_or_never(), Some(None));
}

#[test]
fn faults_show_as_the_port_names_them() {
    let check = |faults: FileFaults, expected: FileErrorKind| {
        let (executor, files) = files();
        files.set_faults(faults);
        let (sender, mut receiver) = tokio::sync::oneshot::channel();
        let work = async move {
            let _ = sender.send(files.write(Path::new("/m/a"), b"x", 0o600).await);
        };
        executor.spawn(Group::World, "write", Box::pin(work));
        settle(&executor);
        let result = receiver.try_recv().expect("an answer");
        assert_eq!(result.map_err(|error| error.kind), Err(expected));
    };
    let hangs = FileFaults {
        hangs: 10_000,
        ..FileFaults::default()
    };
    check(hangs, FileErrorKind::TimedOut);
    let full = FileFaults {
        no_space: 10_000,
        ..FileFaults::default()
    };
    check(full, FileErrorKind::NoSpace);
}
