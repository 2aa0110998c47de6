//! The programs that time calls of fsync and fdatasync, attached to the kernel.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;

use anyhow::{Context, Result};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapHandle, ProgramMut};
use parking_lot::Mutex;
use strum::{EnumIter, IntoEnumIterator};

use crate::attach::{detach_all, function_is_traceable, Costs, Link, ProbeClass, Skipped};
use crate::bpf::fsync::{types, FsyncSkel, FsyncSkelBuilder, OpenFsyncSkel};
use crate::bpf::latch;
use crate::catalog::file_kind;
use crate::measure::files::FileWaits;
use crate::measure::latch::{descriptor_register, register_offset, SHADOW};
use crate::measure::maps::{add_skipped, entries, hits_over_cpus, sum_over_cpus, take_entries};
use crate::measure::rest::Probes;
use crate::model::{Histogram, ProbeState, ProbeStatus, BUCKET_BOUNDS_NS};
use crate::server::Target;
use crate::symbols::Arch;

/// The names of the causes in `enum fsync_lost`, in its order.
const LOST: [&str; types::fsync_lost::FSYNC_LOST_CAUSES.0 as usize] = ["fsync_busy", "fsync_end_not_seen"];

/// The probes of `enum fsync_probe`, in its order.
const PROBES: [&str; types::fsync_probe::FSYNC_PROBES.0 as usize] = ["fsync:begin", "fsync:end"];

/// The system calls.
const CALLS: [&str; 2] = ["fsync", "fdatasync"];

/// At least one of so many calls is timed.
const MOST_ONE_IN: u32 = 64;

/// Beyond so many names, what was counted is taken out of the map, to make room for new ones.
const MOST_NAMES: usize = types::fsync_limit::MAX_FSYNC_FILES.0 as usize / 2;

/// The programs on one server.
pub(super) struct FsyncProbes {
    attached: Mutex<Attached>,
    files: MapHandle,
    hits: MapHandle,
    lost: MapHandle,
    skipped: Skipped,
    /// What was taken out of the map, by kind of file.
    taken: Mutex<Flushes>,
}

/// The links of the programs; none while they are detached.
struct Attached {
    skel: FsyncSkel<'static>,
    arch: Arch,
    /// Whether the kernel can trace its functions with less than kprobes.
    is_traceable: bool,
    means: Means,
    links: Vec<Link>,
    refused: Option<String>,
}

/// How the programs are attached: the cheapest first.
#[derive(Clone, Copy, PartialEq, Eq, EnumIter)]
enum Means {
    /// To the kernel's functions for the system calls.
    Functions,
    /// To the same, by kprobes.
    Kprobes,
    /// To the tracepoints of ext4.
    Ext4,
}

/// What was counted, by what the files are for; see [`Fsyncs::event`].
pub(super) type Flushes = BTreeMap<&'static str, Histogram>;

impl FsyncProbes {
    /// Loads the programs, and attaches them to the kernel for the server `target`.
    pub fn attach(target: &Target) -> Result<FsyncProbes> {
        // This leaks a few bytes once per server, so that the programs can be attached again after a pause.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = FsyncSkelBuilder::default().open(storage).context("opening the programs")?;
        let arch = target.image.arch();
        let rodata = open.maps.rodata_data.as_deref_mut().context("the programs have no constants")?;
        rodata.target_tgid = target.pid as u32;
        rodata.bucket_bounds = BUCKET_BOUNDS_NS;
        rodata.descriptor_register = descriptor_register(arch);
        rodata.argument_register = argument_register(arch);
        let is_traceable = CALLS.iter().all(|call| function_is_traceable(&function(arch, call), 1));
        choose(&mut open, arch, is_traceable)?;
        let skel = open.load().context("loading the programs into the kernel")?;
        let probes = FsyncProbes {
            files: MapHandle::try_from(&skel.maps.fsync_files)?,
            hits: MapHandle::try_from(&skel.maps.hits)?,
            lost: MapHandle::try_from(&skel.maps.lost_fsyncs)?,
            skipped: Skipped::of(skel.object().progs().filter(|program| program.autoload()))?,
            attached: Mutex::new(Attached {
                arch,
                is_traceable,
                means: Means::Functions,
                links: Vec::new(),
                refused: None,
                skel,
            }),
            taken: Mutex::default(),
        };
        probes.attach_again();
        Ok(probes)
    }

    /// Returns why the kernel does not take the programs, unless it does.
    pub fn refused(&self) -> Option<String> {
        self.attached.lock().refused.clone()
    }

    /// Returns the finished calls.
    pub fn counted(&self) -> Result<Flushes> {
        let mut taken = self.taken.lock();
        let mut now: Vec<(types::fsync_file, types::fsyncs)> = entries(&self.files)?;
        if now.len() > MOST_NAMES {
            now = take_entries(&self.files)?;
            add(&mut taken, &now);
            now.clear();
        }
        let mut all = taken.clone();
        add(&mut all, &now);
        Ok(all)
    }

    /// Adds what could not be counted, by cause.
    pub fn add_lost(&self, lost: &mut Vec<(String, u64)>) -> Result<()> {
        for (index, cause) in (0u32..).zip(LOST) {
            lost.push((cause.to_owned(), sum_over_cpus(&self.lost, index)?));
        }
        add_skipped(lost, &self.skipped)
    }

    /// Returns whether every flush is seen, on whatever file system.
    pub fn sees_all(&self) -> bool {
        self.attached.lock().means != Means::Ext4
    }

    /// Returns what a hit costs as much as, or less.
    fn class(&self) -> ProbeClass {
        match self.attached.lock().means {
            // Programs on the kernel's `futex_wait` are attached in the same way.
            Means::Functions => ProbeClass::Futex,
            // A breakpoint, but in the kernel.
            Means::Kprobes => ProbeClass::Emulated,
            Means::Ext4 => ProbeClass::Tracepoint,
        }
    }

    fn hits(&self) -> Result<Vec<(&'static str, latch::types::hits)>> {
        (0u32..).zip(PROBES).map(|(index, name)| Ok((name, hits_over_cpus(&self.hits, index)?))).collect()
    }
}

impl Probes for FsyncProbes {
    const FREQUENT: &'static str = "flushes of files";
    const PART: f64 = 0.5;

    fn attach_again(&self) {
        let mut attached = self.attached.lock();
        if attached.links.is_empty() {
            attached.vary(|data| data.attachment = data.attachment.wrapping_add(1));
            attached.attach();
        }
    }

    fn adapt(&self, part: f64) {
        self.attached.lock().vary(|data| data.one_in = timed_next(data.one_in, part));
    }

    fn detach(&self) {
        detach_all(std::mem::take(&mut self.attached.lock().links));
    }

    fn are_attached(&self) -> bool {
        !self.attached.lock().links.is_empty()
    }

    fn charged_ns(&self, costs: &Costs) -> Result<f64> {
        let charge = costs.charge(self.class());
        let of = |(_, hits): (_, latch::types::hits)| hits.count as f64 * charge + hits.program_ns() as f64;
        Ok((1.0 + SHADOW) * self.hits()?.into_iter().map(of).sum::<f64>())
    }

    fn status(&self, state: ProbeState, costs: Option<&Costs>) -> Result<Vec<ProbeStatus>> {
        let trap_ns = costs.and_then(|costs| costs.of(self.class()));
        let status = |(name, hits): (&str, latch::types::hits)| ProbeStatus {
            probe: name.to_owned(),
            state,
            hits: hits.count,
            trap_ns,
            program_ns: hits.program_ns(),
        };
        Ok(self.hits()?.into_iter().map(status).collect())
    }
}

impl Attached {
    /// Changes what the programs read while they run.
    fn vary(&mut self, change: impl FnOnce(&mut types::data)) {
        if let Some(data) = self.skel.maps.data_data.as_deref_mut() {
            change(data);
        }
    }

    /// Attaches the programs by the cheapest means that the kernel offers.
    fn attach(&mut self) {
        let mut refused = None;
        for means in Means::iter().filter(|means| self.is_traceable || *means != Means::Functions) {
            match self.attach_by(means) {
                Ok(links) => {
                    (self.means, self.links, self.refused) = (means, links, None);
                    return;
                }
                Err(why) => refused = Some(format!("flushes of files are not timed: the kernel refuses it: {why}")),
            }
        }
        self.refused = refused;
    }

    fn attach_by(&self, means: Means) -> libbpf_rs::Result<Vec<Link>> {
        match means {
            Means::Functions => self.to_functions(),
            Means::Kprobes => self.to_kprobes(),
            Means::Ext4 => self.to_ext4(),
        }
    }

    /// Attaches the ends before the begins: a call that begins meanwhile must not miss its end. If the kernel refuses
    /// one, none stays attached.
    fn to_functions(&self) -> libbpf_rs::Result<Vec<Link>> {
        let progs = &self.skel.progs;
        let programs = [&progs.fsync_ends, &progs.fdatasync_ends, &progs.fsync_begins, &progs.fdatasync_begins];
        programs.into_iter().map(|program| program.attach_trace().map(Link::from)).collect()
    }

    /// The same by kprobes, which cost more, and follow only so many threads at a time.
    fn to_kprobes(&self) -> libbpf_rs::Result<Vec<Link>> {
        let programs = [(true, &self.skel.progs.call_ends), (false, &self.skel.progs.call_begins)];
        let attach = |is_end: bool, program: &ProgramMut<'_>, call: &str| {
            program.attach_kprobe(is_end, function(self.arch, call)).map(Link::from)
        };
        programs.into_iter().flat_map(|(is_end, program)| CALLS.map(|call| attach(is_end, program, call))).collect()
    }

    /// The same by the tracepoints of ext4.
    fn to_ext4(&self) -> libbpf_rs::Result<Vec<Link>> {
        let programs = [
            (&self.skel.progs.ext4_ends, "ext4_sync_file_exit"),
            (&self.skel.progs.ext4_begins, "ext4_sync_file_enter"),
        ];
        programs.into_iter().map(|(program, event)| program.attach_raw_tracepoint(event).map(Link::from)).collect()
    }
}

/// Returns of how many calls one is timed from now on, if so far it was one of `one_in`, and if the programs took this
/// part of what they may take: as many fewer at once as are too many, and twice as many where that leaves room, since
/// that at most doubles the cost. The fewer are timed, the larger is the error.
fn timed_next(one_in: u32, part: f64) -> u32 {
    match part {
        0.8.. => one_in.saturating_mul((2.0 * part) as u32).max(2 * one_in).min(MOST_ONE_IN),
        ..0.4 => (one_in / 2).max(1),
        _ => one_in,
    }
}

/// Chooses which programs are loaded, and on which functions.
fn choose(open: &mut OpenFsyncSkel<'_>, arch: Arch, is_traceable: bool) -> Result<()> {
    let progs = &mut open.progs;
    let of_calls = [
        ("fsync", [&mut progs.fsync_begins, &mut progs.fsync_ends]),
        ("fdatasync", [&mut progs.fdatasync_begins, &mut progs.fdatasync_ends]),
    ];
    for (call, programs) in of_calls {
        for program in programs {
            program.set_autoload(is_traceable);
            if is_traceable {
                let name = function(arch, call);
                program.set_attach_target(0, Some(name)).with_context(|| format!("no function of {call}"))?;
            }
        }
    }
    Ok(())
}

/// Returns the byte offset of a kernel function's first argument in the saved registers.
fn argument_register(arch: Arch) -> u32 {
    let register = match arch {
        Arch::X86_64 => 7,
        Arch::Aarch64 => 0,
    };
    register_offset(arch, register).into()
}

/// Returns the name of the kernel's function for a system call.
fn function(arch: Arch, call: &str) -> String {
    match arch {
        Arch::X86_64 => format!("__x64_sys_{call}"),
        Arch::Aarch64 => format!("__arm64_sys_{call}"),
    }
}

fn add(all: &mut Flushes, counted: &[(types::fsync_file, types::fsyncs)]) {
    for (file, calls) in counted {
        let bytes = file.name.map(|byte| byte as u8);
        let name = bytes.split(|byte| *byte == 0).next().map(String::from_utf8_lossy).unwrap_or_default();
        all.entry(event(&name)).or_default().merge(&histogram(calls));
    }
}

/// Returns what a file with this name is for, of which the beginning may be missing.
fn event(name: &str) -> &'static str {
    file_kind(name).map_or(FileWaits::UNKNOWN, |kind| kind.event)
}

fn histogram(calls: &types::fsyncs) -> Histogram {
    Histogram { buckets: calls.buckets, count: calls.count, sum_ns: calls.sum_ns, max_ns: calls.max_ns }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::REDO_LOG;

    #[test]
    fn where_all_would_be_too_many_some_are_timed() {
        let mut one_in = 1;
        let steps: Vec<u32> = [0.5, 0.9, 3.0, 0.5, 0.1, 0.1, 0.1]
            .map(|part| {
                one_in = timed_next(one_in, part);
                one_in
            })
            .to_vec();
        assert_eq!(steps, [1, 2, 12, 12, 6, 3, 1]);
        assert_eq!(timed_next(MOST_ONE_IN, 9.0), MOST_ONE_IN);
        assert_eq!(timed_next(MOST_ONE_IN, 0.3), MOST_ONE_IN / 2, "what programs cost that time nothing");
        assert_eq!(timed_next(4, f64::NAN), 4);
    }

    #[test]
    fn names_say_what_files_are_for_also_without_their_beginning() {
        let long = format!("{}#p#p0.ibd", "x".repeat(80));
        let names = ["ib_logfile0", &long[long.len() - 63..], "socket:[7]", ""];
        let data = "wait/io/file/innodb/innodb_data_file";
        assert_eq!(names.map(event), [REDO_LOG, data, FileWaits::UNKNOWN, FileWaits::UNKNOWN]);
    }
}
