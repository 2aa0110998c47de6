use super::*;
use crate::symbols::Arch;
use Probing::{Emulated, Refused, Stepped};

const BASE: u64 = 0x10000;

fn one(arch: Arch, bytes: &[u8]) -> Insn {
    let found = decode_bytes(arch, BASE, bytes);
    assert_eq!(found.len(), 1, "{bytes:x?}");
    found[0]
}

#[test]
fn classifies_x86_instructions_as_the_kernel_does() {
    let cases: [(&[u8], Probing, Flow); 31] = [
        (&[0x55], Emulated, Flow::Next),                                     // push %rbp
        (&[0x41, 0x54], Emulated, Flow::Next),                               // push %r12
        (&[0x48, 0x55], Stepped, Flow::Next),                                // rex.W push %rbp
        (&[0x90], Emulated, Flow::Next),                                     // nop
        (&[0x66, 0x90], Refused, Flow::Next),                                // xchg %ax,%ax
        (&[0x41, 0x90], Refused, Flow::Next),                                // xchg %eax,%r8d
        (&[0xf3, 0x90], Stepped, Flow::Next),                                // pause
        (&[0x0f, 0x1f, 0x00], Stepped, Flow::Next),                          // nopl (%rax)
        (&[0xeb, 0x10], Emulated, Flow::Jump(BASE + 0x12)),                  // jmp
        (&[0xe9, 0x10, 0, 0, 0], Emulated, Flow::Jump(BASE + 0x15)),         // jmp
        (&[0x75, 0x10], Emulated, Flow::Branch(BASE + 0x12)),                // jne
        (&[0x3e, 0x74, 0x10], Refused, Flow::Branch(BASE + 0x13)),           // je,pt
        (&[0x0f, 0x84, 0x10, 0, 0, 0], Emulated, Flow::Branch(BASE + 0x16)), // je
        (&[0xe8, 0x10, 0, 0, 0], Emulated, Flow::Call(Some(BASE + 0x15))),   // call
        (&[0xff, 0xd0], Stepped, Flow::Call(None)),                          // call *%rax
        (&[0xff, 0xe0], Stepped, Flow::IndirectJump),                        // jmp *%rax
        (&[0xc3], Stepped, Flow::Return),                                    // ret
        (&[0xf3, 0x0f, 0x1e, 0xfa], Stepped, Flow::Next),                    // endbr64
        (&[0x48, 0x89, 0xe5], Stepped, Flow::Next),                          // mov %rsp,%rbp
        (&[0xf0, 0x83, 0x07, 0x02], Refused, Flow::Next),                    // lock addl $2,(%rdi)
        (&[0x87, 0x07], Stepped, Flow::Next),                                // xchg %eax,(%rdi)
        (&[0x0f, 0xae, 0xf0], Refused, Flow::Next),                          // mfence
        (&[0xc5, 0xf8, 0x77], Refused, Flow::Next),                          // vzeroupper
        (&[0x2e, 0x0f, 0x1f, 0x04, 0x00], Refused, Flow::Next),              // cs nopl (%rax,%rax,1)
        (&[0x0f, 0x0b], Refused, Flow::Trap),                                // ud2
        (&[0xf4], Refused, Flow::Trap),                                      // hlt
        (&[0xcc], Refused, Flow::Trap),                                      // int3
        (&[0x0f, 0x05], Refused, Flow::Next),                                // syscall
        (&[0x64, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0], Stepped, Flow::Next),     // mov %fs:0x28,%eax
        (&[0xe2, 0xfe], Stepped, Flow::Branch(BASE)),                        // loop
        (&[0x8e, 0xd0], Refused, Flow::Next),                                // mov %eax,%ss
    ];
    for (bytes, probing, flow) in cases {
        let insn = one(Arch::X86_64, bytes);
        assert_eq!((insn.probing, insn.flow), (probing, flow), "{bytes:x?} {}", insn.text());
        assert_eq!(insn.bytes(), bytes);
    }
}

#[test]
fn classifies_arm64_instructions_as_the_kernel_does() {
    let cases = [
        (0x14000002, Emulated, Flow::Jump(BASE + 8)),       // b
        (0x94000002, Emulated, Flow::Call(Some(BASE + 8))), // bl
        (0x54000041, Emulated, Flow::Branch(BASE + 8)),     // b.ne
        (0x34000041, Emulated, Flow::Branch(BASE + 8)),     // cbz w1
        (0xb7400041, Emulated, Flow::Branch(BASE + 8)),     // tbnz x1, #40
        (0x10000040, Emulated, Flow::Next),                 // adr
        (0xb0091a80, Emulated, Flow::Next),                 // adrp
        (0xd61f0200, Emulated, Flow::IndirectJump),         // br x16
        (0xd63f0100, Emulated, Flow::Call(None)),           // blr x8
        (0xd65f03c0, Emulated, Flow::Return),               // ret
        (0xd65f0bff, Refused, Flow::Return),                // retaa
        (0xd61f083f, Refused, Flow::IndirectJump),          // braaz x1
        (0xd503201f, Stepped, Flow::Next),                  // nop
        (0xd503203f, Refused, Flow::Next),                  // yield
        (0xd5033fdf, Stepped, Flow::Next),                  // isb
        (0xd503245f, Stepped, Flow::Next),                  // bti c
        (0xd503233f, Stepped, Flow::Next),                  // paciasp
        (0xd50323bf, Stepped, Flow::Next),                  // autiasp
        (0xd503221f, Refused, Flow::Next),                  // esb
        (0xd4000001, Refused, Flow::Next),                  // svc #0
        (0xd4200020, Refused, Flow::Trap),                  // brk #1
        (0x00000000, Refused, Flow::Trap),                  // udf #0
        (0x58000040, Refused, Flow::Next),                  // ldr x0, .+8
        (0x98000040, Refused, Flow::Next),                  // ldrsw x0, .+8
        (0x885ffc20, Refused, Flow::Next),                  // ldaxr w0, [x1]
        (0x8802fc20, Refused, Flow::Next),                  // stlxr w2, w0, [x1]
        (0x88dffc20, Stepped, Flow::Next),                  // ldar w0, [x1]
        (0xc8e0fc41, Stepped, Flow::Next),                  // casal x0, x1, [x2]
        (0x48207c82, Refused, Flow::Next),                  // casp x0, x1, x2, x3, [x4]
        (0xb8e00041, Stepped, Flow::Next),                  // ldaddal w0, w1, [x2]
        (0xf8bfc020, Stepped, Flow::Next),                  // ldapr x0, [x1]
        (0xd53bd040, Stepped, Flow::Next),                  // mrs x0, tpidr_el0
        (0xd51bd040, Refused, Flow::Next),                  // msr tpidr_el0, x0
        (0xd50339bf, Stepped, Flow::Next),                  // dmb ishld
        (0xa9bf7bfd, Stepped, Flow::Next),                  // stp x29, x30, [sp, #-16]!
        (0xaa0003f3, Stepped, Flow::Next),                  // mov x19, x0
        (0x2518e3e0, Refused, Flow::Next),                  // ptrue p0.b
    ];
    for (word, probing, flow) in cases {
        let insn = one(Arch::Aarch64, &u32::to_le_bytes(word));
        assert_eq!((insn.probing, insn.flow), (probing, flow), "{word:#x} {}", insn.text());
    }
}

#[test]
fn shows_instructions_in_assembler_syntax() {
    assert_eq!(one(Arch::X86_64, &[0x75, 0x10]).text(), "jne 0x10012");
    assert_eq!(one(Arch::X86_64, &[0x48, 0x89, 0x75, 0xe0]).text(), "mov %rsi,-0x20(%rbp)");
    let arm = |word| one(Arch::Aarch64, &u32::to_le_bytes(word)).text();
    assert_eq!(arm(0x94000002), "bl 0x10008");
    assert_eq!(arm(0x54000041), "b.ne 0x10008");
    assert_eq!(arm(0xb7400041), "tbnz x1,#40,0x10008");
    assert_eq!(arm(0xb0091a80), "adrp x0,0x12361000");
    assert_eq!(arm(0xd503245f), "bti c");
    assert_eq!(arm(0xd65f03c0), "ret");
    // The disassembler does not know `crc32cx`.
    assert!(!arm(0x9ac05c42).is_empty());
}

#[test]
fn resolves_static_addresses() {
    // lea 0x100(%rip),%rdi ; ret
    let insns = decode_bytes(Arch::X86_64, BASE, &[0x48, 0x8d, 0x3d, 0x00, 0x01, 0, 0, 0xc3]);
    assert_eq!([insns[0].memory, insns[1].memory], [Some(BASE + 0x107), None]);
    // adrp x0, 0x12361000; add x1, x0, #0x678; ldr x2, [x0, #16]; cbz x2, .+8; ldr x3, [x0, #8]; ldr x4, [x0, #24]; ret
    let words = [0xb009_1a80_u32, 0x9119_e001, 0xf940_0802, 0xb400_0042, 0xf940_0403, 0xf940_0c04, 0xd65f_03c0];
    // Another path leads to the branch target at the end, on which x0 may hold another page.
    let found: Vec<_> =
        decode_bytes(Arch::Aarch64, BASE, &words.map(u32::to_le_bytes).concat()).iter().map(|i| i.memory).collect();
    let page = 0x12361000;
    assert_eq!(found, [None, Some(page + 0x678), Some(page + 16), None, Some(page + 8), None, None]);
}

#[test]
fn a_cut_off_instruction_is_left_out() {
    assert_eq!(decode_bytes(Arch::X86_64, BASE, &[0x90, 0xe8, 0x00]).len(), 1);
    assert_eq!(decode_bytes(Arch::Aarch64, BASE, &[0x1f, 0x20, 0x03, 0xd5, 0x1f]).len(), 1);
    assert!(decode_bytes(Arch::X86_64, BASE, &[]).is_empty());
}

#[test]
fn padding_is_any_nop() {
    let nops: [&[u8]; 5] = [
        &[0x90],
        &[0x66, 0x90],
        &[0x0f, 0x1f, 0x00],
        &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
        &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    ];
    assert!(nops.iter().all(|bytes| one(Arch::X86_64, bytes).is_padding()));
    // pause; endbr64
    let others: [&[u8]; 2] = [&[0xf3, 0x90], &[0xf3, 0x0f, 0x1e, 0xfa]];
    assert!(!others.iter().any(|bytes| one(Arch::X86_64, bytes).is_padding()));
    assert!(one(Arch::Aarch64, &0xd503_201f_u32.to_le_bytes()).is_padding());
    assert!(!one(Arch::Aarch64, &0xd503_203f_u32.to_le_bytes()).is_padding());
}

#[test]
fn system_calls_are_no_other_traps() {
    // syscall; ud2; svc #0; brk #1
    assert!(one(Arch::X86_64, &[0x0f, 0x05]).is_system_call() && !one(Arch::X86_64, &[0x0f, 0x0b]).is_system_call());
    let arm = |word: u32| one(Arch::Aarch64, &word.to_le_bytes());
    assert!(arm(0xd400_0001).is_system_call() && !arm(0xd420_0020).is_system_call());
}

fn effects(insn: Insn) -> Vec<Effect> {
    let mut found = Vec::new();
    insn.effects(&mut found);
    found
}

#[test]
fn x86_instructions_move_values() {
    let (rsp, rbp) = (x86::RSP, x86::RBP);
    let top = |by| Effect::Offset { to: rsp, from: rsp, by };
    let popped = Effect::Load { to: rbp, base: rsp, offset: 0, bytes: 8 };
    let pushed = Effect::Store { base: rsp, offset: -8, from: Some(12), bytes: 8 };
    let cases: [(&[u8], &[Effect]); 13] = [
        (&[0x48, 0x89, 0xf8], &[Effect::Copy { to: 0, from: 7, bytes: 8 }]), // mov %rdi,%rax
        (&[0x89, 0xf8], &[Effect::Copy { to: 0, from: 7, bytes: 4 }]),       // mov %edi,%eax
        (&[0x48, 0x8b, 0x43, 0x08], &[Effect::Load { to: 0, base: 3, offset: 8, bytes: 8 }]), // mov 8(%rbx),%rax
        (&[0x66, 0x89, 0x4b, 0x02], &[Effect::Store { base: 3, offset: 2, from: Some(1), bytes: 2 }]), // mov %cx,2(…)
        (&[0x48, 0x8d, 0x44, 0x8b, 0x08], &[Effect::Offset { to: 0, from: 3, by: 8 }, Effect::Clobber(0)]), // lea
        (&[0x31, 0xc0], &[Effect::Constant { to: 0, value: 0 }]),            // xor %eax,%eax
        (&[0x48, 0x83, 0xec, 0x20], &[top(-0x20)]),                          // sub $0x20,%rsp
        (&[0x83, 0xe0, 0x0f], &[Effect::And { to: 0, mask: 0xf, bytes: 4 }]), // and $0xf,%eax
        (&[0x09, 0xc8], &[Effect::Or { to: 0, from: 1, bytes: 4 }]),         // or %ecx,%eax
        (&[0x41, 0x54], &[pushed, top(-8)]),                                 // push %r12
        (&[0x5d], &[popped, top(8)]),                                        // pop %rbp
        (&[0xc9], &[Effect::Copy { to: rsp, from: rbp, bytes: 8 }, popped, top(8)]), // leave
        (&[0xe8, 0, 0, 0, 0], &[Effect::Call]),                              // call
    ];
    for (bytes, expected) in cases {
        assert_eq!(effects(one(Arch::X86_64, bytes)), expected, "{bytes:x?}");
    }
}

#[test]
fn arm64_instructions_move_values() {
    let sp = aarch64::SP;
    let saved = |offset, register| Effect::Store { base: sp, offset, from: Some(register), bytes: 8 };
    let stored = |base, bytes| Effect::Store { base, offset: 0, from: None, bytes };
    let cases: [(u32, &[Effect]); 11] = [
        (0xaa00_03f3, &[Effect::Copy { to: 19, from: 0, bytes: 8 }]), // mov x19, x0
        (0xd100_83ff, &[Effect::Offset { to: sp, from: sp, by: -0x20 }]), // sub sp, sp, #0x20
        (0xa9bf_7bfd, &[Effect::Offset { to: sp, from: sp, by: -16 }, saved(0, 29), saved(8, 30)]), // stp x29, x30, …
        (0xf940_0c43, &[Effect::Load { to: 3, base: 2, offset: 0x18, bytes: 8 }]), // ldr x3, [x2, #0x18]
        (0xb8e1_0040, &[stored(2, 4), Effect::Clobber(0)]),           // ldaddal w1, w0, [x2]
        (0x885f_fc20, &[Effect::Clobber(0)]),                         // ldaxr w0, [x1]
        (0xd280_0c40, &[Effect::Constant { to: 0, value: 98 }]),      // mov x0, #98
        (0xf2a0_0020, &[Effect::Insert { to: 0, value: 1, shift: 16 }]), // movk x0, #1, lsl #16
        (0x6b01_001f, &[]),                                           // cmp w0, w1
        (0x9400_0002, &[Effect::Call]),                               // bl
        (0x2518_e3e0, &[Effect::Unknown]),                            // ptrue p0.b
    ];
    for (word, expected) in cases {
        assert_eq!(effects(one(Arch::Aarch64, &word.to_le_bytes())), expected, "{word:#x}");
    }
}
