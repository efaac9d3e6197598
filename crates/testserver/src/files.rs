//! Looks at files from inside a container: content, kind, mode, owner.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;

use crate::Outcome;
use crate::arguments::Arguments;

pub(crate) fn run(arguments: &mut Arguments) -> Outcome {
    let action = arguments.required("read, write, stat or list")?;
    let path = arguments.required("a path")?;
    let content = arguments.word();
    arguments.finish()?;
    let answer = match (action.as_str(), content) {
        ("read", None) => fs::read(&path),
        ("write", Some(content)) => fs::write(&path, content).map(|()| Vec::new()),
        ("stat", None) => stat(&path).map(String::into_bytes),
        ("list", None) => list(&path).map(String::into_bytes),
        _ => return Err(format!("file {action} does not go like that\n{}", crate::USAGE)),
    };
    match answer {
        Ok(bytes) => {
            std::io::stdout()
                .write_all(&bytes)
                .map_err(|error| format!("write the answer: {error}"))?;
            Ok(0)
        }
        Err(error) => {
            println!("{}", error.kind());
            Ok(1)
        }
    }
}

/// As in `file 0644 1000:50000 12 bytes`.
fn stat(path: &str) -> std::io::Result<String> {
    let about = fs::symlink_metadata(path)?;
    let kind = about.file_type();
    let kind = match (kind.is_dir(), kind.is_symlink(), kind.is_file()) {
        (true, _, _) => "directory",
        (_, true, _) => "symlink",
        (_, _, true) => "file",
        _ => "special",
    };
    let (mode, uid, gid) = (about.mode() & 0o7777, about.uid(), about.gid());
    Ok(format!("{kind} {mode:04o} {uid}:{gid} {} bytes\n", about.len()))
}

fn list(path: &str) -> std::io::Result<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.push(format!("{}\n", entry?.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(names.concat())
}
