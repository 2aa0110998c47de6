//! Demangles C++ names.
//!
//! A few bytes of a mangled name can expand to any amount of text, because it can refer to its own parts, and these to
//! others. So names are demangled within bounds.

use std::fmt;

use cpp_demangle::{DemangleOptions, Symbol};

/// The most bytes of a mangled name. The longest in the known servers has 4 KiB.
const MAX_MANGLED: usize = 16 << 10;

/// The most bytes of a demangled name.
const MAX_TEXT: usize = 64 << 10;

/// Returns the demangled name; `None` if `mangled` is not a mangled name, or if either is too long.
pub(super) fn demangle(mangled: &str, options: DemangleOptions) -> Option<String> {
    // The name of a C function may also be a mangled type: `f` is `float`.
    if !mangled.starts_with("_Z") || mangled.len() > MAX_MANGLED {
        return None;
    }
    let mut text = Text(String::new());
    Symbol::new(mangled).ok()?.structured_demangle(&mut text, &options).ok()?;
    Some(text.0)
}

/// A writer that refuses text beyond the limit, which ends the demangling.
struct Text(String);

impl fmt::Write for Text {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        if self.0.len() + part.len() > MAX_TEXT {
            return Err(fmt::Error);
        }
        self.0.push_str(part);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a function with a template argument in which a type is contained twice in another, that twice in the
    /// next, and so on.
    fn doubled(times: usize) -> String {
        let number = |n: usize| match n {
            0 => String::new(),
            n => char::from_digit(n as u32 - 1, 36).expect("a digit").to_ascii_uppercase().to_string(),
        };
        let twice = |n: usize| format!("S0_IS{0}_S{0}_E", number(n));
        let parts: String = (2..times + 2).map(twice).collect();
        format!("_Z1fI1AIiiE{parts}EvT_")
    }

    fn plain(mangled: &str) -> Option<String> {
        demangle(mangled, DemangleOptions::new())
    }

    #[test]
    fn a_name_of_more_than_is_believed_is_none() {
        let short = plain(&doubled(3)).expect("a name");
        assert!(short.starts_with("void f<A<int, int>, A<A<int, int>, A<int, int> >"), "{short}");
        assert_eq!(plain(&doubled(16)), None);
        assert_eq!(plain(&format!("_Z1fI{}EvT_", "i".repeat(MAX_MANGLED))), None);
    }

    #[test]
    fn names_of_c_are_no_types() {
        assert_eq!(["f", "i", "_Zf", ""].map(plain), [None, None, None, None]);
    }
}
