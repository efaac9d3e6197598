//! Kills for the whole machine, reported once each.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use rubelet_eviction::{SystemOomPorts, SystemOomSettings, watch_system_oom};
use rubelet_fakes::{NodeEvents, TokioClock};
use rubelet_host::HostFiles;
use rubelet_model::Timestamp;
use rubelet_ports::{OomLog, OomNews, SignalError};
use rubelet_usage::OomKill;
use tokio::sync::watch;

/// A log that grows.
#[derive(Clone)]
struct Log(watch::Receiver<Vec<OomNews>>);

impl OomLog for Log {
    fn follow(&self) -> BoxStream<'static, Result<OomNews, SignalError>> {
        let state = (self.0.clone(), 0);
        stream::unfold(state, async |(mut log, given)| {
            let next = log.wait_for(|all| all.len() > given).await.ok()?[given].clone();
            Some((Ok(next), (log, given + 1)))
        })
        .boxed()
    }
}

fn kill(sequence: u64, cgroup: &str) -> OomNews {
    OomNews::Kill(OomKill {
        sequence,
        process: format!("p{sequence}"),
        pid: 7,
        limited_cgroup: cgroup.to_owned(),
    })
}

/// One start of the program.
struct Start {
    log: watch::Sender<Vec<OomNews>>,
    events: Arc<NodeEvents>,
    task: tokio::task::JoinHandle<()>,
}

fn start(root: &Path, boot: &str, log: Vec<OomNews>) -> Start {
    let (sender, receiver) = watch::channel(log);
    let events = Arc::new(NodeEvents::default());
    let files = Arc::new(HostFiles::new());
    let ports = SystemOomPorts {
        clock: Arc::new(TokioClock::new(Timestamp::EPOCH)),
        log: Arc::new(Log(receiver)),
        events: events.clone(),
        file_reader: files.clone(),
        file_writer: files,
    };
    let settings = SystemOomSettings {
        root_dir: root.to_owned(),
        boot_id: boot.to_owned(),
    };
    Start {
        log: sender,
        events,
        task: tokio::spawn(watch_system_oom(ports, settings)),
    }
}

impl Start {
    /// Waits until the file names this record, and gives the events until then.
    async fn reported(&self, root: &Path, sequence: u64) -> Vec<String> {
        let expected = format!("\"sequence\":{sequence}}}");
        let is_kept = || {
            let text = std::fs::read_to_string(root.join("rubelet-system-oom.json"));
            text.is_ok_and(|text| text.ends_with(&expected))
        };
        let kept = async {
            while !is_kept() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), kept).await;
        waited.expect("it is kept");
        let events = self.events.take().into_iter();
        events
            .map(|event| format!("{}: {}", event.reason, event.message))
            .collect()
    }
}

#[tokio::test]
async fn each_kill_for_the_machine_is_reported_once() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let up_to_date = |newest| OomNews::UpToDate { newest };
    let message =
        |number: u64| format!("SystemOOM: System OOM encountered, victim process: p{number}, pid: 7");

    // What was before the first start is not reported.
    let first = start(root, "boot 1", vec![kill(5, "/"), up_to_date(9)]);
    assert_eq!(first.reported(root, 9).await, [""; 0]);
    first
        .log
        .send_modify(|log| log.extend([kill(12, "/"), kill(15, "/kubepods/pod-u")]));
    assert_eq!(first.reported(root, 15).await, [message(12)]);
    first.task.abort();

    // What came while rubelet was away is, and nothing again.
    let all = vec![
        kill(5, "/"),
        kill(12, "/"),
        kill(15, "/x"),
        kill(20, "/"),
        up_to_date(21),
    ];
    let second = start(root, "boot 1", all);
    assert_eq!(second.reported(root, 20).await, [message(20)]);
    second.task.abort();

    // Another boot counts anew.
    let third = start(root, "boot 2", vec![kill(3, "/"), up_to_date(4)]);
    assert_eq!(third.reported(root, 4).await, [""; 0]);
    third.task.abort();

    std::fs::write(root.join("rubelet-system-oom.json"), "{").unwrap();
    let fourth = start(root, "boot 2", vec![kill(3, "/"), up_to_date(6)]);
    assert_eq!(fourth.reported(root, 6).await, [""; 0]);
    assert!(root.join("rubelet-system-oom.json.bad").exists());
    fourth.task.abort();
}
