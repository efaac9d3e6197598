//! The arguments of `rubelet why`.

use std::path::PathBuf;

pub(super) const USAGE: &str = "\
usage: rubelet why [POD] [-o json] [--root-dir DIR]
       rubelet why --events [-o json] [--root-dir DIR]
       rubelet why --record UID [--root-dir DIR]

Shows what each pod on this node waits for, since when, and what went wrong at the last try; then what all
pods wait for (the runtime, its network, sources of pods) and, without POD, manifests that cannot be used.
POD is a name, namespace/name or uid; of a static pod also the name in its manifest.
--events shows the newest events, --record the flight record of a pod.
--root-dir is the one that rubelet runs with, /var/lib/kubelet by default.";

const ROOT_DIR: &str = "/var/lib/kubelet";

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    Help,
    Pods(Option<String>),
    Events,
    Record(String),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arguments {
    pub(super) request: Request,
    pub(super) json: bool,
    pub(super) root_dir: PathBuf,
}

impl Arguments {
    pub(super) fn parse(words: &[String]) -> Result<Self, String> {
        let mut arguments = Self {
            request: Request::Pods(None),
            json: false,
            root_dir: PathBuf::from(ROOT_DIR),
        };
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let (flag, attached) = match word.split_once('=') {
                Some((flag, value)) if flag.starts_with("--") => (flag, Some(value)),
                _ => (word, None),
            };
            let mut value = || {
                attached
                    .or_else(|| words.next())
                    .ok_or_else(|| format!("{flag} needs a value"))
            };
            match flag {
                "-h" | "--help" => arguments.set(Request::Help)?,
                "-o" | "--output" => match value()? {
                    "json" => arguments.json = true,
                    other => return Err(format!("{other:?} is no output format: json is the only one")),
                },
                "--root-dir" => arguments.root_dir = PathBuf::from(value()?),
                "--events" if attached.is_none() => arguments.set(Request::Events)?,
                "--record" => {
                    let uid = value()?.to_owned();
                    arguments.set(Request::Record(uid))?;
                }
                flag if flag.starts_with('-') => return Err(format!("{word:?} is not known")),
                _ => arguments.set(Request::Pods(Some(word.to_owned())))?,
            }
        }
        Ok(arguments)
    }

    fn set(&mut self, request: Request) -> Result<(), String> {
        if self.request != Request::Pods(None) {
            return Err("one thing at a time: a pod, --events or --record".to_owned());
        }
        self.request = request;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood() {
        let check = |line: &str, expected: Result<(Request, bool, &str), &str>| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let expected = expected
                .map(|(request, json, root_dir)| Arguments {
                    request,
                    json,
                    root_dir: PathBuf::from(root_dir),
                })
                .map_err(str::to_owned);
            assert_eq!(Arguments::parse(&words), expected, "{line}");
        };
        let pod = |name: &str| Request::Pods(Some(name.to_owned()));
        check("", Ok((Request::Pods(None), false, ROOT_DIR)));
        check("web -o json", Ok((pod("web"), true, ROOT_DIR)));
        check("--root-dir /x default/web", Ok((pod("default/web"), false, "/x")));
        check(
            "--root-dir=/x --output=json",
            Ok((Request::Pods(None), true, "/x")),
        );
        check("--events", Ok((Request::Events, false, ROOT_DIR)));
        check(
            "--record u1",
            Ok((Request::Record("u1".to_owned()), false, ROOT_DIR)),
        );
        check("--help", Ok((Request::Help, false, ROOT_DIR)));
        check("a b", Err("one thing at a time: a pod, --events or --record"));
        check(
            "a --events",
            Err("one thing at a time: a pod, --events or --record"),
        );
        check("--record", Err("--record needs a value"));
        check("-o", Err("-o needs a value"));
        check(
            "-o yaml",
            Err("\"yaml\" is no output format: json is the only one"),
        );
        check("--config x", Err("\"--config\" is not known"));
        check("--events=x", Err("\"--events=x\" is not known"));
    }
}
