//! Which paths exist on which port.
//!
//! Owns the tables and how a path is looked up in them, which is upstream's router: paths are cleaned first, a path that ends
//! in a slash stands for everything below it, and the same path without the slash is redirected there.

use rubelet_config::{Gate, Settings};
use rubelet_ports::MetricsPage;

use crate::metrics;
use crate::streams::Session;

/// What a path stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Healthz,
    HealthCheck(Check),
    Pods,
    RunningPods,
    ContainerLogs,
    /// A session in a pod: exec, attach, port forwarding.
    Session(Session),
    Configz,
    /// The node's own logs.
    NodeLogs,
    Checkpoint,
    /// `/debug/pprof/`.
    Profiles,
    /// `/debug/flags/v`.
    Verbosity,
    Flagz,
    Statusz,
    Metrics(MetricsPage),
    /// `/stats/summary`.
    Summary,
    /// `/metrics/resource`.
    ResourceMetrics,
    /// `/metrics/cadvisor`.
    ContainerMetrics,
    /// Switched off by a setting, which the text names.
    Disabled(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    Ping,
    Log,
    SyncLoop,
}

impl Check {
    pub(crate) const ALL: [Self; 3] = [Self::Ping, Self::Log, Self::SyncLoop];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Log => "log",
            Self::SyncLoop => "syncloop",
        }
    }
}

/// How a path covers what is below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// The path alone.
    Exact,
    /// The path, with or without a slash, and everything below.
    Tree,
    /// The path with a slash and everything below; without the slash it is redirected.
    Below,
}

#[derive(Debug)]
struct Row {
    path: &'static str,
    reach: Reach,
    endpoint: Endpoint,
}

const fn exact(path: &'static str, endpoint: Endpoint) -> Row {
    Row {
        path,
        reach: Reach::Exact,
        endpoint,
    }
}

const fn tree(path: &'static str, endpoint: Endpoint) -> Row {
    Row {
        path,
        reach: Reach::Tree,
        endpoint,
    }
}

const fn below(path: &'static str, endpoint: Endpoint) -> Row {
    Row {
        path,
        reach: Reach::Below,
        endpoint,
    }
}

const DEBUGGING_OFF: &str = "Debug endpoints are disabled.";

/// What an address leads to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    /// The endpoint, and what follows its path, without slashes at the ends.
    Endpoint(&'a Endpoint, &'a str),
    /// Ask there instead.
    Redirect(String),
    Nothing,
}

/// The paths of one port.
#[derive(Debug)]
pub(crate) struct Paths {
    rows: Vec<Row>,
}

impl Paths {
    /// The authenticated port.
    pub(crate) fn authenticated(settings: &Settings) -> Self {
        let mut rows = always();
        if settings.configuration().enable_debugging_handlers != Some(false) {
            rows.extend(debugging(settings));
        } else {
            rows.extend(debugging_off());
        }
        Self { rows }
    }

    /// The read-only port, without authentication.
    pub(crate) fn read_only() -> Self {
        let mut rows = always();
        rows.extend(debugging_off());
        Self { rows }
    }

    /// The port for the local supervisor.
    pub(crate) fn healthz() -> Self {
        Self {
            rows: vec![
                exact("/healthz", Endpoint::Healthz),
                exact("/healthz/ping", Endpoint::HealthCheck(Check::Ping)),
            ],
        }
    }

    /// Every path, for people who look what there is.
    pub(crate) fn all(&self) -> Vec<&'static str> {
        self.rows.iter().map(|row| row.path).collect()
    }

    /// What a path counts as.
    pub(crate) fn label(&self, path: &str) -> &'static str {
        let root = metrics::root(path);
        let mut rows = self.rows.iter().filter(|row| metrics::root(row.path) == root);
        // Where debugging is off upstream knows no path below this one.
        let is_known = |row: &&Row| root != "debug" || row.endpoint != Endpoint::Disabled(DEBUGGING_OFF);
        metrics::path_label(rows.find(is_known).map(|row| metrics::root(row.path)))
    }

    pub(crate) fn find<'a>(&'a self, path: &'a str) -> Found<'a> {
        let cleaned = clean(path);
        if cleaned != path {
            return Found::Redirect(cleaned);
        }
        for row in &self.rows {
            let Some(rest) = path.strip_prefix(row.path) else {
                continue;
            };
            match (row.reach, rest) {
                (Reach::Exact | Reach::Tree, "") => return Found::Endpoint(&row.endpoint, ""),
                (Reach::Below, "") => return Found::Redirect(format!("{path}/")),
                (Reach::Tree | Reach::Below, rest) if rest.starts_with('/') => {
                    return Found::Endpoint(&row.endpoint, rest.trim_matches('/'));
                }
                (Reach::Exact | Reach::Tree | Reach::Below, _) => {}
            }
        }
        Found::Nothing
    }
}

fn always() -> Vec<Row> {
    let mut rows = vec![
        exact("/healthz", Endpoint::Healthz),
        tree("/pods", Endpoint::Pods),
        below("/stats", Endpoint::Summary),
    ];
    rows.extend(
        Check::ALL
            .into_iter()
            .zip(["/healthz/ping", "/healthz/log", "/healthz/syncloop"])
            .map(|(check, path)| exact(path, Endpoint::HealthCheck(check))),
    );
    let pages = [
        ("/metrics", MetricsPage::Node),
        ("/metrics/probes", MetricsPage::Probes),
        ("/metrics/slis", MetricsPage::HealthChecks),
    ];
    rows.extend(pages.map(|(path, page)| exact(path, Endpoint::Metrics(page))));
    rows.extend([
        exact("/metrics/cadvisor", Endpoint::ContainerMetrics),
        exact("/metrics/resource", Endpoint::ResourceMetrics),
    ]);
    rows
}

fn debugging(settings: &Settings) -> Vec<Row> {
    let configuration = settings.configuration();
    let switched = |on: Option<bool>, endpoint: Endpoint, text: &'static str| {
        if on == Some(false) {
            Endpoint::Disabled(text)
        } else {
            endpoint
        }
    };
    let mut rows = vec![
        tree("/run", Endpoint::Session(Session::Run)),
        tree("/exec", Endpoint::Session(Session::Exec)),
        tree("/attach", Endpoint::Session(Session::Attach)),
        tree("/portForward", Endpoint::Session(Session::PortForward)),
        tree("/containerLogs", Endpoint::ContainerLogs),
        exact("/configz", Endpoint::Configz),
        below("/runningpods", Endpoint::RunningPods),
        below(
            "/logs",
            switched(
                configuration.enable_system_log_handler,
                Endpoint::NodeLogs,
                "logs endpoint is disabled.",
            ),
        ),
        below(
            "/debug/pprof",
            switched(
                configuration.enable_profiling_handler,
                Endpoint::Profiles,
                "profiling endpoint is disabled.",
            ),
        ),
        exact(
            "/debug/flags/v",
            switched(
                configuration.enable_debug_flags_handler,
                Endpoint::Verbosity,
                "flags endpoint is disabled.",
            ),
        ),
    ];
    let gated = [
        (
            Gate::ContainerCheckpoint,
            below("/checkpoint", Endpoint::Checkpoint),
        ),
        (Gate::ComponentFlagz, exact("/flagz", Endpoint::Flagz)),
        (Gate::ComponentStatusz, exact("/statusz", Endpoint::Statusz)),
    ];
    rows.extend(
        gated
            .into_iter()
            .filter(|(gate, _)| settings.gates().enabled(*gate))
            .map(|(_, row)| row),
    );
    rows
}

fn debugging_off() -> Vec<Row> {
    [
        "/run",
        "/exec",
        "/attach",
        "/portForward",
        "/containerLogs",
        "/runningpods",
        "/debug/pprof",
        "/logs",
    ]
    .map(|path| below(path, Endpoint::Disabled(DEBUGGING_OFF)))
    .into()
}

/// The path without `.`, `..` and doubled slashes; a slash at the end stays.
fn clean(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let mut cleaned = format!("/{}", kept.join("/"));
    if path.ends_with('/') && cleaned != "/" {
        cleaned.push('/');
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned() {
        let check = |path: &str, expected: &str| assert_eq!(clean(path), expected, "{path}");
        check("", "/");
        check("/", "/");
        check("//pods", "/pods");
        check("/foo/../pods", "/pods");
        check("/../../pods/", "/pods/");
        check("/pods/.", "/pods");
        check("/a//b/", "/a/b/");
        check("/..", "/");
    }

    #[test]
    fn a_path_leads_where_upstream_leads() {
        let read_only = Paths::read_only();
        let healthz = Paths::healthz();
        let endpoint = |endpoint: &'static Endpoint, rest: &'static str| Found::Endpoint(endpoint, rest);
        let redirect = |to: &str| Found::Redirect(to.to_owned());
        static OFF: Endpoint = Endpoint::Disabled(DEBUGGING_OFF);
        let check = |path: &str, expected: &Found<'_>| assert_eq!(&read_only.find(path), expected, "{path}");
        check("/pods", &endpoint(&Endpoint::Pods, ""));
        check("/pods/", &endpoint(&Endpoint::Pods, ""));
        check("/pods/x", &endpoint(&Endpoint::Pods, "x"));
        check("/podsx", &Found::Nothing);
        check("/", &Found::Nothing);
        check("/healthz", &endpoint(&Endpoint::Healthz, ""));
        check(
            "/healthz/ping",
            &endpoint(&Endpoint::HealthCheck(Check::Ping), ""),
        );
        check("/healthz/", &Found::Nothing);
        check("/healthz/nope", &Found::Nothing);
        check("/containerLogs", &redirect("/containerLogs/"));
        check("/containerLogs/a/b/c", &endpoint(&OFF, "a/b/c"));
        check("/runningpods", &redirect("/runningpods/"));
        check("/runningpods/", &endpoint(&OFF, ""));
        check("/configz", &Found::Nothing);
        check("/checkpoint/a/b/c", &Found::Nothing);
        check("//pods", &redirect("/pods"));
        assert_eq!(healthz.find("/pods"), Found::Nothing);
        assert_eq!(healthz.find("/healthz/log"), Found::Nothing);
    }

    #[test]
    fn paths_count_as_upstream_counts_them() {
        let read_only = Paths::read_only();
        let check = |path: &str, expected: &str| assert_eq!(read_only.label(path), expected, "{path}");
        check("/pods/x/y", "pods");
        check("/healthz/ping", "healthz");
        check("/stats/summary", "stats");
        check("/metrics/probes", "metrics/probes");
        check("/metrics/slis", "other");
        check("/metrics/nope", "other");
        check("/exec/a/b/c", "exec");
        check("/debug/pprof/heap", "other");
        check("/anything", "other");
        check("/", "other");
    }
}
