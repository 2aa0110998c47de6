//! The names of the kernel's functions.

use std::fs;

/// The kernel's functions, by ascending address.
#[derive(Debug, Default)]
pub struct KernelSymbols {
    /// The address, and the beginning of the name in `names`.
    functions: Vec<(u64, u32)>,
    /// The names. Each ends with a newline, where the next in the file's order begins.
    names: String,
}

impl KernelSymbols {
    /// Reads those of the running kernel and its modules; empty if the kernel hides them (`kernel.kptr_restrict`).
    pub fn read() -> KernelSymbols {
        KernelSymbols::parse(&fs::read_to_string("/proc/kallsyms").unwrap_or_default())
    }

    /// Parses lines like `ffffffff8143bab0 T futex_setup_timer`, which may be followed by a tab and `[MODULE]`.
    fn parse(text: &str) -> KernelSymbols {
        let mut symbols = KernelSymbols::default();
        for line in text.lines() {
            let mut fields = line.split_ascii_whitespace();
            let (Some(addr), Some(kind), Some(name)) = (fields.next(), fields.next(), fields.next()) else { continue };
            let Ok(addr) = u64::from_str_radix(addr, 16) else { continue };
            if addr != 0 && matches!(kind, "t" | "T" | "w" | "W") {
                symbols.functions.push((addr, symbols.names.len() as u32));
                symbols.names.push_str(name);
                symbols.names.push('\n');
            }
        }
        symbols.functions.sort_unstable();
        // The vectors live as long as the agent and have grown by doubling.
        symbols.functions.shrink_to_fit();
        symbols.names.shrink_to_fit();
        symbols
    }

    /// Returns the function at or before this address.
    pub fn at(&self, addr: u64) -> Option<&str> {
        let next = self.functions.partition_point(|(start, _)| *start <= addr);
        let (_, name) = *self.functions.get(next.checked_sub(1)?)?;
        self.names.get(name as usize..)?.lines().next()
    }
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
        let symbols = KernelSymbols::parse(TEXT);
        let at = |addr| symbols.at(addr).unwrap_or("-");
        assert_eq!(at(0xffff_ffff_8100_0100), "futex_wait");
        assert_eq!(at(0xffff_ffff_8100_01ff), "futex_wait");
        assert_eq!(at(0xffff_ffff_8100_0200), "do_futex");
        assert_eq!(at(0xffff_ffff_c000_0010), "nf_hook");
        assert_eq!(at(0xffff_ffff_8100_00ff), "-");
        assert_eq!(at(0), "-");
    }

    #[test]
    fn hidden_addresses_have_no_names() {
        let symbols = KernelSymbols::parse("0000000000000000 T a\n0000000000000000 T b\n");
        assert_eq!(symbols.at(u64::MAX), None);
    }
}
