//! Host names that take long to look up.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rubelet_dial::NetworkDialer;
use rubelet_ports::{ConnectError, Dialer, HttpCallError, TcpCall};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::servers::call;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// For calls that get no answer anyway.
const SHORT: Duration = Duration::from_millis(50);

/// Names that begin with `slow` are found only once the test says so; all others at once.
#[derive(Default)]
struct Names {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    asked: Vec<String>,
    is_released: bool,
}

impl Names {
    fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let mut state = self.state.lock().unwrap();
        state.asked.push(name.to_owned());
        if name.starts_with("slow") {
            let _released = self.changed.wait_while(state, |state| !state.is_released);
        }
        Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)])
    }

    fn release(&self) {
        self.state.lock().unwrap().is_released = true;
        self.changed.notify_all();
    }

    fn asked(&self) -> usize {
        self.state.lock().unwrap().asked.len()
    }

    async fn asked_for(&self, count: usize) {
        let all = async {
            while self.asked() < count {
                tokio::task::yield_now().await;
            }
        };
        let asked = tokio::time::timeout(PATIENCE, all).await;
        assert!(asked.is_ok(), "only {} names are looked up", self.asked());
    }
}

struct Scene {
    names: Arc<Names>,
    dialer: Arc<NetworkDialer>,
    listener: TcpListener,
}

impl Scene {
    async fn new() -> Self {
        let names = Arc::<Names>::default();
        let resolver = Arc::clone(&names);
        Self {
            names,
            dialer: Arc::new(NetworkDialer::with_resolver(Arc::new(move |name| {
                resolver.resolve(name)
            }))),
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
        }
    }

    fn call(&self, pod: &str, host: &str, timeout: Duration) -> TcpCall {
        TcpCall {
            pod: pod.into(),
            host: host.to_owned(),
            port: self.listener.local_addr().unwrap().port(),
            timeout,
        }
    }

    async fn connect(&self, pod: &str, host: &str, timeout: Duration) -> Result<(), ConnectError> {
        self.dialer.connect(&self.call(pod, host, timeout)).await
    }
}

impl Drop for Scene {
    /// A runtime ends only when its threads have.
    fn drop(&mut self) {
        self.names.release();
    }
}

#[tokio::test]
async fn slow_names_of_one_pod_hold_up_no_other_pod() {
    let scene = Scene::new().await;
    let mut waiting = JoinSet::new();
    for number in 0..40 {
        let call = scene.call("bad", &format!("slow-{number}"), PATIENCE);
        let dialer = Arc::clone(&scene.dialer);
        waiting.spawn(async move { dialer.connect(&call).await });
    }
    scene.names.asked_for(2).await;
    for pod in ["a", "b", "c"] {
        scene.connect(pod, "good", PATIENCE).await.unwrap();
    }
    // The pod's own calls have no result, and no blame.
    let own = scene.connect("bad", "good", SHORT).await.unwrap_err();
    let expected = "lookup good: not begun in time, because look-ups of other host names take too long";
    let message = expected.to_owned();
    assert_eq!(own, ConnectError::NoPlace { message });
    let mut get = call(scene.listener.local_addr().unwrap(), "/");
    get.host = "good".to_owned();
    get.pod = "bad".into();
    get.timeout = Some(SHORT);
    let own = scene.dialer.http_get(&get).await.unwrap_err();
    assert!(
        matches!(&own, HttpCallError::NoPlace { message } if message.ends_with(expected)),
        "{own:?}"
    );
    assert_eq!(scene.names.asked(), 2 + 3);
    scene.names.release();
    while let Some(connected) = waiting.join_next().await {
        connected.unwrap().unwrap();
    }
}

#[tokio::test]
async fn one_look_up_of_a_name_serves_all_who_need_it() {
    let scene = Scene::new().await;
    for number in 0..100 {
        let pod = format!("pod-{number}");
        let failed = scene.connect(&pod, "slow", Duration::from_millis(1)).await;
        // A resolver that is slow for this name is no fault of ours.
        let is_timeout =
            matches!(&failed, Err(ConnectError::Failed { message }) if message.contains("i/o timeout"));
        assert!(is_timeout, "{failed:?}");
    }
    assert_eq!(scene.names.asked(), 1);
    scene.connect("pod-0", "good", PATIENCE).await.unwrap();
}

#[tokio::test]
async fn many_pods_with_slow_names_are_bounded_together() {
    let scene = Scene::new().await;
    let mut waiting = JoinSet::new();
    for number in 0..100 {
        let pod = format!("pod-{}", number / 2);
        let call = scene.call(&pod, &format!("slow-{number}"), PATIENCE);
        let dialer = Arc::clone(&scene.dialer);
        waiting.spawn(async move { dialer.connect(&call).await });
    }
    scene.names.asked_for(32).await;
    let other = scene.connect("other", "good", SHORT).await;
    assert!(matches!(other, Err(ConnectError::NoPlace { .. })), "{other:?}");
    assert_eq!(scene.names.asked(), 32);
    scene.names.release();
    while let Some(connected) = waiting.join_next().await {
        connected.unwrap().unwrap();
    }
}
