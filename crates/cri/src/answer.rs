//! What the CRI promises about answers, checked before they are used.
//!
//! Owns the list of fields that must be set, which is upstream's. Pure: each check returns a text of what is missing.

use rubelet_wire::cri::v1;

type Check = Result<(), String>;

fn set(present: bool, field: &str) -> Check {
    if present {
        Ok(())
    } else {
        Err(format!("{field} is not set"))
    }
}

pub(crate) fn version(answer: &v1::VersionResponse) -> Check {
    let fields = [
        ("version", &answer.version),
        ("runtime_name", &answer.runtime_name),
        ("runtime_version", &answer.runtime_version),
        ("runtime_api_version", &answer.runtime_api_version),
    ];
    let missing: Vec<&str> = fields
        .iter()
        .filter(|(_, value)| value.is_empty())
        .map(|(name, _)| *name)
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(format!("not set: {}", missing.join(", ")))
    }
}

pub(crate) fn status(answer: &v1::StatusResponse) -> Check {
    let conditions = answer.status.as_ref().map_or(0, |status| status.conditions.len());
    if conditions >= 2 {
        Ok(())
    } else {
        Err("the conditions RuntimeReady and NetworkReady are not both set".to_owned())
    }
}

pub(crate) fn pod_sandbox_status(answer: &v1::PodSandboxStatusResponse) -> Check {
    let Some(status) = &answer.status else {
        return Ok(());
    };
    set(!status.id.is_empty(), "status.id")?;
    let metadata = status.metadata.as_ref().ok_or("status.metadata is not set")?;
    set(!metadata.name.is_empty(), "status.metadata.name")?;
    set(!metadata.namespace.is_empty(), "status.metadata.namespace")?;
    set(!metadata.uid.is_empty(), "status.metadata.uid")?;
    set(status.created_at != 0, "status.created_at")
}

pub(crate) fn container_status(answer: &v1::ContainerStatusResponse) -> Check {
    let Some(status) = &answer.status else {
        return Ok(());
    };
    set(!status.id.is_empty(), "status.id")?;
    let metadata = status.metadata.as_ref().ok_or("status.metadata is not set")?;
    set(!metadata.name.is_empty(), "status.metadata.name")?;
    set(status.created_at != 0, "status.created_at")?;
    set(
        status.image.as_ref().is_some_and(|image| !image.image.is_empty()),
        "status.image",
    )?;
    set(!status.image_ref.is_empty(), "status.image_ref")
}

pub(crate) fn image_status(answer: &v1::ImageStatusResponse) -> Check {
    let Some(image) = &answer.image else { return Ok(()) };
    set(!image.id.is_empty(), "image.id")?;
    set(image.size != 0, "image.size")
}

/// An id, reference or address that is the whole point of the answer.
pub(crate) fn text(value: &str, field: &str) -> Check {
    set(!value.is_empty(), field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container() -> v1::ContainerStatusResponse {
        v1::ContainerStatusResponse {
            status: Some(v1::ContainerStatus {
                id: "c".to_owned(),
                metadata: Some(v1::ContainerMetadata {
                    name: "app".to_owned(),
                    attempt: 0,
                }),
                created_at: 1,
                image: Some(v1::ImageSpec {
                    image: "app:1".to_owned(),
                    ..Default::default()
                }),
                image_ref: "sha256:1".to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn sandbox() -> v1::PodSandboxStatusResponse {
        v1::PodSandboxStatusResponse {
            status: Some(v1::PodSandboxStatus {
                id: "s".to_owned(),
                metadata: Some(v1::PodSandboxMetadata {
                    name: "pod".to_owned(),
                    namespace: "default".to_owned(),
                    uid: "u".to_owned(),
                    attempt: 0,
                }),
                created_at: 1,
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    #[test]
    fn containers() {
        let check = |change: fn(&mut v1::ContainerStatus), expected: &str| {
            let mut answer = container();
            answer.status.iter_mut().for_each(change);
            assert_eq!(container_status(&answer).err().unwrap_or_default(), expected);
        };
        check(|_| (), "");
        check(|status| status.id.clear(), "status.id is not set");
        check(|status| status.metadata = None, "status.metadata is not set");
        check(
            |status| status.metadata = Some(Default::default()),
            "status.metadata.name is not set",
        );
        check(|status| status.created_at = 0, "status.created_at is not set");
        check(|status| status.image = None, "status.image is not set");
        check(
            |status| status.image = Some(Default::default()),
            "status.image is not set",
        );
        check(|status| status.image_ref.clear(), "status.image_ref is not set");
        assert_eq!(container_status(&v1::ContainerStatusResponse::default()), Ok(()));
    }

    #[test]
    fn sandboxes() {
        let check = |change: fn(&mut v1::PodSandboxStatus), expected: &str| {
            let mut answer = sandbox();
            answer.status.iter_mut().for_each(change);
            assert_eq!(pod_sandbox_status(&answer).err().unwrap_or_default(), expected);
        };
        check(|_| (), "");
        check(|status| status.id.clear(), "status.id is not set");
        check(|status| status.metadata = None, "status.metadata is not set");
        check(
            |status| status.metadata.iter_mut().for_each(|m| m.name.clear()),
            "status.metadata.name is not set",
        );
        check(
            |status| status.metadata.iter_mut().for_each(|m| m.namespace.clear()),
            "status.metadata.namespace is not set",
        );
        check(
            |status| status.metadata.iter_mut().for_each(|m| m.uid.clear()),
            "status.metadata.uid is not set",
        );
        check(|status| status.created_at = 0, "status.created_at is not set");
        assert_eq!(
            pod_sandbox_status(&v1::PodSandboxStatusResponse::default()),
            Ok(())
        );
    }

    #[test]
    fn the_runtime_itself() {
        let answer = v1::VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: "x".to_owned(),
            ..Default::default()
        };
        assert_eq!(
            version(&answer),
            Err("not set: runtime_version, runtime_api_version".to_owned())
        );
        let conditions = |count| v1::StatusResponse {
            status: Some(v1::RuntimeStatus {
                conditions: vec![Default::default(); count],
            }),
            ..Default::default()
        };
        assert!(status(&v1::StatusResponse::default()).is_err());
        assert!(status(&conditions(1)).is_err());
        assert_eq!(status(&conditions(2)), Ok(()));
    }

    #[test]
    fn images() {
        let answer = |id: &str, size| v1::ImageStatusResponse {
            image: Some(v1::Image {
                id: id.to_owned(),
                size,
                ..Default::default()
            }),
            ..Default::default()
        };
        assert_eq!(image_status(&answer("i", 1)), Ok(()));
        assert_eq!(
            image_status(&answer("", 1)),
            Err("image.id is not set".to_owned())
        );
        assert_eq!(
            image_status(&answer("i", 0)),
            Err("image.size is not set".to_owned())
        );
        assert_eq!(image_status(&v1::ImageStatusResponse::default()), Ok(()));
    }
}
