//! The family that a server belongs to, and its maintainer.

use super::events::event_waits;
use super::members::is_identified;
use super::wait_functions::find_wait_function;
use crate::catalog::{
    Family, Flavor, WaitFunction, FAMILIES, MARIADB_10_1, MARIADB_TEXT, MYSQL_5_6, PERCONA_TEXT, SLEEPS_ONLY,
};
use crate::symbols::Image;

/// What a program is instead of a server that the catalog knows, for a message that begins "process PID (NAME) is".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unrecognized {
    /// Neither a wait function nor the variable with the server's version is in the program.
    #[error("not a MySQL or MariaDB server: run `armtrace` alone to list those of this host")]
    NotAServer,
    /// No wait function is found.
    #[error("a MySQL or MariaDB server, but armtrace cannot find its latch functions")]
    NoWaitFunctions,
    /// The code does not show where latches store what identifies them.
    #[error("a MySQL or MariaDB server, but armtrace cannot find in its code how latches are identified")]
    NoIdentity,
}

/// Returns the family whose wait functions this binary has. If no wait function is found, or nothing that identifies
/// the latches, but InnoDB waits by events, this is the family without wait functions.
///
/// # Errors
/// Fails with what the program is instead.
pub fn family(image: &Image) -> Result<&'static Family, Unrecognized> {
    let found = with_first_wait_function(image).map(|family| of_maintainer(image, family));
    if let Some(family) = found.filter(|f| f.wait_functions.iter().any(|w| is_identified(image, w))) {
        return Ok(family);
    }
    match (found, image.symbol("server_version")) {
        (None, None) => Err(Unrecognized::NotAServer),
        _ if !event_waits(image).is_empty() => Ok(&SLEEPS_ONLY),
        (Some(_), _) => Err(Unrecognized::NoIdentity),
        (None, _) => Err(Unrecognized::NoWaitFunctions),
    }
}

/// Returns the family whose first wait function is in this binary. Names are looked up first: to recognize functions by
/// their code takes a hundred times as long.
fn with_first_wait_function(image: &Image) -> Option<&'static Family> {
    let first = |family: &Family| family.wait_functions.first();
    let named = FAMILIES.into_iter().filter(|family| first(family).is_some_and(|function| is_named(image, function)));
    named
        .chain(FAMILIES)
        .find(|family| first(family).is_some_and(|function| !find_wait_function(image, function).is_empty()))
}

/// Returns the family, or MariaDB's family with the same wait functions if the program's version string says that it is
/// MariaDB.
fn of_maintainer(image: &Image, family: &'static Family) -> &'static Family {
    if std::ptr::eq(family, &MYSQL_5_6) && image.has_string(MARIADB_TEXT) {
        &MARIADB_10_1
    } else {
        family
    }
}

/// Returns the maintainer of this server of a known family.
pub fn flavor(image: &Image, family: &Family) -> Flavor {
    match family.flavor {
        Flavor::Mysql if image.has_string(PERCONA_TEXT) => Flavor::Percona,
        flavor => flavor,
    }
}

/// Returns whether the image lacks symbols by which a server of the catalog is recognized. MySQL exports all that
/// matter; a stripped MariaDB has no names for InnoDB's functions. For any other program this is false.
pub fn misses_symbols(image: &Image) -> bool {
    match family(image) {
        Ok(family) => !family.wait_functions.iter().any(|function| is_named(image, function)),
        Err(_) => image.symbol("server_version").is_some(),
    }
}

/// Returns whether a symbol of this binary has the function's name.
fn is_named(image: &Image, function: &WaitFunction) -> bool {
    image.functions_named(function.name()).next().is_some()
}
