//! `rubelet why` beside a running node.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rubelet_testbed::containerd::Flavour;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{pod, server, with};
use rubelet_testbed::node::{Bed, DEADLINE, Kubelet, Options};
use rubelet_testbed::wait::wait_for;
use serde_json::{Value, json};

/// Exit code, output and errors of `rubelet why` with these words.
fn why(root_dir: &Path, words: &[&str]) -> Result<(Option<i32>, String, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_rubelet"))
        .arg("why")
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

fn why_json(root_dir: &Path, words: &[&str]) -> Result<Value> {
    let (code, out, errors) = why(root_dir, words)?;
    ensure!(code == Some(0), "{code:?} {errors}");
    Ok(serde_json::from_str(&out)?)
}

#[test]
fn it_says_what_each_pod_waits_for() {
    in_scope("why", async |scope| {
        let kubelet = Kubelet::Rubelet(env!("CARGO_BIN_EXE_rubelet").into());
        let mut bed = Bed::start(scope, Flavour::Debian, Options::new(kubelet)).await?;
        let root_dir = bed.node.root_dir();
        let root = root_dir.as_path();
        assert_eq!(why(root, &[])?.1, "No pods on this node.\n");
        bed.node
            .write("web", &pod("web").container(server("main", &[])).json())?;
        let image = json!("rubelet.test/none:1");
        let missing = pod("missing").container(with(server("main", &[]), "image", image));
        bed.node.write("missing", &missing.json())?;
        bed.node.wait_until_ready("web").await?;

        let told = wait_for("the missing image is told", DEADLINE, || {
            let told = why_json(root, &["missing", "-o", "json"])?;
            // The reason stands with what it waits for, or with the error of the try that has just failed.
            let waits_for = &told[0]["waitsFor"];
            ensure!(waits_for.to_string().contains("ErrImageNeverPull"), "{told}");
            Ok(told)
        })?;
        assert_eq!(
            (&told[0]["phase"], &told[0]["namespace"], &told[0]["name"]),
            (
                &json!("Pending"),
                &json!("default"),
                &json!(bed.node.pod_name("missing"))
            )
        );
        assert!(
            told[0]["waitsFor"]["sinceTime"]
                .as_str()
                .is_some_and(|since| since.ends_with('Z')),
            "{told}"
        );
        let (_, table, _) = why(root, &[])?;
        let line = |name: &str| {
            let name = format!("default/{}", bed.node.pod_name(name));
            let found = table.lines().find(|line| line.starts_with(&name));
            found.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        let header = table.lines().next().unwrap_or_default();
        assert_eq!(
            header.split_whitespace().collect::<Vec<_>>(),
            ["NAMESPACE/NAME", "PHASE", "READY", "RESTARTS", "WAITING", "FOR"]
        );
        let web = line("web").context(table.clone())?;
        assert!(web.ends_with("Running 1/1 0 -"), "{web}");
        let missing = line("missing").context(table.clone())?;
        assert!(missing.contains("Pending 0/1 0 "), "{missing}");
        assert!(table.contains("  last error: "), "{table}");

        // By every name.
        let uid = told[0]["uid"].as_str().context("no uid")?;
        let full = bed.node.pod_name("missing");
        for name in [uid, &full, "default/missing", &format!("default/{full}")] {
            let told = why_json(root, &[name, "-o", "json"])?;
            assert_eq!(told.as_array().map(Vec::len), Some(1), "{name}");
        }
        let (code, out, errors) = why(root, &["nobody"])?;
        assert_eq!((code, out.as_str()), (Some(1), ""));
        assert_eq!(errors, "rubelet why: no pod \"nobody\" on this node\n");

        let (code, events, errors) = why(root, &["--events"])?;
        assert_eq!((code, errors.as_str()), (Some(0), ""));
        assert!(
            events.contains("Started") && events.contains("Failed"),
            "{events}"
        );
        let record = why_json(root, &["--record", uid])?;
        assert!(record.to_string().contains(uid), "{record}");
        let (code, _, errors) = why(root, &["--record", "nobody"])?;
        assert_eq!(
            (code, errors.as_str()),
            (Some(1), "rubelet why: no pod has the uid \"nobody\"\n")
        );

        // A manifest that cannot be used is named with its problem, and only without a pod.
        bed.node.write_bytes("broken.yaml", b"kind: Pod\nspec: [")?;
        let table = wait_for("the broken manifest is named", DEADLINE, || {
            let (_, table, _) = why(root, &[])?;
            ensure!(table.contains("\nManifests that cannot be used:\n"), "{table}");
            Ok(table)
        })?;
        let last = table.lines().last().unwrap_or_default();
        assert!(last.contains("/broken") && last.contains(": "), "{table}");
        assert!(!why(root, &["web"])?.1.contains("Manifests"));

        // A pull tells its time.
        let silent = std::net::TcpListener::bind("127.0.0.1:0")?;
        bed.containerd
            .route_registry("silent.test", &silent.local_addr()?.to_string())?;
        let container = with(server("main", &[]), "image", json!("silent.test/app:1"));
        let container = with(container, "imagePullPolicy", json!("IfNotPresent"));
        bed.node.write("slow", &pod("slow").container(container).json())?;
        let words = "image silent.test/app:1 for container main: pulling for ";
        wait_for("the pull is told", DEADLINE, || {
            let told = why_json(root, &["slow", "-o", "json"])?;
            let what = told[0]["waitsFor"]["what"]
                .as_str()
                .context("it waits for nothing")?;
            ensure!(what.starts_with(words) && what.ends_with(" s"), "{what}");
            Ok(())
        })?;

        // A socket that a killed rubelet leaves does not answer, and the next rubelet takes it over.
        bed.node.kill_nine()?;
        let (code, _, errors) = why(root, &[])?;
        assert_eq!(code, Some(1));
        assert!(
            errors.starts_with("rubelet why: rubelet does not run here"),
            "{errors}"
        );
        bed.node.start_again()?;
        assert_eq!(why(root, &[])?.0, Some(0));
        bed.node.terminate()?;
        assert_eq!(why(root, &[])?.0, Some(1));
        Ok(())
    });
}

#[test]
fn wrong_words_are_told_with_the_right_ones() {
    let output = Command::new(env!("CARGO_BIN_EXE_rubelet"))
        .args(["why", "--config", "x"])
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors.contains("\"--config\" is not known") && errors.contains("usage: rubelet why"),
        "{errors}"
    );
    let output = Command::new(env!("CARGO_BIN_EXE_rubelet"))
        .args(["why", "--help"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .starts_with("usage: rubelet why")
    );
}
