//! The files of the manifest folder, one by one.
//!
//! Owns each file's last good pod and its problem. Pure but for the time it is given: contents come in, pods and log lines go
//! out. A file that cannot be used keeps its last good pod running; only a file that is gone takes its pod along.
//!
//! People edit these files while they are read. So what looks wrong, or double, is given a moment to be finished before
//! anything is said or done about it; what is good counts at once.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_config::FeatureGates;
use rubelet_manifest::read_file;
use rubelet_model::explanation::ManifestExplanation;
use rubelet_model::pod::{name_of, namespace_of};
use rubelet_ports::Moment;
use sha2::{Digest as _, Sha256};

use rubelet_ports::LogThrottle;

/// How long a file may look wrong or double before it is believed.
const SETTLE: Duration = Duration::from_millis(500);
/// Also a file that never rests is complained of after this time.
const RESTLESS: Duration = Duration::from_secs(10);
/// How long a file is left alone because it is open for writing.
const MAX_WRITING: Duration = Duration::from_secs(5);
/// How long an editor may take between moving a file to its backup and writing it anew.
const EDIT: Duration = Duration::from_secs(1);
/// Of a refusal with hundreds of fields the first ones are enough.
const MAX_PROBLEM_BYTES: usize = 2000;

/// What reading a path gave.
#[derive(Debug)]
pub(super) enum Found {
    Content(Vec<u8>),
    /// It is open for writing.
    Unfinished,
    /// There is something that cannot be read as a manifest, and why.
    Unusable(String),
}

/// Something to log about a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) path: PathBuf,
    pub(super) text: String,
    pub(super) is_trouble: bool,
}

/// What the files together say.
#[derive(Debug)]
pub(super) struct Outcome {
    /// In the order of their paths.
    pub(super) pods: Vec<Arc<Pod>>,
    /// Something was put off until then.
    pub(super) look_again: Option<Moment>,
    /// A file is there that may be finished any moment.
    pub(super) is_unsettled: bool,
    /// Files that were read and never held a pod that may run.
    pub(super) never_good: Vec<PathBuf>,
    /// Files that cannot be used now, and why, after the time that their authors have to finish them.
    pub(super) unusable: Vec<ManifestExplanation>,
    pub(super) lines: Vec<Line>,
}

pub(super) struct Manifests {
    node_name: String,
    gates: Arc<FeatureGates>,
    files: BTreeMap<PathBuf, Manifest>,
    lines: Vec<Line>,
}

/// One file.
struct Manifest {
    /// Of the content that `good` and `problem` are about; nothing when it could not be read.
    digest: Option<[u8; 32]>,
    good: Option<Arc<Pod>>,
    problem: Option<Problem>,
    throttle: LogThrottle,
    /// When the file first had a pod.
    good_since: Moment,
    /// It has been open for writing since.
    written_since: Option<Moment>,
    /// Not there at the last look, but perhaps only being edited.
    missing_since: Option<Moment>,
    /// That another file has a pod of the same name was logged.
    is_double_told: bool,
    /// At the look that goes on.
    is_present: bool,
}

struct Problem {
    text: String,
    /// When there was first something to say that was not said yet.
    since: Moment,
    changed: Moment,
}

impl Problem {
    /// Until then its author may still be writing.
    fn settled(&self) -> Moment {
        self.changed.plus(SETTLE).min(self.since.plus(RESTLESS))
    }
}

fn manifest_explanation(path: &Path, problem: &str) -> ManifestExplanation {
    ManifestExplanation {
        file: path.display().to_string(),
        problem: problem.to_owned(),
    }
}

impl Manifests {
    pub(super) fn new(node_name: &str, gates: Arc<FeatureGates>) -> Self {
        Self {
            node_name: node_name.to_owned(),
            gates,
            files: BTreeMap::new(),
            lines: Vec::new(),
        }
    }

    /// A file that is there. To be called for each of them, then [`Self::finish`].
    pub(super) fn observe(&mut self, path: &Path, found: Found, now: Moment) {
        let file = self.files.entry(path.to_owned()).or_insert_with(|| Manifest {
            digest: None,
            good: None,
            problem: None,
            throttle: LogThrottle::default(),
            good_since: now,
            written_since: None,
            missing_since: None,
            is_double_told: false,
            is_present: true,
        });
        file.is_present = true;
        file.missing_since = None;
        let written_since = file.written_since.take();
        match found {
            Found::Unfinished => file.written_since = Some(written_since.unwrap_or(now)),
            Found::Unusable(text) => {
                file.digest = None;
                file.trouble(text, now);
            }
            Found::Content(bytes) => {
                let digest: [u8; 32] = Sha256::digest(&bytes).into();
                if file.digest == Some(digest) {
                    return;
                }
                file.digest = Some(digest);
                match read_pod(&bytes, path, &self.node_name, &self.gates) {
                    Ok((pod, warnings)) => {
                        self.lines.extend(warnings.into_iter().map(|text| Line {
                            path: path.to_owned(),
                            text,
                            is_trouble: false,
                        }));
                        if file.take(pod, now) {
                            self.lines.push(Line {
                                path: path.to_owned(),
                                text: "the manifest is good again".to_owned(),
                                is_trouble: false,
                            });
                        }
                    }
                    Err(text) => file.trouble(text, now),
                }
            }
        }
    }

    /// A file that is there and was not touched since it was observed. Whether it need not be read again: its content is known, and no
    /// process is writing it.
    pub(super) fn keep(&mut self, path: &Path) -> bool {
        let known = self.files.get_mut(path);
        let at_rest = known.filter(|file| file.digest.is_some() && file.written_since.is_none());
        let Some(file) = at_rest.filter(|file| file.missing_since.is_none()) else {
            return false;
        };
        file.is_present = true;
        true
    }

    /// The file was taken away. What is at its path now, if anything, is another one. The answer is the UID of its pod.
    pub(super) fn taken_away(&mut self, path: &Path) -> Option<String> {
        let file = self.files.remove(path)?;
        file.good?.metadata.uid.clone()
    }

    /// Whether a good version of this file is known.
    pub(super) fn has_pod(&self, path: &Path) -> bool {
        self.files.get(path).is_some_and(|file| file.good.is_some())
    }

    /// Whether this file has been open for writing for so long that it is read as it is.
    pub(super) fn is_written_for_long(&self, path: &Path, now: Moment) -> bool {
        let since = self.files.get(path).and_then(|file| file.written_since);
        since.is_some_and(|since| now.since(since) >= MAX_WRITING)
    }

    /// The end of a look: what was not observed is gone. `backups` are paths beside which an editor's backup lies.
    pub(super) fn finish(&mut self, backups: &BTreeSet<PathBuf>, now: Moment) -> Outcome {
        let mut look_again: Option<Moment> = None;
        let mut put_off = |until: Moment| {
            look_again = Some(look_again.map_or(until, |other: Moment| other.min(until)));
        };
        self.files.retain(|path, file| {
            if std::mem::take(&mut file.is_present) {
                return true;
            }
            let since = *file.missing_since.get_or_insert(now);
            let is_being_edited = file.good.is_some() && backups.contains(path) && now < since.plus(EDIT);
            if is_being_edited {
                put_off(since.plus(EDIT));
            }
            is_being_edited
        });
        let mut is_unsettled = false;
        for (path, file) in &mut self.files {
            let due = match file.written_since {
                // Closing it gives a hint; the time is for a watch that does not work.
                Some(_) => Err(now.plus(SETTLE)),
                None => file.due_line(path, now),
            };
            match due {
                Ok(line) => self.lines.extend(line),
                Err(until) => {
                    is_unsettled = true;
                    put_off(until);
                }
            }
        }
        let is_newcomer = |file: &Manifest| file.good.is_some() && now < file.good_since.plus(SETTLE);
        let has_newcomers = self.files.values().any(is_newcomer);
        let eldest = has_newcomers.then(|| self.eldest_of_names());
        let mut pods = Vec::with_capacity(self.files.len());
        for file in self.files.values() {
            let Some(pod) = &file.good else { continue };
            let eldest = eldest.as_ref().and_then(|eldest| eldest.get(&name(pod)));
            if is_newcomer(file) && eldest.is_some_and(|since| *since < file.good_since) {
                put_off(file.good_since.plus(SETTLE));
            } else {
                pods.push(Arc::clone(pod));
            }
        }
        let mut unusable = self.tell_doubles(now);
        let bad = self.files.iter().filter_map(|(path, file)| {
            let problem = file.problem.as_ref().filter(|problem| now >= problem.settled())?;
            Some(manifest_explanation(path, &problem.text))
        });
        unusable.extend(bad);
        let never_good = self.files.iter().filter(|(_, file)| file.was_never_good());
        Outcome {
            pods,
            look_again,
            is_unsettled,
            never_good: never_good.map(|(path, _)| path.clone()).collect(),
            unusable,
            lines: std::mem::take(&mut self.lines),
        }
    }

    /// Of two files with one pod's name only the first counts; the other one's author hears of it.
    fn tell_doubles(&mut self, now: Moment) -> Vec<ManifestExplanation> {
        let mut names: BTreeMap<(&str, &str), &PathBuf> = BTreeMap::new();
        let mut doubles: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
        for (path, file) in &self.files {
            let Some(pod) = &file.good else { continue };
            match names.get(&name(pod)) {
                Some(first) => drop(doubles.insert(path.clone(), PathBuf::clone(first))),
                None => drop(names.insert(name(pod), path)),
            }
        }
        let mut unused = Vec::new();
        for (path, file) in &mut self.files {
            let Some(first) = doubles.get(path) else {
                file.is_double_told &= file.good.is_none();
                continue;
            };
            if now < file.good_since.plus(SETTLE) {
                continue;
            }
            let text = format!(
                "metadata.name: {} has a pod of the same name, which counts; no pod runs from this file",
                first.display()
            );
            unused.push(manifest_explanation(path, &text));
            if !std::mem::replace(&mut file.is_double_told, true) {
                self.lines.push(Line {
                    path: path.clone(),
                    text,
                    is_trouble: true,
                });
            }
        }
        unused
    }

    /// Since when there has been a pod of each name. Tools that write a new file beside the old one and then rename it have both for an
    /// instant.
    fn eldest_of_names(&self) -> BTreeMap<(&str, &str), Moment> {
        let mut eldest = BTreeMap::new();
        for file in self.files.values() {
            let Some(pod) = &file.good else { continue };
            let since = eldest.entry(name(pod)).or_insert(file.good_since);
            *since = file.good_since.min(*since);
        }
        eldest
    }
}

fn name(pod: &Pod) -> (&str, &str) {
    (namespace_of(pod), name_of(pod))
}

impl Manifest {
    fn trouble(&mut self, text: String, now: Moment) {
        let text = shortened(text);
        match &mut self.problem {
            Some(problem) if problem.text == text && self.digest.is_none() => {}
            Some(problem) => {
                problem.text = text;
                problem.changed = now;
                // Another content is worth another line, also when it is wrong in the same way.
                if self.throttle.end() {
                    problem.since = now;
                }
            }
            None => {
                self.problem = Some(Problem {
                    text,
                    since: now,
                    changed: now,
                });
            }
        }
    }

    /// A folder or a socket never is, and what cannot be read wants nothing.
    fn was_never_good(&self) -> bool {
        self.good.is_none() && self.digest.is_some()
    }

    /// A pod that may run. Whether a problem of the file was logged.
    fn take(&mut self, pod: Pod, now: Moment) -> bool {
        match &self.good {
            None => self.good_since = now,
            // Written anew with the same meaning.
            Some(good) if **good == pod => {
                self.problem = None;
                return self.throttle.end();
            }
            Some(_) => {}
        }
        self.good = Some(Arc::new(pod));
        self.problem = None;
        self.throttle.end()
    }

    /// The line that is due, if any, or the time until which nothing is logged because the file may still be written.
    fn due_line(&mut self, path: &Path, now: Moment) -> Result<Option<Line>, Moment> {
        let Some(problem) = &self.problem else {
            return Ok(None);
        };
        let settled = problem.settled();
        if now < settled {
            return Err(settled);
        }
        if !self.throttle.is_due(&problem.text, now) {
            return Ok(None);
        }
        let effect = match self.good {
            Some(_) => "its last good version keeps running until the file is corrected or removed",
            None => {
                "no pod runs from it until the file is corrected; one that ran from it before a restart is left as it is"
            }
        };
        Ok(Some(Line {
            path: path.to_owned(),
            text: format!("{}; {effect}", problem.text),
            is_trouble: true,
        }))
    }
}

/// The pod of a manifest and its warnings. A panic in reading is a refusal: a file that users can write
/// must not end the agent.
fn read_pod(
    bytes: &[u8],
    path: &Path,
    node_name: &str,
    gates: &FeatureGates,
) -> Result<(Pod, Vec<String>), String> {
    let path = path.to_string_lossy();
    let read = catch_unwind(AssertUnwindSafe(|| read_file(bytes, &path, node_name, gates)));
    let read =
        read.map_err(|_| "reading it has failed inside of rubelet; please report this file".to_owned())?;
    let read = read.map_err(|error| error.to_string())?;
    let pod = read.pods.into_iter().next();
    let pod = pod.ok_or_else(|| "it holds no pod".to_owned())?;
    Ok((pod, read.warnings))
}

fn shortened(mut text: String) -> String {
    if text.len() > MAX_PROBLEM_BYTES {
        let end = text.floor_char_boundary(MAX_PROBLEM_BYTES);
        text.truncate(end);
        text.push_str(" … and more");
    }
    text
}

#[cfg(test)]
#[path = "manifests_tests.rs"]
mod tests;
