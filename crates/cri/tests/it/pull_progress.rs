//! A runtime that knows nothing of a pull's progress is no failure.

use rubelet_ports::{PullProgress, RuntimeErrorKind};

use crate::scene::Scene;

#[tokio::test]
async fn a_runtime_without_a_content_store_says_so() {
    let scene = Scene::new().await;
    let error = scene.client.ingests().await.unwrap_err();
    assert_eq!(error.kind(), RuntimeErrorKind::Unimplemented, "{error}");
    // It is no call of the interface, so that it is not counted among them.
    assert!(
        scene
            .registry
            .gather()
            .iter()
            .all(|family| family.get_metric().is_empty())
    );
}
