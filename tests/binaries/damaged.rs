//! Damaged and inconsistent program files: copies of real servers with some bytes changed. Intact parts are used,
//! damaged parts are left out, and no name is wrong.
//!
//! `tests/lab/src/binaries.rs` provides the programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use armtrace::catalog::Naming;
use armtrace::discovery;
use armtrace::measure::latch::{plan, Allowed};
use armtrace::names::{MariadbRules, MysqlRules};
use armtrace::symbols::{Damage, Image, SymbolSource};
use lab::binaries;
use object::read::elf::{ElfFile64, SectionHeader as _};
use object::{LittleEndian, Object, ObjectSection};
use tempfile::NamedTempFile;

/// The offset of the section headers' position in the ELF header.
const SECTION_HEADERS_AT: u64 = 0x28;
/// Offsets in a section header.
const SIZE_AT: u64 = 0x20;
const LINK_AT: u64 = 0x28;
const ENTRY_SIZE_AT: u64 = 0x38;
const SECTION_HEADER: u64 = 64;

/// The probe sites (name, address and instruction), what is not measured, and the latches' names by their keys.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    sites: BTreeSet<(String, u64, String)>,
    gaps: BTreeSet<String>,
    names: BTreeMap<String, String>,
}

impl Seen {
    /// Returns whether every site and name is also in `whole`.
    fn is_part_of(&self, whole: &Seen) -> bool {
        self.sites.is_subset(&whole.sites) && self.names.iter().all(|(key, name)| whole.names.get(key) == Some(name))
    }
}

fn seen(image: &Image) -> Seen {
    let family = match discovery::family(image) {
        Ok(family) => family,
        Err(what) => return Seen { gaps: [what.to_string()].into(), ..Seen::default() },
    };
    let plan = plan(image, family, Allowed { uretprobes: true, calls: true, many_sites: true, every_round: true });
    let names = match family.naming {
        Naming::Mysql(names) => {
            let rules = MysqlRules::new(image, names);
            let ids = rules.ids().filter_map(|id| Some((id.to_owned(), rules.id_name(id)?.event)));
            let site = |s: &armtrace::names::CreationSite| {
                Some((format!("{}:{}", s.file, s.line), rules.site_name(&s.file, s.line)?.event))
            };
            ids.chain(rules.sites().iter().filter_map(site)).collect()
        }
        Naming::Mariadb(names) => {
            let rules = MariadbRules::new(image, family, names);
            rules.statics().iter().map(|(word, name)| (format!("{word:x}"), name.event.clone())).collect()
        }
        Naming::None => BTreeMap::new(),
    };
    Seen {
        sites: plan.sites.into_iter().map(|s| (s.name, s.addr, s.instruction)).collect(),
        gaps: plan.gaps.into_iter().map(|gap| gap.function).collect(),
        names,
    }
}

/// Copies a program and replaces the bytes at these file offsets.
fn patched(program: &Path, patches: &[(u64, Vec<u8>)]) -> NamedTempFile {
    let copy = NamedTempFile::new_in("/var/tmp").expect("a file");
    fs::copy(program, copy.path()).expect("space for it");
    let file = OpenOptions::new().write(true).open(copy.path()).expect("the copy");
    for (at, bytes) in patches {
        file.write_all_at(bytes, *at).expect("space for it");
    }
    copy
}

/// Copies a program without its section headers, as with `strip --strip-section-headers`. That removes debug info and
/// the symbol table too.
fn without_sections(program: &Path) -> NamedTempFile {
    // 0x3c has the number of section headers and the index of the one with names.
    patched(program, &[(SECTION_HEADERS_AT, vec![0; 8]), (0x3c, vec![0; 4])])
}

/// Returns the file offset of a section's header, and the file range of the section.
fn section(program: &Path, name: &str) -> (u64, std::ops::Range<u64>) {
    let bytes = fs::read(program).expect("the program");
    let elf = ElfFile64::<LittleEndian>::parse(&*bytes).expect("a program");
    let section = elf.section_by_name(name).unwrap_or_else(|| panic!("no {name}"));
    let headers = u64::from_le_bytes(bytes[SECTION_HEADERS_AT as usize..][..8].try_into().expect("8 bytes"));
    let (offset, size) = section.elf_section_header().file_range(LittleEndian).expect("contents");
    (headers + SECTION_HEADER * section.index().0 as u64, offset..offset + size)
}

fn open(file: &NamedTempFile) -> Image {
    Image::open(file.path()).unwrap_or_else(|e| panic!("{e}"))
}

/// Returns the names, addresses and sizes of all symbols.
fn symbols(image: &Image) -> BTreeSet<(String, u64, u64)> {
    image.symbols().map(|s| (s.name.to_owned(), s.addr, s.size)).collect()
}

#[test]
fn without_section_headers_everything_the_loader_needs_is_found() {
    let stripped_mariadb = stripped(&binaries::mariadb_amd64_path());
    let programs = [
        binaries::mysql_amd64_path(),
        binaries::mysql_arm64_path(),
        binaries::debian_mariadb_path("amd64", "bookworm"),
        binaries::debian_mariadb_path("arm64", "bookworm"),
        stripped_mariadb.path().to_owned(),
    ];
    for program in programs {
        let (whole, bare) = (Image::open(&program).expect("a program"), open(&without_sections(&program)));
        let shown = program.display();
        assert!(matches!(bare.damage(), Some(Damage::NoSections)), "{:?}", bare.damage());
        assert_eq!(whole.damage(), None);
        assert_eq!((bare.symbol_source(), bare.build_id()), (SymbolSource::Dynsym, whole.build_id()), "{shown}");
        assert_eq!(symbols(&bare), symbols(&whole), "{shown}");
        assert_eq!(bare.functions(), whole.functions(), "{shown}");
        assert_eq!(bare.static_pointers(), whole.static_pointers(), "{shown}");
        assert_eq!(bare.imports(), whole.imports(), "{shown}");
        let (found, expected) = (seen(&bare), seen(&whole));
        assert!(found.is_part_of(&expected), "{shown}: {found:#?}");
        // MariaDB's functions are recognised by the stubs they call, and no program header says where the stubs are.
        if program == binaries::mysql_amd64_path() || program == binaries::mysql_arm64_path() {
            assert!(found.sites.len() >= 6 && found.names.len() >= 100, "{shown}: {found:#?}");
            assert_eq!(found, expected, "{shown}");
        }
    }
}

fn stripped(program: &Path) -> NamedTempFile {
    let copy = NamedTempFile::new_in("/var/tmp").expect("a file");
    let status = Command::new("strip").arg("-o").arg(copy.path()).arg(program).status();
    assert!(status.expect("cannot run strip (package binutils)").success());
    copy
}

/// If the symbol table cannot be read, the exported symbols are used.
#[test]
fn a_damaged_symbol_table_leaves_the_exported_symbols() {
    let program = binaries::mariadb_amd64_path();
    let exported = open(&stripped(&program));
    let expected = seen(&exported);
    let (symtab, _) = section(&program, ".symtab");
    let (strtab, _) = section(&program, ".strtab");
    let number = |n: u64| n.to_le_bytes().to_vec();
    for (what, at, bytes) in [
        ("past the end of the file", symtab + SIZE_AT, number(24 << 40)),
        ("the largest size", symtab + SIZE_AT, number(u64::MAX)),
        ("without names", symtab + LINK_AT, vec![0xff; 4]),
        ("names past the end of the file", strtab + SIZE_AT, number(1 << 40)),
    ] {
        let image = open(&patched(&program, &[(at, bytes)]));
        assert!(image.damage().is_some(), "{what}");
        assert_eq!(image.symbol_source(), SymbolSource::Dynsym, "{what}");
        assert_eq!(symbols(&image), symbols(&exported), "{what}");
        assert!(seen(&image).is_part_of(&expected), "{what}");
    }
}

/// Some names are out of range, or entries have no size. All other names remain, and none is wrong.
#[test]
fn an_inconsistent_symbol_table_has_no_wrong_names() {
    let program = binaries::mariadb_amd64_path();

    let mut whole = symbols(&Image::open(&program).expect("a program"));
    // Names in the dynamic symbol table have no versions.
    whole.extend(symbols(&open(&stripped(&program))));
    let (symtab, table) = section(&program, ".symtab");
    let (strtab, _) = section(&program, ".strtab");
    let half = (table.end - table.start) / 48 * 24;
    let number = |n: u64| n.to_le_bytes().to_vec();
    for (what, at, bytes) in [
        ("half of it", symtab + SIZE_AT, number(half)),
        ("half an entry more", symtab + SIZE_AT, number(half + 12)),
        ("entries of size 0", symtab + ENTRY_SIZE_AT, number(0)),
        ("few names", strtab + SIZE_AT, number(100_000)),
    ] {
        let image = open(&patched(&program, &[(at, bytes)]));
        let found = symbols(&image);
        assert!(found.len() > 100, "{what}: {}", found.len());
        assert!(found.is_subset(&whole), "{what}");
    }
}

/// A function whose claimed range includes the next function, or all code, must not get probes there.
#[test]
fn overlapping_functions_lead_to_no_sites_elsewhere() {
    let program = binaries::mysql_amd64_path();
    let whole = Image::open(&program).expect("a program");
    let expected = seen(&whole);
    let bytes = fs::read(&program).expect("the program");
    let functions: BTreeSet<u64> =
        expected.sites.iter().filter_map(|(_, at, _)| Some(whole.function_at(*at)?.start)).collect();
    assert!(functions.len() >= 3);
    for claimed in [8_u32, 4096, i32::MAX as u32] {
        let patches: Vec<_> = functions.iter().filter_map(|f| longer(&bytes, &whole, *f, claimed)).collect();
        assert_eq!(patches.len(), functions.len());
        let image = open(&patched(&program, &patches));
        let seen = seen(&image);
        let known = |(_, at, _): &&(String, u64, String)| {
            functions.iter().any(|f| whole.function_at(*at).is_some_and(|g| g.start == *f))
        };
        let elsewhere: Vec<_> = seen.sites.iter().filter(|site| !known(site)).collect();
        println!("{claimed}: {} of {} sites, {} gaps", seen.sites.len(), expected.sites.len(), seen.gaps.len());
        assert!(elsewhere.is_empty(), "{claimed}: {elsewhere:?}");
        assert!(seen.is_part_of(&expected), "{claimed}");
    }
}

/// Returns the patch that makes the function at `start` longer: it changes the length in its entry of the unwind table.
fn longer(bytes: &[u8], image: &Image, start: u64, more: u32) -> Option<(u64, Vec<u8>)> {
    let range = image.function_at(start)?;
    let table = image.section(".eh_frame")?;
    let size = u32::try_from(range.end - range.start).ok()?;
    // An entry has the start of the function, relative to the field itself, and then the length.
    let entries = table.clone().step_by(4);
    let at = entries.filter_map(|addr| Some((addr, image.file_offset(addr)?))).find(|(addr, at)| {
        let word =
            |at: u64| bytes.get(at as usize..at as usize + 4).and_then(|b| b.try_into().ok()).map(i32::from_le_bytes);
        let begin = word(*at).map(|relative| addr.wrapping_add_signed(relative.into()));
        begin == Some(start) && word(at + 4) == Some(size as i32)
    })?;
    Some((at.1 + 4, size.saturating_add(more).to_le_bytes().to_vec()))
}

/// Inconsistent debug info does not make the audit fail, and adds nothing that the intact debug info does not contain.
#[test]
fn inconsistent_debug_info_is_survived() {
    let program = binaries::mariadb_amd64_path();
    let structures = |program: &Path| -> BTreeSet<String> {
        let output =
            Command::new(env!("CARGO_BIN_EXE_armtrace")).args(["audit", "--format", "json"]).arg(program).output();
        let output = output.expect("armtrace");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let audit: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let all = audit["structures"].as_array().map_or(&[][..], Vec::as_slice);
        all.iter().filter_map(|s| Some(s["name"].as_str()?.to_owned())).collect()
    };
    let whole = structures(&program);
    assert!(whole.len() > 10);
    let (info, contents) = section(&program, ".debug_info");
    let (abbreviations, _) = section(&program, ".debug_abbrev");
    let (_, strings) = section(&program, ".debug_str");
    let half = (contents.end - contents.start) / 2;
    let number = |n: u64| n.to_le_bytes().to_vec();
    for (what, patches, least) in [
        ("half of it", vec![(info + SIZE_AT, number(half))], 1),
        ("past the end of the file", vec![(info + SIZE_AT, number(1 << 40))], 0),
        ("few abbreviations", vec![(abbreviations + SIZE_AT, number(1000))], 0),
        ("a unit of the largest size", vec![(contents.start, vec![0xee, 0xff, 0xff, 0xff])], 0),
        ("abbreviations out of range", vec![(contents.start + 6, vec![0xff; 4])], 1),
        ("names without an end", vec![(strings.start, vec![b'x'; (strings.end - strings.start) as usize])], 0),
    ] {
        let found = structures(patched(&program, &patches).path());
        println!("{what}: {} of {}", found.len(), whole.len());
        assert!(found.len() >= least, "{what}");
        assert!(what.starts_with("names") || found.is_subset(&whole), "{what}: {found:?}");
    }
}
