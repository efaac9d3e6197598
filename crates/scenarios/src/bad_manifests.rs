//! Manifests that nobody can run: each is told of in one line that names the file, and nothing else suffers.

use std::fs::{self, File};
use std::io::Write;

use anyhow::{Result, ensure};
use serde_json::json;

use super::scenarios;
use super::{until, wait_until_stopped};
use rubelet_testbed::node::manifest::{pause, pod, with};
use rubelet_testbed::node::{Bed, PodFacts, Scenario};

pub(super) const ALL: &[Scenario] = scenarios![
    ten_megabytes,
    zero_bytes,
    binary_noise,
    wrong_type_names_the_field,
    broken_rule_names_the_field,
    reference_to_an_api_object_is_refused,
    half_written_file_is_read_when_it_is_whole,
    last_good_version_keeps_running,
    duplicate_name_runs_once,
    hidden_and_temporary_files_are_left_alone,
];

/// Puts the file there, waits for the line about it, and sees that a good pod beside it runs and goes.
async fn is_told(bed: &Bed<'_>, file: &str, bytes: &[u8], words: &[&str]) -> Result<()> {
    bed.node.write_bytes(file, bytes)?;
    let line = bed.node.wait_for_log(&[file]).await?;
    for word in words {
        ensure!(line.contains(word), "the line does not say {word:?}: {line}");
    }
    ensure!(
        line.len() < 2000,
        "the line has {} characters: {}…",
        line.len(),
        &line[..200]
    );
    let neighbour = format!("beside-{}", file.trim_end_matches(".json"));
    bed.node
        .write(&neighbour, &pod(&neighbour).container(pause("main")).json())?;
    bed.node.wait_until_ready(&neighbour).await?;
    // Upstream tells it with every event that the kernel has for the file.
    if bed.node.kubelet().is_rubelet() {
        let lines: Vec<String> = bed
            .node
            .log_lines(&[file])?
            .into_iter()
            .filter(|line| !line.contains("beside-"))
            .collect();
        ensure!(lines.len() == 1, "more than one line: {lines:?}");
    }
    bed.node.remove(&neighbour)?;
    bed.node.remove_file(file)
}

async fn ten_megabytes(bed: &Bed<'_>) -> Result<()> {
    let mut manifest = pod("huge").container(pause("main")).json();
    manifest["metadata"]["annotations"] = json!({ "filler": "x".repeat(10 << 20) });
    is_told(bed, "ten-megabytes.json", &serde_json::to_vec(&manifest)?, &[]).await
}

async fn zero_bytes(bed: &Bed<'_>) -> Result<()> {
    is_told(bed, "zero-bytes.json", b"", &[]).await
}

async fn binary_noise(bed: &Bed<'_>) -> Result<()> {
    let mut state = 1u32;
    let noise: Vec<u8> = (0..4096)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect();
    is_told(bed, "binary-noise.json", &noise, &[]).await
}

async fn wrong_type_names_the_field(bed: &Bed<'_>) -> Result<()> {
    let manifest = pod("wrong-type")
        .container(pause("main"))
        .spec("hostNetwork", json!("perhaps"))
        .json();
    let words: &[&str] = if bed.node.kubelet().is_rubelet() {
        &["spec.hostNetwork"]
    } else {
        &[]
    };
    is_told(bed, "wrong-type.json", &serde_json::to_vec(&manifest)?, words).await
}

async fn broken_rule_names_the_field(bed: &Bed<'_>) -> Result<()> {
    let container = with(pause("main"), "ports", json!([{ "containerPort": 99_999 }]));
    let manifest = pod("broken-rule").container(container).json();
    let words = ["spec.containers[0].ports[0].containerPort"];
    is_told(bed, "broken-rule.json", &serde_json::to_vec(&manifest)?, &words).await
}

async fn reference_to_an_api_object_is_refused(bed: &Bed<'_>) -> Result<()> {
    let env = json!([{ "name": "X", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }]);
    let manifest = pod("reference").container(with(pause("main"), "env", env)).json();
    is_told(
        bed,
        "reference.json",
        &serde_json::to_vec(&manifest)?,
        &["secrets"],
    )
    .await
}

async fn half_written_file_is_read_when_it_is_whole(bed: &Bed<'_>) -> Result<()> {
    let name = "half-written";
    let text = serde_json::to_vec_pretty(&pod(name).container(pause("main")).json())?;
    let path = bed.node.manifests().join("half-written.json");
    let mut file = File::create(&path)?;
    file.write_all(&text[..text.len() / 2])?;
    file.sync_all()?;
    // The kubelet has seen the half when it has read a file that came later.
    let marker = "after-half-written";
    bed.node
        .write(marker, &pod(marker).container(pause("main")).json())?;
    bed.node.wait_until_ready(marker).await?;
    ensure!(bed.node.pod(name).is_err(), "half a manifest became a pod");
    file.write_all(&text[text.len() / 2..])?;
    drop(file);
    bed.node.wait_until_ready(name).await?;
    bed.node.remove(marker)?;
    bed.node.remove(name)
}

async fn last_good_version_keeps_running(bed: &Bed<'_>) -> Result<()> {
    let name = "last-good";
    let good = pod(name).container(pause("main")).json();
    bed.node.write(name, &good)?;
    let before = bed.node.wait_until_ready(name).await?;
    let mut bad = good.clone();
    bad["spec"]["containers"][0]["image"] = json!("");
    bed.node.write(name, &bad)?;
    bed.node.wait_for_log(&["last-good.json"]).await?;
    let marker = "after-last-good";
    bed.node
        .write(marker, &pod(marker).container(pause("main")).json())?;
    bed.node.wait_until_ready(marker).await?;
    let after = bed.node.wait_until_ready(name).await?;
    ensure!(
        before.uid() == after.uid() && before.running_id("main")? == after.running_id("main")?,
        "it was replaced"
    );
    // The next good version takes over.
    let mut better = good.clone();
    better["metadata"]["labels"] = json!({ "version": "better" });
    bed.node.write(name, &better)?;
    bed.node
        .wait_for_pod(name, "is the next good one", |pod| {
            ensure!(pod.uid() != before.uid(), "it is the old one");
            pod.check_ready()
        })
        .await?;
    wait_until_stopped(bed, before.uid()).await?;
    bed.node.remove(marker)?;
    bed.node.remove(name)
}

async fn duplicate_name_runs_once(bed: &Bed<'_>) -> Result<()> {
    let name = "duplicate";
    let manifest = pod(name).container(pause("main")).json();
    for file in ["duplicate-1", "duplicate-2"] {
        bed.node.write(file, &manifest)?;
    }
    let full = bed.node.pod_name(name);
    let once = async || {
        let sandboxes = bed.view.sandboxes().await?;
        let ready: Vec<_> = sandboxes
            .iter()
            .filter(|sandbox| sandbox.pod == full && sandbox.ready)
            .collect();
        ensure!(ready.len() <= 1, "two of one name: {ready:?}");
        bed.node.pod(name)?.check_ready()
    };
    until("one of them runs", once).await?;
    if bed.node.kubelet().is_rubelet() {
        bed.node.wait_for_log(&["duplicate-2.json"]).await?;
    }
    for file in ["duplicate-1", "duplicate-2"] {
        bed.node.remove(file)?;
    }
    bed.node.wait_until_gone(name).await
}

async fn hidden_and_temporary_files_are_left_alone(bed: &Bed<'_>) -> Result<()> {
    let text = serde_json::to_vec(&pod("hidden").container(pause("main")).json())?;
    fs::write(bed.node.manifests().join(".hidden.json.swp"), &text)?;
    let marker = "after-hidden";
    bed.node
        .write(marker, &pod(marker).container(pause("main")).json())?;
    bed.node.wait_until_ready(marker).await?;
    ensure!(bed.node.pod("hidden").is_err(), "a hidden file became a pod");
    bed.node.remove_file(".hidden.json.swp")?;
    bed.node.remove(marker)
}
