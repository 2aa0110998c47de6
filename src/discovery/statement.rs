//! Where a server's threads keep the statements that they execute, and the IDs of their connections.

use std::collections::BTreeSet;

use crate::analysis::{thread_variable, Function, Origin, Pointer, Pointers, Root, ThreadOffset};
use crate::catalog::{self, CONNECTION, CURRENT_SESSION, STATEMENT, STATEMENT_ADDRESS};
use crate::symbols::Image;

/// Where a thread's statement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatementAt {
    /// Where each thread has the pointer to its session.
    pub session: ThreadOffset,
    /// The offset in the session of the pointer to the statement's text, which its length follows.
    pub text: u64,
}

/// The reason why it is not known where statements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoStatements {
    /// No function returns a thread-local variable that points to the session.
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
    let session = session.ok_or(NoStatements::NoSession)?;
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

/// Returns the addresses of these functions, as far as there are any.
fn functions<'a>(image: &'a Image, names: &'a [catalog::Function]) -> impl Iterator<Item = u64> + 'a {
    names.iter().filter_map(|name| image.symbol(name)).filter(|symbol| symbol.is_function).map(|symbol| symbol.addr)
}

/// Returns what these functions show; `None` if none shows anything, or if they contradict each other.
fn single<T: Ord>(functions: impl Iterator<Item = u64>, shown: impl Fn(u64) -> Option<T>) -> Option<T> {
    let mut all = functions.filter_map(shown).collect::<BTreeSet<T>>().into_iter();
    all.next().filter(|_| all.next().is_none())
}

/// Returns the offset in its argument that a function returns, after `meant` has made of the result what it stands for.
fn offset(image: &Image, entry: u64, meant: impl Fn(&Pointers, Pointer) -> Pointer) -> Option<i64> {
    let range = image.function_at(entry).filter(|range| range.start == entry)?;
    let pointers = Pointers::new(image, &Function::new(image, range)?);
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
