//! Finds in a program what the catalog describes: which family it belongs to, its wait functions, where its latches
//! store what identifies them, and the variables behind its settings.
//!
//! Like the analysis of code, this is a function of the program's bytes, which are not trusted. What cannot be found
//! with certainty is missing.

mod events;
mod family;
mod futex;
mod members;
mod owner;
mod pthread;
mod spin;
mod statement;
mod variables;
mod wait_functions;

pub use events::event_waits;
pub use family::{family, flavor, misses_symbols, Unrecognized};
pub use members::{find_member, Layout};
pub use owner::{rw_lock_owner, RwLockOwner};
pub use pthread::{is_in_lock_array, metadata_lock_event, prlock_kind};
pub use spin::{spin_functions, SpinFunction};
pub use statement::{account, connection, statement, AccountAt, NoStatements, StatementAt, UserAt};
pub use variables::{Number, Variables};
pub use wait_functions::{find_wait_function, location_arguments, wrapper_returns};
