//! What happens to the node: the scenario's actions, applied when they are due.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Due, World};
use crate::dice::Dice;
use crate::history::Fact;
use crate::node;
use crate::runtime::Faults;
use crate::scenario::{Action, PodShape};

impl World {
    pub(super) fn apply_due(&mut self) {
        let now = self.executor.elapsed();
        while let Some(entry) = self.due.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let due = entry.remove();
            self.apply(due);
        }
    }

    fn apply(&mut self, due: Due) {
        match due {
            Due::Scenario(action) => self.act(action),
            Due::StartRubelet => self.start_rubelet(),
            Due::PutBack(path, shape) => self.put_manifest(&path, *shape),
            Due::FinishWrite(path) => {
                if let Some(shape) = self.manifests.get(&path).cloned() {
                    self.put_manifest(&path, shape);
                }
            }
            Due::EditSoon(path) => self.edit(&path),
            Due::NewImage(path) => {
                if let Some(mut shape) = self.manifests.get(&path).cloned() {
                    self.roll(|dice| shape.edit_image(dice));
                    self.put_manifest(&path, shape);
                }
            }
            Due::FolderBack(moved) => self.bring_folder_back(moved),
            Due::NetworkUp => self.runtime.set_network_ready(true),
            Due::ServeHttp => self.serve_some_http(),
            Due::Api(action) => self.act_on_api(action),
            Due::ApiUp => self.api_up(),
            Due::Decodable(uid) => {
                if let Some(api) = &self.api {
                    api.set_undecodable(&uid, false);
                }
            }
            Due::DeleteApiPod(uid, grace_seconds) => self.delete_api_pod(&uid, grace_seconds),
            Due::CrashNow => self.crash_rubelet(Duration::from_secs(1)),
        }
    }

    pub(super) fn put_manifest(&mut self, path: &Path, shape: PodShape) {
        self.files.make_directory(Path::new(node::MANIFESTS));
        let content = shape.manifest();
        self.say(format!(
            "{} is {}",
            path.display(),
            String::from_utf8_lossy(&content)
        ));
        self.manifests.insert(path.to_owned(), shape);
        self.checker.disk_changed(path, Some(&content));
        self.files.place(path, &content);
    }

    pub(super) fn take_manifest(&mut self, path: &Path) -> Option<PodShape> {
        let shape = self.manifests.remove(path)?;
        self.say(format!("{} is removed", path.display()));
        self.checker.disk_changed(path, None);
        self.files.take_away(path);
        Some(shape)
    }

    fn roll<T>(&mut self, roll: impl FnOnce(&mut Dice) -> T) -> T {
        roll(&mut self.dice)
    }

    fn some_manifest(&mut self) -> Option<PathBuf> {
        let place = self.dice.below(self.manifests.len());
        self.manifests.keys().nth(place).cloned()
    }

    fn new_shape(&mut self) -> PodShape {
        let number = self.next_number;
        self.next_number += 1;
        self.roll(|dice| PodShape::roll(dice, number))
    }

    fn add(&mut self, shape: PodShape) -> PathBuf {
        let path = node::manifest_path(&shape.name);
        self.put_manifest(&path, shape);
        path
    }

    fn edit(&mut self, path: &Path) {
        if let Some(mut shape) = self.manifests.get(path).cloned() {
            self.roll(|dice| shape.edit(dice));
            self.put_manifest(path, shape);
        }
    }

    /// A plain pod that is added and edited at once.
    pub(super) fn add_and_edit_calmly(&mut self, after: Duration) -> String {
        let number = self.next_number;
        self.next_number += 1;
        let shape = self.roll(|dice| PodShape::tame(dice, number));
        let uid = shape.uid.clone().unwrap_or_default();
        let path = self.add(shape);
        self.after(after, Due::NewImage(path));
        uid
    }

    fn serve_some_http(&mut self) {
        let shapes: Vec<PodShape> = (0..self.dice.below(2)).map(|_| self.new_shape()).collect();
        self.serve_http(&shapes);
    }

    pub(super) fn serve_http(&mut self, shapes: &[PodShape]) {
        let items: Vec<String> = shapes
            .iter()
            .map(|shape| String::from_utf8_lossy(&shape.manifest()).into_owned())
            .collect();
        let document = format!(
            r#"{{"apiVersion":"v1","kind":"PodList","items":[{}]}}"#,
            items.join(",")
        );
        self.say(format!("{} serves {document}", node::URL));
        self.checker.served(document.as_bytes());
        self.http.serve(Some(document.into_bytes()));
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Add => {
                let shape = self.new_shape();
                self.add(shape);
            }
            Action::Remove => {
                if let Some(path) = self.some_manifest() {
                    self.take_manifest(&path);
                }
            }
            Action::ReAdd { away } => {
                if let Some(path) = self.some_manifest()
                    && let Some(shape) = self.take_manifest(&path)
                {
                    self.after(away, Due::PutBack(path, Box::new(shape)));
                }
            }
            Action::Edit => {
                if let Some(path) = self.some_manifest() {
                    self.edit(&path);
                }
            }
            Action::AddAndEdit { after } => {
                let shape = self.new_shape();
                let path = self.add(shape);
                self.after(after, Due::EditSoon(path));
            }
            Action::Rename => self.rename(),
            Action::HalfWrite { time } => self.half_write(time),
            Action::CrashContainer { code } => {
                let number = self.dice.below(1000);
                self.runtime.crash_container(number, code);
            }
            Action::RestartRuntime { down } => self.runtime.restart(down),
            Action::LoseState => self.runtime.lose_state(),
            Action::LoseNetwork => {
                let number = self.dice.below(1000);
                self.runtime.lose_network(number);
            }
            Action::CutEvents => self.runtime.cut_events(),
            Action::CrashRubelet { polls, down } => {
                if self.rubelet.is_some() {
                    self.crash = Some((polls, down));
                }
            }
            Action::CrashDuringCall { call, down } => self.crash_on = Some((call, down)),
            Action::LosePower => self.lose_power(),
            Action::MoveClock { seconds } => {
                self.say(format!("the clock moves by {seconds} s"));
                self.executor.move_wall(seconds);
                self.history.add(self.executor.elapsed(), Fact::ClockMoved);
            }
            Action::NetworkDown { time } => {
                self.runtime.set_network_ready(false);
                self.after(time, Due::NetworkUp);
            }
            Action::HangPod => self.hang_pod(),
            Action::FolderAway { time } => self.move_folder_away(time),
        }
    }

    fn rename(&mut self) {
        if let Some(path) = self.some_manifest()
            && let Some(shape) = self.take_manifest(&path)
        {
            let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or("pod");
            let new = node::manifest_path(&format!("{name}x"));
            self.put_manifest(&new, shape);
        }
    }

    /// An editor that writes in two steps. A rubelet that starts in between cannot know the pod.
    fn half_write(&mut self, time: Duration) {
        let Some(path) = self.some_manifest() else {
            return;
        };
        let Some(shape) = self.manifests.get_mut(&path) else {
            return;
        };
        shape.revision += 1;
        let content = shape.manifest();
        self.say(format!("{} is half written", path.display()));
        self.checker.half_written(&path);
        self.files.place(&path, &content[..content.len() / 2]);
        self.after(time, Due::FinishWrite(path));
    }

    fn move_folder_away(&mut self, time: Duration) {
        self.say("the manifest folder is gone");
        let moved = std::mem::take(&mut self.manifests);
        for path in moved.keys() {
            self.checker.disk_changed(path, None);
        }
        self.files.take_away(Path::new(node::MANIFESTS));
        self.after(time, Due::FolderBack(moved));
    }

    fn bring_folder_back(&mut self, moved: BTreeMap<PathBuf, PodShape>) {
        self.say("the manifest folder is back");
        self.files.make_directory(Path::new(node::MANIFESTS));
        for (path, shape) in moved {
            // What somebody wrote there meanwhile stays.
            if !self.manifests.contains_key(&path) {
                self.put_manifest(&path, shape);
            }
        }
    }

    fn lose_power(&mut self) {
        self.say("the power fails");
        if self.rubelet.is_some() {
            let down = self.dice.millis(3000, 12_000);
            self.crash_rubelet(down);
        }
        self.volumes.lose_power();
        self.files.lose_power();
        self.cgroups.lose_power();
        self.runtime.lose_power();
    }

    fn hang_pod(&mut self) {
        let Some(path) = self.some_manifest() else {
            return;
        };
        let uid = self.manifests.get(&path).and_then(|shape| shape.uid.clone());
        if let Some(uid) = uid {
            self.say(format!("calls about {uid} hang"));
            self.hanging = Some(uid.clone());
            self.runtime.set_faults(Faults {
                hanging_uid: Some(uid),
                ..self.scenario.runtime_faults.clone()
            });
        }
    }
}
