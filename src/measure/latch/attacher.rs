//! Attaches the programs to a server, and detaches them, in groups.
//!
//! A group is a set of wait functions that call one another: their waits are nested, so they can only be switched off
//! together. The futex programs are the last group. They measure waits in the C library, and the sleeps within waits of
//! the other groups.

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapHandle, OpenObject};

use super::glances::Glancer;
use super::keys::PTHREAD;
use super::load::{configure, fill};
use super::looks::{self, Looker};
use super::maps::{Maps, Tracepoint};
use super::sampler::Sampler;
use super::samples::Samples;
use super::stacks::{Sampled, StackSampler};
use super::statements::{SeenStatements, StatementSampler};
use super::status::Status;
use super::{Plan, PlannedSite};
use crate::attach::{
    attach_futex, attach_sites, detach_all, futex_wait_is_traceable, futex_wake_is_traceable, stacks_are_shown,
    uprobe_multi_works, FutexPrograms, Link, Refusal, SiteAddress, SitePrograms, Turn,
};
use crate::bpf::latch::{LatchSkel, LatchSkelBuilder};
use crate::catalog::Shape;
use crate::host::{clock::now_ns, Topology};
use crate::memory;
use crate::model::ProbeState;
use crate::server::Target;
use crate::worker::Worker;

/// The value of `by_turns` while a group's ends are attached and its beginnings are not yet.
const ATTACHING: u32 = 2;

/// How long the ends of waits stay attached after the beginnings are detached: until no wait is open, but at least for
/// the first time, and at most for the second. A turn that did not see its longest waits would be too low.
const LAST_WAITS: Duration = Duration::from_millis(20);
const LONGEST_WAITS: Duration = Duration::from_millis(400);

/// The error if the kernel refuses all probes.
#[derive(Debug, thiserror::Error)]
#[error("no probe could be attached; the first, {first}: {why}")]
pub struct NoProbe {
    /// The probe that was refused first.
    first: String,
    why: String,
}

/// One of the probes that are attached here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    /// A site, by its index in the plan.
    Site(usize),
    Tracepoint(Tracepoint),
}

/// The result of attaching.
pub(super) struct Attached {
    /// What the kernel refused, by name.
    pub refused: Vec<Refusal<String>>,
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

/// The loaded programs, and their links to the server.
pub(super) struct Attacher<'obj> {
    skel: LatchSkel<'obj>,
    has_multi: bool,
    pub target: Arc<Target>,
    pub plan: Arc<Plan>,
    exe: PathBuf,
    pub status: Arc<Status>,
    pub maps: Arc<Maps>,
    /// The program for thread exits, attached as long as the agent runs, if the kernel allows it.
    thread_exit: Option<Link>,
    traces_system_calls: bool,
    /// Whether the futex programs are attached but idle. Programs on the kernel's functions stay attached between
    /// turns, because the kernel changes its own code to attach them.
    pthread_rests: bool,
    /// Whether handoffs are observed.
    sees_wakes: bool,
    /// The plan's groups, followed by [`Attacher::pthread`].
    groups: Vec<Links>,
    /// Samples the server's threads while some probes are on a duty cycle.
    sampler: Option<Sampler>,
    /// Whether no probe is to be attached. Waits are then read from the threads' stacks.
    without_probes: bool,
    stacks: Option<StackSampler>,
    /// The statements of waiting threads, if they are read.
    statements: Option<Arc<SeenStatements>>,
    /// Threads that are detaching groups.
    removals: Vec<Worker>,
    /// What the kernel refused, each probe once.
    refused: Vec<Refusal<Probe>>,
}

impl Links {
    fn are_on(&self) -> bool {
        !self.begins.is_empty()
    }
}

impl<'obj> Attacher<'obj> {
    /// Loads the programs and attaches them.
    ///
    /// # Errors
    /// Fails when the programs cannot be loaded, or when no site at all could be attached.
    pub fn attach(
        storage: &'obj mut MaybeUninit<OpenObject>,
        target: Arc<Target>,
        plan: Arc<Plan>,
        topology: Option<&Topology>,
        without_probes: bool,
        statements: Option<Arc<SeenStatements>>,
        status: Arc<Status>,
    ) -> Result<(Attacher<'obj>, Attached)> {
        let mut open = LatchSkelBuilder::default().open(storage).context("opening the latch programs")?;
        let traceable = futex_wait_is_traceable();
        // The system call also shows which thread wakes, but the kernel's wait function does not.
        let topology = topology.filter(|_| !traceable || futex_wake_is_traceable());
        configure(&mut open, &target, &plan, topology)?;
        let mut seen = statements.as_ref().filter(|_| !without_probes);
        if !seen.map_or(Ok(false), |seen| seen.prepare(&mut open, &target))? {
            seen = None;
        }
        let has_multi = uprobe_multi_works();
        open.progs.latch_sites.set_autoload(has_multi);
        open.progs.latch_site.set_autoload(!has_multi);
        open.progs.futex_wait_enter.set_autoload(traceable);
        open.progs.futex_wait_exit.set_autoload(traceable);
        open.progs.observe.set_autoload(stacks_are_shown() || without_probes);
        open.progs.futex_wake_enter.set_autoload(traceable && topology.is_some());
        let skel = open.load().context("loading the latch programs into the kernel")?;
        fill(&skel, &target, &plan)?;
        seen.map(|seen| seen.begin(&skel)).transpose()?;
        let maps = Arc::new(Maps::of(&skel)?);
        let groups = (0..=plan.groups.len()).map(|_| Links::default()).collect();
        let exe = target.exe();
        let mut attacher = Attacher {
            skel,
            has_multi,
            target,
            plan,
            exe,
            status,
            maps: Arc::clone(&maps),
            thread_exit: None,
            traces_system_calls: false,
            pthread_rests: false,
            sees_wakes: topology.is_some(),
            groups,
            sampler: None,
            without_probes,
            stacks: None,
            statements,
            removals: Vec::new(),
            refused: Vec::new(),
        };
        if without_probes {
            attacher.read_stacks()?;
            return Ok((attacher, Attached { refused: Vec::new(), sees_sleeps: true, sees_wakes: false, maps }));
        }
        attacher.attach_thread_exit();
        attacher.put_all_on();
        let (sees_sleeps, sees_waits) =
            (attacher.is_on(attacher.pthread()), attacher.groups[..attacher.pthread()].iter().any(Links::are_on));
        let wants_sleeps_only = attacher.plan.sites.is_empty();
        let refused = attacher.refused.iter();
        let refused: Vec<Refusal<String>> = refused.map(|refusal| attacher.named(refusal)).collect();
        let is_useful = sees_waits || (wants_sleeps_only && sees_sleeps);
        if !is_useful {
            let Refusal { probe: first, why } = refused.into_iter().next().context("there is nothing to probe")?;
            anyhow::bail!(NoProbe { first, why });
        }
        let sees_wakes = sees_sleeps && attacher.sees_wakes;
        Ok((attacher, Attached { refused, sees_sleeps, sees_wakes, maps }))
    }

    /// Returns the number of groups, with the futex programs.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Returns the group of the futex programs.
    pub fn pthread(&self) -> usize {
        self.plan.groups.len()
    }

    fn attach_thread_exit(&mut self) {
        let link = self.skel.progs.thread_exit.attach_raw_tracepoint("sched_process_exit");
        match link {
            Ok(link) => self.thread_exit = Some(link.into()),
            Err(error) => self.refuse(Probe::Tracepoint(Tracepoint::ThreadExit), error.to_string()),
        }
    }

    /// Attaches a group that is off. From then on its waits are counted, until [`Attacher::end_turn_at`] says
    /// otherwise.
    pub fn put_on(&mut self, group: usize) {
        self.let_samples_see_waits(true);
        if group == self.pthread() {
            self.put_pthread_on();
        } else {
            self.put_sites_on(group);
        }
        self.count_again(group);
    }

    /// Counts the waits of a group that is on, from now on.
    pub fn count_again(&self, group: usize) {
        self.count_until(group, u64::MAX);
    }

    /// Stops counting the waits of a group that begin at this time or later. Detaching its probes takes a while, and
    /// nobody knows how long, so a turn ends by the clock.
    pub fn end_turn_at(&self, group: usize, end: Instant) {
        let left = end.saturating_duration_since(Instant::now());
        self.count_until(group, now_ns(libc::CLOCK_MONOTONIC) + left.as_nanos() as u64);
    }

    fn count_until(&self, group: usize, until_ns: u64) {
        self.sampler.iter().for_each(|sampler| sampler.note_turn(group, until_ns));
        for function in self.functions_of(group) {
            self.maps.update_attachment(function, |a| a.until_ns = until_ns);
        }
    }

    /// Attaches both futex programs or none, because one of them alone measures nothing.
    fn put_pthread_on(&mut self) {
        if std::mem::take(&mut self.pthread_rests) {
            self.maps.update_attachment(PTHREAD, |a| a.rests = 0);
            self.note_switch();
            return;
        }
        let progs = &self.skel.progs;
        let futex = attach_futex(&FutexPrograms {
            function: futex_wait_is_traceable().then_some([&progs.futex_wait_enter, &progs.futex_wait_exit]),
            system_call: [&progs.futex_enter, &progs.futex_exit],
        });
        self.traces_system_calls = futex.on_system_call;
        let group = self.pthread();
        match futex.links {
            [Ok(enter), Ok(exit)] => {
                let mut begins = vec![enter.into()];
                begins.extend(self.attach_wakes(futex.on_system_call));
                self.groups[group] = Links { begins, ends: vec![exit.into()] };
                self.note_switch();
            }
            links => {
                let why = links.into_iter().find_map(Result::err).map_or_else(String::new, |e| e.to_string());
                for tracepoint in [Tracepoint::FutexEnter, Tracepoint::FutexExit] {
                    self.refuse(Probe::Tracepoint(tracepoint), why.clone());
                }
            }
        }
    }

    /// Attaches the program that sees which threads wake waiters. Programs on the system call see this anyway.
    fn attach_wakes(&mut self, on_system_call: bool) -> Option<Link> {
        if !self.sees_wakes || on_system_call {
            return None;
        }
        let link = self.skel.progs.futex_wake_enter.attach_trace();
        link.inspect_err(|error| self.refuse(Probe::Tracepoint(Tracepoint::FutexWake), error.to_string()))
            .ok()
            .map(Link::from)
    }

    /// Tells the programs that the futex programs are on, or are about to be switched off.
    fn note_switch(&self) {
        self.maps.update_attachment(PTHREAD, |a| a.switches = a.switches.wrapping_add(1));
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
            .filter(|(i, s)| wanted(s) && !self.is_refused(Probe::Site(*i)))
            .map(|(i, s)| SiteAddress { file_offset: s.file_offset, cookie: i as u64 })
            .collect();
        let progs = &self.skel.progs;
        let programs = SitePrograms {
            multi: self.has_multi.then_some(&progs.latch_sites),
            single: (!self.has_multi).then_some(&progs.latch_site),
            retprobe: at_return,
        };
        let attached = attach_sites(&programs, self.target.pid, &self.exe, &sites);
        for refusal in attached.refused {
            self.refuse(Probe::Site(refusal.probe as usize), refusal.why);
        }
        attached.links
    }

    fn is_refused(&self, probe: Probe) -> bool {
        self.refused.iter().any(|refusal| refusal.probe == probe)
    }

    fn refuse(&mut self, probe: Probe, why: String) {
        if !self.is_refused(probe) {
            self.refused.push(Refusal { probe, why });
        }
    }

    fn named(&self, refusal: &Refusal<Probe>) -> Refusal<String> {
        let probe = match refusal.probe {
            Probe::Site(site) => self.plan.sites[site].name.clone(),
            Probe::Tracepoint(tracepoint) => tracepoint.to_string(),
        };
        Refusal { probe, why: refusal.why.clone() }
    }

    /// If some end of a wait was refused, its beginnings must not be attached: its waits would seem to last until the
    /// thread's next one.
    fn refuse_functions_without_end(&mut self, group: usize) {
        let plan = Arc::clone(&self.plan);
        let of_group = || plan.groups[group].iter().map(|&i| (i, &plan.sites[i]));
        let is_endless = |(i, site): &(usize, &PlannedSite)| !site.is_begin() && self.is_refused(Probe::Site(*i));
        let endless: HashSet<usize> = of_group().filter(is_endless).map(|(_, site)| site.wait).collect();
        for (i, _) in of_group().filter(|(_, site)| site.is_begin() && endless.contains(&site.wait)) {
            self.refuse(Probe::Site(i), "its end could not be probed".to_owned());
        }
    }

    pub fn is_on(&self, group: usize) -> bool {
        let rests = group == self.pthread() && self.pthread_rests;
        self.groups[group].are_on() && !rests
    }

    /// Returns the wait functions of a group, or the number that represents the C library.
    pub fn functions_of(&self, group: usize) -> HashSet<u8> {
        if group == self.pthread() {
            return HashSet::from([PTHREAD]);
        }
        self.plan.functions_of(group)
    }

    /// Begins to read the threads' stacks.
    ///
    /// # Errors
    /// Fails if the kernel refuses, or if no thread can be started.
    fn read_stacks(&mut self) -> Result<()> {
        let link = looks::attach(&self.skel.progs.observe, self.target.pid);
        let link = link.context("looking at the server's threads")?;
        self.stacks = Some(StackSampler::start(self.begin_looks(link))?);
        Ok(())
    }

    /// Returns what makes looks with an attached program, once that is needed: it reads the code of wait functions.
    fn begin_looks(&self, link: libbpf_rs::Link) -> impl FnOnce() -> Looker + Send + 'static {
        let (target, plan, status) = (Arc::clone(&self.target), Arc::clone(&self.plan), Arc::clone(&self.status));
        let (statements, is_checked) = (self.statements.clone(), !self.without_probes);
        move || {
            let statements = statements.and_then(|seen| StatementSampler::new(&target, &seen));
            Looker::new(link, &target, &plan, status, statements, is_checked)
        }
    }

    /// Takes the statements that waited out of the kernel.
    pub fn take_statements(&self) {
        self.statements.iter().for_each(|seen| seen.take());
    }

    /// Whether no probe is to be attached.
    pub fn is_without_probes(&self) -> bool {
        self.without_probes
    }

    /// Returns what the stacks have shown since the last call, if they are read.
    pub fn take_seen(&self) -> Option<Sampled> {
        self.stacks.as_ref().map(StackSampler::take)
    }

    /// Returns whether a group has anything to attach.
    pub fn can_be_on(&self, group: usize) -> bool {
        if self.without_probes {
            return false;
        }
        if group == self.pthread() {
            return !self.is_refused(Probe::Tracepoint(Tracepoint::FutexEnter));
        }
        self.plan.groups[group].iter().any(|&i| self.plan.sites[i].is_begin() && !self.is_refused(Probe::Site(i)))
    }

    /// Switches a group off for a while, without waiting until the kernel has finished. Its beginnings are detached
    /// first, so that most waits whose beginning was seen are also seen to end.
    pub fn take_off(&mut self, group: usize) {
        self.end_turn_at(group, Instant::now());
        if group == self.pthread() {
            self.note_switch();
            if !self.traces_system_calls {
                self.let_pthread_rest();
                return;
            }
        }
        let Links { begins, ends } = std::mem::take(&mut self.groups[group]);
        let maps = Arc::clone(&self.maps);
        let functions = self.functions_of(group);
        let removal = Worker::start("detach", move |stop| {
            let removal = Worker::start("begins", move |_| detach_all(begins));
            let since = Instant::now();
            thread::sleep(LAST_WAITS);
            while maps.has_open_waits(&functions) && since.elapsed() < LONGEST_WAITS && stop.wait(LAST_WAITS) {}
            for function in functions {
                maps.update_attachment(function, |a| a.generation = a.generation.wrapping_add(1));
            }
            detach_all(ends);
            removal.into_iter().for_each(Worker::end);
        });
        match removal {
            Ok(removal) => self.removals.push(removal),
            // Links that no thread takes are dropped, which detaches them.
            Err(error) => tracing::warn!("probes were detached together, which loses open waits: {error}"),
        }
    }

    /// Switches the futex programs off without detaching them.
    fn let_pthread_rest(&mut self) {
        self.pthread_rests = true;
        let maps = Arc::clone(&self.maps);
        let rest = |maps: &Maps| {
            maps.update_attachment(PTHREAD, |a| {
                a.generation = a.generation.wrapping_add(1);
                a.rests = 1;
            });
        };
        let later = Worker::start("rest", move |_| {
            thread::sleep(LAST_WAITS);
            rest(&maps);
        });
        match later {
            Ok(later) => self.removals.push(later),
            Err(error) => {
                rest(&self.maps);
                tracing::warn!("the futex programs were switched off at once, which loses open waits: {error}");
            }
        }
    }

    /// Waits until the kernel has finished detaching.
    pub fn finish_removals(&mut self) {
        self.removals.drain(..).for_each(Worker::end);
        let some_are_on = (0..self.groups()).any(|group| self.is_on(group));
        self.let_samples_see_waits(some_are_on);
    }

    /// Says whether probes see any waits.
    fn let_samples_see_waits(&mut self, they_do: bool) {
        if let Some(bss) = &mut self.skel.maps.bss_data {
            bss.sees_waits = they_do;
        }
    }

    pub fn set_states(&self, state: impl Fn(usize) -> ProbeState) {
        if self.without_probes {
            return;
        }
        let states =
            self.plan.probes.iter().map(|probe| match probe.sites.iter().all(|&i| self.is_refused(Probe::Site(i))) {
                true => ProbeState::Failed,
                false => state(self.plan.group_of(probe)),
            });
        let states = states.collect();
        *self.status.probes.lock() = states;
        let futex = state(self.pthread());
        let mut states = vec![
            (Tracepoint::FutexEnter, futex),
            (Tracepoint::FutexExit, futex),
            (Tracepoint::ThreadExit, ProbeState::Attached),
        ];
        if self.sees_wakes && !self.traces_system_calls {
            states.push((Tracepoint::FutexWake, futex));
        }
        for (tracepoint, state) in &mut states {
            if self.is_refused(Probe::Tracepoint(*tracepoint)) {
                *state = ProbeState::Failed;
            }
        }
        *self.status.tracepoints.lock() = states;
    }

    /// Samples the server's threads from now on, for which this many CPUs may be used, if the kernel allows it.
    /// `some_are_off` says whether some probes are off at times.
    pub fn sample_threads(&mut self, cpus: f64, some_are_off: bool) {
        if self.without_probes {
            // After a pause.
            if self.stacks.is_none() {
                let read = self.read_stacks();
                _ = read.inspect_err(|error| tracing::error!("waits are no longer measured: {error:#}"));
            }
            return self.stacks.iter().for_each(|stacks| stacks.allow(cpus));
        }
        if self.sampler.is_none() && cpus > 0.0 && stacks_are_shown() {
            self.start_sampling();
        }
        self.sampler.iter().for_each(|sampler| sampler.allow(cpus, some_are_off));
    }

    fn start_sampling(&mut self) {
        let is_readable = |function: &u8| *function == PTHREAD || is_on_stacks(&self.target, *function);
        let of = |group| {
            let functions = self.functions_of(group);
            let are_readable = functions.iter().all(is_readable);
            (functions.into_iter().collect::<Vec<u8>>(), are_readable)
        };
        let groups: Vec<_> = (0..self.groups()).map(of).collect();
        let started = self.start_sampler(&groups);
        self.sampler = started.inspect_err(|error| tracing::warn!("threads are not sampled: {error:#}")).ok();
        for group in (0..self.groups()).filter(|group| self.is_on(*group)) {
            self.sampler.iter().for_each(|sampler| sampler.note_turn(group, u64::MAX));
        }
    }

    fn start_sampler(&self, groups: &[(Vec<u8>, bool)]) -> Result<Sampler> {
        let link = looks::attach(&self.skel.progs.observe, self.target.pid)?;
        let words = MapHandle::try_from(&self.skel.maps.words)?;
        let (looker, target) = (self.begin_looks(link), Arc::clone(&self.target));
        let (maps, status) = (Arc::clone(&self.maps), Arc::clone(&self.status));
        let begin = move || {
            let glancer = Glancer::load(&target, maps, status);
            memory::give_back();
            (looker(), glancer.inspect_err(|error| tracing::debug!("no glances at threads: {error:#}")).ok())
        };
        Ok(Sampler::start(begin, words, groups)?)
    }

    /// Returns what the threads have shown since the last call, if they are sampled.
    pub fn take_samples(&mut self) -> Option<Samples> {
        self.sampler.as_mut().map(Sampler::take)
    }

    /// Stops sampling threads.
    pub fn stop_sampling(&mut self) {
        self.sampler = None;
        self.stacks = None;
    }

    /// Switches all groups off, and returns when the kernel has finished.
    pub fn take_all_off(&mut self) {
        self.stop_sampling();
        for group in 0..self.groups.len() {
            if self.is_on(group) {
                self.take_off(group);
            }
        }
        self.finish_removals();
        self.set_states(|_| ProbeState::Detached);
    }

    /// Switches on all groups that can be on.
    pub fn put_all_on(&mut self) {
        // Begin with sleeps: a wait that begins before they are measured would count as spinning.
        for group in (0..self.groups.len()).rev() {
            if !self.is_on(group) && self.can_be_on(group) {
                self.put_on(group);
            }
        }
        self.set_states(|_| ProbeState::Attached);
    }

    /// Tells the programs which groups are off at times.
    pub fn announce(&self, turns: &[Turn]) {
        for (group, turn) in turns.iter().enumerate() {
            for function in self.functions_of(group) {
                self.maps.update_attachment(function, |a| a.by_turns = u32::from(*turn != Turn::Always));
            }
        }
    }

    /// Detaches all probes concurrently, because each removal waits for a grace period of the kernel.
    pub fn detach(mut self) {
        self.stop_sampling();
        let groups = std::mem::take(&mut self.groups);
        let links = groups.into_iter().flat_map(|links| links.begins.into_iter().chain(links.ends));
        detach_all(self.thread_exit.take().into_iter().chain(links).collect());
        self.finish_removals();
    }
}

/// Whether all threads that wait in a wait function have it on their stacks, and not only some of its inlined copies.
fn is_on_stacks(target: &Target, function: u8) -> bool {
    let functions = target.family.wait_functions;
    functions.get(usize::from(function)).is_some_and(|of| matches!(of.shape, Shape::Whole | Shape::Contended { .. }))
}
