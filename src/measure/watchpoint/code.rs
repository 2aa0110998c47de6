//! Finds the code that accesses a watched word.

use std::collections::HashMap;
use std::sync::Arc;

use super::judge::CodeAt;
use super::points::Touch;
use crate::isa::{decode, watched, Insn};
use crate::measure::address_space::{AddressSpace, Found};
use crate::measure::cpu::kernel::KernelSymbols;
use crate::server::Target;

/// The code of a server's program, its libraries, and the kernel. Lookups are cached.
pub struct ServerCode {
    files: AddressSpace,
    kernel: Option<KernelSymbols>,
    known: HashMap<u64, CodeAt>,
}

impl ServerCode {
    /// Creates a lookup for a server.
    pub fn new(target: &Arc<Target>) -> ServerCode {
        ServerCode { files: AddressSpace::new(Arc::clone(target)), kernel: None, known: HashMap::new() }
    }

    /// Returns what is known about the code that accessed a word.
    pub fn at(&mut self, touch: &Touch) -> CodeAt {
        let (files, kernel) = (&mut self.files, &mut self.kernel);
        let look = || {
            if touch.is_kernel {
                let kernel = kernel.get_or_insert_with(KernelSymbols::read);
                return CodeAt {
                    function: format!("{} (kernel)", kernel.at(touch.ip).unwrap_or("?")),
                    ..CodeAt::default()
                };
            }
            // If the access is the function's last instruction, the reported address is after the function's end.
            let inside = if cfg!(target_arch = "x86_64") { touch.ip.wrapping_sub(1) } else { touch.ip };
            files
                .find(inside)
                .map_or_else(|| CodeAt { function: "?".to_owned(), ..CodeAt::default() }, |f| user(&f, touch.ip))
        };
        self.known.entry(touch.ip).or_insert_with(look).clone()
    }
}

fn user(found: &Found, ip: u64) -> CodeAt {
    let insns = found.bounds().map(|range| decode(found.image, range)).unwrap_or_default();
    let insn = watched(&insns, ip.wrapping_sub(found.bias));
    CodeAt { function: found.name(), instruction: insn.map(|insn| insn.text()), access: insn.and_then(Insn::access) }
}
