//! Computes how to get from an instruction to its function's caller, from the unwind table.

use std::ops::Range;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, Register, RegisterRule, UnwindContext,
    UnwindSection, UnwindTableRow, Vendor,
};

use super::{Arch, Image};

/// How to get from an instruction of a function to the function's caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The number of bytes from the stack pointer at the instruction to its value after the function has returned.
    pub size: u32,
    /// The number of bytes from the stack pointer to the return address; `None` if the address is in the link register.
    pub return_at: Option<u32>,
}

/// How to restore the registers of a function's caller at an instruction of the function. Registers are numbered as
/// the hardware encodes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwind {
    /// The register from which the caller's stack pointer follows.
    pub base: u8,
    /// The distance of the caller's stack pointer from there, in bytes.
    pub size: i32,
    /// The offset of the return address from the caller's stack pointer, in bytes; `None` if it is in the link
    /// register.
    pub return_at: Option<i32>,
    /// The registers that the function has saved, and the offset of each from the caller's stack pointer, in bytes.
    pub saved: Vec<(u8, i32)>,
}

/// The largest frame, in bytes, of a function that waits for a lock.
const MAX_FRAME: i64 = 64 * 1024;

/// The column of the return address in x86-64's unwind tables, which is no register.
const X86_RETURN_ADDRESS: u16 = 16;

/// Returns the frame at the instruction at `addr`. `None` if the table does not describe it by the stack pointer alone.
pub fn frame(image: &Image, addr: u64) -> Option<Frame> {
    let unwind = unwind(image, addr)?;
    let size = u32::try_from(unwind.size).ok().filter(|_| unwind.base == stack_pointer(image.arch()))?;
    let return_at = match unwind.return_at {
        Some(at) => Some(size.checked_add_signed(at).filter(|at| *at < size)?),
        None => None,
    };
    Some(Frame { size, return_at })
}

/// Returns how to unwind from the instruction at `addr`. `None` if the table does not describe that by offsets alone.
pub fn unwind(image: &Image, addr: u64) -> Option<Unwind> {
    unwind_row(image, addr)?.1
}

/// Returns the instructions for which the unwind table says the same as for that at `addr`, and what it says: `None` if
/// it does not describe them by offsets alone. `None` if it does not have the instruction.
pub fn unwind_row(image: &Image, addr: u64) -> Option<(Range<u64>, Option<Unwind>)> {
    let vendor = match image.arch() {
        Arch::X86_64 => Vendor::Default,
        // Where return addresses are signed, the table says from which instruction on.
        Arch::Aarch64 => Vendor::AArch64,
    };
    let header = image.section(".eh_frame_hdr")?;
    let frames = image.section(".eh_frame")?;
    let bytes = |r: &Range<u64>| image.bytes(r.start, usize::try_from(r.end - r.start).ok()?);
    let text = image.section(".text").map_or(0, |t| t.start);
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.start).set_eh_frame(frames.start).set_text(text);
    let table = EhFrameHdr::new(bytes(&header)?, LittleEndian).parse(&bases, 8).ok()?;
    let mut section = EhFrame::from(EndianSlice::new(bytes(&frames)?, LittleEndian));
    section.set_vendor(vendor);
    let mut context = UnwindContext::new();
    let row =
        table.table()?.unwind_info_for_address(&section, &bases, &mut context, addr, EhFrame::cie_from_offset).ok()?;
    Some((row.start_address()..row.end_address(), from_row(image.arch(), row)))
}

fn from_row(arch: Arch, row: &UnwindTableRow<usize>) -> Option<Unwind> {
    let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else { return None };
    let mut saved = Vec::new();
    let mut return_at = None;
    for (column, rule) in row.registers() {
        let RegisterRule::Offset(at) = *rule else { continue };
        let at = i32::try_from(at).ok()?;
        if *column == return_address(arch) {
            return_at = Some(at);
        } else if let Some(number) = number(arch, *column) {
            saved.push((number, at));
        }
    }
    let in_link_register =
        arch == Arch::Aarch64 && matches!(row.register(return_address(arch)), None | Some(RegisterRule::SameValue));
    let plausible = (0..=MAX_FRAME).contains(&offset) && (return_at.is_some() || in_link_register);
    plausible.then_some(Unwind { base: number(arch, register)?, size: offset as i32, return_at, saved })
}

/// Returns the column of the return address in an unwind table: on arm64, the link register.
fn return_address(arch: Arch) -> Register {
    match arch {
        Arch::X86_64 => Register(X86_RETURN_ADDRESS),
        Arch::Aarch64 => Register(30),
    }
}

/// Returns the number of the stack pointer, as the hardware encodes it.
pub fn stack_pointer(arch: Arch) -> u8 {
    match arch {
        Arch::X86_64 => 4,
        Arch::Aarch64 => 31,
    }
}

/// Returns the hardware's number of a general register, from its number in unwind tables.
fn number(arch: Arch, register: Register) -> Option<u8> {
    /// rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp.
    const X86_64: [u8; 8] = [0, 2, 1, 3, 6, 7, 5, 4];
    match (arch, register.0) {
        (Arch::X86_64, n @ 0..8) => Some(X86_64[usize::from(n)]),
        (Arch::X86_64, n @ 8..16) => Some(n as u8),
        (Arch::Aarch64, n @ 0..32) => Some(n as u8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A row of the table says the same for each instruction that it covers.
    #[test]
    fn a_row_is_that_of_all_its_instructions() {
        let image = Image::open(Path::new("/proc/self/exe")).expect("the test's own program");
        let functions = image.functions();
        let mut rows = 0;
        for function in functions.iter().step_by(functions.len() / 50) {
            let mut at = function.start;
            while at < function.end {
                let Some((range, row)) = unwind_row(&image, at) else { break };
                assert!(range.contains(&at), "{at:#x} {range:?}");
                for addr in [range.start, (range.start + range.end) / 2, range.end - 1] {
                    assert_eq!(unwind(&image, addr), row, "{addr:#x} in {range:?}");
                }
                at = range.end;
                rows += 1;
            }
        }
        assert!(rows > 100, "{rows}");
    }
}
