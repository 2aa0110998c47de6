//! Attributes hardware events to functions: samples the server's current instruction whenever a CPU has counted a
//! number of an event.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapHandle};

use crate::attach::{control, event, open_event, Control, Costs, Countable, ProbeClass, Scope, Skipped};
use crate::bpf::event::{types, EventSkelBuilder};
use crate::host::Machine;
use crate::measure::cpu::room;
use crate::measure::latch;
use crate::measure::maps::{add_skipped, of_cpus, sum_over_cpus, take_entries};
use crate::model::{ProbeState, ProbeStatus};
use crate::symbols::Arch;

/// The names of the causes in `enum event_lost`, in its order.
const LOST: [&str; types::event_lost::EVENT_LOST_CAUSES.0 as usize] = ["event_samples_full", "event_samples_busy"];

/// An event and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// The vendor's name.
    pub name: &'static str,
    /// The event as the kernel takes it.
    pub what: Countable,
}

/// An event that happened in a process outside of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The event, by [`Sampled::name`].
    pub event: &'static str,
    /// The address of the instruction that the CPU had reached, a few instructions after the one that caused the event.
    pub address: u64,
    /// The number that the CPU had counted since the previous sample.
    pub count: u64,
}

/// Samples events of one process on all CPUs. Dropping it stops the sampling.
pub struct EventSampler {
    events: Vec<Sampled>,
    hz: u32,
    program: OwnedFd,
    skipped: Skipped,
    samples: MapHandle,
    hits: MapHandle,
    lost: MapHandle,
    /// What each event's counter showed at the last sample.
    counts: MapHandle,
    /// One descriptor per event and CPU; empty while paused.
    running: Vec<OwnedFd>,
}

impl EventSampler {
    /// Samples each event about `hz` times per second on every CPU.
    ///
    /// # Errors
    /// Fails when the program cannot be loaded, or when an event cannot be opened on each CPU.
    pub fn start(pid: i32, arch: Arch, events: Vec<Sampled>, hz: u32) -> Result<EventSampler> {
        let mut storage = MaybeUninit::uninit();
        let mut open = EventSkelBuilder::default().open(&mut storage).context("opening the program for events")?;
        let rodata = open.maps.rodata_data.as_deref_mut().context("the program has no constants")?;
        rodata.target_tgid = pid as u32;
        rodata.ip_register = u32::from(latch::ip_offset(arch));
        open.maps.event_samples.set_max_entries(room(Machine::this().online_cpus().len() * events.len(), hz))?;
        let skel = open.load().context("loading the program for events into the kernel")?;
        let mut sampler = EventSampler {
            program: skel.progs.event_sample.as_fd().try_clone_to_owned()?,
            skipped: Skipped::of(skel.object().progs())?,
            samples: MapHandle::try_from(&skel.maps.event_samples)?,
            hits: MapHandle::try_from(&skel.maps.event_hits)?,
            lost: MapHandle::try_from(&skel.maps.lost_events)?,
            counts: MapHandle::try_from(&skel.maps.event_counts)?,
            running: Vec::new(),
            events,
            hz,
        };
        sampler.resume()?;
        Ok(sampler)
    }

    /// Stops interrupting CPUs until [`EventSampler::resume`].
    pub fn pause(&mut self) {
        self.running.clear();
    }

    /// Resumes sampling.
    ///
    /// # Errors
    /// Fails when an event cannot be opened on each CPU.
    pub fn resume(&mut self) -> Result<()> {
        // The new counters begin at 0.
        for key in self.counts.keys().collect::<Vec<_>>() {
            self.counts.delete(&key).context("forgetting an event's count")?;
        }
        // All CPUs or none, so that some CPUs do not pass for all of them.
        let mut running = Vec::new();
        for event in &self.events {
            for cpu in Machine::this().online_cpus() {
                running.push(self.run(event.what, cpu).with_context(|| format!("{} on CPU {cpu}", event.name))?);
            }
        }
        self.running = running;
        Ok(())
    }

    fn run(&self, what: Countable, cpu: i32) -> io::Result<OwnedFd> {
        let mut sampled = event(what.kind, what.config);
        sampled.__bindgen_anon_1.sample_freq = u64::from(self.hz);
        sampled.__bindgen_anon_3.config1 = what.config1;
        sampled.set_freq(1);
        sampled.set_disabled(1);
        sampled.set_exclude_kernel(1);
        sampled.set_exclude_hv(1);
        let opened = open_event(&sampled, Scope::Cpu(cpu))?;
        control(&opened, Control::SetProgram(self.program.as_fd()))?;
        control(&opened, Control::Enable)?;
        Ok(opened)
    }

    /// Returns what was sampled since the last call.
    ///
    /// # Errors
    /// Fails when the map cannot be read.
    pub fn take(&self) -> Result<Vec<Sample>> {
        let sample = |(key, count): (types::event_key, u64)| {
            let what = Countable { kind: key.kind, config: key.config, config1: key.config1 };
            let event = self.events.iter().find(|event| event.what == what).context("a sample is of another event")?;
            Ok(Sample { event: event.name, address: key.address, count })
        };
        take_entries(&self.samples)?.into_iter().map(sample).collect()
    }

    /// Adds the numbers of samples that are missing, by cause.
    ///
    /// # Errors
    /// Fails when the map cannot be read, or the kernel does not describe the program.
    pub fn add_lost(&self, lost: &mut Vec<(String, u64)>) -> Result<()> {
        for (cause, index) in LOST.iter().zip(0..) {
            lost.push(((*cause).to_owned(), sum_over_cpus(&self.lost, index)?));
        }
        add_skipped(lost, &self.skipped)
    }

    /// Returns what sampling has cost so far. An interrupt by a counter is assumed to cost as much as one by the clock.
    ///
    /// # Errors
    /// Fails when the map cannot be read.
    pub fn probe(&self, costs: Option<&Costs>) -> Result<ProbeStatus> {
        let hits = of_cpus::<types::hits>(&self.hits, 0)?;
        Ok(ProbeStatus {
            probe: "event_sample".to_owned(),
            state: if self.running.is_empty() { ProbeState::Detached } else { ProbeState::Attached },
            hits: hits.iter().map(|h| h.count).sum(),
            trap_ns: costs.and_then(|costs| costs.of(ProbeClass::Clock)),
            program_ns: hits.iter().map(|h| h.timed_ns).sum(),
        })
    }
}
