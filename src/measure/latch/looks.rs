//! Looks at all threads of the server at one moment: what each does, and what it waits for as its stack says.
//!
//! No thread of the server is stopped; looks cost CPU time of this process only.

use std::io::{self, Read};
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use libbpf_rs::{libbpf_sys, AsRawLibbpf, Iter, IterOpts, Link, ProgramMut};

use super::call_stacks::CallStackSampler;
use super::files::{text, FileSampler, InFile};
use super::holders::Holders;
use super::keys::{key_of, MapKey};
use super::plan::{registers_bytes, Plan};
use super::stacks::{Reader, Waiter};
use super::statements::StatementSampler;
use super::status::Status;
use crate::bpf::latch::types;
use crate::host::clock::now_ns;
use crate::server::Target;
use crate::worker::Stop;

/// The interval of looks, which is longer if they are expensive.
const SHORTEST: Duration = Duration::from_millis(4);
const LONGEST: Duration = Duration::from_millis(500);

/// What a look takes, in nanoseconds, before that is known.
const FIRST_GUESS_NS: f64 = 200_000.0;

/// The weight of a new look in the average of what looks take.
const WEIGHT: f64 = 0.1;

/// After so many looks, what identifies latches is read again: their memory may belong to others.
const OLD: u32 = 500;

/// What a look has shown.
#[derive(Default)]
pub(super) struct Look {
    /// When half of the threads had been looked at, by `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    pub threads: Vec<SeenThread>,
    /// What threads wait for as their stacks say.
    pub waiters: Vec<Waiter>,
}

/// A thread of a look that waits for a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// The thread, by index among those of the look.
    pub thread: usize,
    pub latch: MapKey,
    /// For how many threads it stands.
    pub weight: u64,
}

impl Look {
    /// Returns the threads that wait, once for each latch that they wait for. A thread that ran until the look stands
    /// for as many as `cpus`.
    pub fn waiting(&self, cpus: u64) -> impl Iterator<Item = Waiting> + '_ {
        let seen = self.threads.iter().enumerate().filter_map(|(index, thread)| {
            let (latch, _) = thread.seen?;
            Some(Waiting { thread: index, latch, weight: 1 })
        });
        let read = self.waiters.iter().filter_map(move |waiter| {
            let thread = self.threads.get(waiter.thread)?;
            let is_new = thread.seen.is_none_or(|(latch, _)| latch != waiter.latch);
            let weight = if waiter.ran_here { cpus } else { 1 };
            is_new.then_some(Waiting { thread: waiter.thread, latch: waiter.latch, weight })
        });
        seen.chain(read)
    }
}

/// Chooses which of too many threads are read: others in each look.
#[derive(Default)]
pub(in crate::measure) struct InTurn {
    first: usize,
}

impl InTurn {
    /// Keeps at most so many of what a look has shown.
    pub fn keep<T>(&mut self, all: &mut Vec<T>, most: usize) {
        if all.len() > most {
            self.first = (self.first + most) % all.len();
            all.rotate_left(self.first);
            all.truncate(most);
        }
    }
}

/// What a look has shown of a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SeenThread {
    pub tid: u32,
    /// `enum thread_state`.
    pub state: types::thread_state,
    /// Where its own variables are; 0 if that is not known.
    pub pointer: u64,
    /// What it does, as the programs describe it.
    pub doing: u64,
    /// The latch that it waits for, in a wait that the probes see, and its wait function.
    pub seen: Option<(MapKey, u8)>,
    pub scheduled: Scheduled,
}

/// What the scheduler knows of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Scheduled {
    /// How often it has got a CPU; the low bits.
    pub times: u32,
    /// The ID by which the server knows it, which in a container is not the one outside.
    pub own_id: u32,
    /// Whether it ran until the look was made on its CPU.
    pub ran_here: bool,
}

/// Makes looks.
pub(super) struct Looker {
    link: Link,
    reader: Reader,
    holders: Holders,
    call_stacks: CallStackSampler,
    files: FileSampler,
    status: Arc<Status>,
    /// Notes what waiting threads execute, if that is wanted.
    statements: Option<StatementSampler>,
    /// How many bytes of its registers the record of a thread ends with.
    registers: usize,
    age: u32,
    more: MoreTime,
    // Memory that is used again in each look.
    records: Vec<u8>,
    may_wait: Vec<(usize, types::seen_thread)>,
    in_files: Vec<InFile>,
    look: Look,
}

impl Looker {
    /// Makes looks with an attached program. Reads the code of the wait functions of `plan`. Adds to `status` who holds
    /// the latches that threads wait for, how they came to wait, and for which files threads wait, and notes by
    /// `statements` what they execute. `is_checked` says whether probes check what is assumed of threads.
    pub fn new(
        link: Link,
        target: &Arc<Target>,
        plan: &Arc<Plan>,
        status: Arc<Status>,
        statements: Option<StatementSampler>,
        is_checked: bool,
    ) -> Looker {
        let reader = Reader::new(target, plan, is_checked);
        let holders = Holders::new(target, Arc::clone(&status.holders));
        let call_stacks = CallStackSampler::new(target, &status.call_stacks);
        target.image.release_memory();
        let registers = registers_bytes(target.image.arch()) as usize;
        Looker {
            link,
            reader,
            holders,
            call_stacks,
            files: FileSampler::default(),
            status,
            statements,
            registers,
            age: 0,
            more: MoreTime::default(),
            records: Vec::new(),
            may_wait: Vec::new(),
            in_files: Vec::new(),
            look: Look::default(),
        }
    }

    /// Looks at all threads. A thread that runs is seen only if it ran on this CPU, so it stands for as many as `cpus`.
    ///
    /// # Errors
    /// Fails if the kernel does not show them.
    pub fn look(&mut self, cpus: u64) -> io::Result<&Look> {
        let begin = now_ns(libc::CLOCK_THREAD_CPUTIME_ID);
        let more = self.more.next(self.statements.is_some());
        self.records.clear();
        let begun = now_ns(libc::CLOCK_MONOTONIC);
        let mut all = Iter::new(&self.link).map_err(io::Error::other)?;
        all.read_to_end(&mut self.records)?;
        self.look.time_ns = (begun + now_ns(libc::CLOCK_MONOTONIC)) / 2;
        self.age += 1;
        if self.age >= OLD {
            self.age = 0;
            self.reader.forget();
            self.holders.forget();
        }
        self.may_wait.clear();
        self.in_files.clear();
        self.look.threads.clear();
        self.look.waiters.clear();
        for Record { thread, registers, file } in records(&self.records, self.registers) {
            let index = self.look.threads.len();
            self.may_wait.extend(registers.map(|registers| (index, registers)));
            self.in_files.extend(file.map(|[name, folder]| InFile { thread: index, name, folder }));
            self.look.threads.push(thread);
        }
        self.files.add(&self.look, &self.in_files, &self.status.files);
        self.reader.read(&self.may_wait, more.is_some(), &mut self.look.waiters);
        let looked = now_ns(libc::CLOCK_THREAD_CPUTIME_ID);
        if let Some(more) = more {
            self.read_more(more, cpus);
            self.more.spend(now_ns(libc::CLOCK_THREAD_CPUTIME_ID) - looked);
        }
        self.more.earn(looked - begin);
        Ok(&self.look)
    }

    fn read_more(&mut self, more: More, cpus: u64) {
        match &mut self.statements {
            Some(statements) if more == More::Statements => statements.add(&self.look, cpus),
            _ if more == More::CallStacks => self.call_stacks.add(&self.look, &self.may_wait, &mut self.reader),
            _ => self.holders.add(&self.look, &self.may_wait, &mut self.reader),
        }
    }
}

/// What some looks show in addition.
#[derive(Clone, Copy, Debug, PartialEq)]
enum More {
    /// The owners of latches.
    Holders,
    /// The call stacks of waiting threads.
    CallStacks,
    /// The statements of waiting threads.
    Statements,
}

/// The time that is left for reading more than what looks are made for: a part of what these take. Each costs up to
/// half a look, and for the wait times another look is worth more.
#[derive(Debug, Default)]
struct MoreTime {
    left_ns: f64,
    times: u32,
}

impl MoreTime {
    const PART: f64 = 0.22;

    /// Returns what the next look shows in addition, if there is time: each in turn.
    fn next(&self, with_statements: bool) -> Option<More> {
        let all = [More::Holders, More::CallStacks, More::Statements];
        let turns = if with_statements { &all[..] } else { &all[..2] };
        (self.left_ns > 0.0).then(|| turns[self.times as usize % turns.len()])
    }

    /// Adds the part of a look that has taken this long, in nanoseconds.
    fn earn(&mut self, look_ns: u64) {
        let part = Self::PART * look_ns as f64;
        // What is not needed is not saved up.
        self.left_ns = (self.left_ns + part).min(part);
    }

    /// Takes away this time, in nanoseconds.
    fn spend(&mut self, ns: u64) {
        self.left_ns -= ns as f64;
        self.times = self.times.wrapping_add(1);
    }
}

/// Makes looks until told to stop. `allowed` returns how many CPUs they may take, and what else each of them takes, in
/// nanoseconds. `look` gets what a look takes on average.
pub(super) fn at_intervals(stop: &Stop, allowed: impl Fn() -> (f64, f64), mut look: impl FnMut(f64) -> io::Result<()>) {
    be_punctual();
    let mut look_ns = FIRST_GUESS_NS;
    let mut begin = now_ns(libc::CLOCK_THREAD_CPUTIME_ID);
    while !stop.is_told() {
        let (cpus, more_ns) = allowed();
        // Waiting for the stop takes more CPU time.
        thread::sleep(interval(look_ns + more_ns, cpus));
        if cpus <= 0.0 || allowed().0 <= 0.0 {
            continue;
        }
        if let Err(error) = look(look_ns) {
            tracing::warn!("the server's threads cannot be sampled: {error}");
            return;
        }
        let now = now_ns(libc::CLOCK_THREAD_CPUTIME_ID);
        look_ns += WEIGHT * ((now - begin) as f64 - look_ns);
        begin = now;
    }
}

/// Lets this thread run as soon as it wakes. A thread that has to wait for a CPU sees the server's threads at moments
/// when many of them sleep. A look takes some hundred microseconds.
fn be_punctual() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: changes this thread only, and reads the parameter during the call.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &lowest) } != 0 {
        tracing::debug!("sampling is not punctual: {}", io::Error::last_os_error());
    }
}

/// Returns the interval of looks that take this long, so that they use so many CPUs.
fn interval(ns: f64, cpus: f64) -> Duration {
    let interval = ns / cpus.max(f64::MIN_POSITIVE);
    Duration::from_nanos(interval as u64).clamp(SHORTEST, LONGEST)
}

/// What a look shows of one thread.
struct Record {
    thread: SeenThread,
    /// Its registers, if it may wait, or hold a latch in I/O.
    registers: Option<types::seen_thread>,
    /// The names of the file that it reads, writes or flushes, and of the folder which contains the file.
    file: Option<[String; 2]>,
}

/// Returns the records of one look.
fn records(mut bytes: &[u8], registers: usize) -> impl Iterator<Item = Record> + '_ {
    const SEEN: u64 = 1 << types::doing_bit::DOING_WAIT_SEEN.0;
    const REGISTERS: u64 = 1 << types::doing_bit::DOING_REGISTERS.0;
    const FILE: u64 = 1 << types::scheduled_bit::SCHEDULED_FILE.0;
    std::iter::from_fn(move || {
        let mut take = |length: usize| {
            let (part, rest) = bytes.split_at_checked(length)?;
            bytes = rest;
            Some(part)
        };
        let number = u64::from_ne_bytes(take(size_of::<u64>())?.try_into().ok()?);
        let who = u64::from_ne_bytes(take(size_of::<u64>())?.try_into().ok()?);
        let (tid, state) = (who as u32, types::thread_state((who >> 32) as u32));
        let bits = u64::from_ne_bytes(take(size_of::<u64>())?.try_into().ok()?);
        let scheduled = Scheduled::of(bits);
        let pointer = u64::from_ne_bytes(take(size_of::<u64>())?.try_into().ok()?);
        let mut seen = None;
        if number & SEEN != 0 {
            let latch = plain::from_bytes::<types::latch_key>(take(size_of::<types::latch_key>())?).ok()?;
            seen = Some((key_of(latch), latch.function));
        }
        let mut with = None;
        if number & REGISTERS != 0 {
            with = Some(seen_thread(take(offset_of!(types::seen_thread, registers) + registers)?)?);
        }
        let mut file = None;
        if bits & FILE != 0 {
            let mut name = || Some(text(take(size_of::<types::seen_name>())?));
            file = Some([name()?, name()?]);
        }
        let doing = number & !(SEEN | REGISTERS);
        let thread = SeenThread { tid, state, pointer, doing, seen, scheduled };
        Some(Record { thread, registers: with, file })
    })
}

/// Returns a record that may have fewer registers.
fn seen_thread(record: &[u8]) -> Option<types::seen_thread> {
    let mut whole = [0; size_of::<types::seen_thread>()];
    whole.get_mut(..record.len())?.copy_from_slice(record);
    let mut thread = types::seen_thread::default();
    plain::copy_from_bytes(&mut thread, &whole).ok()?;
    Some(thread)
}

/// Attaches the program that looks at the threads of a process. Kernels before 6.1 let it look at all threads.
///
/// # Errors
/// Fails if the kernel refuses.
pub(in crate::measure) fn attach(program: &ProgramMut<'_>, pid: i32) -> libbpf_rs::Result<Link> {
    let mut of = libbpf_sys::bpf_iter_link_info::default();
    of.task = libbpf_sys::bpf_iter_link_info__bindgen_ty_3 { pid: pid as u32, ..Default::default() };
    let options = libbpf_sys::bpf_iter_attach_opts {
        sz: size_of::<libbpf_sys::bpf_iter_attach_opts>() as libbpf_sys::size_t,
        link_info: &mut of,
        link_info_len: size_of_val(&of) as u32,
        ..Default::default()
    };
    // SAFETY: the program is loaded, and libbpf reads the options only during the call.
    let link = unsafe { libbpf_sys::bpf_program__attach_iter(program.as_libbpf_object().as_ptr(), &options) };
    match NonNull::new(link) {
        // SAFETY: libbpf has returned the link for us to own.
        Some(link) => Ok(unsafe { Link::from_ptr(link) }),
        None => program.attach_iter_with_opts(IterOpts::None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_more_takes_its_part_of_the_time() {
        let mut more = MoreTime::default();
        let (mut spent, mut times) = (0, [0_i32; 3]);
        for _ in 0..1000 {
            if let Some(next) = more.next(true) {
                let ns = [200_000, 50_000, 100_000][next as usize];
                more.spend(ns);
                spent += ns;
                times[next as usize] += 1;
            }
            more.earn(400_000);
        }
        let part = spent as f64 / 4e8;
        // Of what is earned before something cheap, a part is not needed.
        assert!((0.85..1.01).contains(&(part / MoreTime::PART)), "{part}");
        assert!(times[0] > 100 && times.iter().all(|n| (n - times[0]).abs() <= 1), "they take turns: {times:?}");
        let without = |times| MoreTime { left_ns: 1.0, times }.next(false);
        assert_eq!([0, 1, 2].map(without), [More::Holders, More::CallStacks, More::Holders].map(Some));
    }

    #[test]
    fn time_that_is_not_spent_is_not_saved_up() {
        let mut more = MoreTime::default();
        (0..1000).for_each(|_| more.earn(400_000));
        assert!(more.next(true).is_some());
        more.spend(200_000);
        assert_eq!(more.next(true), None, "a part of one look is left at most");
    }

    #[test]
    fn a_thread_waits_once_for_each_latch() {
        let [latch, other] = [1, 2].map(|byte| [byte; size_of::<MapKey>()]);
        let thread = |seen: Option<MapKey>| SeenThread {
            tid: 0,
            state: types::thread_state::THREAD_ASLEEP,
            pointer: 0,
            doing: 0,
            seen: seen.map(|latch| (latch, 0)),
            scheduled: Scheduled::default(),
        };
        let waiter =
            |thread, latch, ran_here| Waiter { thread, latch, example: 0, callsite: (0, 0), is_asleep: true, ran_here };
        let threads = vec![thread(Some(latch)), thread(None), thread(None)];
        let waiters =
            vec![waiter(0, latch, false), waiter(0, other, false), waiter(1, other, true), waiter(9, latch, false)];
        let look = Look { threads, waiters, ..Look::default() };
        let found: Vec<_> = look.waiting(4).map(|w| (w.thread, w.latch, w.weight)).collect();
        assert_eq!(found, [(0, latch, 1), (0, other, 1), (1, other, 4)]);
    }

    #[test]
    fn of_too_many_threads_others_are_read_in_each_look() {
        let mut in_turn = InTurn::default();
        let mut read: Vec<u32> = (0..3)
            .flat_map(|_| {
                let mut all: Vec<u32> = (0..10).collect();
                in_turn.keep(&mut all, 4);
                all
            })
            .collect();
        read.sort_unstable();
        read.dedup();
        assert_eq!(read.len(), 10);
    }

    const LATCH: types::latch_key =
        types::latch_key { id: 0x1000, line: 0, identity: 0, mode: 0, function: 3, primitive: 0 };

    const WAIT_SEEN: u64 = 1 << types::doing_bit::DOING_WAIT_SEEN.0;
    const WITH_REGISTERS: u64 = 1 << types::doing_bit::DOING_REGISTERS.0;

    /// Returns what threads do, and their IDs if they may wait.
    fn numbers(records: &[u8], registers: usize) -> Vec<(SeenThread, Option<u32>)> {
        let numbers = |record: Record| (record.thread, record.registers.map(|at| at.tid));
        super::records(records, registers).map(numbers).collect()
    }

    #[test]
    fn records_are_as_long_as_they_must_be() {
        let before = offset_of!(types::seen_thread, registers);
        let mut registers = vec![0; before + 16];
        registers[..4].copy_from_slice(&77_u32.to_ne_bytes());
        registers[before + 8..].copy_from_slice(&9_u64.to_ne_bytes());
        let state = types::thread_state::THREAD_BLOCKED;
        let scheduled = Scheduled { times: 3, own_id: 9, ran_here: false };
        let pointer = |tid: u64| 0x7f00_0000 + tid;
        let who = |tid: u64| [u64::from(state.0) << 32 | tid, 9 << 32 | 3, pointer(tid)].map(u64::to_ne_bytes).concat();
        let mut records = 5u64.to_ne_bytes().to_vec();
        records.extend(who(76));
        records.extend(u64::to_ne_bytes(0x7f00 | WAIT_SEEN | WITH_REGISTERS));
        records.extend(who(77));
        records.extend(key_of(&LATCH));
        records.extend(&registers);
        records.extend(6u64.to_ne_bytes());
        records.extend(who(78));
        let with_file = records.len() - 9;
        records[with_file] |= 1 << (types::scheduled_bit::SCHEDULED_FILE.0 - 56);
        let name = |byte: u8| [vec![byte; 3], vec![0; size_of::<types::seen_name>() - 3]].concat();
        records.extend([name(b'f'), name(b'd')].concat());
        let thread =
            |tid: u32, doing, seen| SeenThread { tid, state, pointer: pointer(tid.into()), doing, seen, scheduled };
        let waits = thread(77, 0x7f00, Some((key_of(&LATCH), 3)));
        let all = [(thread(76, 5, None), None), (waits, Some(77)), (thread(78, 6, None), None)];
        assert_eq!(numbers(&records, 16), all);
        let at = super::records(&records, 16).find_map(|record| record.registers).unwrap();
        assert_eq!(at.registers[..3], [0, 9, 0]);
        let files: Vec<[String; 2]> = super::records(&records, 16).filter_map(|record| record.file).collect();
        assert_eq!(files, [["fff", "ddd"].map(str::to_owned)]);
        // A record that is cut off is none, like one that is longer than registers can be.
        let cut = records.len() - 2 * size_of::<types::seen_name>() - 33;
        assert_eq!(numbers(&records[..cut], 16), all[..1]);
        assert_eq!(numbers(&records, 4096), all[..1]);
    }

    #[test]
    fn looks_are_rarer_where_they_are_expensive() {
        assert_eq!(interval(100_000.0, 0.01), Duration::from_millis(10));
        assert_eq!(interval(20_000.0, 0.1), SHORTEST);
        assert_eq!(interval(90_000.0, 0.0), LONGEST);
    }
}
