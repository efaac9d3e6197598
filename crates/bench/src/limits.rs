//! What rubelet must reach in each row of the budget, and what it aims at.

use super::budget::Row;

/// As fast as upstream: the same work takes no two runs of one kubelet the same time.
const AS_UPSTREAM: Limit = Limit::OfUpstream(1.05);

/// How low a figure has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    /// A multiple of the CRI floor of the same run.
    OfFloor(f64),
    /// A multiple of upstream's figure of the same run.
    OfUpstream(f64),
    /// A figure in the row's unit.
    AtMost(f64),
    /// No more per pod than in the row of fewer pods of the same run.
    Linear,
    /// Measured for information.
    Free,
}

/// What a run tells of rubelet in one row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub(super) figure: Option<f64>,
    /// The same as a multiple of the floor, and of upstream's figure.
    pub(super) of_floor: Option<f64>,
    pub(super) of_upstream: Option<f64>,
    /// The figure per pod as a multiple of the one with fewer pods.
    pub(super) of_fewer: Option<f64>,
}

impl Limit {
    /// Whether a figure is low enough; nothing if the run does not tell.
    pub(super) fn is_reached(self, outcome: Outcome) -> Option<bool> {
        match self {
            Self::OfFloor(factor) => outcome.of_floor.map(|ratio| ratio <= factor),
            Self::OfUpstream(factor) => outcome.of_upstream.map(|ratio| ratio <= factor),
            Self::AtMost(value) => outcome.figure.map(|figure| figure <= value),
            Self::Linear => outcome.of_fewer.map(|ratio| ratio <= 1.0),
            Self::Free => None,
        }
    }
}

impl Row {
    /// What rubelet must reach.
    pub(super) fn must(self) -> Limit {
        match self {
            Self::OneStart | Self::DenseStart => Limit::OfFloor(1.15),
            Self::OneStop => Limit::OfFloor(1.3),
            Self::ManyStart | Self::ManyStop => Limit::OfFloor(1.05),
            Self::DenseStop => Limit::OfFloor(1.1),
            Self::ManyStartCpu => Limit::AtMost(0.7),
            Self::DenseStartCpu => Limit::AtMost(3.9),
            Self::OneRestart => Limit::AtMost(120.0),
            Self::KubeletRestart => Limit::AtMost(0.3),
            Self::DenseKubeletRestart => Limit::AtMost(1.0),
            Self::MemoryIdle => Limit::AtMost(16.0),
            Self::MemoryMany => Limit::AtMost(26.0),
            Self::DenseMemory => Limit::AtMost(50.0),
            Self::SteadyCpu => Limit::AtMost(0.15),
            Self::DenseSteadyCpu => Limit::AtMost(0.6),
            Self::ObjectsRestart => Limit::AtMost(5.0),
            Self::Binary => Limit::AtMost(24.0),
            Self::RequestsLate => Limit::AtMost(50.0),
            Self::VolumesStart | Self::ProbesStart => Limit::AtMost(10.0),
            Self::LogsFollowed | Self::Entered | Self::PortForwarded => AS_UPSTREAM,
            Self::ApiVolumesStart => Limit::AtMost(15.0),
            Self::Statuses => Limit::AtMost(2.0),
            Self::ResourcePage => Limit::AtMost(8.0),
            Self::SummaryPage => Limit::AtMost(30.0),
            Self::ContainerPage => Limit::AtMost(80.0),
            Self::DenseResourcePage => Limit::AtMost(40.0),
            Self::DenseSummaryPage => Limit::AtMost(150.0),
            Self::DenseContainerPage => Limit::AtMost(400.0),
            Self::ScrapedCpu | Self::DenseScrapedCpu => Limit::OfUpstream(0.25),
            Self::ScrapedMemory => Limit::AtMost(4.0),
            Self::ScrapedStart => Limit::AtMost(10.0),
            Self::AnonymousIdle
            | Self::AnonymousMany
            | Self::DenseAnonymous
            | Self::ExecToReady
            | Self::ObjectsRequests
            | Self::ObjectsCpu
            | Self::RequestsRate
            | Self::RequestsLatest
            | Self::RequestsCpu
            | Self::CommandsRate
            | Self::CommandsLate
            | Self::CommandsCpu
            | Self::ApiOneStart
            | Self::ApiOneStop
            | Self::ApiManyStart
            | Self::ApiManyStartCpu
            | Self::ApiManyStop
            | Self::ApiMemoryIdle
            | Self::ApiMemoryMany
            | Self::ApiSteadyCpu
            | Self::DenseScrapedMemory => Limit::Free,
        }
    }

    /// What rubelet aims at.
    pub(super) fn goal(self) -> Limit {
        match self {
            Self::OneStart | Self::ManyStop | Self::DenseStart | Self::DenseStop => Limit::OfFloor(1.0),
            Self::OneStop => Limit::OfFloor(1.05),
            Self::ManyStart => Limit::OfFloor(0.95),
            Self::ManyStartCpu => Limit::AtMost(0.5),
            Self::DenseStartCpu => Limit::AtMost(2.5),
            Self::OneRestart => Limit::AtMost(80.0),
            Self::DenseKubeletRestart | Self::DenseSteadyCpu => Limit::Linear,
            Self::MemoryIdle => Limit::AtMost(12.0),
            Self::MemoryMany => Limit::AtMost(20.0),
            Self::DenseMemory => Limit::AtMost(40.0),
            Self::Binary => Limit::AtMost(18.0),
            Self::RequestsLate => Limit::AtMost(10.0),
            Self::VolumesStart => Limit::AtMost(3.0),
            Self::ProbesStart
            | Self::KubeletRestart
            | Self::SteadyCpu
            | Self::AnonymousIdle
            | Self::AnonymousMany
            | Self::DenseAnonymous
            | Self::ExecToReady
            | Self::ObjectsRestart
            | Self::ObjectsRequests
            | Self::ObjectsCpu
            | Self::RequestsRate
            | Self::RequestsLatest
            | Self::RequestsCpu
            | Self::CommandsRate
            | Self::CommandsLate
            | Self::CommandsCpu
            | Self::ApiOneStart
            | Self::ApiOneStop
            | Self::ApiManyStart
            | Self::ApiManyStartCpu
            | Self::ApiManyStop
            | Self::ApiMemoryIdle
            | Self::ApiMemoryMany
            | Self::ApiSteadyCpu
            | Self::ApiVolumesStart
            | Self::Statuses
            | Self::LogsFollowed
            | Self::Entered
            | Self::PortForwarded
            | Self::ResourcePage
            | Self::SummaryPage
            | Self::ContainerPage
            | Self::ScrapedCpu
            | Self::ScrapedMemory
            | Self::ScrapedStart
            | Self::DenseResourcePage
            | Self::DenseSummaryPage
            | Self::DenseContainerPage
            | Self::DenseScrapedCpu
            | Self::DenseScrapedMemory => Limit::Free,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        let check = |limit: Limit, figure: Option<f64>, of_floor: Option<f64>, expected: Option<bool>| {
            let outcome = Outcome {
                figure,
                of_floor,
                of_upstream: Some(1.1),
                of_fewer: of_floor,
            };
            assert_eq!(limit.is_reached(outcome), expected, "{limit:?} {outcome:?}");
        };
        check(Limit::OfUpstream(1.1), None, None, Some(true));
        check(Limit::OfUpstream(1.05), Some(1.0), Some(1.0), Some(false));
        assert_eq!(AS_UPSTREAM.is_reached(Outcome::default()), None);
        check(Limit::OfFloor(1.5), Some(10.0), Some(1.5), Some(true));
        check(Limit::OfFloor(1.5), Some(1.0), Some(1.6), Some(false));
        check(Limit::OfFloor(1.5), Some(1.0), None, None);
        check(Limit::AtMost(2.0), Some(2.0), None, Some(true));
        check(Limit::AtMost(2.0), Some(2.1), Some(1.0), Some(false));
        check(Limit::AtMost(2.0), None, None, None);
        check(Limit::Free, Some(1.0), Some(1.0), None);
        check(Limit::Linear, Some(9.0), Some(1.0), Some(true));
        check(Limit::Linear, Some(9.0), Some(1.01), Some(false));
        check(Limit::Linear, Some(9.0), None, None);
    }

    #[test]
    fn what_must_be_linear_is_measured_with_fewer_pods_too() {
        for row in Row::ALL {
            if [row.must(), row.goal()].contains(&Limit::Linear) {
                assert!(row.with_fewer_pods().is_some(), "{row:?}");
            }
        }
    }

    #[test]
    fn a_goal_is_never_easier_than_what_must_be_reached() {
        for row in Row::ALL {
            let is_harder = match (row.goal(), row.must()) {
                (Limit::OfFloor(goal), Limit::OfFloor(must)) | (Limit::AtMost(goal), Limit::AtMost(must)) => {
                    goal <= must
                }
                (Limit::Free | Limit::Linear, _) => true,
                _ => false,
            };
            assert!(is_harder, "{row:?}");
        }
    }
}
