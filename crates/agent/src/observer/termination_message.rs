//! The termination message of a container, read from the node's files.
//!
//! Owns where the message is: in a file that was mounted into the container, or at the end of its log.

use std::path::Path;

use rubelet_lifecycle::configuration::termination_message::{
    MAX_FILE_BYTES, MAX_LOG_BYTES, MAX_LOG_LINES, MessageFile, Source, combined, falls_back_to_log,
    message_of_cut_log, message_of_file, message_of_log, message_of_log_end, path_in_container,
};
use rubelet_model::observation::{ContainerObservation, ContainerState};
use rubelet_ports::{FileError, FileErrorKind, FileReader};

/// A log line can be longer than what is kept of it; this much of the file's end is read.
const LOG_END_BYTES: usize = MAX_LOG_BYTES * 2 + MAX_LOG_LINES * 64;
/// This much when lines are longer than that. Runtimes cut them at 8 or 16 KiB unless they are configured otherwise.
const LONG_LOG_END_BYTES: usize = 256 << 10;

/// Adds the message to a container that has exited.
pub(super) async fn add_termination_message(files: &dyn FileReader, container: &mut ContainerObservation) {
    let ContainerState::Exited(exit) = &mut container.state else {
        return;
    };
    let recorded = &container.recorded;
    let falls_back = falls_back_to_log(&recorded.termination_message_policy, exit.exit_code, &exit.reason);
    let mounted_at = path_in_container(&recorded.termination_message_path);
    let mount = container
        .mounts
        .iter()
        .find(|mount| Some(&mount.container_path) == mounted_at.as_ref());
    let read = match mount {
        Some(mount) => Some(
            files
                .read_end(Path::new(&mount.host_path), MAX_FILE_BYTES as u64)
                .await,
        ),
        None => None,
    };
    let problem = read
        .as_ref()
        .and_then(|read| read.as_ref().err())
        .map(ToString::to_string);
    let file = match (&read, mount) {
        (Some(Ok(bytes)), _) => MessageFile::Content(bytes),
        (Some(Err(error)), Some(mount)) if error.kind != FileErrorKind::NotFound => MessageFile::Unreadable {
            path: &mount.host_path,
            problem: problem.as_deref().unwrap_or_default(),
        },
        (Some(Err(_)) | None, _) => MessageFile::Absent,
    };
    let message = match message_of_file(&file, falls_back) {
        Source::Message(message) => message,
        Source::Log => match end_of_log(files, Path::new(&container.log_path)).await {
            Ok(message) => message,
            Err(error) => format!("the end of the log cannot be read: {error}"),
        },
    };
    exit.message = combined(&exit.message, &message);
}

/// The message at the end of a log. A pod that can write to the directory of all logs could put links into it; they lead to
/// nothing outside of it.
async fn end_of_log(files: &dyn FileReader, log: &Path) -> Result<String, FileError> {
    // `<directory of all logs>/<pod>/<container>/<number>.log`
    let directory = log.ancestors().nth(3).unwrap_or(Path::new("/"));
    let inside = log.strip_prefix(directory).unwrap_or(log);
    let end = files
        .read_end_within(directory, inside, LOG_END_BYTES as u64)
        .await?;
    if end.len() < LOG_END_BYTES {
        return Ok(message_of_log(&end));
    }
    if let Some(message) = message_of_log_end(&end) {
        return Ok(message);
    }
    let end = files
        .read_end_within(directory, inside, LONG_LOG_END_BYTES as u64)
        .await?;
    if end.len() < LONG_LOG_END_BYTES {
        return Ok(message_of_log(&end));
    }
    Ok(message_of_log_end(&end).unwrap_or_else(|| message_of_cut_log(&end)))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test of links needs real ones")]
mod tests {
    use rubelet_host::HostFiles;
    use rubelet_model::Timestamp;
    use rubelet_model::observation::ContainerExit;

    use super::*;

    #[tokio::test]
    async fn a_log_that_is_a_link_shows_nothing_of_the_node() {
        let folder = tempfile::tempdir().unwrap();
        let (logs, secret) = (folder.path().join("pods"), folder.path().join("secret"));
        std::fs::write(&secret, "t stdout F hush\n").unwrap();
        let outside = folder.path().join("outside");
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(outside.join("0.log"), "t stdout F hush\n").unwrap();
        std::fs::create_dir_all(logs.join("ns_web_u/main")).unwrap();
        std::fs::write(logs.join("ns_web_u/main/0.log"), "t stdout F last words\n").unwrap();
        std::os::unix::fs::symlink(&secret, logs.join("ns_web_u/main/1.log")).unwrap();
        std::os::unix::fs::symlink("../../../secret", logs.join("ns_web_u/main/2.log")).unwrap();
        std::os::unix::fs::symlink(&outside, logs.join("ns_web_u/side")).unwrap();
        let files = HostFiles::new();
        let message = async |log: &str| {
            let now = Timestamp::EPOCH;
            let exit = ContainerExit {
                exit_code: 1,
                reason: "Error".to_owned(),
                message: String::new(),
                started_at: now,
                finished_at: now,
            };
            let mut container =
                ContainerObservation::new("c", "main", "s", ContainerState::Exited(exit), now);
            container.recorded.termination_message_policy = "FallbackToLogsOnError".to_owned();
            container.log_path = logs.join(log).display().to_string();
            add_termination_message(&files, &mut container).await;
            match container.state {
                ContainerState::Exited(exit) => exit.message,
                state => panic!("{state:?}"),
            }
        };
        assert_eq!(message("ns_web_u/main/0.log").await, "last words\n");
        for link in [
            "ns_web_u/main/1.log",
            "ns_web_u/main/2.log",
            "ns_web_u/side/0.log",
        ] {
            let message = message(link).await;
            assert!(
                message.starts_with("the end of the log cannot be read"),
                "{link}: {message}"
            );
        }
    }
}
