//! The figures of one server that decide which advice is quoted, and the words to quote them in.

use std::collections::BTreeMap;

use crate::advice::{Entry, Facts, Figure, Quoted};
use crate::measure::checksum::Checksum;
use crate::measure::cpu::CpuTime;
use crate::measure::files::{FileOperation, FileWaits};
use crate::measure::latch::{CallsiteWaits, Handoffs, LatchWaits, Locality, PageWaits};
use crate::measure::spin::SpinSettings;
use crate::measure::Snapshot;
use crate::model::{CpuClass, Kind, Mode};
use crate::present::format;
use crate::present::names::without_kind;
use crate::recording::Recording;

/// The fewest spins of which a share is quoted.
const MIN_SPINS: u64 = 1000;

/// The beginnings of call sites where pages are read in and evicted: functions, and source files.
const EVICTION: [&str; 6] =
    ["buf_LRU_", "buf0lru.cc", "buf_page_init_for_read", "buf0rea.cc", "buf_read_", "buf_flush_LRU"];

/// What is known of a server over some time.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The length of that time, in seconds.
    pub seconds: f64,
    /// The server's flavor and version.
    pub server: (String, String),
    /// Contended waits.
    pub latches: Vec<LatchWaits>,
    /// The same by call site.
    pub callsites: Vec<CallsiteWaits>,
    /// Waits for pages.
    pub pages: Vec<PageWaits>,
    /// Handoffs; empty if they were not counted.
    pub handoffs: Vec<Handoffs>,
    /// Waits for files; empty if they were not measured.
    pub files: Vec<FileWaits>,
    /// CPU time by function; empty if it was not sampled.
    pub cpu: Vec<CpuTime>,
    /// The implementations of checksums that the server has chosen.
    pub checksums: Vec<Checksum>,
    /// How long waiters spin; `None` if it is not known.
    pub spin: Option<SpinSettings>,
    /// The settings that are known.
    pub settings: BTreeMap<String, String>,
}

impl From<&Recording> for Known {
    fn from(recording: &Recording) -> Known {
        let server = &recording.start.server;
        Known {
            seconds: recording.duration().as_secs_f64(),
            server: (server.flavor.clone(), server.version.clone()),
            latches: contended(recording.latches()),
            callsites: recording.callsites(),
            pages: recording.pages(),
            handoffs: recording.entries(),
            files: recording.file_waits(),
            cpu: recording.cpu(),
            checksums: recording.code.checksums.clone(),
            spin: recording.code.spin.clone(),
            settings: server.settings.clone(),
        }
    }
}

/// What is known since attach. A snapshot has no settings.
impl From<&Snapshot> for Known {
    fn from(snapshot: &Snapshot) -> Known {
        Known {
            seconds: snapshot.elapsed.as_secs_f64(),
            server: (snapshot.target.flavor.clone(), snapshot.target.version.clone()),
            latches: contended(snapshot.latch.waits.clone()),
            callsites: snapshot.latch.callsites.clone(),
            pages: snapshot.latch.pages.clone(),
            handoffs: snapshot.latch.handoffs.clone(),
            files: snapshot.files.waits.clone(),
            cpu: snapshot.cpu.time.clone(),
            checksums: snapshot.checksum.chosen.clone(),
            spin: snapshot.spin.clone(),
            settings: BTreeMap::new(),
        }
    }
}

fn contended(mut latches: Vec<LatchWaits>) -> Vec<LatchWaits> {
    latches.retain(|latch| latch.kind != Kind::Cond);
    latches
}

/// Returns a part of a sum, 0 to 1; `None` if the sum is zero.
fn share(part: f64, all: f64) -> Option<f64> {
    (all > 0.0).then(|| part / all)
}

fn percent(value: f64, of: &str) -> Quoted {
    Quoted { value, words: format!("{} {of}", format::percent(value)) }
}

fn sum<'a>(latches: impl Iterator<Item = &'a LatchWaits>, of: fn(&LatchWaits) -> u64) -> f64 {
    latches.map(|latch| of(latch) as f64).sum()
}

fn wait(latch: &LatchWaits) -> u64 {
    latch.waits.sum_ns
}

impl Known {
    fn of_entry<'a>(&'a self, entry: &'a Entry) -> impl Iterator<Item = &'a LatchWaits> + 'a {
        self.latches.iter().filter(|latch| is_of(entry, &latch.latch))
    }

    fn threads(&self, ns: f64) -> f64 {
        share(ns / 1e9, self.seconds).unwrap_or(0.0)
    }

    fn share_of_cpu(&self, classes: &[CpuClass]) -> Option<f64> {
        let part = CpuTime::sum(self.cpu.iter().filter(|row| classes.contains(&row.class)));
        share(part as f64, CpuTime::sum(self.cpu.iter()) as f64)
    }

    /// Returns the latch that threads spin for most often, if that is often enough to tell something.
    fn most_spun(&self) -> Option<&LatchWaits> {
        self.latches.iter().max_by_key(|latch| latch.spins()).filter(|latch| latch.spins() >= MIN_SPINS)
    }

    fn exclusive(&self, entry: &Entry) -> Option<Quoted> {
        let keeps_out = |latch: &&LatchWaits| matches!(latch.mode, Mode::X | Mode::Sx);
        let exclusive = sum(self.of_entry(entry).filter(keeps_out), wait);
        let share = share(exclusive, sum(self.of_entry(entry), wait))?;
        Some(percent(share, "of that in modes X and SX"))
    }

    fn eviction(&self, entry: &Entry) -> Option<Quoted> {
        let sites = || self.callsites.iter().filter(|site| is_of(entry, &site.latch));
        let evicts = |site: &&CallsiteWaits| EVICTION.iter().any(|begin| site.callsite.starts_with(begin));
        let ns = |sites: &mut dyn Iterator<Item = &CallsiteWaits>| sites.map(|site| site.wait_ns as f64).sum::<f64>();
        let share = share(ns(&mut sites().filter(evicts)), ns(&mut sites()))?;
        Some(percent(share, "of that where pages are read in and evicted"))
    }

    fn remote(&self, entry: &Entry) -> Option<Quoted> {
        let handoffs = self.handoffs.iter().filter(|row| entry.latches.is_empty() || is_of(entry, &row.latch));
        let mut ns = BTreeMap::new();
        handoffs.for_each(|row| *ns.entry(row.locality).or_insert(0.0) += row.wait_ns as f64);
        let of = |locality| ns.get(&Some(locality)).copied().unwrap_or(0.0);
        let share = share(of(Locality::Remote), of(Locality::Remote) + of(Locality::Local))?;
        Some(percent(share, "of the wait time for latches from another part of the machine"))
    }

    /// Returns the hottest level of an index, of those that are `wanted`.
    fn hot(&self, wanted: fn(u16) -> bool) -> Option<Quoted> {
        let levels = self.pages.iter().filter(|page| page.level.is_some_and(wanted));
        let hottest = levels.max_by_key(|page| page.wait_ns)?;
        let all: f64 = self.pages.iter().map(|page| page.wait_ns as f64).sum();
        let of = format!("of the wait for pages for {} level {}", hottest.place(), hottest.level?);
        Some(percent(share(hottest.wait_ns as f64, all)?, &of))
    }

    fn wasted_spins(&self) -> Option<Quoted> {
        let latch = self.most_spun()?;
        let share = share(latch.spins_wasted as f64, latch.spins() as f64)?;
        Some(percent(share, &format!("of the spins for {} end asleep", without_kind(&latch.latch))))
    }

    fn median_of_spin(&self) -> Option<Quoted> {
        let spin = self.spin.as_ref().filter(|spin| spin.budget_ns() > 0.0)?;
        let median = self.most_spun()?.waits.quantile_ns(0.5)?;
        let words = format!(
            "half of its waits take more than {}, spinning ends after {} (a turn of the loop takes {} on this CPU)",
            format::nanoseconds(median),
            format::nanoseconds(spin.budget_ns()),
            format::nanoseconds(spin.turn_ns)
        );
        Some(Quoted { value: median / spin.budget_ns(), words })
    }

    fn slow_checksums(&self) -> Option<Quoted> {
        let slow: Vec<&Checksum> = self.checksums.iter().filter(|checksum| checksum.is_slow()).collect();
        let names: Vec<String> = slow.iter().map(|slow| format!("{} in {}", slow.purpose, slow.function)).collect();
        let ns: u64 = slow.iter().map(|slow| slow.cpu_ns(&self.cpu)).fold(0, u64::saturating_add);
        let cpu = share(ns as f64, CpuTime::sum(self.cpu.iter()) as f64);
        let cpu = cpu.map_or_else(String::new, |share| format!(", {} of the CPU time", format::percent(share)));
        Some(Quoted { value: slow.len() as f64, words: names.join(" and ") + &cpu })
    }
}

impl Known {
    /// Returns how many threads wait for these operations on files of a kind at any moment, given the end of its event
    /// name; `None` if that is not measured, or if its error is larger.
    fn for_files(&self, operations: &[FileOperation], kind: &str, what: &str) -> Option<Quoted> {
        let is_it = |row: &&FileWaits| operations.contains(&row.operation) && row.event.ends_with(kind);
        let rows = || self.files.iter().filter(is_it);
        let ns: f64 = rows().map(|row| row.wait_ns as f64).sum();
        let value = self.threads(ns);
        (ns > FileWaits::error_ns(rows()))
            .then(|| Quoted { value, words: format!("~{value:.2} threads waiting {what}") })
    }
}

fn is_of(entry: &Entry, latch: &str) -> bool {
    entry.latches.iter().any(|name| name == without_kind(latch))
}

impl Facts for Known {
    fn figure(&self, figure: Figure, entry: &Entry) -> Option<Quoted> {
        let threads = |ns: f64, what: &str| {
            let value = self.threads(ns);
            Some(Quoted { value, words: format!("{value:.2} threads waiting {what}") })
        };
        let cpu = |classes: &[CpuClass], what: &str| {
            Some(percent(self.share_of_cpu(classes)?, &format!("of the CPU time {what}")))
        };
        use FileOperation::{Read, Sync, Write};
        let own = sum(self.of_entry(entry), wait);
        let all = sum(self.latches.iter(), wait);
        match figure {
            Figure::Share => Some(percent(share(own, all)?, "of all wait time")),
            Figure::Threads => threads(own, "for it"),
            Figure::AllThreads => threads(all, "for latches"),
            Figure::Exclusive => self.exclusive(entry),
            Figure::Eviction => self.eviction(entry),
            Figure::Remote => self.remote(entry),
            Figure::HotLeaf => self.hot(|level| level == 0),
            Figure::HotUpper => self.hot(|level| level > 0),
            Figure::WastedSpins => self.wasted_spins(),
            Figure::MedianOfSpin => self.median_of_spin(),
            Figure::SpinCpu => cpu(&[CpuClass::Spin], "spent spinning"),
            Figure::OrderingCpu => cpu(&[CpuClass::Atomic, CpuClass::Barrier], "in atomics and barriers"),
            Figure::CharsetCpu => cpu(&[CpuClass::Charset], "converting character sets"),
            Figure::GetcpuCpu => cpu(&[CpuClass::Getcpu], "in sched_getcpu"),
            Figure::SlowChecksums => self.slow_checksums(),
            // Where the log is opened with O_DIRECT or O_DSYNC, its writes wait for the disk.
            Figure::RedoLog => self.for_files(&[Write, Sync], "/innodb_log_file", "for InnoDB's log"),
            Figure::BinaryLog => self.for_files(&[Sync], "/binlog", "for the binary log"),
            Figure::PageReads => self.for_files(&[Read], "/innodb_data_file", "for pages to be read"),
        }
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    fn server(&self) -> (&str, &str) {
        (&self.server.0, &self.server.1)
    }

    /// An entry with latches weighs as many threads as wait for them; one without, the CPUs and the waiting threads
    /// that its figures are a share of.
    fn weight(&self, entry: &Entry) -> f64 {
        if !entry.latches.is_empty() {
            return self.threads(sum(self.of_entry(entry), wait));
        }
        let cpus = CpuTime::sum(self.cpu.iter()) as f64 / 1e9 / self.seconds;
        let of = |figure: &Figure| {
            let value = || self.figure(*figure, entry).map_or(0.0, |quoted| quoted.value);
            match figure {
                Figure::SpinCpu | Figure::OrderingCpu | Figure::CharsetCpu | Figure::GetcpuCpu => value() * cpus,
                Figure::SlowChecksums => self.share_of_cpu(&[CpuClass::Checksum]).unwrap_or(0.0) * cpus,
                Figure::WastedSpins => self.most_spun().map_or(0.0, |latch| self.threads(wait(latch) as f64) * value()),
                Figure::RedoLog | Figure::BinaryLog | Figure::PageReads => value(),
                Figure::Remote => value() * self.threads(sum(self.latches.iter(), wait)),
                _ => 0.0,
            }
        };
        entry.when.at_least.keys().map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::{entries, find};
    use crate::model::Histogram;

    fn latch(name: &str, mode: Mode, wait_ns: u64) -> LatchWaits {
        LatchWaits {
            latch: format!("wait/synch/sxlock/innodb/{name}"),
            kind: Kind::Rwlock,
            mode,
            waits: Histogram { count: 2, sum_ns: wait_ns, max_ns: wait_ns, ..Histogram::default() },
            sleep_ns: 0,
            sleeps: 0,
            spin_cpu_ns: 0,
            spins_won: 0,
            spins_wasted: 0,
            estimated_ns: 0,
            variance_us2: 0,
        }
    }

    /// Ten seconds of a server.
    fn known(latches: Vec<LatchWaits>) -> Known {
        Known { seconds: 10.0, server: ("mysql".to_owned(), "8.0.31".to_owned()), latches, ..Known::default() }
    }

    fn entry(id: &str) -> &'static Entry {
        entries().iter().find(|entry| entry.id == id).expect("the entry")
    }

    fn figure(known: &Known, figure: Figure, id: &str) -> Option<(f64, String)> {
        known.figure(figure, entry(id)).map(|quoted| (quoted.value, quoted.words))
    }

    #[test]
    fn figures_of_latches_are_of_all_modes_of_the_entrys() {
        let known = known(vec![
            latch("btr_search_latch", Mode::S, 3_000_000_000),
            latch("btr_search_latch", Mode::X, 1_000_000_000),
            latch("trx_sys_mutex", Mode::None, 4_000_000_000),
        ]);
        let id = "adaptive-hash-index";
        assert_eq!(figure(&known, Figure::Share, id), Some((0.5, "50.0% of all wait time".to_owned())));
        assert_eq!(figure(&known, Figure::Threads, id), Some((0.4, "0.40 threads waiting for it".to_owned())));
        assert_eq!(figure(&known, Figure::Exclusive, id).unwrap().0, 0.25);
        assert_eq!(figure(&known, Figure::AllThreads, id).unwrap().0, 0.8);
        assert_eq!(figure(&known, Figure::Remote, id), None, "handoffs were not counted");
        assert_eq!(figure(&known, Figure::SpinCpu, id), None, "CPU time was not sampled");
        assert_eq!(known.weight(entry(id)), 0.4);
    }

    #[test]
    fn nobody_is_advised_where_nobody_waits() {
        assert_eq!(find(&known(Vec::new())), []);
        assert_eq!(find(&Known::default()), []);
    }

    #[test]
    fn pages_read_in_are_told_by_their_call_sites() {
        let site = |callsite: &str, wait_ns| CallsiteWaits {
            latch: "wait/synch/mutex/innodb/buf_pool_mutex".to_owned(),
            mode: None,
            callsite: callsite.to_owned(),
            wait_ns,
            waits: 1,
        };
        let mut known = known(vec![latch("buf_pool_mutex", Mode::None, 4)]);
        known.callsites = vec![site("buf0lru.cc:1222", 1), site("buf_LRU_get_free_block", 2), site("buf0buf.cc:1", 1)];
        assert_eq!(figure(&known, Figure::Eviction, "buffer-pool-mutex").unwrap().0, 0.75);
    }

    #[test]
    fn the_hottest_page_is_named() {
        let page = |index: &str, level, wait_ns| PageWaits {
            table: "shop/orders".to_owned(),
            index: index.to_owned(),
            level,
            waits: 1,
            wait_ns,
        };
        let mut known = known(vec![latch("buf_block_lock", Mode::X, 10)]);
        known.pages = vec![page("PRIMARY", Some(0), 5), page("k", Some(1), 3), page("(undo log)", None, 2)];
        let (share, words) = figure(&known, Figure::HotLeaf, "pages-of-tables-and-indexes").unwrap();
        assert_eq!((share, words.as_str()), (0.5, "50.0% of the wait for pages for shop/orders.PRIMARY level 0"));
        assert_eq!(figure(&known, Figure::HotUpper, "pages-of-tables-and-indexes").unwrap().0, 0.3);
    }

    #[test]
    fn waits_for_files_are_told_without_latches() {
        let row = |event: &str, operation, wait_ns| FileWaits {
            event: format!("wait/io/file/{event}"),
            operation,
            file: String::new(),
            wait_ns,
            variance_ms2: 0,
        };
        let mut known = known(Vec::new());
        let log = |known: &Known| figure(known, Figure::RedoLog, "flushes-of-the-redo-log");
        assert_eq!(log(&known), None, "not measured");
        known.files = vec![
            row("innodb/innodb_log_file", FileOperation::Sync, 6_000_000_000),
            row("innodb/innodb_log_file", FileOperation::Write, 1_000_000_000),
            row("sql/binlog", FileOperation::Sync, 3_000_000_000),
            row("sql/binlog", FileOperation::Write, 5_000_000_000),
            row("innodb/innodb_data_file", FileOperation::Read, 20_000_000_000),
        ];
        assert_eq!(log(&known), Some((0.7, "~0.70 threads waiting for InnoDB's log".to_owned())));
        let entries = |known: &Known| find(known).into_iter().map(|advised| advised.entry).collect::<Vec<_>>();
        let all = ["reads-from-the-disk", "flushes-of-the-redo-log", "flushes-of-the-binary-log"];
        assert_eq!(entries(&known), all, "the heaviest first");
        known.settings.insert("innodb_flush_log_at_trx_commit".to_owned(), "2".to_owned());
        assert_eq!(entries(&known), [all[0], all[2]], "commits do not wait for it");
        known.files[2].variance_ms2 = 1600 * 1600;
        assert_eq!(entries(&known), all[..1], "too uncertain");
    }

    #[test]
    fn spinning_is_judged_by_the_latch_with_the_most_spins() {
        let mut spun = latch("trx_sys_mutex", Mode::None, 400);
        (spun.spins_won, spun.spins_wasted) = (250, 750);
        spun.waits.buckets[0] = 2;
        let mut known = known(vec![spun.clone()]);
        known.spin = Some(SpinSettings { instruction: None, turn_ns: 10.0, delay: 6, rounds: 5, turns: 2.0 });
        let id = "spinning-that-is-too-short";
        assert_eq!(figure(&known, Figure::WastedSpins, id).unwrap().0, 0.75);
        assert_eq!(figure(&known, Figure::MedianOfSpin, id).unwrap().0, 2.0);
        let advised = find(&known);
        assert!(advised.iter().any(|advised| advised.entry == id), "{advised:?}");
        known.latches[0].spins_won = 249;
        assert_eq!(figure(&known, Figure::WastedSpins, id), None, "too few to tell");
    }
}
