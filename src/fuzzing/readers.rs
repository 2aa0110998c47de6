//! Files that somebody else wrote, and texts from the kernel in which others chose some of the words.

use std::io::Write;

use flate2::write::GzEncoder;
use flate2::Compression;

use super::programs::file;
use crate::host::{cpu_list, hexadecimal};
use crate::measure::latch::digest_text;
use crate::recording::compare::{Dump, Side, Unit};
use crate::server::{examine_maps, numa_memory};
use crate::symbols::{parameter_types, parameters, plain_name, portable, read_any, DebugFile};

/// Compressed debug information. A fuzzer does not find correct checksums, so that of the header is corrected.
pub(super) fn debugdata(input: &[u8]) {
    _ = DebugFile::from_gnu_debugdata(input);
    let mut fixed = input.to_vec();
    if fixed.len() > 12 {
        fixed[..6].copy_from_slice(b"\xfd7zXZ\0");
        put_crc(&mut fixed, 6..8);
        // The size of the first block's header, in words.
        let end = 12 + 4 * usize::from(fixed[12]);
        if end < fixed.len() {
            put_crc(&mut fixed, 12..end);
        }
    }
    _ = DebugFile::from_gnu_debugdata(&fixed);
}

/// Writes the checksum of a part behind it.
fn put_crc(file: &mut [u8], part: std::ops::Range<usize>) {
    let crc = crc32fast::hash(&file[part.clone()]).to_le_bytes();
    if let Some(place) = file.get_mut(part.end..part.end + 4) {
        place.copy_from_slice(&crc);
    }
}

/// Symbol files: those of armtrace, debug files, and the names in both. The input is a file, and the text of one.
pub(super) fn symbols(input: &[u8]) {
    let (_file, path) = file(input).expect("memory for a file");
    _ = read_any(&path);
    let mut compressed = GzEncoder::new(Vec::new(), Compression::none());
    compressed.write_all(input).expect("a vector takes everything");
    let Ok(found) = portable::read(&*compressed.finish().expect("a vector takes everything")) else { return };
    for symbol in found.symbols.iter() {
        found.symbols.by_name(symbol.name);
        found.symbols.at(symbol.addr);
        _ = (plain_name(symbol.name), parameters(symbol.name), parameter_types(symbol.name));
    }
}

/// A dump of performance_schema, in each of its units.
pub(super) fn dump(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    for unit in [Unit::Ps, Unit::S] {
        if let Ok(dump) = Dump::parse(&text, unit) {
            Side::of_dump("a", &dump, Some(1.0), None);
        }
    }
}

/// Texts of /proc and /sys.
pub(super) fn kernel(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    examine_maps(&text);
    _ = numa_memory(&text).advice(2);
    for line in text.lines() {
        _ = (cpu_list(line), hexadecimal(line));
    }
}

/// Statements in a server's memory, whole and cut off.
pub(super) fn statement(input: &[u8]) {
    for is_cut in [false, true] {
        let digest = digest_text(input, is_cut).unwrap_or_default();
        assert!(!digest.contains(char::is_control), "{digest:?}");
    }
}
