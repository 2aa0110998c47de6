//! Reads how compilers laid out structures, classes and unions, from a program's own debug information (DWARF).
//!
//! A server has 200 MB of it, in which most structures are described once per source file that uses them. So each
//! structure is read once, function bodies are skipped, and nothing is kept in memory. The input is not trusted.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use gimli::{Abbreviation, AttributeValue, DwTag, Dwarf, EntriesRaw, Unit, UnitOffset};

use crate::symbols::{DebugInfo, Slice};

/// The number of bytes of debug information after which the memory that reading took is released.
const RELEASED: usize = 32 << 20;

/// The most nested namespaces and structures.
const MAX_DEPTH: usize = 64;

/// The most attributes of one entry; compilers write about a dozen.
const MAX_ATTRIBUTES: usize = 128;

/// The most members of one structure.
const MAX_MEMBERS: usize = 10_000;

/// The most steps from a type alias to its type.
const MAX_STEPS: usize = 16;

/// The most bytes of a name to keep, because template names can have any length.
const MAX_NAME: usize = 512;

/// The name for anything that has none.
pub(super) const ANONYMOUS: &str = "(anonymous)";

/// A structure, class or union.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout<'a> {
    /// The name, qualified by the enclosing namespaces and structures.
    pub name: String,
    /// Whether that is its own name. Otherwise the name comes from a `typedef`, if there is one, or is [`ANONYMOUS`].
    pub is_named: bool,
    /// `FILE:LINE` of its declaration, without directories.
    pub source: Option<String>,
    /// The size in bytes.
    pub size: u64,
    /// The alignment that the source requests, in bytes. Absent if there is none, or if the compiler did not record it.
    pub alignment: Option<u64>,
    /// Whether all of its members and bases are listed with their offsets. This is not so for virtual bases.
    pub is_whole: bool,
    pub has_bases: bool,
    /// The bases and members, in declaration order.
    pub fields: Vec<Field<'a>>,
}

/// A member, or a base class subobject.
#[derive(Clone, Debug, Default)]
pub(super) struct Field<'a> {
    /// The name; for a base, the name of its type. Empty for anonymous members.
    pub name: Cow<'a, str>,
    /// The offset from the beginning of the structure, in bytes.
    pub offset: u64,
    pub of: Type,
}

impl Field<'_> {
    /// Returns where it ends, in bytes from the beginning of the structure.
    pub fn end(&self) -> Option<u64> {
        self.of.size.and_then(|size| self.offset.checked_add(size))
    }
}

/// The type of a member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Type {
    /// The size in bytes. Absent if the type is in another unit of debug information.
    pub size: Option<u64>,
    /// The alignment that the source requests for the type or the member, in bytes.
    pub alignment: Option<u64>,
    /// Whether it is an array of single bytes.
    pub is_bytes: bool,
    /// Whether it is a SIMD vector, whose instructions require alignment.
    pub is_vector: bool,
}

/// Calls `each` once for each structure that the debug information defines. Returns false if there are none.
pub(super) fn each_layout(debug: &DebugInfo, mut each: impl FnMut(&Layout)) -> bool {
    let dwarf = debug.dwarf();
    let mut seen = HashSet::new();
    let (mut units, mut type_units) = (dwarf.units(), dwarf.type_units());
    let headers = std::iter::from_fn(|| units.next().ok()?).chain(std::iter::from_fn(|| type_units.next().ok()?));
    let mut bytes = 0;
    for header in headers {
        bytes += header.length_including_self();
        let Ok(unit) = dwarf.unit(header) else { continue };
        // A damaged unit still yields the structures before the damage.
        _ = Walk::new(&dwarf, &unit, &mut seen, &mut each).and_then(Walk::all);
        if bytes > RELEASED {
            debug.release_memory();
            bytes = 0;
        }
    }
    debug.release_memory();
    !seen.is_empty()
}

/// The attributes of an entry, as far as they are needed.
#[derive(Default)]
struct Entry<'a> {
    name: Option<AttributeValue<Slice<'a>>>,
    size: Option<u64>,
    alignment: Option<u64>,
    /// The type that it is an alias for, or is made of.
    of: Option<UnitOffset>,
    location: Location,
    file: Option<u64>,
    line: Option<u64>,
    /// The entry after its children.
    sibling: Option<UnitOffset>,
    /// The declaration of a nested structure that is defined elsewhere; the declaration has the name.
    specification: Option<UnitOffset>,
    /// The number of elements of an array.
    count: Option<u64>,
    is_declaration: bool,
    is_vector: bool,
}

/// The position of a member in its structure.
#[derive(Default)]
enum Location {
    /// Offset 0, where none is given: for example a union's members.
    #[default]
    Begin,
    /// A number of bytes from the beginning.
    Behind(u64),
    /// A position that must be computed from an object.
    Computed,
}

impl<'a> Entry<'a> {
    fn read(entries: &mut EntriesRaw<Slice<'a>>, abbreviation: &Abbreviation) -> gimli::Result<Entry<'a>> {
        let attributes = abbreviation.attributes();
        if attributes.len() > MAX_ATTRIBUTES {
            return Err(gimli::Error::InvalidAbbreviationCode(abbreviation.code()));
        }
        let mut entry = Entry::default();
        for specification in attributes {
            let attribute = entries.read_attribute(*specification)?;
            entry.take(attribute.name(), attribute.raw_value());
        }
        Ok(entry)
    }

    fn take(&mut self, name: gimli::DwAt, value: AttributeValue<Slice<'a>>) {
        let number = || value.udata_value();
        let reference = || match value {
            AttributeValue::UnitRef(offset) => Some(offset),
            _ => None,
        };
        match name {
            gimli::DW_AT_name => self.name = Some(value),
            gimli::DW_AT_byte_size => self.size = number(),
            gimli::DW_AT_alignment => self.alignment = number(),
            gimli::DW_AT_type => self.of = reference(),
            gimli::DW_AT_data_member_location => self.location = number().map_or(Location::Computed, Location::Behind),
            gimli::DW_AT_data_bit_offset => {
                self.location = number().map_or(Location::Computed, |bits| Location::Behind(bits / 8));
            }
            gimli::DW_AT_decl_file => self.file = number(),
            gimli::DW_AT_decl_line => self.line = number(),
            gimli::DW_AT_sibling => self.sibling = reference(),
            gimli::DW_AT_specification => self.specification = reference(),
            gimli::DW_AT_upper_bound => self.count = number().and_then(|last| last.checked_add(1)),
            gimli::DW_AT_count => self.count = number(),
            gimli::DW_AT_declaration => self.is_declaration = true,
            gimli::DW_AT_GNU_vector => self.is_vector = true,
            _ => {}
        }
    }
}

/// Walks the structures of one unit of debug information: those of a source file and of the headers that it includes.
struct Walk<'w, 'a, F> {
    dwarf: &'w Dwarf<Slice<'a>>,
    unit: &'w Unit<Slice<'a>>,
    entries: EntriesRaw<'w, Slice<'a>>,
    /// Hashes of the structures that were already read, in any unit.
    seen: &'w mut HashSet<u64>,
    each: &'w mut F,
    /// The scopes that contain the next entry, the unit first.
    scopes: Vec<Scope<'a>>,
    /// The number of skipped entries that contain the next one.
    passed: usize,
    /// Structures without a name, by position, for which a `typedef` may still provide one.
    anonymous: HashMap<UnitOffset, Layout<'a>>,
    /// Names from `typedef`s for structures that follow, by the structures' positions.
    aliases: HashMap<UnitOffset, String>,
}

struct Scope<'a> {
    at: UnitOffset,
    /// The qualified name; empty for units.
    name: String,
    /// Absent for units and namespaces.
    layout: Option<Layout<'a>>,
}

impl<'w, 'a, F: FnMut(&Layout)> Walk<'w, 'a, F> {
    fn new(
        dwarf: &'w Dwarf<Slice<'a>>,
        unit: &'w Unit<Slice<'a>>,
        seen: &'w mut HashSet<u64>,
        each: &'w mut F,
    ) -> gimli::Result<Walk<'w, 'a, F>> {
        let (scopes, anonymous, aliases) = (Vec::new(), HashMap::new(), HashMap::new());
        Ok(Walk { dwarf, unit, entries: unit.entries_raw(None)?, seen, each, scopes, passed: 0, anonymous, aliases })
    }

    fn all(mut self) -> gimli::Result<()> {
        while !self.entries.is_empty() {
            self.step()?;
        }
        self.anonymous.values().for_each(self.each);
        Ok(())
    }

    /// Reads the next entry.
    fn step(&mut self) -> gimli::Result<()> {
        let at = self.entries.next_offset();
        let Some(abbreviation) = self.entries.read_abbreviation()? else {
            self.end();
            return Ok(());
        };
        let has_children = abbreviation.has_children();
        if self.passed > 0 || !has_children && !self.is_wanted(abbreviation.tag()) {
            self.passed += usize::from(self.passed > 0 && has_children);
            return self.entries.skip_attributes(abbreviation.attributes());
        }
        let entry = Entry::read(&mut self.entries, abbreviation)?;
        match self.look_at(at, abbreviation.tag(), &entry).filter(|_| has_children) {
            Some(scope) if self.scopes.len() < MAX_DEPTH => self.scopes.push(scope),
            _ if has_children => self.pass(entry.sibling),
            _ => {}
        }
        Ok(())
    }

    /// Returns whether an entry is useful even without children.
    fn is_wanted(&self, tag: DwTag) -> bool {
        match tag {
            gimli::DW_TAG_typedef => true,
            gimli::DW_TAG_member | gimli::DW_TAG_inheritance => {
                self.scopes.last().is_some_and(|scope| scope.layout.is_some())
            }
            _ => false,
        }
    }

    /// Processes an entry. Returns a scope if its children are wanted too.
    fn look_at(&mut self, at: UnitOffset, tag: DwTag, entry: &Entry<'a>) -> Option<Scope<'a>> {
        match tag {
            gimli::DW_TAG_compile_unit | gimli::DW_TAG_partial_unit | gimli::DW_TAG_type_unit => {
                return Some(Scope { at, name: String::new(), layout: None });
            }
            gimli::DW_TAG_namespace => {
                return Some(Scope { at, name: self.in_scope(&self.string(entry.name)), layout: None });
            }
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type => {
                return Some(self.structure(at, entry));
            }
            gimli::DW_TAG_member | gimli::DW_TAG_inheritance => self.field(tag, entry),
            gimli::DW_TAG_typedef => self.alias(at, entry),
            _ => {}
        }
        None
    }

    /// Skips the children of the entry that was just read.
    fn pass(&mut self, sibling: Option<UnitOffset>) {
        // Only forward jumps are followed: backward ones could loop forever.
        let sibling = sibling.filter(|to| *to > self.entries.next_offset());
        match sibling.and_then(|to| self.unit.entries_raw(Some(to)).ok()) {
            Some(behind) => self.entries = behind,
            None => self.passed = 1,
        }
    }

    /// Closes the scope after an entry's last child.
    fn end(&mut self) {
        if self.passed > 0 {
            self.passed -= 1;
            return;
        }
        let Some(Scope { at, layout: Some(mut layout), .. }) = self.scopes.pop() else { return };
        if layout.is_named {
            return (self.each)(&layout);
        }
        match self.aliases.remove(&at) {
            Some(alias) => {
                layout.name = alias;
                (self.each)(&layout);
            }
            None => drop(self.anonymous.insert(at, layout)),
        }
    }

    /// Reads a structure's layout, unless it was read before. Nested structures are described only where they are used,
    /// so each description of the outer structure may have more of them.
    fn structure(&mut self, at: UnitOffset, entry: &Entry<'a>) -> Scope<'a> {
        let announced = entry.specification.and_then(|at| self.entry(at)).and_then(|(_, entry)| entry.name);
        let own_name = self.string(entry.name.or(announced));
        let name = self.in_scope(&own_name);
        let file = entry.file.and_then(|index| self.file(index)).unwrap_or_default();
        let mut hasher = DefaultHasher::new();
        (&name, entry.size, &file, entry.line).hash(&mut hasher);
        let size = entry.size.filter(|_| !entry.is_declaration && self.seen.insert(hasher.finish()));
        let layout = size.map(|size| Layout {
            name: name.clone(),
            is_named: !own_name.is_empty(),
            source: entry.line.filter(|_| !file.is_empty()).map(|line| format!("{file}:{line}")),
            size,
            alignment: entry.alignment,
            is_whole: true,
            has_bases: false,
            fields: Vec::new(),
        });
        Scope { at, name, layout }
    }

    /// Reads a member or base of the enclosing structure.
    fn field(&mut self, tag: DwTag, entry: &Entry<'a>) {
        // A member that is only declared is static.
        if entry.is_declaration {
            return;
        }
        let field = match entry.location {
            Location::Begin => Some(0),
            Location::Behind(offset) => Some(offset),
            Location::Computed => None,
        };
        let field = field.map(|offset| {
            let of = entry.of.and_then(|of| self.kind(of)).unwrap_or_default();
            let of = Type { alignment: entry.alignment.or(of.alignment), ..of };
            let base = entry.of.filter(|_| tag == gimli::DW_TAG_inheritance).and_then(|of| self.entry(of));
            Field { name: self.string(entry.name.or(base.and_then(|(_, base)| base.name))), offset, of }
        });
        let Some(layout) = self.scopes.last_mut().and_then(|s| s.layout.as_mut()) else { return };
        layout.has_bases |= tag == gimli::DW_TAG_inheritance;
        match field.filter(|_| layout.fields.len() < MAX_MEMBERS) {
            Some(field) => layout.fields.push(field),
            None => layout.is_whole = false,
        }
    }

    /// Reads a `typedef`, which may name an anonymous structure.
    fn alias(&mut self, at: UnitOffset, entry: &Entry<'a>) {
        let Some(of) = entry.of else { return };
        if of > at {
            let name = self.in_scope(&self.string(entry.name));
            self.aliases.insert(of, name);
        } else if let Some(mut layout) = self.anonymous.remove(&of) {
            layout.name = self.in_scope(&self.string(entry.name));
            (self.each)(&layout);
        }
    }

    /// Returns size and alignment of the type at this position, with aliases resolved.
    fn kind(&self, mut at: UnitOffset) -> Option<Type> {
        let (mut found, mut elements) = (Type::default(), None);
        for _ in 0..MAX_STEPS {
            let (tag, entry) = self.entry(at)?;
            found.alignment = found.alignment.or(entry.alignment);
            match tag {
                gimli::DW_TAG_typedef
                | gimli::DW_TAG_const_type
                | gimli::DW_TAG_volatile_type
                | gimli::DW_TAG_atomic_type => {}
                gimli::DW_TAG_array_type => {
                    found.is_vector |= entry.is_vector;
                    elements = Some(elements.unwrap_or(1_u64).checked_mul(self.elements(at)?)?);
                }
                _ => {
                    let is_address = matches!(
                        tag,
                        gimli::DW_TAG_pointer_type | gimli::DW_TAG_reference_type | gimli::DW_TAG_rvalue_reference_type
                    );
                    let address = is_address.then(|| u64::from(self.unit.encoding().address_size));
                    let size = entry.size.or(address);
                    found.is_bytes = elements.is_some() && size == Some(1);
                    found.size = size.and_then(|size| size.checked_mul(elements.unwrap_or(1)));
                    return Some(found);
                }
            }
            at = entry.of?;
        }
        None
    }

    /// Returns the number of elements of the array at this position, over all dimensions.
    fn elements(&self, at: UnitOffset) -> Option<u64> {
        let mut entries = self.unit.entries_raw(Some(at)).ok()?;
        let array = entries.read_abbreviation().ok()??;
        entries.skip_attributes(array.attributes()).ok()?;
        let mut elements = 1_u64;
        for _ in 0..MAX_STEPS {
            let Some(dimension) = entries.read_abbreviation().ok()? else { return Some(elements) };
            elements = elements.checked_mul(Entry::read(&mut entries, dimension).ok()?.count?)?;
        }
        None
    }

    /// Returns the entry at this position.
    fn entry(&self, at: UnitOffset) -> Option<(DwTag, Entry<'a>)> {
        let mut entries = self.unit.entries_raw(Some(at)).ok()?;
        let abbreviation = entries.read_abbreviation().ok()??;
        Some((abbreviation.tag(), Entry::read(&mut entries, abbreviation).ok()?))
    }

    /// Returns the name of a source file, without directories.
    fn file(&self, index: u64) -> Option<Cow<'a, str>> {
        let file = self.unit.line_program.as_ref()?.header().file(index)?;
        let path = self.string(Some(file.path_name()));
        let begin = path.rfind('/').map_or(0, |slash| slash + 1);
        Some(match path {
            Cow::Borrowed(path) => Cow::Borrowed(&path[begin..]),
            Cow::Owned(path) => Cow::Owned(path[begin..].to_owned()),
        })
    }

    /// Returns a string that is safe to display; empty if there is none.
    fn string(&self, value: Option<AttributeValue<Slice<'a>>>) -> Cow<'a, str> {
        let bytes = value.and_then(|value| self.dwarf.attr_string(self.unit, value).ok());
        let bytes = bytes.map_or(&[][..], |bytes| bytes.slice());
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_NAME)]);
        match shown.contains(char::is_control) {
            true => shown.replace(char::is_control, "?").into(),
            false => shown,
        }
    }

    /// Qualifies a name with its enclosing scopes.
    fn in_scope(&self, name: &str) -> String {
        let name = if name.is_empty() { ANONYMOUS } else { name };
        match self.scopes.last().map(|scope| &*scope.name).filter(|scope| !scope.is_empty() && scope.len() <= MAX_NAME)
        {
            Some(scope) => format!("{scope}::{name}"),
            None => name.to_owned(),
        }
    }
}
