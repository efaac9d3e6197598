//! What a cgroup reads from and writes to each device.
//!
//! Owns the tables in which the kernel counts, the files of version 1 that hold them, and version 2's `io.stat`.

use std::collections::BTreeMap;

use crate::text::digits;

/// A device by the kernel's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

impl DeviceNumber {
    /// From `8:16`.
    #[must_use]
    pub fn of_text(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        Some(Self {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        })
    }
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IoTable {
    Bytes,
    Operations,
    Sectors,
    Merged,
    /// Nanoseconds.
    ServiceTime,
    Queued,
    /// Microseconds of the IO cost model, as the next three.
    CostUsage,
    CostWait,
    CostInDebt,
    CostInDelay,
}

/// The operations of a device with their counters, such as `Read`.
type Operations = BTreeMap<String, u64>;

/// The tables that there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoFigures {
    tables: BTreeMap<IoTable, BTreeMap<DeviceNumber, Operations>>,
}

/// A counter without an operation.
const COUNT: &str = "Count";

impl IoFigures {
    /// The sets of files in which version 1 counts, the richest first. A kernel fills one of them: the first whose first file has a
    /// line.
    pub const V1_SETS: [&[(&'static str, IoTable)]; 5] = [
        &[
            ("blkio.bfq.sectors_recursive", IoTable::Sectors),
            ("blkio.bfq.io_service_bytes_recursive", IoTable::Bytes),
            ("blkio.bfq.io_serviced_recursive", IoTable::Operations),
            ("blkio.bfq.io_queued_recursive", IoTable::Queued),
            ("blkio.bfq.io_service_time_recursive", IoTable::ServiceTime),
            ("blkio.bfq.io_merged_recursive", IoTable::Merged),
        ],
        &[
            ("blkio.bfq.io_serviced_recursive", IoTable::Operations),
            ("blkio.bfq.io_service_bytes_recursive", IoTable::Bytes),
        ],
        &[
            ("blkio.sectors_recursive", IoTable::Sectors),
            ("blkio.io_service_bytes_recursive", IoTable::Bytes),
            ("blkio.io_serviced_recursive", IoTable::Operations),
            ("blkio.io_queued_recursive", IoTable::Queued),
            ("blkio.io_service_time_recursive", IoTable::ServiceTime),
            ("blkio.io_merged_recursive", IoTable::Merged),
        ],
        &[
            ("blkio.throttle.io_serviced_recursive", IoTable::Operations),
            ("blkio.throttle.io_service_bytes_recursive", IoTable::Bytes),
        ],
        &[
            ("blkio.throttle.io_serviced", IoTable::Operations),
            ("blkio.throttle.io_service_bytes", IoTable::Bytes),
        ],
    ];

    /// Adds a file of version 1, with lines such as `8:0 Read 4096`. `false` when it counts no device.
    pub fn add_v1(&mut self, table: IoTable, text: &[u8]) -> bool {
        let text = String::from_utf8_lossy(text);
        let mut is_filled = false;
        for line in text.lines() {
            let mut fields = line.split_ascii_whitespace();
            let Some(device) = fields.next().and_then(DeviceNumber::of_text) else {
                // The sum of all devices.
                continue;
            };
            let (operation, value) = match (fields.next(), fields.next()) {
                (Some(operation), Some(value)) => (operation, value),
                (Some(value), None) => (COUNT, value),
                (None, _) => continue,
            };
            if let Some(value) = digits(value.as_bytes()) {
                self.set(table, device, operation, value);
                is_filled = true;
            }
        }
        is_filled
    }

    /// From `io.stat`, with lines such as `8:0 rbytes=4096 wbytes=0 rios=1 wios=0`.
    #[must_use]
    pub fn of_v2(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let mut found = Self::default();
        for line in text.lines() {
            let mut fields = line.split_ascii_whitespace();
            let Some(device) = fields.next().and_then(DeviceNumber::of_text) else {
                continue;
            };
            for (name, value) in fields.filter_map(|field| field.split_once('=')) {
                let (table, operation) = match name {
                    "rbytes" => (IoTable::Bytes, "Read"),
                    "wbytes" => (IoTable::Bytes, "Write"),
                    "rios" => (IoTable::Operations, "Read"),
                    "wios" => (IoTable::Operations, "Write"),
                    "cost.usage" => (IoTable::CostUsage, COUNT),
                    "cost.wait" => (IoTable::CostWait, COUNT),
                    "cost.indebt" => (IoTable::CostInDebt, COUNT),
                    "cost.indelay" => (IoTable::CostInDelay, COUNT),
                    _ => continue,
                };
                if let Some(value) = digits(value.as_bytes()) {
                    found.set(table, device, operation, value);
                }
            }
        }
        found
    }

    /// The devices of a table with their operations.
    pub fn devices(&self, table: IoTable) -> impl Iterator<Item = (DeviceNumber, &BTreeMap<String, u64>)> {
        let devices = self.tables.get(&table).into_iter().flatten();
        devices.map(|(device, operations)| (*device, operations))
    }

    /// One operation of each device of a table; zero where a device does not count it.
    pub fn counters(&self, table: IoTable, operation: &str) -> impl Iterator<Item = (DeviceNumber, u64)> {
        self.devices(table)
            .map(move |(device, operations)| (device, operations.get(operation).copied().unwrap_or(0)))
    }

    /// A table without operations.
    pub fn counts(&self, table: IoTable) -> impl Iterator<Item = (DeviceNumber, u64)> {
        self.counters(table, COUNT)
    }

    fn set(&mut self, table: IoTable, device: DeviceNumber, operation: &str, value: u64) {
        let devices = self.tables.entry(table).or_default();
        let operations = devices.entry(device).or_default();
        operations.insert(operation.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SDA: DeviceNumber = DeviceNumber { major: 8, minor: 0 };
    const SDB: DeviceNumber = DeviceNumber { major: 8, minor: 16 };

    #[test]
    fn version_1_has_a_file_for_each_table() {
        let mut io = IoFigures::default();
        let text = b"8:0 Read 4096\n8:0 Write 512\n8:0 Sync 1\n8:0 Async 2\n8:0 Discard 0\n8:0 Total 4608\n8:16 Read 7\nTotal 4615\n";
        assert!(io.add_v1(IoTable::Bytes, text));
        let read: Vec<_> = io.counters(IoTable::Bytes, "Read").collect();
        assert_eq!(read, [(SDA, 4096), (SDB, 7)]);
        let written: Vec<_> = io.counters(IoTable::Bytes, "Write").collect();
        assert_eq!(
            written,
            [(SDA, 512), (SDB, 0)],
            "a device that does not count it has zero"
        );
        let (_, operations) = io.devices(IoTable::Bytes).next().expect("a device");
        assert_eq!(operations.len(), 6);
        assert!(!io.add_v1(IoTable::Operations, b"Total 0\n"), "no device");
        // Sectors have no operation.
        assert!(io.add_v1(IoTable::Sectors, b"8:0 123\n"));
        assert_eq!(io.counts(IoTable::Sectors).collect::<Vec<_>>(), [(SDA, 123)]);
    }

    #[test]
    fn version_2_has_one_file() {
        let text = b"8:0 rbytes=4096 wbytes=512 rios=3 wios=1 dbytes=9 dios=9 cost.usage=5 cost.wait=6 cost.indebt=7 cost.indelay=8\n8:16 \n";
        let io = IoFigures::of_v2(text);
        let check = |table, operation: &str, expected: u64| {
            let found: Vec<_> = io.counters(table, operation).collect();
            assert_eq!(found, [(SDA, expected)], "{table:?} {operation}");
        };
        check(IoTable::Bytes, "Read", 4096);
        check(IoTable::Bytes, "Write", 512);
        check(IoTable::Operations, "Read", 3);
        check(IoTable::Operations, "Write", 1);
        check(IoTable::CostUsage, "Count", 5);
        check(IoTable::CostWait, "Count", 6);
        check(IoTable::CostInDebt, "Count", 7);
        check(IoTable::CostInDelay, "Count", 8);
        assert_eq!(io.devices(IoTable::Queued).count(), 0);
    }

    proptest! {
        #[test]
        fn no_text_upsets_them(text in "([0-9:]{0,5} ?(Read|rbytes=)? ?[0-9a-z=.]{0,8}\n){0,8}") {
            let mut io = IoFigures::of_v2(text.as_bytes());
            io.add_v1(IoTable::Bytes, text.as_bytes());
        }
    }
}
