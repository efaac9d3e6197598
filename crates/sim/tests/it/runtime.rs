//! The simulated runtime behaves like one.

use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rubelet_ports::{Clock, RuntimeError, RuntimeErrorKind, RuntimeReader, RuntimeWriter};
use rubelet_sim::dice::SharedDice;
use rubelet_sim::executor::{Executor, Group, Step};
use rubelet_sim::files::SimFiles;
use rubelet_sim::history::{Cause, Fact, History};
use rubelet_sim::runtime::{Faults, SimRuntime};
use rubelet_sim::trace::Trace;
use rubelet_wire::cri::v1;

struct Bench {
    executor: Executor,
    runtime: SimRuntime,
    history: History,
}

fn bench() -> Bench {
    let executor = Executor::new(1);
    let (history, trace) = (History::default(), Trace::default());
    let dice = SharedDice::new(1, "test");
    let files = SimFiles::new(
        &executor,
        dice.clone(),
        history.clone(),
        trace.clone(),
        Path::new("/m"),
    );
    files.make_directory(Path::new("/logs/c"));
    let runtime = SimRuntime::new(&executor, dice, history.clone(), trace, files);
    runtime.add_image("registry.test/app:1");
    Bench {
        executor,
        runtime,
        history,
    }
}

impl Bench {
    /// Runs a future to its end on virtual time.
    fn run<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> T {
        let result = Arc::new(Mutex::new(None));
        let place = result.clone();
        let work = async move {
            *place.lock().unwrap() = Some(future.await);
        };
        self.executor.spawn(Group::World, "test", Box::pin(work));
        for _ in 0..100_000 {
            if let Some(result) = result.lock().unwrap().take() {
                return result;
            }
            if self.executor.step() == Step::Idle {
                let limit = self.executor.elapsed() + Duration::from_secs(3600);
                assert!(self.executor.advance(limit), "nothing left to wait for");
            }
        }
        panic!("no end");
    }

    fn ends(&self) -> Vec<(i32, Cause)> {
        let facts = self.history.take().into_iter();
        let ends = facts.filter_map(|(_, fact)| match fact {
            Fact::Ended { code, cause, .. } => Some((code, cause)),
            _ => None,
        });
        ends.collect()
    }
}

fn pod(attempt: u32) -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: "web".to_owned(),
            uid: "u1".to_owned(),
            namespace: "default".to_owned(),
            attempt,
        }),
        log_directory: "/logs".to_owned(),
        labels: [("pod".to_owned(), "web".to_owned())].into(),
        ..v1::PodSandboxConfig::default()
    }
}

fn container(arguments: &[&str]) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: "c".to_owned(),
            attempt: 0,
        }),
        image: Some(v1::ImageSpec {
            image: "registry.test/app:1".to_owned(),
            ..v1::ImageSpec::default()
        }),
        args: arguments.iter().map(|&text| text.to_owned()).collect(),
        log_path: "c/0.log".to_owned(),
        ..v1::ContainerConfig::default()
    }
}

async fn start(runtime: &SimRuntime, arguments: &[&str]) -> Result<(String, String), RuntimeError> {
    let sandbox = runtime.run_pod_sandbox(pod(0), "").await?;
    let id = runtime
        .create_container(&sandbox, container(arguments), pod(0))
        .await?;
    runtime.start_container(&id).await?;
    Ok((sandbox, id))
}

#[test]
fn a_name_is_reserved_from_the_first_moment() {
    let bench = bench();
    let runtime = bench.runtime.clone();
    let error = bench.run(async move {
        let (first, second) = futures_util::future::join(
            runtime.run_pod_sandbox(pod(0), ""),
            runtime.run_pod_sandbox(pod(0), ""),
        )
        .await;
        first.err().or(second.err())
    });
    let error = error.expect("one of the two is refused");
    assert_eq!(error.kind(), RuntimeErrorKind::Unknown);
    let holder = rubelet_lifecycle::plan::reserved_for(error.message());
    assert!(holder.is_some_and(|id| id.starts_with('s')), "{error}");
}

#[test]
fn a_stop_waits_for_its_grace() {
    let check = |arguments: &[&str], grace: i64, expected: (i32, Cause)| {
        let bench = bench();
        let runtime = bench.runtime.clone();
        let arguments: Vec<String> = arguments.iter().map(|&text| text.to_owned()).collect();
        let took = {
            let executor = bench.executor.clone();
            bench.run(async move {
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                let (_, id) = start(&runtime, &arguments).await.unwrap();
                let begun = executor.moment();
                runtime.stop_container(&id, grace).await.unwrap();
                executor.moment().since(begun)
            })
        };
        assert_eq!(bench.ends(), [expected]);
        let is_killed = expected.1 == Cause::GraceOver;
        assert_eq!(
            took >= Duration::from_secs(grace.unsigned_abs()),
            is_killed,
            "{took:?}"
        );
    };
    check(&["term=100:143"], 5, (143, Cause::Term));
    check(&["term=100:0"], 5, (0, Cause::Term));
    check(&["term=ignore"], 5, (137, Cause::GraceOver));
    check(&["term=9000:0"], 2, (137, Cause::GraceOver));
}

#[test]
fn stopping_a_sandbox_kills_what_runs_in_it() {
    let bench = bench();
    let runtime = bench.runtime.clone();
    let state = bench.run(async move {
        let (sandbox, _) = start(&runtime, &[]).await.unwrap();
        runtime.stop_pod_sandbox(&sandbox).await.unwrap();
        runtime
            .pod_sandbox_status(&sandbox, false)
            .await
            .unwrap()
            .status
            .unwrap()
            .state
    });
    assert_eq!(state, v1::PodSandboxState::SandboxNotready as i32);
    assert_eq!(bench.ends(), [(137, Cause::SandboxStopped)]);
}

#[test]
fn nothing_starts_in_a_stopped_sandbox() {
    let bench = bench();
    let runtime = bench.runtime.clone();
    let (error, state) = bench.run(async move {
        let sandbox = runtime.run_pod_sandbox(pod(0), "").await.unwrap();
        let id = runtime
            .create_container(&sandbox, container(&[]), pod(0))
            .await
            .unwrap();
        runtime.stop_pod_sandbox(&sandbox).await.unwrap();
        let error = runtime.start_container(&id).await.unwrap_err();
        let status = runtime.container_status(&id, false).await.unwrap();
        (error, status.status.unwrap().state)
    });
    assert!(error.message().contains("is not running"), "{error}");
    assert_eq!(state, v1::ContainerState::ContainerExited as i32);
    assert_eq!(bench.ends(), [(128, Cause::StartFailed)]);
}

#[test]
fn lists_select_by_labels_and_state() {
    let bench = bench();
    let runtime = bench.runtime.clone();
    let counts = bench.run(async move {
        start(&runtime, &[]).await.unwrap();
        let with_label = |value: &str| v1::PodSandboxFilter {
            label_selector: [("pod".to_owned(), value.to_owned())].into(),
            ..v1::PodSandboxFilter::default()
        };
        let in_state = |state: v1::ContainerState| v1::ContainerFilter {
            state: Some(v1::ContainerStateValue { state: state as i32 }),
            ..v1::ContainerFilter::default()
        };
        [
            runtime
                .list_pod_sandboxes(Some(with_label("web")))
                .await
                .unwrap()
                .len(),
            runtime
                .list_pod_sandboxes(Some(with_label("other")))
                .await
                .unwrap()
                .len(),
            runtime
                .list_containers(Some(in_state(v1::ContainerState::ContainerRunning)))
                .await
                .unwrap()
                .len(),
            runtime
                .list_containers(Some(in_state(v1::ContainerState::ContainerExited)))
                .await
                .unwrap()
                .len(),
        ]
    });
    assert_eq!(counts, [1, 0, 1, 0]);
}

#[test]
fn a_runtime_that_is_down_answers_nothing_and_keeps_its_containers() {
    let bench = bench();
    let (runtime, executor) = (bench.runtime.clone(), bench.executor.clone());
    let (kind, running) = bench.run(async move {
        start(&runtime, &[]).await.unwrap();
        runtime.restart(Duration::from_secs(5));
        let kind = runtime.list_containers(None).await.unwrap_err().kind();
        executor.sleep(Duration::from_secs(6)).await;
        let running = runtime.list_containers(None).await.unwrap();
        (kind, running[0].state)
    });
    assert_eq!(kind, RuntimeErrorKind::Unavailable);
    assert_eq!(running, v1::ContainerState::ContainerRunning as i32);
}

#[test]
fn a_lost_answer_may_hide_an_effect() {
    let bench = bench();
    let runtime = bench.runtime.clone();
    let (kind, sandboxes) = bench.run(async move {
        runtime.set_faults(Faults {
            loses_answer: 10_000,
            ..Faults::calm()
        });
        let kind = runtime.run_pod_sandbox(pod(0), "").await.unwrap_err().kind();
        runtime.set_faults(Faults::calm());
        let mut sandboxes = 0;
        for _ in 0..50 {
            sandboxes = runtime.list_pod_sandboxes(None).await.unwrap().len();
        }
        (kind, sandboxes)
    });
    assert_eq!(kind, RuntimeErrorKind::Unavailable);
    assert_eq!(sandboxes, 1);
}
