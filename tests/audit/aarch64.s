// One of each instruction that the audit counts, and similar ones that it does not. Each is followed by its class, or -
// for none.
dmb oshld                  // dmb oshld
dmb oshst                  // dmb oshst
dmb osh                    // dmb osh
dmb nshld                  // dmb nshld
dmb nshst                  // dmb nshst
dmb nsh                    // dmb nsh
dmb ishld                  // dmb ishld
dmb ishst                  // dmb ishst
dmb ish                    // dmb ish
dmb ld                     // dmb ld
dmb st                     // dmb st
dmb sy                     // dmb sy
dmb #0                     // dmb reserved
dmb #12                    // dmb reserved
ssbb                       // ssbb
pssbb                      // pssbb
dsb oshld                  // dsb oshld
dsb oshst                  // dsb oshst
dsb osh                    // dsb osh
dsb nshld                  // dsb nshld
dsb nshst                  // dsb nshst
dsb nsh                    // dsb nsh
dsb ishld                  // dsb ishld
dsb ishst                  // dsb ishst
dsb ish                    // dsb ish
dsb ld                     // dsb ld
dsb st                     // dsb st
dsb sy                     // dsb sy
dsb #8                     // dsb reserved
dsb ishnXS                 // dsb nXS
dsb synXS                  // dsb nXS
isb                        // isb
isb #3                     // isb
sb                         // sb
yield                      // yield
wfe                        // wfe
wfet x3                    // wfet
ldarb w0, [x1]             // ldar
ldarh w0, [x1]             // ldar
ldar w0, [x1]              // ldar
ldar x0, [sp]              // ldar
stlrb w0, [x1]             // stlr
stlrh w0, [x1]             // stlr
stlr x0, [x1]              // stlr
ldlar x0, [x1]             // ldlar
stllr w0, [x1]             // stllr
ldaprb w0, [x1]            // ldapr
ldapr x0, [x1]             // ldapr
ldapurb w0, [x1, #1]       // ldapur
ldapur x0, [x1, #-8]       // ldapur
ldapursb x0, [x1]          // ldapurs
ldapursh w0, [x1]          // ldapurs
ldapursw x0, [x1]          // ldapurs
stlurh w0, [x1, #2]        // stlur
stlur x0, [x1, #8]         // stlur
ldxrb w0, [x1]             // ldxr
ldxr x0, [x1]              // ldxr
ldaxrh w0, [x1]            // ldaxr
ldaxr x0, [x1]             // ldaxr
stxr w2, w0, [x1]          // stxr
stxrb w2, w0, [x1]         // stxr
stlxr w2, x0, [x1]         // stlxr
ldxp x0, x1, [x2]          // ldxp
ldaxp w0, w1, [x2]         // ldaxp
stxp w3, x0, x1, [x2]      // stxp
stlxp w3, x0, x1, [x2]     // stlxp
ldadd w0, w1, [x2]         // ldadd
ldadda x0, x1, [x2]        // ldadda
ldaddlb w0, w1, [x2]       // ldaddl
ldaddalh w0, w1, [x2]      // ldaddal
stadd w0, [x2]             // ldadd
staddl x0, [x2]            // ldaddl
ldclr x0, x1, [x2]         // ldclr
ldclra x0, x1, [x2]        // ldclra
ldclrl x0, x1, [x2]        // ldclrl
ldclrab w0, w1, [x2]       // ldclra
ldclral x0, x1, [x2]       // ldclral
stclrh w0, [x2]            // ldclr
ldeor x0, x1, [x2]         // ldeor
ldeora x0, x1, [x2]        // ldeora
ldeorl x0, x1, [x2]        // ldeorl
ldeoral w0, w1, [x2]       // ldeoral
ldset x0, x1, [x2]         // ldset
ldseta x0, x1, [x2]        // ldseta
ldsetl x0, x1, [x2]        // ldsetl
ldsetal x0, x1, [x2]       // ldsetal
ldsmax w0, w1, [x2]        // ldsmax
ldsmaxal w0, w1, [x2]      // ldsmaxal
ldsmin w0, w1, [x2]        // ldsmin
ldsmina w0, w1, [x2]       // ldsmina
ldumax x0, x1, [x2]        // ldumax
ldumaxl x0, x1, [x2]       // ldumaxl
ldumin x0, x1, [x2]        // ldumin
lduminal x0, x1, [x2]      // lduminal
swp w0, w1, [x2]           // swp
swpa x0, x1, [x2]          // swpa
swplb w0, w1, [x2]         // swpl
swpalh w0, w1, [x2]        // swpal
cas w0, w1, [x2]           // cas
casa x0, x1, [x2]          // casa
casl x0, x1, [x2]          // casl
caslb w0, w1, [x2]         // casl
casal x0, x1, [x2]         // casal
casp x0, x1, x2, x3, [x4]  // casp
caspa w0, w1, w2, w3, [x4] // caspa
caspl x0, x1, x2, x3, [x4] // caspl
caspal x0, x1, x2, x3, [sp] // caspal
crc32b w0, w1, w2          // crc32
crc32h w0, w1, w2          // crc32
crc32w w0, w1, w2          // crc32
crc32x w0, w1, x2          // crc32
crc32cb w0, w1, w2         // crc32c
crc32ch w0, w1, w2         // crc32c
crc32cw w0, w1, w2         // crc32c
crc32cx w0, w1, x2         // crc32c
pmull v0.1q, v1.1d, v2.1d  // pmull
pmull2 v0.1q, v1.2d, v2.2d // pmull
pmull v0.8h, v1.8b, v2.8b  // -
nop                        // -
wfi                        // -
sev                        // -
clrex                      // -
bti c                      // -
ldr x0, [x1]               // -
str x0, [x1, #8]           // -
ldp x0, x1, [x2]           // -
stg x0, [x1]               // -
ldtr x0, [x1]              // -
udiv w0, w1, w2            // -
mrs x0, cntvct_el0         // -
dc zva, x0                 // -
ic ivau, x0                // -
