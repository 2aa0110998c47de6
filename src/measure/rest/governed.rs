//! Keeps the probes of one measurement within their part of the budget.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use parking_lot::Mutex;

use super::phase::{Phase, Rest, Used, REST};
use crate::attach::Costs;
use crate::model::{ProbeState, ProbeStatus};
use crate::server::{cpu_time_ns, Target};

/// Probes that can be detached for a while.
pub(in crate::measure) trait Probes {
    /// What they measure, and what that is when it is too frequent: the beginning of a warning.
    const FREQUENT: &'static str;
    /// The part of the budget that they may take, 0 to 1.
    const PART: f64;

    /// Attaches them if they are detached.
    fn attach_again(&self);

    /// Returns when they are detached. What goes on then is forgotten.
    fn detach(&self);

    /// Returns whether they are attached.
    fn are_attached(&self) -> bool;

    /// Returns the CPU time that they are charged so far, in nanoseconds: too much rather than too little.
    ///
    /// # Errors
    /// Fails when the hits cannot be read.
    fn charged_ns(&self, costs: &Costs) -> Result<f64>;

    /// Called every half second while they are attached, with the part that they took of what they may take since the
    /// last time.
    fn adapt(&self, _part: f64) {}

    /// Returns them, in this state, with their hits.
    ///
    /// # Errors
    /// Fails when the hits cannot be read.
    fn status(&self, state: ProbeState, costs: Option<&Costs>) -> Result<Vec<ProbeStatus>>;
}

/// Probes, and whether they rest.
pub(in crate::measure) struct Governed<P> {
    target: Arc<Target>,
    pub probes: P,
    state: Mutex<State>,
}

struct State {
    rest: Rest,
    /// What hits cost; `None` until that is measured.
    costs: Option<Costs>,
    is_paused: bool,
    /// Whether they are detached for good.
    is_over: bool,
    /// How often they have rested.
    rests: u64,
    /// For how long nothing was measured therefore.
    rested: Duration,
    /// When they were last looked at.
    looked: Instant,
    /// Whether they have rested, and not only by a price that was assumed. It was said then.
    have_rested: bool,
}

impl<P: Probes> Governed<P> {
    /// Begins with probes that are attached to `target`, within a budget of `max_overhead`, 0 to 1.
    ///
    /// # Errors
    /// Fails when the hits cannot be read.
    pub fn new(target: Arc<Target>, probes: P, max_overhead: f64) -> Result<Governed<P>> {
        let rest = Rest::new(P::PART * max_overhead, used(&target, &probes, None)?);
        let state = State {
            rest,
            costs: None,
            is_paused: false,
            is_over: false,
            rests: 0,
            rested: Duration::ZERO,
            looked: Instant::now(),
            have_rested: false,
        };
        Ok(Governed { target, probes, state: Mutex::new(state) })
    }

    /// Lets the probes rest if they cost too much, or attaches them again.
    ///
    /// # Errors
    /// Fails when the hits cannot be read.
    pub fn check(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.is_paused || self.target.ended() {
            return Ok(());
        }
        let before = state.rest.phase();
        let now = used(&self.target, &self.probes, state.costs.as_ref())?;
        state.note_time(before, now.at);
        if state.costs.is_some() && !matches!(before, Phase::Rests(_)) {
            self.probes.adapt(state.rest.part_taken(now));
        }
        match (before, state.rest.look(now)) {
            (Phase::Measures | Phase::Tries(_), Phase::Rests(_)) => {
                self.probes.detach();
                state.note_rest(P::FREQUENT);
            }
            (Phase::Rests(_), Phase::Tries(_)) => self.attach(&state),
            _ => {}
        }
        Ok(())
    }

    /// Goes by these costs from now on.
    pub fn limit(&self, costs: &Costs) {
        let mut state = self.state.lock();
        let Ok(now) = used(&self.target, &self.probes, Some(costs)) else { return };
        let phase = state.rest.phase();
        state.note_time(phase, now.at);
        match state.costs.replace(*costs) {
            None => state.rest.begin_anew(now),
            Some(_) => state.rest.go_on(now),
        }
        self.attach(&state);
    }

    /// Attaches the probes, unless they are to be detached.
    fn attach(&self, state: &State) {
        let may_be_on = !state.is_paused && !state.is_over && !matches!(state.rest.phase(), Phase::Rests(_));
        if may_be_on && !self.target.ended() {
            self.probes.attach_again();
        }
    }

    /// Detaches the probes for a while.
    pub fn pause(&self) {
        self.state.lock().is_paused = true;
        self.probes.detach();
    }

    /// Attaches the probes again, unless they rest.
    pub fn resume(&self) {
        let mut state = self.state.lock();
        state.is_paused = false;
        state.looked = Instant::now();
        if let Ok(now) = used(&self.target, &self.probes, state.costs.as_ref()) {
            state.rest.go_on(now);
        }
        self.attach(&state);
    }

    /// Detaches the probes for good.
    pub fn end(&self) {
        self.state.lock().is_over = true;
        self.probes.detach();
    }

    /// Returns how often the probes have rested, unless what they count is to be hidden at the moment, because rests
    /// cut it into pieces; and for how long nothing was measured so far.
    pub fn rests(&self) -> (Option<u64>, Duration) {
        let state = self.state.lock();
        ((state.rest.phase() == Phase::Measures).then_some(state.rests), state.rested)
    }

    /// Returns the probes with their hits.
    pub fn status(&self, costs: Option<&Costs>) -> Result<Vec<ProbeStatus>> {
        let have_rested = self.state.lock().have_rested;
        let state = match self.probes.are_attached() {
            true if have_rested => ProbeState::DutyCycle,
            true => ProbeState::Attached,
            false => ProbeState::Detached,
        };
        self.probes.status(state, costs)
    }
}

impl State {
    /// Adds the time since they were last looked at to that in which nothing is measured, if that was so.
    fn note_time(&mut self, phase: Phase, now: Instant) {
        let elapsed = now.saturating_duration_since(std::mem::replace(&mut self.looked, now));
        if phase != Phase::Measures {
            self.rested += elapsed;
        }
    }

    /// Notes that the probes rest, and says it once. A rest by assumed prices ends soon, as a rule.
    fn note_rest(&mut self, frequent: &str) {
        self.rests += 1;
        if (self.costs.is_some() || self.rests > 1) && !std::mem::replace(&mut self.have_rested, true) {
            let minutes = REST.as_secs() / 60;
            tracing::warn!(
                "{frequent} are so frequent that their probes take more than their part of the budget: they are not \
                 measured for {minutes} minutes at a time. A higher --max-overhead measures them"
            );
        }
    }
}

fn used(target: &Target, probes: &impl Probes, costs: Option<&Costs>) -> Result<Used> {
    let server_ns = cpu_time_ns(target.pid).unwrap_or_default();
    let charged_ns = probes.charged_ns(costs.unwrap_or(&Costs::default()))?;
    Ok(Used { at: Instant::now(), server_ns, charged_ns })
}
