//! The command line: every flag of upstream's, and the odd corners of its parser.
//!
//! What is accepted and refused was seen on upstream's own program with the same arguments.

use rubelet_config::flags::{
    self, CommandLine, Definition, FlagProblem, FlagValue, Kind, KubeletFlags, Target,
};
use rubelet_config::version;

use crate::golden;

fn parse(line: &[&str]) -> Result<CommandLine, Vec<FlagProblem>> {
    CommandLine::parse(line)
}

struct GoldenFlag {
    name: String,
    shorthand: Option<char>,
    kind: String,
    default: Option<String>,
    deprecated: bool,
}

fn golden_flags() -> Vec<GoldenFlag> {
    let row = |line: &str| {
        let [name, shorthand, kind, default, status] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("five columns expected: {line}");
        };
        GoldenFlag {
            name: name.to_owned(),
            shorthand: shorthand.chars().next().filter(|letter| *letter != '-'),
            kind: kind.to_owned(),
            default: (default != "-").then(|| default.to_owned()),
            deprecated: status == "deprecated",
        }
    };
    golden("flags.txt").lines().map(row).collect()
}

#[test]
fn the_table_equals_upstreams() {
    let golden = golden_flags();
    assert!(golden.len() > 130, "the golden is complete: {}", golden.len());
    for expected in &golden {
        let flag =
            flags::definition(&expected.name).unwrap_or_else(|| panic!("--{} is missing", expected.name));
        assert_eq!(flag.shorthand, expected.shorthand, "--{}", expected.name);
        assert_eq!(flag.kind.type_name(), expected.kind, "--{}", expected.name);
        assert_eq!(flags::default_text(flag), expected.default, "--{}", expected.name);
        assert_eq!(
            flag.deprecation_warning().is_some(),
            expected.deprecated,
            "--{}",
            expected.name
        );
    }
    let ours: Vec<&str> = flags::definitions()
        .iter()
        .map(|flag| flag.name)
        .filter(|name| !golden.iter().any(|expected| expected.name == *name))
        .collect();
    assert_eq!(ours, ["rubelet-config"], "the only flag of our own");
}

/// A text that every flag of a kind takes.
fn sample(definition: &Definition) -> &'static str {
    match definition.kind {
        Kind::Bool | Kind::Version => "false",
        Kind::Text => "text",
        Kind::Int32 | Kind::Int64 | Kind::Level => "7",
        Kind::Duration => "7m",
        Kind::Ip => "10.1.2.3",
        Kind::List => "a,b",
        Kind::StringMap | Kind::OnePair | Kind::Labels => "a=b",
        Kind::Thresholds => "memory.available<1Gi",
        Kind::BoolMap => "MemoryQoS=false",
        Kind::Headers => "a:b",
        Kind::ReservedMemory => "0:memory=1Gi",
        Kind::Taints => "a=b:NoSchedule",
        Kind::VModule => "a=1",
        Kind::Quantity => "7Ki",
    }
}

#[test]
fn every_flag_is_read_in_all_spellings() {
    for flag in flags::definitions() {
        let text = sample(flag);
        let inline = [format!("--{}={text}", flag.name)];
        let underscores = [format!("--{}={text}", flag.name.replace('-', "_"))];
        let apart = [format!("--{}", flag.name), text.to_owned()];
        let mut spellings = vec![CommandLine::parse(&inline), CommandLine::parse(&underscores)];
        if flag.kind.bare_value().is_none() {
            spellings.push(CommandLine::parse(&apart));
        }
        for spelling in spellings {
            let line = spelling.unwrap_or_else(|problems| panic!("--{}: {problems:?}", flag.name));
            assert!(line.value(flag.name).is_some(), "--{}", flag.name);
            assert_eq!(line.used().count(), 1, "--{}", flag.name);
        }
    }
}

/// `ok`, or a part of the first problem.
fn check(line: &[&str], expect: Result<(), &str>) {
    match (parse(line), expect) {
        (Ok(_), Ok(())) => {}
        (Err(problems), Err(text)) => assert!(
            problems[0].to_string().contains(text),
            "{line:?}: {}",
            problems[0]
        ),
        (Ok(_), Err(text)) => panic!("{line:?} was accepted, expected {text:?}"),
        (Err(problems), Ok(())) => panic!("{line:?} was refused: {problems:?}"),
    }
}

#[test]
fn shapes_of_arguments() {
    for accepted in [
        &["--max_pods=5"][..],
        &["--max-pods", "5"],
        &["--max-pods", "-1"],
        &["--enable-server"],
        &["--enable-server=F"],
        &["-v", "4"],
        &["-v4"],
        &["-v=4"],
        &["--v", "4"],
        &["-hv4"],
        &["-h=false"],
        &["--"],
        &["--hostname-override="],
        &["--hostname-override", "--max-pods"],
    ] {
        check(accepted, Ok(()));
    }
    for (refused, problem) in [
        (&["--max-pods"][..], "flag needs an argument: --max-pods"),
        (
            &["--max-pods", "--version"],
            "invalid argument \"--version\" for \"--max-pods\" flag",
        ),
        (&["-v"], "flag needs an argument: 'v' in -v"),
        (&["--enable-server", "false"], "unknown command \"false\""),
        (&["foo"], "unknown command \"foo\""),
        (&["-"], "unknown command \"-\""),
        (&["--", "foo"], "unknown command \"foo\""),
        (&[""], "unknown command \"\""),
        (&["--unknown"], "unknown flag: --unknown"),
        (&["--unknown=1"], "unknown flag: --unknown"),
        (&["-x"], "unknown shorthand flag: 'x' in -x"),
        (&["-xv"], "unknown shorthand flag: 'x' in -xv"),
        (&["-h="], "unknown shorthand flag: '=' in -="),
        (&["-v="], "invalid argument \"=\" for \"-v, --v\" flag"),
        (&["-v4h"], "invalid argument \"4h\" for \"-v, --v\" flag"),
        (&["--=x"], "bad flag syntax: --=x"),
        (&["---x"], "bad flag syntax: ---x"),
        (&["--Max-Pods=5"], "unknown flag: --Max-Pods"),
        // Flags that 1.37 no longer has.
        (&["--global-housekeeping-interval=1m"], "unknown flag"),
        (&["--pod-infra-container-image=x"], "unknown flag"),
        (&["--docker=unix:///x"], "unknown flag"),
        (&["--container-runtime=remote"], "unknown flag"),
    ] {
        check(refused, Err(problem));
    }
}

#[test]
fn values_upstream_accepts() {
    for flag in [
        "--max-pods=0x10",
        "--max-pods=010",
        "--max-pods=1_000",
        "--max-pods=+5",
        "--pod-max-pids=-0x1",
        "--max-open-files=9223372036854775807",
        "--sync-frequency=0",
        "--sync-frequency=-1s",
        "--sync-frequency=1.5h",
        "--cluster-dns=",
        "--cluster-dns=\"a,b\",c",
        "--feature-gates=,MemoryQoS=true,",
        "--feature-gates= MemoryQoS = true ",
        "--address=",
        "--address=01.2.3.4",
        "--address=::1",
        "--node-labels=a",
        "--node-labels=a=b=c",
        "--node-labels=",
        "--eviction-hard=",
        "--eviction-hard=memory.available<1Gi",
        "--system-reserved=cpu=1,memory=2",
        "--cpu-manager-policy-options=a=b,c=d",
        "--manifest-url-header=a:b,c:d:e",
        "--reserved-memory=",
        "--reserved-memory=0:memory=1Gi,hugepages-1M=2Gi",
        "--reserved-memory=0:memory=1Gi;1:memory=2Gi",
        "--register-with-taints=",
        "--register-with-taints=a:NoSchedule",
        "--register-with-taints=a=b:NoSchedule-",
        "--register-with-taints=a-",
        "--vmodule=",
        "--vmodule=a=1,b=2",
        "--log-text-info-buffer-size=1Ki",
        "--version=v1.37.1-foo+x.y",
        "--version=false",
        "--seccomp-default=false",
        "--runonce=1",
    ] {
        check(&[flag], Ok(()));
    }
}

#[test]
fn values_upstream_refuses() {
    for (flag, reason) in [
        ("--max-pods=_1", "must be an integer"),
        ("--max-pods=08", "must be an integer"),
        ("--max-pods=", "must be an integer"),
        ("--max-pods=1.5", "must be an integer"),
        (
            "--max-pods=2147483648",
            "must be between -2147483648 and 2147483647",
        ),
        ("--max-open-files=9223372036854775808", "must be between"),
        ("--enable-server=yes", "must be true or false"),
        ("--enable-server=", "must be true or false"),
        ("-v=-1", "must be an integer between 0 and 2147483647"),
        ("-v=+4", "must be an integer"),
        ("-v=99999999999", "must be an integer between 0 and 2147483647"),
        ("--sync-frequency=10", "invalid duration"),
        ("--sync-frequency=", "invalid duration"),
        ("--cluster-dns=a\"b", "double quote"),
        ("--cluster-dns=\"a\"b", "double quote"),
        ("--cluster-dns=\"a", "double quote"),
        ("--cluster-dns=\n", "has no values"),
        ("--feature-gates=MemoryQoS", "key=value"),
        ("--feature-gates=MemoryQoS=maybe", "must be true or false"),
        ("--address=nope", "must be an IP address"),
        ("--address=1.2.3", "must be an IP address"),
        ("--system-reserved=cpu", "key=value"),
        ("--eviction-hard=memory.available=1Gi", "key<value"),
        ("--cpu-manager-policy-options=", "key=value"),
        ("--manifest-url-header=a", "name:value"),
        ("--reserved-memory=x:memory=1Gi", "must be an integer"),
        ("--reserved-memory=0:cpu=1", "must be memory or hugepages-<size>"),
        ("--reserved-memory=0", "node:type=amount"),
        ("--reserved-memory=0:memory=x", "quantit"),
        ("--reserved-memory=0:memory=1Gi=2", "node:type=amount"),
        ("--register-with-taints=a=b", "taint key \"a=b\""),
        ("--register-with-taints=a", "without an effect"),
        ("--register-with-taints=a=b:Bad", "taint effect \"Bad\""),
        ("--register-with-taints=a=b:", "taint effect \"\""),
        (
            "--register-with-taints=a=b:NoSchedule,a=c:NoSchedule",
            "two taints",
        ),
        ("--register-with-taints=a b:NoSchedule", "taint key \"a b\""),
        ("--register-with-taints=a=b=c:NoSchedule", "key=value:effect"),
        ("--register-with-taints=:NoSchedule", "taint key \"\""),
        ("--register-with-taints=a=-:NoSchedule", "taint value \"-\""),
        ("--register-with-taints=a:b:NoSchedule", "key=value:effect"),
        ("--vmodule=a", "pattern=N"),
        ("--vmodule==1", "pattern=N"),
        ("--vmodule=a=x", "level must be"),
        ("--log-text-info-buffer-size=abc", "invalid argument"),
        ("--log-text-info-buffer-size=", "invalid argument"),
        ("--version=v1.38.0", "begins with v1.37.1"),
        ("--version=v1.37.1-01", "begins with v1.37.1"),
        ("--version=v1.37.10", "begins with v1.37.1"),
        ("--version=bogus", "must be true, false, raw or a version"),
    ] {
        check(&[flag], Err(reason));
    }
}

#[test]
fn all_problems_are_found() {
    let problems = parse(&[
        "--nope",
        "value",
        "--max-pods=x",
        "-q",
        "--sync-frequency=1",
        "stray",
        "--port=1",
    ])
    .expect_err("refused");
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 5, "{texts:#?}");
    for (text, part) in texts
        .iter()
        .zip(["--nope", "--max-pods", "'q' in -q", "--sync-frequency", "stray"])
    {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn header_values_do_not_show() {
    let problems = parse(&["--manifest-url-header=authorization-s3cret"]).expect_err("refused");
    assert!(
        !format!("{problems:?} {}", problems[0]).contains("s3cret"),
        "{problems:?}"
    );
}

fn value(line: &[&str], name: &str) -> FlagValue {
    parse(line)
        .unwrap_or_else(|problems| panic!("{line:?}: {problems:?}"))
        .value(name)
        .expect("used")
        .clone()
}

#[test]
fn later_uses_add_or_replace() {
    let list = |items: &[&str]| FlagValue::List(items.iter().map(|item| (*item).to_owned()).collect());
    let map = |pairs: &[(&str, &str)]| {
        FlagValue::Map(
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
        )
    };
    assert_eq!(
        value(&["--cluster-dns=a,b", "--cluster_dns=c"], "cluster-dns"),
        list(&["a", "b", "c"])
    );
    assert_eq!(
        value(&["--cluster-dns=\"a,b\",\"c\"\"d\""], "cluster-dns"),
        list(&["a,b", "c\"d"])
    );
    assert_eq!(value(&["--cluster-dns=a,"], "cluster-dns"), list(&["a", ""]));
    assert_eq!(value(&["--cluster-dns=a\nb"], "cluster-dns"), list(&["a"]));
    assert_eq!(value(&["--cluster-dns="], "cluster-dns"), list(&[]));
    assert_eq!(
        value(&["--max-pods=1", "--max-pods=0x10"], "max-pods"),
        FlagValue::Int(16)
    );
    assert_eq!(value(&["--max-pods=010"], "max-pods"), FlagValue::Int(8));
    assert_eq!(
        value(&["--pod-max-pids=-0b1_01"], "pod-max-pids"),
        FlagValue::Int(-5)
    );
    assert_eq!(
        value(
            &["--system-reserved= cpu = 1 ,memory=2", "--system-reserved=cpu=3"],
            "system-reserved"
        ),
        map(&[("cpu", "3"), ("memory", "2")])
    );
    assert_eq!(
        value(
            &[
                "--cpu-manager-policy-options=a=b,c=d",
                "--cpu-manager-policy-options=e=f"
            ],
            "cpu-manager-policy-options"
        ),
        map(&[("a", "b,c=d"), ("e", "f")])
    );
    assert_eq!(
        value(&["--node-labels=a,b=c=d,"], "node-labels"),
        map(&[("a", ""), ("b", "c=d")])
    );
    assert_eq!(
        value(&["--eviction-hard=memory.available<5%<"], "eviction-hard"),
        map(&[("memory.available", "5%<")])
    );
    assert_eq!(
        value(&["--address=1.1.1.1", "--address="], "address"),
        FlagValue::Text("1.1.1.1".to_owned())
    );
    assert_eq!(value(&["--address="], "address"), FlagValue::Unchanged);
    let FlagValue::Headers(headers) = value(
        &["--manifest-url-header=a:1,b:x:y", "--manifest-url-header=a:2"],
        "manifest-url-header",
    ) else {
        panic!("headers expected");
    };
    assert_eq!(headers["a"], ["1", "2"]);
    assert_eq!(headers["b"], ["x:y"]);
    let FlagValue::Taints(taints) = value(
        &[
            "--register-with-taints=a:NoSchedule,b=c:NoExecute",
            "--register-with-taints=d:NoSchedule",
        ],
        "register-with-taints",
    ) else {
        panic!("taints expected");
    };
    assert_eq!(
        taints.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(),
        ["d"],
        "a second use replaces"
    );
    let FlagValue::VModule(items) = value(&["--vmodule=a=1,,b=2", "--vmodule=a=3"], "vmodule") else {
        panic!("vmodule expected")
    };
    assert_eq!(
        items,
        [("a".to_owned(), 1), ("b".to_owned(), 2), ("a".to_owned(), 3)]
    );
}

#[test]
fn flags_without_a_field() {
    assert_eq!(
        KubeletFlags::from_command_line(&parse(&[]).expect("valid")),
        KubeletFlags::default()
    );
    // Every flag that no field stands behind changes something, so none is dropped on the way.
    for flag in flags::definitions() {
        if !matches!(flag.target, Target::Own(_)) || flag.name == "help" {
            continue;
        }
        let text = match flag.kind {
            Kind::Bool => "true",
            Kind::Version => "v1.37.1-custom",
            _ => sample(flag),
        };
        let line = CommandLine::parse(&[format!("--{}={text}", flag.name)]).expect("valid");
        assert_ne!(
            KubeletFlags::from_command_line(&line),
            KubeletFlags::default(),
            "--{}",
            flag.name
        );
    }
}

#[test]
fn node_names() {
    let named = |line: &[&str], host: &str| {
        KubeletFlags::from_command_line(&parse(line).expect("valid")).node_name(host)
    };
    assert_eq!(named(&[], "Host.Example\n"), Some("host.example".to_owned()));
    assert_eq!(
        named(&["--hostname-override= Node1 "], "host"),
        Some("node1".to_owned())
    );
    assert_eq!(named(&["--hostname-override= "], "host"), None);
    assert_eq!(named(&[], ""), None);
}

#[test]
fn deprecated_flags_say_what_to_do() {
    let warning = |name: &str| flags::definition(name).expect("known").deprecation_warning();
    assert_eq!(
        warning("max-pods").as_deref(),
        Some("Flag --max-pods has been deprecated, set maxPods in the file given by --config instead")
    );
    assert!(
        warning("maximum-dead-containers")
            .expect("deprecated")
            .starts_with("Flag --maximum-dead-containers has been deprecated, ")
    );
    for name in [
        "v",
        "vmodule",
        "log-flush-frequency",
        "provider-id",
        "fail-cgroupv1",
        "config",
        "kubeconfig",
    ] {
        assert_eq!(warning(name), None, "--{name}");
    }
}

#[test]
fn help_lists_every_flag_once_and_stays_narrow() {
    let help = flags::help();
    for flag in flags::definitions() {
        let entries = help
            .lines()
            .filter(|line| {
                line.trim_start()
                    .split([' ', '['])
                    .any(|word| word == format!("--{}", flag.name))
                    && line.starts_with("  -")
            })
            .count();
        assert_eq!(entries, 1, "--{}", flag.name);
    }
    assert!(
        help.contains("(default \"unix:///run/containerd/containerd.sock\") (D)"),
        "{help}"
    );
    for line in help.lines() {
        assert!(line.len() <= 120, "{line}");
    }
}

/// kubeadm's pattern: the word Kubernetes, v, three numbers, then `[-\w.+]*`.
#[test]
fn the_version_line_is_what_kubeadm_reads() {
    let line = version::short(version::VERSION);
    let rest = line
        .strip_prefix("Kubernetes v1.37.1")
        .expect("the upstream version");
    assert!(rest.starts_with("+rubelet."), "{line}");
    assert!(
        rest.chars()
            .all(|letter| letter.is_ascii_alphanumeric() || "-_.+".contains(letter)),
        "{line}"
    );
    assert!(
        version::raw(version::VERSION)
            .starts_with("version.Info{Major:\"1\", Minor:\"37\", EmulationMajor:\"\"")
    );
}

proptest::proptest! {
    /// Any command line gives an answer.
    #[test]
    fn parsing_never_panics(arguments in proptest::collection::vec(argument(), 0..6)) {
        let _ = CommandLine::parse(&arguments);
    }
}

fn argument() -> impl proptest::strategy::Strategy<Value = String> {
    use proptest::prelude::*;
    let count = flags::definitions().len();
    prop_oneof![
        3 => (0..count, ".{0,12}").prop_map(|(index, text)| format!("--{}={text}", flags::definitions()[index].name)),
        2 => (0..count, "[-+0-9a-z:=<,;%\"\n_. ]{0,14}").prop_map(|(index, text)| format!("--{}={text}", flags::definitions()[index].name)),
        1 => (0..count).prop_map(|index| format!("--{}", flags::definitions()[index].name)),
        1 => "-{0,3}.{0,6}",
    ]
}
