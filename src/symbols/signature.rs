//! Determines the purpose of a function's parameters from its mangled name.

use super::demangle::demangle;

/// What an argument register carries, as far as the types show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// The name of a source file, followed by a line.
    File,
    /// A line of the source file before it.
    Line,
    /// InnoDB's number for a class of latches.
    LatchId,
    /// Anything else.
    Other,
}

/// Returns what each argument register carries on entry, in order; `None` if the name does not show it.
///
/// An object of two words, such as InnoDB's `ut::Location`, takes two registers. A method's object is its first
/// argument. A function in a namespace is taken for a method, so for those the numbers mean nothing.
pub fn parameters(mangled: &str) -> Option<Vec<Parameter>> {
    let types = parameter_types(mangled)?;
    let mut found = Vec::new();
    if mangled.starts_with("_ZN") {
        found.push(Parameter::Other);
    }
    for (i, kind) in types.iter().enumerate() {
        let is_number = |t: &String| matches!(t.as_str(), "unsigned long" | "unsigned int" | "unsigned short");
        match kind.as_str() {
            "ut::Location" => found.extend([Parameter::File, Parameter::Line]),
            "char const*" if types.get(i + 1).is_some_and(is_number) => found.push(Parameter::File),
            _ if found.last() == Some(&Parameter::File) => found.push(Parameter::Line),
            "latch_id_t" => found.push(Parameter::LatchId),
            _ => found.push(Parameter::Other),
        }
    }
    Some(found)
}

/// Returns the types of a function's parameters, in order; `None` if the name does not show them.
pub fn parameter_types(mangled: &str) -> Option<Vec<String>> {
    let text = demangle(mangled, cpp_demangle::DemangleOptions::new().no_return_type())?;
    Some(split(inside_last_parentheses(&text)?).into_iter().map(str::to_owned).collect())
}

/// Returns the parameter list of the function itself, not of one that its template arguments name.
fn inside_last_parentheses(text: &str) -> Option<&str> {
    let text = text.trim_end_matches(" const");
    let end = text.strip_suffix(')')?.len();
    let mut depth = 1;
    let begin = text[..end].bytes().rposition(|b| {
        match b {
            b')' => depth += 1,
            b'(' => depth -= 1,
            _ => {}
        }
        depth == 0
    })?;
    Some(&text[begin + 1..end])
}

/// Splits the types of a list, which may contain nested lists.
fn split(list: &str) -> Vec<&str> {
    let mut depth = 0;
    let parts = list.split(|c| {
        match c {
            '<' | '(' => depth += 1,
            '>' | ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Parameter::{File, LatchId, Line, Other};

    #[test]
    fn places_in_the_source_are_found_by_their_types() {
        let told = |name| parameters(name).unwrap_or_default();
        assert_eq!(told("_Z19rw_lock_s_lock_spinP9rw_lock_tmN2ut8LocationE"), [Other, Other, File, Line]);
        assert_eq!(told("_Z19rw_lock_s_lock_spinP9rw_lock_tmPKcm"), [Other, Other, File, Line]);
        assert_eq!(told("_ZN14TTASEventMutexI13GenericPolicyE4waitEPKcjj"), [Other, File, Line, Other]);
        let wanted = [Other, Other, Other, File, Line];
        assert_eq!(told("_ZN11PolicyMutexI14TTASEventMutexI13GenericPolicyEE5enterEjjPKcj"), wanted);
        let wanted = [Other, LatchId, File, Line];
        assert_eq!(told("_Z19rw_lock_create_funcP9rw_lock_t10latch_id_tN2ut8LocationE"), wanted);
        let name = "_Z10mutex_initI11PolicyMutexI14TTASEventMutexI13GenericPolicyEEEvPT_10latch_id_tPKcj";
        assert_eq!(told(name), wanted);
        // The name of the latch precedes the location.
        assert_eq!(told("_Z19rw_lock_create_funcP9rw_lock_tPKcS2_m"), [Other, Other, File, Line]);
    }

    #[test]
    fn types_are_told_apart() {
        let told = |name| parameter_types(name).unwrap_or_default();
        assert_eq!(told("_Z17tdc_acquire_shareP3THDP10TABLE_LISTj"), ["THD*", "TABLE_LIST*", "unsigned int"]);
        assert_eq!(told("_ZNK1A1fEPSt3mapIicEPFviiE"), ["std::map<int, char>*", "void (*)(int, int)"]);
    }

    #[test]
    fn other_names_say_nothing() {
        for name in ["", "rw_pr_rdlock", "_Z", "_ZN", "_Z3foo"] {
            assert_eq!(parameters(name), None, "{name}");
        }
        assert_eq!(parameters("_Z8ut_delaym"), Some(vec![Other]));
        assert_eq!(parameters("_Z15sync_check_initv"), Some(Vec::new()));
    }
}
