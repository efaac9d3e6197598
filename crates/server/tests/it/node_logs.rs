//! The node's own logs: files, directories, and queries.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;

use anyhow::Result;
use flate2::read::GzDecoder;
use rubelet_testbed::process::write_script;
use rubelet_testbed::{Scope, in_scope};
use serde_json::json;

use crate::fixture::{Running, Setup};

/// A directory of logs as nodes have it, and a program in place of the journal's.
async fn start(scope: &Scope, takes_queries: bool) -> Result<Running> {
    let setup = Setup::new(scope)?.with("enableSystemLogQuery", json!(takes_queries));
    let logs = scope.path("var-log");
    fs::create_dir_all(logs.join("pods/web"))?;
    fs::create_dir_all(logs.join("containers"))?;
    fs::create_dir_all(logs.join("crio"))?;
    fs::write(logs.join("syslog"), "one\ntwo\nthree\n")?;
    fs::write(logs.join("a b&<c>.log"), "odd")?;
    fs::write(logs.join("wtmp"), [0, 1, 2])?;
    fs::write(logs.join("foo.log"), "foo's log\n")?;
    fs::write(logs.join("crio/crio.log"), "crio's log\n")?;
    fs::write(logs.join("pods/web/0.log"), "of a pod\n")?;
    fs::write(scope.path("secret"), "secret")?;
    symlink(logs.join("pods/web/0.log"), logs.join("containers/web.log"))?;
    symlink(scope.path("secret"), logs.join("stolen"))?;
    symlink("/etc", logs.join("etc"))?;
    write_script(
        &scope.path("journalctl"),
        "if [ \"$1\" = --field ]; then echo kubelet.service; echo crond.service; exit; fi\n\
         for word; do echo \"$word\"; done\necho complaint >&2\nexit 1",
    )?;
    setup.start().await
}

#[test]
fn files_are_given_as_a_file_server_does() {
    in_scope("node-logs", async |scope| {
        let running = start(scope, false).await?;
        let mut tls = running.tls().await?;
        let list = "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n\
                    <a href=\"a%20b&%3Cc%3E.log\">a b&amp;&lt;c&gt;.log</a>\n<a href=\"containers/\">containers/</a>\n\
                    <a href=\"crio/\">crio/</a>\n<a href=\"etc\">etc</a>\n<a href=\"foo.log\">foo.log</a>\n\
                    <a href=\"pods/\">pods/</a>\n<a href=\"stolen\">stolen</a>\n<a href=\"syslog\">syslog</a>\n\
                    <a href=\"wtmp\">wtmp</a>\n</pre>\n";
        let (text, html) = ("text/plain; charset=utf-8", "text/html; charset=utf-8");
        for (path, status, kind, body) in [
            ("/logs/", 200, html, list),
            ("/logs/syslog", 200, text, "one\ntwo\nthree\n"),
            ("/logs/a%20b&%3Cc%3E.log", 200, text, "odd"),
            ("/logs/wtmp", 200, "application/octet-stream", "\0\u{1}\u{2}"),
            ("/logs/pods/web/0.log", 200, text, "of a pod\n"),
            ("/logs/containers/web.log", 200, text, "of a pod\n"),
            // A query is nothing here.
            ("/logs/?query=kubelet", 200, html, list),
            ("/logs/none", 404, text, "404 page not found\n"),
            ("/logs/syslog/x", 500, text, "500 Internal Server Error\n"),
            // Links that lead out of the directory are refused: write access to it must not open other files.
            ("/logs/stolen", 403, text, "403 Forbidden\n"),
            ("/logs/etc/passwd", 403, text, "403 Forbidden\n"),
            ("/logs/etc/", 403, text, "403 Forbidden\n"),
        ] {
            let answer = tls.get(path).await?;
            let found = (answer.status, answer.header("content-type"), answer.text());
            assert_eq!(found, (status, kind, body.to_owned()), "{path}");
        }
        for (path, location) in [
            ("/logs/pods", "pods/"),
            ("/logs/pods?x=y", "pods/?x=y"),
            ("/logs/syslog/", "../syslog"),
            ("/logs/pods/index.html", "./"),
        ] {
            let answer = tls.get(path).await?;
            assert_eq!(
                (answer.status, answer.header("location")),
                (301, location),
                "{path}"
            );
        }
        for path in [
            "/logs/../secret",
            "/logs/%2e%2e/secret",
            "/logs/pods/%2e%2e/%2e%2e/secret",
            "/logs/..%2fsecret",
            "/logs/%2e%2e%2fsecret",
        ] {
            let answer = tls.get(path).await?;
            assert!([404, 307].contains(&answer.status), "{path}: {}", answer.status);
            assert!(
                !answer.header("location").contains("logs/.."),
                "{path}: {answer:?}"
            );
        }
        let answer = tls.ask("POST", "/logs/syslog").await?;
        assert_eq!((answer.status, answer.header("allow")), (405, "GET"));
        Ok(())
    });
}

#[test]
fn a_part_of_a_file_can_be_asked_for() {
    in_scope("node-log-parts", async |scope| {
        let running = start(scope, false).await?;
        let mut tls = running.tls().await?;
        let whole = tls.get("/logs/syslog").await?;
        let modified = whole.header("last-modified").to_owned();
        assert_eq!(
            (whole.header("accept-ranges"), whole.header("content-length")),
            ("bytes", "14")
        );
        for (name, value, status, range, body) in [
            ("Range", "bytes=4-6", 206, "bytes 4-6/14", "two"),
            ("Range", "bytes=-6", 206, "bytes 8-13/14", "three\n"),
            ("Range", "bytes=8-", 206, "bytes 8-13/14", "three\n"),
            (
                "Range",
                "bytes=14-",
                416,
                "bytes */14",
                "invalid range: failed to overlap\n",
            ),
            ("If-Modified-Since", modified.as_str(), 304, "", ""),
            (
                "If-Modified-Since",
                "Thu, 01 Jan 1970 00:00:00 GMT",
                200,
                "",
                "one\ntwo\nthree\n",
            ),
        ] {
            tls.send(format!("GET /logs/syslog HTTP/1.1\r\nHost: x\r\n{name}: {value}\r\n\r\n").as_bytes())
                .await?;
            let mut answer = tls.head().await?;
            if status != 304 {
                tls.rest_of(&mut answer).await?;
            }
            let found = (
                answer.status,
                answer.header("content-range").to_owned(),
                answer.text(),
            );
            assert_eq!(
                found,
                (status, range.to_owned(), body.to_owned()),
                "{name}: {value}"
            );
        }
        Ok(())
    });
}

#[test]
fn services_are_found_in_the_journal_and_in_files() {
    in_scope("node-log-query", async |scope| {
        let running = start(scope, true).await?;
        let mut tls = running.tls().await?;
        let journal = "--utc\n--no-pager\n--output=short-precise\n";
        for (query, status, body) in [
            ("query=kubelet", 200, format!("{journal}--unit=kubelet\ncomplaint\n")),
            (
                "query=kubelet&query=crond&tailLines=3&boot=-1&pattern=a%20b",
                200,
                format!(
                    "{journal}--pager-end\n--lines=3\n--unit=kubelet\n--unit=crond\n--grep=a b\n--boot\n-1\ncomplaint\n"
                ),
            ),
            ("query=foo", 200, "foo's log\n".to_owned()),
            ("query=syslog", 200, "one\ntwo\nthree\n".to_owned()),
            ("query=crio", 200, "crio's log\n".to_owned()),
            ("query=bar", 200, "\nlog not found for bar\n".to_owned()),
            (
                "query=foo&tailLines=1",
                200,
                "\noptions present and query resolved to log files for [foo]\ntry without specifying options\n"
                    .to_owned(),
            ),
            ("query=pods/web/0.log", 200, "of a pod\n".to_owned()),
            (
                "query=pods/none",
                406,
                "query: Invalid value: [\"pods/none\"]: statat pods/none: no such file or directory\n".to_owned(),
            ),
            (
                "query=/syslog",
                406,
                "query: Invalid value: [\"/syslog\"]: statat /syslog: path escapes from parent\n".to_owned(),
            ),
            (
                "query=../secret",
                406,
                "query: Invalid value: [\"../secret\"]: statat ../secret: path escapes from parent\n".to_owned(),
            ),
            (
                "query=etc/passwd",
                406,
                "query: Invalid value: [\"etc/passwd\"]: statat etc/passwd: path escapes from parent\n".to_owned(),
            ),
            (
                "tailLines=x",
                400,
                "tailLines: Invalid value: \"x\": strconv.Atoi: parsing \"x\": invalid syntax\n".to_owned(),
            ),
            ("boot=0", 406, "query: Required value: cannot be empty with options\n".to_owned()),
            (
                "query=a%3bb",
                406,
                "query: Invalid value: \"a;b\": input contains unsupported characters\n".to_owned(),
            ),
        ] {
            let answer = tls.get(&format!("/logs/?{query}")).await?;
            assert_eq!((answer.status, answer.text()), (status, body), "{query}");
        }
        let answer = tls.get("/logs/pods/?query=kubelet").await?;
        let told = (answer.status, answer.text());
        assert_eq!(told, (406, "path not allowed in query mode\n".to_owned()));
        // Without a query it is the file server.
        assert_eq!(tls.get("/logs/syslog").await?.text(), "one\ntwo\nthree\n");
        let packed = tls
            .ask_with("GET", "/logs/?query=foo", &[("Accept-Encoding", "gzip")], "")
            .await?;
        assert_eq!(packed.header("content-encoding"), "gzip");
        let mut text = String::new();
        GzDecoder::new(packed.body.as_slice()).read_to_string(&mut text)?;
        assert_eq!(text, "foo's log\n");
        // Without a journal everything is looked for in files.
        fs::remove_file(scope.path("journalctl"))?;
        let answer = tls.get("/logs/?query=kubelet").await?;
        assert_eq!(answer.text(), "\nlog not found for kubelet\n");
        Ok(())
    });
}
