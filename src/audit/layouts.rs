//! How compilers laid out structures, classes and unions, from a program's own debug information (DWARF).
//!
//! A server has 200 MB of it, in which most structures are described once for every source file that knows them. So each is
//! read once, bodies of functions are passed over, and nothing is kept. Nothing in it is trusted.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use gimli::{Abbreviation, AttributeValue, DwTag, Dwarf, EntriesRaw, Unit, UnitOffset};

use crate::symbols::{DebugInfo, Slice};

/// Bytes of debug information after which the memory of what was read is given back.
const RELEASED: usize = 32 << 20;

/// Namespaces and structures inside of one another, at most.
const MAX_DEPTH: usize = 64;

/// Attributes that one entry has, at most: compilers write a dozen.
const MAX_ATTRIBUTES: usize = 128;

/// Members of one structure, at most.
const MAX_MEMBERS: usize = 10_000;

/// Steps from a type to what it is another name for, at most.
const MAX_STEPS: usize = 16;

/// Bytes of a name that are kept: those of templates have any length.
const MAX_NAME: usize = 512;

/// What is without a name is called.
pub(super) const ANONYMOUS: &str = "(anonymous)";

/// One structure, class or union.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout<'a> {
    /// With the namespaces and structures that it lies in.
    pub name: String,
    /// Whether that is its own; otherwise a `typedef` may be known by which it is called, or it is [`ANONYMOUS`].
    pub is_named: bool,
    /// `FILE:LINE` of its declaration, without folders.
    pub source: Option<String>,
    /// Bytes.
    pub size: u64,
    /// Bytes that the source aligns it to; absent where that does not say, and where the compiler did not write it down.
    pub alignment: Option<u64>,
    /// Whether all of its members and bases are here, and where they begin. Not so with virtual bases.
    pub is_whole: bool,
    pub has_bases: bool,
    /// Bases and members, in the order of their declaration.
    pub fields: Vec<Field<'a>>,
}

/// A member, or the part of a structure that is a base.
#[derive(Clone, Debug, Default)]
pub(super) struct Field<'a> {
    /// Of a base, its type's. Empty for anonymous members.
    pub name: Cow<'a, str>,
    /// Bytes from where the structure begins.
    pub offset: u64,
    pub of: Type,
}

impl Field<'_> {
    /// Where it ends, in bytes from where the structure begins.
    pub fn end(&self) -> Option<u64> {
        self.of.size.and_then(|size| self.offset.checked_add(size))
    }
}

/// What a member is made of.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Type {
    /// Bytes; absent where the type is not in the same unit of debug information.
    pub size: Option<u64>,
    /// Bytes that the source aligns it, or the member, to.
    pub alignment: Option<u64>,
    /// Whether it is an array of single bytes.
    pub is_bytes: bool,
    /// Whether it is a vector of numbers for one instruction, which wants it aligned.
    pub is_vector: bool,
}

/// Calls `each` with all structures that the debug information defines, once each. False if there are none.
pub(super) fn each_layout(debug: &DebugInfo, mut each: impl FnMut(&Layout)) -> bool {
    let dwarf = debug.dwarf();
    let mut seen = HashSet::new();
    let (mut units, mut type_units) = (dwarf.units(), dwarf.type_units());
    let headers = std::iter::from_fn(|| units.next().ok()?).chain(std::iter::from_fn(|| type_units.next().ok()?));
    let mut bytes = 0;
    for header in headers {
        bytes += header.length_including_self();
        let Ok(unit) = dwarf.unit(header) else { continue };
        // Of a damaged unit: the structures before the damage.
        _ = Walk::new(&dwarf, &unit, &mut seen, &mut each).and_then(Walk::all);
        if bytes > RELEASED {
            debug.release_memory();
            bytes = 0;
        }
    }
    debug.release_memory();
    !seen.is_empty()
}

/// What an entry says, as far as it is asked for.
#[derive(Default)]
struct Entry<'a> {
    name: Option<AttributeValue<Slice<'a>>>,
    size: Option<u64>,
    alignment: Option<u64>,
    /// What it is another name for, or made of.
    of: Option<UnitOffset>,
    location: Location,
    file: Option<u64>,
    line: Option<u64>,
    /// The entry behind its children.
    sibling: Option<UnitOffset>,
    /// Where a nested structure was announced that is defined elsewhere: its name is there.
    specification: Option<UnitOffset>,
    /// Elements of an array.
    count: Option<u64>,
    is_declaration: bool,
    is_vector: bool,
}

/// Where a member is in its structure.
#[derive(Default)]
enum Location {
    /// What is not said is so: that of a union's member, for one.
    #[default]
    Begin,
    /// Bytes from there.
    Behind(u64),
    /// To be computed from an object.
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

/// The structures of one unit of debug information: those of a source file and of the headers that it includes.
struct Walk<'w, 'a, F> {
    dwarf: &'w Dwarf<Slice<'a>>,
    unit: &'w Unit<Slice<'a>>,
    entries: EntriesRaw<'w, Slice<'a>>,
    /// Hashes of the structures that were read, in other units too.
    seen: &'w mut HashSet<u64>,
    each: &'w mut F,
    /// What the next entry lies in, the unit first.
    scopes: Vec<Scope<'a>>,
    /// How many entries the next one lies in that are passed over with all that is in them.
    passed: usize,
    /// Structures without a name, by where they are: a `typedef` may give them one.
    anonymous: HashMap<UnitOffset, Layout<'a>>,
    /// Such names of structures that follow, by where these are.
    aliases: HashMap<UnitOffset, String>,
}

struct Scope<'a> {
    at: UnitOffset,
    /// With those around it; empty for units.
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

    /// Whether an entry says something though nothing is in it.
    fn is_wanted(&self, tag: DwTag) -> bool {
        match tag {
            gimli::DW_TAG_typedef => true,
            gimli::DW_TAG_member | gimli::DW_TAG_inheritance => {
                self.scopes.last().is_some_and(|scope| scope.layout.is_some())
            }
            _ => false,
        }
    }

    /// Takes what an entry says. Some, if what is in it is wanted too.
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

    /// Leaves out the children of the entry that was just read.
    fn pass(&mut self, sibling: Option<UnitOffset>) {
        // Only forward: a way back would have no end.
        let sibling = sibling.filter(|to| *to > self.entries.next_offset());
        match sibling.and_then(|to| self.unit.entries_raw(Some(to)).ok()) {
            Some(behind) => self.entries = behind,
            None => self.passed = 1,
        }
    }

    /// Behind the last child of an entry.
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

    /// A structure: how it is laid out, if it was not seen before. What is nested in it is only described where it is used, so that
    /// each description of it may have more.
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

    /// A member or a base of the structure that the entry lies in.
    fn field(&mut self, tag: DwTag, entry: &Entry<'a>) {
        // What is only declared is static.
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

    /// A `typedef`, which may be the name of a structure that has none.
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

    /// What the type at this place amounts to.
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

    /// Elements of the array at this place, in all of its dimensions.
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

    /// The entry at this place.
    fn entry(&self, at: UnitOffset) -> Option<(DwTag, Entry<'a>)> {
        let mut entries = self.unit.entries_raw(Some(at)).ok()?;
        let abbreviation = entries.read_abbreviation().ok()??;
        Some((abbreviation.tag(), Entry::read(&mut entries, abbreviation).ok()?))
    }

    /// The name of a source file, without folders.
    fn file(&self, index: u64) -> Option<Cow<'a, str>> {
        let file = self.unit.line_program.as_ref()?.header().file(index)?;
        let path = self.string(Some(file.path_name()));
        let begin = path.rfind('/').map_or(0, |slash| slash + 1);
        Some(match path {
            Cow::Borrowed(path) => Cow::Borrowed(&path[begin..]),
            Cow::Owned(path) => Cow::Owned(path[begin..].to_owned()),
        })
    }

    /// A name as it may be shown; empty where there is none.
    fn string(&self, value: Option<AttributeValue<Slice<'a>>>) -> Cow<'a, str> {
        let bytes = value.and_then(|value| self.dwarf.attr_string(self.unit, value).ok());
        let bytes = bytes.map_or(&[][..], |bytes| bytes.slice());
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_NAME)]);
        match shown.contains(char::is_control) {
            true => shown.replace(char::is_control, "?").into(),
            false => shown,
        }
    }

    /// A name with those that it lies in.
    fn in_scope(&self, name: &str) -> String {
        let name = if name.is_empty() { ANONYMOUS } else { name };
        match self.scopes.last().map(|scope| &*scope.name).filter(|scope| !scope.is_empty() && scope.len() <= MAX_NAME)
        {
            Some(scope) => format!("{scope}::{name}"),
            None => name.to_owned(),
        }
    }
}
