# Debug info that no compiler produces: entries that lead back, types that contain themselves, unlimited nesting. The
# last structure is valid and must be found.

.macro entry code
    .uleb128 \code
.endm

.text
f:  ret

.section .debug_abbrev,"",@progbits
    # 1: the unit. 2: a structure with name, size, sibling. 3: a member with name, type, offset. 4: a typedef. 5: an
    # array. 6: a dimension of an array. 7: a structure with only a specification and a size. 8: a namespace. 9: a
    # function with a sibling.
    .byte 1, 0x11, 1, 0, 0
    .byte 2, 0x13, 1, 0x03, 0x08, 0x0b, 0x0b, 0x01, 0x13, 0, 0
    .byte 3, 0x0d, 0, 0x03, 0x08, 0x49, 0x13, 0x38, 0x0b, 0, 0
    .byte 4, 0x16, 0, 0x49, 0x13, 0, 0
    .byte 5, 0x01, 1, 0x49, 0x13, 0, 0
    .byte 6, 0x21, 0, 0x2f, 0x07, 0, 0
    .byte 7, 0x13, 0, 0x47, 0x13, 0x0b, 0x0b, 0, 0
    .byte 8, 0x39, 1, 0x03, 0x08, 0, 0
    .byte 9, 0x2e, 1, 0x01, 0x13, 0, 0
    .byte 0

.section .debug_info,"",@progbits
    .long end - begin
begin:
    .short 4
    .long 0
    .byte 8
    entry 1
itself:
    entry 4
    .long itself
array:
    entry 5
    .long array
    # More elements than there is memory.
    .rept 3
    entry 6
    .quad 0x7fffffffffffffff
    .endr
    entry 0
announced:
    entry 7
    .long announced
    .byte 64

    # A function whose sibling precedes it: its children have to be skipped one by one.
    entry 9
    .long itself
    entry 0

    # A function whose sibling is beyond the end.
    entry 9
    .long 0x7fffffff
    entry 0

    entry 2
    .asciz "members"
    .byte 192
    .long itself
    entry 3
    .asciz "pad"
    .long itself
    .byte 64
    entry 3
    .asciz "pad"
    .long array
    .byte 8
    entry 3
    .asciz "pad"
    .long 0x7fffffff
    .byte 1
    entry 0

    # Unrealistically deep nesting, closed again.
    .rept 500
    entry 8
    .asciz "deep"
    .endr
    entry 2
    .asciz "too_deep"
    .byte 64
    .long itself
    entry 0
    .rept 500
    entry 0
    .endr

    # A name with an escape sequence for terminals.
    entry 2
    .asciz "right\033[2J"
    .byte 192
    .long itself
    entry 3
    .asciz "a"
    .long byte
    .byte 0
    entry 3
    .asciz "b"
    .long byte
    .byte 64
    entry 0
byte:
    entry 7
    .long announced
    .byte 1

    # Ends without a matching entry, and then an entry with an unknown abbreviation.
    entry 0
    entry 0
    entry 0
    entry 99
end:
