//! The thread that holds the programs on a server: it attaches them, lets groups of them take turns as the overhead
//! budget requires, and detaches them in the end.
//!
//! A group is a set of wait functions that call one another: their waits are nested, so they can only be switched off
//! together. The futex programs are the last group. They measure waits in the C library, and the sleeps within waits of
//! the other groups.

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject, TracepointCategory};
use parking_lot::Mutex;

use super::collect::{hits, LIBRARY, TRACEPOINTS};
use super::missed::Missed;
use super::{configure, library, write_kinds, write_other_pages, write_sites, Maps, Plan, PlannedSite};
use crate::attach::{
    attach_futex, attach_sites, detach_all, futex_wait_is_traceable, futex_wake_is_traceable, uprobe_multi_works,
    Budget, FutexPrograms, Governor, ProbeClass, SiteAddress, SitePrograms, Turn, Usage, PERIOD,
};
use crate::bpf::latch::{types, LatchSkel, LatchSkelBuilder};
use crate::host::Topology;
use crate::model::ProbeState;
use crate::target::{cpu_time_ns, Target};

/// The value of `by_turns` while a group's ends are attached and its beginnings are not yet.
const ATTACHING: u32 = 2;

/// How long the ends of waits stay attached after the beginnings are detached.
const LAST_WAITS: Duration = Duration::from_millis(20);

/// In addition to its own time, a hit costs the server about this multiple of it in each of two ways: the CPU's caches
/// and predictors have to recover, and while the thread holds a latch, others spin for it. Measured: docs/overhead.md,
/// "What the account does not see".
const SHADOW: f64 = 1.0;

/// The commands to the thread. It ends when no sender is left.
pub(super) enum Command {
    /// Keep the probes within this budget.
    Govern(Budget),
    /// Detach all groups until told to resume, and report when they are detached.
    Pause(Sender<()>),
    Resume,
    /// Detach everything.
    Detach,
}

/// The state of the probes, as others may read it.
#[derive(Default)]
pub(crate) struct Status {
    /// In the order of [`Plan::probes`].
    pub probes: Mutex<Vec<ProbeState>>,
    /// In the order of [`TRACEPOINTS`], without those that are not needed here.
    pub tracepoints: Mutex<Vec<ProbeState>>,
    /// The estimates for the time in which probes were off.
    pub missed: Mutex<Missed>,
}

/// The result of attaching.
pub(super) struct Attached {
    /// The names of the sites that the kernel refused, with the reason.
    pub refused: Vec<(String, String)>,
    /// Whether both futex programs are attached.
    pub sees_sleeps: bool,
    /// Whether handoffs are counted.
    pub sees_wakes: bool,
    pub maps: Arc<Maps>,
}

/// The links of one group of probes; empty while it is off.
#[derive(Default)]
struct Links {
    begins: Vec<Link>,
    ends: Vec<Link>,
}

pub(super) struct Keeper<'obj> {
    skel: LatchSkel<'obj>,
    has_multi: bool,
    target: Arc<Target>,
    plan: Arc<Plan>,
    exe: PathBuf,
    status: Arc<Status>,
    maps: Arc<Maps>,
    /// The program for thread exits, attached as long as the agent runs, if the kernel allows it.
    thread_exit: Option<Link>,
    traces_system_calls: bool,
    /// Whether the futex programs are attached but idle. Programs on the kernel's functions stay attached between
    /// turns, because the kernel changes its own code to attach them.
    library_rests: bool,
    /// Whether handoffs are observed.
    sees_wakes: bool,
    /// The plan's groups, followed by [`Keeper::library`].
    groups: Vec<Links>,
    /// Threads that are detaching groups.
    removals: Vec<JoinHandle<()>>,
    refused: Vec<(String, String)>,
    /// Indices in the plan of sites that were refused.
    refused_sites: HashSet<usize>,
}

impl Links {
    fn are_on(&self) -> bool {
        !self.begins.is_empty()
    }
}

impl<'obj> Keeper<'obj> {
    /// Loads the programs and attaches them.
    ///
    /// # Errors
    /// Fails when the programs cannot be loaded, or when no site at all could be attached.
    pub fn attach(
        storage: &'obj mut MaybeUninit<OpenObject>,
        target: Arc<Target>,
        plan: Arc<Plan>,
        topology: Option<&Topology>,
        status: Arc<Status>,
    ) -> Result<(Keeper<'obj>, Attached)> {
        let mut open = LatchSkelBuilder::default().open(storage).context("opening the latch programs")?;
        let traceable = futex_wait_is_traceable();
        // The system call also shows which thread wakes, but the kernel's wait function does not.
        let topology = topology.filter(|_| !traceable || futex_wake_is_traceable());
        configure(&mut open, &target, &plan, topology)?;
        let has_multi = uprobe_multi_works();
        open.progs.latch_sites.set_autoload(has_multi);
        open.progs.latch_returns.set_autoload(has_multi);
        open.progs.latch_site.set_autoload(!has_multi);
        open.progs.latch_return.set_autoload(!has_multi);
        open.progs.futex_wait_enter.set_autoload(traceable);
        open.progs.futex_wait_exit.set_autoload(traceable);
        open.progs.futex_wake_enter.set_autoload(traceable && topology.is_some());
        let skel = open.load().context("loading the latch programs into the kernel")?;
        fill(&skel, &target, &plan)?;
        let maps = Arc::new(Maps::of(&skel)?);
        let groups = (0..=plan.groups.len()).map(|_| Links::default()).collect();
        let exe = target.exe();
        let mut keeper = Keeper {
            skel,
            has_multi,
            target,
            plan,
            exe,
            status,
            maps: Arc::clone(&maps),
            thread_exit: None,
            traces_system_calls: false,
            library_rests: false,
            sees_wakes: topology.is_some(),
            groups,
            removals: Vec::new(),
            refused: Vec::new(),
            refused_sites: HashSet::new(),
        };
        keeper.attach_thread_exit();
        keeper.put_all_on();
        let (sees_sleeps, sees_waits) =
            (keeper.is_on(keeper.library()), keeper.groups[..keeper.library()].iter().any(Links::are_on));
        let wants_sleeps_only = keeper.plan.sites.is_empty();
        let is_useful = sees_waits || (wants_sleeps_only && sees_sleeps);
        if !is_useful {
            let (site, why) = keeper.refused.first().cloned().unwrap_or_default();
            anyhow::bail!("no probe could be attached; the first, {site}: {why}");
        }
        let refused = keeper.refused.clone();
        let sees_wakes = sees_sleeps && keeper.sees_wakes;
        Ok((keeper, Attached { refused, sees_sleeps, sees_wakes, maps }))
    }

    /// Returns the group of the futex programs.
    fn library(&self) -> usize {
        self.plan.groups.len()
    }

    fn attach_thread_exit(&mut self) {
        let link = self.skel.progs.thread_exit.attach_tracepoint(TracepointCategory::Sched, "sched_process_exit");
        match link {
            Ok(link) => self.thread_exit = Some(link),
            Err(error) => self.refused.push((TRACEPOINTS[2].to_owned(), error.to_string())),
        }
    }

    /// Attaches a group that is off.
    fn put_on(&mut self, group: usize) {
        if group == self.library() {
            self.put_library_on();
        } else {
            self.put_sites_on(group);
        }
    }

    /// Attaches both futex programs or none, because one of them alone measures nothing.
    fn put_library_on(&mut self) {
        if std::mem::take(&mut self.library_rests) {
            self.maps.update_attachment(LIBRARY, |a| a.rests = 0);
            self.note_switch();
            return;
        }
        let progs = &self.skel.progs;
        let futex = attach_futex(&FutexPrograms {
            function: futex_wait_is_traceable().then_some([&progs.futex_wait_enter, &progs.futex_wait_exit]),
            system_call: [&progs.futex_enter, &progs.futex_exit],
        });
        self.traces_system_calls = futex.on_system_call;
        let group = self.library();
        match futex.links {
            [Ok(enter), Ok(exit)] => {
                let mut begins = vec![enter];
                begins.extend(self.attach_wakes(futex.on_system_call));
                self.groups[group] = Links { begins, ends: vec![exit] };
                self.note_switch();
            }
            links => {
                let why = links.into_iter().find_map(Result::err).map_or_else(String::new, |e| e.to_string());
                self.refused.extend(TRACEPOINTS[..2].iter().map(|&name| (name.to_owned(), why.clone())));
            }
        }
    }

    /// Attaches the program that sees which threads wake waiters. Programs on the system call see this anyway.
    fn attach_wakes(&mut self, on_system_call: bool) -> Option<Link> {
        if !self.sees_wakes || on_system_call {
            return None;
        }
        let link = self.skel.progs.futex_wake_enter.attach_trace();
        link.inspect_err(|error| self.refused.push((TRACEPOINTS[3].to_owned(), error.to_string()))).ok()
    }

    /// Tells the programs that the futex programs are on, or are about to be switched off.
    fn note_switch(&self) {
        self.maps.update_attachment(LIBRARY, |a| a.switches = a.switches.wrapping_add(1));
    }

    fn put_sites_on(&mut self, group: usize) {
        // Ends are attached before beginnings: a wait that begins while they are being attached must not miss its end.
        // Hits of ends before that are not counted as lost.
        let functions = self.functions_of(group);
        functions.iter().for_each(|&f| self.maps.update_attachment(f, |a| a.by_turns |= ATTACHING));
        let mut ends = self.attach_where(group, true, |s| s.at_return);
        ends.extend(self.attach_where(group, false, |s| !s.at_return && !s.is_begin()));
        self.refuse_functions_without_end(group);
        let begins = self.attach_where(group, false, PlannedSite::is_begin);
        functions.iter().for_each(|&f| self.maps.update_attachment(f, |a| a.by_turns &= !ATTACHING));
        self.groups[group] = Links { begins, ends };
    }

    /// Attaches the group's sites that `wanted` selects and that were not refused before.
    fn attach_where(&mut self, group: usize, at_return: bool, wanted: impl Fn(&PlannedSite) -> bool) -> Vec<Link> {
        let sites: Vec<SiteAddress> = self.plan.groups[group]
            .iter()
            .map(|&i| (i, &self.plan.sites[i]))
            .filter(|(i, s)| wanted(s) && !self.is_refused(*i))
            .map(|(i, s)| SiteAddress { file_offset: s.file_offset, cookie: i as u64 })
            .collect();
        let progs = &self.skel.progs;
        let (multi, single) = match at_return {
            true => (&progs.latch_returns, &progs.latch_return),
            false => (&progs.latch_sites, &progs.latch_site),
        };
        let programs = SitePrograms {
            multi: self.has_multi.then_some(multi),
            single: (!self.has_multi).then_some(single),
            retprobe: at_return,
        };
        let attached = attach_sites(&programs, self.target.pid, &self.exe, &sites);
        for (cookie, why) in attached.refused {
            self.refuse(cookie as usize, why);
        }
        attached.links
    }

    fn is_refused(&self, site: usize) -> bool {
        self.refused_sites.contains(&site)
    }

    fn is_tracepoint_refused(&self, name: &str) -> bool {
        self.refused.iter().any(|(refused, _)| refused == name)
    }

    fn refuse(&mut self, site: usize, why: String) {
        if self.refused_sites.insert(site) {
            self.refused.push((self.plan.sites[site].name.clone(), why));
        }
    }

    /// If some end of a wait was refused, its beginnings must not be attached: its waits would seem to last until the
    /// thread's next one.
    fn refuse_functions_without_end(&mut self, group: usize) {
        let plan = Arc::clone(&self.plan);
        let of_group = || plan.groups[group].iter().map(|&i| (i, &plan.sites[i]));
        let is_endless = |(i, site): &(usize, &PlannedSite)| !site.is_begin() && self.is_refused(*i);
        let endless: HashSet<usize> = of_group().filter(is_endless).map(|(_, site)| site.wait).collect();
        for (i, _) in of_group().filter(|(_, site)| site.is_begin() && endless.contains(&site.wait)) {
            self.refuse(i, "its end could not be probed".to_owned());
        }
    }

    fn is_on(&self, group: usize) -> bool {
        let rests = group == self.library() && self.library_rests;
        self.groups[group].are_on() && !rests
    }

    /// Returns the wait functions of a group, or the number that represents the C library.
    fn functions_of(&self, group: usize) -> HashSet<u8> {
        if group == self.library() {
            return HashSet::from([LIBRARY]);
        }
        self.plan.functions_of(group)
    }

    /// Returns whether a group has anything to attach.
    fn can_be_on(&self, group: usize) -> bool {
        if group == self.library() {
            return !self.is_tracepoint_refused(TRACEPOINTS[0]);
        }
        self.plan.groups[group].iter().any(|&i| self.plan.sites[i].is_begin() && !self.is_refused(i))
    }

    /// Switches a group off for a while, without waiting until the kernel has finished. Its beginnings are detached
    /// first, so that most waits whose beginning was seen are also seen to end.
    fn take_off(&mut self, group: usize) {
        if group == self.library() {
            self.note_switch();
            if !self.traces_system_calls {
                self.let_library_rest();
                return;
            }
        }
        let Links { begins, ends } = std::mem::take(&mut self.groups[group]);
        let maps = Arc::clone(&self.maps);
        let functions = self.functions_of(group);
        self.removals.push(thread::spawn(move || {
            let removal = thread::spawn(move || detach_all(begins));
            thread::sleep(LAST_WAITS);
            for function in functions {
                maps.update_attachment(function, |a| a.generation = a.generation.wrapping_add(1));
            }
            detach_all(ends);
            _ = removal.join();
        }));
    }

    /// Switches the futex programs off without detaching them.
    fn let_library_rest(&mut self) {
        self.library_rests = true;
        let maps = Arc::clone(&self.maps);
        self.removals.push(thread::spawn(move || {
            thread::sleep(LAST_WAITS);
            maps.update_attachment(LIBRARY, |a| {
                a.generation = a.generation.wrapping_add(1);
                a.rests = 1;
            });
        }));
    }

    /// Waits until the kernel has finished detaching.
    fn finish_removals(&mut self) {
        for removal in self.removals.drain(..) {
            _ = removal.join();
        }
    }

    /// Tells the programs which groups are off at times.
    fn announce(&self, turns: &[Turn]) {
        for (group, turn) in turns.iter().enumerate() {
            for function in self.functions_of(group) {
                self.maps.update_attachment(function, |a| a.by_turns = u32::from(*turn != Turn::Always));
            }
        }
    }

    fn set_states(&self, state: impl Fn(usize) -> ProbeState) {
        let states = self.plan.probes.iter().map(|probe| match probe.sites.iter().all(|&i| self.is_refused(i)) {
            true => ProbeState::Failed,
            false => state(self.plan.group_of(probe)),
        });
        let states = states.collect();
        *self.status.probes.lock() = states;
        let futex = state(self.library());
        let mut states = vec![futex, futex, ProbeState::Attached];
        if self.sees_wakes && !self.traces_system_calls {
            states.push(futex);
        }
        for (state, name) in states.iter_mut().zip(TRACEPOINTS) {
            if self.is_tracepoint_refused(name) {
                *state = ProbeState::Failed;
            }
        }
        *self.status.tracepoints.lock() = states;
    }

    /// Executes commands until told to detach, and then detaches.
    pub fn run(mut self, commands: &Receiver<Command>) {
        let mut governed = None;
        let mut paused = false;
        loop {
            let command = match &mut governed {
                Some(governed) if !paused => self.govern(governed, commands),
                _ => Ok(next(commands)),
            };
            match command {
                Ok(Command::Govern(budget)) => governed = Some(Governed::new(budget, self.groups.len())),
                Ok(Command::Pause(off)) => {
                    self.pause();
                    paused = true;
                    _ = off.send(());
                }
                Ok(Command::Resume) => {
                    paused = false;
                    // With a budget, the turns continue as they were.
                    if governed.is_none() {
                        self.put_all_on();
                    }
                }
                Ok(Command::Detach) => break,
                Err(error) => {
                    tracing::error!("the overhead budget is no longer enforced: {error:#}");
                    // Whatever is on stays on: at the last check it was within the budget.
                    governed = None;
                }
            }
        }
        self.detach();
    }

    /// Switches all groups off.
    fn pause(&mut self) {
        for group in 0..self.groups.len() {
            if self.is_on(group) {
                self.take_off(group);
            }
        }
        self.finish_removals();
        self.set_states(|_| ProbeState::Detached);
    }

    fn put_all_on(&mut self) {
        // Begin with sleeps: a wait that begins before they are measured would count as spinning.
        for group in (0..self.groups.len()).rev() {
            if !self.is_on(group) && self.can_be_on(group) {
                self.put_on(group);
            }
        }
        self.set_states(|_| ProbeState::Attached);
    }

    /// Enforces the budget until a command arrives.
    fn govern(&mut self, governed: &mut Governed, commands: &Receiver<Command>) -> Result<Command> {
        let Governed { budget, governor, turns } = governed;
        let mut meter = Meter::new(self, budget)?;
        let mut owed = vec![Owed::new(); self.groups.len()];
        self.show(turns);
        loop {
            let attached = match self.period(turns, commands) {
                Ok(attached) => attached,
                Err(command) => {
                    // A period that was cut short is not scaled up.
                    if let Err(error) = self.settle(&mut owed) {
                        tracing::error!("the waits of the last turns were not scaled up: {error:#}");
                    }
                    return Ok(command);
                }
            };
            for (owed, &on) in owed.iter_mut().zip(&attached) {
                owed.add(on);
            }
            let used = meter.read(self, &attached)?;
            let next = governor.turns(used.server_cpu, used.others, &used.groups);
            // Also do this before the first turns: nothing seen until then has to be scaled up.
            if turns.iter().chain(&next).any(|turn| *turn != Turn::Always) {
                self.settle(&mut owed)?;
            }
            *turns = next;
            self.show(turns);
        }
    }

    /// Publishes the turns to the programs and to other threads.
    fn show(&self, turns: &[Turn]) {
        self.announce(turns);
        self.set_states(|group| match turns[group] {
            Turn::Always => ProbeState::Attached,
            Turn::Part(_) => ProbeState::DutyCycle,
        });
    }

    /// Runs one period, in which each group has its turn. Returns how long each group was attached, if not all the
    /// time, or the command that ended the period.
    fn period(&mut self, turns: &[Turn], commands: &Receiver<Command>) -> Result<Vec<Option<Duration>>, Command> {
        let begin = Instant::now();
        let mut put_on = vec![None; turns.len()];
        // The futex programs come first, because they measure the sleeps within the others' waits.
        for group in (0..turns.len()).rev() {
            if turns[group] == Turn::Part(0.0) {
                if self.is_on(group) {
                    self.take_off(group);
                }
            } else if !self.is_on(group) && self.can_be_on(group) {
                self.put_on(group);
                put_on[group] = Some(Instant::now());
            }
        }
        // Groups that were on before count from the beginning; `None` for those that stay on throughout.
        let mut attached: Vec<_> = put_on.iter().map(|on| on.map(|_| Duration::ZERO)).collect();
        let mut parts: Vec<(usize, f64)> = turns.iter().enumerate().filter_map(part).collect();
        parts.sort_by(|a, b| a.1.total_cmp(&b.1));
        for (group, part) in parts {
            attached[group] = Some(Duration::ZERO);
            if part == 0.0 || !self.is_on(group) {
                continue;
            }
            let since = put_on[group].take().unwrap_or(begin);
            told_nothing(commands, since + PERIOD.mul_f64(part))?;
            attached[group] = Some(since.elapsed());
            self.take_off(group);
        }
        told_nothing(commands, begin + PERIOD)?;
        self.finish_removals();
        // These were switched on and stay on in this period.
        for (attached, since) in attached.iter_mut().zip(put_on) {
            *attached = since.map(|since| since.elapsed()).or(*attached);
        }
        Ok(attached)
    }

    /// Scales up what was seen by groups that were attached only part of the time since they were last settled.
    fn settle(&self, owed: &mut [Owed]) -> Result<()> {
        let mut factors = [0.0; LIBRARY as usize + 1];
        for (group, owed) in owed.iter_mut().enumerate().filter(|(_, o)| o.saw_anything()) {
            for function in self.functions_of(group) {
                factors[usize::from(function)] = owed.factor();
            }
            *owed = Owed::new();
        }
        self.status.missed.lock().estimate(&self.maps, &factors)
    }

    /// Detaches all probes concurrently, because each removal waits for a grace period of the kernel.
    fn detach(mut self) {
        let groups = std::mem::take(&mut self.groups);
        let links = groups.into_iter().flat_map(|links| links.begins.into_iter().chain(links.ends));
        detach_all(self.thread_exit.take().into_iter().chain(links).collect());
        self.finish_removals();
    }
}

/// How long a group was attached since its counts were last scaled up.
#[derive(Clone)]
struct Owed {
    since: Instant,
    attached: Duration,
    all_the_time: bool,
}

impl Owed {
    fn new() -> Owed {
        Owed { since: Instant::now(), attached: Duration::ZERO, all_the_time: true }
    }

    /// Adds one period, in which the group was attached for this long, or all the time.
    fn add(&mut self, attached: Option<Duration>) {
        self.attached += attached.unwrap_or(PERIOD);
        self.all_the_time &= attached.is_none();
    }

    fn saw_anything(&self) -> bool {
        !self.attached.is_zero()
    }

    /// Returns the ratio of what was not seen in that time to what was seen.
    fn factor(&self) -> f64 {
        if self.all_the_time {
            return 0.0;
        }
        (self.since.elapsed().as_secs_f64() / self.attached.as_secs_f64() - 1.0).max(0.0)
    }
}

/// A budget that is enforced, also across pauses.
struct Governed {
    budget: Budget,
    governor: Governor,
    turns: Vec<Turn>,
}

impl Governed {
    fn new(budget: Budget, groups: usize) -> Governed {
        Governed { governor: Governor::new(budget.share, groups), budget, turns: vec![Turn::Always; groups] }
    }
}

/// Returns the next command.
fn next(commands: &Receiver<Command>) -> Command {
    commands.recv().unwrap_or(Command::Detach)
}

/// Returns the share of a period that a group may be on, if not all of it.
fn part((group, turn): (usize, &Turn)) -> Option<(usize, f64)> {
    match *turn {
        Turn::Part(part) if part < 1.0 => Some((group, part)),
        _ => None,
    }
}

/// Waits until the given time, unless a command arrives.
fn told_nothing(commands: &Receiver<Command>, until: Instant) -> Result<(), Command> {
    match commands.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Err(RecvTimeoutError::Timeout) => Ok(()),
        Err(RecvTimeoutError::Disconnected) => Err(Command::Detach),
        Ok(command) => Err(command),
    }
}

/// Writes what the programs need before the first of them is attached.
fn fill(skel: &LatchSkel<'_>, target: &Target, plan: &Plan) -> Result<()> {
    write_sites(&skel.maps.sites, plan, target.bias)?;
    write_kinds(&skel.maps.kinds, plan)?;
    write_other_pages(&skel.maps.pages)?;
    for (address, index) in plan.site_addresses(target.bias) {
        skel.maps.site_at.update(&address.to_ne_bytes(), &index.to_ne_bytes(), MapFlags::ANY)?;
    }
    for address in &plan.wrapper_returns {
        let address = address + target.bias;
        // A missing entry only makes a call site less precise.
        _ = skel.maps.wrappers.update(&address.to_ne_bytes(), &[1], MapFlags::ANY);
    }
    for (address, row) in library::rows(target.pid) {
        // SAFETY: `row` is a plain C structure (see the module above), read as bytes for as long as it is borrowed.
        let bytes = unsafe { plain::as_bytes(&row) };
        skel.maps.library_frames.update(&address.to_ne_bytes(), bytes, MapFlags::ANY)?;
    }
    Ok(())
}

/// Measures what hits cost the server.
struct Meter<'b> {
    budget: &'b Budget,
    /// The sites, followed by the futex programs.
    rows: Vec<Row>,
    last: Instant,
    others_ns: u64,
    hits: Vec<types::hits>,
    cpu_ns: u64,
}

/// A probe of a group.
struct Row {
    /// The index of its hits.
    index: u32,
    group: usize,
    trap_ns: f64,
    /// Whether its thread holds the latch at that moment.
    is_end: bool,
}

/// What was used in a period, in CPUs.
struct Used {
    server_cpu: f64,
    /// By probes that do not take turns.
    others: f64,
    groups: Vec<Usage>,
}

impl<'b> Meter<'b> {
    /// Starts measuring.
    ///
    /// # Errors
    /// Fails when the hits cannot be read.
    fn new(keeper: &Keeper<'_>, budget: &'b Budget) -> Result<Meter<'b>> {
        let costs = &budget.costs;
        let mut rows = Vec::new();
        for (index, probe) in (0..).zip(&keeper.plan.probes) {
            // A class without a measured cost is assumed to cost as much as the most expensive one.
            let trap_ns = costs.of(probe.class).or(costs.stepped).unwrap_or(0.0);
            rows.push(Row { index, group: keeper.plan.group_of(probe), trap_ns, is_end: !probe.is_begin });
        }
        let trap_ns = costs.of(ProbeClass::Futex).unwrap_or(0.0);
        let futex =
            [types::tracepoint::HIT_FUTEX_ENTER, types::tracepoint::HIT_FUTEX_EXIT, types::tracepoint::HIT_FUTEX_WAKE];
        for index in futex.map(|hit| hit.0) {
            rows.push(Row { index, group: keeper.library(), trap_ns, is_end: false });
        }
        let hits = counts(&rows, keeper)?;
        let cpu_ns = cpu_time_ns(keeper.target.pid).unwrap_or(0);
        Ok(Meter { budget, rows, last: Instant::now(), others_ns: (budget.others_ns)(), hits, cpu_ns })
    }

    fn read(&mut self, keeper: &Keeper<'_>, attached: &[Option<Duration>]) -> Result<Used> {
        let hits = counts(&self.rows, keeper)?;
        let cpu_ns = cpu_time_ns(keeper.target.pid).unwrap_or(self.cpu_ns);
        let elapsed = self.last.elapsed();
        let period_ns = elapsed.as_nanos() as f64;
        let mut groups: Vec<Usage> = attached
            .iter()
            .map(|a| a.map_or(1.0, |a| (a.as_secs_f64() / elapsed.as_secs_f64()).min(1.0)))
            .map(|attached| Usage { attached, ..Default::default() })
            .collect();
        for (row, (now, then)) in self.rows.iter().zip(hits.iter().zip(&self.hits)) {
            let programs = now.program_ns().saturating_sub(then.program_ns());
            let cpu = (row.trap_ns * now.count.saturating_sub(then.count) as f64 + programs as f64) / period_ns;
            groups[row.group].cpu += (1.0 + SHADOW) * cpu;
            if row.is_end {
                groups[row.group].cpu += SHADOW * cpu;
                groups[row.group].held += cpu;
            }
        }
        let others_ns = (self.budget.others_ns)();
        let server_cpu = cpu_ns.saturating_sub(self.cpu_ns) as f64 / period_ns;
        let others = (1.0 + SHADOW) * others_ns.saturating_sub(self.others_ns) as f64 / period_ns;
        (self.last, self.hits, self.cpu_ns, self.others_ns) = (Instant::now(), hits, cpu_ns, others_ns);
        Ok(Used { server_cpu, others, groups })
    }
}

/// Reads the hits so far.
fn counts(rows: &[Row], keeper: &Keeper<'_>) -> Result<Vec<types::hits>> {
    rows.iter().map(|row| hits(&keeper.maps.hits, row.index)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALWAYS: Option<Duration> = None;
    const OFF: Option<Duration> = Some(Duration::ZERO);

    fn owed(periods: u32) -> Owed {
        Owed { since: Instant::now() - periods * PERIOD, ..Owed::new() }
    }

    #[test]
    fn what_was_on_all_the_time_missed_nothing() {
        let mut owed = owed(10);
        owed.add(ALWAYS);
        assert_eq!(owed.factor(), 0.0);
    }

    #[test]
    fn what_was_on_a_quarter_of_the_time_missed_three_times_as_much() {
        let mut owed = owed(4);
        for attached in [Some(PERIOD), OFF, OFF, OFF] {
            owed.add(attached);
        }
        assert!((owed.factor() - 3.0).abs() < 0.1, "{}", owed.factor());
        assert!(owed.saw_anything());
    }

    #[test]
    fn what_was_off_has_to_wait_for_its_turn() {
        let mut owed = Owed::new();
        owed.add(OFF);
        assert!(!owed.saw_anything());
    }
}
