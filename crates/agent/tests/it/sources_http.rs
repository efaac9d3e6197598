//! The HTTP source against a small server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rubelet_agent::settings::HttpSource;
use rubelet_agent::sources::{Source, SourceSettings};
use rubelet_host::HostFiles;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::sources_scene::{Lines, Scene, eventually, manifest};

const INTERVAL: Duration = Duration::from_hours(1);

/// A server with one answer at a time.
#[derive(Clone)]
struct Server {
    answer: Arc<Mutex<(u16, String)>>,
    asked: Arc<Mutex<Vec<String>>>,
    port: u16,
}

impl Server {
    async fn start(status: u16, body: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            answer: Arc::new(Mutex::new((status, body.to_owned()))),
            asked: Arc::default(),
            port: listener.local_addr().unwrap().port(),
        };
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let (status, body) = serving.answer.lock().unwrap().clone();
                serving
                    .asked
                    .lock()
                    .unwrap()
                    .push(String::from_utf8(head).unwrap());
                let length = body.len();
                let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n{body}");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        server
    }

    fn set(&self, status: u16, body: &str) {
        *self.answer.lock().unwrap() = (status, body.to_owned());
    }

    fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    fn scene(&self) -> Scene {
        let settings = SourceSettings {
            node_name: "node".to_owned(),
            file: None,
            http: Some(HttpSource {
                url: format!("http://127.0.0.1:{}/pods", self.port),
                headers: vec![("X-Key".to_owned(), "a secret".to_owned())],
                check_interval: INTERVAL,
            }),
            gates: Arc::default(),
        };
        Scene::start(&settings, Arc::new(HostFiles::new()))
    }

    /// Lets the source ask once more and waits for it.
    async fn ask_again(&self, scene: &Scene) {
        let before = self.count();
        eventually("another request", || {
            scene.clock.jump(INTERVAL);
            self.count() > before
        })
        .await;
    }
}

fn list(names: &[&str]) -> String {
    let items: Vec<String> = names
        .iter()
        .map(|name| {
            format!(
                r#"{{"metadata":{{"name":"{name}"}},"spec":{{"containers":[{{"name":"c","image":"i"}}]}}}}"#
            )
        })
        .collect();
    format!(
        r#"{{"apiVersion":"v1","kind":"PodList","items":[{}]}}"#,
        items.join(",")
    )
}

#[tokio::test]
async fn a_pod_or_a_list_is_read_and_the_same_answer_is_no_new_set() {
    let server = Server::start(200, &manifest("web", "i")).await;
    let mut scene = server.scene();
    assert_eq!(scene.started, [Source::Http]);
    assert_eq!(scene.next().await, ["web-node i"]);
    assert!(
        server.asked.lock().unwrap()[0]
            .to_lowercase()
            .contains("x-key: a secret")
    );
    server.ask_again(&scene).await;
    server.ask_again(&scene).await;
    assert!(scene.sets.is_empty(), "the same again");
    server.set(200, &list(&["db", "web"]));
    assert_eq!(
        scene.next_after_jumps(INTERVAL).await,
        ["db-node i", "web-node i"]
    );
    server.set(200, &list(&[]));
    assert!(scene.next_after_jumps(INTERVAL).await.is_empty());
}

#[tokio::test]
async fn an_empty_answer_wants_no_pods_and_what_came_before_counts_again() {
    let server = Server::start(200, "").await;
    let mut scene = server.scene();
    assert!(scene.next().await.is_empty(), "the source has delivered");
    server.set(200, &manifest("web", "i"));
    assert_eq!(scene.next_after_jumps(INTERVAL).await, ["web-node i"]);
    server.set(200, "");
    assert!(scene.next_after_jumps(INTERVAL).await.is_empty());
    server.set(200, &manifest("web", "i"));
    assert_eq!(scene.next_after_jumps(INTERVAL).await, ["web-node i"]);
}

#[tokio::test]
async fn failures_keep_the_last_good_set_and_are_told_of_with_measure() {
    let (lines, _guard) = Lines::capture();
    let server = Server::start(503, "").await;
    let mut scene = server.scene();
    eventually("a line", || lines.with("cannot read pods").len() == 1).await;
    assert!(scene.sets.is_empty(), "not ready is not empty");
    server.set(200, &manifest("web", "i"));
    assert_eq!(scene.next_after_jumps(INTERVAL).await, ["web-node i"]);
    eventually("the end", || lines.with("again").len() == 1).await;

    for (status, body) in [
        (500, "x"),
        (204, ""),
        (200, "kind: ["),
        (200, &list(&["web", "A_"])),
    ] {
        server.set(status, body);
        server.ask_again(&scene).await;
        server.ask_again(&scene).await;
    }
    assert!(
        scene.sets.is_empty(),
        "one bad pod refuses the whole answer, and the last good one stays"
    );
    let told = lines.with("cannot read pods");
    assert!(
        told.iter().all(|line| line.contains("last good pods")),
        "{told:?}"
    );
    assert!(told.iter().any(|line| line.contains("answered 500")), "{told:?}");
    assert!(told.iter().all(|line| !line.contains("secret")));
    server.set(200, &manifest("web", "j"));
    assert_eq!(scene.next_after_jumps(INTERVAL).await, ["web-node j"]);
}
