//! The transitions, one function per state.

use rubelet_model::Timestamp;

use crate::deliberate::{Bug, is_on};

use super::grace::{ORPHAN_GRACE_SECONDS, effective_grace_seconds};
use super::{
    Effect, EndCause, Ending, Event, Job, KillRequest, Outcome, PodFacts, PodState, Requeue, Retry,
    UpdateKind, Work,
};

type Step = (PodState, Vec<Effect>);

/// What the event makes of the state, and what has to be done now. An event that means nothing in a state changes nothing.
#[must_use]
pub fn step(state: PodState, event: Event, now: Timestamp) -> Step {
    match state {
        PodState::Absent => from_absent(event, now),
        PodState::Waiting { pod } => from_waiting(pod, event, now),
        PodState::Syncing { pod, work } => from_syncing(pod, work, event, now),
        PodState::Terminating { pod, ending, work } => from_terminating(pod, ending, work, event),
        PodState::Terminated { ending, work } => from_terminated(ending, work, event),
        PodState::Finished { ending } => from_finished(ending, event),
    }
}

fn new_ending(cause: EndCause, grace_seconds: i64, now: Timestamp) -> Ending {
    Ending {
        cause,
        since: now,
        grace_seconds,
        is_deleted: matches!(cause, EndCause::Deleted | EndCause::Removed | EndCause::Orphaned),
        is_evicted: cause == EndCause::Evicted,
        restart_requested: false,
    }
}

fn running(job: Job) -> Work {
    Work::Running {
        job,
        look_again: false,
    }
}

fn terminate_job(pod: Option<&PodFacts>, ending: &Ending) -> Job {
    let grace_seconds = ending.grace_seconds;
    match pod {
        Some(_) => Job::Terminate { grace_seconds },
        None => Job::TerminateOrphan { grace_seconds },
    }
}

/// The end that the pod's own facts ask for.
fn end_by_facts(pod: &PodFacts) -> Option<EndCause> {
    if pod.is_deleted {
        Some(EndCause::Deleted)
    } else if pod.is_terminal {
        Some(EndCause::TerminalPhase)
    } else {
        None
    }
}

/// Runs the job, or remembers to look again when another one is in hand.
fn run_or_remember(work: Work, job: Job) -> (Work, Vec<Effect>) {
    match work {
        Work::Idle => (running(job), vec![Effect::Run(job)]),
        Work::Running { job: current, .. } => (
            Work::Running {
                job: current,
                look_again: !is_on(Bug::LostWakeUp),
            },
            Vec::new(),
        ),
    }
}

fn begin_terminating(pod: Option<PodFacts>, ending: Ending, work: Work, mut effects: Vec<Effect>) -> Step {
    let (work, more) = match work {
        Work::Idle => run_or_remember(Work::Idle, terminate_job(pod.as_ref(), &ending)),
        Work::Running { .. } => {
            let (work, _) = run_or_remember(work, Job::Sync);
            (work, vec![Effect::Cancel])
        }
    };
    effects.extend(more);
    (PodState::Terminating { pod, ending, work }, effects)
}

fn from_absent(event: Event, now: Timestamp) -> Step {
    match event {
        Event::Update { pod, is_idle, .. } => first_sight(pod, is_idle, now),
        Event::FoundInRuntime => {
            let ending = new_ending(EndCause::Orphaned, ORPHAN_GRACE_SECONDS, now);
            begin_terminating(None, ending, Work::Idle, Vec::new())
        }
        Event::Kill(_)
        | Event::StartAllowed
        | Event::DeadlinePassed
        | Event::JobDone(_)
        | Event::Housekeeping { .. } => (PodState::Absent, Vec::new()),
    }
}

fn first_sight(pod: PodFacts, is_idle: bool, now: Timestamp) -> Step {
    let ending = |cause| new_ending(cause, effective_grace_seconds(None, &pod, None), now);
    if pod.is_terminal && is_idle {
        // Its termination was complete before a restart of the agent; only the clean-up may be missing.
        let mut ending = ending(EndCause::TerminalPhase);
        ending.is_deleted = pod.is_deleted;
        let work = running(Job::CleanUp);
        return (
            PodState::Terminated { ending, work },
            vec![Effect::Run(Job::CleanUp)],
        );
    }
    match end_by_facts(&pod) {
        Some(cause) => begin_terminating(Some(pod), ending(cause), Work::Idle, Vec::new()),
        None if pod.is_static => (PodState::Waiting { pod }, vec![Effect::QueueByName]),
        None => start_sync(pod),
    }
}

fn start_sync(pod: PodFacts) -> Step {
    let work = running(Job::Sync);
    (PodState::Syncing { pod, work }, vec![Effect::Run(Job::Sync)])
}

/// A pod that never started has nothing to stop.
fn finish_unstarted(pod: &PodFacts, cause: EndCause, now: Timestamp) -> Step {
    let ending = new_ending(cause, effective_grace_seconds(None, pod, None), now);
    (
        PodState::Finished { ending },
        vec![Effect::ReleaseName, Effect::AnswerKills],
    )
}

fn from_waiting(pod: PodFacts, event: Event, now: Timestamp) -> Step {
    match event {
        Event::StartAllowed => start_sync(pod),
        Event::Update { pod: newest, .. } => match end_by_facts(&newest) {
            Some(cause) => finish_unstarted(&newest, cause, now),
            None => (PodState::Waiting { pod: newest }, vec![Effect::QueueByName]),
        },
        Event::Kill(request) => finish_unstarted(&pod, request.cause, now),
        // Containers of an earlier run of the agent: they go through the whole termination.
        Event::FoundInRuntime => {
            let grace_seconds = effective_grace_seconds(None, &pod, None);
            let ending = new_ending(EndCause::Orphaned, grace_seconds, now);
            begin_terminating(Some(pod), ending, Work::Idle, Vec::new())
        }
        Event::Housekeeping { is_desired: false } => (
            PodState::Absent,
            vec![Effect::ReleaseName, Effect::Forget { add_again: false }],
        ),
        Event::Housekeeping { is_desired: true } | Event::DeadlinePassed | Event::JobDone(_) => {
            (PodState::Waiting { pod }, Vec::new())
        }
    }
}

fn from_syncing(pod: PodFacts, work: Work, event: Event, now: Timestamp) -> Step {
    let end = |pod: PodFacts, cause: EndCause, requested: Option<i64>, effects: Vec<Effect>| {
        let grace_seconds = effective_grace_seconds(None, &pod, requested);
        begin_terminating(Some(pod), new_ending(cause, grace_seconds, now), work, effects)
    };
    match event {
        Event::Update { pod: newest, .. } => match end_by_facts(&newest) {
            Some(cause) => end(newest, cause, None, Vec::new()),
            None => {
                let (work, effects) = run_or_remember(work, Job::Sync);
                (PodState::Syncing { pod: newest, work }, effects)
            }
        },
        Event::Kill(KillRequest { cause, grace_seconds }) => end(pod, cause, grace_seconds, Vec::new()),
        Event::FoundInRuntime => end(pod, EndCause::Orphaned, None, Vec::new()),
        Event::DeadlinePassed => end(
            pod,
            EndCause::DeadlineExceeded,
            None,
            vec![Effect::FailByDeadline],
        ),
        Event::Housekeeping { is_desired: false } => end(pod, EndCause::Removed, None, Vec::new()),
        Event::Housekeeping { is_desired: true } | Event::StartAllowed => {
            (PodState::Syncing { pod, work }, Vec::new())
        }
        Event::JobDone(outcome) => sync_done(pod, work, outcome, now),
    }
}

fn sync_done(pod: PodFacts, work: Work, outcome: Outcome, now: Timestamp) -> Step {
    let look_again = match work {
        // No job was running: its result changes nothing.
        Work::Idle => return (PodState::Syncing { pod, work }, Vec::new()),
        Work::Running { look_again, .. } => look_again,
    };
    let requeue = match outcome {
        Outcome::Terminal => {
            let ending = new_ending(
                EndCause::Completed,
                effective_grace_seconds(None, &pod, None),
                now,
            );
            return begin_terminating(Some(pod), ending, Work::Idle, Vec::new());
        }
        Outcome::Success => Requeue::Resync,
        Outcome::Cancelled => Requeue::Retry(Retry::Later),
        Outcome::Failed(retry) => Requeue::Retry(retry),
    };
    if look_again {
        return start_sync(pod);
    }
    let work = Work::Idle;
    (PodState::Syncing { pod, work }, vec![Effect::Requeue(requeue)])
}

fn from_terminating(pod: Option<PodFacts>, mut ending: Ending, work: Work, event: Event) -> Step {
    let unchanged = PodState::Terminating { pod, ending, work };
    match event {
        Event::Update {
            kind: UpdateKind::Create,
            ..
        } => {
            ending.restart_requested = true;
            (PodState::Terminating { pod, ending, work }, Vec::new())
        }
        Event::Update { pod: newest, .. } => {
            ending.is_deleted |= newest.is_deleted;
            // An orphan stays an orphan: it is being terminated without its definition.
            let pod = pod.map(|_| newest);
            shorten(pod, ending, work, None)
        }
        Event::Kill(request) => {
            ending.is_evicted |= request.cause == EndCause::Evicted;
            ending.is_deleted |= request.cause == EndCause::Removed;
            shorten(pod, ending, work, request.grace_seconds)
        }
        Event::FoundInRuntime => shorten(pod, ending, work, None),
        Event::Housekeeping { is_desired: false } => {
            ending.is_deleted = true;
            shorten(pod, ending, work, None)
        }
        Event::Housekeeping { is_desired: true } | Event::StartAllowed | Event::DeadlinePassed => {
            (unchanged, Vec::new())
        }
        Event::JobDone(outcome) => terminating_job_done(pod, ending, work, outcome),
    }
}

/// Takes over a shorter grace period, at once when a stop is already under way.
fn shorten(pod: Option<PodFacts>, mut ending: Ending, work: Work, requested: Option<i64>) -> Step {
    let before = ending.grace_seconds;
    let facts = pod.unwrap_or_default();
    ending.grace_seconds = effective_grace_seconds(Some(before), &facts, requested);
    if is_on(Bug::GraceGrows) {
        ending.grace_seconds = before.saturating_mul(2);
    }
    let (work, mut effects) = run_or_remember(work, terminate_job(pod.as_ref(), &ending));
    if ending.grace_seconds < before && effects.is_empty() {
        effects.push(Effect::Cancel);
    }
    (PodState::Terminating { pod, ending, work }, effects)
}

fn terminating_job_done(pod: Option<PodFacts>, ending: Ending, work: Work, outcome: Outcome) -> Step {
    let (job, look_again) = match work {
        Work::Idle => return (PodState::Terminating { pod, ending, work }, Vec::new()),
        Work::Running { job, look_again } => (job, look_again),
    };
    let again = |pod: Option<PodFacts>| {
        let job = terminate_job(pod.as_ref(), &ending);
        let work = running(job);
        (
            PodState::Terminating { pod, ending, work },
            vec![Effect::Run(job)],
        )
    };
    match (job, outcome) {
        (Job::Sync, Outcome::Cancelled) if is_on(Bug::StartWhileTerminating) => {
            let work = running(Job::Sync);
            (
                PodState::Terminating { pod, ending, work },
                vec![Effect::Run(Job::Sync)],
            )
        }
        // The sync from before the end is over, however it went. Now the stop begins.
        (Job::Sync | Job::CleanUp, _) => again(pod),
        (Job::TerminateOrphan { .. }, Outcome::Success | Outcome::Terminal) => {
            let add_again = ending.restart_requested;
            (
                PodState::Absent,
                vec![
                    Effect::ReleaseName,
                    Effect::AnswerKills,
                    Effect::Forget { add_again },
                ],
            )
        }
        (Job::Terminate { .. }, Outcome::Success | Outcome::Terminal) => (
            PodState::Terminated {
                ending,
                work: running(Job::CleanUp),
            },
            vec![Effect::AnswerKills, Effect::Run(Job::CleanUp)],
        ),
        (Job::Terminate { .. } | Job::TerminateOrphan { .. }, Outcome::Cancelled) => again(pod),
        (Job::Terminate { .. } | Job::TerminateOrphan { .. }, Outcome::Failed(_)) if look_again => again(pod),
        (Job::Terminate { .. } | Job::TerminateOrphan { .. }, Outcome::Failed(retry)) => {
            let work = Work::Idle;
            let effects = vec![Effect::Requeue(Requeue::Retry(retry))];
            (PodState::Terminating { pod, ending, work }, effects)
        }
    }
}

fn from_terminated(mut ending: Ending, work: Work, event: Event) -> Step {
    let clean_up = |ending: Ending| {
        let (work, effects) = run_or_remember(work, Job::CleanUp);
        (PodState::Terminated { ending, work }, effects)
    };
    match event {
        Event::Update {
            kind: UpdateKind::Create,
            ..
        } => {
            ending.restart_requested = true;
            (PodState::Terminated { ending, work }, Vec::new())
        }
        Event::Update { pod, .. } => {
            ending.is_deleted |= pod.is_deleted;
            clean_up(ending)
        }
        Event::Kill(request) => {
            ending.is_evicted |= request.cause == EndCause::Evicted;
            let (state, mut effects) = clean_up(ending);
            effects.push(Effect::AnswerKills);
            (state, effects)
        }
        Event::Housekeeping { is_desired: false } => {
            ending.is_deleted = true;
            clean_up(ending)
        }
        // What was found may be an older view of the runtime than ours.
        Event::FoundInRuntime
        | Event::Housekeeping { is_desired: true }
        | Event::StartAllowed
        | Event::DeadlinePassed => (PodState::Terminated { ending, work }, Vec::new()),
        Event::JobDone(outcome) => clean_up_done(ending, work, outcome),
    }
}

fn clean_up_done(ending: Ending, work: Work, outcome: Outcome) -> Step {
    let look_again = match work {
        Work::Idle => return (PodState::Terminated { ending, work }, Vec::new()),
        Work::Running { look_again, .. } => look_again,
    };
    let retry = match outcome {
        Outcome::Success | Outcome::Terminal => {
            return (PodState::Finished { ending }, vec![Effect::ReleaseName]);
        }
        Outcome::Cancelled => Retry::Later,
        Outcome::Failed(retry) => retry,
    };
    if look_again {
        let work = running(Job::CleanUp);
        return (
            PodState::Terminated { ending, work },
            vec![Effect::Run(Job::CleanUp)],
        );
    }
    let work = Work::Idle;
    let effects = vec![Effect::Requeue(Requeue::Retry(retry))];
    (PodState::Terminated { ending, work }, effects)
}

fn from_finished(mut ending: Ending, event: Event) -> Step {
    match event {
        Event::Update {
            kind: UpdateKind::Create,
            ..
        } => {
            ending.restart_requested = true;
            (PodState::Finished { ending }, Vec::new())
        }
        Event::Housekeeping { is_desired }
            if ending.restart_requested || !is_desired || is_on(Bug::TerminalUndone) =>
        {
            (
                PodState::Absent,
                vec![Effect::Forget {
                    add_again: is_desired,
                }],
            )
        }
        Event::Kill(_) => (PodState::Finished { ending }, vec![Effect::AnswerKills]),
        Event::Update { .. }
        | Event::FoundInRuntime
        | Event::StartAllowed
        | Event::DeadlinePassed
        | Event::JobDone(_)
        | Event::Housekeeping { .. } => (PodState::Finished { ending }, Vec::new()),
    }
}
