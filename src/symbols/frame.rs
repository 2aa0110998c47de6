//! Computes a function's stack frame from the unwind table.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, Register, RegisterRule, UnwindContext,
    UnwindSection, Vendor,
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

/// The largest frame, in bytes, of a function that waits for a lock.
const MAX_FRAME: i64 = 64 * 1024;

/// Returns the frame at the instruction at `addr`. `None` if the table does not describe it by the stack pointer alone.
pub fn frame(image: &Image, addr: u64) -> Option<Frame> {
    let (sp, return_address, vendor) = match image.arch() {
        Arch::X86_64 => (Register(7), Register(16), Vendor::Default),
        // Where return addresses are signed, the table says from which instruction on.
        Arch::Aarch64 => (Register(31), Register(30), Vendor::AArch64),
    };
    let header = image.section(".eh_frame_hdr")?;
    let frames = image.section(".eh_frame")?;
    let bytes = |r: &std::ops::Range<u64>| image.bytes(r.start, usize::try_from(r.end - r.start).ok()?);
    let text = image.section(".text").map_or(0, |t| t.start);
    let bases = BaseAddresses::default().set_eh_frame_hdr(header.start).set_eh_frame(frames.start).set_text(text);
    let table = EhFrameHdr::new(bytes(&header)?, LittleEndian).parse(&bases, 8).ok()?;
    let mut section = EhFrame::from(EndianSlice::new(bytes(&frames)?, LittleEndian));
    section.set_vendor(vendor);
    let mut context = UnwindContext::new();
    let row =
        table.table()?.unwind_info_for_address(&section, &bases, &mut context, addr, EhFrame::cie_from_offset).ok()?;
    let CfaRule::RegisterAndOffset { register, offset: size } = *row.cfa() else { return None };
    let return_at = match row.register(return_address) {
        Some(RegisterRule::Offset(from_cfa)) => Some(size.checked_add(from_cfa)?),
        None | Some(RegisterRule::SameValue) if image.arch() == Arch::Aarch64 => None,
        _ => return None,
    };
    let plausible =
        register == sp && (0..=MAX_FRAME).contains(&size) && return_at.is_none_or(|at| (0..size).contains(&at));
    plausible.then(|| Frame { size: size as u32, return_at: return_at.map(|at| at as u32) })
}
