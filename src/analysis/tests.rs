use std::collections::HashSet;

use super::samples::{aarch64, x86, BASE, DELAY, SLEEP, SYSCALL};
use super::*;
use crate::isa::{decode_bytes, Flow, Probing, Test};
use crate::symbols::Arch;
use Probing::{Emulated, Refused, Stepped};

fn slow() -> Slow {
    Slow { spin: HashSet::from([DELAY]), sleep: HashSet::from([SLEEP]), syscall: HashSet::from([SYSCALL]) }
}

fn function(arch: Arch, bytes: &[u8]) -> Function {
    Function::from_bytes(arch, BASE, bytes).unwrap()
}

fn x86_function(bytes: &[u8]) -> Function {
    function(Arch::X86_64, bytes)
}

fn arm_function(bytes: &[u8]) -> Function {
    function(Arch::Aarch64, bytes)
}

/// Returns (offset, repeats, per round) of a site.
fn short(site: &Site) -> (u64, bool, bool) {
    (site.addr - BASE, site.repeats, site.per_round)
}

/// Returns (offset, kind, condition) of every end.
fn ends(sites: &WaitSites) -> Vec<(u64, EndKind, Option<Condition>)> {
    sites.ends.iter().map(|e| (e.site.addr - BASE, e.kind, e.when)).collect()
}

fn flags(condition: u8, holds: bool) -> Option<Condition> {
    Some(Condition { test: Test::Flags(condition), holds })
}

#[test]
fn follows_arguments_in_x86_code() {
    let f = x86_function(x86::PLACES);
    let register = |register| Some(Location::Register { register, bytes: 8 });
    let rbp = |offset, bytes| Some(Location::Stack { base: 5, offset, bytes });
    let at = |offset| f.arguments_at(BASE + offset);
    let (rdi, rsi, rdx, rcx, r8, r9) = (register(7), register(6), register(2), register(1), register(8), register(9));
    assert_eq!(at(0x00), [rdi, rsi, rdx, rcx, r8, r9]);
    // One of the two paths contains the call: only what is saved survives.
    let r13 = Some(Location::Register { register: 13, bytes: 4 });
    assert_eq!(at(0x2a), [register(12), rbp(-0x28, 8), rbp(-0x2c, 4), rbp(-0x38, 8), r13, None]);
    // A store into the second argument's slot.
    assert_eq!(at(0x2f)[1], None);
    // A copy before a conditional move to the register that held it.
    assert_eq!(at(0x3a)[0], register(0));
    // Not an instruction.
    assert_eq!(at(0x0b), [None; 6]);
}

#[test]
fn follows_arguments_in_arm64_code() {
    let f = arm_function(aarch64::PLACES);
    let register = |register| Some(Location::Register { register, bytes: 8 });
    let x29 = |offset, bytes| Some(Location::Stack { base: 29, offset, bytes });
    let at = |offset| f.arguments_at(BASE + offset);
    assert_eq!(at(0x00), [0, 1, 2, 3, 4, 5].map(register));
    assert_eq!(at(0x30), [register(19), x29(-0x18, 8), x29(-0xc, 4), x29(0x20, 8), x29(0x28, 8), None]);
    assert_eq!(at(0x38)[1], None);
    assert_eq!(at(0x40)[0], None);
    // Below the stack pointer nothing is safe.
    assert_eq!(at(0x50), [None; 6]);
}

#[test]
fn knows_constant_arguments_of_calls() {
    let f = x86_function(x86::WAKE);
    assert_eq!(f.constants_at(BASE + 0x11), [Some(0xca), None, Some(0x80), None, None, None]);
    assert_eq!(f.constants_at(BASE + 0x33)[2], Some(0x81));
    assert_eq!(arm_function(aarch64::SPIN).constants_at(BASE + 0x40)[..3], [Some(98), None, Some(0x80)]);
}

#[test]
fn finds_the_contended_part_of_a_mutex() {
    let found = x86_function(x86::MUTEX).contended(&slow()).unwrap();
    assert_eq!(found.start, BASE + 0x2a);
    // The site follows the first block, which has no emulated instruction; the retry passes it too.
    assert_eq!(short(&found.begin), (0x34, true, false));
    let rbp = |offset, bytes| Some(Location::Stack { base: 5, offset, bytes });
    assert_eq!(
        found.begin.args[..3],
        [Some(Location::Register { register: 3, bytes: 8 }), rbp(-0x20, 8), rbp(-0x24, 4)]
    );
    assert_eq!(ends(&found), [(0x73, EndKind::Final, None)]);
    assert!(found.begin.emulated && found.ends[0].site.emulated);

    let found = arm_function(aarch64::MUTEX).contended(&slow()).unwrap();
    assert_eq!(found.start, BASE + 0x30);
    assert_eq!(short(&found.begin), (0x34, false, false));
    assert_eq!(found.begin.args[0], Some(Location::Register { register: 19, bytes: 8 }));
    // The argument is still whole, where it was passed.
    assert_eq!(found.begin.args[2], Some(Location::Register { register: 2, bytes: 8 }));
    assert_eq!(ends(&found), [(0x88, EndKind::Final, None)]);
}

/// `push %rbp; cmpq $0,(%rdi); je first; cmpq $0,8(%rdi); je second; pop %rbp; ret`, then two parts that sleep: the
/// second begins with a `jmp` to its call, and each returns.
#[test]
fn each_sleep_begins_where_it_cannot_be_avoided() {
    let mut code = vec![0x55, 0x48, 0x83, 0x3f, 0, 0x74, 9, 0x48, 0x83, 0x7f, 8, 0, 0x74, 9, 0x5d, 0xc3];
    let call = |at: u64| {
        let to = (SLEEP as i64 - (BASE + at + 5) as i64) as i32;
        [&[0xe8][..], &to.to_le_bytes()].concat()
    };
    code.extend(call(0x10));
    code.extend([0x5d, 0xc3, 0xeb, 0]);
    code.extend(call(0x19));
    code.extend([0x5d, 0xc3]);
    let slow = Slow { sleep: HashSet::from([SLEEP]), ..Slow::default() };
    let found = x86_function(&code).contended(&slow).unwrap();
    assert_eq!((found.start, short(&found.begin)), (BASE + 0x10, (0x10, false, false)));
    assert_eq!(found.begins.iter().map(short).collect::<Vec<_>>(), [(0x17, false, false)]);
    // The wait is over after each call.
    assert_eq!(ends(&found).iter().map(|(at, ..)| *at).collect::<Vec<_>>(), [0x16, 0x1f]);
}

#[test]
fn does_not_begin_a_wait_inside_a_spin_loop() {
    let found = x86_function(x86::TIGHT).contended(&slow()).unwrap();
    // `mov $0x1e,%esi` is expensive, but runs once per wait; the `je` after it would run in every round.
    assert_eq!((short(&found.begin), found.begin.emulated), ((0x13, false, false), false));
}

#[test]
fn no_probe_inside_an_exclusive_sequence() {
    let insns = decode_bytes(Arch::Aarch64, BASE, aarch64::MUTEX);
    let at = |offset: u64| insns[offset as usize / 4].probing;
    assert_eq!([at(0x18), at(0x1c), at(0x20), at(0x24), at(0x28)], [Stepped, Refused, Refused, Refused, Emulated]);
}

#[test]
fn a_retry_may_end_a_wait() {
    let found = x86_function(x86::RETRY).contended(&slow()).unwrap();
    assert_eq!((found.start, short(&found.begin)), (BASE + 0x18, (0x1c, true, false)));
    let expected = [(0x44, EndKind::Maybe, None), (0x4a, EndKind::Maybe, flags(2, true))];
    assert_eq!(ends(&found), expected);

    let found = arm_function(aarch64::RETRY).contended(&slow()).unwrap();
    assert_eq!((found.start, short(&found.begin)), (BASE + 0x20, (0x24, true, false)));
    assert_eq!(ends(&found), [(0x54, EndKind::Maybe, None), (0x5c, EndKind::Maybe, flags(3, true))]);
}

#[test]
fn begins_behind_a_spin_loop_that_has_no_block_before_it() {
    let found = x86_function(x86::ROUND).contended(&slow()).unwrap();
    assert_eq!(short(&found.begin), (0x1c, true, false));
    let found = arm_function(aarch64::ROUND).contended(&slow()).unwrap();
    assert_eq!(short(&found.begin), (0x2c, true, false));
}

#[test]
fn a_whole_function_ends_on_a_condition() {
    let found = x86_function(x86::SPIN).whole_function(&slow()).unwrap();
    assert_eq!((found.start, short(&found.begin)), (BASE, (0, false, false)));
    let expected = [(0x25, EndKind::Final, flags(4, true)), (0x49, EndKind::Final, flags(5, false))];
    assert_eq!(ends(&found), expected);
    assert_eq!(found.ends.iter().map(|e| e.site.per_round).collect::<Vec<_>>(), [true, false]);
    // Nothing slow is known, but the loops show as much.
    assert_eq!(x86_function(x86::SPIN).whole_function(&Slow::default()), Some(found));
}

#[test]
fn returns_are_good_ends_on_arm64() {
    let found = arm_function(aarch64::SPIN).whole_function(&slow()).unwrap();
    // The entry block has no emulated instruction, so the site is the first one after the landing pad.
    assert_eq!((short(&found.begin), found.begin.emulated), ((4, false, false), false));
    assert_eq!(ends(&found), [(0x58, EndKind::Final, None), (0x68, EndKind::Final, None)]);
}

#[test]
fn waking_others_is_not_waiting() {
    let found = x86_function(x86::WAKE).whole_function(&slow()).unwrap();
    assert_eq!(ends(&found), [(0x24, EndKind::Final, None)]);
    // Unless stated otherwise, any call may wait, and nothing after this one is emulated.
    assert_eq!(ends(&x86_function(x86::WAKE).whole_function(&Slow::default()).unwrap()), []);
}

#[test]
fn prefers_one_end_that_all_waits_pass() {
    let found = x86_function(x86::CANARY).whole_function(&slow()).unwrap();
    assert_eq!(ends(&found), [(0x33, EndKind::Final, None)]);
    assert_eq!(found.ends[0].site.args[0], Some(Location::Register { register: 3, bytes: 8 }));
}

#[test]
fn a_function_without_slow_calls_has_no_contended_part() {
    assert_eq!(x86_function(x86::PLACES).contended(&Slow::default()), None);
    // mov $1,%eax; jmp *%rax: the target is not known.
    let f = x86_function(&[0xb8, 1, 0, 0, 0, 0xff, 0xe0]);
    assert!(!f.is_complete());
    assert_eq!(f.whole_function(&slow()), None);
}

#[test]
fn follows_a_function_into_its_cold_part() {
    const COLD: u64 = 0x20000;
    const OTHER: u64 = 0x3000;
    let bytes = |at: u64| match at {
        BASE => x86::HOT,
        COLD => x86::COLD,
        // push %rbp; pop %rbp; ret: a function that another one ends with a jump to.
        _ => &[0x55, 0x5d, 0xc3],
    };
    let range = |at: u64| at..at + bytes(at).len() as u64;
    let decode = |r: std::ops::Range<u64>| decode_bytes(Arch::X86_64, r.start, bytes(r.start));
    let function_at = |addr: u64| [BASE, COLD, OTHER].map(range).into_iter().find(|r| r.contains(&addr));
    let insns = function::with_cold_parts(range(BASE), &decode, &function_at);
    assert_eq!(insns.len(), 9);
    let found = Function::from_insns(BASE, insns, Default::default()).unwrap().contended(&slow()).unwrap();
    assert_eq!((found.start, found.begin.addr), (COLD, COLD + 3));
    assert_eq!(found.ends.iter().map(|e| (e.site.addr, e.kind)).collect::<Vec<_>>(), [(COLD + 8, EndKind::Final)]);

    // jmp OTHER is a tail call.
    let tail = |r: std::ops::Range<u64>| match r.start {
        BASE => decode_bytes(Arch::X86_64, BASE, &[0xe9, 0xfb, 0x2f, 0xff, 0xff]),
        at => decode_bytes(Arch::X86_64, at, bytes(at)),
    };
    assert_eq!(function::with_cold_parts(range(BASE), &tail, &function_at).len(), 1);
}

#[test]
fn survives_any_bytes() {
    // A fixed pseudo-random sequence (xorshift), so that a failure can be reproduced.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..300 {
        let bytes: Vec<u8> = (0..512).map(|_| random() as u8).collect();
        for arch in [Arch::X86_64, Arch::Aarch64] {
            survives(arch, &bytes);
        }
        // Mostly branches within the function: conditional ones, jumps and calls.
        let mut jumps = Vec::new();
        for _ in 0..128 {
            let r = random();
            let offset = (r >> 8) as u32 & 0x3f;
            let word = match r & 3 {
                0 => 0x5400_0000 | (offset.wrapping_sub(32) & 0x7ffff) << 5 | (r >> 32) as u32 & 15,
                1 => 0x1400_0000 | offset.wrapping_sub(32) & 0x3ff_ffff,
                2 => 0xaa00_03e0 | ((r >> 16) as u32 & 31) << 16 | (r >> 24) as u32 & 31,
                _ => r as u32,
            };
            jumps.extend(word.to_le_bytes());
        }
        survives(Arch::Aarch64, &jumps);
    }
}

fn survives(arch: Arch, bytes: &[u8]) {
    let insns = decode_bytes(arch, BASE, bytes);
    assert!(insns.iter().all(|i| i.len > 0 && i.end() <= BASE + bytes.len() as u64));
    assert!(insns.iter().all(|i| !i.text().is_empty()));
    let calls = insns.iter().filter_map(|i| match i.flow {
        Flow::Call(to) => to,
        _ => None,
    });
    let slow = Slow { sleep: calls.collect(), ..Slow::default() };
    // The same at the very end of the address space.
    for base in [BASE, u64::MAX - 15] {
        if let Some(f) = Function::from_bytes(arch, base, bytes) {
            let _ = f.contended(&slow);
            let _ = f.whole_function(&slow);
            let _ = f.whole_function(&Slow::default());
        }
    }
}

#[test]
fn analyses_the_largest_functions_quickly() {
    let begun = std::time::Instant::now();
    // As many blocks as possible: each instruction jumps backwards, or falls through.
    let arm: Vec<u8> =
        (0..20_000u32).flat_map(|i| (0x5400_0001 | (i % 60).wrapping_neg() << 5 & 0xff_ffe0).to_le_bytes()).collect();
    survives(Arch::Aarch64, &arm);
    // One long chain of pushes and calls.
    survives(Arch::X86_64, &[0x55, 0xe8, 0, 0, 0, 0].repeat(9_000));
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
}

#[test]
fn the_return_address_is_followed() {
    // push %rbp; mov %rsp,%rbp; push %rbx; nop; ret
    let f = x86_function(&[0x55, 0x48, 0x89, 0xe5, 0x53, 0x90, 0xc3]);
    let stack = |base, offset| Some(Location::Stack { base, offset, bytes: 8 });
    assert_eq!(f.return_address_at(BASE), stack(4, 0));
    assert_eq!(f.return_address_at(BASE + 1), stack(4, 8));
    assert_eq!(f.return_address_at(BASE + 5), stack(5, 8));
    // paciasp; bl; nop; ret
    let words: [u32; 4] = [0xd503_233f, 0x9400_0010, 0xd503_201f, 0xd65f_03c0];
    let f = arm_function(&words.map(u32::to_le_bytes).concat());
    assert_eq!(f.return_address_at(BASE + 4), Some(Location::Register { register: 30, bytes: 8 }));
    assert_eq!(f.return_address_at(BASE + 8), None);
}

#[test]
fn members_of_arguments_are_passed_on() {
    // lea 0x8(%rsi),%rdi; lea -0x8(%rdi),%rsi; nop
    let f = x86_function(&[0x48, 0x8d, 0x7e, 0x08, 0x48, 0x8d, 0x77, 0xf8, 0x90, 0xc3]);
    let member = |offset| Some(Passed::Member { argument: 1, offset });
    assert_eq!(f.passed_at(BASE + 8)[..3], [member(8), member(0), Some(Passed::Member { argument: 2, offset: 0 })]);
    // add x0, x1, #8; sub x1, x0, #8; mov w2, w2
    let words: [u32; 4] = [0x9100_2020, 0xd100_2001, 0x2a02_03e2, 0xd65f_03c0];
    let f = arm_function(&words.map(u32::to_le_bytes).concat());
    assert_eq!(f.passed_at(BASE + 12)[..3], [member(8), member(0), None]);
}

#[test]
fn an_argument_may_be_an_addition_to_some_register() {
    // lea 0x20(%rbx),%rdi; lea 0x8(%rbx),%rax; mov %rax,%rsi; nop; ret
    let f = x86_function(&[0x48, 0x8d, 0x7b, 0x20, 0x48, 0x8d, 0x43, 0x08, 0x48, 0x89, 0xc6, 0x90, 0xc3]);
    assert_eq!([0, 1, 2].map(|number| f.added_for(BASE + 11, number)), [Some(0x20), Some(8), None]);
    // lea 0x8(%rsp),%rdi, an address on the stack; nop; ret
    let f = x86_function(&[0x48, 0x8d, 0x7c, 0x24, 0x08, 0x90, 0xc3]);
    assert_eq!(f.added_for(BASE + 5, 0), None);
}

#[test]
fn stores_of_arguments_tell_a_layout() {
    let stores = |f: &Function, argument| -> Vec<(i64, u32)> { f.stores(argument, 0).collect() };
    // mov %rdi,%rbx; mov %rsi,0x38(%rbx); mov %edx,0x20(%rdi); ret
    let f = x86_function(&[0x48, 0x89, 0xfb, 0x48, 0x89, 0x73, 0x38, 0x89, 0x57, 0x20, 0xc3]);
    assert_eq!((stores(&f, 1), stores(&f, 2)), (vec![(0x38, u32::MAX)], vec![(0x20, u32::MAX)]));
    // add x3, x0, #0x10; str x1, [x3, #0x28]; ret
    let words: [u32; 3] = [0x9100_4003, 0xf900_1461, 0xd65f_03c0];
    let f = arm_function(&words.map(u32::to_le_bytes).concat());
    assert_eq!(stores(&f, 1), [(0x38, u32::MAX)]);
    // stp x1, x2, [x19, #0x30], with which MySQL 9.7.4 creates an rw-lock, after mov x19, x0; ret
    let words: [u32; 3] = [0xaa00_03f3, 0xa903_0a61, 0xd65f_03c0];
    let f = arm_function(&words.map(u32::to_le_bytes).concat());
    assert_eq!((stores(&f, 1), stores(&f, 2)), (vec![(0x30, u32::MAX)], vec![(0x38, u32::MAX)]));
}

#[test]
fn bit_fields_tell_which_bits_they_keep() {
    let stores = |f: &Function| -> Vec<(i64, u32)> { f.stores(2, 0).collect() };
    // How MySQL 8.0.12 creates an rw-lock: mov %edx,%eax; and $0x1fff,%ax; movzwl 0x58(%rdi),%edx; and $0xe000,%dx; or
    // %eax,%edx; mov %dx,0x58(%rdi); ret
    let code = [
        0x89, 0xd0, 0x66, 0x25, 0xff, 0x1f, 0x0f, 0xb7, 0x57, 0x58, 0x66, 0x81, 0xe2, 0x00, 0xe0, 0x09, 0xc2, 0x66,
        0x89, 0x57, 0x58, 0xc3,
    ];
    assert_eq!(stores(&x86_function(&code)), [(0x58, 0x1fff)]);
    // If the old bits are not cleared, nothing is known: the same code with `and $0xffff,%dx`.
    let mut other = code;
    other[14] = 0xff;
    assert_eq!(stores(&x86_function(&other)), []);
    // ldr w3, [x0, #0x58]; bfi w3, w2, #0, #13; str w3, [x0, #0x58]; ret
    let words: [u32; 4] = [0xb940_5803, 0x3300_3043, 0xb900_5803, 0xd65f_03c0];
    assert_eq!(stores(&arm_function(&words.map(u32::to_le_bytes).concat())), [(0x58, 0x1fff)]);
}

/// Returns the only wait inlined into a function that calls `SLEEP` with the latch as this argument.
fn inlined(bytes: &[u8], latch: usize, looked_at: &[i64]) -> Result<Inlined, &'static str> {
    let spin = HashSet::from([DELAY]);
    let calls = InlinedCalls { callee: SLEEP, latch, other: None, spin, looked_at: looked_at.to_vec() };
    let mut found = inlined::inlined_in(&x86_function(bytes), &calls);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0).1
}

/// Returns the sample with other bytes at an offset.
fn patched(sample: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut patched = sample.to_vec();
    patched[at..at + bytes.len()].copy_from_slice(bytes);
    patched
}

#[test]
fn an_inlined_wait_begins_behind_the_failed_attempt_and_ends_with_the_mutex() {
    let found = inlined(x86::INLINED, 0, &[]).unwrap();
    assert_eq!(found.region, Region::Closed);
    assert_eq!(short(&found.begin), (0x30, true, false));
    let [latch, file, line, ..] = found.begin.args;
    assert_eq!(latch, Some(Location::Register { register: 3, bytes: 8 }));
    assert_eq!((file, line), (Some(Location::Constant(0x3000)), Some(Location::Constant(0x256))));
    let ends: Vec<_> = found.ends.iter().map(|e| (e.site.addr - BASE, e.kind, e.when)).collect();
    assert_eq!(ends, [(0x64, EndKind::Final, None)]);
}

#[test]
fn an_inlined_wait_that_goes_back_to_its_first_attempt_may_end_there() {
    let found = inlined(x86::INLINED_RETRY, 1, &[0x18, 0x20]).unwrap();
    assert_eq!((found.region, found.looked_at), (Region::Retries, Some(0x20)));
    assert_eq!(short(&found.begin), (0x2c, true, true));
    assert_eq!(found.begin.args[1], Some(Location::Constant(0x20000)));
    assert_eq!(found.begin.args[4], Some(Location::Constant(0xb98)));
    let ends: Vec<_> = found.ends.iter().map(|e| (e.site.addr - BASE, e.kind, e.when)).collect();
    assert_eq!(ends, [(0x3c, EndKind::Maybe, None)]);
}

#[test]
fn an_inlined_wait_may_begin_behind_an_exchange() {
    // xchg %rdx,(%rbx); test %rdx,%rdx; nop, and the following je
    let exchange = [0x48, 0x87, 0x13, 0x48, 0x85, 0xd2, 0x90];
    let found = inlined(&patched(x86::INLINED, 0x17, &exchange), 0, &[]).unwrap();
    assert_eq!(short(&found.begin), (0x30, true, false));
}

#[test]
fn an_inlined_wait_without_proof_of_its_latch_is_left_out() {
    let without = |at: usize, bytes: &[u8], what: &str| {
        let found = inlined(&patched(x86::INLINED, at, bytes), 0, &[]);
        assert!(found.is_err(), "{what}: {found:?}");
    };
    without(0x1d, &[0x16], "the first attempt is for another latch");
    without(0x85, &[0x48, 0x89, 0xf7], "it sleeps for another latch");
    without(0x3c, &[0x83, 0xc3, 0x01, 0x90], "its latch changes while it spins");
    without(0x19, &[0x90, 0x48, 0x0f, 0xb1, 0x13], "nothing is attempted before it");
    without(0x1e, &[0x75], "it sleeps when the first attempt has succeeded");
    without(0x37, &[0xb8], "it does not spin");
    assert!(inlined(x86::INLINED_RETRY, 1, &[0x18]).is_err(), "what tells the kind of mutex is not looked at");
}

#[test]
fn a_function_is_left_by_returns_and_by_jumps_to_others() {
    let exits = |code: &[u8]| {
        let exits = Function::from_bytes(Arch::X86_64, 0x1000, code).unwrap().exits()?;
        Some(exits.iter().map(|site| (site.addr, site.emulated)).collect::<Vec<_>>())
    };
    // test %edi,%edi; jne to the jmp; ret; jmp to another function
    let both = [0x85, 0xff, 0x75, 0x01, 0xc3, 0xe9, 0xf6, 0x0f, 0x00, 0x00];
    assert_eq!(exits(&both), Some(vec![(0x1004, false), (0x1005, true)]));
    // test %edi,%edi; jne to another function; ret
    assert_eq!(exits(&[0x85, 0xff, 0x0f, 0x85, 0xf8, 0x0f, 0x00, 0x00, 0xc3]), None, "it leaves only sometimes");
    // jmp *%rax
    assert_eq!(exits(&[0xff, 0xe0]), None);
}
