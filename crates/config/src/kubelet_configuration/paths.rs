//! Paths in the configuration: relative ones count from the folder of the file that names them.
//!
//! Owns the text of paths only; nothing is looked up.

use super::types::KubeletConfiguration;

/// The shortest equal path: no empty parts, no `.`, and `..` only at the front.
pub fn clean_path(path: &str) -> String {
    let absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if absolute => {}
            other => parts.push(other),
        }
    }
    let joined = parts.join("/");
    match (absolute, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    }
}

/// Makes the seven path fields absolute, counting from `folder`. Empty ones stay empty.
pub fn resolve_relative_paths(configuration: &mut KubeletConfiguration, folder: &str) {
    let paths = [
        Some(&mut configuration.static_pod_path),
        Some(&mut configuration.authentication.x509.client_ca_file),
        Some(&mut configuration.tls_cert_file),
        Some(&mut configuration.tls_private_key_file),
        configuration.resolv_conf.as_mut(),
        Some(&mut configuration.volume_plugin_dir),
        Some(&mut configuration.pod_logs_dir),
    ];
    for path in paths.into_iter().flatten() {
        if !path.is_empty() && !path.starts_with('/') {
            *path = clean_path(&format!("{folder}/{path}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleans_paths() {
        for (path, expected) in [
            ("", "."),
            ("/", "/"),
            ("//a//b/", "/a/b"),
            ("a/./b", "a/b"),
            ("a/../b", "b"),
            ("../a", "../a"),
            ("a/../../b", "../b"),
            ("/../a", "/a"),
            ("/a/..", "/"),
            ("../../a", "../../a"),
        ] {
            assert_eq!(clean_path(path), expected, "{path:?}");
        }
    }

    #[test]
    fn resolves_the_seven_fields_and_leaves_the_rest() {
        let mut configuration = KubeletConfiguration {
            static_pod_path: "manifests".to_owned(),
            tls_cert_file: "../pki/crt".to_owned(),
            tls_private_key_file: "/abs/key".to_owned(),
            resolv_conf: Some("resolv.conf".to_owned()),
            volume_plugin_dir: "plugins/".to_owned(),
            pod_logs_dir: "logs".to_owned(),
            kubelet_cgroups: "not/a/path".to_owned(),
            ..KubeletConfiguration::default()
        };
        configuration.authentication.x509.client_ca_file = "ca.crt".to_owned();
        resolve_relative_paths(&mut configuration, "/etc/kubelet");
        assert_eq!(configuration.static_pod_path, "/etc/kubelet/manifests");
        assert_eq!(
            configuration.authentication.x509.client_ca_file,
            "/etc/kubelet/ca.crt"
        );
        assert_eq!(configuration.tls_cert_file, "/etc/pki/crt");
        assert_eq!(configuration.tls_private_key_file, "/abs/key");
        assert_eq!(
            configuration.resolv_conf.as_deref(),
            Some("/etc/kubelet/resolv.conf")
        );
        assert_eq!(configuration.volume_plugin_dir, "/etc/kubelet/plugins");
        assert_eq!(configuration.pod_logs_dir, "/etc/kubelet/logs");
        assert_eq!(configuration.kubelet_cgroups, "not/a/path");
    }
}
