//! Text that armtrace has not written itself, on the user's terminal.
//!
//! Versions, paths and names come from a server's memory and files, from recordings and from debug files. Whoever owns
//! those could put sequences into them that a terminal obeys: to change its title, hide lines or type for the user.

use std::borrow::Cow;

/// Replaces the characters that terminals do not show but obey, except line breaks and tabs.
pub fn harmless(text: &str) -> Cow<'_, str> {
    replaced(text, |c| c.is_control() && !matches!(c, '\n' | '\t'))
}

/// Like [`harmless`], for text that is to stay within its line.
pub fn harmless_in_line(text: &str) -> Cow<'_, str> {
    replaced(text, char::is_control)
}

fn replaced(text: &str, is_harmful: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.contains(&is_harmful) {
        Cow::Owned(text.replace(is_harmful, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_terminals_obey_is_replaced() {
        let title = "8.0\x1b]0;owned\x07-log\u{9b}2J\u{7f}";
        assert_eq!(harmless(title), "8.0\u{fffd}]0;owned\u{fffd}-log\u{fffd}2J\u{fffd}");
        assert_eq!(harmless("a\n\tb\r\x08"), "a\n\tb\u{fffd}\u{fffd}");
        assert_eq!(harmless_in_line("a\nb"), "a\u{fffd}b");
        assert!(matches!(harmless("Größe ±5 % 表\n"), Cow::Borrowed(_)));
    }
}
