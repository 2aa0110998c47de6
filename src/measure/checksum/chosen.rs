//! Determines which implementation of each checksum a server has chosen.

use std::ops::Range;
use std::sync::Arc;

use crate::analysis::{checksum_instruction, entry, jump_variable, ChecksumInstruction, Entry};
use crate::catalog::{ChosenChecksum, PointerAt, CHECKSUMS};
use crate::measure::address_space::AddressSpace;
use crate::measure::checksum::{Checksum, Implementation};
use crate::server::Memory;

/// A checksum's implementation, and its location in the process.
pub(crate) struct Chosen {
    pub range: Range<u64>,
    /// Where each call can be seen with the number of bytes, in the server's program. `None` if the implementation is
    /// in a library.
    pub entry: Option<Entry>,
    pub checksum: Checksum,
}

/// Reads the server's pointers to its implementations.
pub(super) fn chosen(files: &mut AddressSpace) -> Vec<Chosen> {
    CHECKSUMS.iter().filter_map(|checksum| read(files, checksum)).collect()
}

fn read(files: &mut AddressSpace, checksum: &ChosenChecksum) -> Option<Chosen> {
    let target = Arc::clone(&files.target);
    let (image, bias) = (&target.image, target.bias);
    let pointer = match checksum.pointer {
        PointerAt::Variable(name) => image.symbol(name).filter(|s| !s.is_function)?.addr,
        PointerAt::JumpOf(name) => jump_variable(image, image.function_at(image.symbol(name)?.addr)?)?,
    };
    let address = Memory::new(target.pid).u64(pointer.wrapping_add(bias))?;
    let found = files.find(address)?;
    let range = found.bounds()?;
    let instruction = checksum_instruction(found.image, range.clone())?;
    let (implementation, instruction) = match instruction {
        ChecksumInstruction::Found(instruction) => (Implementation::Hardware, Some(instruction.to_owned())),
        ChecksumInstruction::None => (Implementation::Software, None),
    };
    let is_in_program = std::ptr::eq(found.image, &**image);
    let entry = is_in_program.then(|| entry(image, range.clone(), checksum.length)).flatten();
    let checksum = Checksum {
        purpose: checksum.purpose.to_owned(),
        function: found.name(),
        implementation,
        instruction,
        cpu_has_instruction: cpu_has_instruction(checksum.is_crc32c),
    };
    Some(Chosen { range: range.start.wrapping_add(found.bias)..range.end.wrapping_add(found.bias), entry, checksum })
}

/// Returns whether this CPU has instructions for such a checksum: crc32c, or the older polynomial, for which x86_64 has
/// only carry-less multiplication.
#[cfg(target_arch = "x86_64")]
fn cpu_has_instruction(is_crc32c: bool) -> bool {
    if is_crc32c {
        std::arch::is_x86_feature_detected!("sse4.2")
    } else {
        std::arch::is_x86_feature_detected!("pclmulqdq")
    }
}

#[cfg(target_arch = "aarch64")]
fn cpu_has_instruction(_is_crc32c: bool) -> bool {
    std::arch::is_aarch64_feature_detected!("crc")
}
