//! What people are told.

use rubelet_ports::{HttpAnswer, HttpCallError};
use serde_json::json;

use crate::bed::{Bed, results};

#[tokio::test(start_paused = true)]
async fn words_are_upstream_s() {
    let probe = |port: u16| json!({"httpGet": {"port": port}, "initialDelaySeconds": 1, "periodSeconds": 10, "failureThreshold": 1});
    let names = ["ok", "moved", "failed", "refused", "broken"];
    let containers: Vec<_> = (1_u16..)
        .zip(names)
        .map(|(port, name)| json!({"name": name, "livenessProbe": probe(port)}))
        .collect();
    let mut bed = Bed::new(&json!(containers));
    let answer = |status, body: &str| {
        Ok(HttpAnswer {
            status,
            body: body.as_bytes().to_vec(),
        })
    };
    let no_answer = HttpCallError::NoAnswer {
        message: "Get \"http://10.0.0.1:4/\": EOF".to_owned(),
        spoke_plain_http: false,
    };
    let broken = HttpCallError::BrokenBody {
        message: "unexpected EOF".to_owned(),
    };
    {
        let mut network = bed.edges.network.lock().unwrap();
        network.http.insert(1, answer(200, "fine"));
        network.http.insert(2, answer(302, "elsewhere"));
        network.http.insert(3, answer(500, "secret"));
        network.http.insert(4, Err(no_answer));
        network.http.insert(5, Err(broken));
    }
    for name in names {
        bed.runs(name, name);
    }
    bed.at(2000).await;
    let reading = bed.show();
    let found: Vec<String> = names.iter().map(|name| results(&reading, name)).collect();
    assert_eq!(found, ["--+", "--+", "--x", "--x", "--+"]);
    let mut events = bed.events();
    events.sort();
    assert_eq!(
        events,
        [
            "Warning ProbeWarning moved: Liveness probe warning: Probe terminated redirects, Response body: elsewhere",
            "Warning Unhealthy broken: Liveness probe errored and resulted in failure state: unexpected EOF",
            "Warning Unhealthy failed: Liveness probe failed: HTTP probe failed with statuscode: 500",
            "Warning Unhealthy refused: Liveness probe failed: Get \"http://10.0.0.1:4/\": EOF",
        ]
    );
    assert_eq!(bed.asked(5).len(), 3, "a fault of our own is tried three times");
}

#[tokio::test(start_paused = true)]
async fn a_port_that_is_not_there_is_told() {
    let probe = json!({"httpGet": {"port": "web"}, "initialDelaySeconds": 1, "periodSeconds": 10});
    let mut bed = Bed::new(&json!([{"name": "c", "readinessProbe": probe}]));
    bed.runs("c", "a");
    bed.at(1500).await;
    assert_eq!(results(&bed.show(), "a"), "-x-");
    assert_eq!(
        bed.events(),
        [
            "Warning Unhealthy c: Readiness probe errored and resulted in unknown state: port \"web\" not found"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_host_name_that_is_not_looked_up_in_time_says_nothing_about_the_container() {
    let probe =
        json!({"tcpSocket": {"host": "db.example", "port": 1}, "periodSeconds": 1, "failureThreshold": 1});
    let container = json!({"name": "c", "livenessProbe": probe, "readinessProbe": probe});
    let mut bed = Bed::new(&json!([container]));
    bed.runs("c", "a");
    bed.at(3000).await;
    assert_eq!(results(&bed.show(), "a"), "-++");
    bed.edges.network.lock().unwrap().without_place = true;
    bed.at(30_000).await;
    // Neither restarted nor taken out of its Services, however long it lasts.
    assert_eq!(results(&bed.show(), "a"), "-++");
    let events = bed.events();
    assert!(!events.is_empty());
    for event in events {
        assert!(
            event.ends_with("probe errored and resulted in unknown state: too many look-ups"),
            "{event}"
        );
    }
    bed.edges.network.lock().unwrap().without_place = false;
    bed.at(40_000).await;
    assert_eq!(results(&bed.show(), "a"), "-++");
}
