//! `rubelet top`: what this node, its pods and their containers use.
//!
//! Owns the arguments of this one command, its table and the terminal that it is drawn on. It asks the rubelet that runs on this node for
//! a summary, over the local socket, and reads no cgroup itself: no settings are loaded, and no API server is needed.

mod arguments;
mod figures;
mod screen;
mod table;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use rubelet_host::machine::Machine;
use serde::Deserialize;
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::local_socket;
use crate::why::is_meant;
use arguments::{Arguments, USAGE};
use figures::{SortKey, Summary};
use screen::Screen;
use table::View;

/// The first argument.
pub(crate) const COMMAND: &str = "top";

const SUMMARY: &str = "/stats/summary";
const SHORT_SUMMARY: &str = "/stats/summary?only_cpu_and_memory=true";
const FIRST_NOTICE: &str = "cpu is the average since each start, until the next refresh";

/// Shows the figures; the exit code is 1 when there are none.
pub(crate) fn run(arguments: &[String]) -> ExitCode {
    let result = Arguments::parse(arguments)
        .map_err(|problem| anyhow::anyhow!("{problem}\n\n{USAGE}"))
        .and_then(|arguments| show(&arguments));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rubelet top: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn show(arguments: &Arguments) -> Result<()> {
    if arguments.shows_help {
        return print(&format!("{USAGE}\n"));
    }
    // The agent remembers its readings for the next question: two of them make a rate.
    local_socket::ask(&arguments.root_dir, SHORT_SUMMARY)?;
    if !arguments.json && !arguments.is_once && screen::is_terminal() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let result = runtime.block_on(refresh(arguments));
        // A question that is under way is not waited for.
        runtime.shutdown_background();
        return result;
    }
    std::thread::sleep(arguments.interval);
    let answer = local_socket::ask(&arguments.root_dir, SUMMARY)?;
    if arguments.json {
        let answer = chosen_json(answer, arguments)?;
        return print(&format!("{}\n", serde_json::to_string_pretty(&answer)?));
    }
    let summary = chosen(answer, arguments.pod.as_deref())?;
    let lines = table::lines(&summary, &view(arguments, None), None);
    print(&format!("{}\n", lines.join("\n")))
}

/// A reader that has gone away is no failure of ours.
fn print(text: &str) -> Result<()> {
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn view(arguments: &Arguments, room: Option<(usize, usize)>) -> View {
    View {
        sort: arguments.sort,
        shows_containers: arguments.shows_containers,
        processors: Machine::read().processors,
        room,
    }
}

/// The summary with the pods that are asked for.
fn chosen(answer: Value, wanted: Option<&str>) -> Result<Summary> {
    let mut summary = Summary::deserialize(answer).context("the answer makes no sense")?;
    if let Some(wanted) = wanted {
        summary.pods.retain(|pod| is_wanted(pod, wanted));
        if summary.pods.is_empty() {
            bail!("no pod {wanted:?} runs on this node");
        }
    }
    Ok(summary)
}

fn is_wanted(pod: &figures::Pod, wanted: &str) -> bool {
    let names = &pod.reference;
    is_meant((&names.uid, &names.namespace, &names.name), wanted)
}

/// The same with all fields of the answer, in the table's order.
fn chosen_json(mut answer: Value, arguments: &Arguments) -> Result<Value> {
    let pods = answer.get_mut("pods").and_then(Value::as_array_mut);
    let pods = pods.context("the answer has no list of pods")?;
    let mut kept = Vec::new();
    for value in std::mem::take(pods) {
        let pod = figures::Pod::deserialize(&value).context("the answer makes no sense")?;
        if arguments
            .pod
            .as_deref()
            .is_none_or(|wanted| is_wanted(&pod, wanted))
        {
            kept.push((pod.row(), value));
        }
    }
    if let (Some(wanted), true) = (&arguments.pod, kept.is_empty()) {
        bail!("no pod {wanted:?} runs on this node");
    }
    kept.sort_by(|(one, _), (other, _)| figures::order(one, other, arguments.sort));
    pods.extend(kept.into_iter().map(|(_, value)| value));
    Ok(answer)
}

/// Draws again and again, until a key or a signal ends it.
async fn refresh(arguments: &Arguments) -> Result<()> {
    let mut signals = Signals::new().context("take over the signals")?;
    let root_dir = arguments.root_dir.clone();
    let first = ask(root_dir.clone()).await.context("ask rubelet")??;
    let mut shown = Shown {
        view: view(arguments, None),
        summary: chosen(first, arguments.pod.as_deref())?,
        notice: Some(FIRST_NOTICE.to_owned()),
    };
    let mut screen = Screen::take().context("take the terminal")?;
    let mut keys = screen.has_keys().then(screen::keys);
    let mut question: Option<JoinHandle<Result<Value>>> = None;
    let mut next = Instant::now() + arguments.interval;
    loop {
        shown.view.room = Some(screen.room());
        let lines = table::lines(&shown.summary, &shown.view, shown.notice.as_deref());
        if screen.draw(&lines).is_err() {
            // The terminal is gone.
            return Ok(());
        }
        // All arms may be dropped: signals and keys stay queued, the question is kept, the time is fixed.
        tokio::select! {
            biased;
            asked = signals.next() => match asked {
                Asked::End => return Ok(()),
                Asked::Stop => screen.stop().context("take the terminal again")?,
                Asked::Redraw => {}
            },
            key = pressed(&mut keys) => {
                if shown.pressed(key) {
                    return Ok(());
                }
            }
            answer = answered(&mut question) => {
                question = None;
                next = Instant::now() + arguments.interval;
                shown.take(answer.and_then(|answer| chosen(answer, arguments.pod.as_deref())));
            }
            () = sleep_until(next), if question.is_none() => question = Some(ask(root_dir.clone())),
        }
    }
}

/// Off the task, because the socket's answer may take a while, and keys must not wait for it.
fn ask(root_dir: PathBuf) -> JoinHandle<Result<Value>> {
    tokio::task::spawn_blocking(move || local_socket::ask(&root_dir, SUMMARY))
}

async fn answered(question: &mut Option<JoinHandle<Result<Value>>>) -> Result<Value> {
    match question {
        Some(question) => question.await.context("ask rubelet")?,
        None => std::future::pending().await,
    }
}

async fn pressed(keys: &mut Option<mpsc::Receiver<u8>>) -> u8 {
    if let Some(open) = keys {
        match open.recv().await {
            Some(key) => return key,
            None => *keys = None,
        }
    }
    std::future::pending().await
}

/// What is on the screen.
struct Shown {
    view: View,
    summary: Summary,
    notice: Option<String>,
}

impl Shown {
    /// Whether the key ends it.
    fn pressed(&mut self, key: u8) -> bool {
        match key {
            b'q' | b'Q' => return true,
            b'c' => self.view.sort = SortKey::Cpu,
            b'm' => self.view.sort = SortKey::Memory,
            b'd' => self.view.sort = SortKey::Disk,
            b'p' => self.view.sort = SortKey::Pressure,
            b'n' => self.view.sort = SortKey::Name,
            b't' => self.view.shows_containers ^= true,
            _ => {}
        }
        false
    }

    /// Without an answer the last figures stay, with the reason.
    fn take(&mut self, answer: Result<Summary>) {
        match answer {
            Ok(summary) => {
                self.summary = summary;
                self.notice = None;
            }
            Err(error) => self.notice = Some(format!("These figures are old: {error:#}")),
        }
    }
}

enum Asked {
    End,
    Stop,
    Redraw,
}

/// Signals that would leave the terminal taken, and that of a new size.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    quit: Signal,
    stop: Signal,
    resize: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            quit: signal(SignalKind::quit())?,
            // Ctrl-Z, which tokio has no name for.
            stop: signal(SignalKind::from_raw(rustix::process::Signal::TSTP.as_raw()))?,
            resize: signal(SignalKind::window_change())?,
        })
    }

    /// Cancel-safe: a signal that arrives between two calls is kept.
    async fn next(&mut self) -> Asked {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => Asked::End,
            _ = self.terminate.recv() => Asked::End,
            _ = self.hang_up.recv() => Asked::End,
            _ = self.quit.recv() => Asked::End,
            _ = self.stop.recv() => Asked::Stop,
            _ = self.resize.recv() => Asked::Redraw,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer() -> Value {
        let pod = |name: &str, cpu: u64| {
            json!({
                "podRef": { "name": name, "namespace": "default", "uid": format!("uid-{name}") },
                "containers": [], "cpu": { "usageNanoCores": cpu }, "kept": true,
            })
        };
        json!({ "node": { "nodeName": "a", "kept": true }, "pods": [pod("web-a", 1), pod("db-a", 2)] })
    }

    #[test]
    fn json_has_every_field_in_the_order_of_the_table() {
        let check = |wanted: Option<&str>, sort: SortKey, expected: &[&str]| {
            let arguments = Arguments {
                pod: wanted.map(str::to_owned),
                sort,
                ..Arguments::default()
            };
            let found = chosen_json(answer(), &arguments).unwrap();
            let pods = found["pods"].as_array().unwrap();
            let names: Vec<&str> = pods
                .iter()
                .map(|pod| pod["podRef"]["name"].as_str().unwrap())
                .collect();
            assert_eq!(names, expected);
            assert_eq!(found["node"]["kept"], true);
            assert!(pods.iter().all(|pod| pod["kept"] == true));
        };
        check(None, SortKey::Cpu, &["db-a", "web-a"]);
        check(Some("web"), SortKey::Cpu, &["web-a"]);
        let arguments = Arguments {
            pod: Some("none".to_owned()),
            ..Arguments::default()
        };
        let error = chosen_json(answer(), &arguments).unwrap_err();
        assert_eq!(error.to_string(), "no pod \"none\" runs on this node");
        assert!(chosen_json(json!({}), &arguments).is_err());
    }

    #[test]
    fn figures_stay_while_there_is_no_answer() {
        let mut shown = Shown {
            view: view(&Arguments::default(), None),
            summary: chosen(answer(), None).unwrap(),
            notice: None,
        };
        shown.take(chosen(answer(), Some("gone")));
        assert_eq!(shown.summary.pods.len(), 2);
        assert_eq!(
            shown.notice.as_deref(),
            Some("These figures are old: no pod \"gone\" runs on this node")
        );
        shown.take(chosen(answer(), Some("web")));
        assert_eq!((shown.summary.pods.len(), shown.notice), (1, None));
    }

    #[test]
    fn keys_change_the_view() {
        let mut shown = Shown {
            view: view(&Arguments::default(), None),
            summary: Summary::default(),
            notice: None,
        };
        for (key, sort) in [
            (b'm', SortKey::Memory),
            (b'd', SortKey::Disk),
            (b'p', SortKey::Pressure),
            (b'n', SortKey::Name),
            (b'c', SortKey::Cpu),
        ] {
            assert!(!shown.pressed(key));
            assert_eq!(shown.view.sort, sort);
        }
        assert!(!shown.pressed(b't') && shown.view.shows_containers);
        assert!(!shown.pressed(b't') && !shown.view.shows_containers);
        assert!(shown.pressed(b'q'));
    }
}
