//! Every fault becomes the right kind of error, and the client lives on.

use rubelet_fakes::cri::Reaction;
use rubelet_ports::RuntimeErrorKind as Kind;
use rubelet_ports::{RuntimeReader, RuntimeWriter};
use rubelet_wire::cri::v1;
use tonic::Code;

use crate::scene::{Scene, failure};

#[tokio::test]
async fn error_codes_become_kinds() {
    let scene = Scene::new().await;
    for (code, kind, retryable) in [
        (Code::NotFound, Kind::NotFound, false),
        (Code::Unimplemented, Kind::Unimplemented, false),
        (Code::DeadlineExceeded, Kind::DeadlineExceeded, true),
        (Code::Unavailable, Kind::Unavailable, true),
        (Code::InvalidArgument, Kind::InvalidArgument, false),
        (Code::AlreadyExists, Kind::AlreadyExists, false),
        (Code::FailedPrecondition, Kind::FailedPrecondition, true),
        (Code::PermissionDenied, Kind::PermissionDenied, false),
        (Code::ResourceExhausted, Kind::ResourceExhausted, true),
        (Code::Internal, Kind::Internal, true),
        (Code::Unknown, Kind::Unknown, true),
    ] {
        scene
            .runtime
            .once("StartContainer", Reaction::fail(code, "what the runtime says"));
        let error = scene
            .client
            .start_container("c")
            .await
            .expect_err("scripted to fail");
        assert_eq!(
            (error.kind(), error.is_retryable()),
            (kind, retryable),
            "{code:?}"
        );
        assert_eq!(
            (error.method(), error.message()),
            ("StartContainer", "what the runtime says")
        );
        assert_eq!(error.endpoint(), scene.runtime.endpoint());
    }
    assert_eq!(
        scene.runtime.connections(),
        1,
        "an error of a call is no reason to connect again"
    );
}

#[tokio::test]
async fn a_cut_connection_breaks_the_call_and_no_later_one() {
    let scene = Scene::new().await;
    scene.runtime.once("StartContainer", Reaction::reset());
    assert_eq!(
        failure(&scene, "StartContainer", scene.client.start_container("c")).await,
        Kind::Unavailable
    );
    scene.until_answered().await;
    assert_eq!(scene.runtime.connections(), 2);
}

#[tokio::test]
async fn bytes_that_are_no_http2_are_a_broken_connection() {
    for garbage in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        &[0xff; 64][..],
        b"",
        // A frame that announces far more than may come.
        &[0xff, 0xff, 0xff, 0x04, 0x00, 0, 0, 0, 0][..],
    ] {
        let scene = Scene::new().await;
        scene.runtime.garble(Some(garbage));
        assert_eq!(
            failure(&scene, "Version", scene.client.version()).await,
            Kind::Unavailable,
            "{garbage:?}"
        );
        scene.runtime.garble(None);
        scene.until_answered().await;
    }
}

#[tokio::test]
async fn a_server_that_talks_nonsense_is_backed_off_from() {
    let scene = Scene::new().await;
    scene.runtime.garble(Some(&[0xff; 64]));
    for _ in 0..200 {
        assert_eq!(
            failure(&scene, "Version", scene.client.version()).await,
            Kind::Unavailable
        );
    }
    // 200 calls take far less than the gaps that 20 connections would need (19 s).
    assert!(
        scene.runtime.connections() < 20,
        "{} connections",
        scene.runtime.connections()
    );
}

#[tokio::test]
async fn an_answer_that_is_no_message_is_malformed() {
    let scene = Scene::new().await;
    scene
        .runtime
        .once("ListContainers", Reaction::raw(vec![0xff; 16]));
    assert_eq!(
        failure(&scene, "ListContainers", scene.client.list_containers(None)).await,
        Kind::MalformedAnswer
    );
    assert!(
        scene.client.version().await.is_ok(),
        "the connection is as good as before"
    );
}

#[tokio::test]
async fn answers_without_what_they_promise_are_malformed() {
    let scene = Scene::new().await;
    for method in [
        "Version",
        "Status",
        "RunPodSandbox",
        "CreateContainer",
        "Exec",
        "Attach",
        "PortForward",
    ] {
        scene.runtime.on(method, Reaction::raw(Vec::new()));
    }
    let client = &scene.client;
    let config = v1::PodSandboxConfig::default;
    let seen = [
        failure(&scene, "Version", client.version()).await,
        failure(&scene, "Status", client.status(false)).await,
        failure(&scene, "RunPodSandbox", client.run_pod_sandbox(config(), "")).await,
        failure(
            &scene,
            "CreateContainer",
            client.create_container("s", v1::ContainerConfig::default(), config()),
        )
        .await,
        failure(&scene, "Exec", client.exec(v1::ExecRequest::default())).await,
        failure(&scene, "Attach", client.attach(v1::AttachRequest::default())).await,
        failure(
            &scene,
            "PortForward",
            client.port_forward(v1::PortForwardRequest::default()),
        )
        .await,
    ];
    assert_eq!(seen, [Kind::MalformedAnswer; 7]);
}

#[tokio::test]
async fn no_answer_at_all_is_an_error() {
    let scene = Scene::new().await;
    scene.runtime.once(
        "StartContainer",
        Reaction::answers(Vec::<v1::StartContainerResponse>::new()),
    );
    assert!(scene.client.start_container("c").await.is_err());
}

#[tokio::test]
async fn states_of_a_newer_runtime_are_never_taken_for_good_ones() {
    let scene = Scene::new().await;
    let sandbox = v1::PodSandbox {
        id: "s".to_owned(),
        state: 42,
        ..v1::PodSandbox::default()
    };
    let container = v1::Container {
        id: "c".to_owned(),
        state: 42,
        ..v1::Container::default()
    };
    scene.runtime.on(
        "ListPodSandbox",
        Reaction::answer(&v1::ListPodSandboxResponse { items: vec![sandbox] }),
    );
    scene.runtime.on(
        "ListContainers",
        Reaction::answer(&v1::ListContainersResponse {
            containers: vec![container],
        }),
    );
    let sandboxes = scene.client.list_pod_sandboxes(None).await.unwrap();
    assert_eq!(
        sandboxes[0].observed_state(),
        v1::PodSandboxState::SandboxNotready
    );
    let containers = scene.client.list_containers(None).await.unwrap();
    assert_eq!(
        containers[0].observed_state(),
        v1::ContainerState::ContainerUnknown
    );
}
