//! The goldens that `make test` checks are what upstream answers today; and the oracle's own manners.

use anyhow::{Context, Result};
use rubelet_goldens::{goldens_dir, render_goldens};
use rubelet_testbed::oracle::Oracle;
use serde_json::json;

#[test]
fn goldens_are_what_the_oracle_answers() -> Result<()> {
    let mut stale = Vec::new();
    for (file, text) in render_goldens()? {
        let path = goldens_dir().join(file);
        let kept = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let differing = kept.lines().zip(text.lines()).find(|(kept, now)| kept != now);
        if kept != text {
            stale.push(format!("{file}: {differing:?}"));
        }
    }
    assert!(
        stale.is_empty(),
        "write the goldens again (`testbed goldens`); they differ from today's answers:\n{}",
        stale.join("\n")
    );
    Ok(())
}

/// A question that cannot be answered is an error of its own; the oracle goes on.
#[test]
fn the_oracle_survives_bad_questions() -> Result<()> {
    let mut oracle = Oracle::start()?;
    for (op, input, expected) in [
        ("nothing", json!({}), "no operation"),
        ("quantity", json!({"typo": 1}), "unknown field"),
        ("quantity", json!({"do": "divide", "a": "1", "b": "1"}), "cannot"),
        (
            "pod.default",
            json!({"pod": {"kind": "Node", "apiVersion": "v1"}}),
            "not a Pod",
        ),
        ("strategicMerge", json!({"type": "v1.Nothing"}), "no type"),
    ] {
        let error = oracle.ask(op, input).expect_err("the question is a bad one");
        assert!(format!("{error:#}").contains(expected), "{op}: {error:#}");
    }
    let answer = oracle.ask(
        "container.hash",
        json!({"container": {"name": "foo", "image": "bar"}}),
    )?;
    assert_eq!(answer, "11a6d6d6");
    Ok(())
}

/// Every operation that no comparison uses yet answers one question that is easy to check by eye.
#[test]
fn the_oracle_answers_about_pods() -> Result<()> {
    let mut oracle = Oracle::start()?;
    let resources =
        json!({"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"},
        "spec": {"containers": [{"name": "c", "image": "i:1", "resources": resources}]}});
    let defaulted = oracle.ask("pod.default", json!({"pod": pod}))?;
    assert_eq!(
        defaulted["spec"]["containers"][0]["imagePullPolicy"],
        "IfNotPresent"
    );
    assert_eq!(oracle.ask("pod.validate", json!({"pod": pod}))?["ok"], true);
    assert_eq!(oracle.ask("qos", json!({"pod": pod}))?, "Burstable");
    let cgroup = json!({"pod": pod, "enforceCPULimits": true, "cpuPeriodUs": 100_000});
    let values = oracle.ask("cgroup.resources", cgroup)?;
    assert_eq!(
        values,
        json!({"cpuShares": 102, "cpuQuota": 100_000, "cpuPeriod": 100_000, "memory": 1_073_741_824})
    );
    let cpu = oracle.ask("cgroup.cpu", json!({"milliCPU": 250, "periodUs": 100_000}))?;
    assert_eq!((&cpu["shares"], &cpu["quota"]), (&json!(256), &json!(25_000)));
    let dns = json!({"pod": pod, "clusterDNS": ["10.0.0.10"], "clusterDomain": "c.l", "resolvConf": "nameserver 1.1.1.1\nsearch x\n"});
    assert_eq!(
        oracle.ask("dns", dns)?["searches"],
        json!(["n.svc.c.l", "svc.c.l", "c.l", "x"])
    );
    let merge = json!({"type": "v1.Pod", "original": {"spec": {"containers": [{"name": "a"}]}}, "patch": {"spec": {"containers": [{"name": "b"}]}}});
    assert_eq!(
        oracle.ask("strategicMerge", merge)?["spec"]["containers"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    assert_eq!(
        oracle.ask("selector", json!({"text": "a=b,c"}))?["canonical"],
        "a=b,c"
    );
    Ok(())
}
