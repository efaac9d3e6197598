//! Hosts files, last words, expansion and DNS limits.

use k8s_openapi::api::core::v1::HostAlias;
use proptest::prelude::*;
use rubelet_lifecycle::configuration::dns::{DnsWarning, MAX_SEARCH_LINE_LENGTH, MAX_SEARCHES};
use rubelet_lifecycle::configuration::downward::quoted;
use rubelet_lifecycle::configuration::expansion::expand;
use rubelet_lifecycle::configuration::hostname::Hostname;
use rubelet_lifecycle::configuration::resolv_conf::ResolvConfWarning;
use rubelet_lifecycle::configuration::termination_message::{
    MessageFile, Source, bytes_per_container, combined, cut, falls_back_to_log, message_of_cut_log,
    message_of_file, message_of_log, message_of_log_end,
};
use rubelet_lifecycle::configuration::{ResolvConf, hosts_file, pod_dns};
use serde_json::json;

use crate::configuration::{node, pod, resolver};

#[test]
fn hosts_files() {
    let aliases = [HostAlias {
        ip: "1.2.3.4".to_owned(),
        hostnames: Some(vec!["a".to_owned(), "b".to_owned()]),
    }];
    let hostname = |domain: Option<&str>| Hostname {
        name: "web".to_owned(),
        domain: domain.map(str::to_owned),
    };
    let addresses = ["10.0.0.5".to_owned(), "fd00::5".to_owned()];
    let plain = hosts_file::content(&addresses, &hostname(None), &[]);
    assert!(plain.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n"), "{plain}");
    assert!(
        plain.ends_with("fe00::2\tip6-allrouters\n10.0.0.5\tweb\nfd00::5\tweb\n"),
        "{plain}"
    );
    let full = hosts_file::content(&addresses[..1], &hostname(Some("s.n.svc.c")), &aliases);
    assert!(
        full.ends_with("10.0.0.5\tweb.s.n.svc.c\tweb\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n"),
        "{full}"
    );
    let host = hosts_file::host_network_content(b"\xff x\n", &aliases);
    assert!(host.starts_with(b"# Kubernetes-managed hosts file (host network).\n\xff x\n\n# Entries"));
}

#[test]
fn hosts_files_are_not_mounted_over_the_users() {
    let check = |spec: serde_json::Value, addresses: &[String], expected: bool| {
        let pod = pod(&spec);
        let container = &pod.spec.as_ref().expect("a spec").containers[0];
        assert_eq!(
            hosts_file::is_mounted(&pod, container, addresses),
            expected,
            "{spec}"
        );
    };
    let address = ["10.0.0.5".to_owned()];
    let plain = json!([{"name": "c"}]);
    check(json!({"containers": plain}), &address, true);
    check(json!({"containers": plain}), &[], false);
    check(json!({"containers": plain, "hostNetwork": true}), &[], true);
    check(
        json!({"containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/etc/hosts"}]}]}),
        &address,
        false,
    );
}

#[test]
fn last_words() {
    let text = |text: &str| Source::Message(text.to_owned());
    assert_eq!(message_of_file(&MessageFile::Content(b"bye"), true), text("bye"));
    assert_eq!(message_of_file(&MessageFile::Content(b""), true), Source::Log);
    assert_eq!(message_of_file(&MessageFile::Content(b""), false), text(""));
    assert_eq!(message_of_file(&MessageFile::Absent, true), Source::Log);
    let long = [vec![b'a'; 10], vec![b'b'; 4096]].concat();
    assert_eq!(
        message_of_file(&MessageFile::Content(&long), false),
        text(&"b".repeat(4096))
    );
    for (policy, code, reason, expected) in [
        ("FallbackToLogsOnError", 1, "Error", true),
        ("FallbackToLogsOnError", 0, "", false),
        ("FallbackToLogsOnError", 128, "ContainerCannotRun", false),
        ("File", 1, "Error", false),
    ] {
        assert_eq!(
            falls_back_to_log(policy, code, reason),
            expected,
            "{policy} {code} {reason}"
        );
    }
    assert_eq!(
        (
            bytes_per_container(0),
            bytes_per_container(3),
            bytes_per_container(1000)
        ),
        (12_288, 4096, 12)
    );
    assert_eq!(cut("aé", 2), "a");
    assert_eq!(
        (combined("a", "b"), combined("", "b"), combined("a", "")),
        ("a: b".to_owned(), "b".to_owned(), "a".to_owned())
    );
}

#[test]
fn last_words_of_the_log() {
    let log = b"2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stderr P two\nnoise\n2026-01-01T00:00:00Z stderr F \n";
    assert_eq!(message_of_log(log), "one\ntwo\n");
    let lines: String = (0..100).map(|index| format!("t stdout F {index}\n")).collect();
    let found = message_of_log(lines.as_bytes());
    assert!(found.starts_with("20\n") && found.ends_with("99\n"), "{found}");
    let wide = format!("t stdout F {}end\n", "x".repeat(5000));
    assert_eq!(message_of_log(wide.as_bytes()).len(), 2048);
    assert_eq!(message_of_log(b""), "");
}

#[test]
fn last_words_of_a_log_with_long_lines() {
    let check = |end: &str, expected: Option<&str>| {
        assert_eq!(
            message_of_log_end(end.as_bytes()).as_deref(),
            expected,
            "{end:.40}"
        );
    };
    let (long, tail) = ("x".repeat(5000), format!("{}end\n", "x".repeat(2044)));
    // The first line may be cut off: `None` where the message needs it.
    check(&format!("{long}end\n"), None);
    check(&format!("{long}\nt stdout F end\n"), None);
    check(&format!("rest\nt stdout F {long}end\n"), Some(&tail));
    let lines: String = (0..80).map(|index| format!("t stdout F {index}\n")).collect();
    check(&format!("rest\n{lines}"), Some(&message_of_log(lines.as_bytes())));
    assert_eq!(message_of_cut_log(format!("{long}end\n").as_bytes()), tail);
    let cut = message_of_cut_log(format!("{long}\nt stdout F end\n").as_bytes());
    assert!(cut.len() == 2048 && cut.ends_with("x\nend\n"), "{cut}");
}

#[test]
fn quoting() {
    for (text, expected) in [
        ("a'b", r#""a'b""#),
        ("\"\\", r#""\"\\""#),
        ("\n\t\u{1}", r#""\n\t\x01""#),
        ("é\u{301}", "\"é\u{301}\""),
        ("\u{a0}", r#""\u00a0""#),
    ] {
        assert_eq!(quoted(text), expected);
    }
}

#[test]
fn dns_without_a_cluster_says_so() {
    let mut node = node();
    node.cluster_dns.clear();
    let found = pod_dns(
        &pod(&json!({"dnsPolicy": "ClusterFirst"})),
        &node,
        resolver().as_ref(),
    );
    assert_eq!(found.warnings, [DnsWarning::MissingClusterDns]);
    assert_eq!(found.config.servers, ["1.1.1.1"]);
    let found = pod_dns(&pod(&json!({"dnsPolicy": "Default"})), &node, None);
    assert_eq!(
        (found.config.servers, found.config.searches),
        (vec!["127.0.0.1".to_owned()], vec![".".to_owned()])
    );
    let none = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"]}});
    let found = pod_dns(&pod(&none), &node, None);
    assert_eq!((found.config.servers.len(), found.warnings.len()), (3, 1));
    assert_eq!(found.warnings[0].reason(), "DNSConfigForming");
}

#[test]
fn resolver_files() {
    let file = ResolvConf::parse(
        "nameserver 1.1.1.1 # x\n search a. . b\n#search c\noptions ndots:1 rotate\noptions ndots:2\n",
    )
    .expect("good");
    assert_eq!(
        (file.servers, file.searches, file.options),
        (
            vec!["1.1.1.1".to_owned()],
            vec!["a".to_owned(), "b".to_owned()],
            vec!["ndots:2".to_owned(), "rotate".to_owned()]
        )
    );
    assert!(ResolvConf::parse("nameserver\n").is_err());
    let many: Vec<String> = (0..30).map(|index| format!("d{index}")).collect();
    let file = ResolvConf::parse(&format!("search {}", many.join(" "))).expect("good");
    assert_eq!(file.warning(false), None);
    assert_eq!(
        file.warning(true),
        Some(ResolvConfWarning::Searches { count: 30, limit: 29 })
    );
    let check = |search: &str, words: &str| {
        let file = ResolvConf::parse(&format!("search {search}")).expect("good");
        let warning = file.warning(true).expect("too much");
        let message = warning.message("/etc/resolv.conf");
        assert!(
            message.contains(words) && message.contains("/etc/resolv.conf"),
            "{message}"
        );
    };
    check(&many.join(" "), "30 search domains");
    check(&"d".repeat(254), "a search domain of 254 characters");
    check(&vec!["d".repeat(200); 11].join(" "), "2210 characters");
}

proptest! {
    #[test]
    fn text_without_dollars_is_left_alone(text in "[^$]*") {
        prop_assert_eq!(expand(&text, |_| None), text);
    }

    #[test]
    fn escaped_text_comes_back(text in ".*") {
        prop_assert_eq!(expand(&text.replace('$', "$$"), |_| Some("never")), text);
    }

    #[test]
    fn searches_fit_into_the_resolver(searches in proptest::collection::vec("[a-z]{1,300}", 0..50)) {
        let spec = json!({"dnsPolicy": "None", "dnsConfig": {"searches": searches}});
        let found = pod_dns(&pod(&spec), &node(), resolver().as_ref());
        let kept = &found.config.searches;
        prop_assert!(kept.len() <= MAX_SEARCHES && kept.join(" ").len() <= MAX_SEARCH_LINE_LENGTH);
        prop_assert!(kept.iter().all(|search| search.len() <= 253));
        let wanted: std::collections::BTreeSet<&String> = searches.iter().collect();
        prop_assert_eq!(kept.len() == wanted.len(), found.warnings.is_empty());
    }

    #[test]
    fn last_words_never_exceed_their_limits(log in proptest::collection::vec(any::<u8>(), 0..6000)) {
        prop_assert!(message_of_log(&log).chars().count() <= 2048);
    }
}
