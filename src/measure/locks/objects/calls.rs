//! Finds calls of a wait function on threads' stacks.

use super::Stack;
use crate::isa::{decode, Flow};
use crate::measure::latch::ADDRESS_BITS;
use crate::measure::locks::plan::PlannedLockWait;
use crate::server::Target;
use crate::symbols::Arch;

/// The calls of one function.
#[derive(Debug)]
pub(super) struct Calls {
    /// Its link-time address; `None` if it is not known.
    function: Option<u64>,
}

impl Calls {
    /// Creates one for the function of this wait.
    pub fn of(target: &Target, wait: Option<&PlannedLockWait>) -> Calls {
        let begin = wait.and_then(|wait| wait.begins.first());
        let function = begin.and_then(|begin| target.image.function_at(begin.addr));
        Calls { function: function.map(|range| range.start) }
    }

    /// Returns where on a stack there are addresses to which calls of the function return. Some may be from earlier
    /// calls.
    pub fn on<'s>(&'s self, target: &'s Target, stack: &'s Stack) -> impl Iterator<Item = usize> + 's {
        (0..stack.words.len()).filter(|at| self.is_return(target, stack.words[*at]))
    }

    fn is_return(&self, target: &Target, address: u64) -> bool {
        let size = match target.image.arch() {
            Arch::X86_64 => 5,
            Arch::Aarch64 => 4,
        };
        // arm64 code may sign its return addresses, in the bits above.
        let end = (address & ((1 << ADDRESS_BITS) - 1)).wrapping_sub(target.bias);
        let code = decode(&target.image, end.wrapping_sub(size)..end);
        self.function.is_some() && matches!(code[..], [call] if call.flow == Flow::Call(self.function))
    }
}
