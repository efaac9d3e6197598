//! The corpus of pull secrets: addresses of every form against images, and contents of every kind.

use serde_json::{Value, json};

use super::Set;

const JSON: (&str, &str) = ("kubernetes.io/dockerconfigjson", ".dockerconfigjson");
const LEGACY: (&str, &str) = ("kubernetes.io/dockercfg", ".dockercfg");

const ADDRESSES: &[&str] = &[
    "",
    "/",
    "*",
    "*.*",
    "*.io",
    "*.*.io",
    "r.io",
    "R.io",
    "r.io/",
    "r.io:443",
    "r.io:5000",
    "r.io:",
    "r.*",
    "*r.io",
    "r*.io",
    "*.r.io",
    "sub.r.io",
    "sub*.r.io",
    "s*b.r.io",
    "*.*.*",
    "r.io/team",
    "r.io/team/",
    "r.io/te",
    "r.io/team/app",
    "r.io/team/app/more",
    "r.io/*",
    "r.io//team",
    "r.io/team%2Fapp",
    "r.io/%74eam",
    "r.io/%zz",
    "r.io?query",
    "r.io/team?query",
    "r.io/team#part",
    "http://r.io",
    "https://r.io",
    "https://r.io/v1/",
    "https://r.io/v2/",
    "https://r.io/v1",
    "https://r.io/v3/",
    "https://r.io/v2/team",
    "https://r.io/v2/team/",
    "ftp://r.io",
    "HTTPS://r.io",
    "user:pass@r.io",
    "user@r.io/team",
    "r.io:port",
    "r.io:1:2",
    "r .io",
    "r.io\n",
    "r|.io",
    "[::1]:5000",
    "[::1",
    "x[::1]",
    "[r.io]",
    "localhost",
    "localhost:5000",
    "127.0.0.1:5000",
    "docker.io",
    "docker.io/library",
    "index.docker.io",
    "https://index.docker.io/v1/",
    "https://index.docker.io/v2/",
    "registry-1.docker.io",
    "library/busybox",
    "ü.io",
];

const IMAGES: &[&str] = &[
    "r.io/team/app",
    "r.io/v1/app",
    "r.io:5000/team/app",
    "r.io:443/app",
    "sub.r.io/team",
    "a.b.io/x",
    "[::1]:5000/x",
    "localhost/x",
    "localhost:5000/x",
    "127.0.0.1:5000/x",
    "docker.io/library/busybox",
    "index.docker.io/a/b",
    "library/busybox",
    "ü.io/x",
];

const CONTENTS: &[&str] = &[
    "",
    " ",
    "{}",
    "null",
    "[]",
    "\"text\"",
    "1",
    "{",
    "{} trailing",
    r#"{"auths":null}"#,
    r#"{"auths":{}}"#,
    r#"{"auths":[]}"#,
    r#"{"auths":{"r.io":null}}"#,
    r#"{"auths":{"r.io":{}}}"#,
    r#"{"auths":{"r.io":[]}}"#,
    r#"{"auths":{"r.io":"text"}}"#,
    r#"{"auths":{"r.io":{"username":"u","password":"p","email":"e"}}}"#,
    r#"{"auths":{"r.io":{"username":"u<&>","password":"\u2028\u0001\"\\ü"}}}"#,
    r#"{"auths":{"r.io":{"username":1}}}"#,
    r#"{"auths":{"r.io":{"username":null,"password":"p"}}}"#,
    r#"{"auths":{"r.io":{"username":"u","unknown":{"a":1}}}}"#,
    r#"{"Auths":{"r.io":{"Username":"u","PASSWORD":"p"}}}"#,
    r#"{"auths":{"r.io":{"username":"u","password":"p","auth":""}}}"#,
    r#"{"auths":{"r.io":{"username":"u","password":"p","auth":null}}}"#,
    r#"{"auths":{"r.io":{"username":"x","auth":"dTpw"}}}"#,
    r#"{"auths":{"r.io":{"auth":"dXNlcjpwYXM="}}}"#,
    r#"{"auths":{"r.io":{"auth":"dXNlcjpwYXM"}}}"#,
    r#"{"auths":{"r.io":{"auth":"dXNlcjpwYXM=="}}}"#,
    r#"{"auths":{"r.io":{"auth":"dXNlcjpwYXN="}}}"#,
    r#"{"auths":{"r.io":{"auth":" dTpw"}}}"#,
    r#"{"auths":{"r.io":{"auth":"dTpw "}}}"#,
    r#"{"auths":{"r.io":{"auth":"dXNlcjpwYXM= "}}}"#,
    r#"{"auths":{"r.io":{"auth":"dT\npw"}}}"#,
    r#"{"auths":{"r.io":{"auth":"dTpw\r\n"}}}"#,
    r#"{"auths":{"r.io":{"auth":"dXNlcjpwYXM=\n"}}}"#,
    r#"{"auths":{"r.io":{"auth":"dTpwOnE"}}}"#,
    r#"{"auths":{"r.io":{"auth":"Og=="}}}"#,
    r#"{"auths":{"r.io":{"auth":"dXA="}}}"#,
    r#"{"auths":{"r.io":{"auth":"pants"}}}"#,
    r#"{"auths":{"r.io":{"auth":"d-_w"}}}"#,
    r#"{"auths":{"r.io":{"auth":1}}}"#,
    r#"{"auths":{"r.io":{"username":"u"},"bad.io":{"auth":"!"}}}"#,
    r#"{"HttpHeaders":{"A":"b"},"auths":{"r.io":{"username":"u"}}}"#,
    r#"{"HttpHeaders":"text","auths":{"r.io":{"username":"u"}}}"#,
    r#"{"credsStore":"x","auths":{"r.io":{"username":"u"}}}"#,
    r#"{"r.io":{"username":"u"}}"#,
    r#"{"r.io":{"auth":"dTpw"}}"#,
    r#"{"r.io":null}"#,
    r#"{"r.io":"text"}"#,
];

pub(super) fn sets() -> Vec<Set> {
    let mut questions = Vec::new();
    for image in IMAGES {
        for address in ADDRESSES {
            questions.push(question(&[login(address, "u")], image));
        }
    }
    for content in CONTENTS {
        for (kind, key) in [JSON, LEGACY, (JSON.0, LEGACY.1), ("Opaque", JSON.1)] {
            questions.push(question(&[secret((kind, key), content)], "r.io/team/app"));
        }
    }
    // Several secrets: the more specific address first, and for one address in the order of the secrets.
    for places in [
        &["r.io", "r.io/team", "*.io", "https://r.io/v2/"][..],
        &["*.io", "r.io/team/app", "r.io", "r.io/team", "r.io"],
        &["other.io", "r.io"],
        &["docker.io", "https://index.docker.io/v1/"],
        &["https://index.docker.io/v1/", "*.docker.io", "index.docker.io"],
    ] {
        for image in IMAGES {
            let numbered = places.iter().enumerate();
            let secrets: Vec<Value> = numbered
                .map(|(number, place)| login(place, &format!("u{number}")))
                .collect();
            questions.push(question(&secrets, image));
        }
    }
    vec![Set::new("pull_credentials.jsonl", "credentials", questions)]
}

fn login(address: &str, username: &str) -> Value {
    let content = json!({"auths": {address: {"username": username, "password": "p"}}});
    secret(JSON, &content.to_string())
}

fn secret((kind, key): (&str, &str), content: &str) -> Value {
    json!({"type": kind, "key": key, "content": content})
}

fn question(secrets: &[Value], image: &str) -> Value {
    json!({"secrets": secrets, "image": image})
}
