//! Where a server's threads keep the statements that they execute, and the IDs of their connections.

use std::collections::BTreeSet;

use crate::analysis::{thread_key, thread_variable, Function, Origin, Pointer, Pointers, Root, ThreadOffset};
use crate::catalog::{
    self, CONNECTION, CONTEXT_USER, CURRENT_SESSION, LOGIN, LOGIN_TAKERS, SCHEMA, SECURITY_CONTEXT, STATEMENT,
    STATEMENT_ADDRESS, USER,
};
use crate::isa::{Flow, Insn};
use crate::symbols::Image;

/// Where a thread's statement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatementAt {
    /// Where each thread has the pointer to its session.
    pub session: ThreadOffset,
    /// The offset in the session of the pointer to the statement's text, which its length follows.
    pub text: u64,
}

/// Where a session keeps for whom it works, as far as that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountAt {
    /// The offset in the session of the pointer to the schema's name, which its length follows.
    pub schema: Option<u64>,
    /// Where the user's name is.
    pub user: Option<UserAt>,
}

/// Where the name of a session's user is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserAt {
    /// The offset in the session of the pointer to its security context; `None` if the name is in the session itself.
    pub context: Option<u64>,
    /// The offset in the security context, or in the session, of the pointer to the name.
    pub name: u64,
    /// Whether the name's length follows. The name ends with a NUL in any case.
    pub has_length: bool,
}

/// The reason why it is not known where statements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoStatements {
    /// No function shows which variable of its thread points to the session.
    #[error("no function of this program shows where a thread has its session")]
    NoSession,
    /// No function shows where the statement is in it.
    #[error("no function of this program shows where a session has its statement")]
    NoText,
}

/// Finds where a program's threads have their statements.
///
/// # Errors
/// Fails if the program's code does not show it, or contradicts itself.
pub fn statement(image: &Image) -> Result<StatementAt, NoStatements> {
    let session = single(functions(image, CURRENT_SESSION), |entry| thread_variable(image, entry));
    let by_key = || {
        let all = functions(image, CURRENT_SESSION).chain(functions(image, SCHEMA));
        single(all, |entry| thread_key(image, entry)).map(ThreadOffset::OfKey)
    };
    let session = session.or_else(by_key).ok_or(NoStatements::NoSession)?;
    let text = single(functions(image, STATEMENT), |entry| offset(image, entry, loaded));
    let text = text.or_else(|| single(functions(image, STATEMENT_ADDRESS), |entry| offset(image, entry, |_, at| at)));
    let text = text.and_then(|text| u64::try_from(text).ok()).ok_or(NoStatements::NoText)?;
    Ok(StatementAt { session, text })
}

/// Returns the offset in a session of the ID of its connection; `None` if the program's code does not show it.
pub fn connection(image: &Image) -> Option<u64> {
    let offset = single(functions(image, CONNECTION), |entry| offset(image, entry, loaded));
    offset.and_then(|offset| u64::try_from(offset).ok())
}

/// Finds where a program's sessions keep for whom they work.
pub fn account(image: &Image) -> AccountAt {
    let schema = single(functions(image, SCHEMA), |entry| schema(image, entry));
    let context = || single(functions(image, SECURITY_CONTEXT), |entry| written(image, entry));
    let name = || single(functions(image, CONTEXT_USER), |entry| unsigned(offset(image, entry, loaded)?));
    let mysql = || Some(UserAt { context: Some(context()?), name: name()?, has_length: true });
    let mariadb = || single(functions(image, USER), |entry| user(image, entry));
    let login = || single(functions(image, LOGIN), |entry| login(image, entry));
    AccountAt { schema, user: mysql().or_else(mariadb).or_else(login) }
}

fn unsigned(offset: i64) -> Option<u64> {
    offset.try_into().ok()
}

/// Returns the pointers of a function; `None` if it is none.
fn pointers(image: &Image, entry: u64) -> Option<(Function, Pointers)> {
    let range = image.function_at(entry).filter(|range| range.start == entry)?;
    let function = Function::new(image, range)?;
    let pointers = Pointers::new(image, &function);
    Some((function, pointers))
}

/// Returns the offset, in an object that is none of the function's arguments, of a pointer that it passes to another
/// function together with the number that follows it there.
fn schema(image: &Image, entry: u64) -> Option<u64> {
    let (function, pointers) = pointers(image, entry)?;
    let in_object = |value| match loaded(&pointers, value) {
        Pointer::Behind { root, offset } if !matches!(root, Root::Argument(_)) => Some((root, offset)),
        _ => None,
    };
    let pair = |two: &[Pointer]| match (in_object(two[0])?, in_object(two[1])?) {
        ((a, offset), (b, next)) if a == b && Some(next) == offset.checked_add(8) => unsigned(offset),
        _ => None,
    };
    let calls = function.insns().iter().flat_map(|insn| pointers.passed(insn.addr).windows(2).filter_map(pair));
    one(calls)
}

/// Returns the offset in a function's first argument of the pointer that it writes to where its second one points.
fn written(image: &Image, entry: u64) -> Option<u64> {
    let (_, pointers) = pointers(image, entry)?;
    let to = Pointer::Behind { root: Root::Argument(1), offset: 0 };
    one(pointers.stores().iter().filter(|store| store.to == to).filter_map(|store| {
        match loaded(&pointers, store.value) {
            Pointer::Behind { root: Root::Argument(0), offset } => unsigned(offset),
            _ => None,
        }
    }))
}

/// Returns where a function reads a name through a pointer in its first argument.
fn user(image: &Image, entry: u64) -> Option<UserAt> {
    let (_, pointers) = pointers(image, entry)?;
    one(pointers.reads().filter_map(|at| match at {
        Pointer::Behind { root: root @ Root::Made { .. }, offset } => match pointers.origin(root)? {
            Origin::Read { at: Pointer::Behind { root: Root::Argument(0), offset: context } } => {
                Some(UserAt { context: Some(unsigned(context)?), name: unsigned(offset)?, has_length: false })
            }
            _ => None,
        },
        _ => None,
    }))
}

/// Returns where a function's second argument has the name that it hands on.
fn login(image: &Image, entry: u64) -> Option<UserAt> {
    let takers: Vec<u64> = functions(image, LOGIN_TAKERS).collect();
    let (function, pointers) = pointers(image, entry)?;
    let is_taker = |insn: &&Insn| match insn.flow {
        Flow::Call(Some(to)) | Flow::Jump(to) => takers.contains(&to),
        _ => false,
    };
    let name = |insn: &Insn| match loaded(&pointers, *pointers.passed(insn.addr).get(1)?) {
        Pointer::Behind { root: Root::Argument(1), offset } => unsigned(offset),
        _ => None,
    };
    let name = one(function.insns().iter().filter(is_taker).filter_map(name))?;
    Some(UserAt { context: None, name, has_length: false })
}

/// Returns the addresses of these functions, as far as there are any.
fn functions<'a>(image: &'a Image, names: &'a [catalog::Function]) -> impl Iterator<Item = u64> + 'a {
    names.iter().filter_map(|name| image.symbol(name)).filter(|symbol| symbol.is_function).map(|symbol| symbol.addr)
}

/// Returns what these functions show; `None` if none shows anything, or if they contradict each other.
fn single<T: Ord>(functions: impl Iterator<Item = u64>, shown: impl Fn(u64) -> Option<T>) -> Option<T> {
    one(functions.filter_map(shown))
}

/// Returns the only one of these; `None` if there is none, or if they differ.
fn one<T: Ord>(all: impl Iterator<Item = T>) -> Option<T> {
    let mut all = all.collect::<BTreeSet<T>>().into_iter();
    all.next().filter(|_| all.next().is_none())
}

/// Returns the offset in its argument that a function returns, after `meant` has made of the result what it stands for.
fn offset(image: &Image, entry: u64, meant: impl Fn(&Pointers, Pointer) -> Pointer) -> Option<i64> {
    let (_, pointers) = pointers(image, entry)?;
    let mut offsets = pointers.returned().iter().map(|result| match meant(&pointers, *result) {
        Pointer::Behind { root: Root::Argument(0), offset } => Some(offset),
        _ => None,
    });
    let first = offsets.next()??;
    offsets.all(|offset| offset == Some(first)).then_some(first)
}

/// Returns the address from which a value was read.
fn loaded(pointers: &Pointers, value: Pointer) -> Pointer {
    match value {
        Pointer::Field { root, offset } => Pointer::Behind { root, offset },
        Pointer::Behind { root, offset: 0 } => match pointers.origin(root) {
            Some(Origin::Read { at }) => at,
            _ => Pointer::Unknown,
        },
        _ => Pointer::Unknown,
    }
}
