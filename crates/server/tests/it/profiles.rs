//! Profiles over HTTP, with a profiler that the test holds back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use async_trait::async_trait;
use rubelet_ports::{CpuProfiler, ProfileError};
use rubelet_testbed::wait::wait_until;
use rubelet_testbed::{Scope, in_scope};
use serde_json::json;
use tokio::sync::watch;

use crate::client::{Connection, DEADLINE};
use crate::fixture::{Running, Setup};

/// Gives the time it was asked for, as soon as the test lets it.
struct HeldProfiler {
    is_busy: AtomicBool,
    may_end: watch::Sender<bool>,
}

/// Not busy any more when it is dropped.
struct Busy<'a>(&'a AtomicBool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[async_trait]
impl CpuProfiler for HeldProfiler {
    async fn profile(&self, time: Duration) -> Result<Vec<u8>, ProfileError> {
        if self.is_busy.swap(true, Ordering::SeqCst) {
            return Err(ProfileError::InUse);
        }
        let _busy = Busy(&self.is_busy);
        let mut may_end = self.may_end.subscribe();
        drop(may_end.wait_for(|may_end| *may_end).await);
        Ok(format!("{time:?}").into_bytes())
    }
}

impl HeldProfiler {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            is_busy: AtomicBool::new(false),
            may_end: watch::Sender::new(false),
        })
    }

    fn let_go(&self) {
        self.may_end.send_replace(true);
    }

    async fn becomes(&self, is_busy: bool) -> Result<()> {
        wait_until("the profiler", DEADLINE, async || {
            ensure!(self.is_busy.load(Ordering::SeqCst) == is_busy);
            Ok(())
        })
        .await
    }
}

async fn scene(scope: &Scope) -> Result<(Running, Arc<HeldProfiler>)> {
    let profiler = HeldProfiler::new();
    let mut setup = Setup::new(scope)?;
    setup.cpu_profiler = Some(Arc::clone(&profiler) as Arc<dyn CpuProfiler>);
    Ok((setup.start().await?, profiler))
}

/// Status and text; every text of a refusal is marked for people.
async fn check(connection: &mut Connection, path: &str, status: u16, text: &str) -> Result<()> {
    let answer = connection.get(path).await?;
    assert_eq!((answer.status, answer.text().as_str()), (status, text), "{path}");
    assert_eq!(
        answer.header("content-type"),
        "text/plain; charset=utf-8",
        "{path}"
    );
    assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
    assert_eq!(answer.header("x-go-pprof") == "1", status != 200, "{path}");
    assert_eq!(answer.header("content-disposition"), "", "{path}");
    Ok(())
}

#[test]
fn a_profile_is_given_as_go_gives_it() {
    in_scope("profile", async |scope| {
        let (running, profiler) = scene(scope).await?;
        profiler.let_go();
        let mut tls = running.tls().await?;
        for (query, time) in [
            ("", "30s"),
            ("?seconds=5", "5s"),
            ("?seconds=300", "300s"),
            ("?seconds=0", "30s"),
            ("?seconds=soon", "30s"),
        ] {
            let answer = tls.get(&format!("/debug/pprof/profile{query}")).await?;
            assert_eq!((answer.status, answer.text().as_str()), (200, time), "{query}");
            for (name, value) in [
                ("content-type", "application/octet-stream"),
                ("content-disposition", "attachment; filename=\"profile\""),
                ("x-content-type-options", "nosniff"),
                ("x-go-pprof", ""),
            ] {
                assert_eq!(answer.header(name), value, "{query}");
            }
        }
        for (path, status, text) in [
            (
                "/debug/pprof/profile?seconds=301",
                400,
                "seconds: 301 is too long: must be at most 300\n",
            ),
            (
                "/debug/pprof/",
                200,
                "profile: where rubelet spends CPU time; ?seconds=N, 30 where it is not given, 300 at most\n",
            ),
            (
                "/debug/pprof/heap",
                501,
                "rubelet has no such profile; there is /debug/pprof/profile, of the CPU\n",
            ),
        ] {
            check(&mut tls, path, status, text).await?;
        }
        for method in ["POST", "HEAD", "DELETE"] {
            let answer = tls.ask(method, "/debug/pprof/profile").await?;
            assert_eq!((answer.status, answer.header("allow")), (405, "GET"), "{method}");
        }
        Ok(())
    });
}

#[test]
fn one_profile_is_taken_at_a_time_and_a_client_that_goes_makes_room() {
    in_scope("profile-slot", async |scope| {
        let (running, profiler) = scene(scope).await?;
        let mut first = running.tls().await?;
        first.begin("GET", "/debug/pprof/profile").await?;
        profiler.becomes(true).await?;
        let mut second = running.tls().await?;
        let told = "Could not enable CPU profiling: cpu profiling already in use\n";
        check(&mut second, "/debug/pprof/profile", 500, told).await?;
        drop(first);
        profiler.becomes(false).await?;
        profiler.let_go();
        assert_eq!(second.get("/debug/pprof/profile").await?.status, 200);
        Ok(())
    });
}

#[test]
fn a_server_that_stops_waits_for_no_profile() {
    in_scope("profile-stop", async |scope| {
        let (running, profiler) = scene(scope).await?;
        let mut client = running.tls().await?;
        client.begin("GET", "/debug/pprof/profile").await?;
        profiler.becomes(true).await?;
        running.server.stop().await;
        assert!(!profiler.is_busy.load(Ordering::SeqCst));
        let mut answer = client.head().await?;
        client.rest_of(&mut answer).await?;
        let told = (answer.status, answer.text());
        assert_eq!(told, (503, "rubelet is stopping\n".to_owned()));
        Ok(())
    });
}

#[test]
fn profiles_can_be_switched_off_or_left_out() {
    in_scope("profile-off", async |scope| {
        let running = Setup::new(scope)?.start().await?;
        let mut tls = running.tls().await?;
        let told = "this rubelet cannot be profiled: it was built without the feature \"profile\"\n";
        for name in ["", "profile", "heap"] {
            check(&mut tls, &format!("/debug/pprof/{name}"), 501, told).await?;
        }
        drop(tls);
        running.server.stop().await;

        let profiler = HeldProfiler::new();
        let mut setup = Setup::new(scope)?.with("enableProfilingHandler", json!(false));
        setup.cpu_profiler = Some(Arc::clone(&profiler) as Arc<dyn CpuProfiler>);
        let running = setup.start().await?;
        for (mut connection, told) in [
            (running.tls().await?, "profiling endpoint is disabled.\n"),
            (running.read_only().await?, "Debug endpoints are disabled.\n"),
        ] {
            let answer = connection.get("/debug/pprof/profile").await?;
            assert_eq!((answer.status, answer.text().as_str()), (405, told));
        }
        Ok(())
    });
}
