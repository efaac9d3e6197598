//! Lists of everything that the runtime has: the safety net of the looks at single pods.
//!
//! Owns when a list is made, what follows from one, and since when none has come. A list says only which pods to look at.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::FutureExt;
use rubelet_model::Timestamp;
use rubelet_model::observation::PodUid;
use rubelet_ports::{Moment, RuntimeError, RuntimeErrorKind, within};

use super::inspect::{Listed, differs, group_by_pod};
use super::{Done, Observer, Sighting};

/// How often everything is listed while no stream of events is open.
pub(super) const RELIST_WITHOUT_EVENTS: Duration = Duration::from_secs(1);
/// How often while one is.
const RELIST_WITH_EVENTS: Duration = Duration::from_secs(10);
/// What a list of everything may take.
const RELIST_LIMIT: Duration = Duration::from_secs(30);
/// How long a question about everything waits for pods that are being looked at.
const ALL_PATIENCE: Duration = Duration::from_secs(5);

impl Observer {
    pub(super) fn relist_interval(&self) -> Duration {
        if self.stream_works && self.is_list_fresh {
            RELIST_WITH_EVENTS
        } else {
            RELIST_WITHOUT_EVENTS
        }
    }

    /// Lists everything as it is from now on.
    pub(super) fn relist_anew(&mut self) {
        if self.relisting {
            self.relist_again = true;
        } else {
            self.relist();
        }
    }

    pub(super) fn relist(&mut self) {
        if self.relisting {
            return;
        }
        self.relisting = true;
        self.count_relist();
        let ports = self.ports.clone();
        let list = async move {
            let (began, began_at) = (ports.clock.moment(), ports.clock.now());
            let lists = futures_util::future::try_join(
                ports.runtime_reader.list_pod_sandboxes(None),
                ports.runtime_reader.list_containers(None),
            );
            let result = match within(ports.clock.as_ref(), RELIST_LIMIT, lists).await {
                Ok(result) => result.map(|(sandboxes, containers)| group_by_pod(sandboxes, containers)),
                Err(elapsed) => Err(RuntimeError::new(
                    "list pods",
                    "",
                    RuntimeErrorKind::DeadlineExceeded,
                    &elapsed.to_string(),
                )),
            };
            let took = ports.clock.moment().since(began);
            ports.metrics.observer.relists.observe(took.as_secs_f64());
            Done::Relist {
                began,
                began_at,
                result,
            }
        };
        self.running.push(list.boxed());
    }

    fn count_relist(&mut self) {
        let now = self.ports.clock.moment();
        if let Some(last) = self.relisted_at.replace(now) {
            let intervals = &self.ports.metrics.observer.relist_intervals;
            intervals.observe(now.since(last).as_secs_f64());
        }
    }

    /// A list succeeded. Whether the node is healthy depends on when the last of them began.
    pub(super) fn note_list(&self, began: Moment, began_at: Timestamp) {
        let metrics = &self.ports.metrics.observer;
        metrics.last_relist.set(began_at.unix_seconds());
        let nanos = began.since(Moment::default()).as_nanos();
        // Zero means that there was none yet.
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX).max(1);
        self.last_list.store(nanos, Ordering::Relaxed);
    }

    pub(super) async fn relisted(
        &mut self,
        began: Moment,
        result: Result<BTreeMap<PodUid, Listed>, RuntimeError>,
    ) {
        let pods = match result {
            Ok(pods) => pods,
            Err(error) => {
                for waiter in self.all_waiters.drain(..) {
                    let _ = waiter.send(Err(error.clone()));
                }
                tracing::debug!(%error, "The runtime does not list its pods");
                self.is_list_fresh = false;
                self.is_tick_stale = true;
                return;
            }
        };
        self.is_list_fresh = true;
        let first = self.listed_at.is_none();
        self.listed_at = Some(began);
        if first {
            self.tell_living(&pods).await;
        } else {
            // They were never observed, so that no end of theirs would be noticed.
            let gone: Vec<PodUid> = self
                .owed
                .keys()
                .filter(|uid| !pods.contains_key(uid))
                .cloned()
                .collect();
            gone.into_iter().for_each(|uid| self.look_or_remember(uid, began));
        }
        if !self.all_waiters.is_empty() {
            let clock = Arc::clone(&self.ports.clock);
            let patience = async move { clock.sleep(ALL_PATIENCE).await };
            self.running
                .push(patience.map(|()| Done::AllPatienceOver).boxed());
        }
        let mut changed: Vec<PodUid> = pods
            .iter()
            .filter(|(uid, listed)| {
                self.pods
                    .get(uid)
                    .is_none_or(|entry| entry.looked_at < began && differs(listed, &entry.observation))
            })
            .map(|(uid, _)| uid.clone())
            .collect();
        let vanished = self.pods.iter().filter(|(uid, entry)| {
            entry.looked_at < began && !pods.contains_key(uid) && !entry.observation.is_empty()
        });
        changed.extend(vanished.map(|(uid, _)| uid.clone()));
        for uid in changed {
            if first {
                self.first_looks.insert(uid.clone());
            }
            self.look_or_remember(uid, began);
        }
    }

    /// Who holds which name must not wait for a look that may hang.
    async fn tell_living(&mut self, pods: &BTreeMap<PodUid, Listed>) {
        let living: Vec<(String, String, PodUid)> = pods
            .iter()
            .filter(|(_, listed)| listed.lives())
            .map(|(uid, listed)| (listed.name.clone(), listed.namespace.clone(), uid.clone()))
            .collect();
        let owed = living.iter().cloned();
        self.owed
            .extend(owed.map(|(name, namespace, uid)| (uid, (name, namespace))));
        let _ = self
            .sightings
            .send(Sighting::Living {
                living,
                listed: pods.keys().cloned().collect(),
            })
            .await;
    }

    pub(super) async fn tell_first_list(&mut self) {
        if self.listed_at.is_some() && !self.first_list_told && self.first_looks.is_empty() {
            self.first_list_told = true;
            let _ = self.sightings.send(Sighting::FirstListDone).await;
        }
    }

    pub(super) fn answer_all(&mut self) {
        if !self.relisting && self.queue.is_empty() && self.looking.is_empty() {
            self.answer_all_now();
        }
    }

    pub(super) fn answer_all_now(&mut self) {
        if self.all_waiters.is_empty() {
            return;
        }
        let all: Vec<_> = self
            .pods
            .values()
            .map(|entry| Arc::clone(&entry.observation))
            .filter(|observation| !observation.is_empty())
            .collect();
        for waiter in self.all_waiters.drain(..) {
            let _ = waiter.send(Ok(all.clone()));
        }
    }
}
