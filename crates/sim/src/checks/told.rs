//! What the agent was told, and what it says itself.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::handlers::Handled;
use super::truth::{Told, ToldBy};
use super::{Checker, rules};

impl Checker {
    pub(super) fn rubelet_started(&mut self) {
        let wanted = self.truth.wanted_uids();
        let unfinished: BTreeSet<String> = self.truth.half_written.values().cloned().collect();
        let truth = &mut self.truth;
        truth.life += 1;
        truth.listed_in_life = false;
        truth.fetched_in_life = false;
        truth.complete_since = None;
        truth.told.clear();
        truth.told_by_http.clear();
        truth.told_by_api.clear();
        truth.api_listed_in_life = false;
        truth.published.clear();
        let sandboxes = truth.sandboxes.values().map(|one| one.uid.clone());
        let containers = truth.instances.values().map(|one| one.uid.clone());
        truth.lived_at_start = sandboxes.chain(containers).collect();
        for sandbox in truth.sandboxes.values_mut() {
            sandbox.is_late = false;
        }
        for instance in truth.instances.values_mut() {
            instance.handled = Handled::default();
        }
        for (uid, pod) in &mut truth.pods {
            if !pod.is_api && (pod.absent_in_life || !wanted.contains(uid)) {
                pod.begin_again();
            }
            // What a half-written manifest was before, only an earlier life could know.
            pod.absent_in_life = !wanted.contains(uid) || unfinished.contains(uid);
            // What a life has counted and not reported ends with it, until the next one has looked.
            pod.restarts_said.clear();
            pod.told_in_life = false;
            pod.undecoded_in_life = false;
            pod.left_out_in_life = false;
            pod.told = None;
            pod.published_in_life = false;
            pod.refused_at = None;
            pod.removal_learnt = None;
            pod.end_began = None;
            pod.is_ending = false;
            pod.first_stop = None;
            pod.starts.clear();
        }
    }

    pub(super) fn note_sources(&mut self, at: Duration) {
        if !self.truth.has_all_sources() || self.truth.complete_since.is_some() {
            return;
        }
        self.truth.complete_since = Some(at);
        // What was gone before has to end only now.
        let pods = self.truth.pods.values_mut();
        for pod in pods.filter(|pod| pod.removal_learnt.is_some()) {
            pod.end_began.get_or_insert(at);
        }
    }

    pub(super) fn learn_removal(&mut self, at: Duration, uid: &str) {
        if self.truth.told_version(uid).is_some() {
            return;
        }
        let is_complete = self.truth.complete_since.is_some();
        let pod = self.truth.pod(uid);
        if pod.removal_learnt.is_none() {
            pod.removal_learnt = Some(at);
            if is_complete {
                pod.end_began.get_or_insert(at);
            }
            if !pod.is_api {
                pod.begin_again();
            }
            pod.first_stop = None;
        }
    }

    pub(super) fn learn_pod(&mut self, told: Told, pod: &Arc<Pod>) {
        let truth = self.truth.pod(rules::uid(pod));
        truth.first_told.get_or_insert(told.at);
        truth.told_in_life = true;
        truth.source = Some(told.by);
        if truth.told.is_none() || truth.removal_learnt.is_some() {
            truth.told = Some(told);
        }
        truth.removal_learnt = None;
    }

    /// A life that has never heard of a pod, and lists a folder without it, later takes it for a new one.
    fn note_unheard(&mut self) {
        let wanted = self.truth.wanted_uids();
        for (uid, pod) in &mut self.truth.pods {
            let is_unheard = !pod.is_api && !pod.told_in_life && !wanted.contains(uid);
            if is_unheard && !pod.may_be_reborn {
                pod.begin_again();
            }
        }
    }

    pub(super) fn listed(&mut self, at: Duration, names: &[String]) {
        self.note_unheard();
        self.truth.listed_in_life = true;
        self.truth.listings += 1;
        self.note_sources(at);
        let gone: Vec<_> = self
            .truth
            .told
            .keys()
            .filter(|path| {
                let name = path
                    .file_name()
                    .and_then(|name| name.to_str())
                    .unwrap_or_default();
                !names.iter().any(|listed| listed == name)
            })
            .cloned()
            .collect();
        for path in gone {
            if let Some(pod) = self.truth.told.remove(&path) {
                self.learn_removal(at, rules::uid(&pod));
            }
        }
    }

    pub(super) fn manifest_read(&mut self, at: Duration, path: &Path, content: &[u8]) {
        let Some(pod) = self.parse(path, content) else {
            self.unreadable(path);
            return;
        };
        let old = self.truth.told.insert(path.to_owned(), pod.clone());
        let told = Told {
            at,
            by: ToldBy::File,
            look: self.truth.listings,
        };
        self.learn_pod(told, &pod);
        if let Some(old) = old {
            self.learn_removal(at, rules::uid(&old));
        }
    }

    /// A life that finds a pod's manifest half written has no pod of it, and later takes it for a new one.
    fn unreadable(&mut self, path: &Path) {
        let Some(uid) = self.truth.half_written.get(path).cloned() else {
            return;
        };
        let pod = self.truth.pod(&uid);
        if !pod.told_in_life && !pod.may_be_reborn {
            pod.begin_again();
        }
        pod.absent_in_life |= !pod.told_in_life;
    }

    pub(super) fn fetched(&mut self, at: Duration, content: &[u8]) {
        self.truth.fetched_in_life = true;
        self.truth.documents += 1;
        self.note_sources(at);
        self.truth.told_by_http = self.parse_document(content);
        let told = Told {
            at,
            by: ToldBy::Http,
            look: self.truth.documents,
        };
        for pod in self.truth.told_by_http.clone() {
            self.learn_pod(told, &pod);
        }
    }

    /// A terminal phase stays, and is said only when nothing runs.
    pub(super) fn published(&mut self, at: Duration, pods: Vec<Arc<Pod>>) {
        let life = self.truth.life;
        for pod in &pods {
            let (uid, phase) = (rules::uid(pod), rules::phase(pod));
            let Some(truth) = self.truth.pods.get_mut(uid) else {
                self.violate(format!("a pod is published that never existed: {uid}"));
                continue;
            };
            truth.published_in_life = true;
            self.check_said(pod);
            let truth = self.truth.pod(uid);
            if rules::is_refused(pod) {
                truth.refused_at = Some(at);
                // Not an end: it may be let in later.
                self.check_nothing_runs(uid, phase);
                continue;
            }
            let has_deadline = rules::deadline_seconds(pod).is_some();
            if let Some((terminal, said_in)) = truth.terminal.clone() {
                // A later life has to find out again; until it has, it may say less, but start nothing.
                let is_unsure = truth.had_loss || has_deadline || truth.undecoded_in_life;
                let may_forget = said_in != life && (is_unsure || !rules::is_terminal(phase));
                // What is said before anything was found out is no new beginning yet.
                let has_changed = terminal != phase && !may_forget;
                if has_changed && truth.may_be_reborn {
                    let truth = self.truth.pod(uid);
                    truth.may_be_reborn = false;
                    truth.terminal = None;
                } else if has_changed {
                    self.violate(format!(
                        "the terminal phase {terminal} of {uid} became {phase:?}: {}",
                        rules::summary(pod)
                    ));
                }
            }
            if rules::is_terminal(phase) {
                self.check_nothing_runs(uid, phase);
                let truth = self.truth.pod(uid);
                if truth.removal_learnt.is_none() {
                    truth.terminal = Some((phase.to_owned(), life));
                }
            }
        }
        self.truth.published = pods;
    }

    pub(super) fn check_nothing_runs(&mut self, uid: &str, phase: &str) {
        // A call that was given up can bring something to life that nobody knows of yet.
        let running = self.truth.running(uid).filter(|one| !one.is_late);
        let running: Vec<String> = running.map(|one| one.id.clone()).collect();
        if !running.is_empty() {
            self.violate(format!("{uid} is published as {phase} while {running:?} run"));
        }
    }
}
