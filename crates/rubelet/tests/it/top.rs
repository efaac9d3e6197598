//! `rubelet top` beside a running node, on a terminal and without one.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{pod, server};
use rubelet_testbed::node::{Bed, DEADLINE, Kubelet, Options};
use rubelet_testbed::wait::wait_for;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;

const TAKEN: &str = "\x1b[?1049h\x1b[?25l";
const GIVEN_BACK: &str = "\x1b[?25h\x1b[?1049l";
const CTRL_C: &[u8] = b"\x03";
const CTRL_Z: &[u8] = b"\x1a";

/// Exit code, output and errors of `rubelet top` with these words, without a terminal.
fn top(root_dir: &Path, words: &[&str]) -> Result<(Option<i32>, String, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_rubelet"))
        .args(["top", "--interval=1"])
        .args(words)
        .arg("--root-dir")
        .arg(root_dir)
        .output()?;
    Ok((
        output.status.code(),
        String::from_utf8(output.stdout)?,
        String::from_utf8(output.stderr)?,
    ))
}

/// `rubelet top` on a terminal of its own. Dropping it kills it.
struct Terminal {
    person: File,
    line: File,
    program: Child,
    /// Everything that it has written.
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn start(root_dir: &Path, columns: u16) -> Result<Self> {
        let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).context("open a terminal")?;
        grantpt(&person)?;
        unlockpt(&person)?;
        let name = ptsname(&person, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY;
        let line = File::from(rustix::fs::open(name, flags, Mode::empty())?);
        let person = File::from(person);
        resize(&person, columns)?;
        // A session of its own, whose terminal sends Ctrl-C to it.
        let program = Command::new("setsid")
            .args(["--ctty", "--wait", env!("CARGO_BIN_EXE_rubelet")])
            .args(["top", "--interval=1", "--root-dir"])
            .arg(root_dir)
            .env("TERM", "xterm")
            .stdin(Stdio::from(line.try_clone()?))
            .stdout(Stdio::from(line.try_clone()?))
            .stderr(Stdio::from(line.try_clone()?))
            .spawn()
            .context("start rubelet top")?;
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, seen) = (person.try_clone()?, Arc::clone(&written));
        // It ends with the terminal's last user.
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = reader.read(&mut piece) {
                seen.lock().unwrap().extend_from_slice(&piece[..length]);
            }
        });
        Ok(Self {
            person,
            line,
            program,
            written,
        })
    }

    fn press(&self, keys: &[u8]) -> Result<()> {
        Ok((&self.person).write_all(keys)?)
    }

    fn all(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// The newest whole screen, as lines.
    fn screen(&self) -> Result<Vec<String>> {
        let all = self.all();
        let (whole, _) = all.rsplit_once("\x1b[J").context("nothing is drawn yet")?;
        let (_, last) = whole.rsplit_once("\x1b[H").context("no beginning")?;
        let lines = last.split('\n').map(|line| line.trim_end_matches('\r'));
        Ok(lines
            .map(|line| line.trim_end_matches("\x1b[K").to_owned())
            .collect())
    }

    fn wait_for_line(&self, what: &str, is_it: impl Fn(&str) -> bool) -> Result<()> {
        wait_for(what, DEADLINE, || {
            let lines = self.screen()?;
            ensure!(lines.iter().any(|line| is_it(line)), "{lines:#?}");
            Ok(())
        })
    }

    /// It has ended without an error, and the terminal is as it was.
    fn wait_for_end(&mut self) -> Result<()> {
        let program = &mut self.program;
        wait_for("it ends", DEADLINE, || {
            let status = program.try_wait()?.context("it runs")?;
            ensure!(status.success(), "{status}");
            Ok(())
        })?;
        wait_for("the terminal is given back", DEADLINE, || {
            ensure!(self.all().ends_with(GIVEN_BACK), "{:?}", self.all());
            Ok(())
        })?;
        self.check_shown_keys()
    }

    fn check_shown_keys(&self) -> Result<()> {
        let modes = tcgetattr(&self.line)?.local_modes;
        ensure!(
            modes.contains(LocalModes::ECHO | LocalModes::ICANON),
            "keys are not shown: {modes:?}"
        );
        Ok(())
    }

    /// What a shell does for `fg`.
    fn go_on(&self) -> Result<()> {
        let id = Pid::from_child(&self.program);
        wait_for("it is stopped", DEADLINE, || {
            let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
            ensure!(status.contains("State:\tT"), "{status}");
            Ok(())
        })?;
        Ok(kill_process(id, Signal::CONT)?)
    }
}

fn resize(person: &File, columns: u16) -> Result<()> {
    let size = Winsize {
        ws_col: columns,
        ws_row: 20,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(person, size)?)
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // What has ended already needs no signal.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

#[test]
fn it_shows_what_pods_use_without_an_api_server() {
    in_scope("top", async |scope| {
        let kubelet = Kubelet::Rubelet(env!("CARGO_BIN_EXE_rubelet").into());
        let mut bed = Bed::start(scope, Flavour::Debian, Options::new(kubelet)).await?;
        let root_dir = bed.node.root_dir();
        let root = root_dir.as_path();
        bed.node
            .write("web", &pod("web").container(server("main", &[])).json())?;
        bed.node.wait_until_ready("web").await?;
        let name = format!("default/{}", bed.node.pod_name("web"));

        // Without a terminal: one table.
        let (code, table, errors) = top(root, &["--containers"])?;
        ensure!((code, errors.as_str()) == (Some(0), ""), "{code:?} {errors}");
        ensure!(!table.contains('\x1b'), "{table:?}");
        let first = format!("Node {}: 1 pod, 1 container, by cpu\n", bed.node.name());
        ensure!(table.starts_with(&first), "{table}");
        let cells = |begin: &str| -> Result<Vec<String>> {
            let line = table.lines().find(|line| line.trim_start().starts_with(begin));
            let line = line.with_context(|| format!("no {begin} in {table}"))?;
            Ok(line.split_whitespace().map(str::to_owned).collect())
        };
        for begin in [name.as_str(), "main "] {
            let cells = cells(begin)?;
            ensure!(cells[1].ends_with('m'), "{cells:?}");
            ensure!(cells[2].ends_with("Ki") || cells[2].ends_with("Mi"), "{cells:?}");
        }
        ensure!(cells("cpu ")?.len() == 5 && cells("disk ")?[3] != "-", "{table}");

        // For programs: the whole summary.
        let (code, json, errors) = top(root, &["web", "-o", "json"])?;
        ensure!(code == Some(0), "{errors}");
        let json: Value = serde_json::from_str(&json)?;
        ensure!(
            json["pods"][0]["podRef"]["name"] == bed.node.pod_name("web").as_str(),
            "{json}"
        );
        ensure!(json["pods"][0]["memory"]["workingSetBytes"].is_u64(), "{json}");
        let (code, out, errors) = top(root, &["none"])?;
        ensure!(
            (code, out.as_str()) == (Some(1), "")
                && errors == "rubelet top: no pod \"none\" runs on this node\n",
            "{code:?} {out} {errors}"
        );

        // On a terminal it refreshes, follows keys and the window, and leaves no trace.
        let mut terminal = Terminal::start(root, 100)?;
        terminal.wait_for_line("the pod is shown", |line| line.starts_with(&name))?;
        ensure!(terminal.all().starts_with(TAKEN), "{:?}", terminal.all());
        terminal.wait_for_line("it is refreshed", |line| line.starts_with("cpu"))?;
        wait_for("the first notice is gone", DEADLINE, || {
            let lines = terminal.screen()?;
            ensure!(lines.iter().all(|line| !line.contains("average")), "{lines:#?}");
            Ok(())
        })?;
        terminal.press(b"tm")?;
        terminal.wait_for_line("the container is shown", |line| line.starts_with("  main "))?;
        terminal.wait_for_line("it is sorted by memory", |line| line.ends_with(", by memory"))?;
        resize(&terminal.person, 42)?;
        terminal.wait_for_line("the name is cut", |line| {
            line.starts_with("default/") && line.contains('…') && line.chars().count() <= 42
        })?;
        bed.node.kill_nine()?;
        terminal.wait_for_line("rubelet's end is shown", |line| {
            line.starts_with("These figures are old: ")
        })?;
        bed.node.start_again()?;
        wait_for("figures are new again", DEADLINE, || {
            let lines = terminal.screen()?;
            ensure!(lines.iter().all(|line| !line.contains("old")), "{lines:#?}");
            Ok(())
        })?;
        // The shell gets the terminal while it is stopped.
        terminal.press(CTRL_Z)?;
        wait_for("the shell has the terminal", DEADLINE, || {
            ensure!(terminal.all().ends_with(GIVEN_BACK), "{:?}", terminal.all());
            terminal.check_shown_keys()
        })?;
        terminal.go_on()?;
        wait_for("it is drawn again", DEADLINE, || {
            ensure!(!terminal.all().ends_with(GIVEN_BACK));
            Ok(())
        })?;
        terminal.press(CTRL_C)?;
        terminal.wait_for_end()?;
        let mut terminal = Terminal::start(root, 100)?;
        terminal.wait_for_line("the pod is shown", |line| line.starts_with(&name))?;
        terminal.press(b"q")?;
        terminal.wait_for_end()?;

        bed.node.terminate()?;
        let (code, out, errors) = top(root, &[])?;
        ensure!((code, out.as_str()) == (Some(1), ""), "{code:?} {out}");
        ensure!(
            errors.starts_with("rubelet top: rubelet does not run here: no process listens on "),
            "{errors}"
        );
        Ok(())
    });
}
