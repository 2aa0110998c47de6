//! Replaces the values in a statement, so that statements that differ in nothing else are one.
//!
//! The result resembles `DIGEST_TEXT` of performance_schema, but is not the same: keywords and identifiers stay as they
//! were written.

use super::lexer::{has_halves, tokens, End, Token, Way};

/// What the first word of a statement can be. A text that begins otherwise is none.
const VERBS: &[&str] = &[
    "ALTER",
    "ANALYZE",
    "BEGIN",
    "BINLOG",
    "CACHE",
    "CALL",
    "CHANGE",
    "CHECK",
    "CHECKSUM",
    "CLONE",
    "CLOSE",
    "COMMIT",
    "CREATE",
    "DEALLOCATE",
    "DECLARE",
    "DELETE",
    "DESC",
    "DESCRIBE",
    "DO",
    "DROP",
    "EXECUTE",
    "EXPLAIN",
    "FETCH",
    "FLUSH",
    "GET",
    "GRANT",
    "HANDLER",
    "HELP",
    "IMPORT",
    "INSERT",
    "INSTALL",
    "KILL",
    "LOAD",
    "LOCK",
    "OPEN",
    "OPTIMIZE",
    "PREPARE",
    "PURGE",
    "RELEASE",
    "RENAME",
    "REPAIR",
    "REPLACE",
    "RESET",
    "RESIGNAL",
    "RETURN",
    "REVOKE",
    "ROLLBACK",
    "SAVEPOINT",
    "SELECT",
    "SET",
    "SHOW",
    "SHUTDOWN",
    "SIGNAL",
    "START",
    "STOP",
    "TABLE",
    "TRUNCATE",
    "UNINSTALL",
    "UNLOCK",
    "UPDATE",
    "USE",
    "VALUES",
    "WITH",
    "XA",
];

/// Words that are values where a value is expected.
const CONSTANTS: [&str; 4] = ["DEFAULT", "FALSE", "NULL", "TRUE"];
/// Words behind which a value is expected.
const BEFORE_VALUES: [&str; 14] = [
    "AND", "BETWEEN", "BY", "ELSE", "HAVING", "LIKE", "LIMIT", "OFFSET", "OR", "RETURN", "SELECT", "THEN", "WHEN",
    "WHERE",
];

/// Stands for the values of a list.
const LIST: Token = Token::Word("(...)");
/// Stands for the rest of a statement.
const REST: &str = "...";

/// Returns a statement without values; `None` if the text is no statement. `is_cut` says whether the text goes on.
///
/// It ends at a NUL. That is mostly the end of a statement which took the place of a longer one while it was read. What
/// follows are remains of others, and may be parts of their values.
pub(crate) fn digest_text(text: &[u8], is_cut: bool) -> Option<String> {
    let (text, is_cut) = match text.iter().position(|byte| *byte == 0) {
        Some(end) => (&text[..end], true),
        None => (text, is_cut),
    };
    let (tokens, is_whole) = certain_tokens(text, is_cut);
    verb(&tokens)?;
    let mut tokens = without_values(&tokens);
    if !is_whole {
        drop_open_list(&mut tokens);
    }
    Some(written(&tokens, is_whole))
}

/// Returns the first word of what [`digest_text`] has returned, in capitals.
pub(super) fn verb_of(digest_text: &str) -> String {
    digest_text.split(|c: char| !c.is_ascii_alphabetic()).find(|word| !word.is_empty()).unwrap_or("").to_uppercase()
}

/// Returns the tokens that a text has in whatever way it is read, and whether these are all.
fn certain_tokens(text: &[u8], is_cut: bool) -> (Vec<Token<'_>>, bool) {
    let mut readings: Vec<(Vec<Token>, End)> = Way::all(text).map(|way| tokens(text, way)).collect();
    // One of them is right, unless characters are to be told from their halves.
    let is_one_right = !is_cut && !has_halves(text) && readings.iter().any(|(_, end)| *end != End::Wrong);
    if is_one_right {
        readings.retain(|(_, end)| *end != End::Wrong);
    }
    let (mut certain, end) = readings.swap_remove(0);
    let mut is_whole = !is_cut && end == End::Complete;
    for (other, other_end) in readings {
        let same = certain.iter().zip(&other).take_while(|(a, b)| a == b).count();
        is_whole &= other_end == End::Complete && same == certain.len().max(other.len());
        certain.truncate(same);
    }
    if is_cut && end == End::Complete {
        // The last one may be cut.
        certain.pop();
    }
    (certain, is_whole)
}

/// Returns the first word, if a statement can begin with it.
fn verb<'t>(tokens: &[Token<'t>]) -> Option<&'t str> {
    let first = tokens.iter().find(|token| **token != Token::Word("("))?;
    match first {
        Token::Word(word) if VERBS.iter().any(|verb| verb.eq_ignore_ascii_case(word)) => Some(word),
        _ => None,
    }
}

/// Returns the tokens with signs and strings made part of values, and with lists of values made one.
fn without_values<'t>(tokens: &[Token<'t>]) -> Vec<Token<'t>> {
    let mut out: Vec<Token<'t>> = Vec::with_capacity(tokens.len());
    for token in tokens {
        match token {
            Token::Value => push_value(&mut out),
            Token::Word(word) if is_constant(word) && expects_value(out.last()) => push_value(&mut out),
            Token::Word(")") => close_list(&mut out),
            Token::Word(_) => out.push(*token),
        }
    }
    out
}

fn is_constant(word: &str) -> bool {
    CONSTANTS.iter().any(|constant| constant.eq_ignore_ascii_case(word))
}

/// Returns whether what follows this token is a value rather than an operator.
fn expects_value(before: Option<&Token>) -> bool {
    match before {
        Some(Token::Word(word)) => {
            word.ends_with(['(', ',', '=', '<', '>', '+', '-', '*', '/', '%'])
                || BEFORE_VALUES.iter().any(|other| other.eq_ignore_ascii_case(word))
        }
        _ => false,
    }
}

fn push_value(out: &mut Vec<Token>) {
    let is_sign = |token: Option<&Token>| matches!(token, Some(Token::Word("-" | "+")));
    while is_sign(out.last()) && expects_value(out.iter().nth_back(1)) {
        out.pop();
    }
    // Strings that follow each other are one.
    if out.last() != Some(&Token::Value) {
        out.push(Token::Value);
    }
}

/// Closes a list. Of a list of values, it is not said how many there are, and of such lists neither.
fn close_list(out: &mut Vec<Token>) {
    out.push(Token::Word(")"));
    let Some(open) = open_list(&out[..out.len() - 1]) else { return };
    if out.len() - open > 3 {
        out.truncate(open);
        out.push(LIST);
    }
    let length = out.len() - open;
    let before = &out[..open];
    if let [.., Token::Word(",")] = before {
        let (row, before) = (&out[open..], &before[..before.len() - 1]);
        if before.ends_with(row) || before.ends_with(&[LIST]) {
            out.truncate(out.len() - length - 1);
        }
    }
}

/// Returns where a list of nothing but values begins that is not closed.
fn open_list(tokens: &[Token]) -> Option<usize> {
    let is_value = |token: &Token| matches!(token, Token::Value | Token::Word(","));
    let values = tokens.iter().rev().take_while(|token| is_value(token)).count();
    let open = tokens.len().checked_sub(values + 1)?;
    (tokens[open] == Token::Word("(")).then_some(open)
}

/// Drops a list that is not complete, because it depends on the values how much of it is there.
fn drop_open_list(tokens: &mut Vec<Token>) {
    if let Some(open) = open_list(tokens) {
        tokens.truncate(open);
    }
    while matches!(tokens.last(), Some(Token::Value | Token::Word("," | "-" | "+"))) {
        tokens.pop();
    }
}

/// Writes tokens with spaces between them.
fn written(tokens: &[Token], is_whole: bool) -> String {
    let mut text = String::new();
    let mut is_tight = true;
    let rest = (!is_whole).then_some(REST);
    let words = tokens.iter().map(|token| match token {
        Token::Value => "?",
        Token::Word(word) => word,
    });
    for word in words.chain(rest) {
        let clings = matches!(word, "," | "." | ")" | ";");
        if !is_tight && !clings {
            text.push(' ');
        }
        text.extend(word.chars().filter(|c| !is_hidden(*c)));
        is_tight = matches!(word, "." | "(" | "@");
    }
    text
}

/// Returns whether a character changes how others are shown, or is not shown.
fn is_hidden(c: char) -> bool {
    let marks = ['\u{61c}', '\u{feff}'];
    c.is_control()
        || marks.contains(&c)
        || ['\u{200b}'..='\u{200f}', '\u{2028}'..='\u{202e}', '\u{2060}'..='\u{206f}']
            .iter()
            .any(|range| range.contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(text: &str) -> String {
        digest_text(text.as_bytes(), false).unwrap_or_else(|| "none".to_owned())
    }

    fn cut(text: &str) -> String {
        digest_text(text.as_bytes(), true).unwrap_or_else(|| "none".to_owned())
    }

    #[test]
    fn values_are_replaced() {
        let cases = [
            ("SELECT c FROM sbtest1 WHERE id=4711", "SELECT c FROM sbtest1 WHERE id = ?"),
            ("select  c\nfrom t where a = 'x''y' and b=\"z\"", "select c from t where a = ? and b = ?"),
            ("SELECT 1, -2, +3.5e-7, .5, 0x1F, x'1f', b'01', N'n', 0b11", "SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?"),
            ("SELECT _utf8mb4'x' COLLATE utf8mb4_bin", "SELECT _utf8mb4 ? COLLATE utf8mb4_bin"),
            ("SELECT 'a' 'b'", "SELECT ?"),
            ("UPDATE t SET k=k+1 WHERE id=?", "UPDATE t SET k = k + ? WHERE id = ?"),
            (
                "UPDATE t SET k=k-1, l=-1, m=NULL WHERE n IS NULL",
                "UPDATE t SET k = k - ?, l = ?, m = ? WHERE n IS NULL",
            ),
            ("SELECT * FROM `my db`.`t``x` WHERE a->'$.b'>=5", "SELECT * FROM `my db`.`t``x` WHERE a -> ? >= ?"),
            ("SET @a := 5, @@global.x=7", "SET @a := ?, @@global.x = ?"),
            ("CREATE USER u@'10.%' IDENTIFIED BY 'secret'", "CREATE USER u @? IDENTIFIED BY ?"),
            ("(SELECT 1) UNION (SELECT 2)", "(SELECT ?) UNION (SELECT ?)"),
            ("SELECT -2 FROM t WHERE a BETWEEN -5 AND 5", "SELECT ? FROM t WHERE a BETWEEN ? AND ?"),
            ("SELECT CASE WHEN a THEN NULL ELSE TRUE END", "SELECT CASE WHEN a THEN ? ELSE ? END"),
            ("COMMIT", "COMMIT"),
        ];
        for (text, expected) in cases {
            assert_eq!(whole(text), expected);
        }
    }

    #[test]
    fn lists_of_values_are_one() {
        let cases = [
            ("SELECT a FROM t WHERE id IN (1, 2, 3)", "SELECT a FROM t WHERE id IN (...)"),
            ("SELECT a FROM t WHERE id IN (1)", "SELECT a FROM t WHERE id IN (?)"),
            ("INSERT INTO t (a, b) VALUES (1, 'x'), (2, NULL), (DEFAULT, 'y')", "INSERT INTO t (a, b) VALUES (...)"),
            ("INSERT INTO t VALUES (1),(2),(3)", "INSERT INTO t VALUES (?)"),
            ("INSERT INTO t VALUES (1, NOW()), (2, NOW())", "INSERT INTO t VALUES (?, NOW ()), (?, NOW ())"),
            ("SELECT f(1, 2), g(3)", "SELECT f (...), g (?)"),
        ];
        for (text, expected) in cases {
            assert_eq!(whole(text), expected);
        }
    }

    #[test]
    fn comments_are_dropped() {
        let cases = [
            ("/* user 'bob' */ SELECT 1 -- it's over", "SELECT ?"),
            ("SELECT a--1\nFROM t # 'x", "SELECT a - ? FROM t"),
            ("SELECT a*/* ' */b FROM t", "SELECT a * b FROM t"),
            ("SELECT /*+ NO_INDEX(t) */ a /*!80000 , b */ /*M!100 , c */ FROM t", "SELECT a, b, c FROM t"),
        ];
        for (text, expected) in cases {
            assert_eq!(whole(text), expected);
        }
        assert_eq!(whole("SELECT a /* 'secret"), "SELECT a ...");
        // Whether a server reads these depends on its version.
        for comment in ["/*!99999 don't */", "/*M! `a */", "/*!50000 a # */", "/*!80000 /* b */ */", "/*+ A(b='*/') */"]
        {
            assert_eq!(whole(&format!("SELECT a {comment} FROM t WHERE p='secret'")), "SELECT a ...", "{comment}");
        }
    }

    /// What a thread executes can change while it is read, from a long statement to a short one.
    #[test]
    fn what_follows_the_end_of_a_statement_is_not_shown() {
        for text in ["BEGIN\0 secret", "BEGIN\0iCOMMIT\0secret", "BEGIN # it\0s\nsecret", "BEGIN -- it\0s\nsecret"] {
            assert_eq!(whole(text), "none", "{text:?}");
        }
        assert_eq!(whole("UPDATE t SET a = 1\0 secret"), "UPDATE t SET a = ...");
        for text in
            ["SELECT `a\0', 'secret', `b`", "SELECT 'it\0, 'secret'", "SELECT 'a\0b', c", "SELECT /* x\0 secret */ a"]
        {
            assert_eq!(whole(text), "SELECT ...", "{text:?}");
        }
    }

    #[test]
    fn what_is_cut_off_shows_no_value() {
        let cases = [
            ("SELECT a FROM t WHERE b = 'secre", "SELECT a FROM t WHERE b = ..."),
            ("SELECT a FROM t WHERE b = 47", "SELECT a FROM t WHERE b = ..."),
            ("SELECT a FROM t WHERE secre", "SELECT a FROM t WHERE ..."),
            ("SELECT a FROM `secre", "SELECT a FROM ..."),
            ("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'sec", "INSERT INTO t VALUES (...) ..."),
            ("INSERT INTO t VALUES (1, 'sec", "INSERT INTO t VALUES ..."),
            ("SELECT a FROM t WHERE b IN (1, 2, 3, 4", "SELECT a FROM t WHERE b IN ..."),
        ];
        for (text, expected) in cases {
            assert_eq!(cut(text), expected);
        }
    }

    /// The session's mode says whether a backslash escapes, and that is not known.
    #[test]
    fn a_backslash_before_a_quote_hides_nothing_wrong() {
        let cases = [
            // Only one way of reading it ends.
            (r"SELECT 'it\'s', secret", "SELECT ?, secret"),
            (r"SELECT 'a\', 'secret' FROM t", "SELECT ?, ? FROM t"),
            (r"INSERT INTO t VALUES ('it\'s', 'that\'s')", "INSERT INTO t VALUES (...)"),
            // None is right.
            (r"SELECT 'a\', secret \', 'b', c", "SELECT ..."),
            // Both do, and differ.
            ("SELECT 'a\\' -- ', secret\n FROM t WHERE b = 'c\\' -- '", "SELECT ..."),
            // Only those between single quotes escape, as with ANSI_QUOTES.
            (r#"SELECT "a\", 'x\'secret', 'y\'z'"#, "SELECT ?, ?, ?"),
            (r"SELECT \N, 'a'", "SELECT ?, ?"),
            // Both are the same.
            (r#"SELECT '{\"a\": \"b\\\"}' FROM t"#, "SELECT ? FROM t"),
        ];
        for (text, expected) in cases {
            assert_eq!(whole(text), expected, "{text}");
        }
        assert_eq!(cut(r"SELECT 'it\'s', secret, more"), "SELECT ...");
    }

    #[test]
    fn texts_in_other_character_sets_end_where_they_are_not_understood() {
        let latin1 = b"SELECT a FROM t WHERE b = 'caf\xe9' AND c = 1";
        assert_eq!(digest_text(latin1, false).as_deref(), Some("SELECT a FROM t WHERE b = ? AND c = ?"));
        let latin1_name = b"SELECT a FROM caf\xe9 WHERE b = 'secret'";
        assert_eq!(digest_text(latin1_name, false).as_deref(), Some("SELECT a FROM ..."));
        // In GBK, the second byte of a character can be a backslash or a grave accent.
        let gbk = b"SELECT '\x81\x5c', 'secret' FROM t";
        assert_eq!(digest_text(gbk, false).as_deref(), Some("SELECT ..."));
        let sjis = b"UPDATE t SET a='\x95\x5c', b='secret\\'x', c='y'";
        assert_eq!(digest_text(sjis, false).as_deref(), Some("UPDATE t SET a = ..."));
        let cut = "SELECT \u{e9}, a FROM t WHERE b = '\u{e9}".as_bytes();
        assert_eq!(digest_text(&cut[..cut.len() - 1], true).as_deref(), Some("SELECT \u{e9}, a FROM t WHERE b = ..."));
        let gbk_name = "SELECT \u{e9}` FROM t WHERE a = 'secret`'";
        assert_eq!(whole(gbk_name), "SELECT \u{e9} ...");
        assert_eq!(whole("SELECT `a\x1b[31m`, `b\u{9b}\u{202e}c`"), "SELECT `a[31m`, `bc`");
    }

    #[test]
    fn only_statements_are_digested() {
        for text in ["", "   ", "hello world", "12345", "'SELECT'", "\0\0\0\0", "Quit", "SELECTED", "`SELECT`", "(((("]
        {
            assert_eq!(whole(text), "none", "{text}");
        }
        assert_eq!(
            whole("CREATE FUNCTION f() RETURNS INT AS $$ 'secret $$"),
            "CREATE FUNCTION f () RETURNS INT AS ..."
        );
    }

    #[test]
    fn a_digest_has_a_verb() {
        for (text, verb) in [("update t set a=1", "UPDATE"), ("(SELECT 1)", "SELECT"), ("WITH a AS (SELECT 1)", "WITH")]
        {
            assert_eq!(verb_of(&whole(text)), verb);
        }
    }

    const SECRET: &str = "zyx9secret";

    /// A value that contains the secret, as a client writes it in a session in which a backslash escapes, or not.
    fn value(escapes: bool) -> impl Strategy<Value = String> {
        let part = || proptest::string::string_regex(r#"[a-c \\'"`#\-/*(),;?=\n]{0,6}"#).expect("a regular expression");
        let quote = prop_oneof![Just('\''), Just('"')];
        (part(), part(), quote, any::<bool>()).prop_map(move |(before, after, quote, doubled)| {
            let mut text = String::from(quote);
            for c in format!("{before}{SECRET}{after}").chars() {
                match c {
                    '\\' if escapes => text.push_str("\\\\"),
                    c if c == quote && escapes && !doubled => text.extend(['\\', c]),
                    c if c == quote => text.extend([c, c]),
                    c => text.push(c),
                }
            }
            text.push(quote);
            text
        })
    }

    fn statement(escapes: bool) -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            value(escapes),
            Just("a = ".to_owned()),
            Just(", ".to_owned()),
            Just(" AND `b c` > -5.2e3 ".to_owned()),
            Just(" IN (1, 2) ".to_owned()),
            Just("(".to_owned()),
            Just(") ".to_owned()),
            Just(" /* 'x */ ".to_owned()),
            Just(" -- \"y\n".to_owned()),
            Just(" _utf8mb4".to_owned()),
            Just(" N".to_owned()),
            Just(" /*!80013 b */ ".to_owned()),
            Just(" /*!99999 it's */ ".to_owned()),
            Just("/*+ A */".to_owned()),
        ];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| format!("SELECT {}", pieces.concat()))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn no_value_is_shown(
            (escapes, text) in any::<bool>().prop_flat_map(|e| (Just(e), statement(e))),
            end in 0.0..1.0,
        ) {
            for (text, is_cut) in [(&text[..], false), (&text[..(text.len() as f64 * end) as usize], true)] {
                let digest = digest_text(text.as_bytes(), is_cut).unwrap_or_default();
                prop_assert!(!digest.contains("zyx"), "{escapes} {text:?}: {digest:?}");
            }
        }

        #[test]
        fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..200), is_cut in any::<bool>()) {
            let text = [b"SELECT ", &bytes[..]].concat();
            let digest = digest_text(&text, is_cut);
            let is_plain = |digest: String| digest.starts_with("SELECT") && !digest.contains(char::is_control);
            prop_assert!(digest.is_none_or(is_plain));
        }
    }
}
