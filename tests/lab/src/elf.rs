//! Minimal ELF files around machine code, just enough for an audit.

/// The address and file offset of the code in [`elf`].
pub const TEXT: u64 = 0x1000;

/// `EM_X86_64`, the machine number of x86-64.
pub const X86_64: u16 = 62;
/// `EM_AARCH64`, the machine number of arm64.
pub const AARCH64: u16 = 183;

const EHDR: usize = 64;
const PHDR: usize = 56;
const NAMES: &[u8] = b"\0.text\0.shstrtab\0";

/// Returns a 64-bit ELF file whose headers declare a `.text` section of `size` bytes, and which ends after `text`.
pub fn elf_of_size(machine: u16, text: &[u8], size: u64) -> Vec<u8> {
    let names_at = (EHDR + PHDR) as u64;
    let sections_at = names_at + 32;
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    put16(&mut file, &[3, machine]);
    put32(&mut file, &[1]);
    put64(&mut file, &[TEXT, EHDR as u64, sections_at]);
    put32(&mut file, &[0]);
    put16(&mut file, &[EHDR as u16, PHDR as u16, 1, 64, 3, 2]);
    // One segment, which holds the code.
    put32(&mut file, &[1, 5]);
    put64(&mut file, &[TEXT, TEXT, TEXT, size, size, 0x1000]);
    file.extend(NAMES);
    file.resize(sections_at as usize, 0);
    section(&mut file, 0, 0, 0, 0, 0);
    section(&mut file, 1, 1, 6, TEXT, size);
    section(&mut file, 7, 3, 0, names_at, NAMES.len() as u64);
    file.resize(TEXT as usize, 0);
    file.extend(text);
    file
}

/// Returns a 64-bit ELF file with this code as its `.text` section.
pub fn elf(machine: u16, text: &[u8]) -> Vec<u8> {
    elf_of_size(machine, text, text.len() as u64)
}

fn section(file: &mut Vec<u8>, name: u32, kind: u32, flags: u64, at: u64, size: u64) {
    put32(file, &[name, kind]);
    put64(file, &[flags, if flags == 0 { 0 } else { at }, at, size]);
    put32(file, &[0, 0]);
    put64(file, &[4, 0]);
}

fn put16(file: &mut Vec<u8>, values: &[u16]) {
    values.iter().for_each(|v| file.extend(v.to_le_bytes()));
}

fn put32(file: &mut Vec<u8>, values: &[u32]) {
    values.iter().for_each(|v| file.extend(v.to_le_bytes()));
}

fn put64(file: &mut Vec<u8>, values: &[u64]) {
    values.iter().for_each(|v| file.extend(v.to_le_bytes()));
}
