//! Files beside a program that hold its symbols: separate debug files, and what a program carries compressed in itself.
//!
//! They may come from a server's container or from the network, so nothing in them is trusted. They are read rather than
//! mapped: whoever may write to a mapped file can end the process that maps it.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use object::read::elf::ElfFile64;
use object::{LittleEndian, ReadCache, ReadRef};

use super::image::Identity;
use super::table::Table;

/// Bytes that are read of a debug file at most. Of MariaDB 11.4's 300 MB it takes 4 MB: debug information is left alone.
const MAX_READ: u64 = 512 << 20;

/// Bytes that MiniDebugInfo may have, decompressed, and the memory to decompress it, in KiB. `xz` needs 64 MiB at most with any preset.
const MAX_MINI: u64 = 256 << 20;
const MAX_XZ_MEMORY: u32 = 80 << 10;

/// Bytes; of a larger file no checksum is taken.
const MAX_CHECKSUMMED: u64 = 4 << 30;

/// The symbols in a file and the program that they are of.
#[derive(Debug)]
pub struct DebugFile {
    pub identity: Identity,
    pub symbols: Table,
}

impl DebugFile {
    /// Reads the symbol table of an ELF file, and nothing else of it.
    ///
    /// # Errors
    /// Why it is of no use.
    pub fn read(file: &File) -> Result<DebugFile, String> {
        let pieces = Pieces { cache: ReadCache::new(file), left: Cell::new(MAX_READ) };
        parse(&pieces)
    }

    /// Reads the ELF file that a program carries in its section `.gnu_debugdata`. It names functions only, and only those
    /// that `.dynsym` does not.
    ///
    /// # Errors
    /// Why it is of no use.
    pub fn from_gnu_debugdata(compressed: &[u8]) -> Result<DebugFile, String> {
        let reader = lzma_rust2::XzReader::new_mem_limit(compressed, true, MAX_XZ_MEMORY);
        let mut elf = Vec::new();
        reader.take(MAX_MINI).read_to_end(&mut elf).map_err(|e| format!("cannot decompress it: {e}"))?;
        parse(&*elf)
    }
}

fn parse<'a, R: ReadRef<'a>>(data: R) -> Result<DebugFile, String> {
    let elf = ElfFile64::<LittleEndian, R>::parse(data).map_err(|e| format!("not an ELF file for this: {e}"))?;
    let symbols = elf.elf_symbol_table();
    if symbols.len() <= 1 {
        return Err("it has no symbol table".into());
    }
    Ok(DebugFile { identity: Identity::of(&elf)?, symbols: Table::from_elf(&elf, symbols)? })
}

/// A file of which the pieces that are asked for are read, up to a limit.
struct Pieces<'f> {
    cache: ReadCache<&'f File>,
    left: Cell<u64>,
}

impl Pieces<'_> {
    fn charge(&self, bytes: u64) -> Result<(), ()> {
        self.left.set(self.left.get().checked_sub(bytes).ok_or(())?);
        Ok(())
    }
}

impl<'a> ReadRef<'a> for &'a Pieces<'_> {
    fn len(self) -> Result<u64, ()> {
        (&self.cache).len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.charge(size)?;
        self.cache.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let found = self.cache.read_bytes_at_until(range, delimiter)?;
        self.charge(found.len() as u64 + 1)?;
        Ok(found)
    }
}

/// The checksum that `.gnu_debuglink` has of the file that it names: CRC-32 of all of it.
pub(super) fn debuglink_crc(file: &File) -> io::Result<u32> {
    if file.metadata()?.len() > MAX_CHECKSUMMED {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too large to take its checksum"));
    }
    let mut crc = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < MAX_CHECKSUMMED {
        match file.read_at(&mut buffer, at)? {
            0 => break,
            got => {
                crc.update(&buffer[..got]);
                at += got as u64;
            }
        }
    }
    Ok(crc.finalize())
}
