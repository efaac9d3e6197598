//! What the tests of the sources share: a clock that can jump, captured log lines, and waiting for sets.

use std::io;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use rubelet_agent::sources::{self, Source, SourcePorts, SourceSet, SourceSettings, Sources};
use rubelet_fetch::UrlFetcher;
use rubelet_host::HostClock;
use rubelet_model::Timestamp;
use rubelet_ports::{Clock, FileReader, Moment, NoReporter};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::Dispatch;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

/// How long a test waits for what must come.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// The machine's clock, and it can be moved forward.
pub(crate) struct JumpClock {
    real: HostClock,
    ahead: watch::Sender<Duration>,
}

impl JumpClock {
    fn new() -> Self {
        Self {
            real: HostClock::new(),
            ahead: watch::Sender::new(Duration::ZERO),
        }
    }

    pub(crate) fn jump(&self, by: Duration) {
        self.ahead.send_modify(|ahead| *ahead += by);
    }
}

impl Clock for JumpClock {
    fn now(&self) -> Timestamp {
        self.real.now()
    }

    fn moment(&self) -> Moment {
        self.real.moment().plus(*self.ahead.borrow())
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let (real, mut ahead) = (self.real, self.ahead.subscribe());
        let end = self.moment().plus(duration);
        Box::pin(async move {
            loop {
                let left = end.since(real.moment().plus(*ahead.borrow_and_update()));
                if left.is_zero() {
                    return;
                }
                tokio::select! {
                    () = tokio::time::sleep(left) => {}
                    // A clock that is gone does not jump any more.
                    Ok(()) = ahead.changed() => {}
                }
            }
        })
    }
}

/// Log lines of the test's own thread.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

/// While there is only one subscriber, `tracing` asks that of the thread which comes first whether a line is wanted at all,
/// and a test without one would silence the others. So there are always two.
static ANOTHER_SUBSCRIBER: LazyLock<Dispatch> = LazyLock::new(|| {
    let subscriber = tracing_subscriber::fmt().with_writer(io::sink);
    Dispatch::new(subscriber.with_max_level(tracing::Level::INFO).finish())
});

impl Lines {
    pub(crate) fn capture() -> (Self, DefaultGuard) {
        LazyLock::force(&ANOTHER_SUBSCRIBER);
        let lines = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(lines.clone())
            .with_ansi(false)
            .without_time()
            .with_max_level(tracing::Level::INFO)
            .finish();
        (lines, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn with(&self, words: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().filter(|line| line.contains(words));
        lines.map(str::to_owned).collect()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Running sources.
pub(crate) struct Scene {
    pub(crate) clock: Arc<JumpClock>,
    pub(crate) sets: mpsc::Receiver<SourceSet>,
    pub(crate) started: Vec<Source>,
    pub(crate) tasks: Vec<JoinHandle<()>>,
    pub(crate) received: usize,
}

impl Scene {
    pub(crate) fn start(settings: &SourceSettings, files: Arc<dyn FileReader>) -> Self {
        let clock = Arc::new(JumpClock::new());
        let ports = SourcePorts {
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            files,
            http: Arc::new(UrlFetcher::default()),
            api: None,
            node: watch::channel(None).1,
            reporter: Arc::new(NoReporter),
        };
        let mut tasks = Vec::new();
        let Sources { sets, started, .. } =
            sources::start(settings, &ports, |_, future| tasks.push(tokio::spawn(future)));
        Self {
            clock,
            sets,
            started,
            tasks,
            received: 0,
        }
    }

    /// The next set as `name image` of each pod.
    pub(crate) async fn next(&mut self) -> Vec<String> {
        let set = tokio::time::timeout(LIMIT, self.sets.recv()).await;
        let set = set.expect("a set in time").expect("the source lives");
        self.received += 1;
        set.pods
            .iter()
            .map(|pod| {
                let image = pod.spec.as_ref().unwrap().containers[0].image.clone();
                format!("{} {}", pod.metadata.name.clone().unwrap(), image.unwrap())
            })
            .collect()
    }

    /// Takes sets until one is this.
    pub(crate) async fn until(&mut self, expected: &[&str]) {
        loop {
            let set = self.next().await;
            if set == expected {
                return;
            }
        }
    }

    /// The next set comes only after the clock has jumped, and perhaps more than once.
    pub(crate) async fn next_after_jumps(&mut self, by: Duration) -> Vec<String> {
        let end = tokio::time::Instant::now() + LIMIT;
        while self.sets.is_empty() {
            assert!(tokio::time::Instant::now() < end, "a set in time");
            self.clock.jump(by);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.next().await
    }
}

/// Waits until something holds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = tokio::time::Instant::now() + LIMIT;
    while !holds() {
        assert!(tokio::time::Instant::now() < end, "in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn manifest(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: c\n    image: {image}\n"
    )
}
