//! Seeing threads fall asleep in a futex and wake up, the cheapest way this kernel knows.

use std::mem::MaybeUninit;
use std::sync::OnceLock;

use libbpf_rs::btf::{self, Btf, ReferencesType};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, ProgramMut, ProgramType, Result, TracepointCategory};

use super::features::has_helper;
use crate::bpf::calibrate::CalibrateSkelBuilder;

/// How many arguments the kernel's `futex_wake` has.
const FUTEX_WAKE_ARGUMENTS: usize = 4;
/// How many arguments the kernel's `futex_wait` has; programs on its return find the result behind them.
const FUTEX_WAIT_ARGUMENTS: usize = 5;

/// `BPF_FUNC_task_pt_regs` in the kernel's helper numbering.
const TASK_PT_REGS: u32 = 175;

/// The same two programs, for a futex wait's begin and its end, in both forms.
pub struct FutexPrograms<'a, 'obj> {
    /// On the kernel's own function for futex waits; loaded only where [`futex_wait_is_traceable`].
    pub function: Option<[&'a ProgramMut<'obj>; 2]>,
    /// On the system call.
    pub system_call: [&'a ProgramMut<'obj>; 2],
}

/// Both programs' links.
pub struct FutexLinks {
    /// Begin and end.
    pub links: [Result<Link>; 2],
    /// Whether they are on the system call.
    pub on_system_call: bool,
}

/// Attaches to the kernel's function for futex waits, or to the system call where that cannot be traced.
///
/// The function is better because only waiters pay: a system call tracepoint puts every system call of every process on
/// the kernel's slow path (measured: 10 ns each), and wake-ups run its programs too.
pub fn attach_futex(programs: &FutexPrograms<'_, '_>) -> FutexLinks {
    if let Some([enter, exit]) = programs.function {
        if let (Ok(enter), Ok(exit)) = (enter.attach_trace(), exit.attach_trace()) {
            return FutexLinks { links: [Ok(enter), Ok(exit)], on_system_call: false };
        }
    }
    let [enter, exit] = programs.system_call;
    let links = [(enter, "sys_enter_futex"), (exit, "sys_exit_futex")]
        .map(|(program, event)| program.attach_tracepoint(TracepointCategory::Syscalls, event));
    FutexLinks { links, on_system_call: true }
}

/// Whether programs on the kernel's function for futex waits can be loaded: it is there with the arguments that they
/// expect, and this kernel knows such programs and shows them the system call's registers (Linux 5.15). Some architectures then still refuse to attach them (arm64 before
/// Linux 6.4).
pub fn futex_wait_is_traceable() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(try_futex_wait)
}

/// Whether programs can look at the stack of the thread that they run in (Linux 5.15).
pub fn stacks_are_shown() -> bool {
    has_helper(TASK_PT_REGS)
}

/// Whether a program on the kernel's function for futex wakes can be loaded, where [`futex_wait_is_traceable`].
pub fn futex_wake_is_traceable() -> bool {
    Btf::from_vmlinux().is_ok_and(|btf| arguments(&btf, "futex_wake") == Some(FUTEX_WAKE_ARGUMENTS))
}

fn try_futex_wait() -> bool {
    let known = Btf::from_vmlinux().is_ok_and(|btf| arguments(&btf, "futex_wait") == Some(FUTEX_WAIT_ARGUMENTS));
    known && stacks_are_shown() && ProgramType::Tracing.is_supported().unwrap_or(false)
}

/// Whether programs on the kernel's function for futex waits can be loaded and attached.
pub fn futex_wait_can_be_traced() -> bool {
    let mut storage = MaybeUninit::uninit();
    if !futex_wait_is_traceable() {
        return false;
    }
    let Ok(mut open) = CalibrateSkelBuilder::default().open(&mut storage) else { return false };
    open.progs.empty_multi.set_autoload(false);
    let Ok(skel) = open.load() else { return false };
    skel.progs.empty_wait_enter.attach_trace().is_ok() && skel.progs.empty_wait_exit.attach_trace().is_ok()
}

/// How many arguments a kernel's function has, if it is there.
fn arguments(btf: &Btf<'_>, function: &str) -> Option<usize> {
    let function = btf.type_by_name::<btf::types::Func<'_>>(function)?;
    let prototype = btf.type_by_id::<btf::types::FuncProto<'_>>(function.referenced_type().type_id())?;
    let arguments = prototype.iter().len();
    Some(arguments)
}
