//! The commands that end, and how the server takes signals.

use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::server::{Server, get, program};

fn check(arguments: &[&str], code: i32, output: &str) -> Result<()> {
    let got: Output = program(arguments)
        .env_clear()
        .env("B", "2")
        .env("A", "1")
        .output()?;
    let text = String::from_utf8_lossy(&got.stdout).into_owned();
    ensure!(
        (got.status.code(), text.as_str()) == (Some(code), output),
        "{arguments:?}: {got:?}"
    );
    Ok(())
}

#[test]
fn commands_do_what_they_say() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("testserver-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let file = dir.join("note");
    let (dir_text, file_text) = (dir.to_str().context("a path")?, file.to_str().context("a path")?);
    check(&["exit", "42"], 42, "")?;
    check(&["exit", "--after-ms", "1", "--message", "bye", "0"], 0, "bye\n")?;
    check(&["exit", "256"], 64, "")?;
    check(&["env"], 0, "A=1\nB=2\n")?;
    check(&["env", "B"], 0, "2\n")?;
    check(&["env", "C"], 1, "")?;
    check(&["file", "write", file_text, "words"], 0, "")?;
    check(&["file", "read", file_text], 0, "words")?;
    check(&["file", "list", dir_text], 0, "note\n")?;
    check(&["file", "read", "/no/such/file"], 1, "entity not found\n")?;
    check(
        &["memory", "--then", "exit", "--step-bytes", "8192", "16384"],
        0,
        "holding 8192 bytes\nholding 16384 bytes\n",
    )?;
    check(&["dance"], 64, "")?;
    check(&["exit", "1", "--loudly"], 64, "")?;
    std::os::unix::fs::chown(&file, Some(1000), Some(2000))?;
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o640))?;
    check(&["file", "stat", file_text], 0, "file 0640 1000:2000 5 bytes\n")?;
    std::fs::remove_dir_all(dir)?;
    Ok(())
}

#[test]
fn a_term_signal_ends_the_server_with_the_code_asked_for() -> Result<()> {
    let mut server = Server::start(&["--http", "0", "--term-code", "5", "--term-delay-ms", "100"])?;
    server.line("http on ")?;
    server.signal(Signal::TERM)?;
    server.line("signal TERM")?;
    server.line("exit 5")?;
    ensure!(server.wait()?.code() == Some(5));
    Ok(())
}

#[test]
fn signals_are_reported_and_can_be_ignored() -> Result<()> {
    let mut server = Server::start(&["--http", "0", "--on-term", "ignore"])?;
    let address = server.line("http on ")?;
    for (signal, line) in [
        (Signal::USR1, "signal USR1"),
        (Signal::TERM, "signal TERM"),
        (Signal::HUP, "signal HUP"),
    ] {
        server.signal(signal)?;
        server.line(line)?;
    }
    ensure!(get(&address, "/signals")?.1 == "USR1\nTERM\nHUP\n");
    ensure!(server.is_running()?);
    Ok(())
}

/// As process 1 of its own process namespace, pause reaps what others orphaned, and ends when asked to.
#[test]
fn pause_reaps_orphans_and_ends_on_a_term_signal() -> Result<()> {
    let program = program(&[]);
    // The orphan ends only once process 1 is no longer the shell, so that nobody but pause can reap it.
    let orphan = "until readlink /proc/1/exe | grep -q testserver; do sleep 0.01; done";
    let script = format!(
        "orphan=$(sh -c '{orphan} >/dev/null & echo $!')
         (tries=0
          while [ -d /proc/$orphan ] && [ $tries -lt 1000 ]; do tries=$((tries + 1)); sleep 0.01; done
          [ -d /proc/$orphan ] && echo left || echo reaped
          kill -TERM 1) &
         exec {} pause",
        program.get_program().to_string_lossy()
    );
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "sh", "-c", &script])
        .output()?;
    ensure!(output.status.code() == Some(0), "{output:?}");
    ensure!(
        String::from_utf8_lossy(&output.stdout) == "reaped\n",
        "{output:?}"
    );
    Ok(())
}
