//! The functions that show where a server keeps what its threads execute. The servers export them to their plugins, so
//! they are in stripped programs too.

use super::Function;

/// Functions that return the session of the calling thread. In MySQL 8.0 and newer, and MariaDB 10.5 and newer, it is
/// in a thread-local variable; older ones ask the C library for it. Mangled names as a whole.
pub const CURRENT_SESSION: &[Function] = &["_Z19thd_get_current_thdv", "_current_thd"];

/// Functions that take a session and return its statement: as a pointer and a length (MySQL), in which C++ and C
/// functions are alike.
pub const STATEMENT: &[Function] = &["_Z16thd_query_unsafeP3THD", "thd_query_unsafe"];

/// Functions that take a session and return the address of such a pointer and length (MariaDB).
pub const STATEMENT_ADDRESS: &[Function] = &["thd_query_string"];

/// Functions that take a session and return the ID of its connection, by which the server lists and ends it.
pub const CONNECTION: &[Function] = &["thd_get_thread_id"];

/// Functions that hand the name of the calling thread's schema to a function that copies it, as a pointer and a length:
/// the SQL function `DATABASE()`. Where the C library keeps the session, they ask for it.
pub const SCHEMA: &[Function] = &["_ZN18Item_func_database7val_strEP6String"];

/// Functions that take a session and write the address of its security context to where their second argument points
/// (MySQL).
pub const SECURITY_CONTEXT: &[Function] =
    &["_Z24thd_get_security_contextP3THDPP16Security_context", "thd_get_security_context"];

/// Functions that take a security context and return the name of its user, as a pointer and a length (MySQL).
pub const CONTEXT_USER: &[Function] = &["_ZNK16Security_context4userEv"];

/// Functions whose second argument is a session, and that pass the name of the user who has logged in, followed by the
/// host, to one of [`LOGIN_TAKERS`]: the SQL function `USER()`. The name ends with a NUL.
pub const LOGIN: &[Function] = &["_ZN14Item_func_user10fix_fieldsEP3THDPP4Item"];

/// The functions that [`LOGIN`] pass the name to.
pub const LOGIN_TAKERS: &[Function] = &["_ZN14Item_func_user4initEPKcS1_"];

/// Functions that take a session and return the name of its user, which is in its security context and ends with a NUL
/// (MariaDB).
pub const USER: &[Function] = &["thd_user_name"];
