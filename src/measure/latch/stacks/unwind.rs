//! Unwinds the stack of a thread of the server, from its registers and a copy of its stack.

use std::collections::BTreeMap;
use std::rc::Rc;

use foldhash::{HashMap, HashMapExt};

use crate::analysis::Location;
use crate::symbols::{stack_pointer, unwind_row, Arch, Image, Unwind};

/// The number of registers that are unwound, on either architecture.
pub(crate) const REGISTERS: usize = 32;

/// arm64's link register.
const LINK: usize = 30;

/// Addresses of programs have at most this many bits. arm64 code may sign its return addresses, in bits above them.
pub(crate) const ADDRESS_BITS: u32 = 48;

/// The most instructions whose unwinding is remembered. The code in which threads wait has some hundred.
const MOST_ROWS: usize = 16_384;

/// The registers of a thread in one of its functions, numbered as the hardware encodes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registers {
    pub general: [u64; REGISTERS],
    /// The instruction that runs next.
    pub ip: u64,
}

/// A part of a thread's stack.
#[derive(Clone, Copy)]
pub(crate) struct Stack<'a> {
    pub start: u64,
    pub bytes: &'a [u8],
}

/// Unwinds the stacks of one process's threads.
pub(crate) struct Unwinder {
    arch: Arch,
    bias: u64,
    /// How to unwind from instructions of the C library, by their address in the process.
    library: HashMap<u64, Rc<Unwind>>,
    /// The same for those of the program that were seen; `None` where that is not known.
    program: HashMap<u64, Option<Rc<Unwind>>>,
    /// The rows of the program's unwind table that were read: their end, and how to unwind, by their begin. Threads are
    /// interrupted anywhere, and reading the table takes as long as unwinding ten frames.
    rows: BTreeMap<u64, (u64, Option<Rc<Unwind>>)>,
}

impl Stack<'_> {
    /// Returns the number at an address; `None` if it was not copied.
    pub fn u64(&self, addr: u64) -> Option<u64> {
        let at = usize::try_from(addr.checked_sub(self.start)?).ok()?;
        Some(u64::from_le_bytes(*self.bytes.get(at..)?.first_chunk()?))
    }
}

impl Registers {
    /// Returns the value at a location in this function; `None` if it is outside of the copy.
    pub fn value(&self, place: Location, stack: Stack<'_>, bias: u64) -> Option<u64> {
        let of = |register: u8| self.general.get(usize::from(register)).copied();
        let low = |value: u64, bytes: u8| if bytes == 4 { value & u64::from(u32::MAX) } else { value };
        Some(match place {
            Location::Register { register, bytes } => low(of(register)?, bytes),
            Location::Sum { register, offset } => of(register)?.wrapping_add_signed(offset.into()),
            Location::Stack { base, offset, bytes } => {
                low(stack.u64(of(base)?.wrapping_add_signed(offset.into()))?, bytes)
            }
            Location::Constant(value) => value.wrapping_add(bias),
        })
    }
}

impl Unwinder {
    /// Creates one for a program that is loaded `bias` bytes above its link-time addresses.
    pub fn new(arch: Arch, bias: u64, library: HashMap<u64, Unwind>) -> Unwinder {
        let library = library.into_iter().map(|(addr, row)| (addr, Rc::new(row))).collect();
        Unwinder { arch, bias, library, program: HashMap::new(), rows: BTreeMap::new() }
    }

    /// Returns the registers as they will be when the function has returned. `is_called` says whether it has called
    /// another function, or the kernel. `None` if the stack cannot be unwound.
    pub fn caller(&mut self, image: &Image, at: &Registers, stack: Stack<'_>, is_called: bool) -> Option<Registers> {
        let row = self.row(image, at.ip, is_called)?;
        self.unwound(&row, at, stack)
    }

    fn unwound(&self, row: &Unwind, at: &Registers, stack: Stack<'_>) -> Option<Registers> {
        let base = *at.general.get(usize::from(row.base))?;
        let above = base.checked_add_signed(row.size.into())?;
        let mut next = *at;
        for (register, offset) in &row.saved {
            next.general[usize::from(*register)] = stack.u64(above.wrapping_add_signed((*offset).into()))?;
        }
        let ip = match row.return_at {
            Some(offset) => stack.u64(above.wrapping_add_signed(offset.into()))?,
            None => at.general[LINK],
        };
        let own = usize::from(stack_pointer(self.arch));
        // A stack grows downwards, so callers are above.
        if above < at.general[own] || (above == at.general[own] && row.return_at.is_some()) {
            return None;
        }
        next.general[own] = above;
        next.ip = ip & ((1 << ADDRESS_BITS) - 1);
        if self.arch == Arch::Aarch64 {
            next.general[LINK] = next.ip;
        }
        Some(next)
    }

    fn row(&mut self, image: &Image, ip: u64, is_called: bool) -> Option<Rc<Unwind>> {
        if let Some(row) = self.library.get(&ip) {
            return Some(Rc::clone(row));
        }
        if let Some(known) = self.program.get(&ip) {
            return known.clone();
        }
        // A call may be the last instruction of a function, so what follows it can be another one.
        let (_, row) = self.row_at(image, ip.wrapping_sub(self.bias).wrapping_sub(is_called.into()));
        if self.program.len() >= MOST_ROWS {
            self.program.clear();
        }
        self.program.insert(ip, row.clone());
        row
    }

    /// Returns where the row of the program's unwind table begins that has this instruction, by its address in the
    /// process. Most functions have a row for all of their code but its first and last instructions.
    pub fn row_begin(&mut self, image: &Image, ip: u64) -> u64 {
        self.row_at(image, ip.wrapping_sub(self.bias)).0
    }

    /// Returns the row at a link-time address: its begin, and how to unwind.
    fn row_at(&mut self, image: &Image, addr: u64) -> (u64, Option<Rc<Unwind>>) {
        let before = self.rows.range(..=addr).next_back();
        if let Some((begin, (_, row))) = before.filter(|(_, (end, _))| addr < *end) {
            return (*begin, row.clone());
        }
        // An instruction that the table does not have is remembered too.
        let (range, unwind) = unwind_row(image, addr).unwrap_or((addr..addr.saturating_add(1), None));
        if self.rows.len() >= MOST_ROWS {
            self.rows.clear();
        }
        let row = unwind.map(Rc::new);
        self.rows.insert(range.start, (range.end, row.clone()));
        (range.start, row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// A function of x86-64 that has saved rbx and has 8 bytes of its own.
    fn row() -> Unwind {
        Unwind { base: 4, size: 24, return_at: Some(-8), saved: vec![(3, -16)] }
    }

    fn at(sp: usize, value: u64) -> Registers {
        let mut registers = Registers { ip: 0x40, ..Registers::default() };
        (registers.general[sp], registers.general[3], registers.general[LINK]) = (value, 7, 0x1234);
        registers
    }

    #[test]
    fn a_caller_has_its_registers_back() {
        let unwinder = Unwinder::new(Arch::X86_64, 0, HashMap::new());
        let bytes = stack(&[1, 0xb0, 0x5000, 9]);
        let stack = Stack { start: 0x7000, bytes: &bytes };
        let caller = unwinder.unwound(&row(), &at(4, 0x7000), stack).unwrap();
        assert_eq!((caller.general[3], caller.general[4], caller.ip), (0xb0, 0x7018, 0x5000));
        assert_eq!(unwinder.unwound(&row(), &at(4, 0x7010), stack), None, "outside of the copy");
    }

    #[test]
    fn a_signed_address_is_an_address() {
        let unwinder = Unwinder::new(Arch::Aarch64, 0, HashMap::new());
        let bytes = stack(&[0, 0x00a5_0000_0000_5000, 0]);
        let stack = Stack { start: 0x7000, bytes: &bytes };
        let row = Unwind { base: 31, size: 16, return_at: Some(-8), saved: vec![(29, -16)] };
        let caller = unwinder.unwound(&row, &at(31, 0x7000), stack).unwrap();
        assert_eq!((caller.ip, caller.general[31], caller.general[LINK]), (0x5000, 0x7010, 0x5000));
        let leaf = Unwind { base: 31, size: 0, return_at: None, saved: Vec::new() };
        assert_eq!(unwinder.unwound(&leaf, &at(31, 0x7000), stack).unwrap().ip, 0x1234);
    }

    #[test]
    fn a_stack_that_does_not_grow_is_no_stack() {
        let unwinder = Unwinder::new(Arch::X86_64, 0, HashMap::new());
        let bytes = stack(&[1, 2, 3, 4]);
        let stack = Stack { start: 0x7000, bytes: &bytes };
        let row = Unwind { base: 3, size: 24, ..row() };
        let mut at = at(4, 0x7010);
        at.general[3] = 0x6ff0;
        assert_eq!(unwinder.unwound(&row, &at, stack), None);
    }

    #[test]
    fn values_are_where_the_code_has_them() {
        let bytes = stack(&[0x1122_3344_5566_7788]);
        let stack = Stack { start: 0x7000, bytes: &bytes };
        let at = at(4, 0x6ff8);
        let value = |place| at.value(place, stack, 0x1000);
        assert_eq!(value(Location::Stack { base: 4, offset: 8, bytes: 4 }), Some(0x5566_7788));
        assert_eq!(value(Location::Stack { base: 4, offset: 16, bytes: 8 }), None);
        assert_eq!(value(Location::Sum { register: 3, offset: -1 }), Some(6));
        assert_eq!(value(Location::Register { register: 3, bytes: 8 }), Some(7));
        assert_eq!(value(Location::Constant(0x20)), Some(0x1020));
    }
}
