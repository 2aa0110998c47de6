use std::collections::BTreeSet;

use armtrace::measure::latch::pthread_rows;
use armtrace::symbols::{Arch, Image};

use super::{address, compiled, COMPILERS};

/// The primitives as the programs in the kernel number them.
const NONE: u32 = 0;
const MUTEX: u32 = 1;
const READ: u32 = 2;
const WRITE: u32 = 3;
const COND: u32 = 4;

/// Returns the primitives that a return address in this function stands for, and the number of such addresses.
fn primitives(image: &Image, function: &str) -> (BTreeSet<u32>, usize) {
    let range = image.function_at(address(image, function)).expect("its bounds");
    let rows = pthread_rows(image);
    let inside: Vec<u32> = rows.range(range.start + 1..=range.end).map(|(_, row)| row.primitive).collect();
    (inside.iter().copied().collect(), inside.len())
}

#[test]
fn code_of_the_c_library_tells_the_primitive_that_only_it_serves() {
    for compiler in COMPILERS {
        let image = compiled(compiler, &["library.c"], &["-ffreestanding"]);
        for (function, primitive, calls) in [
            ("pthread_mutex_lock", MUTEX, 1),
            ("pthread_rwlock_rdlock", READ, 1),
            // A system call, and a call.
            ("pthread_rwlock_wrlock", WRITE, 2),
            ("pthread_cond_wait", COND, 2),
            // A part of it, to which it jumps.
            ("mutex_slow", MUTEX, 2),
            // Parts of several, and what is called, which has no meaning of its own.
            ("shared_slow", NONE, 1),
            ("pause_a_little", NONE, 1),
        ] {
            let expected = (BTreeSet::from([primitive]), calls);
            assert_eq!(primitives(&image, function), expected, "{compiler}: {function}");
        }
        assert_eq!(primitives(&image, "puts"), (BTreeSet::new(), 0), "{compiler}");
        let wait = image.function_at(address(&image, "pthread_cond_wait")).expect("its bounds");
        for (at, row) in pthread_rows(&image).range(wait.start + 1..=wait.end) {
            // Both functions save one register beside the return address, which the caller has pushed on x86_64.
            let expected = if image.arch() == Arch::X86_64 { row.size - 8 } else { 8 };
            assert_eq!(row.return_at, expected, "{compiler}: {at:#x}");
        }
    }
}
