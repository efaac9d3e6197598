//! The running program on a real containerd: what it reports, how it ends, how it gives way.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rubelet_testbed::containerd::{Containerd, Flavour};
use rubelet_testbed::process::Process;
use rubelet_testbed::wait::wait_for;
use rubelet_testbed::{Scope, in_scope};

const DEADLINE: Duration = Duration::from_secs(60);
/// A node without an API server that could say who may ask.
const CONFIG: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
    authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}\nauthorization: {mode: AlwaysAllow}\n";

#[expect(clippy::expect_used, reason = "a test fails by panicking")]
fn command(scope: &Scope, endpoint: &str) -> Command {
    // No flag says where logs of pods are; those of the machine's own kubelet are not a test's to tidy up.
    let logs = scope.path("logs-of-pods");
    let config = scope.path("config.yaml");
    let text = format!("{CONFIG}podLogsDir: {}\n", logs.display());
    fs::write(&config, text).expect("a writable scope");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rubelet"));
    command
        .arg("--config")
        .arg(config)
        .arg("--root-dir")
        .arg(scope.path("root"))
        .arg("--cert-dir")
        .arg(scope.path("pki"))
        .arg(format!("--container-runtime-endpoint={endpoint}"))
        // Tests run side by side: each has its own port and none of the fixed ones.
        .arg(format!("--port={}", scope.port().expect("a free port")))
        .args(["--read-only-port=0", "--healthz-port=0"])
        // The packet filter of the machine is not the tests'.
        .arg("--make-iptables-util-chains=false")
        .args(["--fail-cgroupv1=false", "--hostname-override=Node-A"])
        // The machine's own tree is not a test's to change.
        .args(["--cgroups-per-qos=false", "--enforce-node-allocatable="]);
    command
}

fn wait_for_log(process: &mut Process, words: &str) -> Result<String> {
    wait_for(words, DEADLINE, || {
        let log = fs::read_to_string(process.log())?;
        if !log.contains(words) {
            process.check_running()?;
        }
        ensure!(log.contains(words), "the log has no {words:?}:\n{log}");
        Ok(log)
    })
}

fn exit_code(mut process: Process) -> Result<i32> {
    process.wait(DEADLINE)?.code().context("ended by a signal")
}

#[test]
fn the_runtime_and_the_node_are_reported_and_sigterm_ends_it() {
    in_scope("report", async |scope| {
        let mut containerd = Containerd::start(scope, Flavour::Debian)?;
        let notify = scope.path("notify");
        let socket = UnixDatagram::bind(&notify)?;
        socket.set_read_timeout(Some(DEADLINE))?;
        let mut command = command(scope, &containerd.endpoint());
        command
            .env("NOTIFY_SOCKET", &notify)
            .env("WATCHDOG_USEC", "1100000");
        let mut rubelet = scope.spawn("rubelet", command)?;

        let mut buffer = [0; 128];
        let mut message = || -> Result<String> {
            let length = socket.recv(&mut buffer)?;
            Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
        };
        assert_eq!(message()?, "READY=1");
        assert_eq!(message()?, "WATCHDOG=1");

        let log = wait_for_log(&mut rubelet, "condition=\"NetworkReady\"")?;
        let version = containerd.version()?;
        assert!(
            log.contains("\"Container runtime\"") && log.contains("name=\"containerd\""),
            "{log}"
        );
        assert!(log.contains(version.trim()), "{version} is missing in:\n{log}");
        assert!(
            log.contains("name=\"node-a\"") && log.contains("mode=\"standalone\""),
            "{log}"
        );
        assert!(log.contains("condition=\"RuntimeReady\""), "{log}");
        let log = wait_for_log(&mut rubelet, "\"The API answers\"")?;
        let addresses = log.lines().filter(|line| line.contains("The API answers"));
        for line in addresses {
            assert!(
                line.contains("address=\"[::]:") || line.contains("address=\"0.0.0.0:"),
                "{line}"
            );
        }

        containerd.kill()?;
        wait_for_log(&mut rubelet, "The container runtime is not ready")?;
        containerd.start_again()?;
        wait_for("the runtime is seen again", DEADLINE, || {
            let log = fs::read_to_string(rubelet.log())?;
            let after = log
                .rsplit("The container runtime is not ready")
                .next()
                .unwrap_or_default()
                .to_owned();
            ensure!(after.contains("The container runtime is ready"), "{after}");
            Ok(())
        })?;

        rubelet.signal(rustix::process::Signal::TERM)?;
        assert_eq!(exit_code(rubelet)?, 0);
        Ok(())
    });
}

#[test]
fn another_process_that_wants_the_lock_file_takes_over() {
    in_scope("lock-file", async |scope| {
        let containerd = Containerd::start(scope, Flavour::Debian)?;
        let lock = scope.path("lock");
        let start = |name: &str| {
            let mut command = command(scope, &containerd.endpoint());
            command
                .arg("--lock-file")
                .arg(&lock)
                .arg("--exit-on-lock-contention");
            scope.spawn(name, command)
        };
        let mut first = start("first")?;
        wait_for_log(&mut first, "Rubelet is ready")?;
        let mut second = start("second")?;
        assert_eq!(exit_code(first)?, 0);
        let log = wait_for_log(&mut second, "Rubelet is ready")?;
        assert!(log.contains("Acquiring the lock file"), "{log}");
        Ok(())
    });
}

/// The program under the limits `before` and without the right to raise the higher one.
fn limited(scope: &Scope, endpoint: &str, before: &str) -> Command {
    let rubelet = command(scope, endpoint);
    let mut command = Command::new("setpriv");
    command
        .args(["--bounding-set=-sys_resource", "prlimit"])
        .arg(format!("--nofile={before}"))
        .arg(rubelet.get_program())
        .args(rubelet.get_args());
    command
}

#[test]
fn open_files_are_limited_as_configured_or_as_far_as_allowed() {
    in_scope("open-files", async |scope| {
        let containerd = Containerd::start(scope, Flavour::Debian)?;
        let check = |argument: &str, expected: [&str; 2], is_told: bool| -> Result<()> {
            let mut command = limited(scope, &containerd.endpoint(), "100:500");
            command.arg(argument);
            // Each has a log of its own, or the second is found ready in the first one's.
            let mut rubelet = scope.spawn(argument.trim_start_matches('-'), command)?;
            let log = wait_for_log(&mut rubelet, "Rubelet is ready")?;
            let limits = fs::read_to_string(format!("/proc/{}/limits", rubelet.pid()))?;
            let line = limits.lines().find(|line| line.starts_with("Max open files"));
            let words: Vec<&str> = line.context("no limit")?.split_whitespace().skip(3).collect();
            assert_eq!(words[..2], expected, "{argument}");
            assert_eq!(
                log.contains("The limit of open files cannot be set"),
                is_told,
                "{log}"
            );
            rubelet.signal(rustix::process::Signal::TERM)?;
            assert_eq!(exit_code(rubelet)?, 0);
            Ok(())
        };
        check("--max-open-files=400", ["400", "400"], false)?;
        check("--max-open-files=1000000", ["500", "500"], true)
    });
}

#[test]
fn the_directory_of_checkpoints_is_made_for_root_only() {
    in_scope("checkpoints", async |scope| {
        let containerd = Containerd::start(scope, Flavour::Debian)?;
        let mut rubelet = scope.spawn("rubelet", command(scope, &containerd.endpoint()))?;
        wait_for_log(&mut rubelet, "Rubelet is ready")?;
        let directory = fs::metadata(scope.path("root/checkpoints"))?;
        assert!(directory.is_dir());
        assert_eq!(directory.permissions().mode() & 0o777, 0o700);
        Ok(())
    });
}

#[test]
fn others_do_not_look_into_the_root_directory() {
    in_scope("root-directory", async |scope| {
        let containerd = Containerd::start(scope, Flavour::Debian)?;
        let mut rubelet = scope.spawn("rubelet", command(scope, &containerd.endpoint()))?;
        wait_for_log(&mut rubelet, "Rubelet is ready")?;
        for directory in ["root", "root/pods", "logs-of-pods"] {
            let mode = fs::metadata(scope.path(directory))?.permissions().mode() & 0o777;
            assert_eq!(mode, 0o750, "{directory}");
        }
        Ok(())
    });
}

#[test]
fn pods_of_a_url_come_through_the_proxy_of_the_environment() {
    in_scope("proxy-of-pods", async |scope| {
        let containerd = Containerd::start(scope, Flavour::Debian)?;
        let proxy = TcpListener::bind("127.0.0.1:0")?;
        let mut command = command(scope, &containerd.endpoint());
        command
            .arg("--manifest-url=http://pods.test/all")
            .env("HTTP_PROXY", format!("http://{}", proxy.local_addr()?))
            .env_remove("NO_PROXY")
            .env_remove("no_proxy");
        let _rubelet = scope.spawn("rubelet", command)?;
        proxy.set_nonblocking(true)?;
        let (client, _) = wait_for("rubelet asks the proxy", DEADLINE, || Ok(proxy.accept()?))?;
        client.set_nonblocking(false)?;
        client.set_read_timeout(Some(DEADLINE))?;
        let mut request = String::new();
        BufReader::new(client).read_line(&mut request)?;
        assert_eq!(request, "GET http://pods.test/all HTTP/1.1\r\n");
        Ok(())
    });
}

#[test]
fn a_failed_start_is_an_event_of_the_node() {
    in_scope("setup-failed", async |scope| {
        let containerd = Containerd::start(scope, Flavour::Debian)?;
        let taken = TcpListener::bind("0.0.0.0:0")?;
        let mut command = command(scope, &containerd.endpoint());
        command.arg(format!("--port={}", taken.local_addr()?.port()));
        let process = scope.spawn("rubelet", command)?;
        let log = process.log().to_owned();
        assert_eq!(exit_code(process)?, 1);
        let log = fs::read_to_string(log)?;
        let event = log.lines().find(|line| line.contains("KubeletSetupFailed"));
        assert!(
            event.is_some_and(|line| line.contains("serve the node's HTTP API")),
            "{log}"
        );
        Ok(())
    });
}

#[test]
fn a_wish_for_no_http2_is_not_ignored_in_silence() {
    in_scope("no-http2", async |scope| {
        let mut command = command(scope, "unix:///nonexistent/containerd.sock");
        command
            .arg("--runtime-request-timeout=2s")
            .env("DISABLE_HTTP2", "true");
        let mut rubelet = scope.spawn("rubelet", command)?;
        wait_for_log(&mut rubelet, "DISABLE_HTTP2")?;
        Ok(())
    });
}

#[test]
fn the_log_can_be_json() {
    in_scope("json-log", async |scope| {
        let log = failing_log(scope, &["--logging-format=json"])?;
        for line in log.lines() {
            let line: serde_json::Value =
                serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
            assert!(line["msg"].is_string() && line["ts"].is_number(), "{line}");
        }
        Ok(())
    });
}

#[test]
fn a_runtime_that_is_not_there_is_named() {
    in_scope("no-runtime", async |scope| {
        let log = failing_log(scope, &[])?;
        assert!(log.contains("/nonexistent/containerd.sock"), "{log}");
        Ok(())
    });
}

#[test]
fn a_bad_watchdog_wish_keeps_it_from_starting() {
    in_scope("bad-watchdog", async |scope| {
        let mut command = command(scope, "unix:///nonexistent/containerd.sock");
        command.env("WATCHDOG_USEC", "soon");
        let process = scope.spawn("rubelet", command)?;
        let log = process.log().to_owned();
        assert_eq!(exit_code(process)?, 1);
        let log = fs::read_to_string(log)?;
        assert!(log.contains("WATCHDOG_USEC"), "{log}");
        Ok(())
    });
}

#[test]
fn cgroup_v1_is_refused_by_default() {
    in_scope("cgroup-v1", async |scope| {
        let log = failing_log(scope, &["--fail-cgroupv1=true"])?;
        let is_v1 = !Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        assert_eq!(log.contains("failCgroupV1"), is_v1, "{log}");
        Ok(())
    });
}

/// The log of a program that cannot start, for there is no runtime; a short deadline keeps its retries short.
fn failing_log(scope: &Scope, arguments: &[&str]) -> Result<String> {
    let mut command = command(scope, "unix:///nonexistent/containerd.sock");
    command.args(arguments).arg("--runtime-request-timeout=2s");
    let process = scope.spawn("rubelet", command)?;
    let log = process.log().to_owned();
    assert_eq!(exit_code(process)?, 1);
    Ok(fs::read_to_string(log)?)
}
