//! Finds calls among the bytes of x86-64 code without decoding it.

/// Calls `found` for every place in the code at `base` where the bytes may be `call rel32` (e8) or `jmp rel32` (e9),
/// with its address and the target. Some of these are in the middle of another instruction.
pub fn possible_calls(base: u64, code: &[u8], mut found: impl FnMut(u64, u64)) {
    let mut check = |at: usize| {
        let Some(&[opcode, a, b, c, d]) = code.get(at..at + 5) else { return };
        if opcode & 0xfe == 0xe8 {
            let from = base.wrapping_add(at as u64);
            let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
            found(from, from.wrapping_add(5).wrapping_add_signed(distance));
        }
    };
    let words = code.chunks_exact(8);
    let rest = code.len() - words.remainder().len();
    for (i, word) in words.enumerate() {
        let mut hits = maybe_calls(u64::from_le_bytes(word.try_into().unwrap_or_default()));
        while hits != 0 {
            check(i * 8 + hits.trailing_zeros() as usize / 8);
            hits &= hits - 1;
        }
    }
    (rest..code.len()).for_each(check);
}

/// Returns a word with the top bit set for every byte that is e8 or e9, and for some others. It processes eight bytes
/// at a time, because programs have tens of megabytes of code.
fn maybe_calls(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // XOR yields zero for both opcodes; then comes the classic test for a zero byte, which also reports some bytes
    // after one.
    let differs = (word & (ONES * 0xfe)) ^ (ONES * 0xe8);
    differs.wrapping_sub(ONES) & !differs & (ONES * 0x80)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &[u8]) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        possible_calls(0x1000, code, |from, to| found.push((from, to)));
        found
    }

    #[test]
    fn calls_and_jumps_are_found_at_any_alignment() {
        for at in 0..24_usize {
            let mut code = vec![0x90; 40];
            // call 0x50e0; jmp 0x8f0
            code[at] = 0xe8;
            code[at + 1..at + 5].copy_from_slice(&(0x50e0 - (0x1000 + at as i32 + 5)).to_le_bytes());
            code[at + 5] = 0xe9;
            code[at + 6..at + 10].copy_from_slice(&(0x8f0 - (0x1000 + at as i32 + 10)).to_le_bytes());
            assert_eq!(found(&code), [(0x1000 + at as u64, 0x50e0), (0x1005 + at as u64, 0x8f0)]);
        }
    }

    #[test]
    fn a_truncated_call_is_none() {
        assert_eq!(found(&[0xe8, 0, 0, 0]), []);
        assert_eq!(found(&[0xe8, 0, 0, 0, 0]), [(0x1000, 0x1005)]);
    }
}
