//! Passes libFuzzer's inputs to one of the functions in `src/fuzzing/`, which the variable `ARMTRACE_FUZZ` names.

#![no_main]

use std::sync::LazyLock;

use armtrace::fuzzing::{self, Examine};
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<Examine> = LazyLock::new(|| {
    let name = std::env::var("ARMTRACE_FUZZ").expect("ARMTRACE_FUZZ names a target");
    fuzzing::target(&name).unwrap_or_else(|| panic!("there is no target {name}"))
});

fuzz_target!(|input: &[u8]| TARGET(input));
