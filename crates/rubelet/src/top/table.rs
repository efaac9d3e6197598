//! The figures as lines of text: the node's totals, and a table of pods and containers.
//!
//! Owns the form of numbers and columns, and what is left out where there is no room. It must not know a terminal.

use super::figures::{Row, SortKey, Summary};

const GAP: &str = "  ";
/// A name is cut to this at most; what is wider than the terminal is cut at its end.
const SHORTEST_NAME: usize = 12;
const NANOS_PER_MILLI: f64 = 1e6;

/// What is shown, and the room that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) sort: SortKey,
    pub(super) shows_containers: bool,
    /// Of the node.
    pub(super) processors: usize,
    /// Columns and lines; `None` where there is room for everything.
    pub(super) room: Option<(usize, usize)>,
}

/// Everything, as far as there is room. A notice stands below the totals.
pub(super) fn lines(summary: &Summary, view: &View, notice: Option<&str>) -> Vec<String> {
    let mut lines = totals(summary, view);
    lines.extend(notice.map(clean));
    lines.push(String::new());
    let rows = summary.rows(view.sort, view.shows_containers);
    if rows.is_empty() {
        lines.push("No pods run on this node.".to_owned());
    } else {
        lines.extend(table(&rows, summary.totals().stalls.is_some(), view));
    }
    let Some((width, height)) = view.room else {
        return lines;
    };
    if lines.len() > height {
        let hidden = lines.len() + 1 - height.max(1);
        lines.truncate(height.saturating_sub(1));
        lines.push(format!("… {hidden} more"));
    }
    lines.iter().map(|line| cut_end(line, width)).collect()
}

fn totals(summary: &Summary, view: &View) -> Vec<String> {
    let totals = summary.totals();
    let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut lines = vec![format!(
        "Node {}: {}, {}, by {}",
        clean(&summary.node.node_name),
        count(summary.pods.len(), "pod"),
        count(summary.containers(), "container"),
        view.sort.name()
    )];
    let all_nanos = view.processors as f64 * 1e9;
    let share = |part: f64, whole: f64| match whole {
        0.0 => String::new(),
        whole => format!(" ({:.0}%)", 100.0 * part / whole),
    };
    let cpu = totals.nano_cores.map_or_else(unknown, |nanos| {
        let share = share(nanos as f64, all_nanos);
        format!("{} of {}m{share}", cores(Some(nanos)), view.processors * 1000)
    });
    lines.push(format!("cpu     {cpu}"));
    let available = totals.memory_available_bytes;
    let available = available.map(|free| format!(", {} available", bytes(Some(free))));
    lines.push(format!(
        "memory  {}{}",
        bytes(totals.memory_bytes),
        available.unwrap_or_default()
    ));
    let disk = match (totals.disk.used_bytes, totals.disk.capacity_bytes) {
        (Some(used), Some(whole)) => {
            let share = share(used as f64, whole as f64);
            format!("{} of {}{share}", bytes(Some(used)), bytes(Some(whole)))
        }
        (used, _) => bytes(used),
    };
    let images = totals
        .image_bytes
        .map(|images| format!(", images {}", bytes(Some(images))));
    lines.push(format!("disk    {disk}{}", images.unwrap_or_default()));
    lines.push(match totals.stalls {
        Some([cpu, memory, io]) => {
            format!("waited  {cpu:.1}% for cpu, {memory:.1}% for memory, {io:.1}% for disks (PSI of 10 s)")
        }
        None => "waited  not measured (no PSI: cgroup v1, or a kernel without it)".to_owned(),
    });
    lines
}

/// Names in the first column, numbers right-aligned.
fn table(rows: &[Row], has_stalls: bool, view: &View) -> Vec<String> {
    let mut names = vec!["NAMESPACE/NAME".to_owned()];
    let mut heads = vec!["CPU", "MEMORY", "DISK"];
    if has_stalls {
        heads.extend(["%CPU", "%MEM", "%IO"]);
    }
    let mut cells: Vec<Vec<String>> = vec![heads.into_iter().map(str::to_owned).collect()];
    for row in rows {
        let indent = if row.is_container { GAP } else { "" };
        names.push(format!("{indent}{}", clean(&row.name)));
        let mut numbers = vec![
            cores(row.nano_cores),
            bytes(row.memory_bytes),
            bytes(row.disk_bytes),
        ];
        if has_stalls {
            numbers.extend(row.stalls.map(|percent| format!("{percent:.1}")));
        }
        cells.push(numbers);
    }
    let columns = cells.first().map_or(0, Vec::len);
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    let taken: usize = widths.iter().map(|width| width + GAP.len()).sum();
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let name_width = view.room.map_or(longest, |(width, _)| {
        longest.min(width.saturating_sub(taken).max(SHORTEST_NAME))
    });
    let rows = names.iter().zip(&cells).map(|(name, numbers)| {
        let mut line = format!("{:<name_width$}", cut_middle(name, name_width));
        for (number, width) in numbers.iter().zip(&widths) {
            line.push_str(&format!("{GAP}{number:>width$}"));
        }
        line
    });
    rows.collect()
}

fn unknown() -> String {
    "-".to_owned()
}

/// Thousandths of a processor.
fn cores(nanos: Option<u64>) -> String {
    nanos.map_or_else(unknown, |nanos| {
        let milli = nanos as f64 / NANOS_PER_MILLI;
        if nanos > 0 && milli < 9.95 {
            format!("{milli:.1}m")
        } else {
            format!("{milli:.0}m")
        }
    })
}

fn bytes(bytes: Option<u64>) -> String {
    let Some(bytes) = bytes else {
        return unknown();
    };
    let (mut amount, mut unit) = (bytes as f64, "");
    for larger in ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"] {
        if amount < 1023.5 {
            break;
        }
        (amount, unit) = (amount / 1024.0, larger);
    }
    if amount < 9.95 && !unit.is_empty() {
        format!("{amount:.1}{unit}")
    } else {
        format!("{amount:.0}{unit}")
    }
}

/// Names come from other programs, and a terminal obeys control characters.
fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

fn cut_end(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    if width == 0 { kept } else { format!("{kept}…") }
}

/// Both ends of a pod's name tell it from others.
fn cut_middle(text: &str, width: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    let (begin, end) = (kept - kept / 2, kept / 2);
    let begin: String = letters[..begin].iter().collect();
    let end: String = letters[letters.len() - end..].iter().collect();
    format!("{begin}…{end}")
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn summary(total: u64) -> Summary {
        let psi = json!({ "some": { "total": total, "avg10": 1.25 } });
        let summary = json!({
            "node": {
                "nodeName": "node-a", "cpu": { "usageNanoCores": 500_000_000, "psi": psi },
                "memory": { "workingSetBytes": 3_221_225_472_u64, "availableBytes": 1_073_741_824 },
                "fs": { "capacityBytes": 1000, "usedBytes": 250 }, "runtime": { "imageFs": { "usedBytes": 50 } },
            },
            "pods": [{
                "podRef": { "name": "web-5d4f8c7b9-x7k2p", "namespace": "default" },
                "containers": [{ "name": "main\u{1b}[31m", "cpu": { "usageNanoCores": 2_500_000 } }],
                "cpu": { "usageNanoCores": 120_000_000 }, "memory": { "workingSetBytes": 20_971_520 },
                "ephemeral-storage": { "usedBytes": 1536 },
            }],
        });
        from_value(summary).unwrap()
    }

    fn view(room: Option<(usize, usize)>) -> View {
        View {
            sort: SortKey::Cpu,
            shows_containers: true,
            processors: 2,
            room,
        }
    }

    #[test]
    fn totals_stand_above_the_pods() {
        let lines = lines(&summary(7), &view(None), None);
        assert_eq!(
            lines,
            [
                "Node node-a: 1 pod, 1 container, by cpu",
                "cpu     500m of 2000m (25%)",
                "memory  3.0Gi, 1.0Gi available",
                "disk    250 of 1000 (25%), images 50",
                "waited  1.2% for cpu, 0.0% for memory, 0.0% for disks (PSI of 10 s)",
                "",
                "NAMESPACE/NAME                CPU  MEMORY   DISK  %CPU  %MEM  %IO",
                "default/web-5d4f8c7b9-x7k2p  120m    20Mi  1.5Ki   0.0   0.0  0.0",
                "  main [31m                  2.5m       -      -   0.0   0.0  0.0",
            ]
        );
    }

    #[test]
    fn without_psi_its_columns_are_left_out() {
        let found = lines(&summary(0), &view(None), Some("averages"));
        assert_eq!(
            found[4..],
            [
                "waited  not measured (no PSI: cgroup v1, or a kernel without it)",
                "averages",
                "",
                "NAMESPACE/NAME                CPU  MEMORY   DISK",
                "default/web-5d4f8c7b9-x7k2p  120m    20Mi  1.5Ki",
                "  main [31m                  2.5m       -      -",
            ]
        );
        let empty: Summary = from_value(json!({ "node": {}, "pods": [] })).unwrap();
        let found = lines(&empty, &view(None), None);
        assert_eq!(
            found.last().map(String::as_str),
            Some("No pods run on this node.")
        );
        assert_eq!(found[1], "cpu     -");
    }

    #[test]
    fn lines_are_cut_to_the_room() {
        let found = lines(&summary(7), &view(Some((60, 9))), None);
        assert_eq!(
            found[4],
            "waited  1.2% for cpu, 0.0% for memory, 0.0% for disks (PSI …"
        );
        assert!(found.iter().all(|line| line.chars().count() <= 60), "{found:#?}");
        assert!(
            found[7].starts_with("default/we") && found[7].contains("…"),
            "{}",
            found[7]
        );
        let found = lines(&summary(7), &view(Some((80, 8))), None);
        assert_eq!(found.len(), 8);
        assert_eq!(found[7], "… 2 more");
        // Too small for anything: no panic, and nothing that is too wide.
        for room in [(0, 0), (1, 1), (3, 2), (20, 7)] {
            let found = lines(&summary(7), &view(Some(room)), None);
            assert!(
                found.iter().all(|line| line.chars().count() <= room.0),
                "{room:?} {found:?}"
            );
        }
    }

    #[test]
    fn numbers_are_short() {
        let check = |nanos: u64, expected: &str| assert_eq!(cores(Some(nanos)), expected);
        check(0, "0m");
        check(40_000, "0.0m");
        check(9_940_000, "9.9m");
        check(9_960_000, "10m");
        check(1_999_000_000, "1999m");
        let check = |amount: u64, expected: &str| assert_eq!(bytes(Some(amount)), expected);
        check(0, "0");
        check(1023, "1023");
        check(1024, "1.0Ki");
        check(1_048_575, "1.0Mi");
        check(10 << 20, "10Mi");
        check(u64::MAX, "16Ei");
    }

    #[test]
    fn long_names_keep_both_ends() {
        let check = |width: usize, expected: &str| assert_eq!(cut_middle("abcdefgh", width), expected);
        check(8, "abcdefgh");
        check(7, "abc…fgh");
        check(4, "ab…h");
        check(1, "…");
    }
}
