//! Sessions in a container of a real containerd, by a small WebSocket client. SPDY is spoken by `kubectl` in the end-to-end
//! test `cluster_streams`, which has it speak both.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use rubelet_model::Timestamp;
use rubelet_model::observation::{
    ContainerObservation, ContainerState, PodObservation, SandboxObservation, SandboxState,
};
use rubelet_ports::RuntimeWriter;
use rubelet_testbed::bare_pod::{BarePod, connect};
use rubelet_testbed::containerd::{Containerd, Flavour};
use rubelet_testbed::images::{self, BUSYBOX, SERVER};
use rubelet_testbed::wait::wait_until;
use rubelet_testbed::{Scope, in_scope};
use rubelet_wire::cri::v1;
use serde_json::{Value, json};

use crate::client::{Connection, DEADLINE};
use crate::fixture::{Running, Setup};
use crate::many_sessions::held_sockets;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
const CLOSES: u8 = 255;
/// What is passed through to the runtime, and what is translated for it.
const V4: &str = "v4.channel.k8s.io";
const V5: &str = "v5.channel.k8s.io";

/// A WebSocket whose messages begin with a channel's number.
struct Channels(Connection);

impl Channels {
    async fn open(running: &Running, path: &str, protocol: &str) -> Result<Self> {
        let mut connection = running.tls().await?;
        let headers = [
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Protocol", protocol),
        ];
        let answer = connection.ask_with("GET", path, &headers, "").await?;
        ensure!(answer.status == 101, "{}: {answer:?} {}", path, answer.text());
        let accepted = answer.header("sec-websocket-accept");
        ensure!(accepted == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", "{accepted}");
        let chosen = answer.header("sec-websocket-protocol");
        ensure!(chosen == protocol, "{chosen}");
        Ok(Self(connection))
    }

    async fn send(&mut self, channel: u8, content: &[u8]) -> Result<()> {
        let length = u8::try_from(content.len() + 1)
            .ok()
            .filter(|length| *length < 126);
        // One binary frame, masked with zeros.
        let mut frame = vec![
            0x82,
            0x80 | length.context("too long for this client")?,
            0,
            0,
            0,
            0,
            channel,
        ];
        frame.extend_from_slice(content);
        self.0.send(&frame).await
    }

    /// The next message; none when the other side closes.
    async fn next(&mut self) -> Result<Option<(u8, Vec<u8>)>> {
        let head = self.0.take(2).await?;
        let length = match head[1] {
            126 => usize::from(u16::from_be_bytes(self.0.take(2).await?.try_into().unwrap())),
            127 => bail!("a message that is too long for this client"),
            short => usize::from(short),
        };
        let content = self.0.take(length).await?;
        match (head[0], content.split_first()) {
            (0x82, Some((channel, content))) => Ok(Some((*channel, content.to_vec()))),
            (0x88, _) => Ok(None),
            _ => bail!("a frame of another kind: {head:?}"),
        }
    }

    /// Collects a channel until it holds these words.
    async fn until(&mut self, channel: u8, words: &str) -> Result<String> {
        let mut text = String::new();
        while !text.contains(words) {
            let Some((from, content)) = self.next().await? else {
                bail!("closed before {words:?}: {text:?}");
            };
            if from == channel {
                text.push_str(&String::from_utf8_lossy(&content));
            }
        }
        Ok(text)
    }

    async fn status(&mut self) -> Result<Value> {
        Ok(serde_json::from_str(&self.until(STATUS, "}").await?)?)
    }
}

struct Scene {
    running: Running,
    pod: BarePod,
    // Last: the pod and the server use it.
    _containerd: Containerd,
}

/// Says what it hears.
fn talk_config() -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: "talk".to_owned(),
            attempt: 0,
        }),
        image: Some(v1::ImageSpec {
            image: BUSYBOX.to_owned(),
            ..Default::default()
        }),
        args: vec!["cat".to_owned()],
        stdin: true,
        log_path: "talk.log".to_owned(),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(v1::LinuxContainerResources::default()),
            security_context: Some(v1::LinuxContainerSecurityContext::default()),
        }),
        ..Default::default()
    }
}

async fn scene(scope: &Scope) -> Result<Scene> {
    let containerd = Containerd::start(scope, Flavour::Debian)?;
    containerd.import(&images::busybox()?)?;
    containerd.import(&images::server()?)?;
    let client = connect(&containerd).await?;
    let mut pod = BarePod::run(&client, scope, "web").await?;
    let main = pod.start_container("main", BUSYBOX, &["sleep", "3600"]).await?;
    let server = pod.start_container("server", SERVER, &[]).await?;
    let talk = pod.start_container_as(talk_config()).await?;
    let mut setup = Setup::new(scope)?;
    setup.real_runtime = Some(Arc::new(client) as Arc<dyn RuntimeWriter>);
    let running = setup.start().await?;
    running.pods.set(json!({
        "metadata": { "name": "web", "namespace": "default", "uid": "u" },
        "spec": { "containers": [{ "name": "main" }, { "name": "server" }, { "name": "talk" }] },
    }))?;
    let now = Timestamp::from_unix_seconds(1);
    let state = || ContainerState::Running { started_at: now };
    let containers = vec![
        ContainerObservation::new(main, "main", pod.sandbox_id(), state(), now),
        ContainerObservation::new(server, "server", pod.sandbox_id(), state(), now),
        ContainerObservation::new(talk, "talk", pod.sandbox_id(), state(), now),
    ];
    let sandboxes = vec![SandboxObservation::new(
        pod.sandbox_id(),
        0,
        SandboxState::Ready,
        now,
    )];
    let identity = ("u".into(), "default".to_owned(), "web".to_owned());
    let observed = PodObservation::new(identity, sandboxes, containers, now);
    *running.pods.observed.lock().unwrap() = vec![Arc::new(observed)];
    Ok(Scene {
        running,
        pod,
        _containerd: containerd,
    })
}

#[test]
fn a_real_container_is_entered() {
    in_scope("real-sessions", async |scope| {
        let scene = scene(scope).await?;
        for protocol in [V4, V5] {
            enter(&scene.running, protocol)
                .await
                .with_context(|| protocol.to_owned())?;
        }

        // Only the newer protocol can say that the input is over.
        let path = "/exec/default/web/main?command=cat&input=1&output=1";
        let mut session = Channels::open(&scene.running, path, V5).await?;
        session.send(STDIN, b"to the end").await?;
        session.send(CLOSES, &[STDIN]).await?;
        session.until(STDOUT, "to the end").await?;
        assert_eq!(session.status().await?["status"], "Success");
        scene.pod.remove().await
    });
}

async fn enter(running: &Running, protocol: &str) -> Result<()> {
    let exec = |streams: &str, script: &str| {
        let script = script
            .replace(' ', "+")
            .replace(';', "%3B")
            .replace('&', "%26")
            .replace('>', "%3E");
        format!("/exec/default/web/main?command=sh&command=-c&command={script}&{streams}")
    };

    // Both outputs, and the exit code.
    let path = exec("output=1&error=1", "echo out; echo err >&2; exit 7");
    let mut session = Channels::open(running, &path, protocol).await?;
    let (mut out, mut err, mut status) = (String::new(), String::new(), String::new());
    while let Some((channel, content)) = session.next().await? {
        let text = String::from_utf8(content)?;
        match channel {
            STDOUT => out.push_str(&text),
            STDERR => err.push_str(&text),
            STATUS => status.push_str(&text),
            _ => bail!("channel {channel}: {text}"),
        }
    }
    assert_eq!((out.as_str(), err.as_str()), ("out\n", "err\n"));
    let status: Value = serde_json::from_str(&status)?;
    assert_eq!(status["reason"], "NonZeroExitCode");
    assert_eq!(status["details"]["causes"][0]["message"], "7");

    // Input, a terminal and its size.
    let path = exec(
        "input=1&output=1&tty=1",
        // The size travels apart from the input and may come after it.
        "read line; echo got $line; read line; until stty size | grep 45; do sleep 0.1; done 2>/dev/null",
    );
    let mut session = Channels::open(running, &path, protocol).await?;
    session.send(STDIN, b"words\n").await?;
    session.until(STDOUT, "got words").await?;
    session.send(RESIZE, br#"{"Width":123,"Height":45}"#).await?;
    session.send(STDIN, b"\n").await?;
    session.until(STDOUT, "45 123").await?;
    assert_eq!(session.status().await?["status"], "Success");

    // A command that does not exist.
    let path = "/exec/default/web/main?command=/no/such&output=1";
    let mut session = Channels::open(running, path, protocol).await?;
    assert_eq!(session.status().await?["reason"], "InternalError");

    // Attached to what runs already.
    talk(running, protocol, "are you there").await?;

    // Without streams.
    let mut client = running.tls().await?;
    let answer = client
        .ask("POST", "/run/default/web/main?cmd=echo+run+it")
        .await?;
    assert_eq!((answer.status, answer.text().as_str()), (200, "run it\n"));
    let answer = client.ask("POST", "/run/default/web/main?cmd=false").await?;
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (500, "command 'false' exited with 1: ")
    );
    Ok(())
}

/// Attached to a container that runs already and says what it hears. containerd begins to pass words on before it passes
/// answers back: one that comes in between is lost, and asked for again.
async fn talk(running: &Running, protocol: &str, words: &str) -> Result<()> {
    wait_until("the container answers", DEADLINE, async || {
        let path = "/attach/default/web/talk?input=1&output=1";
        let mut session = Channels::open(running, path, protocol).await?;
        session.send(STDIN, format!("{words}\n").as_bytes()).await?;
        let heard = session.until(STDOUT, words);
        tokio::time::timeout(DEADLINE / 4, heard)
            .await
            .context("no answer")??;
        Ok(())
    })
    .await
}

#[test]
fn a_port_of_a_real_pod_is_reached() {
    in_scope("real-forward", async |scope| {
        let scene = scene(scope).await?;
        let forwarded = wait_until("the pod's server answers", DEADLINE, async || {
            let mut session =
                Channels::open(&scene.running, "/portForward/default/web?port=8080", V4).await?;
            let mut ports = Vec::new();
            // Each of the two channels begins with its port.
            for _ in 0..2 {
                ports.push(session.next().await?.context("closed")?);
            }
            ports.sort();
            assert_eq!(ports, [(0, vec![0x90, 0x1f]), (1, vec![0x90, 0x1f])]);
            session
                .send(0, b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
                .await?;
            session.until(0, "HTTP/1.1 200").await
        });
        forwarded.await?;
        scene.pod.remove().await
    });
}

#[test]
fn a_client_that_goes_leaves_no_process_waiting() {
    in_scope("real-vanish", async |scope| {
        let scene = scene(scope).await?;
        let path = "/exec/default/web/main?command=cat&input=1&output=1";
        for protocol in [V4, V5] {
            let mut session = Channels::open(&scene.running, path, protocol).await?;
            session.send(STDIN, b"hello").await?;
            session.until(STDOUT, "hello").await?;
        }
        wait_until("cat sees its end", DEADLINE, async || {
            let processes = scene.pod.exec("main", &["ps", "-o", "comm"]).await?.stdout;
            // The container `talk` has one of its own, elsewhere.
            ensure!(!processes.lines().any(|line| line == "cat"), "{processes}");
            Ok(())
        })
        .await?;
        // Who was attached goes alone: what runs goes on, and hears the next one.
        for protocol in [V4, V5, V4, V5] {
            talk(&scene.running, protocol, "still there").await?;
            wait_until("nothing is left of the session", DEADLINE, async || {
                let sockets = held_sockets(&[scene.running.ports.tls])?;
                ensure!(sockets.is_empty(), "{sockets:?}");
                Ok(())
            })
            .await?;
        }
        scene.pod.remove().await
    });
}

#[test]
fn what_a_command_prints_is_bounded() {
    in_scope("real-run-bound", async |scope| {
        // What is taken of one answer of the runtime.
        const LIMIT_BYTES: usize = 16 << 20;
        let scene = scene(scope).await?;
        let mut client = scene.running.tls().await?;
        let run = |bytes: usize| format!("/run/default/web/main?cmd=head+-c+{bytes}+/dev/zero");
        let answer = client.ask("POST", &run(1 << 20)).await?;
        assert_eq!((answer.status, answer.body.len()), (200, 1 << 20));
        let answer = client.ask("POST", &run(4 * LIMIT_BYTES)).await?;
        // The rest of it is never held: the answer is the client's refusal to take more.
        assert_eq!(answer.status, 500, "{} bytes", answer.body.len());
        assert!(answer.body.len() < 1024, "{}", answer.text());
        scene.pod.remove().await
    });
}
