//! Hand-built snapshots.

use armtrace::attach::Limit;
use armtrace::measure::checksum::*;
use armtrace::measure::cpu::*;
use armtrace::measure::files::{FileOperation, FileWaits};
use armtrace::measure::fsync::Fsyncs;
use armtrace::measure::hardware::{EventCount, EventFunction, Scope};
use armtrace::measure::holder::{BlockedBy, Holding};
use armtrace::measure::latch::*;
use armtrace::measure::locks::{LockBlocker, LockWaits, LockedObject, WaitingNow, ROW_LOCK};
use armtrace::measure::spin::*;
use armtrace::measure::watchpoint::*;
use armtrace::measure::*;
use armtrace::measure::{checksum, cpu, files, fsync, hardware, holder, latch, locks};
use armtrace::model::*;
use std::time::Duration;

/// A mutex, waited for in all snapshots under load.
pub const TRX: &str = "wait/synch/mutex/innodb/trx_mutex";
/// A lock with three modes.
pub const INDEX: &str = "wait/synch/sxlock/innodb/index_tree_rw_lock";
/// A condition variable on which idle threads wait.
pub const COND: &str = "wait/synch/cond/sql/COND_thread_cache";
/// The mutex of [`COND`].
pub const COND_MUTEX: &str = "wait/synch/mutex/sql/LOCK_thread_cache";

/// Returns a histogram of these waits, in nanoseconds.
pub fn waits(waits: &[u64]) -> Histogram {
    let mut histogram = Histogram::default();
    for &ns in waits {
        let bucket = BUCKET_BOUNDS_NS.partition_point(|&bound| bound < ns);
        histogram.buckets[bucket] += 1;
        histogram.count += 1;
        histogram.sum_ns += ns;
        histogram.max_ns = histogram.max_ns.max(ns);
    }
    histogram
}

/// Returns `times` waits of `ns` nanoseconds for a latch, half of that asleep.
pub fn latch(latch: &str, kind: Kind, mode: Mode, times: u64, ns: u64) -> LatchWaits {
    let waits = waits(&vec![ns; times as usize]);
    LatchWaits {
        latch: latch.to_string(),
        kind,
        mode,
        sleep_ns: waits.sum_ns / 2,
        sleeps: times,
        spin_cpu_ns: waits.sum_ns / 4,
        spins_won: times - times / 4,
        spins_wasted: times / 4,
        estimated_ns: 0,
        variance_us2: 0,
        waits,
    }
}

/// Returns `n` handoffs of a latch, each after a wait of 1.5 ms; a fifth of the waiters moved.
pub fn handoffs(latch: &str, from: Option<&str>, to: &str, n: u64) -> Handoffs {
    Handoffs {
        latch: latch.to_string(),
        from: from.map(str::to_string),
        to: Some(to.to_string()),
        locality: Locality::between(from, Some(to)),
        count: n,
        wait_ns: 1_500_000 * n,
        migrations: n / 5,
    }
}

/// Returns one wait for a latch at a call site.
pub fn callsite(latch: &str, mode: Mode, callsite: &str, wait_ns: u64) -> CallsiteWaits {
    CallsiteWaits { latch: latch.to_string(), mode: Some(mode), callsite: callsite.to_string(), wait_ns, waits: 1 }
}

/// Returns waits to reacquire a mutex after a wake-up.
pub fn reacquires(latch: &str, waits: u64, wait_ns: u64) -> Reacquires {
    Reacquires { latch: latch.to_string(), waits, wait_ns }
}

/// Returns waits for a latch while its holder did this at a place.
pub fn held(latch: &str, mode: Mode, state: HolderState, site: Option<&str>, wait_ns: u64) -> BlockedBy {
    let (latch, site) = (latch.to_string(), site.map(str::to_string));
    BlockedBy { holding: Holding { latch, mode, state, site, waits_for: None }, wait_ns }
}

/// Returns one wait for a page.
pub fn page(table: &str, index: &str, level: Option<u16>, wait_ns: u64) -> PageWaits {
    PageWaits { table: table.to_string(), index: index.to_string(), level, waits: 1, wait_ns }
}

/// Returns CPU time of a function.
pub fn cpu(class: CpuClass, function: &str, ns: u64) -> CpuTime {
    CpuTime { class, function: function.to_string(), ns }
}

/// Returns an implementation of crc32c, on a CPU with an instruction for it.
pub fn checksum(function: &str, implementation: Implementation) -> Checksum {
    Checksum {
        purpose: "crc32c of pages and redo log".to_string(),
        function: function.to_string(),
        implementation,
        instruction: (implementation == Implementation::Hardware).then(|| "pclmulqdq".to_string()),
        cpu_has_instruction: true,
    }
}

/// Returns spin settings of 30 rounds of 6 µs.
pub fn spin() -> SpinSettings {
    SpinSettings { instruction: Some("isb".to_string()), turn_ns: 40.0, delay: 6, rounds: 30, turns: 150.0 }
}

/// Returns a probe whose program took no time.
pub fn probe(name: &str, state: ProbeState, hits: u64, trap_ns: Option<f64>) -> ProbeStatus {
    ProbeStatus { probe: name.to_string(), state, hits, trap_ns, program_ns: 0 }
}

/// Returns the hardware events of a function.
pub fn event_function(event: &str, function: &str, count: u64) -> EventFunction {
    EventFunction { event: event.to_string(), function: function.to_string(), count }
}

/// Returns an event that was counted half of the time.
pub fn event(name: &str, count: u64) -> EventCount {
    EventCount { event: name.to_string(), scope: Scope::Process, count: count as f64, running_ratio: Some(0.5) }
}

/// Returns the snapshot of a server on ARM right after attach, without latches and probes.
pub fn empty() -> Snapshot {
    Snapshot {
        elapsed: Duration::ZERO,
        target: TargetInfo {
            pid: 4242,
            flavor: "mysql".to_string(),
            version: "9.7.4".to_string(),
            arch: "aarch64".to_string(),
            cpu_model: "Neoverse-N1".to_string(),
            build_id: "5d41402abc4b2a76b9719d911017c592".to_string(),
            symbol_source: "dynsym".to_string(),
            host: HostInfo {
                kernel: "6.12.57-arm64".to_string(),
                server_cpus: Some(64),
                ghz: Some(3.0),
                numa_nodes: Some(2),
                page_bytes: Some(65_536),
            },
        },
        up: true,
        latch: latch::Figures { sleeps_seen: true, ..latch::Figures::default() },
        ..Snapshot::default()
    }
}

/// Returns the snapshot of a server under load after `ticks` seconds. Every metric family has a sample, and all
/// counters grow with every tick.
pub fn busy(ticks: u64) -> Snapshot {
    let n = ticks + 1;
    Snapshot {
        elapsed: Duration::from_secs(ticks),
        spin: Some(spin()),
        statements: Some(100_000 * n),
        probes: vec![
            probe("mutex_enter_inline:begin", ProbeState::Attached, 1_000 * n, Some(770.0)),
            probe("futex_enter", ProbeState::Attached, 9_000 * n, Some(140.0)),
            probe("rw_lock_x_lock_func:end", ProbeState::Failed, 0, None),
        ],
        costs: vec![("uprobe_emulated", 770.0), ("futex", 140.0)],
        limited: vec![(Limit::CpuTime, Duration::from_millis(250 * n)), (Limit::HeldLatches, Duration::ZERO)],
        lost: vec![("map_full".to_string(), 3 * n), ("no_start".to_string(), 0)],
        barriers: vec![("dmb ish".to_string(), 10), ("call ldadd_acq_rel".to_string(), 2075)],
        server_cpu_ns: Some(2_000_000_000 * n),
        max_overhead: Some(0.01),
        latch: busy_latches(n),
        cpu: busy_cpu(n),
        holder: busy_holders(n),
        files: busy_files(n),
        fsync: fsync::Figures { calls: vec![flushes("innodb/innodb_log_file", 5 * n, 900_000)], rests: false },
        locks: locks_waited_for(4, 0),
        checksum: checksum::Figures {
            chosen: vec![checksum("hardware::crc32_using_pclmul", Implementation::Hardware)],
            calls: vec![ChecksumCalls {
                function: "hardware::crc32_using_pclmul".to_string(),
                implementation: Implementation::Hardware,
                calls: 2_000 * n,
                bytes: 1_024_000 * n,
            }],
        },
        hardware: hardware::Figures {
            events: vec![event("dmb_spec", 5_000 * n), event("branch-misses", 70_000 * n)],
            functions: vec![
                event_function("branch-misses", "row_search_mvcc", 30_000 * n),
                event_function("branch-misses", CpuTime::OTHER, 20_000 * n),
            ],
        },
        ..empty()
    }
}

fn busy_holders(n: u64) -> holder::Figures {
    let mut waits = held(INDEX, Mode::X, HolderState::Latch, Some("row0ins.cc:2345"), 30_000_000 * n);
    waits.holding.waits_for = Some(TRX.to_string());
    let preempted = held(INDEX, Mode::X, HolderState::Preempted, Some("btr_cur_optimistic_insert"), 60_000_000 * n);
    let running = held(INDEX, Mode::S, HolderState::Running, None, 10_000_000 * n);
    let unknown = held(TRX, Mode::None, HolderState::Unknown, None, 20_000_000 * n);
    holder::Figures { blocked: vec![waits, preempted, running, unknown] }
}

/// Returns waits for files of a kind, with a half of it as the standard error.
pub fn file_waits(event: &str, operation: FileOperation, file: &str, wait_ns: u64) -> FileWaits {
    let variance_ms2 = (wait_ns / 2_000_000).pow(2);
    FileWaits { event: format!("wait/io/file/{event}"), operation, file: file.to_string(), wait_ns, variance_ms2 }
}

/// Returns so many flushes of files of a kind, all of which took this long.
pub fn flushes(event: &str, count: u64, ns: u64) -> Fsyncs {
    let mut calls = Histogram { count, sum_ns: count * ns, max_ns: ns, ..Histogram::default() };
    calls.buckets[BUCKET_BOUNDS_NS.partition_point(|bound| *bound < ns)] = count;
    Fsyncs { event: format!("wait/io/file/{event}"), calls }
}

fn busy_files(n: u64) -> files::Figures {
    const DATA: &str = "innodb/innodb_data_file";
    files::Figures {
        waits: vec![
            file_waits("innodb/innodb_log_file", FileOperation::Sync, "", 4_000_000 * n),
            file_waits(DATA, FileOperation::Read, "sbtest/sbtest1.ibd", 3_000_000 * n),
            file_waits(DATA, FileOperation::Read, "sbtest/sbtest2.ibd", 1_000_000 * n),
            file_waits(DATA, FileOperation::Write, "", 200_000 * n),
        ],
    }
}

fn locked(object: &str, index: &str, samples: u64) -> LockedObject {
    LockedObject { lock: ROW_LOCK.to_owned(), object: object.to_owned(), index: index.to_owned(), samples }
}

fn blocks(connection: u32, statement: &str, samples: u64) -> LockBlocker {
    LockBlocker { lock: ROW_LOCK.to_owned(), connection, statement: statement.to_owned(), samples }
}

/// Returns a server on which row locks were waited for so often, 50 ms each, and so many threads wait, the first for
/// 300 ms.
pub fn locks_waited_for(waits_for_rows: usize, threads: u64) -> locks::Figures {
    let lock_waits = LockWaits { lock: ROW_LOCK.to_owned(), waits: waits(&vec![50_000_000; waits_for_rows]) };
    let longest_ns = if threads > 0 { 300_000_000 } else { 0 };
    locks::Figures {
        waits: vec![lock_waits],
        objects: vec![locked("shop.orders", "PRIMARY", 3 * threads), locked("shop.items", "k_1", threads)],
        blockers: vec![
            blocks(12, LockBlocker::IDLE_IN_TRANSACTION, 3 * threads),
            blocks(7, "UPDATE shop.items SET k = k + ? WHERE id = ?", threads),
        ],
        waiting: vec![WaitingNow { lock: ROW_LOCK.to_owned(), threads, longest_ns }],
        rests: false,
        rested: Vec::new(),
    }
}

/// Returns the same of a server whose threads' stacks are read, without a probe.
pub fn sampled(n: u64) -> Snapshot {
    let busy = busy(n);
    Snapshot { latch: latch::Figures { sampled: true, ..busy.latch }, ..busy }
}

fn busy_latches(n: u64) -> latch::Figures {
    latch::Figures {
        waits: vec![
            latch(TRX, Kind::Mutex, Mode::None, 100 * n, 1_500_000),
            latch(INDEX, Kind::Sxlock, Mode::S, 40 * n, 90_000),
            latch(INDEX, Kind::Sxlock, Mode::Sx, 20 * n, 300_000),
            LatchWaits {
                estimated_ns: 1_000_000 * n,
                variance_us2: 10_000 * n,
                ..latch(INDEX, Kind::Sxlock, Mode::X, 10 * n, 12_000_000)
            },
            latch("wait/synch/rwlock/innodb/trx_rseg_latch", Kind::Rwlock, Mode::X, 5 * n, 40_000),
            latch(COND, Kind::Cond, Mode::None, 2 * n, 900_000_000),
        ],
        reacquires: vec![reacquires(COND_MUTEX, 5 * n, 2_000_000 * n)],
        callsites: vec![
            callsite(TRX, Mode::None, "lock0lock.cc:5872", 100_000_000 * n),
            callsite(TRX, Mode::None, "trx0trx.cc:1845", 50_000_000 * n),
            callsite(INDEX, Mode::X, "btr0cur.cc:971", 120_000_000 * n),
        ],
        pages: vec![
            page("sbtest/sbtest1", "k_1", Some(0), 80_000_000 * n),
            page("sbtest/sbtest1", "PRIMARY", Some(1), 40_000_000 * n),
            page("innodb_undo_001", "(undo log)", None, 2_000_000 * n),
        ],
        domains: vec!["0".to_string(), "1".to_string()],
        handoffs: vec![
            handoffs(TRX, Some("0"), "0", 60 * n),
            handoffs(TRX, Some("0"), "1", 25 * n),
            handoffs(TRX, None, "1", 15 * n),
        ],
        statements: vec![
            statement(TRX, Mode::None, "UPDATE sbtest1 SET k = k + ? WHERE id = ?", 60 * n),
            statement(TRX, Mode::None, "DELETE FROM sbtest1 WHERE id = ?", 30 * n),
            statement(TRX, Mode::None, StatementWaits::NOTHING, 10 * n),
            statement(INDEX, Mode::X, "INSERT INTO sbtest1 (id, k, c, pad) VALUES (...)", 20 * n),
        ],
        call_stacks: vec![
            call_stack(TRX, Mode::None, "do_command;row_upd;lock_rec_lock", 50 * n),
            call_stack(TRX, Mode::None, "do_command;row_ins;lock_rec_lock", 20 * n),
            call_stack(TRX, Mode::None, StackWaits::UNREAD, 5 * n),
            call_stack(INDEX, Mode::X, "do_command;row_ins;btr_cur_search_to_nth_level", 25 * n),
        ],
        sleeps_seen: true,
        sampled: false,
    }
}

/// Returns samples of a statement, or of what stands in place of one.
pub fn statement(latch: &str, mode: Mode, statement: &str, samples: u64) -> StatementWaits {
    let is_one = ![StatementWaits::NOTHING, StatementWaits::UNREAD, StatementWaits::OTHER].contains(&statement);
    let digest = if is_one { format!("{:016x}", statement.len()) } else { String::new() };
    let account = match statement.split(' ').next() {
        Some("UPDATE" | "INSERT") => account("app", "shop"),
        Some("SELECT") => account("report", ""),
        _ => Account::default(),
    };
    StatementWaits {
        latch: latch.to_owned(),
        mode: Some(mode),
        digest,
        statement: statement.to_owned(),
        account,
        samples,
    }
}

fn account(user: &str, schema: &str) -> Account {
    Account { user: user.to_owned(), schema: schema.to_owned() }
}

/// Returns samples of a call stack, or of what stands in place of one.
pub fn call_stack(latch: &str, mode: Mode, calls: &str, samples: u64) -> StackWaits {
    StackWaits { latch: latch.to_owned(), mode: Some(mode), calls: calls.to_owned(), samples }
}

fn cpu_statement(statement: &str, samples: u64) -> StatementCpu {
    let row = self::statement("", Mode::None, statement, samples);
    let ordering_samples = samples / 20;
    StatementCpu { digest: row.digest, statement: row.statement, account: row.account, samples, ordering_samples }
}

fn busy_cpu(n: u64) -> cpu::Figures {
    cpu::Figures {
        time: vec![
            cpu(CpuClass::Other, CpuTime::OTHER, 1_200_000_000 * n),
            cpu(CpuClass::Kernel, CpuTime::OTHER, 300_000_000 * n),
            cpu(CpuClass::Futex, "native_queued_spin_lock_slowpath", 200_000_000 * n),
            cpu(CpuClass::Spin, "ut_delay", 200_000_000 * n),
            cpu(CpuClass::Checksum, "hardware::crc32_using_pclmul", 100_000_000 * n),
        ],
        ordering: vec![OrderingTime {
            instruction: "lock cmpxchg".to_string(),
            function: "mutex_enter_inline".to_string(),
            ns: 50_000_000 * n,
        }],
        statements: vec![
            cpu_statement("UPDATE sbtest1 SET k = k + ? WHERE id = ?", 40 * n),
            cpu_statement("INSERT INTO sbtest1 (id, k, c, pad) VALUES (...)", 15 * n),
            cpu_statement(StatementWaits::NOTHING, 25 * n),
            cpu_statement("SELECT c FROM sbtest1 WHERE id = ?", 20 * n),
        ],
        getcpu_calls: Some(1_000 * n),
    }
}

/// Returns a function that touches a watched word.
pub fn touching(touches: u64) -> TouchingFunction {
    TouchingFunction {
        function: "count_pages".to_string(),
        touches,
        writes: touches,
        instruction: Some("lock xadd %rax,(%rdi)".to_string()),
    }
}

fn watched_word(offset: i64, touches: u64, moves: Moves) -> WatchedWord {
    WatchedWord {
        offset,
        is_latch: offset == 0,
        object: (offset == 8).then(|| "buf_stat+8".to_string()),
        watched_ns: 10_000_000,
        touches,
        writes: touches,
        by_cpu: [(0, touches / 4), (1, touches - touches / 4)].into(),
        functions: if touches > 0 { vec![touching(touches)] } else { Vec::new() },
        moves,
    }
}

/// Returns the watch of a latch's cache line. Besides the latch, only the word after it is touched; `neighbour` has the
/// moves of the line while that word was watched.
pub fn line_watch(verdict: Sharing, neighbour: Moves) -> LineWatch {
    let words = [(-8, 0), (0, 400), (8, 200), (16, 0), (24, 0)];
    let moves = |offset| if offset == 8 { neighbour } else { Moves::default() };
    LineWatch {
        latch: TRX.to_string(),
        address: "0x7f0000001040".to_string(),
        instances: 3,
        waiters_share: 0.75,
        line_bytes: 64,
        cpus: 2,
        bursts: 35,
        burst_ms: 10,
        hits_per_burst: 200,
        seconds: 2.25,
        hits: 700,
        hits_of_others: 0,
        ns_per_hit: Some(15_000.0),
        words: words.map(|(offset, touches)| watched_word(offset, touches, moves(offset))).to_vec(),
        moves: neighbour,
        verdict,
    }
}

/// Returns the watch of a line whose other word causes false sharing.
pub fn false_sharing() -> LineWatch {
    line_watch(Sharing::FalseSharing, Moves { followed: 400, moved: 200, foreign: 150, latch: 50, ..Moves::default() })
}
