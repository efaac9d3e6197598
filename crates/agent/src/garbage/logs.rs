//! Container logs and the links that log agents follow.
//!
//! Owns the links' names and the removal of logs. Which logs may go is the caller's decision.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use rubelet_lifecycle::configuration::labels;
use rubelet_model::pod::{full_name, name_of, namespace_of};
use rubelet_ports::{FileError, FileKind, FileReader, FileWriter};
use rubelet_wire::cri::v1;

use super::{Found, GarbageCollector, GarbageError, GarbageReport};

const LOG_SUFFIX: &str = ".log";
/// What filesystems allow.
const MAX_NAME_BYTES: usize = 255;
const LINKS_DIRECTORY_MODE: u32 = 0o755;

/// `<pod>_<namespace>_<container>-<id>.log`, cut where the filesystem would refuse it.
fn link_name(pod: &str, namespace: &str, container: &str, id: &str) -> String {
    let mut name = format!("{}_{container}-{id}", full_name(pod, namespace));
    name.truncate(name.floor_char_boundary(MAX_NAME_BYTES - LOG_SUFFIX.len()));
    name + LOG_SUFFIX
}

/// Whether this could be the name of a link of ours. A cut one may lack its end.
fn is_link_name(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(LOG_SUFFIX) else {
        return false;
    };
    let mut parts = stem.splitn(3, '_');
    let mut next = || parts.next().filter(|part| !part.is_empty());
    let (pod, namespace, rest) = (next(), next(), next());
    if name.len() == MAX_NAME_BYTES {
        return pod.is_some();
    }
    let is_id = |id: &str| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    pod.is_some()
        && namespace.is_some()
        && rest
            .and_then(|rest| rest.rsplit_once('-'))
            .is_some_and(|(container, id)| !container.is_empty() && !container.contains('_') && is_id(id))
}

/// The name of a container's link, by its labels.
fn link_name_of(container: &v1::Container) -> String {
    let label = |key: &str| container.labels.get(key).map_or("", String::as_str);
    link_name(
        label(labels::POD_NAME),
        label(labels::POD_NAMESPACE),
        label(labels::CONTAINER_NAME),
        &container.id,
    )
}

/// The link to the log of one container.
#[derive(Clone, Copy, Debug)]
pub struct LogLink<'l> {
    /// Where links are.
    pub directory: &'l Path,
    pub pod: &'l Pod,
    pub container: &'l str,
    pub container_id: &'l str,
    pub log_file: &'l Path,
}

/// Makes the link to the log of a container that was started. A runtime that logs elsewhere makes no file, and gets no link.
///
/// # Errors
/// When the link cannot be made. The container is well without it.
pub async fn link_log(
    reader: &dyn FileReader,
    writer: &dyn FileWriter,
    link: LogLink<'_>,
) -> Result<(), FileError> {
    if is_missing(reader, link.log_file).await {
        return Ok(());
    }
    let (pod, namespace) = (name_of(link.pod), namespace_of(link.pod));
    let name = link_name(pod, namespace, link.container, link.container_id);
    let path = link.directory.join(name);
    match writer.link(link.log_file, &path).await {
        Err(error) if error.is_not_found() => {
            writer
                .create_directory(link.directory, LINKS_DIRECTORY_MODE)
                .await?;
            writer.link(link.log_file, &path).await
        }
        result => result,
    }
}

async fn is_missing(reader: &dyn FileReader, path: &Path) -> bool {
    reader.kind(path).await.is_err_and(|error| error.is_not_found())
}

/// Removes a container's log with its rotated files: `0.log`, `0.log.20260101-000000.gz`, ….
///
/// # Errors
/// When one of them cannot be removed.
pub async fn remove_logs(
    reader: &dyn FileReader,
    writer: &dyn FileWriter,
    log_file: &Path,
) -> Result<(), FileError> {
    let (Some(directory), Some(name)) = (
        log_file.parent(),
        log_file.file_name().and_then(|name| name.to_str()),
    ) else {
        return Ok(());
    };
    let entries = match reader.list(directory).await {
        Err(error) if error.is_not_found() => return Ok(()),
        result => result?,
    };
    for entry in entries {
        let is_of_log = entry
            .name
            .strip_prefix(name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        if is_of_log && entry.kind != FileKind::Directory {
            writer.remove_file(&directory.join(&entry.name)).await?;
        }
    }
    Ok(())
}

impl GarbageCollector {
    pub(super) async fn remove_logs_of(&self, container_id: &str) -> Result<(), GarbageError> {
        let answer = match self
            .ports
            .runtime_reader
            .container_status(container_id, false)
            .await
        {
            Err(error) if error.is_not_found() => return Ok(()),
            result => result?,
        };
        let log_path = PathBuf::from(answer.status.unwrap_or_default().log_path);
        // Runtimes repeat the path that they were given; anything else is none of our logs.
        let is_log = log_path.is_absolute() && log_path.extension().is_some_and(|end| end == "log");
        if !is_log {
            return Ok(());
        }
        let (reader, writer) = (&self.ports.file_reader, &self.ports.file_writer);
        Ok(remove_logs(&**reader, &**writer, &log_path).await?)
    }

    pub(super) async fn remove_log_link(&self, container: &v1::Container) -> Result<(), GarbageError> {
        let link = self.settings.container_logs_dir.join(link_name_of(container));
        Ok(self.ports.file_writer.remove_file(&link).await?)
    }

    /// Removes links that lead nowhere. That of a container which has not ended stays: its log is missing for a moment each time
    /// it is rotated.
    pub(super) async fn collect_log_links(&self, found: &Found, report: &mut GarbageReport) {
        let exited = v1::ContainerState::ContainerExited as i32;
        let alive: BTreeSet<String> = found
            .listed
            .values()
            .filter(|container| container.state != exited)
            .map(link_name_of)
            .collect();
        let directory = &self.settings.container_logs_dir;
        let entries = match self.ports.file_reader.list(directory).await {
            Ok(entries) => entries,
            Err(error) if error.is_not_found() => return,
            Err(error) => return report.add_problem("links to container logs", &error.into()),
        };
        for entry in entries {
            let may_go =
                entry.kind == FileKind::Symlink && is_link_name(&entry.name) && !alive.contains(&entry.name);
            let link = directory.join(&entry.name);
            if !may_go || !is_missing(&*self.ports.file_reader, &link).await {
                continue;
            }
            match self.ports.file_writer.remove_file(&link).await {
                Ok(()) => report.paths.push(link),
                Err(error) => report.add_problem(link.display().to_string(), &error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_links() {
        assert_eq!(
            link_name("web-0", "prod", "main", "3f1c"),
            "web-0_prod_main-3f1c.log"
        );
        let long = link_name(&"p".repeat(200), &"n".repeat(40), "main", &"f".repeat(64));
        assert_eq!(long.len(), MAX_NAME_BYTES);
        assert!(long.ends_with("n_main-ffff.log"), "{long}");
        assert!(is_link_name(&long));
        assert!(is_link_name(&link_name(&"p".repeat(253), "ns", "main", "f")));
    }

    #[test]
    fn only_names_of_our_scheme_count() {
        let check = |name: &str, expected: bool| assert_eq!(is_link_name(name), expected, "{name}");
        check("web-0_prod_main-3f1c.log", true);
        check("web.a_prod_my-app-3f1c.log", true);
        check("web-0_prod_main-3f1c.log.1", false);
        check("web-0_prod_main-.log", false);
        check("web-0_prod_-3f1c.log", false);
        check("web-0__main-3f1c.log", false);
        check("web-0_prod_main.log", false);
        check("a_b_c_d-3f1c.log", false);
        check("syslog.log", false);
        check("_-.log", false);
        check(".log", false);
        check("", false);
    }
}
