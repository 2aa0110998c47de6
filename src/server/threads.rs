//! Reads on which NUMA nodes a process's threads run, how often they moved, and what the kernel's NUMA balancing
//! observed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Serialize;

/// The sum of `/proc/PID/task/*/sched`, which `procfs` does not read, over all threads of a process. It is read, not
/// traced, so a migration costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NumaThreads {
    /// The number of threads by the node that they last ran on.
    pub by_node: BTreeMap<u32, u64>,
    /// How often the live threads were moved to another CPU, on any node, since each started.
    pub cpu_migrations: u64,
    /// What NUMA balancing did. `None` if the kernel does not have it, or if it has not scanned the process yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balancing: Option<Balancing>,
}

/// Statistics of NUMA balancing, which briefly unmaps pages in order to see from the fault which thread touches them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Balancing {
    /// Faults on memory of the node that the thread last ran on. The kernel halves this and the next figure each time
    /// it has scanned the memory, so they cover the last minutes.
    pub local_faults: u64,
    /// Faults on memory of other nodes.
    pub remote_faults: u64,
    /// The pages that it moved to threads since each started.
    pub pages_moved: u64,
}

impl NumaThreads {
    /// Reads the threads of process `pid`; `None` if the kernel does not say. One file is read per thread.
    pub fn read(pid: i32) -> Option<NumaThreads> {
        NumaThreads::read_in(Path::new(&format!("/proc/{pid}/task")))
    }

    fn read_in(tasks: &Path) -> Option<NumaThreads> {
        let files = fs::read_dir(tasks).ok()?.flatten().map(|task| task.path().join("sched"));
        let mut all = NumaThreads::default();
        // A thread may end meanwhile.
        files.filter_map(|file| fs::read_to_string(file).ok()).for_each(|text| all.add(&text));
        (!all.by_node.is_empty()).then_some(all)
    }

    /// Adds a thread: lines of `name : value`, `current_node=0, numa_group_id=0`, and for each node `numa_faults node=0
    /// task_private=1 task_shared=2 group_private=0 group_shared=0`.
    fn add(&mut self, text: &str) {
        let value =
            |name: &str| text.lines().find_map(|line| number(line.strip_prefix(name)?.trim_start().strip_prefix(':')?));
        self.cpu_migrations = self.cpu_migrations.saturating_add(value("se.nr_migrations").unwrap_or(0));
        let Some(node) = text.lines().find_map(|line| number(line.strip_prefix("current_node=")?.split(',').next()?))
        else {
            return;
        };
        *self.by_node.entry(node as u32).or_default() += 1;
        if value("mm->numa_scan_seq").is_none_or(|scans| scans == 0) {
            return;
        }
        let balancing = self.balancing.get_or_insert_default();
        balancing.pages_moved = balancing.pages_moved.saturating_add(value("numa_pages_migrated").unwrap_or(0));
        for (on, faults) in text.lines().filter_map(faults) {
            let sum = if on == node { &mut balancing.local_faults } else { &mut balancing.remote_faults };
            *sum = sum.saturating_add(faults);
        }
    }
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Returns a node, and the thread's faults on its memory.
fn faults(line: &str) -> Option<(u64, u64)> {
    let fields: BTreeMap<&str, u64> = line
        .strip_prefix("numa_faults ")?
        .split_ascii_whitespace()
        .filter_map(|field| field.split_once('='))
        .filter_map(|(name, value)| Some((name, number(value)?)))
        .collect();
    let field = |name: &str| fields.get(name).copied();
    Some((field("node")?, field("task_private")?.saturating_add(field("task_shared")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of Linux 6.18, without the lines that are ignored.
    fn thread(node: u32, scans: u32, faults: [u32; 2]) -> String {
        format!(
            "\
mysqld (4496, #threads: 2)
-------------------------------------------------------------------
se.exec_start                                :      50713858.044583
se.nr_migrations                             :                    7
nr_switches                                  :                    1
mm->numa_scan_seq                            :                    {scans}
numa_pages_migrated                          :                    3
numa_preferred_nid                           :                   -1
total_numa_faults                            :                    9
current_node={node}, numa_group_id=0
numa_faults node=0 task_private={} task_shared=1 group_private=5 group_shared=5
numa_faults node=1 task_private={} task_shared=0 group_private=5 group_shared=5
",
            faults[0], faults[1]
        )
    }

    fn of(texts: &[String]) -> Option<NumaThreads> {
        let dir = tempfile::tempdir().unwrap();
        for (number, text) in texts.iter().enumerate() {
            let task = dir.path().join(number.to_string());
            fs::create_dir(&task).unwrap();
            fs::write(task.join("sched"), text).unwrap();
        }
        // A thread that has ended.
        fs::create_dir(dir.path().join("ended")).unwrap();
        NumaThreads::read_in(dir.path())
    }

    #[test]
    fn threads_are_added_up() {
        let found = of(&[thread(0, 4, [10, 20]), thread(1, 4, [0, 40]), thread(1, 4, [0, 0])]).unwrap();
        assert_eq!(found.by_node, BTreeMap::from([(0, 1), (1, 2)]));
        assert_eq!(found.cpu_migrations, 21);
        // On node 0: 11 near and 20 far; on node 1: 40 near and the shared ones far.
        assert_eq!(found.balancing, Some(Balancing { local_faults: 51, remote_faults: 22, pages_moved: 9 }));
    }

    #[test]
    fn what_was_never_looked_at_has_no_faults() {
        assert_eq!(of(&[thread(0, 0, [0, 0])]).unwrap().balancing, None);
        let kernel_without = "se.nr_migrations : 7\n".to_owned();
        assert_eq!(of(&[kernel_without]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn garbage_says_nothing() {
        let garbage =
            "se.nr_migrations : x\ncurrent_node=,\nnuma_faults node= task_private=1\nmm->numa_scan_seq\n".to_owned();
        assert_eq!(of(&[garbage]), None);
        assert_eq!(faults("numa_faults node=1 task_private=18446744073709551615 task_shared=1"), Some((1, u64::MAX)));
    }
}
