//! Names, addresses and ports.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::scenarios;
use super::{printed, until};
use rubelet_testbed::http;
use rubelet_testbed::node::manifest::{pod, server, shell, with};
use rubelet_testbed::node::{Bed, PodFacts, Scenario};

pub(super) const ALL: &[Scenario] = scenarios![
    hostname_and_hosts_file,
    hostname_of_the_pods_own_choice,
    hosts_file_of_a_host_network_pod,
    dns_of_the_pods_own,
    dns_of_the_cluster,
    dns_of_the_host,
    host_port_leads_to_the_pod,
    host_network_is_the_hosts,
];

async fn hostname_and_hosts_file(bed: &Bed<'_>) -> Result<()> {
    let name = "hostname";
    let manifest = pod(name)
        .container(shell("main", "hostname; hostname -f; cat /etc/hosts"))
        .spec("hostname", json!("custom"))
        .spec("subdomain", json!("sub"))
        .spec(
            "hostAliases",
            json!([{ "ip": "192.0.2.7", "hostnames": ["one.test", "two.test"] }]),
        );
    let lines = printed(bed, name, manifest).await?;
    ensure!(lines[0] == "custom", "{lines:?}");
    ensure!(lines[1] == "custom.sub.default.svc.cluster.test", "{lines:?}");
    ensure!(
        lines.iter().any(|line| line == "192.0.2.7\tone.test\ttwo.test"),
        "{lines:?}"
    );
    let own = lines
        .iter()
        .find(|line| line.contains("custom.sub.default.svc.cluster.test\tcustom"));
    let network = bed.containerd.network().gateway();
    ensure!(
        own.is_some_and(|line| line.starts_with(network.trim_end_matches('1'))),
        "{lines:?}"
    );
    let plain = "plain-hostname";
    let lines = printed(bed, plain, pod(plain).container(shell("main", "hostname"))).await?;
    ensure!(lines == [bed.node.pod_name(plain)], "{lines:?}");
    Ok(())
}

/// It stands above everything else that makes a name.
async fn hostname_of_the_pods_own_choice(bed: &Bed<'_>) -> Result<()> {
    let name = "hostname-override";
    let manifest = pod(name)
        .container(shell("main", "hostname; cat /etc/hosts"))
        .spec("hostname", json!("custom"))
        .spec("subdomain", json!("sub"))
        .spec("hostnameOverride", json!("other.example.test"));
    let lines = printed(bed, name, manifest).await?;
    ensure!(lines[0] == "other.example.test", "{lines:?}");
    ensure!(
        lines.iter().any(|line| line.ends_with("\tother.example.test")),
        "{lines:?}"
    );
    ensure!(!lines.iter().any(|line| line.contains("custom")), "{lines:?}");
    Ok(())
}

async fn hosts_file_of_a_host_network_pod(bed: &Bed<'_>) -> Result<()> {
    let name = "host-hosts";
    let manifest = pod(name)
        .container(shell("main", "cat /etc/hosts"))
        .spec("hostNetwork", json!(true))
        .spec(
            "hostAliases",
            json!([{ "ip": "192.0.2.8", "hostnames": ["alias.test"] }]),
        );
    let lines = printed(bed, name, manifest).await?;
    ensure!(
        lines.iter().any(|line| line == "192.0.2.8\talias.test"),
        "{lines:?}"
    );
    let of_the_host = std::fs::read_to_string("/etc/hosts")?;
    for line in of_the_host.lines() {
        ensure!(
            lines.iter().any(|found| found == line),
            "{line:?} of the host is not in {lines:?}"
        );
    }
    Ok(())
}

async fn dns_of_the_pods_own(bed: &Bed<'_>) -> Result<()> {
    let config = json!({ "nameservers": ["192.0.2.53"], "searches": ["own.test"],
        "options": [{ "name": "ndots", "value": "2" }, { "name": "edns0" }] });
    let lines = resolv_conf(bed, "dns-own", "None", config).await?;
    ensure!(
        lines
            == [
                "search own.test",
                "nameserver 192.0.2.53",
                "options ndots:2 edns0"
            ],
        "{lines:?}"
    );
    Ok(())
}

async fn dns_of_the_cluster(bed: &Bed<'_>) -> Result<()> {
    let lines = resolv_conf(bed, "dns-cluster", "ClusterFirst", json!({})).await?;
    ensure!(
        lines.iter().any(|line| line == "nameserver 10.96.0.10"),
        "{lines:?}"
    );
    ensure!(
        lines.iter().any(|line| {
            line.starts_with("search default.svc.cluster.test svc.cluster.test cluster.test")
        }),
        "{lines:?}"
    );
    ensure!(lines.iter().any(|line| line == "options ndots:5"), "{lines:?}");
    Ok(())
}

async fn dns_of_the_host(bed: &Bed<'_>) -> Result<()> {
    let lines = resolv_conf(bed, "dns-host", "Default", json!({})).await?;
    let of_the_host = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    for line in of_the_host.lines().filter(|line| line.starts_with("nameserver ")) {
        ensure!(
            lines.iter().any(|found| found == line),
            "{line:?} of the host is not in {lines:?}"
        );
    }
    ensure!(!lines.iter().any(|line| line.contains("10.96.0.10")), "{lines:?}");
    Ok(())
}

async fn resolv_conf(
    bed: &Bed<'_>,
    name: &str,
    policy: &str,
    config: serde_json::Value,
) -> Result<Vec<String>> {
    let manifest = pod(name)
        .container(shell("main", "cat /etc/resolv.conf"))
        .spec("dnsPolicy", json!(policy))
        .spec("dnsConfig", config);
    printed(bed, name, manifest).await
}

async fn host_port_leads_to_the_pod(bed: &Bed<'_>) -> Result<()> {
    let name = "host-port";
    let port = bed.scope.port()?;
    let container = with(
        server("main", &["serve", "--http", "8080"]),
        "ports",
        json!([{ "containerPort": 8080, "hostPort": port }]),
    );
    bed.node.write(name, &pod(name).container(container).json())?;
    bed.node.wait_until_ready(name).await?;
    let address = format!("{}:{port}", bed.containerd.network().gateway());
    let answer = until("the host's port answers", async || {
        http::get(&address, "/hostname")
    })
    .await?;
    ensure!(
        answer.text().trim() == bed.node.pod_name(name),
        "{}",
        answer.text()
    );
    bed.node.remove(name)
}

async fn host_network_is_the_hosts(bed: &Bed<'_>) -> Result<()> {
    let name = "host-network";
    let port = bed.scope.port()?.to_string();
    let manifest = pod(name)
        .container(server("main", &["serve", "--http", &port, "--bind", "127.0.0.1"]))
        .spec("hostNetwork", json!(true));
    bed.node.write(name, &manifest.json())?;
    let pod = bed.node.wait_until_ready(name).await?;
    let inside = bed
        .view
        .exec(&pod.running_id("main")?, &["readlink", "/proc/self/ns/net"])
        .await?;
    let here = std::fs::read_link("/proc/self/ns/net")?;
    ensure!(
        here.to_str() == Some(&inside),
        "its network is {inside}, the host's {here:?}"
    );
    let answer = until("the server answers", async || {
        http::get(&format!("127.0.0.1:{port}"), "/hostname")
    })
    .await?;
    ensure!(answer.status == 200, "{}", answer.text());
    let status = pod.status.as_ref().context("no status")?;
    // Without an API server upstream tells neither.
    ensure!(status.pod_ip == status.host_ip, "{status:?}");
    bed.node.remove(name)
}
