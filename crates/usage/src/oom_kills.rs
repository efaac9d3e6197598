//! Processes that the kernel killed because memory ran out (OOM kills), from the records of its log.
//!
//! Owns the form of the records: a kill is opened by one, named by the next ones and closed by the last. Records of other programs
//! do not count.

/// Records of a higher priority number come from other programs, whose texts are not trusted.
const KERNEL_PRIORITIES: u32 = 8;
const OPENS: &str = "invoked oom-killer:";
const NAMES: &str = "oom-kill:constraint=";
const LEGACY_LIMIT: &str = " killed as a result of limit of ";
const CLOSES: &str = "Killed process ";

/// A process that was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OomKill {
    /// Of the last record about it.
    pub sequence: u64,
    pub process: String,
    pub pid: u32,
    /// The cgroup whose limit was reached; `/` for the whole machine.
    pub limited_cgroup: String,
}

impl OomKill {
    /// Whether the machine ran out of memory, and not a cgroup.
    #[must_use]
    pub fn is_of_machine(&self) -> bool {
        self.limited_cgroup == "/"
    }
}

/// Reads records one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OomRecords {
    /// The cgroup of the kill that is open.
    open: Option<String>,
}

impl OomRecords {
    /// The record's number, and the kill that it closes. Nothing for what is no record.
    pub fn take(&mut self, record: &[u8]) -> Option<(u64, Option<OomKill>)> {
        let record = String::from_utf8_lossy(record);
        // `<priority>,<number>,<time>,<flags>;<text>`, then lines that begin with a blank.
        let (head, rest) = record.split_once(';')?;
        let mut head = head.split(',');
        let priority: u32 = head.next()?.parse().ok()?;
        let sequence: u64 = head.next()?.parse().ok()?;
        let text = rest.lines().next().unwrap_or_default();
        let is_of_kernel = priority < KERNEL_PRIORITIES;
        let kill = is_of_kernel.then(|| self.take_text(sequence, text)).flatten();
        Some((sequence, kill))
    }

    fn take_text(&mut self, sequence: u64, text: &str) -> Option<OomKill> {
        if text.contains(OPENS) {
            self.open = Some("/".to_owned());
            return None;
        }
        let cgroup = self.open.as_mut()?;
        if let Some((limited, process, pid)) = text.split_once(NAMES).and_then(|(_, rest)| named(rest)) {
            self.open = None;
            return Some(OomKill {
                sequence,
                process,
                pid,
                limited_cgroup: limited,
            });
        }
        if let Some((_, limited)) = text.split_once(LEGACY_LIMIT) {
            limited.clone_into(cgroup);
        }
        let (process, pid) = text.split_once(CLOSES).and_then(|(_, rest)| closed(rest))?;
        Some(OomKill {
            sequence,
            process,
            pid,
            limited_cgroup: self.open.take()?,
        })
    }
}

/// `…,oom_memcg=<limited>,task_memcg=<cgroup>,task=<name>,pid=<number>,uid=<number>`. A kill for the whole machine has no `oom_memcg`.
fn named(rest: &str) -> Option<(String, String, u32)> {
    let (_, limited) = rest.split_once(",oom_memcg=")?;
    let (limited, task) = limited.split_once(",task_memcg=")?;
    let (task, _) = task.rsplit_once(",uid=")?;
    let (task, pid) = task.rsplit_once(",pid=")?;
    let (_, process) = task.split_once(",task=")?;
    Some((limited.to_owned(), process.to_owned(), pid.parse().ok()?))
}

/// `<number> (<name>) …`
fn closed(rest: &str) -> Option<(String, u32)> {
    let (pid, rest) = rest.split_once(" (")?;
    let end = rest.rfind(')')?;
    Some((rest[..end].to_owned(), pid.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kills(records: &[&str]) -> Vec<(u64, String, u32, bool)> {
        let mut reader = OomRecords::default();
        let kills = records
            .iter()
            .filter_map(|record| reader.take(record.as_bytes())?.1)
            .map(|kill| {
                let is_of_machine = kill.is_of_machine();
                (kill.sequence, kill.process, kill.pid, is_of_machine)
            });
        kills.collect()
    }

    const OPENING: &str =
        "4,10,5000,-;tail invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n";

    #[test]
    fn a_cgroup_that_is_full_is_not_the_machine() {
        let named = "6,12,5002,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,\
                     oom_memcg=/kubepods/pod-u,task_memcg=/kubepods/pod-u/c,task=tail,pid=10669,uid=0\n SUBSYSTEM=x\n";
        let killed =
            "3,13,5003,-;Memory cgroup out of memory: Killed process 10669 (tail) total-vm:5kB, UID:0\n";
        let found = kills(&[OPENING, "6,11,5001,-;memory: usage 5kB\n", named, killed]);
        assert_eq!(found, [(12, "tail".to_owned(), 10669, false)]);
    }

    #[test]
    fn the_machine_is_named_by_the_last_record() {
        let global = "6,12,5002,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,\
                      global_oom,task_memcg=/kubepods/pod-u/c,task=my (odd) name,pid=77,uid=0\n";
        let killed =
            "3,13,5003,-;Out of memory: Killed process 77 (my (odd) name) total-vm:5kB, anon-rss:4kB\n";
        assert_eq!(
            kills(&[OPENING, global, killed]),
            [(13, "my (odd) name".to_owned(), 77, true)]
        );
    }

    #[test]
    fn old_kernels_name_the_limit_in_a_sentence() {
        let limit = "6,11,1,-;Task in /kubepods/pod-u/c killed as a result of limit of /kubepods/pod-u\n";
        let killed = "3,12,1,-;Memory cgroup out of memory: Killed process 5 (a)\n";
        assert_eq!(kills(&[OPENING, limit, killed]), [(12, "a".to_owned(), 5, false)]);
    }

    #[test]
    fn other_records_close_nothing() {
        let killed = "3,13,5003,-;Out of memory: Killed process 77 (tail) total-vm:5kB\n";
        assert_eq!(kills(&[killed]), [], "none was opened");
        let by_program = OPENING.replacen('4', "12", 1);
        assert_eq!(kills(&[&by_program, killed]), [], "a program wrote it");
        let odd = "3,13,5003,-;Killed process x (tail)\n";
        assert_eq!(kills(&[OPENING, odd, "", "no record"]), []);
        assert_eq!(
            OomRecords::default().take(b"6,99,1,-;anything\n"),
            Some((99, None))
        );
        assert_eq!(OomRecords::default().take(b"6;anything\n"), None);
    }
}
