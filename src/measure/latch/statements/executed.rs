//! Decodes what programs have read of the statements that threads execute.

use super::reader::{name_of, Executes};
use crate::bpf::sample::types;
use crate::measure::latch::figures::Account;

/// Tells programs, by their constants, where a server's threads have their statements.
macro_rules! tell_place {
    ($rodata:expr, $place:expr) => {{
        let place: $crate::measure::latch::Place = $place;
        $rodata.session_at = place.session;
        $rodata.text_at = place.text;
        let $crate::discovery::AccountAt { schema, user } = place.account;
        // What is not known.
        const NONE: u64 = u64::MAX;
        $rodata.schema_at = schema.unwrap_or(NONE);
        $rodata.context_at = user.and_then(|user| user.context).unwrap_or(NONE);
        $rodata.user_at = user.map_or(NONE, |user| user.name);
        $rodata.user_has_length = user.is_some_and(|user| user.has_length);
    }};
}

pub(in crate::measure) use tell_place;

/// Returns what a thread executed, without values, and for whom.
pub(in crate::measure) fn executes(executed: &types::executed) -> (Executes, Account) {
    let length = executed.length as usize;
    let what = match types::executes(executed.executes) {
        types::executes::EXECUTES_NOTHING => Executes::Nothing,
        types::executes::EXECUTES_STATEMENT => {
            Executes::of(&executed.text[..length.min(executed.text.len())], executed.is_cut != 0)
        }
        _ => Executes::Unread,
    };
    (what, account(executed))
}

fn account(executed: &types::executed) -> Account {
    let name = |bytes: &[u8], length: u32| name_of(bytes.get(..length as usize)?, true);
    Account {
        user: name(&executed.user, executed.user_length).unwrap_or_default(),
        schema: name(&executed.schema, executed.schema_length).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::executes as kinds;

    fn executed(executes: kinds, text: &str) -> types::executed {
        let mut executed = types::executed { executes: executes.0, ..Default::default() };
        let part = text.len().min(executed.text.len());
        (executed.length, executed.is_cut) = (text.len() as u32, u32::from(text.len() > part));
        executed.text[..part].copy_from_slice(&text.as_bytes()[..part]);
        executed
    }

    #[test]
    fn statements_lose_their_values() {
        let statement = |text: &str| Executes::Statement(text.to_owned());
        let long = format!("SELECT {}", "a".repeat(2000));
        let cases = [
            (executed(kinds::EXECUTES_STATEMENT, "SELECT 'x'"), statement("SELECT ?")),
            (executed(kinds::EXECUTES_STATEMENT, &long), statement("SELECT ...")),
            (executed(kinds::EXECUTES_STATEMENT, "hello, world"), Executes::Unread),
            (executed(kinds::EXECUTES_NOTHING, "SELECT 'x'"), Executes::Nothing),
            (executed(kinds::EXECUTES_UNREAD, "SELECT 'x'"), Executes::Unread),
        ];
        for (executed, expected) in cases {
            assert_eq!(executes(&executed), (expected, Account::default()));
        }
    }

    #[test]
    fn accounts_are_names_as_a_whole() {
        let mut executed = executed(kinds::EXECUTES_STATEMENT, "COMMIT");
        executed.user[..4].copy_from_slice(b"app\0");
        executed.schema[..5].copy_from_slice(b"shop\0");
        (executed.user_length, executed.schema_length) = (4, 5);
        assert_eq!(account(&executed).to_string(), "app in shop");
        (executed.user_length, executed.schema_length) = (0, 6);
        assert!(account(&executed).is_empty());
        executed.user_length = u32::MAX;
        assert!(account(&executed).is_empty());
    }
}
