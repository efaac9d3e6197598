//! The manifests of a folder: what each state of the files means.

use super::*;

const WEB: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n";
const WEB_EDITED: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: other}]}\n";
const WEB_REFORMATTED: &str = "# the same\napiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n";
const DATABASE: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: db}\nspec: {containers: [{name: c, image: i}]}\n";
const HALF: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: we";
const NO_CONTAINERS: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {}\n";

struct Folder {
    manifests: Manifests,
    now: Moment,
}

/// What a look gave: names and images of the pods, trouble lines, and whether there will be another look.
struct Looked {
    pods: Vec<String>,
    troubles: Vec<String>,
    again: Option<u64>,
    is_unsettled: bool,
    never_good: Vec<PathBuf>,
    raw: Vec<Arc<Pod>>,
}

impl Folder {
    fn new() -> Self {
        Self {
            manifests: Manifests::new("node", Arc::default()),
            now: Moment::from_start(Duration::from_secs(100)),
        }
    }

    fn later(&mut self, millis: u64) -> &mut Self {
        self.now = self.now.plus(Duration::from_millis(millis));
        self
    }

    fn look(&mut self, files: &[(&str, &str)]) -> Looked {
        self.look_with_backups(files, &[])
    }

    fn look_with_backups(&mut self, files: &[(&str, &str)], backups: &[&str]) -> Looked {
        for (path, content) in files {
            let found = Found::Content(content.as_bytes().to_vec());
            self.manifests.observe(Path::new(path), found, self.now);
        }
        let backups = backups.iter().map(PathBuf::from).collect();
        let outcome = self.manifests.finish(&backups, self.now);
        let image = |pod: &Pod| pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
        Looked {
            pods: outcome
                .pods
                .iter()
                .map(|pod| format!("{} {}", pod.metadata.name.clone().unwrap(), image(pod)))
                .collect(),
            troubles: outcome
                .lines
                .iter()
                .filter(|line| line.is_trouble)
                .map(|line| format!("{}: {}", line.path.display(), line.text))
                .collect(),
            again: outcome
                .look_again
                .map(|at| u64::try_from(at.since(self.now).as_millis()).unwrap()),
            is_unsettled: outcome.is_unsettled,
            never_good: outcome.never_good,
            raw: outcome.pods,
        }
    }
}

#[test]
fn a_good_file_counts_at_once_and_goes_with_its_file() {
    let mut folder = Folder::new();
    let looked = folder.look(&[("/m/b.yaml", DATABASE), ("/m/a.yaml", WEB)]);
    assert_eq!(looked.pods, ["web-node i", "db-node i"], "by path");
    assert_eq!(looked.again, None);
    let again = folder
        .later(1000)
        .look(&[("/m/a.yaml", WEB), ("/m/b.yaml", DATABASE)]);
    assert!(Arc::ptr_eq(&looked.raw[0], &again.raw[0]), "not read again");
    let reformatted = folder.look(&[("/m/a.yaml", WEB_REFORMATTED), ("/m/b.yaml", DATABASE)]);
    assert!(
        Arc::ptr_eq(&looked.raw[0], &reformatted.raw[0]),
        "the same pod in other words"
    );
    let edited = folder.look(&[("/m/a.yaml", WEB_EDITED), ("/m/b.yaml", DATABASE)]);
    assert_eq!(edited.pods, ["web-node other", "db-node i"]);
    assert_ne!(edited.raw[0].metadata.uid, looked.raw[0].metadata.uid);
    assert_eq!(folder.look(&[("/m/b.yaml", DATABASE)]).pods, ["db-node i"]);
    assert!(folder.look(&[]).pods.is_empty());
}

#[test]
fn a_bad_file_keeps_its_last_good_pod_and_says_so_once() {
    let mut folder = Folder::new();
    folder.look(&[("/m/a", WEB), ("/m/b", DATABASE)]);
    let half = folder.later(5000).look(&[("/m/a", HALF), ("/m/b", DATABASE)]);
    assert_eq!(half.pods, ["web-node i", "db-node i"]);
    assert!(half.troubles.is_empty(), "perhaps somebody is still writing");
    assert_eq!(half.again, Some(500));
    let still = folder.later(500).look(&[("/m/a", HALF), ("/m/b", DATABASE)]);
    assert_eq!(still.troubles.len(), 1);
    let line = &still.troubles[0];
    assert!(
        line.starts_with("/m/a: cannot be read") && line.contains("last good version keeps running"),
        "{line}"
    );
    assert_eq!(still.again, None);
    assert!(
        folder
            .later(59_000)
            .look(&[("/m/a", HALF), ("/m/b", DATABASE)])
            .troubles
            .is_empty()
    );
    assert_eq!(
        folder
            .later(1000)
            .look(&[("/m/a", HALF), ("/m/b", DATABASE)])
            .troubles
            .len(),
        1,
        "a minute later"
    );
    folder.later(1000).look(&[("/m/a", NO_CONTAINERS)]);
    let other = folder.later(500).look(&[("/m/a", NO_CONTAINERS)]);
    assert!(
        other.troubles[0].contains("spec.containers"),
        "another trouble is told at once: {:?}",
        other.troubles
    );
    assert_eq!(other.pods, ["web-node i"]);
    assert_eq!(folder.look(&[("/m/a", WEB_EDITED)]).pods, ["web-node other"]);
    assert!(
        folder.look(&[]).pods.is_empty(),
        "a bad file that goes takes its pod along"
    );
}

#[test]
fn what_is_finished_in_time_is_never_complained_of() {
    let mut folder = Folder::new();
    assert!(folder.look(&[("/m/a", "")]).pods.is_empty());
    assert!(folder.later(300).look(&[("/m/a", HALF)]).troubles.is_empty());
    let restless = folder.later(300).look(&[("/m/a", "apiVersion")]);
    assert!(restless.troubles.is_empty(), "it changed just now");
    let done = folder.later(300).look(&[("/m/a", WEB)]);
    assert_eq!((done.pods.len(), done.troubles.len(), done.again), (1, 0, None));
    let mut lines = 0;
    for step in 0..40 {
        lines += folder
            .later(300)
            .look(&[("/m/a", &"x".repeat(step))])
            .troubles
            .len();
    }
    assert!(lines >= 1, "what never rests is told of in the end");
}

#[test]
fn an_unusable_path_is_told_of_and_keeps_its_pod() {
    let mut folder = Folder::new();
    folder.look(&[("/m/a", WEB)]);
    for millis in [0, 600, 600] {
        folder.later(millis);
        let found = Found::Unusable("cannot open the file: no".to_owned());
        folder.manifests.observe(Path::new("/m/a"), found, folder.now);
        let looked = folder.look(&[]);
        assert_eq!(looked.pods, ["web-node i"]);
        assert_eq!(
            looked.troubles.len(),
            usize::from(
                millis > 0
                    && folder.now.since(Moment::from_start(Duration::from_secs(100)))
                        < Duration::from_millis(700)
            )
        );
    }
    let long = "y".repeat(10_000);
    folder
        .manifests
        .observe(Path::new("/m/b"), Found::Unusable(long), folder.now);
    folder.look(&[]);
    folder.later(600);
    folder
        .manifests
        .observe(Path::new("/m/b"), Found::Unusable("y".repeat(10_000)), folder.now);
    let line = folder.look(&[]).troubles.remove(0);
    assert!(line.len() < 2200 && line.contains("and more"), "{}", line.len());
}

#[test]
fn a_file_that_an_editor_replaces_by_way_of_its_backup_stays() {
    let mut folder = Folder::new();
    let before = folder.look(&[("/m/a", WEB)]);
    let moved = folder.later(5000).look_with_backups(&[], &["/m/a"]);
    assert_eq!((moved.pods.len(), moved.again), (1, Some(1000)));
    let written = folder.later(10).look(&[("/m/a", WEB)]);
    assert!(Arc::ptr_eq(&written.raw[0], &before.raw[0]), "never gone");
    assert_eq!(folder.later(10).look_with_backups(&[], &["/m/a"]).pods.len(), 1);
    assert!(
        folder
            .later(1000)
            .look_with_backups(&[], &["/m/a"])
            .pods
            .is_empty(),
        "removed after all"
    );
    assert!(
        folder.look_with_backups(&[], &["/m/b"]).pods.is_empty(),
        "a backup alone is no pod"
    );
}

#[test]
fn a_second_file_of_the_same_pod_waits_before_it_counts() {
    let mut folder = Folder::new();
    folder.look(&[("/m/web.yaml", WEB)]);
    let beside = folder
        .later(5000)
        .look(&[("/m/sedABC", WEB_EDITED), ("/m/web.yaml", WEB)]);
    assert_eq!(
        (beside.pods, beside.again),
        (vec!["web-node i".to_owned()], Some(500))
    );
    let renamed = folder.later(3).look(&[("/m/web.yaml", WEB_EDITED)]);
    assert_eq!(renamed.pods, ["web-node other"], "the rename counts at once");
    folder
        .later(5000)
        .look(&[("/m/copy", WEB), ("/m/web.yaml", WEB_EDITED)]);
    let meant = folder
        .later(500)
        .look(&[("/m/copy", WEB), ("/m/web.yaml", WEB_EDITED)]);
    assert_eq!(
        meant.pods,
        ["web-node i", "web-node other"],
        "two that stay are for the merger"
    );
    let together = Folder::new().look(&[("/m/a", WEB), ("/m/b", WEB)]);
    assert_eq!(
        (together.pods.len(), together.again),
        (2, None),
        "nobody was first"
    );
}

#[test]
fn a_file_that_is_being_written_stays_as_it_was_for_a_while() {
    let mut folder = Folder::new();
    let path = Path::new("/m/a");
    assert!(!folder.look(&[("/m/a", WEB)]).is_unsettled);
    for millis in [0, 2000, 2999] {
        folder.later(millis);
        assert!(!folder.manifests.is_written_for_long(path, folder.now));
        folder.manifests.observe(path, Found::Unfinished, folder.now);
        let looked = folder.look(&[]);
        assert_eq!(
            (looked.pods.len(), looked.troubles.len(), looked.again),
            (1, 0, Some(500))
        );
        assert!(looked.is_unsettled);
    }
    folder.later(1);
    assert!(folder.manifests.is_written_for_long(path, folder.now));
    assert_eq!(
        folder.look(&[("/m/a", WEB_EDITED)]).pods,
        ["web-node other"],
        "then it is read as it is"
    );
    assert!(!folder.manifests.is_written_for_long(path, folder.now));
    assert!(folder.look(&[("/m/a", HALF)]).is_unsettled);
    assert!(
        !folder.later(500).look(&[("/m/a", HALF)]).is_unsettled,
        "it is bad for good"
    );
}

#[test]
fn files_that_were_never_good_are_named_until_they_are_good_or_gone() {
    let mut folder = Folder::new();
    let check = |looked: &Looked, expected: &[&str]| {
        let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
        assert_eq!(looked.never_good, expected);
    };
    let socket = Found::Unusable("neither a folder nor a file".to_owned());
    folder
        .manifests
        .observe(Path::new("/m/socket"), socket, folder.now);
    let first = folder.look(&[("/m/a.yaml", HALF), ("/m/b.yaml", DATABASE), ("/m/c.yaml", HALF)]);
    check(&first, &["/m/a.yaml", "/m/c.yaml"]);
    let mended = [("/m/a.yaml", WEB), ("/m/b.yaml", HALF), ("/m/c.yaml", HALF)];
    check(&folder.later(1000).look(&mended), &["/m/c.yaml"]);
    // What went bad after it was good is known: its last good version goes on.
    let worse = [("/m/a.yaml", HALF), ("/m/b.yaml", HALF)];
    check(&folder.later(1000).look(&worse), &[]);
}
