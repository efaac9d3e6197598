//! The oracle: upstream's own exported functions behind a pipe, for tests that compare our answers with upstream's.
//!
//! The program is `testbed/oracle`, built on first need and cached by its sources and the Kubernetes version. This module
//! only asks; what the answers mean is the tests' business.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cache::made_once;
use crate::process::spawn_dying_with_us;
use crate::programs::{KUBERNETES, go, go_module_dir, module_version, sources_digest};

/// Where Kubernetes keeps the version that its programs report; hidden metrics are validated against it.
const VERSION_PLACES: [&str; 2] = ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"];

/// A running oracle. It ends with this value, and with the test process however that ends.
pub struct Oracle {
    child: Child,
    requests: BufWriter<ChildStdin>,
    answers: BufReader<ChildStdout>,
    next_id: i64,
}

#[derive(Deserialize)]
struct Answer {
    id: i64,
    output: Option<Value>,
    error: Option<String>,
}

impl Oracle {
    /// Starts one, building it if this machine has not built these sources yet.
    pub fn start() -> Result<Self> {
        let mut command = Command::new(program()?);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn_dying_with_us(command).context("start the oracle")?;
        let requests = child.stdin.take().context("the oracle has no input")?;
        let answers = child.stdout.take().context("the oracle has no output")?;
        Ok(Self {
            child,
            requests: BufWriter::new(requests),
            answers: BufReader::new(answers),
            next_id: 1,
        })
    }

    /// Asks one question. What upstream refuses is an error here only if the operation has no better way to say so.
    pub fn ask(&mut self, op: &str, input: Value) -> Result<Value> {
        let mut answers = self.ask_all(op, vec![input])?;
        answers
            .pop()
            .ok_or_else(|| anyhow!("the oracle gave no answer"))?
    }

    /// Asks the same operation about many inputs, written while the answers are read. The answers are in the inputs' order.
    pub fn ask_all(&mut self, op: &str, inputs: Vec<Value>) -> Result<Vec<Result<Value>>> {
        let first_id = self.next_id;
        let count = inputs.len();
        self.next_id += i64::try_from(count)?;
        let Self {
            requests, answers, ..
        } = self;
        std::thread::scope(|threads| {
            let writer = threads.spawn(move || write_requests(requests, op, first_id, inputs));
            let mut all = Vec::with_capacity(count);
            for id in (first_id..).take(count) {
                all.push(read_answer(answers, op, id)?);
            }
            match writer.join() {
                Ok(written) => written?,
                Err(_) => bail!("the thread that writes to the oracle panicked"),
            }
            Ok(all)
        })
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write_requests(
    requests: &mut BufWriter<ChildStdin>,
    op: &str,
    first_id: i64,
    inputs: Vec<Value>,
) -> Result<()> {
    for (id, input) in (first_id..).zip(inputs) {
        serde_json::to_writer(&mut *requests, &json!({"id": id, "op": op, "input": input}))?;
        requests.write_all(b"\n").context("write to the oracle")?;
    }
    requests.flush().context("write to the oracle")
}

/// The outer error is the pipe's, the inner one is the oracle's answer to this question.
fn read_answer(answers: &mut impl BufRead, op: &str, id: i64) -> Result<Result<Value>> {
    let mut line = String::new();
    answers.read_line(&mut line).context("read from the oracle")?;
    ensure!(!line.is_empty(), "the oracle ended before it answered {op}");
    let answer: Answer = serde_json::from_str(&line).with_context(|| format!("the oracle said {line}"))?;
    ensure!(
        answer.id == id,
        "the oracle answered question {} when asked {id}: {line}",
        answer.id
    );
    Ok(match answer.error {
        Some(error) => Err(anyhow!("{op}: {error}")),
        None => Ok(answer.output.unwrap_or(Value::Null)),
    })
}

/// The program's path; built on first need.
pub fn program() -> Result<PathBuf> {
    let version = module_version(KUBERNETES)?;
    let key = format!(
        "oracle-{version}-{}",
        sources_digest(&go_module_dir().join("oracle"))?
    );
    made_once(&key, "oracle", |out| build(&version, out))
}

fn build(version: &str, out: &Path) -> Result<()> {
    let minor = version.split('.').nth(1).unwrap_or_default();
    let stamps = VERSION_PLACES
        .iter()
        .map(|place| {
            format!(" -X {place}.gitVersion={version} -X {place}.gitMajor=1 -X {place}.gitMinor={minor}")
        })
        .fold("-s -w".to_owned(), |all, stamp| all + &stamp);
    let mut command = Command::new("go");
    command
        .env("CGO_ENABLED", "0")
        .args(["build", "-mod=mod", "-trimpath", "-ldflags", &stamps, "-o"]);
    go(command.arg(out).arg("./oracle"))
}
