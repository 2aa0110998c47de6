//! The thread that holds the programs on a server: it attaches them, takes groups of them off and puts them back as the
//! overhead budget wants, and takes all off in the end.
//!
//! A group is a set of wait functions of which one calls another: their waits are nested, so that only together they can
//! be missing. The futex programs are the last group; they see waits in the C library, and the sleeps in waits of the others.

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject, TracepointCategory};

use super::collect::{hits, LIBRARY, TRACEPOINTS};
use super::missed::Missed;
use super::{configure, library, write_kinds, write_other_pages, write_sites, Maps, Plan, PlannedSite};
use crate::attach::{
    attach_futex, attach_sites, detach_all, futex_wait_is_traceable, futex_wake_is_traceable, uprobe_multi_works,
    Budget, FutexPrograms, Governor, Places, ProbeClass, SiteAddress, SitePrograms, Turn, Usage, PERIOD,
};
use crate::bpf::latch::{types, LatchSkel, LatchSkelBuilder};
use crate::model::ProbeState;
use crate::target::{cpu_time_ns, Target};

/// In what the programs know of a group: its ends are attached and its begins not yet.
const ATTACHING: u32 = 2;

/// How long the ends of waits stay attached after the begins have gone.
const LAST_WAITS: Duration = Duration::from_millis(20);

/// A hit costs the server about so many times what it takes itself, in each of two ways: what the CPU's caches and predictors
/// held has to come back, and where the thread has a latch, others spin for it. Measured: docs/overhead.md, "What the account
/// does not see".
const SHADOW: f64 = 1.0;

/// What the thread is told. It ends when nobody is left to tell it anything.
pub(super) enum Command {
    /// Keep the probes within this.
    Govern(Budget),
    /// Take all groups off until told to resume, and say when they are off.
    Pause(Sender<()>),
    Resume,
    /// Take everything off.
    Detach,
}

/// What others may know of the probes.
#[derive(Default)]
pub(crate) struct Status {
    /// In the order of [`Plan::probes`].
    pub probes: Mutex<Vec<ProbeState>>,
    /// In the order of [`TRACEPOINTS`], without those that are not wanted here.
    pub tracepoints: Mutex<Vec<ProbeState>>,
    /// What is estimated, because probes were off.
    pub missed: Mutex<Missed>,
}

/// What attaching came to.
pub(super) struct Attached {
    /// Names of the sites that the kernel refused, and why.
    pub refused: Vec<(String, String)>,
    /// Whether both futex programs are attached.
    pub sees_sleeps: bool,
    /// Whether handoffs are counted.
    pub sees_wakes: bool,
    pub maps: Arc<Maps>,
}

/// Links of one group of probes; empty while it is off.
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
    /// Attached as long as the agent is, where the kernel lets it: threads' ends.
    thread_exit: Option<Link>,
    traces_system_calls: bool,
    /// The futex programs are attached but do nothing: those on the kernel's functions stay attached between turns, because
    /// the kernel changes its own code to attach them.
    library_rests: bool,
    /// Whether handoffs are looked at.
    sees_wakes: bool,
    /// The plan's groups and then [`Keeper::library`].
    groups: Vec<Links>,
    /// Threads that take groups off.
    removals: Vec<JoinHandle<()>>,
    refused: Vec<(String, String)>,
    /// By their places in the plan.
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
    /// When the programs cannot be loaded, or no site at all could be attached.
    pub fn attach(
        storage: &'obj mut MaybeUninit<OpenObject>,
        target: Arc<Target>,
        plan: Arc<Plan>,
        places: Option<&Places>,
        status: Arc<Status>,
    ) -> Result<(Keeper<'obj>, Attached)> {
        let mut open = LatchSkelBuilder::default().open(storage).context("opening the latch programs")?;
        let traceable = futex_wait_is_traceable();
        // Who wakes is seen by the system call too, but not by the function for waits.
        let places = places.filter(|_| !traceable || futex_wake_is_traceable());
        configure(&mut open, &target, &plan, places)?;
        let has_multi = uprobe_multi_works();
        open.progs.latch_sites.set_autoload(has_multi);
        open.progs.latch_returns.set_autoload(has_multi);
        open.progs.latch_site.set_autoload(!has_multi);
        open.progs.latch_return.set_autoload(!has_multi);
        open.progs.futex_wait_enter.set_autoload(traceable);
        open.progs.futex_wait_exit.set_autoload(traceable);
        open.progs.futex_wake_enter.set_autoload(traceable && places.is_some());
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
            sees_wakes: places.is_some(),
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

    /// The group of the futex programs.
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

    /// Both programs or none: one of them alone sees nothing.
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

    /// Sees who wakes waiters; programs on the system call see that anyway.
    fn attach_wakes(&mut self, on_system_call: bool) -> Option<Link> {
        if !self.sees_wakes || on_system_call {
            return None;
        }
        let link = self.skel.progs.futex_wake_enter.attach_trace();
        link.inspect_err(|error| self.refused.push((TRACEPOINTS[3].to_owned(), error.to_string()))).ok()
    }

    /// Lets the programs know that the futex programs are on, or are about to be taken off.
    fn note_switch(&self) {
        self.maps.update_attachment(LIBRARY, |a| a.switches = a.switches.wrapping_add(1));
    }

    fn put_sites_on(&mut self, group: usize) {
        // Ends before begins: a wait that begins while they are attached must not miss its end. What is hit of them before
        // is no loss.
        let functions = self.functions_of(group);
        functions.iter().for_each(|&f| self.maps.update_attachment(f, |a| a.by_turns |= ATTACHING));
        let mut ends = self.attach_where(group, true, |s| s.at_return);
        ends.extend(self.attach_where(group, false, |s| !s.at_return && !s.is_begin()));
        self.refuse_functions_without_end(group);
        let begins = self.attach_where(group, false, PlannedSite::is_begin);
        functions.iter().for_each(|&f| self.maps.update_attachment(f, |a| a.by_turns &= !ATTACHING));
        self.groups[group] = Links { begins, ends };
    }

    /// Attaches the group's sites that are wanted and were not refused before.
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

    /// Waits of which some end was refused: their begins must not be attached, or they would seem to last until the
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

    /// The wait functions of a group, or what stands in place of one.
    fn functions_of(&self, group: usize) -> HashSet<u8> {
        if group == self.library() {
            return HashSet::from([LIBRARY]);
        }
        self.plan.functions_of(group)
    }

    /// Whether there is anything to attach in a group.
    fn can_be_on(&self, group: usize) -> bool {
        if group == self.library() {
            return !self.is_tracepoint_refused(TRACEPOINTS[0]);
        }
        self.plan.groups[group].iter().any(|&i| self.plan.sites[i].is_begin() && !self.is_refused(i))
    }

    /// Takes a group off for a while, without waiting until the kernel is done with it. Its begins go first, so that most
    /// waits that were seen to begin are seen to end.
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

    /// The same for the futex programs, without detaching them.
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

    /// Waits until the kernel is done with what was taken off.
    fn finish_removals(&mut self) {
        for removal in self.removals.drain(..) {
            _ = removal.join();
        }
    }

    /// Lets the programs know which groups are off at times.
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
        *self.status.probes.lock().unwrap_or_else(PoisonError::into_inner) = states;
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
        *self.status.tracepoints.lock().unwrap_or_else(PoisonError::into_inner) = states;
    }

    /// Does what it is told until it is told to detach, and detaches.
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
                    // With a budget the turns go on as they were.
                    if governed.is_none() {
                        self.put_all_on();
                    }
                }
                Ok(Command::Detach) => break,
                Err(error) => {
                    tracing::error!("the overhead budget is not kept any more: {error:#}");
                    // Whatever is on stays on: none of it was over the budget when that was last looked at.
                    governed = None;
                }
            }
        }
        self.detach();
    }

    /// Takes all groups off.
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
        // Sleeps first: a wait that begins before they are seen would count as spinning.
        for group in (0..self.groups.len()).rev() {
            if !self.is_on(group) && self.can_be_on(group) {
                self.put_on(group);
            }
        }
        self.set_states(|_| ProbeState::Attached);
    }

    /// Keeps the budget until told something.
    fn govern(&mut self, governed: &mut Governed, commands: &Receiver<Command>) -> Result<Command> {
        let Governed { budget, governor, turns } = governed;
        let mut meter = Meter::new(self, budget)?;
        let mut owed = vec![Owed::new(); self.groups.len()];
        self.show(turns);
        loop {
            let attached = match self.period(turns, commands) {
                Ok(attached) => attached,
                Err(command) => {
                    // What was seen in a period that was cut short stays as it was seen.
                    if let Err(error) = self.settle(&mut owed) {
                        tracing::error!("the last turns' waits are not scaled up: {error:#}");
                    }
                    return Ok(command);
                }
            };
            for (owed, &on) in owed.iter_mut().zip(&attached) {
                owed.add(on);
            }
            let used = meter.read(self, &attached)?;
            let next = governor.turns(used.server_cpu, used.others, &used.groups);
            // Also before the first turns: what was seen until then is nothing to scale up.
            if turns.iter().chain(&next).any(|turn| *turn != Turn::Always) {
                self.settle(&mut owed)?;
            }
            *turns = next;
            self.show(turns);
        }
    }

    /// Lets the programs and others know of the turns.
    fn show(&self, turns: &[Turn]) {
        self.announce(turns);
        self.set_states(|group| match turns[group] {
            Turn::Always => ProbeState::Attached,
            Turn::Part(_) => ProbeState::DutyCycle,
        });
    }

    /// One period, in which each group has its turn. For how long each was attached, where that was not all the time;
    /// what it was told if that ended it.
    fn period(&mut self, turns: &[Turn], commands: &Receiver<Command>) -> Result<Vec<Option<Duration>>, Command> {
        let begin = Instant::now();
        let mut put_on = vec![None; turns.len()];
        // The futex programs first, as they are to see the sleeps in the others' waits.
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
        // Those that were on before are on from the beginning; nothing for those that were on all of it.
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
        // Put on, and not to be taken off in this period.
        for (attached, since) in attached.iter_mut().zip(put_on) {
            *attached = since.map(|since| since.elapsed()).or(*attached);
        }
        Ok(attached)
    }

    /// Scales up what was seen by groups that were attached for only a part of the time since they were last settled.
    fn settle(&self, owed: &mut [Owed]) -> Result<()> {
        let mut factors = [0.0; LIBRARY as usize + 1];
        for (group, owed) in owed.iter_mut().enumerate().filter(|(_, o)| o.saw_anything()) {
            for function in self.functions_of(group) {
                factors[usize::from(function)] = owed.factor();
            }
            *owed = Owed::new();
        }
        self.status.missed.lock().unwrap_or_else(PoisonError::into_inner).estimate(&self.maps, &factors)
    }

    /// Takes all probes off, side by side: each removal waits for a grace period of the kernel.
    fn detach(mut self) {
        let groups = std::mem::take(&mut self.groups);
        let links = groups.into_iter().flat_map(|links| links.begins.into_iter().chain(links.ends));
        detach_all(self.thread_exit.take().into_iter().chain(links).collect());
        self.finish_removals();
    }
}

/// For how long a group was attached since what it saw was last scaled up.
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

    /// One more period, in which the group was attached for so long, or all the time.
    fn add(&mut self, attached: Option<Duration>) {
        self.attached += attached.unwrap_or(PERIOD);
        self.all_the_time &= attached.is_none();
    }

    fn saw_anything(&self) -> bool {
        !self.attached.is_zero()
    }

    /// How many times as much as was seen in that time was not seen.
    fn factor(&self) -> f64 {
        if self.all_the_time {
            return 0.0;
        }
        (self.since.elapsed().as_secs_f64() / self.attached.as_secs_f64() - 1.0).max(0.0)
    }
}

/// A budget that is kept, also across pauses.
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

/// What it is told next.
fn next(commands: &Receiver<Command>) -> Command {
    commands.recv().unwrap_or(Command::Detach)
}

/// The part of a period that a group may be on for, where that is not all of it.
fn part((group, turn): (usize, &Turn)) -> Option<(usize, f64)> {
    match *turn {
        Turn::Part(part) if part < 1.0 => Some((group, part)),
        _ => None,
    }
}

/// Waits until then, unless told something.
fn told_nothing(commands: &Receiver<Command>, until: Instant) -> Result<(), Command> {
    match commands.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Err(RecvTimeoutError::Timeout) => Ok(()),
        Err(RecvTimeoutError::Disconnected) => Err(Command::Detach),
        Ok(command) => Err(command),
    }
}

/// What the programs know before the first of them is attached.
fn fill(skel: &LatchSkel<'_>, target: &Target, plan: &Plan) -> Result<()> {
    write_sites(&skel.maps.sites, plan, target.bias)?;
    write_kinds(&skel.maps.kinds, plan)?;
    write_other_pages(&skel.maps.pages)?;
    for (address, index) in plan.site_addresses(target.bias) {
        skel.maps.site_at.update(&address.to_ne_bytes(), &index.to_ne_bytes(), MapFlags::ANY)?;
    }
    for address in &plan.wrapper_returns {
        let address = address + target.bias;
        // One too many only makes a call site less exact.
        _ = skel.maps.wrappers.update(&address.to_ne_bytes(), &[1], MapFlags::ANY);
    }
    for (address, row) in library::rows(target.pid) {
        // SAFETY: `row` is a plain C structure (see the module above), read as bytes for as long as it is borrowed.
        let bytes = unsafe { plain::as_bytes(&row) };
        skel.maps.library_frames.update(&address.to_ne_bytes(), bytes, MapFlags::ANY)?;
    }
    Ok(())
}

/// Reads what hits cost the server.
struct Meter<'b> {
    budget: &'b Budget,
    /// The sites and then the futex programs.
    rows: Vec<Row>,
    last: Instant,
    others_ns: u64,
    hits: Vec<types::hits>,
    cpu_ns: u64,
}

/// A probe of a group.
struct Row {
    /// Index of its hits.
    index: u32,
    group: usize,
    trap_ns: f64,
    /// Whether its thread has the latch then.
    is_end: bool,
}

/// What was used in a period, in CPUs.
struct Used {
    server_cpu: f64,
    /// By probes that have no turns.
    others: f64,
    groups: Vec<Usage>,
}

impl<'b> Meter<'b> {
    /// # Errors
    /// When the hits cannot be read.
    fn new(keeper: &Keeper<'_>, budget: &'b Budget) -> Result<Meter<'b>> {
        let costs = &budget.costs;
        let mut rows = Vec::new();
        for (index, probe) in (0..).zip(&keeper.plan.probes) {
            // What has no measured price is taken to cost as much as the most expensive kind.
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

/// Hits so far.
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
