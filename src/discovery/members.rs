//! Members of latches: their offsets, which each build's code shows.

use std::collections::{BTreeSet, HashSet};

use crate::analysis::{self, Kept, Left};
use crate::catalog::{Family, Member, Showing, WaitFunction};
use crate::symbols::{self, Arch, Image, Symbol};

/// Where the latches of one build store what identifies them.
#[derive(Debug, Default)]
pub struct Layout {
    members: Vec<(Member, Kept)>,
}

impl Layout {
    /// Collects the members whose location the build's code shows.
    pub fn of(image: &Image, family: &Family) -> Layout {
        let mut layout = Layout::default();
        let members = family.wait_functions.iter().flat_map(WaitFunction::identities).flat_map(|i| i.members());
        for member in members {
            if layout.kept(member).is_none() {
                layout.members.extend(find_member(image, member).map(|kept| (*member, kept)));
            }
        }
        layout
    }

    /// Iterates over all members whose location is known.
    pub fn members(&self) -> impl Iterator<Item = (&Member, Kept)> {
        self.members.iter().map(|(member, kept)| (member, *kept))
    }

    /// Returns the location of a member.
    pub fn kept(&self, member: &Member) -> Option<Kept> {
        self.members.iter().find(|(known, _)| known == member).map(|(_, kept)| *kept)
    }
}

/// Returns whether this build shows where a wait function's latches, or some kind of them, store what identifies them.
pub(super) fn is_identified(image: &Image, function: &WaitFunction) -> bool {
    function.identities().any(|identity| identity.members().iter().all(|member| find_member(image, member).is_some()))
}

/// Returns a member's location in this build. `None` if no function sets it, or if the setters disagree.
pub fn find_member(image: &Image, member: &Member) -> Option<Kept> {
    let setters = member.set_by.iter().flat_map(|function| image.functions_named(function));
    let kept = |setter: Symbol<'_>| {
        let number = symbols::parameters(setter.name)?.iter().position(|p| *p == member.to)?;
        Some(analysis::kept(image, setter.addr, u8::try_from(number).ok()?, 0))
    };
    let found: BTreeSet<Kept> = setters.filter_map(kept).flatten().collect();
    let shown = member.shown_by.as_ref().filter(|_| found.is_empty()).and_then(|code| shown_by(image, code));
    let mut found = found.into_iter().chain(shown);
    found.next().filter(|kept| kept.offset >= 0 && found.next().is_none())
}

/// Returns the location of a member from the code that prints it. `None` if that code shows no location, or several.
fn shown_by(image: &Image, showing: &Showing) -> Option<Kept> {
    let reader = image.functions_named(showing.reader).next()?;
    let number = symbols::parameters(reader.name)?.iter().position(|p| *p == showing.parameter)?;
    let method = image.functions_named(showing.method).next();
    let other = find_member(image, showing.other)?.offset;
    let number = number + result_registers(image);
    let mut shown = BTreeSet::new();
    for (call, function) in calls_of(image, reader.addr) {
        let Some(Left::Loaded(member)) = function.left_for(call, number) else { continue };
        match method.filter(|m| m.addr == function.entry()) {
            // A method's object follows the address for the result, too.
            Some(method) => {
                let parts = calls_of(image, method.addr).into_iter();
                let parts = parts.filter_map(|(call, caller)| caller.added_for(call, result_registers(image)));
                shown.extend(parts.map(|part| part.wrapping_add(member)));
            }
            None => _ = shown.insert(member),
        }
    }
    let mut own = shown.into_iter().filter(|offset| *offset != other);
    own.next().filter(|_| own.next().is_none()).map(|offset| Kept { offset, mask: u32::MAX })
}

/// Returns how many argument registers the address takes at which a function stores a string that it returns.
fn result_registers(image: &Image) -> usize {
    match image.arch() {
        Arch::X86_64 => 1,
        Arch::Aarch64 => 0,
    }
}

/// Returns the direct calls of the function at `callee`, each with the function that contains it.
fn calls_of(image: &Image, callee: u64) -> Vec<(u64, analysis::Function)> {
    let calls = analysis::direct_calls(image, &HashSet::from([callee])).into_iter();
    calls.filter_map(|(at, _)| Some((at, analysis::Function::new(image, image.function_at(at)?)?))).collect()
}

/// Test functions in this executable that set a member.
#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::catalog::Function;
    use crate::symbols::Parameter;

    const HERE: Function = "_Z8set_hereP4Lock10latch_id_t";
    const THERE: Function = "_Z9set_thereP4Lock10latch_id_t";
    const TWICE: Function = "_Z9set_twiceP4Lock10latch_id_t";
    const NOWHERE: Function = "_Z11set_nowhereP4Lock10latch_id_t";

    macro_rules! function {
        ($name:literal, $code:literal) => {
            concat!(
                ".globl ",
                $name,
                "\n.type ",
                $name,
                ",@function\n",
                $name,
                ":\n.cfi_startproc\n",
                $code,
                "\nret\n.cfi_endproc\n.size ",
                $name,
                ", .-",
                $name
            )
        };
    }

    std::arch::global_asm!(
        function!("_Z8set_hereP4Lock10latch_id_t", "mov %esi,0x20(%rdi)"),
        function!("_Z9set_thereP4Lock10latch_id_t", "mov %esi,0x28(%rdi)"),
        function!("_Z9set_twiceP4Lock10latch_id_t", "mov %esi,0x20(%rdi)\nmov %esi,0x28(%rdi)"),
        function!("_Z11set_nowhereP4Lock10latch_id_t", "nop"),
        options(att_syntax)
    );

    extern "C" {
        #[link_name = "_Z8set_hereP4Lock10latch_id_t"]
        fn here();
        #[link_name = "_Z9set_thereP4Lock10latch_id_t"]
        fn there();
        #[link_name = "_Z9set_twiceP4Lock10latch_id_t"]
        fn twice();
        #[link_name = "_Z11set_nowhereP4Lock10latch_id_t"]
        fn nowhere();
    }

    fn found(set_by: &'static [Function]) -> Option<Kept> {
        // This use keeps the linker from dropping them.
        std::hint::black_box([here, there, twice, nowhere].map(|function| function as *const ()));
        let image = Image::open(std::path::Path::new("/proc/self/exe")).expect("the test's own executable");
        assert!(set_by.iter().all(|name| image.functions_named(name).next().is_some()));
        find_member(&image, &Member { set_by, to: Parameter::LatchId, shown_by: None })
    }

    #[test]
    fn a_member_lies_where_all_setters_say() {
        let here = Some(Kept { offset: 0x20, mask: u32::MAX });
        assert_eq!(found(&[HERE]), here);
        assert_eq!(found(&[HERE, NOWHERE]), here);
    }

    #[test]
    fn setters_that_disagree_show_no_location() {
        assert_eq!(found(&[HERE, THERE]), None);
        assert_eq!(found(&[TWICE]), None);
        assert_eq!(found(&[HERE, TWICE]), None);
        assert_eq!(found(&[NOWHERE]), None);
    }
}
