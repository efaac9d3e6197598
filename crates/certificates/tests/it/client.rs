//! The client certificate: the first one, rotation, outages, expiry, broken files.

use std::path::PathBuf;
use std::time::Duration;

use rubelet_certificates::{CertificateSink as _, PemPair};

use crate::bed::{Bed, Client, foreign_pair, node_pair, node_pair_from, one_text};
use crate::files::Entry;
use crate::signer::{Asked, Mode};

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);
const CURRENT: &str = "/pki/kubelet-client-current.pem";
const KEPT_KEY: &str = "/pki/kubelet-client.key.tmp";

fn bootstrapping() -> Client {
    Client {
        rotate: true,
        bootstrap: true,
        ..Client::default()
    }
}

fn rotating() -> Client {
    Client {
        rotate: true,
        ..Client::default()
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_certificate_is_asked_for_and_stored_as_upstream_does() {
    let bed = Bed::new();
    let node = bed.client(bootstrapping());
    node.sink.shows(1).await;
    bed.pass(Duration::from_millis(1)).await;
    let requests = bed.signer.requests();
    let [request] = requests.as_slice() else {
        panic!("{:?}", bed.signer.log())
    };
    let name = request.metadata.name.as_deref().unwrap();
    assert_eq!(bed.signer.log(), [format!("bootstrap {name}")]);
    assert!(
        name.starts_with("node-csr-") && name.len() == "node-csr-".len() + 43,
        "{name}"
    );
    assert_eq!(
        request.spec.signer_name,
        "kubernetes.io/kube-apiserver-client-kubelet"
    );
    assert_eq!(
        request.spec.usages.as_ref().unwrap(),
        &["digital signature", "client auth"]
    );
    assert_eq!(request.spec.expiration_seconds, None);
    let asked = Asked::of(request);
    assert_eq!(
        (asked.common_name.as_str(), asked.organization.as_str()),
        ("system:node:n", "system:nodes")
    );
    assert!(asked.names.is_empty() && asked.addresses.is_empty());

    let file = "/pki/kubelet-client-2026-01-01-00-00-00.pem";
    assert_eq!(bed.files.names(), [file, CURRENT]);
    assert_eq!(bed.files.entry(CURRENT), Some(Entry::Link(PathBuf::from(file))));
    let Some(Entry::File { mode, .. }) = bed.files.entry(file) else {
        panic!("no file")
    };
    assert_eq!(mode, 0o600);
    let text = bed.files.text(CURRENT);
    let certificate = text.find("-----BEGIN CERTIFICATE-----\n").unwrap();
    let key = text.find("-----BEGIN PRIVATE KEY-----\n").unwrap();
    assert!(certificate < key && !text.contains('\r'));
    assert_eq!(node.handle.ttl_seconds(bed.now()), 86_399.0);
    assert_eq!((node.handle.renew_errors(), node.handle.problem()), (0, None));
}

#[tokio::test(start_paused = true)]
async fn a_restart_half_way_finds_key_and_request_again() {
    let bed = Bed::new();
    bed.signer.set_mode(Mode::Ignore);
    let node = bed.client(bootstrapping());
    bed.signer.asked(1).await;
    let key = bed.files.text(KEPT_KEY);
    drop(node);
    let node = bed.client(bootstrapping());
    bed.signer.asked(2).await;
    assert_eq!(bed.files.text(KEPT_KEY), key);
    let log = bed.signer.log();
    assert_eq!(log[0], log[1]);
    assert_eq!(bed.signer.requests().len(), 1);
    assert_eq!(node.sink.count(), 0);
    bed.signer.set_mode(Mode::Sign);
    node.sink.shows(1).await;
    assert!(
        String::from_utf8(node.sink.last().key_pem).unwrap() == key,
        "another key"
    );
    bed.pass(Duration::from_millis(1)).await;
    assert_eq!(bed.files.entry(KEPT_KEY), None);
}

#[tokio::test(start_paused = true)]
async fn who_is_denied_tells_and_asks_ever_more_rarely_with_another_key() {
    let bed = Bed::new();
    bed.signer.set_mode(Mode::Deny);
    let node = bed.client(bootstrapping());
    node.complains("was denied: Tested: Denied by the test").await;
    bed.signer.asked(2).await;
    let log = bed.signer.log();
    assert_ne!(log[0], log[1]);
    bed.pass(DAY).await;
    let asked = bed.signer.log().len();
    assert!((90..=120).contains(&asked), "{asked} requests in a day");
    assert_eq!(node.handle.renew_errors(), asked as u64);
    bed.signer.set_mode(Mode::Sign);
    node.sink.shows(1).await;
    bed.pass(Duration::from_secs(1)).await;
    assert_eq!(node.handle.problem(), None);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_nobody_approves_stays_the_only_one() {
    let bed = Bed::new();
    bed.signer.set_mode(Mode::Ignore);
    let node = bed.client(bootstrapping());
    node.complains("was not approved within 15 min").await;
    bed.pass(DAY).await;
    assert_eq!(bed.signer.requests().len(), 1);
    // Approved, but the signer sleeps.
    bed.signer.set_mode(Mode::ApproveOnly);
    node.complains("is approved but was not signed within 15 min")
        .await;
    // Requests are deleted after a day.
    bed.signer.set_mode(Mode::Ignore);
    let asked = bed.signer.log().len();
    bed.signer.delete_all();
    bed.signer.asked(asked + 1).await;
    bed.signer.set_mode(Mode::Sign);
    node.sink.shows(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_rotated_at_its_deadline_with_its_own_rights() {
    let bed = Bed::new();
    let node = bed.client(bootstrapping());
    node.sink.shows(1).await;
    let first = node.sink.last();
    node.sink.shows(2).await;
    let share = bed.elapsed().as_secs_f64() / DAY.as_secs_f64();
    assert!((0.79..0.81).contains(&share), "{share}");
    bed.pass(Duration::from_millis(1)).await;
    assert_eq!(bed.signer.log()[1..], ["ordinary csr-2"]);
    assert!(first.key_pem != node.sink.last().key_pem, "the same key");
    assert_eq!(
        bed.files.entry(CURRENT),
        Some(Entry::Link("/pki/kubelet-client-2026-01-01-19-12-00.pem".into()))
    );
    // After a restart the same one is used, and nothing is asked for before its time.
    drop(node);
    let node = bed.client(bootstrapping());
    bed.pass(HOUR).await;
    assert_eq!((node.sink.count(), bed.signer.log().len()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_short_lived_certificate_that_was_dated_back_is_not_rotated_in_a_hot_loop() {
    let bed = Bed::new();
    bed.signer
        .set_life(Duration::from_secs(60), Duration::from_mins(5));
    let node = bed.client(bootstrapping());
    node.sink.shows(11).await;
    let elapsed = bed.elapsed().as_secs();
    assert!((450..=520).contains(&elapsed), "10 rotations took {elapsed} s");
    assert_eq!(node.handle.renew_errors(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_outage_at_the_deadline_delays_the_rotation_only() {
    let bed = Bed::new();
    let node = bed.client(bootstrapping());
    node.sink.shows(1).await;
    bed.signer.set_mode(Mode::Outage);
    bed.pass(20 * HOUR).await;
    let problem = node.handle.problem().unwrap();
    assert!(
        problem.contains("it is due for rotation") && problem.contains("connection refused"),
        "{problem}"
    );
    assert!(node.handle.renew_errors() > 10);
    bed.signer.set_mode(Mode::Sign);
    let back = bed.elapsed();
    node.sink.shows(2).await;
    assert!(
        bed.elapsed() - back <= Duration::from_secs(36),
        "{:?}",
        bed.elapsed() - back
    );
    assert_eq!(bed.signer.log()[1..], ["ordinary csr-2"]);
}

#[tokio::test(start_paused = true)]
async fn an_outage_while_a_request_waits_does_not_lose_it() {
    let bed = Bed::new();
    bed.signer.set_mode(Mode::Ignore);
    let node = bed.client(bootstrapping());
    bed.signer.asked(1).await;
    bed.signer.set_mode(Mode::Outage);
    bed.pass(Duration::from_mins(5)).await;
    bed.signer.set_mode(Mode::Sign);
    node.sink.shows(1).await;
    assert_eq!(bed.signer.log().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_expired_certificate_recovers_by_bootstrap_without_a_restart() {
    for rotate in [true, false] {
        let bed = Bed::new();
        let node = bed.client(Client {
            rotate,
            ..bootstrapping()
        });
        node.sink.shows(1).await;
        bed.signer.set_mode(Mode::Outage);
        bed.pass(26 * HOUR).await;
        assert!(node.handle.ttl_seconds(bed.now()) < -7_000.0);
        assert!(
            node.handle
                .problem()
                .unwrap()
                .contains("it expired at 2026-01-02T00:00:00Z")
        );
        bed.signer.set_mode(Mode::Sign);
        node.sink.shows(2).await;
        let log = bed.signer.log();
        assert!(
            log[1].starts_with("bootstrap node-csr-") && log[0] != log[1],
            "{log:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_certificate_at_the_start_is_replaced_by_bootstrap() {
    let bed = Bed::new();
    bed.files.put(CURRENT, &one_text(&node_pair(HOUR)));
    bed.pass(2 * HOUR).await;
    let node = bed.client(bootstrapping());
    node.sink.shows(1).await;
    bed.pass(Duration::from_millis(1)).await;
    assert!(bed.signer.log()[0].starts_with("bootstrap "));
    // It was a file and not a link, and is kept under another name.
    assert!(matches!(bed.files.entry(CURRENT), Some(Entry::Link(_))));
    assert!(bed.files.entry(&format!("{CURRENT}.replaced")).is_some());
}

#[tokio::test(start_paused = true)]
async fn without_bootstrap_an_expired_certificate_waits_for_a_new_file_and_says_so() {
    let bed = Bed::new();
    let old = node_pair(HOUR);
    bed.files.put(CURRENT, &one_text(&old));
    let node = bed.client(rotating());
    node.sink.shows(1).await;
    bed.signer.set_mode(Mode::Outage);
    bed.pass(2 * HOUR).await;
    assert!(node.handle.problem().unwrap().contains("it expired at"));
    bed.files.put(CURRENT, &one_text(&node_pair(30 * DAY)));
    let put = bed.elapsed();
    node.sink.shows(2).await;
    assert!(bed.elapsed() - put <= Duration::from_secs(10));
    bed.pass(Duration::from_secs(1)).await;
    assert_eq!((node.handle.problem(), bed.signer.log().len()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn a_new_file_helps_while_a_request_waits_for_approval() {
    let bed = Bed::new();
    bed.signer.set_mode(Mode::Ignore);
    let node = bed.client(bootstrapping());
    bed.signer.asked(1).await;
    bed.files.put(CURRENT, &one_text(&node_pair(30 * DAY)));
    node.sink.shows(1).await;
    assert!(bed.elapsed() <= Duration::from_secs(10));
    bed.pass(HOUR).await;
    assert_eq!((bed.signer.log().len(), node.handle.problem()), (1, None));
}

#[tokio::test(start_paused = true)]
async fn without_rotation_and_bootstrap_nothing_is_asked_for() {
    let bed = Bed::new();
    let node = bed.client(Client {
        shown: Some(node_pair(HOUR)),
        ..Client::default()
    });
    bed.pass(2 * HOUR).await;
    node.complains("Set rotateCertificates or --bootstrap-kubeconfig")
        .await;
    assert!(bed.signer.log().is_empty());
    bed.files.put(CURRENT, &one_text(&node_pair(DAY)));
    node.sink.shows(2).await;
}

#[tokio::test(start_paused = true)]
async fn a_certificate_in_the_kubeconfig_is_stored_and_replaced_at_once() {
    let bed = Bed::new();
    let inline = node_pair(30 * DAY);
    let node = bed.client(Client {
        inline: Some(inline.clone()),
        shown: Some(inline.clone()),
        ..rotating()
    });
    bed.pass(Duration::from_secs(1)).await;
    assert_eq!(bed.signer.log(), ["ordinary csr-1"]);
    assert!(
        node.sink.last().key_pem != inline.key_pem,
        "the kubeconfig's key is still used"
    );
    assert!(matches!(bed.files.entry(CURRENT), Some(Entry::Link(_))));
    // After a restart ours counts, whatever the kubeconfig says.
    let text = bed.files.text(CURRENT);
    drop(node);
    let node = bed.client(Client {
        inline: Some(inline.clone()),
        shown: Some(inline),
        ..rotating()
    });
    bed.pass(HOUR).await;
    assert_eq!(bed.signer.log().len(), 1);
    assert!(node.sink.last().chain_pem == text.into_bytes(), "not ours");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_of_somebody_else_is_replaced_at_once() {
    let bed = Bed::new();
    let admin = foreign_pair("kubernetes-admin", "system:masters", 30 * DAY);
    let node = bed.client(Client {
        shown: Some(admin),
        ..rotating()
    });
    node.sink.shows(2).await;
    assert_eq!(bed.elapsed(), Duration::ZERO);
    bed.pass(HOUR).await;
    assert_eq!(bed.signer.log(), ["ordinary csr-1"]);
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_file_is_set_aside_and_the_next_one_requested() {
    let other_key = PemPairs::mixed();
    for content in ["nonsense".as_bytes(), b"", &other_key] {
        let bed = Bed::new();
        bed.files.put(CURRENT, content);
        let node = bed.client(bootstrapping());
        node.sink.shows(1).await;
        bed.pass(Duration::from_millis(1)).await;
        assert!(matches!(bed.files.entry(CURRENT), Some(Entry::Link(_))));
        let aside = bed.files.entry(&format!("{CURRENT}.corrupt"));
        let Some(Entry::File { content: kept, mode }) = aside else {
            panic!("{:?}", bed.files.names())
        };
        assert!(kept == content && mode == 0o600);
    }
}

struct PemPairs;

impl PemPairs {
    /// A certificate and the key of another one.
    fn mixed() -> Vec<u8> {
        [node_pair(DAY).chain_pem, node_pair(DAY).key_pem].concat()
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_for_another_key_is_refused() {
    let bed = Bed::new();
    bed.signer.set_mode(Mode::OtherKey);
    let node = bed.client(bootstrapping());
    node.complains("it is for another key").await;
    assert_eq!((node.sink.count(), bed.files.entry(CURRENT)), (0, None));
    bed.signer.set_mode(Mode::Sign);
    node.sink.shows(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_does_not_keep_a_certificate_from_being_used() {
    let bed = Bed::new();
    bed.files.put(CURRENT, &one_text(&node_pair(HOUR)));
    let node = bed.client(rotating());
    bed.pass(Duration::from_secs(1)).await;
    bed.files.set_full(true);
    node.sink.shows(2).await;
    node.complains("is in use but cannot be stored").await;
    bed.pass(HOUR).await;
    assert_eq!(bed.signer.log().len(), 1);
    bed.files.set_full(false);
    bed.pass(Duration::from_mins(2)).await;
    assert_eq!(node.handle.problem(), None);
    assert!(matches!(bed.files.entry(CURRENT), Some(Entry::Link(_))));
    let stored = bed.files.text(CURRENT);
    assert!(stored.contains(std::str::from_utf8(&node.sink.last().key_pem).unwrap()));
}

#[tokio::test(start_paused = true)]
async fn upstreams_half_done_replacement_is_used() {
    let bed = Bed::new();
    bed.files
        .put("/pki/kubelet-client-updated.pem", &one_text(&node_pair(DAY)));
    let node = bed.client(rotating());
    node.sink.shows(1).await;
    bed.pass(HOUR).await;
    assert!(bed.signer.log().is_empty());
}

/// The file that the kubeconfig names is rewritten: the client that follows it shows its pair.
async fn check_file_is_rewritten(pair: PemPair, is_ours_again: bool) {
    let bed = Bed::new();
    let node = bed.client(Client {
        shown: Some(node_pair(HOUR)),
        ..rotating()
    });
    node.sink.shows(2).await;
    bed.pass(2 * HOUR).await;
    let (ours, asked) = (node.sink.in_use(), bed.signer.log().len());
    node.sink.replace(&pair.chain_pem, &pair.key_pem).unwrap();
    bed.pass(Duration::from_mins(2)).await;
    let is_ours = node.sink.in_use() == ours;
    assert_eq!((is_ours, bed.signer.log().len()), (is_ours_again, asked));
    assert_eq!(node.handle.problem(), None);
}

#[tokio::test(start_paused = true)]
async fn an_old_certificate_does_not_push_out_ours() {
    // Expired, valid but older, of another user.
    check_file_is_rewritten(node_pair(HOUR), true).await;
    check_file_is_rewritten(node_pair(30 * DAY), true).await;
    let admin = foreign_pair("kubernetes-admin", "system:masters", 30 * DAY);
    check_file_is_rewritten(admin, true).await;
    check_file_is_rewritten(node_pair_from(HOUR, 30 * DAY), false).await;
}
