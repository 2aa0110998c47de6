//! Observes threads going to sleep on a futex and waking up, by the cheapest means that this kernel offers.

use std::ops::RangeInclusive;
use std::sync::OnceLock;

use libbpf_rs::btf::{self, Btf, ReferencesType};
use libbpf_rs::{Link, ProgramMut, ProgramType, Result, TracepointCategory};

use super::cost::calibration_programs;
use super::features::has_helper;

/// How many arguments the kernel's `futex_wake` may have: 4, or 5 as in Linux 7.2. The first is the address of the word
/// in both cases, and no other is read.
const FUTEX_WAKE_ARGUMENTS: RangeInclusive<usize> = 4..=5;
/// The number of arguments of the kernel's `futex_wait`. A program on its return finds the result after them.
const FUTEX_WAIT_ARGUMENTS: usize = 5;

/// The number of `BPF_FUNC_task_pt_regs` among the kernel's helpers.
const TASK_PT_REGS: u32 = 175;

/// The programs for the beginning and the end of a futex wait, in both forms.
pub struct FutexPrograms<'a, 'obj> {
    /// The pair for the kernel's own `futex_wait`, loaded only where [`futex_wait_is_traceable`].
    pub function: Option<[&'a ProgramMut<'obj>; 2]>,
    /// The pair for the futex system call.
    pub system_call: [&'a ProgramMut<'obj>; 2],
}

/// The links of both programs.
pub struct FutexLinks {
    /// The links at the beginning and at the end of a wait.
    pub links: [Result<Link>; 2],
    /// Whether the programs are attached to the system call.
    pub on_system_call: bool,
}

/// Attaches to the kernel's futex wait function, or to the system call where the function cannot be traced.
///
/// The function is better because only waiters pay. A system call tracepoint puts every system call of every process on
/// the kernel's slow path (10 ns each, measured), and its programs also run for wake-ups.
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

/// Returns whether programs on the kernel's futex wait function can be loaded. The function must exist with the
/// expected arguments, and the kernel must support such programs and let them read the system call's registers (Linux
/// 5.15). Some architectures still refuse to attach them (arm64 before Linux 6.4).
pub fn futex_wait_is_traceable() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(try_futex_wait)
}

/// Returns whether programs can read the user stack of the thread that they run in (Linux 5.15).
pub fn stacks_are_shown() -> bool {
    has_helper(TASK_PT_REGS)
}

/// Returns whether a program on the kernel's futex wake function can be loaded, given [`futex_wait_is_traceable`].
pub fn futex_wake_is_traceable() -> bool {
    let has_arguments =
        |btf| arguments(&btf, "futex_wake").is_some_and(|number| FUTEX_WAKE_ARGUMENTS.contains(&number));
    Btf::from_vmlinux().is_ok_and(has_arguments)
}

fn try_futex_wait() -> bool {
    stacks_are_shown() && function_is_traceable("futex_wait", FUTEX_WAIT_ARGUMENTS)
}

/// Returns whether programs on the kernel's futex wait function can be both loaded and attached.
pub fn futex_wait_can_be_traced() -> bool {
    if !futex_wait_is_traceable() {
        return false;
    }
    let Ok(skel) = calibration_programs() else { return false };
    skel.progs.empty_wait_enter.attach_trace().is_ok() && skel.progs.empty_wait_exit.attach_trace().is_ok()
}

/// Returns whether programs on the beginning and the end of a kernel function can be loaded, which has this number of
/// arguments. Some architectures still refuse to attach them (arm64 before Linux 6.4).
pub fn function_is_traceable(function: &str, number: usize) -> bool {
    let is_known = || Btf::from_vmlinux().is_ok_and(|btf| arguments(&btf, function) == Some(number));
    ProgramType::Tracing.is_supported().unwrap_or(false) && is_known()
}

/// Returns the number of arguments of a kernel function, if it exists.
fn arguments(btf: &Btf<'_>, function: &str) -> Option<usize> {
    let function = btf.type_by_name::<btf::types::Func<'_>>(function)?;
    let prototype = btf.type_by_id::<btf::types::FuncProto<'_>>(function.referenced_type().type_id())?;
    let arguments = prototype.iter().len();
    Some(arguments)
}
