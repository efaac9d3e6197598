//! How long processes waited for something, as the kernel's pressure files have it (PSI).
//!
//! Owns the figures of one file. Times are microseconds and averages are percentages, both as in the file.

use std::ffi::CStr;

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PressureKind {
    Cpu,
    Memory,
    Io,
}

impl PressureKind {
    /// The cgroup's file.
    #[must_use]
    pub fn file(self) -> &'static CStr {
        match self {
            Self::Cpu => c"cpu.pressure",
            Self::Memory => c"memory.pressure",
            Self::Io => c"io.pressure",
        }
    }
}

/// One line of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stalls {
    /// Microseconds.
    pub total: u64,
    /// Percent of the last 10 seconds.
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
}

/// Times in which some, and in which all, processes waited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PressureFigures {
    pub some: Stalls,
    pub full: Stalls,
}

impl PressureFigures {
    /// A line that is missing is all zeros: kernels before 5.13 have no `full` for processors.
    #[must_use]
    pub fn of_file(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let mut figures = Self::default();
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("some", rest)) => figures.some = stalls(rest),
                Some(("full", rest)) => figures.full = stalls(rest),
                Some(_) | None => {}
            }
        }
        figures
    }
}

fn stalls(line: &str) -> Stalls {
    let mut found = Stalls::default();
    for (name, value) in line.split(' ').filter_map(|field| field.split_once('=')) {
        let average = || value.parse::<f64>().ok().filter(|number| number.is_finite());
        match name {
            "total" => found.total = value.parse().unwrap_or(0),
            "avg10" => found.avg10 = average().unwrap_or(0.0),
            "avg60" => found.avg60 = average().unwrap_or(0.0),
            "avg300" => found.avg300 = average().unwrap_or(0.0),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_file_has_some_and_full() {
        let text = b"some avg10=1.50 avg60=0.25 avg300=0.07 total=1234567\nfull avg10=0.10 avg60=0.00 avg300=0.00 total=89\n";
        let figures = PressureFigures::of_file(text);
        assert_eq!(
            figures.some,
            Stalls {
                total: 1_234_567,
                avg10: 1.5,
                avg60: 0.25,
                avg300: 0.07
            }
        );
        assert_eq!((figures.full.total, figures.full.avg10), (89, 0.1));
    }

    #[test]
    fn what_is_missing_or_odd_is_zero() {
        let figures = PressureFigures::of_file(b"some avg10=nan avg60=x total=7\nother total=9\n");
        assert_eq!(
            figures.some,
            Stalls {
                total: 7,
                ..Stalls::default()
            }
        );
        assert_eq!(figures.full, Stalls::default());
        assert_eq!(PressureFigures::of_file(b""), PressureFigures::default());
    }

    proptest! {
        #[test]
        fn no_text_upsets_it(text in prop::collection::vec(any::<u8>(), 0..300)) {
            let figures = PressureFigures::of_file(&text);
            prop_assert!(figures.some.avg10.is_finite());
        }
    }
}
