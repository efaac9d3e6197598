//! What people see of a node and its pods with kubectl reads as with upstream's kubelet.
//!
//! One cluster has two nodes, one with each kubelet, and the same pods on both; what kubectl prints is compared section by
//! section once everything that differs between any two nodes has been taken out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use rubelet_testbed::cluster::Cluster;
use rubelet_testbed::control_plane::Options;
use rubelet_testbed::in_scope;
use rubelet_testbed::node::manifest::{Manifest, UNTIL_TERM, pause, pod, shell, with};
use rubelet_testbed::node::{Kubelet, PodFacts};
use serde_json::{Value, json};

/// What differs on purpose: the object, the section, a part of the line, and why.
const KNOWN: [(&str, &str, &str, &str); 4] = [
    (
        "describe node",
        "Events",
        "InvalidDiskCapacity",
        "upstream looks for the image file system before it knows it",
    ),
    (
        "get events of the node",
        "rows",
        "InvalidDiskCapacity",
        "the same",
    ),
    (
        "describe pod no-volume",
        "Events",
        "Unable to attach or mount volumes",
        "upstream tells once more after two minutes what it has told before",
    ),
    (
        "get events",
        "rows",
        "Unable to attach or mount volumes",
        "the same",
    ),
];

/// What a pod has to be before it is looked at.
enum Settled {
    Ready,
    Phase(&'static str),
    Waiting(&'static str),
    /// An event of this reason.
    Told(&'static str),
}
use Settled::{Phase, Ready, Told, Waiting};

/// A pod that runs and is looked at after it has been deleted.
const DELETED: &str = "deleted";

fn never(name: &str, script: &str) -> Manifest {
    pod(name)
        .container(shell("main", script))
        .spec("restartPolicy", json!("Never"))
}

fn pods() -> Vec<(Manifest, Settled)> {
    let mut running = running_pods();
    running.extend(failing_pods());
    running
}

fn running_pods() -> Vec<(Manifest, Settled)> {
    let exec =
        |words: &[&str]| json!({ "exec": { "command": words }, "periodSeconds": 1, "failureThreshold": 1 });
    let mut plain = with(
        pause("main"),
        "env",
        json!([{ "name": "A", "value": "b" },
        { "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
        { "name": "C", "valueFrom": { "configMapKeyRef": { "name": "settings", "key": "c" } } }]),
    );
    plain["resources"] = json!({ "requests": { "cpu": "10m" }, "limits": { "memory": "32Mi" } });
    plain["ports"] = json!([{ "name": "web", "containerPort": 80 }]);
    plain["volumeMounts"] = json!([{ "name": "settings", "mountPath": "/settings", "readOnly": true }]);
    let equal = json!({ "limits": { "cpu": "20m", "memory": "32Mi" } });
    // Fails as long as the container has not been restarted.
    let script = format!("test -e /d/old && touch /d/ok; touch /d/old; {UNTIL_TERM}");
    let mut alive = with(
        shell("main", &script),
        "livenessProbe",
        exec(&["test", "-e", "/d/ok"]),
    );
    alive["livenessProbe"]["initialDelaySeconds"] = json!(2);
    alive["livenessProbe"]["timeoutSeconds"] = json!(30);
    alive["volumeMounts"] = json!([{ "name": "d", "mountPath": "/d" }]);
    let refused = json!({ "httpGet": { "port": 81, "path": "/healthy" }, "periodSeconds": 1 });
    vec![
        (
            pod("plain")
                .metadata("labels", json!({ "app": "plain" }))
                .metadata("annotations", json!({ "note": "written" }))
                .container(plain)
                .spec(
                    "volumes",
                    json!([{ "name": "settings", "configMap": { "name": "settings" } }]),
                ),
            Ready,
        ),
        (
            pod("host")
                .container(with(pause("main"), "resources", equal))
                .spec("hostNetwork", json!(true)),
            Ready,
        ),
        (
            pod("inits")
                .init(shell("first", "true"))
                .init(with(
                    shell("beside", UNTIL_TERM),
                    "restartPolicy",
                    json!("Always"),
                ))
                .container(pause("main")),
            Ready,
        ),
        (
            pod("unready").container(with(pause("main"), "readinessProbe", refused)),
            Told("Unhealthy"),
        ),
        (
            pod("revived")
                .container(alive)
                .spec("volumes", json!([{ "name": "d", "emptyDir": {} }])),
            Told("Killing"),
        ),
        (pod(DELETED).container(pause("main")), Ready),
        (never("succeeded", "exit 0"), Phase("Succeeded")),
    ]
}

fn failing_pods() -> Vec<(Manifest, Settled)> {
    let missing =
        json!([{ "name": "A", "valueFrom": { "configMapKeyRef": { "name": "missing", "key": "a" } } }]);
    let mut nothing = shell("main", "");
    nothing["command"] = json!(["nothing-of-this-name"]);
    // By then the shell listens to signals.
    let hook = json!({ "postStart": { "exec": { "command": ["sh", "-c", "sleep 1; exit 3"] } } });
    let image = with(pause("main"), "image", json!("nowhere.test/none:1"));
    let many = json!({ "requests": { "cpu": "1000" } });
    let root = json!({ "runAsNonRoot": true });
    // Once it is started again at once, and once after a while.
    let twice = format!("for n in 1 2; do test -e /d/$n || {{ touch /d/$n; exit 1; }}; done; {UNTIL_TERM}");
    vec![
        (
            never("failed", "echo why > /dev/termination-log; exit 3"),
            Phase("Failed"),
        ),
        (
            never("bad-init", "true").init(shell("first", "exit 4")),
            Phase("Failed"),
        ),
        (
            never("bad-command", "").spec("containers", json!([nothing])),
            Phase("Failed"),
        ),
        (
            never("bad-hook", "").spec(
                "containers",
                json!([with(shell("main", UNTIL_TERM), "lifecycle", hook)]),
            ),
            Phase("Succeeded"),
        ),
        (
            pod("crashed")
                .container(with(
                    shell("main", &twice),
                    "volumeMounts",
                    json!([{ "name": "d", "mountPath": "/d" }]),
                ))
                .spec("volumes", json!([{ "name": "d", "emptyDir": {} }])),
            Ready,
        ),
        (
            pod("no-image").container(with(image, "imagePullPolicy", json!("Always"))),
            Waiting("ImagePullBackOff"),
        ),
        (
            pod("no-image-here").container(with(pause("main"), "image", json!("nowhere.test/none:1"))),
            Waiting("ErrImageNeverPull"),
        ),
        (
            pod("no-value").container(with(pause("main"), "env", missing)),
            Told("Failed"),
        ),
        (
            pod("as-root").container(with(shell("main", UNTIL_TERM), "securityContext", root)),
            Told("Failed"),
        ),
        (
            pod("no-volume")
                .container(with(
                    pause("main"),
                    "volumeMounts",
                    json!([{ "name": "a", "mountPath": "/a" }]),
                ))
                .spec(
                    "volumes",
                    json!([{ "name": "a", "configMap": { "name": "missing" } }]),
                ),
            Told("FailedMount"),
        ),
        (
            pod("elsewhere")
                .container(pause("main"))
                .spec("nodeSelector", json!({ "kind": "other" })),
            Phase("Failed"),
        ),
        (
            pod("too-large").container(with(pause("main"), "resources", many)),
            Phase("Failed"),
        ),
    ]
}

/// One node with its pods.
struct Side<'a> {
    cluster: &'a Cluster<'a>,
    node: String,
    namespace: &'static str,
}

impl Side<'_> {
    fn api(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client(), self.namespace)
    }

    async fn create_pods(&self) -> Result<()> {
        let client = self.cluster.client();
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": self.namespace } }))?;
        Api::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), self.namespace);
        self.cluster
            .eventually("the service account is there", async || {
                Ok(accounts.get("default").await.map(drop)?)
            })
            .await?;
        let settings: ConfigMap =
            serde_json::from_value(json!({ "metadata": { "name": "settings" }, "data": { "c": "d" } }))?;
        Api::namespaced(client, self.namespace)
            .create(&PostParams::default(), &settings)
            .await?;
        for (manifest, _) in pods() {
            let mut manifest = manifest.json();
            manifest["spec"]["nodeName"] = json!(self.node);
            self.api()
                .create(&PostParams::default(), &serde_json::from_value(manifest)?)
                .await?;
        }
        Ok(())
    }

    async fn settle(&self) -> Result<()> {
        for (manifest, settled) in pods() {
            let manifest: Value = manifest.json();
            let name = manifest["metadata"]["name"].as_str().context("a name")?;
            self.cluster
                .eventually(&format!("{name} in {} is settled", self.namespace), async || {
                    let pod = self.api().get(name).await?;
                    self.check_settled(&pod, &settled)
                        .await
                        .with_context(|| serde_json::to_string(&pod.status).unwrap_or_default())
                })
                .await?;
        }
        let deleted = DeleteParams::default();
        self.api().delete(DELETED, &deleted).await?;
        self.cluster
            .eventually("the deleted pod is gone", async || {
                ensure!(self.api().get_opt(DELETED).await?.is_none(), "it is there");
                Ok(())
            })
            .await
    }

    async fn check_settled(&self, pod: &Pod, settled: &Settled) -> Result<()> {
        match settled {
            Ready => pod.check_ready(),
            Phase(phase) => pod.check_phase(phase),
            Waiting(reason) => {
                let waiting = pod.waiting("main")?;
                ensure!(waiting.0 == *reason, "{waiting:?}");
                Ok(())
            }
            Told(reason) => {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                let events = self.cluster.events(name).await?;
                let mut own = events
                    .iter()
                    .filter(|event| event.metadata.namespace.as_deref() == Some(self.namespace));
                ensure!(
                    own.any(|event| event.reason.as_deref() == Some(*reason)),
                    "no event {reason}"
                );
                Ok(())
            }
        }
    }

    /// Everything that people look at, by what they look at and section.
    async fn seen(&self) -> Result<Sections> {
        let mut sections = Sections::new();
        let (node, namespace) = (self.node.as_str(), self.namespace);
        let row = self
            .cluster
            .kubectl(&["get", "node", node, "-o", "wide", "--no-headers"])
            .await?;
        // The age is the fourth word.
        let words = self
            .plain(&row)
            .into_iter()
            .flat_map(|line| without_word(&line, 3));
        sections.insert(("get node".into(), "row".into()), words.collect());
        let text = self.cluster.kubectl(&["describe", "node", node]).await?;
        self.add_description(&mut sections, "describe node", &text);
        let text = self
            .cluster
            .kubectl(&["describe", "pods", "-n", namespace])
            .await?;
        for description in text.split("\n\n\n") {
            let name = description.split_whitespace().nth(1).unwrap_or_default();
            self.add_description(&mut sections, &format!("describe pod {name}"), description);
        }
        let text = self
            .cluster
            .kubectl(&["get", "events", "-n", namespace, "--no-headers"])
            .await?;
        let events: BTreeSet<String> = self
            .plain(&text)
            .iter()
            .filter_map(|line| without_word(line, 0))
            .collect();
        sections.insert(("get events".into(), "rows".into()), events.into_iter().collect());
        let selected = format!("--field-selector=involvedObject.kind=Node,involvedObject.name={node}");
        let text = self
            .cluster
            .kubectl(&["get", "events", "-n", "default", &selected, "--no-headers"])
            .await?;
        let events: BTreeSet<String> = self
            .plain(&text)
            .iter()
            .filter_map(|line| without_word(line, 0))
            .collect();
        sections.insert(
            ("get events of the node".into(), "rows".into()),
            events.into_iter().collect(),
        );
        let text = self
            .cluster
            .kubectl(&["get", "pods", "-n", namespace, "-o", "wide", "--no-headers"])
            .await?;
        for line in self.plain(&text) {
            let name = line.split(' ').next().unwrap_or_default().to_owned();
            // The age, and when the last restart was.
            let words: Vec<&str> = line
                .split(' ')
                .filter(|word| !is_age(word) && *word != "ago)")
                .collect();
            sections.insert(("get pod".into(), name), vec![words.join(" ")]);
        }
        Ok(sections)
    }

    fn add_description(&self, sections: &mut Sections, what: &str, text: &str) {
        let mut section = String::new();
        let mut lines: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (raw, line) in text
            .lines()
            .filter(|line| !line.trim().is_empty())
            .zip(self.plain(text))
        {
            if !raw.starts_with(' ') {
                section = line.split(':').next().unwrap_or_default().to_owned();
            }
            lines.entry(section.clone()).or_default().push(line);
        }
        for (section, mut lines) in lines {
            match section.as_str() {
                "Events" => {
                    let events: BTreeSet<String> = lines.iter().map(|line| event_without_age(line)).collect();
                    lines = events.into_iter().collect();
                }
                // The last word of a row is an age.
                "Non-terminated Pods" => lines = lines.iter().map(|line| without_last_age(line)).collect(),
                _ => {}
            }
            sections.insert((what.to_owned(), section), lines);
        }
    }

    /// Lines without what differs between any two nodes: names, ids, addresses and times.
    fn plain(&self, text: &str) -> Vec<String> {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        lines
            .map(|line| {
                let line = line
                    .replace(&self.node, "<node>")
                    .replace(self.namespace, "<namespace>");
                plain_words(&line)
            })
            .collect()
    }
}

/// What is seen: by what is looked at and section.
type Sections = BTreeMap<(String, String), Vec<String>>;

fn plain_words(line: &str) -> String {
    let mut words = Vec::new();
    let mut all = line.split_whitespace();
    while let Some(word) = all.next() {
        if matches!(word, "Mon," | "Tue," | "Wed," | "Thu," | "Fri," | "Sat," | "Sun,") {
            // Day, month, year, time and zone.
            all.nth(4);
            words.push("<time>".to_owned());
        } else {
            words.push(plain_word(word));
        }
    }
    words.join(" ")
}

fn plain_word(word: &str) -> String {
    // Rubelet says its own version behind the one of Kubernetes that it is like.
    if let Some((version, _)) = word.split_once("+rubelet.") {
        return version.to_owned();
    }
    if let Some((start, end)) = word.split_once("kube-api-access-")
        && end.len() >= 5
        && end.is_char_boundary(5)
    {
        return format!("{start}kube-api-access-<random>{}", &end[5..]);
    }
    let mut plain = String::new();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        let length = rest.find(|c| is_part(c) != is_part(first)).unwrap_or(rest.len());
        let (part, after) = rest.split_at(length);
        plain.push_str(plain_part(part));
        rest = after;
    }
    plain
}

fn plain_part(part: &str) -> &str {
    let hexadecimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let groups: Vec<usize> = part.split('-').map(str::len).collect();
    if part.len() == 64 && hexadecimal(part) {
        "<id>"
    } else if groups == [8, 4, 4, 4, 12] && part.split('-').all(hexadecimal) {
        "<uid>"
    } else if part.parse::<Ipv4Addr>().is_ok() {
        "<ip>"
    } else {
        part
    }
}

fn is_age(word: &str) -> bool {
    let word = word.trim_start_matches('(').trim_end_matches(')');
    let mut number = false;
    !word.is_empty()
        && word.ends_with(['s', 'm', 'h'])
        && word.chars().all(|c| {
            let fits = c.is_ascii_digit() || (number && matches!(c, 's' | 'm' | 'h'));
            number = c.is_ascii_digit();
            fits
        })
}

fn without_word(line: &str, index: usize) -> Option<String> {
    let mut words: Vec<&str> = line.split(' ').collect();
    (index < words.len()).then(|| words.remove(index))?;
    Some(words.join(" "))
}

fn without_last_age(line: &str) -> String {
    match line.rsplit_once(' ') {
        Some((start, age)) if is_age(age) => start.to_owned(),
        _ => line.to_owned(),
    }
}

/// An event's row is its type, reason, age (perhaps `2s (x3 over 5s)`), source and message.
fn event_without_age(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    if words.len() < 4 || !is_age(words[2]) {
        return line.to_owned();
    }
    let repeated = words[3].starts_with("(x");
    let source = if repeated { 6 } else { 3 };
    [&words[..2], words.get(source..).unwrap_or_default()]
        .concat()
        .join(" ")
}

fn is_known(object: &str, section: &str, line: &str) -> bool {
    KNOWN
        .iter()
        .any(|known| object.starts_with(known.0) && section == known.1 && line.contains(known.2))
}

/// Every line that only one of them has.
fn differences(theirs: &Sections, ours: &Sections) -> Vec<String> {
    let mut found = Vec::new();
    let keys: BTreeSet<_> = theirs.keys().chain(ours.keys()).collect();
    for key in keys {
        let (object, section) = key;
        let lines = |sections: &Sections| -> Vec<String> {
            let lines = sections.get(key).cloned().unwrap_or_default();
            lines
                .into_iter()
                .filter(|line| !is_known(object, section, line))
                .collect()
        };
        let (theirs, ours) = (lines(theirs), lines(ours));
        if theirs == ours {
            continue;
        }
        found.push(format!("{object}, {section}:"));
        found.extend(
            theirs
                .iter()
                .filter(|line| !ours.contains(line))
                .map(|line| format!("  upstream: {line}")),
        );
        found.extend(
            ours.iter()
                .filter(|line| !theirs.contains(line))
                .map(|line| format!("  ours:     {line}")),
        );
    }
    found
}

#[test]
fn kubectl_shows_what_upstream_shows() {
    in_scope("cluster_goldens", async |scope| {
        let ours = Kubelet::chosen()?;
        let cluster = Cluster::start(scope, Options::default(), Kubelet::Upstream, |options| options).await?;
        let other = cluster.join("ours", ours, |options| options).await?;
        let side = |node: &str, namespace: &'static str| Side {
            cluster: &cluster,
            node: node.to_owned(),
            namespace,
        };
        let (theirs, ours) = (
            side(cluster.node_name(), "side-a"),
            side(other.node.name(), "side-b"),
        );
        tokio::try_join!(theirs.create_pods(), ours.create_pods())?;
        tokio::try_join!(theirs.settle(), ours.settle()).with_context(|| other.node.log_tail())?;
        // Some things are told a moment later by the one than by the other.
        cluster
            .eventually("both read alike", async || {
                let (theirs, ours) = tokio::try_join!(theirs.seen(), ours.seen())?;
                ensure!(theirs.len() > 100, "{theirs:?}");
                let differences = differences(&theirs, &ours);
                ensure!(differences.is_empty(), "\n{}", differences.join("\n"));
                Ok(())
            })
            .await
    });
}

#[test]
fn what_differs_between_any_two_nodes_is_taken_out() {
    let check = |line: &str, expected: &str| assert_eq!(plain_words(line), expected);
    check(
        "Start Time:   Mon, 16 Nov 2026 10:46:22 +0000",
        "Start Time: <time>",
    );
    check("IP:  10.0.0.7", "IP: <ip>");
    check("Version: v1.2.3+rubelet.0.1.0", "Version: v1.2.3");
    check(
        "Get \"http://10.0.0.7:81/healthy\": dial tcp 10.0.0.7:81: no",
        "Get \"http://<ip>:81/healthy\": dial tcp <ip>:81: no",
    );
    check(
        "/x from kube-api-access-abc2d (ro)",
        "/x from kube-api-access-<random> (ro)",
    );
    check("pod a_b(0f0f0f0f-0000-4000-8000-00000000000a)", "pod a_b(<uid>)");
    assert_eq!(
        event_without_age("Normal Pulled 3s kubelet spec.x: done"),
        "Normal Pulled kubelet spec.x: done"
    );
    assert_eq!(
        event_without_age("Warning BackOff 3s (x2 over 1m5s) kubelet no"),
        "Warning BackOff kubelet no"
    );
    assert_eq!(without_last_age("a b 0 (0%) 2m3s"), "a b 0 (0%)");
    assert!(!is_age("s") && !is_age("10") && is_age("1h2m"));
}
