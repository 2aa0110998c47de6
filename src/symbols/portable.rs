//! armtrace's own symbol file: the symbols of one build, small enough to carry to a host that has no debug file.
//!
//! It is text, compressed with gzip, whose checksum and length at the end detect damage. `zcat` shows it:
//!
//! ```text
//! armtrace-symbols 1
//! arch x86_64
//! build-id df9ed6c416aa0cd2e07169c3b5e3cf1bf966c72c
//! text 72f500 1265882
//! symbols 52034
//! 72f500 1c f _ZN3Foo3barEv
//! …
//! ```
//!
//! All numbers except the count are hexadecimal. A symbol's line holds the distance from the previous symbol's address,
//! the size in bytes, `f` for a function or `d` for data, and the mangled name. `text` is the address range of `.text`.

use std::io::{self, Read, Write};
use std::str::Lines;

use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use flate2::Compression;

use super::debug_file::DebugFile;
use super::image::{Arch, BuildIdentity};
use super::table::{Symbol, Table, TableError};

const FORMAT: &str = "armtrace-symbols";
const VERSION: &str = "1";

/// The most bytes, decompressed; a MySQL server's symbols have 9 MB.
const MAX_TEXT: u64 = 256 << 20;

/// The reason why a symbol file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PortableError {
    /// It cannot be decompressed, or is not text.
    #[error("damaged: {0}")]
    Compression(io::Error),
    /// It is larger than any symbol file when decompressed.
    #[error("too large for a symbol file")]
    TooLarge,
    /// It does not begin as a symbol file does.
    #[error("not an armtrace symbol file")]
    NotASymbolFile,
    /// It has this version, which is unknown here.
    #[error("its version is {0}, but this armtrace reads version {VERSION}")]
    Version(String),
    /// Its lines are not those that its head announces.
    #[error("damaged: copy or export it again")]
    Damaged,
    /// It has more symbols than a program can have.
    #[error(transparent)]
    Symbols(#[from] TableError),
}

/// Returns whether a file that begins with these bytes can be a symbol file: whether it is compressed with gzip.
pub(super) fn is_portable(begin: &[u8]) -> bool {
    begin.starts_with(&[0x1f, 0x8b])
}

/// Writes the symbols of the build `identity` as a symbol file.
///
/// # Errors
/// Fails when `out` cannot be written to.
pub fn write(identity: &BuildIdentity, symbols: &Table, out: impl Write) -> io::Result<()> {
    // Linker names contain no white space, and names with white space would not survive.
    let kept: Vec<Symbol<'_>> = symbols.iter().filter(|s| !s.name.contains(char::is_whitespace)).collect();
    let mut out = io::BufWriter::new(GzEncoder::new(out, Compression::best()));
    writeln!(out, "{FORMAT} {VERSION}")?;
    writeln!(out, "arch {}", identity.arch.as_str())?;
    writeln!(out, "build-id {}", identity.build_id())?;
    writeln!(out, "text {:x} {:x}", identity.text.start, identity.text.end)?;
    writeln!(out, "symbols {}", kept.len())?;
    let mut before = 0;
    for symbol in kept {
        let kind = if symbol.is_function { 'f' } else { 'd' };
        writeln!(out, "{:x} {:x} {kind} {}", symbol.addr - before, symbol.size, symbol.name)?;
        before = symbol.addr;
    }
    out.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?.flush()
}

/// Reads a symbol file.
///
/// # Errors
/// Fails when it is not a file that this version can read, or when it is damaged.
pub fn read(file: impl Read) -> Result<DebugFile, PortableError> {
    let mut text = String::new();
    let decoder = GzDecoder::new(file).take(MAX_TEXT + 1);
    io::BufReader::new(decoder).read_to_string(&mut text).map_err(PortableError::Compression)?;
    if text.len() as u64 > MAX_TEXT {
        return Err(PortableError::TooLarge);
    }
    parse(&text)
}

fn parse(text: &str) -> Result<DebugFile, PortableError> {
    let mut lines = text.lines();
    match lines.next().and_then(|l| l.split_once(' ')) {
        Some((FORMAT, VERSION)) => {}
        Some((FORMAT, version)) => return Err(PortableError::Version(version.to_owned())),
        _ => return Err(PortableError::NotASymbolFile),
    }
    let arch = field(&mut lines, "arch")?;
    let arch = [Arch::X86_64, Arch::Aarch64].into_iter().find(|a| a.as_str() == arch).ok_or(PortableError::Damaged)?;
    let build_id = from_hex(field(&mut lines, "build-id")?).ok_or(PortableError::Damaged)?;
    let (start, end) = field(&mut lines, "text")?.split_once(' ').ok_or(PortableError::Damaged)?;
    let text = number(start)?..number(end)?;
    let count: usize = field(&mut lines, "symbols")?.parse().map_err(|_| PortableError::Damaged)?;
    let mut at = 0_u64;
    let mut found = 0;
    let mut is_damaged = false;
    let symbols = Table::new(lines.map_while(|line| {
        let symbol = symbol(line, &mut at);
        is_damaged |= symbol.is_none();
        found += 1;
        symbol
    }))?;
    if is_damaged || found != count {
        return Err(PortableError::Damaged);
    }
    Ok(DebugFile { identity: BuildIdentity { arch, build_id, text }, symbols })
}

/// Parses a symbol's line; `at` is the address of the previous symbol, and is updated to this one's.
fn symbol<'a>(line: &'a str, at: &mut u64) -> Option<Symbol<'a>> {
    let mut fields = line.splitn(4, ' ');
    *at = at.checked_add(number(fields.next()?).ok()?)?;
    let size = number(fields.next()?).ok()?;
    let is_function = match fields.next()? {
        "f" => true,
        "d" => false,
        _ => return None,
    };
    Some(Symbol { name: fields.next()?, addr: *at, size, is_function })
}

fn field<'a>(lines: &mut Lines<'a>, name: &str) -> Result<&'a str, PortableError> {
    let (key, value) = lines.next().and_then(|l| l.split_once(' ')).ok_or(PortableError::Damaged)?;
    (key == name).then_some(value).ok_or(PortableError::Damaged)
}

fn number(text: &str) -> Result<u64, PortableError> {
    u64::from_str_radix(text, 16).map_err(|_| PortableError::Damaged)
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    digits.len().is_multiple_of(2).then(|| digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
