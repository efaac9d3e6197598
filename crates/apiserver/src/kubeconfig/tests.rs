use std::fs;

use secrecy::ExposeSecret;

use super::*;

const GOOD: &str = "
apiVersion: v1
kind: Config
current-context: here
contexts:
- name: here
  context: {cluster: c, user: u}
- name: elsewhere
  context: {cluster: missing, user: u}
clusters:
- name: c
  cluster: {server: 'https://api.example:6443', certificate-authority-data: Q0E=}
users:
- name: u
  user: {token: hunter2}
";

fn read_text(text: &str) -> (tempfile::TempDir, Result<Access, ConnectError>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubelet.conf");
    fs::write(&path, text).unwrap();
    let access = Access::read(&path);
    (directory, access)
}

/// Replaces a part of the good one.
fn with(from: &str, to: &str) -> Result<Access, ConnectError> {
    assert!(GOOD.contains(from), "{from}");
    read_text(&GOOD.replace(from, to)).1
}

#[test]
fn the_current_context_is_taken() {
    let access = read_text(GOOD).1.unwrap();
    assert_eq!(access.server, "https://api.example:6443");
    assert!(matches!(&access.trust, Trust::These(text) if text.read().unwrap() == b"CA"));
    assert!(matches!(&access.login, Login::Token(token) if token.expose_secret() == "hunter2"));
    assert!(access.certificate.is_none() && access.proxy.is_none() && access.server_name.is_none());
}

#[test]
fn problems_name_the_file_and_the_field() {
    let check = |from: &str, to: &str, field: &str, problem: &str| {
        let error = with(from, to).err().expect("it is wrong");
        let text = error.to_string();
        assert!(
            text.starts_with("kubeconfig /") && text.contains("/kubelet.conf: "),
            "{text}"
        );
        assert!(
            text.contains(&format!(": {field}: ")),
            "{text} does not name {field}"
        );
        assert!(text.contains(problem), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    };
    check(
        "current-context: here",
        "current-context: ''",
        "current-context",
        "is not set",
    );
    check(
        "current-context: here",
        "current-context: nowhere",
        "current-context",
        "no context \"nowhere\"",
    );
    check(
        "current-context: here",
        "current-context: elsewhere",
        "contexts[elsewhere].context.cluster",
        "no cluster \"missing\"",
    );
    check(
        "user: u}\n- name: elsewhere",
        "user: x}\n- name: elsewhere",
        "contexts[here].context.user",
        "no user \"x\"",
    );
    check(
        "server: 'https://api.example:6443', ",
        "",
        "clusters[c].cluster.server",
        "is not set",
    );
    check(
        "https://api.example:6443",
        "ftp://api",
        "clusters[c].cluster.server",
        "neither https nor http",
    );
    check(
        "https://api.example:6443",
        "https://a b",
        "clusters[c].cluster.server",
        "no URL",
    );
    check(
        "https://api.example:6443",
        "https://api.example:66443",
        "clusters[c].cluster.server",
        "a port that is not a number up to 65535",
    );
    check(
        "Q0E=",
        "'%'",
        "clusters[c].cluster.certificate-authority-data",
        "is not base64",
    );
    check(
        "Q0E=",
        "Q0E=, insecure-skip-tls-verify: true",
        "clusters[c].cluster.insecure-skip-tls-verify",
        "together with",
    );
    check(
        "Q0E=",
        "Q0E=, proxy-url: 'ftp://user:hunter2@p'",
        "clusters[c].cluster.proxy-url",
        "is neither http",
    );
    check(
        "Q0E=",
        "Q0E=, tls-server-name: 'a b'",
        "clusters[c].cluster.tls-server-name",
        "no host name",
    );
    check(
        "token: hunter2",
        "client-key: /k",
        "users[u].user.client-certificate",
        "is not set",
    );
    check(
        "token: hunter2",
        "client-certificate: /c",
        "users[u].user.client-key",
        "is not set",
    );
    check(
        "token: hunter2",
        "auth-provider: {name: gcp}",
        "users[u].user.auth-provider",
        "not supported",
    );
    check(
        "token: hunter2",
        "token: hunter2, username: a, password: hunter2",
        "users[u].user.username",
        "together with a token",
    );
    check(
        "token: hunter2",
        "exec: {command: x, apiVersion: v1}",
        "users[u].user.exec.apiVersion",
        "is none of",
    );
    check(
        "token: hunter2",
        "exec: {apiVersion: client.authentication.k8s.io/v1}",
        "users[u].user.exec.command",
        "is not set",
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named_without_its_content() {
    let error = Access::read(Path::new("/nonexistent/kubelet.conf"))
        .err()
        .unwrap();
    let text = error.to_string();
    assert!(
        text.contains("/nonexistent/kubelet.conf") && text.contains("No such file"),
        "{text}"
    );
    let check = |text: &str, expected: &str| {
        let error = read_text(text).1.err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    };
    check("users: [hunter2\n", "not understood at line 1, column 8");
    check("users: *hunter2\n", "not understood at line 1");
    check("? [hunter2]\n: a\n", "it is no kubeconfig: not valid YAML");
    check("{\"users\": hunter2}", "it is no kubeconfig: not valid JSON");
    check(
        "hunter2\n",
        "it is no kubeconfig: it is a string where an object is needed",
    );
    check("", "the file is empty");
}

#[test]
fn values_that_do_not_fit_are_named_by_place_and_kind() {
    let check = |from: &str, to: &str, expected: &str| {
        let error = with(from, to).err().expect("it is wrong").to_string();
        assert!(error.ends_with(expected), "{error}");
    };
    check(
        "token: hunter2",
        "token: 12345",
        ": users[u].user.token: is a number where a string is needed",
    );
    check(
        "{token: hunter2}",
        "[hunter2]",
        ": users[u].user: is a list where an object is needed",
    );
    check(
        "token: hunter2",
        "as-groups: [a, {b: c}]",
        ": users[u].user.as-groups[1]: is an object where a string is needed",
    );
    check(
        "Q0E=",
        "Q0E=, insecure-skip-tls-verify: 'true'",
        ": clusters[c].cluster.insecure-skip-tls-verify: is a string where a boolean is needed",
    );
    check(
        "name: elsewhere",
        "name: [a]",
        ": contexts[1].name: is a list where a string is needed",
    );
    check(
        "token: hunter2",
        "exec: {command: x, interactiveMode: Sometimes}",
        ": users[u].user.exec.interactiveMode: is none of Never, IfAvailable, Always",
    );
}

#[test]
fn what_is_null_is_not_set() {
    let access = with(
        "token: hunter2",
        "token: hunter2, as: null, as-groups: null, exec: null, tokenFile: ''",
    )
    .unwrap();
    assert!(matches!(access.login, Login::Token(_)));
    assert!(access.impersonation.is_empty());
    // Of several documents the first one counts.
    let text = format!("{GOOD}---\ncurrent-context: elsewhere\n");
    assert_eq!(read_text(&text).1.unwrap().server, "https://api.example:6443");
}

#[test]
fn paths_are_relative_to_the_file() {
    let text = GOOD
        .replace(
            "certificate-authority-data: Q0E=",
            "certificate-authority: ca.crt",
        )
        .replace(
            "token: hunter2",
            "client-certificate: pki/me.pem, client-key: /abs/me.pem, tokenFile: token",
        );
    let (directory, access) = read_text(&text);
    let access = access.unwrap();
    let in_directory = |name: &str| Some(directory.path().join(name));
    let Trust::These(authority) = &access.trust else {
        panic!("there is an authority");
    };
    assert_eq!(authority.path().map(Path::to_owned), in_directory("ca.crt"));
    let certificate = access.certificate.unwrap();
    assert_eq!(
        certificate.certificate.path().map(Path::to_owned),
        in_directory("pki/me.pem")
    );
    assert_eq!(certificate.key.path(), Some(Path::new("/abs/me.pem")));
    assert!(
        matches!(access.login, Login::TokenFile { path, fallback: None } if Some(path.clone()) == in_directory("token"))
    );
}

#[test]
fn an_address_without_scheme_is_https_when_there_is_tls() {
    let access = with("https://api.example:6443", "api.example:6443").unwrap();
    assert_eq!(access.server, "https://api.example:6443");
    let text = GOOD
        .replace("https://api.example:6443", "localhost:8080")
        .replace(", certificate-authority-data: Q0E=", "");
    assert_eq!(read_text(&text).1.unwrap().server, "http://localhost:8080");
}

#[test]
fn impersonation_becomes_headers() {
    let access = with(
        "token: hunter2",
        "token: hunter2, as: me, as-uid: '1', as-groups: [a, b], as-user-extra: {scope: [x]}",
    )
    .unwrap();
    let all = |name: &str| {
        let values = access.impersonation.get_all(name);
        values
            .iter()
            .map(|value| value.to_str().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(all("impersonate-user"), ["me"]);
    assert_eq!(all("impersonate-uid"), ["1"]);
    assert_eq!(all("impersonate-group"), ["a", "b"]);
    assert_eq!(all("impersonate-extra-scope"), ["x"]);
}

#[test]
fn the_kubeconfig_after_bootstrap_names_the_certificate_and_no_token() {
    let directory = tempfile::tempdir().unwrap();
    let bootstrap = directory.path().join("bootstrap.conf");
    let text = GOOD.replace(
        "certificate-authority-data: Q0E=",
        "certificate-authority: ca.crt, tls-server-name: api",
    );
    fs::write(&bootstrap, text).unwrap();
    let pem = Path::new("/var/lib/kubelet/pki/kubelet-client-current.pem");
    let written = kubeconfig_for_certificate(&bootstrap, pem).unwrap();
    assert!(!written.contains("hunter2"), "{written}");

    let path = directory.path().join("elsewhere/kubelet.conf");
    fs::create_dir(path.parent().unwrap()).unwrap();
    fs::write(&path, &written).unwrap();
    let access = Access::read(&path).unwrap();
    assert_eq!(access.server, "https://api.example:6443");
    assert_eq!(access.server_name, ServerName::try_from("api").ok());
    let Trust::These(authority) = &access.trust else {
        panic!("there is an authority");
    };
    assert_eq!(authority.path(), Some(directory.path().join("ca.crt").as_path()));
    let certificate = access.certificate.unwrap();
    assert_eq!(certificate.certificate.path(), Some(pem));
    assert_eq!(certificate.key.path(), Some(pem));
    assert!(matches!(access.login, Login::Anonymous));
    assert!(written.contains("current-context: default-context"), "{written}");
}
