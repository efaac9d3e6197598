//! Reading of states that a newer runtime may have and this build does not know.
//!
//! Owns one rule: an unknown state is never taken for a good one. The generated getters must not be used for states: they
//! answer an unknown number with the enum's zero, and zero is `SANDBOX_READY` and `CONTAINER_CREATED`.

use crate::cri::v1::{
    Container, ContainerEventResponse, ContainerEventType, ContainerState, ContainerStatus, PodSandbox,
    PodSandboxState, PodSandboxStatus,
};

fn container_state(number: i32) -> ContainerState {
    ContainerState::try_from(number).unwrap_or(ContainerState::ContainerUnknown)
}

fn sandbox_state(number: i32) -> PodSandboxState {
    PodSandboxState::try_from(number).unwrap_or(PodSandboxState::SandboxNotready)
}

impl Container {
    /// The state; one that this build does not know is `ContainerUnknown`.
    #[must_use]
    pub fn observed_state(&self) -> ContainerState {
        container_state(self.state)
    }
}

impl ContainerStatus {
    /// The state; one that this build does not know is `ContainerUnknown`.
    #[must_use]
    pub fn observed_state(&self) -> ContainerState {
        container_state(self.state)
    }
}

impl PodSandbox {
    /// The state; one that this build does not know is not ready.
    #[must_use]
    pub fn observed_state(&self) -> PodSandboxState {
        sandbox_state(self.state)
    }
}

impl PodSandboxStatus {
    /// The state; one that this build does not know is not ready.
    #[must_use]
    pub fn observed_state(&self) -> PodSandboxState {
        sandbox_state(self.state)
    }
}

impl ContainerEventResponse {
    /// The kind of event; `None` when this build does not know it. It still means "observe this pod again".
    #[must_use]
    pub fn observed_type(&self) -> Option<ContainerEventType> {
        ContainerEventType::try_from(self.container_event_type).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_states_are_never_good_ones() {
        let check = |number: i32, container: ContainerState, sandbox: PodSandboxState| {
            assert_eq!(
                Container {
                    state: number,
                    ..Container::default()
                }
                .observed_state(),
                container
            );
            assert_eq!(
                ContainerStatus {
                    state: number,
                    ..ContainerStatus::default()
                }
                .observed_state(),
                container
            );
            assert_eq!(
                PodSandbox {
                    state: number,
                    ..PodSandbox::default()
                }
                .observed_state(),
                sandbox
            );
            assert_eq!(
                PodSandboxStatus {
                    state: number,
                    ..PodSandboxStatus::default()
                }
                .observed_state(),
                sandbox
            );
        };
        check(0, ContainerState::ContainerCreated, PodSandboxState::SandboxReady);
        check(
            1,
            ContainerState::ContainerRunning,
            PodSandboxState::SandboxNotready,
        );
        check(
            2,
            ContainerState::ContainerExited,
            PodSandboxState::SandboxNotready,
        );
        check(
            3,
            ContainerState::ContainerUnknown,
            PodSandboxState::SandboxNotready,
        );
        check(
            77,
            ContainerState::ContainerUnknown,
            PodSandboxState::SandboxNotready,
        );
        check(
            -1,
            ContainerState::ContainerUnknown,
            PodSandboxState::SandboxNotready,
        );
        check(
            i32::MAX,
            ContainerState::ContainerUnknown,
            PodSandboxState::SandboxNotready,
        );
    }

    #[test]
    fn unknown_events_have_no_type() {
        let event = |number| ContainerEventResponse {
            container_event_type: number,
            ..Default::default()
        };
        assert_eq!(
            event(2).observed_type(),
            Some(ContainerEventType::ContainerStoppedEvent)
        );
        assert_eq!(event(9).observed_type(), None);
    }
}
