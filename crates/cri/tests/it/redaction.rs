//! Credentials show neither in errors nor in logs, at whatever level.

use rubelet_fakes::cri::Reaction;
use rubelet_ports::{ImageWriter, RuntimeWriter};
use rubelet_wire::cri::v1;
use tonic::Code;

use crate::log::Log;
use crate::scene::Scene;

const SECRET: &str = "hunter2-hunter2";

fn auth() -> v1::AuthConfig {
    let secret = || SECRET.to_owned();
    v1::AuthConfig {
        username: "me".to_owned(),
        password: secret(),
        auth: secret(),
        server_address: "registry.example".to_owned(),
        identity_token: secret(),
        registry_token: secret(),
    }
}

// One thread, so that this test's subscriber sees the connection's task as well.
#[tokio::test(flavor = "current_thread")]
async fn credentials_show_nowhere() {
    let log = Log::default();
    let _guard = log.capture(tracing::Level::TRACE);
    let scene = Scene::new().await;
    let said = format!("GET https://me:{SECRET}@registry.example/v2/: 401, tried {SECRET}");
    scene
        .runtime
        .on("PullImage", Reaction::fail(Code::Unknown, &said));
    let envs = vec![v1::KeyValue {
        key: "TOKEN".to_owned(),
        value: SECRET.into(),
    }];
    let config = v1::ContainerConfig {
        envs,
        ..v1::ContainerConfig::default()
    };
    scene.runtime.on(
        "Exec",
        Reaction::answer(&v1::ExecResponse {
            url: format!("http://127.0.0.1/exec/{SECRET}"),
        }),
    );

    let image = v1::ImageSpec {
        image: "registry.example/app:1".to_owned(),
        ..v1::ImageSpec::default()
    };
    let error = scene
        .client
        .pull_image(image, Some(auth()), None)
        .await
        .expect_err("scripted to fail");
    let _ = scene
        .client
        .create_container("s", config, v1::PodSandboxConfig::default())
        .await;
    let url = scene.client.exec(v1::ExecRequest::default()).await.unwrap();

    assert!(url.ends_with(SECRET), "the caller gets the whole address");
    let sent = scene
        .runtime
        .requests::<v1::PullImageRequest>("PullImage")
        .unwrap();
    assert_eq!(
        sent[0].auth,
        Some(auth()),
        "the runtime gets the whole credentials"
    );
    for text in [
        format!("{error}"),
        format!("{error:?}"),
        format!("{sent:?}"),
        log.text(),
    ] {
        let leaks: Vec<&str> = text.lines().filter(|line| line.contains(SECRET)).collect();
        assert!(leaks.is_empty(), "a secret shows in {leaks:#?}");
    }
    assert_eq!(
        error.message(),
        "GET https://[redacted]@registry.example/v2/: 401, tried [redacted]"
    );
    let text = log.text();
    let told = |line: &str| {
        line.contains("cri{method=\"PullImage\"}") && line.contains("call to the container runtime failed")
    };
    let own: Vec<&str> = text.lines().filter(|line| line.contains("rubelet_cri")).collect();
    assert!(
        own.iter().any(|line| told(line)),
        "the failure is not in the log: {own:#?}"
    );
}
