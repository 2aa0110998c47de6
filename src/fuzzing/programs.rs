//! Programs, their code, their unwind tables and their memory.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::{fs, io};

use foldhash::{HashMap, HashMapExt};
use rustix::fs::{memfd_create, MemfdFlags};

use crate::analysis::{futex_waits, Function, Pointers};
use crate::audit::{self, Html, Text};
use crate::discovery::{self, spin_functions, wrapper_returns, Layout};
use crate::measure::latch::stacks::unwind::{Registers, Stack, Unwinder};
use crate::measure::latch::{examine_kept_plan, plan, pthread_rows, Allowed};
use crate::names::{locks, Identity, Instruments, Namer, PageKey};
use crate::server::{hostile, Target};
use crate::symbols::{self, frame, DebugRoots, Image, Settings};

#[path = "../../tests/lab/src/elf.rs"]
mod elf;

/// Small programs that are recognised as servers.
const SERVERS: [&[u8]; 4] = [
    include_bytes!("../../fuzz/seeds/program/mysql.x86_64"),
    include_bytes!("../../fuzz/seeds/program/mysql.aarch64"),
    include_bytes!("../../fuzz/seeds/program/mariadb.x86_64"),
    include_bytes!("../../fuzz/seeds/program/mariadb.aarch64"),
];

/// The most frames of a stack that are unwound.
const MOST_FRAMES: usize = 64;

/// Returns a file with these bytes, which has no name.
pub(super) fn file(bytes: &[u8]) -> io::Result<(File, PathBuf)> {
    let file = File::from(memfd_create("input", MemfdFlags::CLOEXEC)?);
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    fs::write(&path, bytes)?;
    Ok((file, path))
}

fn image(program: &[u8]) -> Option<Image> {
    let (_file, path) = file(program).expect("memory for a file");
    let mut image = Image::open(&path).ok()?;
    // A folder without debug files, so that only the program's own symbols are used.
    let places = DebugRoots::in_folder(Path::new("/proc/self/fdinfo"), &path).expect("a folder");
    let settings = Settings { file: None, debuginfod: None };
    _ = symbols::complete(&mut image, &places, &settings, discovery::misses_symbols);
    Some(image)
}

/// The audit: the ELF reader, debug information, and the decoders for both architectures. A fuzzer rarely generates a
/// complete program. So every input is used as a program, and as the code of a valid one for each architecture.
pub(super) fn audit(input: &[u8]) {
    audit_program(input);
    for machine in [elf::X86_64, elf::AARCH64] {
        audit_program(&elf::elf(machine, input));
    }
}

fn audit_program(program: &[u8]) {
    let Some(image) = image(program) else { return };
    let Ok(report) = audit::audit(&image, Path::new("fuzz")) else { return };
    _ = (Text(&report).to_string(), Html(&report).to_string());
    let comparison = audit::compare(report.clone(), report);
    _ = (Text(&comparison).to_string(), Html(&comparison).to_string());
}

/// A server's program.
pub(super) fn program(input: &[u8]) {
    let Some(image) = image(input) else { return };
    analyze(&image);
    for range in image.functions().into_iter().take(32) {
        frame(&image, range.start);
    }
}

/// Hostile code in a server's program. The first byte chooses the program, the second how much of it is left.
pub(super) fn code(input: &[u8]) {
    let [server, left, code @ ..] = input else { return };
    let mut program = SERVERS[usize::from(*server) % SERVERS.len()].to_vec();
    let Some(whole) = image(&program) else { return };
    let text = whole.section(".text").expect("code");
    let skipped = ((text.end - text.start) * u64::from(*left) / 256) & !3;
    let at = whole.file_offset(text.start + skipped).expect("code") as usize;
    let end = whole.file_offset(text.end - 1).expect("code") as usize;
    program[at..end].iter_mut().zip(code).for_each(|(byte, new)| *byte = *new);
    let image = image(&program).expect("a program");
    analyze(&image);
}

/// Finds in a program what is found before its server is traced.
fn analyze(image: &Image) {
    for range in image.functions().into_iter().take(64) {
        let Some(function) = Function::new(image, range) else { continue };
        for insn in function.insns() {
            _ = (
                function.arguments_at(insn.addr),
                function.passed_at(insn.addr),
                function.return_address_at(insn.addr),
            );
        }
        _ = function.handed_on();
        Pointers::new(image, &function);
    }
    _ = (futex_waits(image), pthread_rows(image), image.relative_relocations(), image.imports().len());
    let Ok(family) = discovery::family(image) else { return };
    plan(image, family, Allowed { uretprobes: true, calls: true, many_sites: true, every_round: true });
    _ = (Layout::of(image, family), spin_functions(image, family), wrapper_returns(image, family));
    locks(image, &Instruments::new(image, &image.static_pointers()));
}

/// The memory of a server, from which names are read. The first byte chooses the program, the next ones latches.
pub(super) fn memory(input: &[u8]) {
    thread_local! {
        static TARGETS: [Arc<Target>; 4] = SERVERS.map(|program| {
            let image = image(program).expect("a program");
            let family = discovery::family(&image).expect("a server");
            Arc::new(Target::hostile(image, family))
        });
    }
    let Some(([server, numbers @ ..], bytes)) = input.split_first_chunk::<33>() else { return };
    hostile::fill(bytes);
    let target = TARGETS.with(|targets| Arc::clone(&targets[usize::from(*server) % targets.len()]));
    let mut namer = Namer::new(&target);
    _ = namer.latch_ids();
    for number in numbers.as_chunks().0.iter().copied().map(u64::from_le_bytes) {
        let small = number as u32;
        for identity in [
            Identity::LatchId(small),
            Identity::Created { file: number, line: small },
            Identity::PsiClass(number),
            Identity::Static(number),
            Identity::Caller(number),
            Identity::Page,
        ] {
            namer.name(&identity, number);
        }
        let key = PageKey::Index { space: small, index: number, level: 0 };
        namer.pages(&[key, PageKey::Plain { space: small, kind: small as u16 }]);
    }
}

/// A file in the folder of kept plans, or its contents behind a valid checksum.
pub(super) fn kept_plan(input: &[u8]) {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    let image = IMAGE.get_or_init(|| image(SERVERS[0]).expect("a program"));
    examine_kept_plan(input, image, discovery::family(image).expect("a server"));
}

/// An unwind table, registers and a stack. The first byte chooses the program, whose table the input replaces from the
/// place on that the second byte chooses; the same bytes are the registers and the stack.
pub(super) fn unwind(input: &[u8]) {
    let [server, left, bytes @ ..] = input else { return };
    let mut program = SERVERS[usize::from(*server) % SERVERS.len()].to_vec();
    let Some(whole) = image(&program) else { return };
    let (table, text) = (whole.section(".eh_frame").expect("a table"), whole.section(".text").expect("code"));
    let start = table.start + (table.end - table.start) * u64::from(*left) / 256;
    let at = whole.file_offset(start).expect("a table") as usize;
    let size = (table.end - start) as usize;
    program[at..][..size].iter_mut().zip(bytes).for_each(|(byte, new)| *byte = *new);
    let image = image(&program).expect("a program");
    let mut unwinder = Unwinder::new(image.arch(), 0, HashMap::new());
    for addr in (text.start..text.end).step_by(61) {
        frame(&image, addr);
        let mut at = Registers { ip: addr, general: [0x1000; 32] };
        let words = bytes.as_chunks().0.iter().copied().map(u64::from_le_bytes);
        at.general.iter_mut().zip(words).step_by(3).for_each(|(register, value)| *register = value);
        let stack = Stack { start: 0x1000, bytes };
        for _ in 0..MOST_FRAMES {
            let Some(caller) = unwinder.caller(&image, &at, stack, true) else { break };
            at = caller;
        }
    }
}
