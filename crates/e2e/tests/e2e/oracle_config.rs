//! Generated configurations and command lines: accepted or refused alike, and the same after defaults.

use anyhow::{Context, Result};
use rubelet_config::kubelet_configuration::HostFacts;
use rubelet_config::load::{Invocation, load};
use rubelet_goldens::generate;
use rubelet_goldens::{configuration, field_values};
use rubelet_testbed::Scope;
use rubelet_testbed::oracle::Oracle;
use serde_json::{Value, json};

use crate::oracle_ours::{Differences, RealFiles, Seeded, our_merge, our_verdict, seeds, upstream_verdict};

const GENERATED: u64 = 10_000;
const MUTATED: u64 = 4_000;

/// Asks upstream about every text and compares whether it is accepted, with how many problems, and what it becomes.
fn compare(texts: &[(u64, String)]) -> Result<()> {
    let mut oracle = Oracle::start()?;
    let questions: Vec<Value> = texts.iter().map(|(_, text)| json!({"text": text})).collect();
    let decoded = oracle.ask_all("config.decode", questions.clone())?;
    let validated = oracle.ask_all("config.validate", questions)?;
    let mut differences = Differences::default();
    let mut accepted = 0;
    for (((seed, text), decoded), validated) in texts.iter().zip(decoded).zip(validated) {
        let upstream = upstream_verdict(&decoded?, &validated?);
        let mut ours = our_verdict(text);
        accepted += usize::from(upstream["problems"] == 0);
        // Where something is wrong we may say more than upstream (each part of a taint), never less.
        if upstream["problems"].as_u64() > Some(0)
            && ours["problems"].as_u64() > upstream["problems"].as_u64()
        {
            ours["problems"] = upstream["problems"].clone();
        }
        differences.compare(seed, &json!(text), &upstream, &ours);
    }
    differences.assert_none();
    // A corpus that is all good or all bad would prove little.
    assert!(
        accepted > texts.len() / 10 && accepted < texts.len() * 9 / 10,
        "{accepted} of {} are good",
        texts.len()
    );
    Ok(())
}

#[test]
fn generated_configurations_are_judged_alike() -> Result<()> {
    compare(
        &seeds(GENERATED)
            .map(|seed| (seed, generate::configuration(seed).to_string()))
            .collect::<Vec<_>>(),
    )
}

/// The same with values that our own tables do not know: bounds, neighbours of bounds, and wrong types.
#[test]
fn mutated_configurations_are_judged_alike() -> Result<()> {
    let fields = field_values();
    compare(
        &seeds(MUTATED)
            .map(|seed| (seed, mutated(&fields, seed).to_string()))
            .collect::<Vec<_>>(),
    )
}

fn mutated(fields: &[(&'static str, Value)], seed: u64) -> Value {
    let mut random = Seeded::new(seed);
    let mut object = json!({});
    for _ in 0..=random.below(5) {
        let (name, values) = random.one_of(fields);
        let values = values.as_array().map_or(&[][..], Vec::as_slice);
        let chosen = random.one_of(values).clone();
        object[*name] = if random.below(3) == 0 {
            neighbour(chosen, &mut random)
        } else {
            chosen
        };
    }
    configuration(&object)
}

/// A value near the given one, sometimes of another type.
fn neighbour(value: Value, random: &mut Seeded) -> Value {
    if random.below(12) == 0 {
        return random
            .one_of(&[
                json!(null),
                json!(true),
                json!(1),
                json!(1.5),
                json!("x"),
                json!([]),
                json!({}),
                json!([1]),
            ])
            .clone();
    }
    match value {
        Value::Number(number) => match number.as_i64() {
            Some(whole) => {
                let step = i64::try_from(random.below(7)).unwrap_or(0) - 3;
                json!(whole.saturating_add(step))
            }
            None => json!(number.as_f64().unwrap_or_default() + 0.25),
        },
        Value::String(text) => {
            let extra = *random.one_of(&["", " ", "s", "0", "-", "/", ",", "Ki", "1h", "é"]);
            json!(if random.below(2) == 0 {
                format!("{text}{extra}")
            } else {
                format!("{extra}{text}")
            })
        }
        Value::Array(mut items) => {
            if let Some(first) = items.first().cloned() {
                items.push(neighbour(first, random));
            }
            json!(items)
        }
        Value::Object(mut entries) => {
            let names: Vec<String> = entries.keys().cloned().collect();
            if let Some(name) = names.get(random.below(names.len())) {
                let changed = neighbour(entries[name].clone(), random);
                entries.insert(name.clone(), changed);
            }
            json!(entries)
        }
        other @ (Value::Bool(_) | Value::Null) => other,
    }
}

/// Lines of a file in every spelling that YAML has; some do not belong together, some are no YAML. Known to differ and left
/// out: a directive after the content (upstream stops reading there, we refuse) and an end mark before it (the reverse).
const YAML_LINES: &[&str] = &[
    "port: 1234",
    "port: \"1234\"",
    "port: '12'",
    "port: 0x4d2",
    "port: 0o17",
    "port: 1_000",
    "port: 1e3",
    "port: 12.0",
    "port: 12.5",
    "port: +5",
    "port: ~",
    "port: Null",
    "port: .inf",
    "port: .nan",
    "port: !!int 7",
    "port: !!str 7",
    "port: !!float 7",
    "port: 99999999999999999999",
    "maxPods: 010",
    "maxPods: 0b11",
    "maxPods: -0",
    "enableServer: yes",
    "enableServer: On",
    "enableServer: TRUE",
    "enableServer: \"true\"",
    "enableServer: n",
    "clusterDomain: yes",
    "clusterDomain: 5",
    "clusterDomain: 1.0",
    "clusterDomain: null",
    "clusterDomain: 2020-01-01",
    "clusterDomain: |\n  a\n  b",
    "clusterDomain: >-\n  a\n  b",
    "clusterDomain: \"a\\tb\\u0041\"",
    "clusterDomain: 'it''s'",
    "clusterDomain: a: b",
    "clusterDomain: a #b",
    "clusterDomain: @x",
    "clusterDomain: \"x",
    "clusterDNS:\n- 1.1.1.1\n- 2.2.2.2",
    "clusterDNS: [1.1.1.1, 2.2.2.2]",
    "clusterDNS: [1.1.1.1,]",
    "clusterDNS: - x",
    "clusterDNS: &a [1.1.1.1]",
    "tlsCipherSuites: *a",
    "evictionHard: {memory.available: 1Gi}",
    "evictionHard:\n  memory.available: 1Gi\n  nodefs.available: 5%",
    "evictionHard: {<<: {a: b}}",
    "evictionHard: {1: x}",
    "evictionHard: {a: 1}",
    "evictionHard: {true: x}",
    "evictionHard: {~: x}",
    "evictionHard: {a: b, a: c}",
    "? port\n: 5",
    "\"port\": 6",
    "'port': 7",
    "port : 8",
    "syncFrequency: 1m",
    "syncFrequency: 60",
    "authentication:\n  webhook:\n    enabled: true",
    "authentication:\n\twebhook: {}",
    "# comment",
    "---",
    "unknown: {deep: [1, {a: b}]}",
    "Port: 5",
    "memoryThrottlingFactor: 5e-1",
    "memoryThrottlingFactor: .5",
    "reservedMemory:\n- numaNode: 0\n  limits:\n    memory: 1.5Gi",
    "logging:\n  verbosity: 3\n  flushFrequency: 1000000000",
    "featureGates: {MemoryQoS: off}",
    "featureGates: {MemoryQoS: false}",
    "staticPodURLHeader: {a: [b]}",
    "oomScoreAdj: -999",
    "kind: KubeletConfiguration",
    "  port: 5",
    "port: {",
    "]",
];
const YAML_FILES: u64 = 4_000;

/// Values that JSON cannot hold. Known to differ and left out: with the same field set again later, upstream never looks at
/// the earlier value, we refuse it.
const NOT_JSON: &[&str] = &["port: .inf", "port: .nan", "evictionHard: {~: x}"];

fn may_stand_with(line: &str, others: &[&str]) -> bool {
    let field = |line: &str| {
        let start = line.trim_start_matches(|c: char| !c.is_alphabetic());
        start
            .chars()
            .take_while(|c| c.is_alphanumeric())
            .collect::<String>()
    };
    let mut same_field = others
        .iter()
        .filter(|other| field(other) == field(line))
        .peekable();
    same_field.peek().is_none()
        || (!NOT_JSON.contains(&line) && !same_field.any(|other| NOT_JSON.contains(other)))
}

#[test]
fn yaml_is_read_alike() -> Result<()> {
    let text = |seed| {
        let mut random = Seeded::new(seed);
        let mut lines = vec![
            "apiVersion: kubelet.config.k8s.io/v1beta1",
            "kind: KubeletConfiguration",
        ];
        for _ in 0..=random.below(3) {
            let line = *random.one_of(YAML_LINES);
            let place = random.below(lines.len() + 1);
            if may_stand_with(line, &lines) {
                lines.insert(place, line);
            }
        }
        let end = *random.one_of(&["\n", "", "\r\n", "\n\n"]);
        lines.join("\n") + end
    };
    compare(
        &seeds(YAML_FILES)
            .map(|seed| (seed, text(seed)))
            .collect::<Vec<_>>(),
    )
}

const MERGED: u64 = 2_000;

#[test]
fn drop_ins_are_merged_alike() -> Result<()> {
    // Known to differ and left out: upstream passes a drop-in's numbers through a float and prints them anew, so that a
    // quantity written as a number beyond 64 bits comes out in another spelling of the same amount.
    let cases: Vec<Vec<String>> = seeds(MERGED)
        .map(|seed| {
            (0..3)
                .map(|part| generate::configuration(3 * seed + part).to_string())
                .collect()
        })
        .map(|texts: Vec<String>| texts.into_iter().map(|text| text.replace("1e+20", "1")).collect())
        .collect();
    let questions = cases
        .iter()
        .map(|texts| json!({"text": texts[0], "dropins": texts[1..]}));
    let answers = Oracle::start()?.ask_all("config.merge", questions.collect())?;
    let mut differences = Differences::default();
    let mut accepted = 0;
    for ((seed, texts), answer) in seeds(MERGED).zip(&cases).zip(answers) {
        let answer = answer?;
        let upstream = if answer["ok"] == true {
            answer["config"].clone()
        } else {
            json!("refused")
        };
        accepted += usize::from(answer["ok"] == true);
        differences.compare(
            seed,
            &json!(texts),
            &upstream,
            &our_merge(texts).unwrap_or(json!("refused")),
        );
    }
    differences.assert_none();
    assert!(
        accepted > cases.len() / 10,
        "only {accepted} of {} are good",
        cases.len()
    );
    Ok(())
}

/// Command lines, with `{dir}` for the scope's directory: every flag kind, precedence, files and drop-ins.
const COMMAND_LINES: &[&[&str]] = &[
    &[],
    &["--port=1234", "--v=3"],
    &["--port", "1234", "-v", "3"],
    &["--max_pods=5", "--max-pods=6"],
    &["--node-labels=a=b,c=d", "--node-ip=1.2.3.4"],
    &[
        "--cluster-dns=1.1.1.1",
        "--cluster-dns=2.2.2.2,3.3.3.3",
        "--cluster-domain=x",
    ],
    &[
        "--eviction-hard=memory.available<1Gi",
        "--eviction-soft=nodefs.available<10%",
        "--eviction-soft-grace-period=nodefs.available=1m",
    ],
    &["--system-reserved=cpu=1,memory=1Gi", "--kube-reserved=cpu=100m"],
    &[
        "--feature-gates=MemoryQoS=false",
        "--feature-gates=EventedPLEG=true",
    ],
    &["--register-with-taints=a=b:NoSchedule,c:NoExecute"],
    &[
        "--tls-cipher-suites=TLS_AES_128_GCM_SHA256",
        "--tls-min-version=VersionTLS13",
    ],
    &[
        "--logging-format=json",
        "--vmodule=a=1,b*=2",
        "--log-flush-frequency=7s",
    ],
    &[
        "--sync-frequency=90s",
        "--cpu-cfs-quota-period=50ms",
        "--runtime-request-timeout=1h",
    ],
    &[
        "--anonymous-auth=false",
        "--authorization-mode=Webhook",
        "--authentication-token-webhook",
    ],
    &["--allowed-unsafe-sysctls=net.*,kernel.msg*"],
    &["--reserved-memory=0:memory=1Gi,hugepages-2Mi=4Mi;1:memory=2Gi"],
    &["--manifest-url-header=a:b,a:c,d:e", "--manifest-url=http://x"],
    &["--enforce-node-allocatable=", "--cgroups-per-qos=false"],
    &["--pod-infra-container-image=x"],
    &["--config={dir}/empty.yaml"],
    &["--config={dir}/full.yaml"],
    &[
        "--config={dir}/full.yaml",
        "--port=1",
        "--feature-gates=EventedPLEG=false",
        "--eviction-hard=nodefs.available<1%",
    ],
    &[
        "--config={dir}/full.yaml",
        "--cluster-dns=9.9.9.9",
        "--vmodule=z=9",
        "--system-reserved=cpu=2",
    ],
    &["--config={dir}/merge-eviction.yaml"],
    &["--config-dir={dir}/conf.d"],
    &["--config={dir}/empty.yaml", "--config-dir={dir}/conf.d"],
    &[
        "--config={dir}/full.yaml",
        "--config-dir={dir}/conf.d",
        "--max-pods=7",
    ],
    &["--config={dir}/absent.yaml"],
    &["--config={dir}/bad.yaml"],
    &["--nope"],
    &["--port=x"],
    &["--port"],
    &["argument"],
    &["--max-pods=-1"],
    &["--feature-gates=Nope=true"],
    &["--feature-gates=MemoryQoS"],
    &["--node-labels=kubernetes.io/x=y"],
    &["--register-with-taints=a"],
    &["--eviction-hard=x"],
    &["--sync-frequency=1"],
    &["--address=x"],
    &["--reserved-memory=x"],
];

const FILES: &[(&str, &str)] = &[
    ("empty.yaml", ""),
    (
        "full.yaml",
        "port: 1111\nmaxPods: 11\nclusterDNS: [1.1.1.1]\nevictionHard: {memory.available: 2Gi}\nfeatureGates: {MemoryQoS: false, EventedPLEG: true}\n\
         staticPodPath: manifests\nresolvConf: x/../resolv.conf\nsystemReserved: {memory: 1Gi}\nlogging: {verbosity: 2, vmodule: [{filePattern: a, verbosity: 1}]}\n",
    ),
    (
        "merge-eviction.yaml",
        "evictionHard: {memory.available: 2Gi}\nmergeDefaultEvictionSettings: true\n",
    ),
    ("bad.yaml", "port: -5\nmaxPods: -1\n"),
    (
        "conf.d/10.conf",
        "port: 2222\nclusterDNS: [2.2.2.2]\nstaticPodPath: relative\n",
    ),
    (
        "conf.d/20.conf",
        "maxPods: 22\nfeatureGates: {PodAndContainerStatsFromCRI: true}\nevictionHard: {nodefs.available: 3%}\n",
    ),
    ("conf.d/sub/05.conf", "port: 3333\n"),
    ("conf.d/ignored.yaml", "port: 4444\n"),
];

#[test]
fn command_lines_give_the_same_configuration() -> Result<()> {
    let scope = Scope::new("oracle_command_lines")?;
    for (name, body) in FILES {
        let text = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{body}");
        std::fs::write(scope.path(name), text).with_context(|| format!("write {name}"))?;
    }
    let dir = scope.dir().display().to_string();
    let mut oracle = Oracle::start()?;
    let mut differences = Differences::default();
    for (index, line) in COMMAND_LINES.iter().enumerate() {
        let arguments: Vec<String> = line.iter().map(|word| word.replace("{dir}", &dir)).collect();
        let answer = oracle.ask("config.effective", json!({"args": arguments}))?;
        let upstream = if answer["ok"] == true {
            json!({"config": answer["config"]})
        } else {
            json!("refused")
        };
        let ours = match load(&arguments, &RealFiles, HostFacts { cgroup_v2: true }) {
            Ok(Invocation::Run(settings)) => json!({"config": settings.configuration().to_configz()}),
            Ok(Invocation::Print(text)) => json!({"printed": text}),
            Err(_) => json!("refused"),
        };
        differences.compare(index, &json!(line), &upstream, &ours);
    }
    differences.assert_none();
    Ok(())
}
