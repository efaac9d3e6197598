//! The serving certificate: addresses, their changes, what is shown until it is there.

use std::time::Duration;

use k8s_openapi::api::core::v1::NodeAddress;
use tokio::sync::watch;

use crate::bed::{Bed, foreign_pair};
use crate::signer::{Asked, Mode};

const HOUR: Duration = Duration::from_hours(1);

fn addresses(list: &[&str]) -> Vec<NodeAddress> {
    let internal = list.iter().map(|address| ("InternalIP", *address));
    internal
        .chain([("Hostname", "n")])
        .map(|(type_, address)| NodeAddress {
            type_: type_.to_owned(),
            address: address.to_owned(),
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_before_the_node_has_an_address() {
    let bed = Bed::new();
    let node_addresses = watch::Sender::new(addresses(&[]));
    let node = bed.serving(&node_addresses);
    bed.pass(HOUR).await;
    assert!(bed.signer.log().is_empty());
    node_addresses.send_replace(addresses(&["10.0.0.1"]));
    node.sink.shows(1).await;
    assert_eq!(bed.elapsed(), HOUR);
    let requests = bed.signer.requests();
    let request = &requests[0];
    assert_eq!(request.spec.signer_name, "kubernetes.io/kubelet-serving");
    assert_eq!(
        request.spec.usages.as_ref().unwrap(),
        &["digital signature", "server auth"]
    );
    let asked = Asked::of(request);
    assert_eq!(
        (asked.common_name.as_str(), asked.organization.as_str()),
        ("system:node:n", "system:nodes")
    );
    assert_eq!(
        (asked.names, asked.addresses),
        (vec!["n".to_owned()], vec![[10, 0, 0, 1].into()])
    );
    bed.pass(Duration::from_millis(1)).await;
    let names = bed.files.names();
    assert_eq!(
        names,
        [
            "/pki/kubelet-server-2026-01-01-01-00-00.pem",
            "/pki/kubelet-server-current.pem"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_address_is_a_new_request_and_a_lost_one_is_not() {
    let bed = Bed::new();
    let node_addresses = watch::Sender::new(addresses(&["10.0.0.1"]));
    let node = bed.serving(&node_addresses);
    node.sink.shows(1).await;
    bed.pass(HOUR).await;
    node_addresses.send_replace(addresses(&["10.0.0.1", "10.0.0.2"]));
    node.sink.shows(2).await;
    assert!(bed.elapsed() - HOUR < Duration::from_secs(1));
    node_addresses.send_replace(addresses(&["10.0.0.2"]));
    bed.pass(HOUR).await;
    assert_eq!(bed.signer.log(), ["ordinary csr-1", "ordinary csr-2"]);
    let ages = node.handle.rotation_ages();
    assert_eq!(ages.counts.iter().sum::<u64>(), 1);
    assert!((ages.sum_seconds - 3600.0).abs() < 1.0);
}

#[tokio::test(start_paused = true)]
async fn an_address_that_changes_while_a_request_waits_is_asked_for_at_once() {
    let bed = Bed::new();
    bed.signer.set_mode(Mode::Ignore);
    let node_addresses = watch::Sender::new(addresses(&["10.0.0.1"]));
    let node = bed.serving(&node_addresses);
    bed.signer.asked(1).await;
    node_addresses.send_replace(addresses(&["10.0.0.2"]));
    bed.signer.asked(2).await;
    assert_eq!(bed.elapsed(), Duration::ZERO);
    bed.signer.set_mode(Mode::Sign);
    node.sink.shows(1).await;
    bed.pass(HOUR).await;
    assert_eq!((bed.signer.log().len(), node.sink.count()), (2, 1));
    let requests = bed.signer.requests();
    assert_eq!(
        Asked::of(&requests[1]).addresses,
        [std::net::IpAddr::from([10, 0, 0, 2])]
    );
}

#[tokio::test(start_paused = true)]
async fn a_signer_that_leaves_addresses_out_is_not_asked_again_and_again() {
    let bed = Bed::new();
    bed.signer.set_mode(Mode::WithoutAddresses);
    let node_addresses = watch::Sender::new(addresses(&["10.0.0.1"]));
    let node = bed.serving(&node_addresses);
    node.sink.shows(1).await;
    bed.pass(HOUR).await;
    assert_eq!(bed.signer.log().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn configured_files_are_shown_until_the_signers_certificate_is_there() {
    let bed = Bed::new();
    let own = foreign_pair("n", "nobody", 1000 * HOUR);
    bed.files.put("/own.crt", &own.chain_pem);
    bed.files.put("/own.key", &own.key_pem);
    bed.signer.set_mode(Mode::Ignore);
    let node_addresses = watch::Sender::new(addresses(&["10.0.0.1"]));
    let node = bed.serving(&node_addresses);
    node.sink.shows(1).await;
    bed.signer.asked(1).await;
    bed.signer.set_mode(Mode::Sign);
    node.sink.shows(2).await;
    bed.pass(HOUR).await;
    assert_eq!((node.sink.count(), bed.signer.log().len()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn expiry_without_a_signer_is_told_and_the_next_one_comes_with_it() {
    let bed = Bed::new();
    let node_addresses = watch::Sender::new(addresses(&["10.0.0.1"]));
    let node = bed.serving(&node_addresses);
    node.sink.shows(1).await;
    bed.signer.set_mode(Mode::Outage);
    bed.pass(25 * HOUR).await;
    assert!(node.handle.ttl_seconds(bed.now()) < 0.0);
    assert!(node.handle.problem().unwrap().contains("it expired at"));
    bed.signer.set_mode(Mode::Sign);
    node.sink.shows(2).await;
    assert!(node.handle.ttl_seconds(bed.now()) > 86_000.0);
}
