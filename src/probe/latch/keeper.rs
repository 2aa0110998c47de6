//! The thread that holds the programs on a server: it attaches them, takes groups of them off and puts them back as the
//! overhead budget wants, and takes all off in the end.
//!
//! A group is a set of wait functions of which one calls another: their waits are nested, so that only together they can
//! be missing.

use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject, TracepointCategory};

use super::collect::{hits, TRACEPOINTS};
use super::missed::Missed;
use super::plan::MAX_FUNCTIONS;
use super::{configure, library, write_other_pages, write_sites, Maps, Plan, PlannedSite};
use crate::attach::{
    attach_futex, attach_sites, futex_wait_is_traceable, uprobe_multi_works, Costs, FutexPrograms, Governor,
    ProbeClass, SiteAddress, SitePrograms, Usage, PERIOD,
};
use crate::bpf::latch::{types, LatchSkel, LatchSkelBuilder};
use crate::model::ProbeState;
use crate::target::{cpu_time_ns, Target};

/// How long the ends of waits stay attached after the begins have gone.
const LAST_WAITS: Duration = Duration::from_millis(20);

/// What the thread is told. It ends when nobody is left to tell it anything.
pub(super) enum Command {
    /// Keep the probes within this share of the server's CPU time (0 to 1), with hits at these costs.
    Govern(Costs, f64),
    /// Take everything off.
    Detach,
}

/// What others may know of the probes.
#[derive(Default)]
pub(crate) struct Status {
    /// By site, in the plan's order.
    pub sites: Mutex<Vec<ProbeState>>,
    /// What is estimated, because probes were off.
    pub missed: Mutex<Missed>,
}

/// What attaching came to.
pub(super) struct Attached {
    /// Names of the sites that the kernel refused, and why.
    pub refused: Vec<(String, String)>,
    /// Which of [`TRACEPOINTS`] are attached.
    pub tracepoints: [bool; 3],
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
    fixed: Vec<Link>,
    groups: Vec<Links>,
    /// Threads that take groups off.
    removals: Vec<JoinHandle<()>>,
    refused: Vec<(String, String)>,
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
        status: Arc<Status>,
    ) -> Result<(Keeper<'obj>, Attached)> {
        let mut open = LatchSkelBuilder::default().open(storage).context("opening the latch programs")?;
        configure(&mut open, &target, &plan)?;
        let has_multi = uprobe_multi_works();
        open.progs.latch_sites.set_autoload(has_multi);
        open.progs.latch_returns.set_autoload(has_multi);
        open.progs.latch_site.set_autoload(!has_multi);
        open.progs.latch_return.set_autoload(!has_multi);
        let traceable = futex_wait_is_traceable();
        open.progs.futex_wait_enter.set_autoload(traceable);
        open.progs.futex_wait_exit.set_autoload(traceable);
        let skel = open.load().context("loading the latch programs into the kernel")?;
        fill(&skel, &target, &plan)?;
        let maps = Arc::new(Maps::of(&skel)?);
        let groups = plan.groups.iter().map(|_| Links::default()).collect();
        let exe = target.exe();
        let mut keeper = Keeper {
            skel,
            has_multi,
            target,
            plan,
            exe,
            status,
            maps: Arc::clone(&maps),
            fixed: Vec::new(),
            groups,
            removals: Vec::new(),
            refused: Vec::new(),
        };
        // Sleeps first: a wait that begins before they are seen would count as spinning.
        let tracepoints = keeper.attach_fixed(traceable);
        for group in 0..keeper.groups.len() {
            keeper.put_on(group);
        }
        keeper.set_states(|_| ProbeState::Attached);
        let sees_sleeps = tracepoints[0] && tracepoints[1];
        let wants_sleeps_only = keeper.plan.sites.is_empty();
        if keeper.groups.iter().all(|links| links.begins.is_empty()) && !(wants_sleeps_only && sees_sleeps) {
            let (site, why) = keeper.refused.first().cloned().unwrap_or_default();
            anyhow::bail!("no probe could be attached; the first, {site}: {why}");
        }
        let refused = keeper.refused.clone();
        Ok((keeper, Attached { refused, tracepoints, maps }))
    }

    /// What is attached as long as the agent is: futex waits and the ends of threads.
    fn attach_fixed(&mut self, traceable: bool) -> [bool; 3] {
        let progs = &self.skel.progs;
        let [enter, exit] = attach_futex(&FutexPrograms {
            function: traceable.then_some([&progs.futex_wait_enter, &progs.futex_wait_exit]),
            system_call: [&progs.futex_enter, &progs.futex_exit],
        });
        let thread_exit = progs.thread_exit.attach_tracepoint(TracepointCategory::Sched, "sched_process_exit");
        let mut attached = [false; 3];
        for (i, link) in [enter, exit, thread_exit].into_iter().enumerate() {
            match link {
                Ok(link) => {
                    self.fixed.push(link);
                    attached[i] = true;
                }
                Err(error) => self.refused.push((TRACEPOINTS[i].to_owned(), error.to_string())),
            }
        }
        attached
    }

    /// Attaches a group that is off.
    fn put_on(&mut self, group: usize) {
        // Ends before begins: a wait that begins while they are attached must not miss its end.
        let mut ends = self.attach_where(group, true, |s| s.at_return);
        ends.extend(self.attach_where(group, false, |s| !s.at_return && !s.is_begin()));
        self.refuse_functions_without_end(group);
        let begins = self.attach_where(group, false, PlannedSite::is_begin);
        self.groups[group] = Links { begins, ends };
    }

    /// Attaches the group's sites that are wanted and were not refused before.
    fn attach_where(&mut self, group: usize, at_return: bool, wanted: impl Fn(&PlannedSite) -> bool) -> Vec<Link> {
        let sites: Vec<SiteAddress> = self.plan.groups[group]
            .iter()
            .map(|&i| (i, &self.plan.sites[i]))
            .filter(|(_, s)| wanted(s) && !self.is_refused(s))
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
            self.refused.push((self.plan.sites[cookie as usize].name.clone(), why));
        }
        attached.links
    }

    fn is_refused(&self, site: &PlannedSite) -> bool {
        self.refused.iter().any(|(name, _)| *name == site.name)
    }

    /// Wait functions of which some end was refused: their begins must not be attached, or their waits would seem to
    /// last until the thread's next one.
    fn refuse_functions_without_end(&mut self, group: usize) {
        let sites = || self.plan.groups[group].iter().map(|&i| &self.plan.sites[i]);
        let endless: Vec<u8> =
            sites().filter(|s| !s.is_begin() && self.is_refused(s)).map(PlannedSite::function).collect();
        let begins: Vec<String> = sites()
            .filter(|s| s.is_begin() && endless.contains(&s.function()) && !self.is_refused(s))
            .map(|s| s.name.clone())
            .collect();
        self.refused.extend(begins.into_iter().map(|name| (name, "its end could not be probed".to_owned())));
    }

    fn is_on(&self, group: usize) -> bool {
        !self.groups[group].begins.is_empty()
    }

    /// Whether there is anything to attach in a group.
    fn can_be_on(&self, group: usize) -> bool {
        self.plan.groups[group].iter().map(|&i| &self.plan.sites[i]).any(|s| s.is_begin() && !self.is_refused(s))
    }

    /// Takes a group off for a while, without waiting until the kernel is done with it. Its begins go first, so that most
    /// waits that were seen to begin are seen to end.
    fn take_off(&mut self, group: usize) {
        let Links { begins, ends } = std::mem::take(&mut self.groups[group]);
        let maps = Arc::clone(&self.maps);
        let functions = self.plan.functions_of(group);
        self.removals.push(thread::spawn(move || {
            let removal = thread::spawn(move || drop_all(begins));
            thread::sleep(LAST_WAITS);
            for function in functions {
                maps.update_attachment(function, |a| a.generation = a.generation.wrapping_add(1));
            }
            drop_all(ends);
            _ = removal.join();
        }));
    }

    /// Waits until the kernel is done with what was taken off.
    fn finish_removals(&mut self) {
        for removal in self.removals.drain(..) {
            _ = removal.join();
        }
    }

    /// Lets the programs know which groups are off at times.
    fn announce(&self, turns: &[f64]) {
        for (group, turn) in turns.iter().enumerate() {
            for function in self.plan.functions_of(group) {
                self.maps.update_attachment(function, |a| a.by_turns = u32::from(*turn < 1.0));
            }
        }
    }

    fn set_states(&self, state: impl Fn(usize) -> ProbeState) {
        let mut states = vec![ProbeState::Failed; self.plan.sites.len()];
        for (group, sites) in self.plan.groups.iter().enumerate() {
            for &site in sites.iter().filter(|&&i| !self.is_refused(&self.plan.sites[i])) {
                states[site] = state(group);
            }
        }
        *self.status.sites.lock().unwrap_or_else(PoisonError::into_inner) = states;
    }

    /// Does what it is told until it is told to detach, and detaches.
    pub fn run(mut self, commands: &Receiver<Command>) {
        if let Ok(Command::Govern(costs, budget)) = commands.recv() {
            if let Err(error) = self.govern(&costs, budget, commands) {
                tracing::error!("the overhead budget is not kept any more: {error:#}");
                // Whatever is on stays on: none of it was over the budget when that was last looked at.
                _ = commands.recv();
            }
        }
        self.detach();
    }

    /// Keeps the budget until told to detach.
    fn govern(&mut self, costs: &Costs, budget: f64, commands: &Receiver<Command>) -> Result<()> {
        let mut governor = Governor::new(budget, self.groups.len());
        let mut turns = vec![1.0; self.groups.len()];
        let mut meter = Meter::new(self, costs)?;
        let mut owed = vec![Owed::new(); self.groups.len()];
        loop {
            let Some(attached) = self.period(&turns, commands) else { return Ok(()) };
            for (owed, attached) in owed.iter_mut().zip(&attached) {
                owed.add(*attached);
            }
            let usage = meter.read(self, &attached)?;
            let next = governor.turns(usage.server_cpu, usage.fixed, &usage.groups);
            // Also before the first turns: what was seen until then is nothing to scale up.
            if turns.iter().chain(&next).any(|turn| *turn < 1.0) {
                self.settle(&mut owed)?;
            }
            turns = next;
            self.announce(&turns);
            self.set_states(|group| match turns[group] {
                1.0.. => ProbeState::Attached,
                0.0 => ProbeState::Detached,
                _ => ProbeState::DutyCycle,
            });
        }
    }

    /// One period, in which each group has its turn. For how long each was attached, where that was not all the time;
    /// nothing if told to detach.
    fn period(&mut self, turns: &[f64], commands: &Receiver<Command>) -> Option<Vec<Option<Duration>>> {
        let begin = Instant::now();
        let mut order: Vec<usize> = (0..turns.len()).collect();
        order.sort_by(|&a, &b| turns[a].total_cmp(&turns[b]));
        let mut on_since: Vec<Option<Instant>> = vec![None; turns.len()];
        let mut attached = vec![None; turns.len()];
        for &group in &order {
            if turns[group] > 0.0 && !self.is_on(group) && self.can_be_on(group) {
                self.put_on(group);
                on_since[group] = Some(Instant::now());
            } else if turns[group] < 1.0 && self.is_on(group) {
                // Over the budget all the time so far.
                self.take_off(group);
            }
        }
        for &group in order.iter().filter(|&&g| turns[g] < 1.0) {
            attached[group] = Some(Duration::ZERO);
            let Some(since) = on_since[group].take() else { continue };
            if told_to_detach(commands, since + PERIOD.mul_f64(turns[group])) {
                return None;
            }
            attached[group] = Some(since.elapsed());
            self.take_off(group);
        }
        if told_to_detach(commands, begin + PERIOD) {
            return None;
        }
        self.finish_removals();
        // Back for good, but not from the beginning.
        for group in 0..turns.len() {
            if let Some(since) = on_since[group] {
                attached[group] = Some(since.elapsed());
            }
        }
        Some(attached)
    }

    /// Scales up what was seen by groups that were attached for only a part of the time since they were last settled.
    fn settle(&self, owed: &mut [Owed]) -> Result<()> {
        let mut factors = [0.0; MAX_FUNCTIONS];
        for (group, owed) in owed.iter_mut().enumerate().filter(|(_, o)| o.saw_anything()) {
            for function in self.plan.functions_of(group) {
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
        drop_all(std::mem::take(&mut self.fixed).into_iter().chain(links).collect());
        self.finish_removals();
    }
}

/// For how long a group was attached since what it saw was last scaled up.
#[derive(Clone)]
struct Owed {
    since: Instant,
    /// All the time, until it was off once.
    attached: Option<Duration>,
}

impl Owed {
    fn new() -> Owed {
        Owed { since: Instant::now(), attached: None }
    }

    /// One more period, in which the group was attached for so long, or all the time.
    fn add(&mut self, attached: Option<Duration>) {
        if let Some(attached) = attached {
            *self.attached.get_or_insert_default() += attached;
        } else if let Some(so_far) = &mut self.attached {
            *so_far += PERIOD;
        }
    }

    fn saw_anything(&self) -> bool {
        self.attached != Some(Duration::ZERO)
    }

    /// How many times as much as was seen was not seen.
    fn factor(&self) -> f64 {
        let more = |attached: Duration| self.since.elapsed().as_secs_f64() / attached.as_secs_f64() - 1.0;
        self.attached.map_or(0.0, more).max(0.0)
    }
}

/// Waits until then; whether told to detach meanwhile, or nobody is left to tell.
fn told_to_detach(commands: &Receiver<Command>, until: Instant) -> bool {
    loop {
        match commands.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) | Ok(Command::Detach) => return true,
            Ok(Command::Govern(..)) => {}
        }
    }
}

fn drop_all(links: Vec<Link>) {
    thread::scope(|scope| {
        for link in links {
            scope.spawn(move || drop(link));
        }
    });
}

/// What the programs know before the first of them is attached.
fn fill(skel: &LatchSkel<'_>, target: &Target, plan: &Plan) -> Result<()> {
    write_sites(&skel.maps.sites, plan)?;
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
struct Meter {
    /// Group, price in nanoseconds and whether it is an end, by site.
    sites: Vec<(usize, f64, bool)>,
    futex_ns: f64,
    last: Instant,
    hits: Vec<types::hits>,
    cpu_ns: u64,
}

/// What was used in a period, in CPUs.
struct Used {
    server_cpu: f64,
    fixed: f64,
    groups: Vec<Usage>,
}

impl Meter {
    /// # Errors
    /// When the hits cannot be read.
    fn new(keeper: &Keeper<'_>, costs: &Costs) -> Result<Meter> {
        let plan = &keeper.plan;
        let mut sites = vec![(0, 0.0, false); plan.sites.len()];
        for (group, members) in plan.groups.iter().enumerate() {
            for &i in members {
                // What could not be priced is taken to be as dear as the dearest kind.
                let price = costs.of(plan.sites[i].class()).or(costs.stepped).unwrap_or(0.0);
                sites[i] = (group, price, !plan.sites[i].is_begin());
            }
        }
        let futex_ns = costs.of(ProbeClass::Futex).unwrap_or(0.0);
        let mut meter = Meter { sites, futex_ns, last: Instant::now(), hits: Vec::new(), cpu_ns: 0 };
        meter.hits = meter.counts(keeper)?;
        meter.cpu_ns = cpu_time_ns(keeper.target.pid).unwrap_or(0);
        Ok(meter)
    }

    /// Hits so far, by site and then by tracepoint.
    fn counts(&self, keeper: &Keeper<'_>) -> Result<Vec<types::hits>> {
        let tracepoints = types::tracepoint::HIT_FUTEX_ENTER.0..=types::tracepoint::HIT_THREAD_EXIT.0;
        (0..self.sites.len() as u32).chain(tracepoints).map(|i| hits(&keeper.maps.hits, i)).collect()
    }

    fn read(&mut self, keeper: &Keeper<'_>, attached: &[Option<Duration>]) -> Result<Used> {
        let hits = self.counts(keeper)?;
        let cpu_ns = cpu_time_ns(keeper.target.pid).unwrap_or(self.cpu_ns);
        let elapsed = self.last.elapsed();
        let period_ns = elapsed.as_nanos() as f64;
        let traps = self.sites.iter().map(|&(_, trap, _)| trap).chain(std::iter::repeat(self.futex_ns));
        let cost = |((now, then), trap): ((&types::hits, &types::hits), f64)| {
            let programs = now.program_ns().saturating_sub(then.program_ns());
            (trap * now.count.saturating_sub(then.count) as f64 + programs as f64) / period_ns
        };
        let costs: Vec<f64> = hits.iter().zip(&self.hits).zip(traps).map(cost).collect();
        let mut groups: Vec<Usage> = attached
            .iter()
            .map(|a| a.map_or(1.0, |a| (a.as_secs_f64() / elapsed.as_secs_f64()).min(1.0)))
            .map(|attached| Usage { attached, ..Default::default() })
            .collect();
        for (&(group, _, is_end), &cpu) in self.sites.iter().zip(&costs) {
            groups[group].cpu += cpu;
            groups[group].held += if is_end { cpu } else { 0.0 };
        }
        let fixed = costs[self.sites.len()..].iter().sum();
        let server_cpu = cpu_ns.saturating_sub(self.cpu_ns) as f64 / period_ns;
        (self.last, self.hits, self.cpu_ns) = (Instant::now(), hits, cpu_ns);
        Ok(Used { server_cpu, fixed, groups })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_on_all_the_time_missed_nothing() {
        let mut owed = Owed { since: Instant::now() - 10 * PERIOD, attached: None };
        owed.add(None);
        assert_eq!(owed.factor(), 0.0);
    }

    #[test]
    fn what_was_on_a_quarter_of_the_time_missed_three_times_as_much() {
        let mut owed = Owed { since: Instant::now() - 4 * PERIOD, attached: None };
        for attached in [PERIOD, Duration::ZERO, Duration::ZERO, Duration::ZERO] {
            owed.add(Some(attached));
        }
        assert!((owed.factor() - 3.0).abs() < 0.1, "{}", owed.factor());
        assert!(owed.saw_anything());
    }

    #[test]
    fn what_was_off_has_to_wait_for_its_turn() {
        let mut owed = Owed::new();
        owed.add(Some(Duration::ZERO));
        assert!(!owed.saw_anything());
    }
}
