//! What the machine is made of: processors and memory modules.
//!
//! Owns how processors are counted from what the kernel says of each.

use std::collections::{BTreeMap, BTreeSet};

/// Where a processor is. A part that the kernel does not name is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorPlace {
    pub core: Option<u64>,
    pub socket: Option<u64>,
    pub book: Option<u64>,
    pub drawer: Option<u64>,
}

/// A part with what it is in.
type Part = (Option<u64>, u64);

/// How many there are of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processors {
    pub logical: u64,
    pub cores: u64,
    pub sockets: u64,
    /// Books and drawers exist on s390 alone.
    pub books: u64,
    pub drawers: u64,
}

impl Processors {
    /// Cores are counted in each socket, where the same numbers come again.
    #[must_use]
    pub fn of_places(places: &[ProcessorPlace]) -> Self {
        let count = |part: fn(&ProcessorPlace) -> Option<Part>| {
            let parts: BTreeSet<Part> = places.iter().filter_map(part).collect();
            parts.len() as u64
        };
        Self {
            logical: places.len() as u64,
            cores: count(|place| Some((place.socket, place.core?))),
            sockets: count(|place| Some((None, place.socket?))),
            books: count(|place| Some((None, place.book?))),
            drawers: count(|place| Some((place.book, place.drawer?))),
        }
    }
}

/// Memory modules of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dimms {
    pub count: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFigures {
    pub processors: Processors,
    /// By type; nothing without the kernel's EDAC.
    pub dimms: BTreeMap<String, Dimms>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_counted_in_each_socket() {
        let place = |socket, core| ProcessorPlace {
            core: Some(core),
            socket: Some(socket),
            ..ProcessorPlace::default()
        };
        // Two sockets of two cores, the first with two threads each.
        let places = [
            place(0, 0),
            place(0, 1),
            place(0, 0),
            place(0, 1),
            place(1, 0),
            place(1, 1),
        ];
        let expected = Processors {
            logical: 6,
            cores: 4,
            sockets: 2,
            ..Processors::default()
        };
        assert_eq!(Processors::of_places(&places), expected);
        assert_eq!(Processors::of_places(&[]), Processors::default());
    }
}
