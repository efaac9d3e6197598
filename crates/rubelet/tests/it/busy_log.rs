//! A log that a container writes as fast as the runtime takes it, rotated and followed.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use k8s_openapi::jiff;
use rubelet_testbed::Scope;
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::node::manifest::{pod, shell, with};
use rubelet_testbed::node::{Bed, DEADLINE, Kubelet, Node, Options, PodFacts};
use rubelet_testbed::wait::wait_for;
use serde_json::{Value, json};

/// Large enough that a machine that is busy with other tests has time to rotate before a file has doubled.
const MAX_SIZE_BYTES: u64 = 4 << 20;
/// About ten files of that size.
const LINES: u64 = 800_000;

/// The numbers that a follower gets, until the container has ended, which it does when the last one was seen: a runtime may lose
/// what is on its way when a container ends.
fn follow(node: &Node, pod: &str, end: PathBuf) -> Result<std::thread::JoinHandle<Result<Vec<u64>>>> {
    let configuration: Value = serde_json::from_slice(&fs::read(node.dir().join("kubelet.yaml"))?)?;
    let mut client = Command::new("openssl")
        .args(["s_client", "-quiet", "-connect"])
        .arg(format!("127.0.0.1:{}", configuration["port"]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("run openssl")?;
    let mut input = client.stdin.take().context("no input")?;
    let name = node.pod_name(pod);
    write!(
        input,
        "GET /containerLogs/default/{name}/main?follow=true HTTP/1.0\r\n\r\n"
    )?;
    input.flush()?;
    let mut output = BufReader::new(client.stdout.take().context("no output")?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        ensure!(output.read_line(&mut head)? > 0, "no answer: {head}");
    }
    ensure!(head.starts_with("HTTP/1.0 200"), "{head}");
    let mut first = String::new();
    output.read_line(&mut first)?;
    ensure!(first == "ready\n", "{first}");
    Ok(std::thread::spawn(move || {
        let numbers = output
            .lines()
            .map(|line| {
                let number = line?.parse()?;
                if number == LINES {
                    fs::write(&end, "")?;
                }
                Ok(number)
            })
            .collect::<Result<Vec<u64>>>();
        drop(input);
        client.wait()?;
        numbers
    }))
}

/// The text of a log file, compressed or not.
fn text_of(path: &Path) -> Result<String> {
    let mut file = File::open(path)?;
    let mut text = String::new();
    if path.extension().is_some_and(|end| end == "gz") {
        flate2::read::GzDecoder::new(file).read_to_string(&mut text)?;
    } else {
        file.read_to_string(&mut text)?;
    }
    Ok(text)
}

/// Every file of the one log in a directory, oldest first.
pub(crate) fn files(directory: &Path) -> Result<Vec<String>> {
    let mut names: Vec<String> = fs::read_dir(directory)?
        .map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default()))
        .collect::<Result<_>>()?;
    names.sort_by(|a, b| a.trim_end_matches(".gz").cmp(b.trim_end_matches(".gz")));
    let log = names
        .iter()
        .position(|name| name.ends_with(".log"))
        .context("no log")?;
    let log = names.remove(log);
    names.push(log);
    Ok(names)
}

fn check_numbers(what: &str, numbers: &[u64]) -> Result<()> {
    let gaps: Vec<&[u64]> = numbers.windows(2).filter(|pair| pair[1] != pair[0] + 1).collect();
    let ends = (numbers.first().copied(), numbers.last().copied());
    ensure!(
        gaps.is_empty() && ends == (Some(1), Some(LINES)),
        "{what}: {} lines, {ends:?}, gaps: {gaps:?}",
        numbers.len()
    );
    Ok(())
}

/// Between two times of a log.
fn seconds_between(first: Option<&str>, last: Option<&str>) -> Result<f64> {
    let time = |text: Option<&str>| -> Result<jiff::Timestamp> { Ok(text.context("no time")?.parse()?) };
    Ok(time(last)?.duration_since(time(first)?).as_secs_f64())
}

/// No line is lost, on the disk or on its way to the follower, and no file grows to more than twice the limit.
pub(crate) async fn rotated_and_followed(scope: &Scope, flavour: Flavour, kubelet: Kubelet) -> Result<()> {
    let options = Options::new(kubelet)
        .with("containerLogMaxSize", json!(MAX_SIZE_BYTES.to_string()))
        .with("containerLogMaxFiles", json!(100));
    let bed = Bed::start(scope, flavour, options).await?;
    let node = &bed.node;
    let trigger = scope.path("trigger");
    fs::create_dir(&trigger)?;
    let script = format!(
        "echo ready; until [ -e /trigger/go ]; do sleep 0.1; done; seq 1 {LINES}; \
         until [ -e /trigger/end ]; do sleep 0.1; done"
    );
    let mounts = json!([{ "name": "trigger", "mountPath": "/trigger" }]);
    let busy = pod("busy")
        .spec("restartPolicy", json!("Never"))
        .spec(
            "volumes",
            json!([{ "name": "trigger", "hostPath": { "path": trigger } }]),
        )
        .container(with(shell("main", &script), "volumeMounts", mounts));
    node.write("busy", &busy.json())?;
    node.wait_for_pod("busy", "runs", |pod| pod.running_id("main").map(drop))
        .await?;
    let follower = wait_for("a follower", DEADLINE, || {
        follow(node, "busy", trigger.join("end"))
    })?;
    fs::write(trigger.join("go"), "")?;
    wait_for("the follower has everything", 4 * DEADLINE, || {
        ensure!(follower.is_finished(), "not yet");
        Ok(())
    })?;
    let followed = follower.join().ok().context("the follower panicked")??;

    let uid = node.pod("busy")?.metadata.uid.context("no uid")?;
    let name = node.pod_name("busy");
    let directory = node.pod_logs().join(format!("default_{name}_{uid}/main"));
    let names = wait_for("all but the newest are compressed", DEADLINE, || {
        let names = files(&directory)?;
        let plain = names.iter().filter(|name| !name.ends_with(".gz")).count();
        ensure!(names.len() > 5 && plain == 2, "{names:?}");
        Ok(names)
    })?;
    let mut written = String::new();
    let (mut bytes, mut first, mut last) = (0, None, None);
    for name in &names {
        let text = text_of(&directory.join(name))?;
        println!("{name}: {} bytes of {MAX_SIZE_BYTES}", text.len());
        ensure!(
            text.len() as u64 <= 2 * MAX_SIZE_BYTES,
            "{name} has {} bytes, more than twice its limit",
            text.len()
        );
        bytes += text.len();
        for line in text.lines() {
            let mut parts = line.splitn(4, ' ');
            let (time, _, tag) = (parts.next(), parts.next(), parts.next());
            let content = parts.next().unwrap_or_default();
            last = time.map(str::to_owned);
            if first.is_none() && content == "1" {
                first.clone_from(&last);
            }
            written.push_str(content);
            // The runtime cuts a line in two where it opens its log anew.
            written.push_str(if tag == Some("P") { "" } else { "\n" });
        }
    }
    let took = seconds_between(first.as_deref(), last.as_deref())?;
    let megabytes = f64::from(u32::try_from(bytes)?) / 1e6;
    println!(
        "the runtime wrote {megabytes:.1} MB in {took:.2} s, {:.1} MB/s",
        megabytes / took
    );
    let written: Vec<u64> = written.lines().filter_map(|line| line.parse().ok()).collect();
    check_numbers("on the disk", &written)?;
    check_numbers("followed", &followed)?;
    node.remove("busy")?;
    node.wait_until_gone("busy").await?;
    wait_for("the logs are gone", DEADLINE, || {
        ensure!(!directory.exists(), "still there");
        Ok(())
    })
}
