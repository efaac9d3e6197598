//! Questions to the observer that wait for an answer.
//!
//! Owns who asked about one pod or about everything. A question that was cancelled gets its answer too; sending it has no effect.

use std::collections::BTreeMap;

use rubelet_model::observation::PodUid;
use rubelet_ports::Moment;
use tokio::sync::oneshot;

use super::TableSizes;
use super::handle::{Everything, Look};

struct Question {
    /// The look has to begin at this moment or later.
    after: Moment,
    reply: oneshot::Sender<Look>,
}

#[derive(Default)]
pub(super) struct Questions {
    by_pod: BTreeMap<PodUid, Vec<Question>>,
    about_everything: Vec<oneshot::Sender<Everything>>,
}

impl Questions {
    pub(super) fn ask(&mut self, uid: PodUid, after: Moment, reply: oneshot::Sender<Look>) {
        self.by_pod
            .entry(uid)
            .or_default()
            .push(Question { after, reply });
    }

    /// A look that began at `began` has ended. A failure answers every question about the pod. Returns whether questions are
    /// left that need a later look.
    pub(super) fn answer(&mut self, uid: &PodUid, began: Moment, answer: &Look) -> bool {
        let questions = self.by_pod.remove(uid).unwrap_or_default();
        let (answered, left): (Vec<_>, Vec<_>) = questions
            .into_iter()
            .partition(|question| answer.is_err() || began >= question.after);
        for question in answered {
            let _ = question.reply.send(answer.clone());
        }
        let has_left = !left.is_empty();
        if has_left {
            self.by_pod.insert(uid.clone(), left);
        }
        has_left
    }

    pub(super) fn ask_about_everything(&mut self, reply: oneshot::Sender<Everything>) {
        self.about_everything.push(reply);
    }

    pub(super) fn is_everything_asked(&self) -> bool {
        !self.about_everything.is_empty()
    }

    pub(super) fn answer_everything(&mut self, answer: &Everything) {
        for reply in self.about_everything.drain(..) {
            let _ = reply.send(answer.clone());
        }
    }

    pub(super) fn table_sizes(&self) -> TableSizes {
        vec![
            ("observer.questions", self.by_pod.len()),
            ("observer.questions_about_everything", self.about_everything.len()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rubelet_model::Timestamp;
    use rubelet_model::observation::PodObservation;
    use rubelet_ports::{RuntimeError, RuntimeErrorKind};

    use super::*;

    #[test]
    fn a_look_answers_the_questions_it_is_late_enough_for() {
        let at = |seconds: u64| Moment::from_start(Duration::from_secs(seconds));
        let web = PodUid::from("web");
        let observation = PodObservation::new(
            (web.clone(), String::new(), String::new()),
            Vec::new(),
            Vec::new(),
            Timestamp::EPOCH,
        );
        let failure = RuntimeError::new("ListContainers", "", RuntimeErrorKind::Unknown, "no");
        let check = |answer: &Look, began: u64, answered: [bool; 2]| {
            let mut questions = Questions::default();
            let mut replies = [3, 5].map(|after| {
                let (reply, receiver) = oneshot::channel();
                questions.ask(web.clone(), at(after), reply);
                receiver
            });
            let has_left = questions.answer(&web, at(began), answer);
            assert_eq!(has_left, answered.contains(&false), "{began}");
            assert_eq!(questions.by_pod.len(), usize::from(has_left));
            let got = replies.each_mut().map(|reply| reply.try_recv().is_ok());
            assert_eq!(got, answered, "{began}");
        };
        let seen = Ok(Arc::new(observation));
        check(&seen, 2, [false, false]);
        check(&seen, 3, [true, false]);
        check(&seen, 5, [true, true]);
        check(&Err(failure), 2, [true, true]);
    }
}
