//! The names of the kernel's functions.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::sync::{Arc, Weak};
use std::time::Instant;

use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use flate2::Compression;
use parking_lot::Mutex;

/// The number of functions whose names are compressed together, and decompressed for one of them.
const IN_BLOCK: usize = 512;

/// The kernel's functions, by ascending address. A kernel has more than 100,000, of which the samples of a server show
/// few, so names are compressed until they are needed.
#[derive(Debug)]
pub struct KernelSymbols {
    blocks: Arc<[Block]>,
    /// The names that were needed, by the function's address.
    names: HashMap<u64, String>,
}

/// Some consecutive functions.
#[derive(Debug)]
struct Block {
    /// The address of the first one.
    start: u64,
    /// The addresses of all, relative to `start`.
    offsets: Box<[u32]>,
    /// The names, separated by newlines and compressed.
    names: Box<[u8]>,
}

impl Block {
    /// Compresses the beginning of a list of functions; returns it with the rest of the list.
    fn split_off<'a, 'b>(functions: &'b [(u64, &'a str)]) -> Option<(Block, &'b [(u64, &'a str)])> {
        let start = functions.first()?.0;
        let offset = |addr: u64| u32::try_from(addr - start).ok();
        let offsets: Box<[u32]> = functions.iter().take(IN_BLOCK).map_while(|(addr, _)| offset(*addr)).collect();
        let (own, rest) = functions.split_at(offsets.len());
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
        for (_, name) in own {
            encoder.write_all(name.as_bytes()).and_then(|()| encoder.write_all(b"\n")).ok()?;
        }
        Some((Block { start, offsets, names: encoder.finish().ok()?.into() }, rest))
    }

    /// Returns the index of the function at or before an address.
    fn index(&self, addr: u64) -> Option<usize> {
        let next = self.offsets.partition_point(|offset| self.start + u64::from(*offset) <= addr);
        next.checked_sub(1)
    }

    fn name(&self, index: usize) -> Option<String> {
        let mut names = String::new();
        DeflateDecoder::new(&self.names[..]).read_to_string(&mut names).ok()?;
        names.lines().nth(index).map(str::to_owned)
    }
}

impl KernelSymbols {
    /// Reads those of the running kernel and its modules; empty if the kernel hides them (`kernel.kptr_restrict`). They
    /// are shared by all who need them at the same time.
    pub fn read() -> KernelSymbols {
        static SHARED: Mutex<Weak<[Block]>> = Mutex::new(Weak::<[Block; 0]>::new());
        let mut shared = SHARED.lock();
        let blocks = shared.upgrade().unwrap_or_else(|| {
            let begun = Instant::now();
            let text = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
            let read = KernelSymbols::parse(&text).blocks;
            tracing::debug!("the kernel's functions were read in {} us", begun.elapsed().as_micros());
            *shared = Arc::downgrade(&read);
            read
        });
        KernelSymbols { blocks, names: HashMap::new() }
    }

    /// Parses lines like `ffffffff8143bab0 T futex_setup_timer`, which may be followed by a tab and `[MODULE]`.
    fn parse(text: &str) -> KernelSymbols {
        let mut functions: Vec<_> = text.lines().filter_map(function).collect();
        // The sort is stable: of several names of one function, the file's last one counts.
        functions.sort_by_key(|(addr, _)| *addr);
        let mut rest = &functions[..];
        let mut blocks = Vec::new();
        while let Some((block, more)) = Block::split_off(rest) {
            blocks.push(block);
            rest = more;
        }
        KernelSymbols { blocks: blocks.into(), names: HashMap::new() }
    }

    /// Returns the function at or before this address.
    pub fn at(&mut self, addr: u64) -> Option<&str> {
        let next = self.blocks.partition_point(|block| block.start <= addr);
        let block = &self.blocks[next.checked_sub(1)?];
        let index = block.index(addr)?;
        let start = block.start + u64::from(block.offsets[index]);
        Some(self.names.entry(start).or_insert_with(|| block.name(index).unwrap_or_default()))
    }
}

/// Returns the address and the name of the function in a line, if it is one.
fn function(line: &str) -> Option<(u64, &str)> {
    let mut fields = line.split_ascii_whitespace();
    let (addr, kind, name) = (fields.next()?, fields.next()?, fields.next()?);
    let addr = u64::from_str_radix(addr, 16).ok()?;
    (addr != 0 && matches!(kind, "t" | "T" | "w" | "W")).then_some((addr, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
ffffffff81000200 T do_futex
ffffffff81000100 t futex_wait
ffffffff81000180 d some_data
garbage
0000000000000000 T hidden
ffffffffc0000000 t nf_hook\t[nf_tables]
";

    #[test]
    fn an_address_has_the_name_of_the_function_before_it() {
        let mut symbols = KernelSymbols::parse(TEXT);
        let mut at = |addr| symbols.at(addr).unwrap_or("-").to_owned();
        assert_eq!(at(0xffff_ffff_8100_0100), "futex_wait");
        assert_eq!(at(0xffff_ffff_8100_01ff), "futex_wait");
        assert_eq!(at(0xffff_ffff_8100_0200), "do_futex");
        assert_eq!(at(0xffff_ffff_c000_0010), "nf_hook");
        assert_eq!(at(0xffff_ffff_8100_00ff), "-");
        assert_eq!(at(0), "-");
    }

    #[test]
    fn hidden_addresses_have_no_names() {
        let mut symbols = KernelSymbols::parse("0000000000000000 T a\n0000000000000000 T b\n");
        assert_eq!(symbols.at(u64::MAX), None);
    }

    /// More functions than are compressed together, some of them further apart than the offsets reach.
    #[test]
    fn each_function_is_in_one_block() {
        let addr = |i: u64| 0xffff_0000_0000_0000 + i * 16 + ((i / 1000) << 33);
        let text: String = (0..3000).map(|i| format!("{:x} t f{i}\n", addr(i))).collect();
        let mut symbols = KernelSymbols::parse(&text);
        for i in 0..3000 {
            assert_eq!(symbols.at(addr(i) + 15).map(str::to_owned), Some(format!("f{i}")));
        }
    }
}
