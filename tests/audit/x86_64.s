# One of each instruction that the audit counts, and similar ones that it does not. Each is followed by its class, or -
# for none.
lock addl $1, (%rdi)            # lock add
lock addq %rax, 8(%rdi,%rcx,4)  # lock add
lock adcb $1, (%rdi)            # lock adc
lock andw %ax, (%rdi)           # lock and
lock btcq $3, (%rdi)            # lock btc
lock btrl %eax, (%rdi)          # lock btr
lock btsq $5, (%rdi)            # lock bts
lock cmpxchgb %cl, (%rdi)       # lock cmpxchg
lock cmpxchgq %rcx, 24(%rbx)    # lock cmpxchg
lock cmpxchg8b (%rdi)           # lock cmpxchg8b
lock cmpxchg16b (%rdi)          # lock cmpxchg16b
lock decl (%rdi)                # lock dec
lock incq (%rdi)                # lock inc
lock negl (%rdi)                # lock neg
lock notw (%rdi)                # lock not
lock orb $4, (%rdi)             # lock or
lock orq $0, (%rdi)             # lock or
lock sbbl %eax, (%rdi)          # lock sbb
lock subq $1, (%rdi)            # lock sub
lock xaddl %eax, (%rdi)         # lock xadd
lock xaddq %r9, 0x10(%r12)      # lock xadd
lock xorl $1, (%rdi)            # lock xor
lock orq $0, (%rsp)             # lock or 0
lock orl $0, -64(%rsp)          # lock or 0
lock addl $0, (%rsp)            # lock add 0
lock orl $1, (%rsp)             # lock or
lock addl %eax, (%rsp)          # lock add
xchgb %al, (%rdi)               # xchg
xchgq %rax, 0x1234(%rip)        # xchg
xchgl %eax, %fs:0x10            # xchg
lock xchgl %ecx, (%rdi)         # xchg
xchgq %rax, %rbx                # -
xchgw %ax, %ax                  # -
mfence                          # mfence
lfence                          # lfence
sfence                          # sfence
pause                           # pause
tpause %ecx                     # tpause
umwait %ecx                     # umwait
crc32b (%rdi), %eax             # crc32
crc32q %rcx, %rax               # crc32
pclmulqdq $0x11, %xmm1, %xmm0   # pclmulqdq
vpclmulqdq $0, %xmm1, %xmm2, %xmm3  # vpclmulqdq
nop                             # -
rep movsb                       # -
addl $1, (%rdi)                 # -
cmpxchgq %rcx, (%rdi)           # -
xaddl %eax, (%rdi)              # -
orq $0, (%rsp)                  # -
clflush (%rdi)                  # -
movabsq $0xf3900ff0aef0, %rax   # -
