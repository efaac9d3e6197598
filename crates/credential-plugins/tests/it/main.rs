//! Programs of every kind: good ones, and those that hang, shout, leave others behind or are not there.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "these are tests of an adapter, which has no other edge"
)]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rubelet_credential_plugins::{PluginProgramError, PluginPrograms};
use rubelet_ports::{CredentialPlugins as _, PluginCall, PluginFailure};
use rubelet_testbed::process::write_script;

/// Far beyond what any of these programs needs.
const LONG: Duration = Duration::from_secs(120);

struct Bench {
    directory: tempfile::TempDir,
}

impl Bench {
    /// A plugin that is this shell script.
    fn new(script: &str) -> Self {
        let bench = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        write_script(&bench.directory.path().join("plugin"), script).unwrap();
        bench
    }

    fn call(&self) -> PluginCall {
        PluginCall {
            name: "plugin".to_owned(),
            args: vec!["one".to_owned(), "two words".to_owned()],
            env: vec![
                ("REGISTRY_KEY".to_owned(), "value".to_owned()),
                ("HERE".to_owned(), self.directory.path().display().to_string()),
            ],
            input: b"question\n".to_vec(),
            deadline: LONG,
            max_output_bytes: 1000,
        }
    }

    async fn run(&self, call: PluginCall) -> Result<String, PluginFailure> {
        let programs = PluginPrograms::open(self.directory.path(), ["plugin"]).unwrap();
        programs
            .run(call)
            .await
            .map(|output| String::from_utf8(output).unwrap())
    }

    fn noted_pid(&self) -> Option<i32> {
        let text = fs::read_to_string(self.directory.path().join("pid")).ok()?;
        text.trim().parse().ok()
    }
}

/// Whether the process is there and not only waits to be reaped.
fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONG, "{what} does not come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_gets_its_input_arguments_and_environment() {
    let bench = Bench::new(r#"read line; echo "$line|$1|$2|$REGISTRY_KEY|${PATH:+path}""#);
    let answer = bench.run(bench.call()).await.unwrap();
    assert_eq!(answer, "question|one|two words|value|path\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn input_that_nobody_reads_is_no_failure() {
    let bench = Bench::new("echo answer");
    let mut call = bench.call();
    call.input = vec![b'x'; 1 << 20];
    assert_eq!(bench.run(call).await.unwrap(), "answer\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_has_the_status_and_nothing_that_was_said() {
    let bench = Bench::new("echo out; echo 'a-long-secret' >&2; exit 3");
    let failure = bench.run(bench.call()).await.unwrap_err();
    assert_eq!(failure.reason, "exit status: 3");
    let bench = Bench::new("kill -9 $$");
    let failure = bench.run(bench.call()).await.unwrap_err();
    assert!(failure.reason.contains("signal: 9"), "{failure:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_hangs_is_killed_with_its_children() {
    let bench = Bench::new(
        r#"sleep 1000 & echo $! > "$HERE/pid.tmp"; mv "$HERE/pid.tmp" "$HERE/pid"; echo waiting >&2; wait"#,
    );
    let mut call = bench.call();
    // However slow the machine is: the child has noted itself before the script waits, or it is never started.
    call.deadline = Duration::from_secs(3);
    let failure = bench.run(call).await.unwrap_err();
    assert_eq!(failure.reason, "it has not ended within 3 s");
    if let Some(pid) = bench.noted_pid() {
        until("the end of the child", || !lives(pid)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_any_more_and_the_program_ends() {
    let bench = Bench::new(r#"echo $$ > "$HERE/pid.tmp"; mv "$HERE/pid.tmp" "$HERE/pid"; sleep 1000"#);
    let programs = PluginPrograms::open(bench.directory.path(), ["plugin"]).unwrap();
    let call = bench.call();
    let run = tokio::spawn(async move { programs.run(call).await });
    until("the program's start", || bench.noted_pid().is_some()).await;
    let pid = bench.noted_pid().unwrap();
    assert!(lives(pid));
    run.abort();
    until("the end of the program", || !lives(pid)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_left_behind_holds_nobody_up() {
    let bench = Bench::new(r#"sleep 1000 & echo $! > "$HERE/pid"; echo answer"#);
    assert_eq!(bench.run(bench.call()).await.unwrap(), "answer\n");
    let pid = bench.noted_pid().unwrap();
    until("the end of who was left behind", || !lives(pid)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_words_of_a_filter_count() {
    let bench =
        Bench::new(r#"(while [ ! -e "$HERE/go" ]; do :; done; echo late) & echo early; touch "$HERE/go""#);
    let answer = bench.run(bench.call()).await.unwrap();
    assert!(answer.starts_with("early\n"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_shouts_is_cut_off() {
    let bench = Bench::new("while :; do echo 0123456789012345678901234567890123456789; done");
    let failure = bench.run(bench.call()).await.unwrap_err();
    assert_eq!(failure.reason, "it wrote more than 1000 bytes");
    let bench = Bench::new("i=0; while [ $i -lt 20000 ]; do echo complaint >&2; i=$((i+1)); done; exit 1");
    let failure = bench.run(bench.call()).await.unwrap_err();
    assert_eq!(failure.reason, "exit status: 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_goes_away_is_told() {
    let bench = Bench::new("echo answer");
    let programs = PluginPrograms::open(bench.directory.path(), ["plugin"]).unwrap();
    fs::remove_file(bench.directory.path().join("plugin")).unwrap();
    let failure = programs.run(bench.call()).await.unwrap_err();
    assert!(failure.reason.starts_with("it cannot be run: "), "{failure:?}");
}

#[test]
fn what_is_missing_is_found_at_the_start() {
    let bench = Bench::new("");
    let directory = bench.directory.path();
    fs::write(directory.join("data"), "").unwrap();
    let open = |directory: &Path, name: &str| PluginPrograms::open(directory, [name]).map(drop);
    assert!(open(directory, "plugin").is_ok());
    assert!(matches!(
        open(&directory.join("no"), "plugin"),
        Err(PluginProgramError::NoDirectory(_))
    ));
    assert!(matches!(
        open(directory, "no"),
        Err(PluginProgramError::NoProgram(_))
    ));
    assert!(matches!(
        open(directory, "data"),
        Err(PluginProgramError::NotExecutable(_))
    ));
    assert!(matches!(
        open(directory, "."),
        Err(PluginProgramError::NotExecutable(_))
    ));
}
