//! Prometheus with its rules, scraping what a test names, and promtool, which judges pages and rules.
//!
//! Owns its configuration, its process and the questions to it. What the answers mean is the test's business.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::process::Process;
use crate::scope::Scope;
use crate::wait::wait_for;
use crate::{Program, http};

const START_DEADLINE: Duration = Duration::from_secs(60);
/// promtool ends with this where it would have things named differently.
const LINT: i32 = 3;

/// A running Prometheus. It ends with this value; what it has stored goes with the scope.
pub struct Prometheus {
    address: String,
    process: Process,
}

/// One series of an answer, with its newest value.
#[derive(Clone, Debug, Deserialize)]
pub struct Series {
    pub metric: std::collections::BTreeMap<String, String>,
    value: (f64, String),
}

impl Series {
    /// Its value.
    pub fn value(&self) -> Result<f64> {
        let (_, text) = &self.value;
        text.parse().with_context(|| format!("{text} is no number"))
    }
}

impl Prometheus {
    /// Starts it on jobs as its configuration has them, with a file of rules.
    pub fn start(scope: &Scope, interval: Duration, jobs: &[Value], rules: &Path) -> Result<Self> {
        let interval = format!("{}ms", interval.as_millis());
        let configuration = json!({
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": interval,
                "evaluation_interval": interval,
            },
            "rule_files": [rules],
            "scrape_configs": jobs,
        });
        let file = scope.path("prometheus/prometheus.yaml");
        fs::write(&file, serde_json::to_vec_pretty(&configuration)?)
            .context("write Prometheus' configuration")?;
        let address = format!("127.0.0.1:{}", scope.port()?);
        let mut command = Command::new(Program::Prometheus.path()?);
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                scope.path("prometheus/data").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=warn")
            // What it scrapes is on this machine, where no proxy leads to.
            .env_clear();
        let mut process = scope.spawn("prometheus", command)?;
        wait_for("Prometheus is ready", START_DEADLINE, || {
            process.check_running()?;
            let answer = http::get(&address, "/-/ready")?;
            ensure!(answer.status == 200, "{}", answer.text());
            Ok(())
        })?;
        Ok(Self { address, process })
    }

    /// What an expression gives now.
    pub fn query(&self, expression: &str) -> Result<Vec<Series>> {
        let path = format!("/api/v1/query?query={}", encoded(expression));
        let mut answer = self.ask(&path).with_context(|| expression.to_owned())?;
        ensure!(
            answer["resultType"] == "vector",
            "{expression} gives no series: {answer}"
        );
        serde_json::from_value(answer["result"].take()).context("Prometheus' answer")
    }

    /// What it scrapes, with the last error of each.
    pub fn targets(&self) -> Result<Vec<Value>> {
        let mut answer = self.ask("/api/v1/targets?state=active")?;
        serde_json::from_value(answer["activeTargets"].take()).context("Prometheus' targets")
    }

    /// Its own page of metrics.
    pub fn own_metrics(&self) -> Result<String> {
        let answer = http::get(&self.address, "/metrics")?;
        ensure!(answer.status == 200, "/metrics answered {}", answer.status);
        Ok(answer.text())
    }

    /// The end of its log, for a failure's report.
    pub fn log_tail(&self) -> String {
        format!("the end of Prometheus' log:\n{}", self.process.log_tail(20))
    }

    fn ask(&self, path: &str) -> Result<Value> {
        let answer = http::get(&self.address, path)?;
        ensure!(answer.status == 200, "{path}: {}", answer.text());
        let mut answer: Value = serde_json::from_slice(&answer.body).context("Prometheus' answer")?;
        Ok(answer["data"].take())
    }
}

/// What promtool would have named differently on a page, a line each; a page that it cannot read is an error.
pub fn lint(page: &[u8]) -> Result<Vec<String>> {
    let mut command = Command::new(Program::Promtool.path()?);
    command
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().context("start promtool")?;
    let mut input = child.stdin.take().context("promtool has no input")?;
    // It reads everything before it writes anything.
    let written = input.write_all(page);
    drop(input);
    let output = child.wait_with_output().context("wait for promtool")?;
    let problems = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code();
    ensure!(
        matches!(code, Some(0 | LINT)),
        "promtool ended with {code:?}: {problems}"
    );
    written.context("write to promtool")?;
    Ok(problems.lines().map(str::to_owned).collect())
}

/// That promtool finds nothing wrong with a file of rules.
pub fn check_rules(rules: &Path) -> Result<()> {
    let output = Command::new(Program::Promtool.path()?)
        .args(["check", "rules"])
        .arg(rules)
        .output()
        .context("run promtool")?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// A file with this text, in the scope's directory.
pub fn rules_file(scope: &Scope, text: &str) -> Result<PathBuf> {
    let path = scope.path("prometheus/rules.yaml");
    fs::write(&path, text).context("write the rules")?;
    Ok(path)
}

/// As a part of a URL.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_one_word_of_a_url() {
        assert_eq!(encoded("sum(a{b=\"é\"})"), "sum%28a%7Bb%3D%22%C3%A9%22%7D%29");
    }
}
