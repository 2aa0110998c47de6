//! Tests what the analysis says of each sample function, against `samples/functions.txt`.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use super::function::Function;
use super::inlined::{inlined_in, wait_loops, InlinedCalls};
use super::pointers::{Pointers, Store};
use super::samples::{aarch64, x86, BASE, DELAY, SLEEP, SYSCALL};
use super::wait::{Site, Slow, WaitSites};
use crate::golden::compare;
use crate::symbols::Arch;

/// Every call or jump to one of these is slow, in each of the ways that the analysis distinguishes.
fn ways_to_be_slow() -> [(&'static str, Slow); 4] {
    let (spin, sleep, syscall) = (HashSet::from([DELAY]), HashSet::from([SLEEP]), HashSet::from([SYSCALL]));
    [
        ("all", Slow { spin: spin.clone(), sleep: sleep.clone(), syscall: syscall.clone() }),
        ("spins", Slow { spin, ..Slow::default() }),
        ("sleeps", Slow { sleep, ..Slow::default() }),
        ("nothing", Slow::default()),
    ]
}

fn shown_site(site: &Site) -> String {
    let flags =
        [(site.emulated, "emulated"), (site.is_call, "call"), (site.repeats, "repeats"), (site.per_round, "per round")];
    let flags: String = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| format!(" {name}")).collect();
    format!("+{:#x} {}{flags}", site.addr.wrapping_sub(BASE), site.text)
}

fn shown_waits(waits: Option<&WaitSites>) -> String {
    let Some(waits) = waits else { return " none\n".to_owned() };
    let mut text = format!(" from +{:#x}\n", waits.start.wrapping_sub(BASE));
    for begin in std::iter::once(&waits.begin).chain(&waits.begins) {
        _ = writeln!(text, "  begin {}", shown_site(begin));
    }
    for end in &waits.ends {
        _ = writeln!(text, "  {:?} {:?} {}", end.kind, end.when, shown_site(&end.site));
    }
    text
}

/// Returns those of up to six values that are known.
fn some<T: std::fmt::Debug>(what: &str, values: &[Option<T>]) -> String {
    let known = values.iter().enumerate().filter_map(|(n, value)| Some(format!(" {n}:{:x?}", value.as_ref()?)));
    let known: String = known.collect();
    if known.is_empty() {
        known
    } else {
        format!(" {what}{known};")
    }
}

/// Returns all that the analysis says about a function: its waits, and what is known at each instruction.
fn everything(name: &str, arch: Arch, bytes: &[u8]) -> String {
    let f = Function::from_bytes(arch, BASE, bytes).expect("a function");
    let mut text = format!("== {name}, complete: {}\n", f.is_complete());
    for (what, slow) in ways_to_be_slow() {
        _ = write!(text, "contended, {what}:{}", shown_waits(f.contended(&slow).as_ref()));
        _ = write!(text, "whole, {what}:{}", shown_waits(f.whole_function(&slow).as_ref()));
    }
    let loops = wait_loops(&f, &HashSet::from([SLEEP]), &HashSet::from([DELAY])).into_iter().flatten();
    for inlined in loops {
        _ = writeln!(text, "loop: {:?}, {}, {} ends", inlined.region, shown_site(&inlined.begin), inlined.ends.len());
    }
    for (latch, other, looked_at) in
        [(0, None, &[][..]), (1, None, &[0x18, 0x20][..]), (1, Some(2), &[][..]), (0, Some(0), &[][..])]
    {
        let spin = HashSet::from([DELAY]);
        let calls = InlinedCalls { callee: SLEEP, latch, other, spin, looked_at: looked_at.to_vec() };
        for (at, found) in inlined_in(&f, &calls) {
            _ = write!(text, "inlined at +{:#x}, latch {latch}, {other:?}, {looked_at:?}:", at - BASE);
            match found {
                Err(why) => _ = writeln!(text, " {why}"),
                Ok(found) => {
                    _ = writeln!(text, " {:?}, looks at {:?}", found.region, found.looked_at);
                    _ = writeln!(text, "  begin {};{}", shown_site(&found.begin), some("at", &found.begin.args));
                    for end in found.ends {
                        let site = shown_site(&end.site);
                        _ = writeln!(text, "  {:?} {:?} {site};{}", end.kind, end.when, some("at", &end.site.args));
                    }
                }
            }
        }
    }
    for argument in 0..6 {
        let mut stores: Vec<(i64, u32)> = f.stores(argument, 0).collect();
        stores.sort_unstable();
        if !stores.is_empty() {
            _ = writeln!(text, "stores of {argument}: {stores:x?}");
        }
    }
    let always: HashSet<u64> = f.always_passed().map(|insn| insn.addr).collect();
    let pointers = Pointers::with(&f, arch, HashMap::new());
    for insn in f.insns() {
        let at = insn.addr;
        let mark = if always.contains(&at) { '*' } else { ' ' };
        _ = write!(text, "{mark}+{:#04x} {:<28}", at - BASE, insn.text());
        text += &some("at", &f.arguments_at(at));
        text += &some("passes", &f.passed_at(at));
        text += &some("return", &[f.return_address_at(at)]);
        text += &some("left", &[0, 1].map(|number| f.left_for(at, number)));
        text += &some("added", &[0, 1].map(|number| f.added_for(at, number)));
        let passed: Vec<_> = pointers.passed(at).iter().map(|pointer| Some(*pointer)).collect();
        text += &some("pointers", &passed);
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    for call in f.handed_on() {
        _ = writeln!(text, "hands on to {:#x}:{}", call.callee, some("", &call.arguments));
    }
    let shown = |store: &Store| format!("writes {} bytes: {:x?} at {:x?}\n", store.bytes, store.value, store.to);
    let mut stores: Vec<String> = pointers.stores().iter().map(shown).collect();
    stores.sort_unstable();
    text.extend(stores);
    _ = writeln!(text, "returns {:x?}, may make it: {}", pointers.returned(), pointers.may_make_what_it_returns(arch));
    let used: Vec<u8> = (0..6).filter(|argument| pointers.uses(*argument)).collect();
    _ = writeln!(text, "uses {used:?}\n");
    text
}

/// `ARMTRACE_BLESS=1 cargo test --lib each_sample` writes the file anew.
#[test]
fn each_sample_is_known_as_before() {
    let mut all = String::new();
    for (name, bytes) in [
        ("MUTEX", x86::MUTEX),
        ("TIGHT", x86::TIGHT),
        ("RETRY", x86::RETRY),
        ("ROUND", x86::ROUND),
        ("SPIN", x86::SPIN),
        ("WAKE", x86::WAKE),
        ("CANARY", x86::CANARY),
        ("PLACES", x86::PLACES),
        ("HOT", x86::HOT),
        ("COLD", x86::COLD),
        ("INLINED", x86::INLINED),
        ("INLINED_RETRY", x86::INLINED_RETRY),
    ] {
        all += &everything(&format!("x86_64 {name}"), Arch::X86_64, bytes);
    }
    for (name, bytes) in [
        ("MUTEX", aarch64::MUTEX),
        ("RETRY", aarch64::RETRY),
        ("ROUND", aarch64::ROUND),
        ("SPIN", aarch64::SPIN),
        ("PLACES", aarch64::PLACES),
    ] {
        all += &everything(&format!("aarch64 {name}"), Arch::Aarch64, bytes);
    }
    compare("analysis/samples/functions.txt", &all);
}
