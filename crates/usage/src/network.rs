//! Traffic of network interfaces, from `/proc/<pid>/net/dev`.
//!
//! Owns which interfaces count, by upstream's rule: those of containers' other ends, bridges of container engines and the loopback do
//! not.

use crate::text::digits;

const LEFT_OUT: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];
/// A name and sixteen counters.
const FIELDS: usize = 17;
/// Two lines of titles stand above the interfaces.
const TITLES: usize = 2;

/// The counters of one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub receive: Traffic,
    pub transmit: Traffic,
}

/// One direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
}

/// All interfaces that count, in the kernel's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkFigures {
    pub interfaces: Vec<Interface>,
}

impl NetworkFigures {
    /// A line of another form voids the whole file.
    #[must_use]
    pub fn of_net_dev(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut interfaces = Vec::new();
        for line in text.lines().skip(TITLES) {
            // The counters may follow the colon without a blank.
            let (name, counters) = line.split_once(':')?;
            let name = name.trim();
            let counters: Vec<&str> = counters.split_ascii_whitespace().collect();
            if counters.len() + 1 != FIELDS {
                return None;
            }
            if !counts(name) {
                continue;
            }
            let direction = |first: usize| {
                let counter = |at: usize| digits(counters[first + at].as_bytes());
                Some(Traffic {
                    bytes: counter(0)?,
                    packets: counter(1)?,
                    errors: counter(2)?,
                    dropped: counter(3)?,
                })
            };
            interfaces.push(Interface {
                name: name.to_owned(),
                receive: direction(0)?,
                transmit: direction(8)?,
            });
        }
        Some(Self { interfaces })
    }
}

fn counts(name: &str) -> bool {
    let lower = name.to_lowercase();
    !LEFT_OUT.iter().any(|prefix| lower.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TITLE: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
";

    fn read(lines: &str) -> Option<NetworkFigures> {
        NetworkFigures::of_net_dev(format!("{TITLE}{lines}").as_bytes())
    }

    #[test]
    fn interfaces_of_pods_count_and_those_of_the_engine_do_not() {
        let found = read(
            "    lo:    3193      29    0    0    0     0          0         0     3193      29    0    0    0     0       0          0
  ifb0:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
veth1a:       9       9    0    0    0     0          0         0        9       9    0    0    0     0       0          0
 Docker0:     9       9    0    0    0     0          0         0        9       9    0    0    0     0       0          0
  eth0:147020486    4572    1    2    0     0          0         0   279481    2952    3    4    0     0       0          0
",
        );
        let interfaces = found.expect("a file").interfaces;
        let names: Vec<&str> = interfaces.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["ifb0", "eth0"]);
        assert_eq!(
            interfaces[1],
            Interface {
                name: "eth0".to_owned(),
                receive: Traffic {
                    bytes: 147_020_486,
                    packets: 4572,
                    errors: 1,
                    dropped: 2
                },
                transmit: Traffic {
                    bytes: 279_481,
                    packets: 2952,
                    errors: 3,
                    dropped: 4
                },
            }
        );
    }

    #[test]
    fn one_odd_line_voids_the_file() {
        assert_eq!(read(""), Some(NetworkFigures::default()));
        for odd in [
            "eth0: 1 2 3\n",
            "eth0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n",
            "\n",
        ] {
            assert_eq!(read(odd), None, "{odd:?}");
        }
        let sixteen = "eth0: x 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";
        assert_eq!(read(sixteen), None);
        assert!(read(&sixteen.replace('x', "1")).is_some());
    }

    proptest! {
        #[test]
        fn no_text_upsets_it(text in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = NetworkFigures::of_net_dev(&text);
        }
    }
}
