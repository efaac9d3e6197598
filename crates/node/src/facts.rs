//! The facts behind the Node's status, cached for as long as they may be.
//!
//! Owns what was read last and how long ago: a fact that cannot be read now stays what it was. It decides nothing.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join3;
use k8s_openapi::api::core::v1::ContainerImage;
use rubelet_model::{RuntimeContact, RuntimeLists, RuntimeReport};
use rubelet_ports::{HostAddresses, Moment, within};
use tokio::sync::watch;

use crate::settings::{NodeInputs, NodePorts, NodeSettings};
use crate::status::{
    RUNTIME_GRACE, RuntimeFacts, StatusFacts, largest_images, needs_lookup, runtime_version,
};
use rubelet_ports::LogThrottle;

/// What one question to the runtime or the machine may take; the status does not wait longer for it.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// Listing images costs the runtime more than the other questions.
const IMAGES_MAX_AGE: Duration = Duration::from_secs(30);
const ADDRESSES_MAX_AGE: Duration = Duration::from_secs(5);
/// How long the first status waits for the runtime's first report.
const FIRST_REPORT_LIMIT: Duration = Duration::from_secs(1);

/// A fact and when it was read.
struct Kept<T> {
    fact: Option<T>,
    read_at: Option<Moment>,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self {
            fact: None,
            read_at: None,
        }
    }
}

impl<T> Kept<T> {
    fn is_old(&self, now: Moment, max_age: Duration) -> bool {
        self.read_at.is_none_or(|read_at| now.since(read_at) >= max_age)
    }

    fn keep(&mut self, fact: Option<T>, now: Moment) {
        if fact.is_some() {
            self.fact = fact;
            self.read_at = Some(now);
        }
    }
}

/// Since when the runtime does not answer, or lists nothing, and how long that had lasted when it was reported.
#[derive(Clone, Copy)]
struct Silence {
    since: Moment,
    before: Duration,
}

pub(crate) struct FactReader {
    ports: NodePorts,
    settings: Arc<NodeSettings>,
    images: Kept<Vec<ContainerImage>>,
    addresses: Kept<HostAddresses>,
    runtime_version: Option<String>,
    silence: Option<Silence>,
    /// The same for its lists.
    list_silence: Option<Silence>,
    throttle: LogThrottle,
}

impl FactReader {
    pub(crate) fn new(ports: NodePorts, settings: Arc<NodeSettings>) -> Self {
        let silence = Silence {
            since: ports.clock.moment(),
            before: Duration::ZERO,
        };
        Self {
            ports,
            settings,
            images: Kept::default(),
            addresses: Kept::default(),
            runtime_version: None,
            silence: Some(silence),
            list_silence: None,
            throttle: LogThrottle::default(),
        }
    }

    /// Waits a little for the runtime's first report, so that the first status has more than "unknown".
    pub(crate) async fn await_runtime(&self, inputs: &NodeInputs) {
        let mut runtime = inputs.runtime.clone();
        let report = runtime.wait_for(|report| report.contact != RuntimeContact::Unknown);
        // Without a report the status is written without it.
        let _ = within(self.ports.clock.as_ref(), FIRST_REPORT_LIMIT, report).await;
    }

    pub(crate) async fn read(&mut self, inputs: &mut NodeInputs) -> StatusFacts {
        let runtime = self.read_runtime(&mut inputs.runtime);
        self.look(runtime.report.contact == RuntimeContact::Answers).await;
        StatusFacts {
            addresses: self.addresses.fact.clone(),
            runtime,
            runtime_version: self.runtime_version.clone(),
            images: self.images.fact.clone(),
            pressure: *inputs.pressure.borrow_and_update(),
            volumes_in_use: inputs.volumes_in_use.borrow_and_update().clone(),
            is_shutting_down: *inputs.shutting_down.borrow_and_update(),
        }
    }

    /// When the runtime's silence begins to count, if nothing changes.
    pub(crate) fn grace_end(&self) -> Option<Moment> {
        let silence = self.silence?;
        let end = silence.since.plus(RUNTIME_GRACE.saturating_sub(silence.before));
        (end > self.ports.clock.moment()).then_some(end)
    }

    fn read_runtime(&mut self, runtime: &mut watch::Receiver<RuntimeReport>) -> RuntimeFacts {
        let report = runtime.borrow_and_update().clone();
        let now = self.ports.clock.moment();
        let begins = |before| Silence { since: now, before };
        match report.contact {
            RuntimeContact::Answers => self.silence = None,
            RuntimeContact::Unknown => {
                self.silence.get_or_insert_with(|| begins(Duration::ZERO));
            }
            RuntimeContact::Silent { already } => {
                self.silence.get_or_insert_with(|| begins(already));
            }
        }
        match report.lists {
            RuntimeLists::Fresh | RuntimeLists::Never => self.list_silence = None,
            RuntimeLists::Overdue { already } => {
                self.list_silence.get_or_insert_with(|| begins(already));
            }
        }
        let lasts = |silence: Option<Silence>| {
            let lasts = silence.map(|silence| now.since(silence.since) + silence.before);
            lasts.unwrap_or_default()
        };
        RuntimeFacts {
            report,
            silent_for: lasts(self.silence),
            unlisted_for: lasts(self.list_silence),
        }
    }

    async fn look(&mut self, runtime_answers: bool) {
        let now = self.ports.clock.moment();
        let clock = self.ports.clock.as_ref();
        let wants_images = runtime_answers && self.images.is_old(now, IMAGES_MAX_AGE);
        let images = async {
            match wants_images {
                true => Some(within(clock, READ_LIMIT, self.ports.images.list_images(None)).await),
                false => None,
            }
        };
        let version = async {
            match runtime_answers {
                true => Some(within(clock, READ_LIMIT, self.ports.runtime_reader.version()).await),
                false => None,
            }
        };
        let wants_addresses = self.addresses.is_old(now, ADDRESSES_MAX_AGE);
        let name = needs_lookup(&self.settings.addresses).then_some(self.settings.node_name.as_str());
        let addresses = async {
            match wants_addresses {
                true => Some(within(clock, READ_LIMIT, self.ports.addresses.addresses(name)).await),
                false => None,
            }
        };
        let (listed, version, addresses) = join3(images, version, addresses).await;
        let limit = self.settings.reporting.max_images;
        let mut problems = Vec::new();
        let listed = taken(listed, &mut problems).map(|all| largest_images(all, limit));
        self.images.keep(listed, now);
        let mut addresses = taken(addresses, &mut problems);
        if let (Some(new), Some(last)) = (&mut addresses, &self.addresses.fact)
            && new.is_name_unknown
        {
            problems.push(format!(
                "no answer in time to what {:?} resolves to",
                self.settings.node_name
            ));
            new.of_name.clone_from(&last.of_name);
            new.is_name_unknown = last.is_name_unknown;
        }
        self.addresses.keep(addresses, now);
        if let Some(answer) = taken(version, &mut problems) {
            self.runtime_version = Some(runtime_version(&answer.runtime_name, &answer.runtime_version));
        }
        self.complain(&problems, now);
    }

    fn complain(&mut self, problems: &[String], now: Moment) {
        let problem = problems.join("; ");
        if problem.is_empty() {
            self.throttle.end();
        } else if self.throttle.is_due(&problem, now) {
            tracing::warn!(
                problem,
                "Some facts of the node's status are not known anew; the last ones are kept"
            );
        }
    }
}

/// The answer, or nothing and a problem.
fn taken<T, E: std::fmt::Display, L: std::fmt::Display>(
    answer: Option<Result<Result<T, E>, L>>,
    problems: &mut Vec<String>,
) -> Option<T> {
    match answer? {
        Ok(Ok(fact)) => return Some(fact),
        Ok(Err(error)) => problems.push(error.to_string()),
        Err(elapsed) => problems.push(elapsed.to_string()),
    }
    None
}
