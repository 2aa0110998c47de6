//! Splits a statement into tokens, and tells values from everything else.
//!
//! Whatever may be part of a value is [`Token::Value`]. Settings of a session decide where a string ends, and they are
//! not known here: whether a backslash escapes the next character, whether `"` quotes strings or identifiers, and the
//! character set, in which a backslash may be the second half of a character. What is between double quotes always
//! counts as a value, and a text can be read in each [`Way`] of treating backslashes.

/// A part of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'t> {
    /// A keyword, an identifier, an operator or punctuation.
    Word(&'t str),
    /// A literal, or a placeholder for one.
    Value,
}

/// How reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// At the end of the text.
    Complete,
    /// In a string, an identifier or a comment that does not end, or before a backslash that is in none of these: no
    /// server executes that.
    Wrong,
    /// Before something that is not understood.
    Stopped,
}

/// A way in which a session may treat backslashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// Whether one in `'` escapes the next character.
    single: bool,
    /// Whether one in `"` does. In names, none does.
    double: bool,
    /// Whether one behind a byte that is not ASCII is the second half of a character.
    is_half: bool,
}

impl Way {
    /// Returns the ways that may differ in what they make of a text.
    pub fn all(text: &[u8]) -> impl Iterator<Item = Way> {
        let has_halves = has_halves(text);
        let quotes: &[(bool, bool)] =
            if text.contains(&b'\\') { &[(true, true), (false, false), (true, false)] } else { &[(true, true)] };
        let halves: &[bool] = if has_halves { &[false, true] } else { &[false] };
        let way = |(single, double), is_half| Way { single, double, is_half };
        quotes.iter().flat_map(move |quotes| halves.iter().map(move |is_half| way(*quotes, *is_half)))
    }
}

/// Returns whether a backslash in a text may be the second half of a character. If there are several, some may be and
/// others not.
pub(super) fn has_halves(text: &[u8]) -> bool {
    text.windows(2).any(|pair| !pair[0].is_ascii() && pair[1] == b'\\')
}

/// Returns the tokens of a statement, read in one way.
pub(super) fn tokens(text: &[u8], way: Way) -> (Vec<Token<'_>>, End) {
    // The last character may be cut off.
    let is_utf8 = std::str::from_utf8(text).map_or_else(|error| error.error_len().is_none(), |_| true);
    let mut lexer = Lexer { text, at: 0, way, is_utf8, is_conditional: false };
    let mut tokens = Vec::new();
    let end = loop {
        match lexer.next() {
            Ok(Some(token)) => tokens.push(token),
            Ok(None) => break End::Complete,
            Err(end) => break end,
        }
    };
    (tokens, end)
}

struct Lexer<'t> {
    text: &'t [u8],
    at: usize,
    way: Way,
    is_utf8: bool,
    /// Whether it is in a comment that only some servers read.
    is_conditional: bool,
}

/// What follows a text.
const NOTHING: u8 = 0;

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || !byte.is_ascii()
}

fn is_space(byte: u8) -> bool {
    byte <= b' ' || byte == 0x7f
}

impl<'t> Lexer<'t> {
    fn byte(&self, ahead: usize) -> u8 {
        self.text.get(self.at + ahead).copied().unwrap_or(NOTHING)
    }

    /// Goes on while `is` says so, and returns what was passed.
    fn take(&mut self, is: impl Fn(u8) -> bool) -> &'t [u8] {
        let rest = &self.text[self.at..];
        let length = rest.iter().position(|byte| !is(*byte)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    fn next(&mut self) -> Result<Option<Token<'t>>, End> {
        self.skip()?;
        let first = self.byte(0);
        match first {
            _ if self.at >= self.text.len() => Ok(None),
            b'\'' | b'"' => self.string(),
            b'`' => self.quoted_name(),
            b'?' => {
                self.at += 1;
                Ok(Some(Token::Value))
            }
            b'0'..=b'9' => self.number(),
            b'.' if self.byte(1).is_ascii_digit() => self.number(),
            b'\\' if self.byte(1) == b'N' => {
                self.at += 2;
                Ok(Some(Token::Value))
            }
            b'\\' => Err(End::Wrong),
            // A string between dollar signs, or a name that only old servers allow.
            b'$' => Err(End::Stopped),
            _ if is_name(first) => self.name(),
            _ => self.operator(),
        }
    }

    /// Skips space and comments. What is in a comment that only some servers read counts as outside of it.
    fn skip(&mut self) -> Result<(), End> {
        loop {
            self.take(is_space);
            match (self.byte(0), self.byte(1), self.byte(2)) {
                (b'#', ..) => _ = self.take(|byte| byte != b'\n'),
                (b'-', b'-', after) if is_space(after) => _ = self.take(|byte| byte != b'\n'),
                (b'/', b'*', b'!') => self.skip_condition(3)?,
                (b'/', b'*', b'M') if self.byte(3) == b'!' => self.skip_condition(4)?,
                (b'/', b'*', kind) => {
                    let comment = self.comment(2)?;
                    // Strings in hints to the optimizer may contain what ends a comment.
                    if kind == b'+' && comment.iter().any(|byte| b"'\"`".contains(byte)) {
                        return Err(End::Stopped);
                    }
                    self.at += 2 + comment.len() + 2;
                }
                (b'*', b'/', _) if self.is_conditional => {
                    self.at += 2;
                    self.is_conditional = false;
                }
                _ => return Ok(()),
            }
        }
    }

    /// Returns what is between the beginning of a comment, of this length, and its end.
    fn comment(&self, length: usize) -> Result<&'t [u8], End> {
        let rest = self.text.get(self.at + length..).unwrap_or_default();
        let end = rest.windows(2).position(|pair| pair == b"*/").ok_or(End::Wrong)?;
        Ok(&rest[..end])
    }

    /// Skips the beginning of a comment that servers from some version on read. For others, what is in it is nothing
    /// but a comment, so nothing may begin there that does not end there.
    fn skip_condition(&mut self, length: usize) -> Result<(), End> {
        let comment = self.comment(length)?;
        let begins_something = |pair: &[u8]| pair == b"--" || pair == b"/*";
        if comment.iter().any(|byte| b"'\"`#\\$".contains(byte)) || comment.windows(2).any(begins_something) {
            return Err(End::Stopped);
        }
        self.at += length;
        self.is_conditional = true;
        self.take(|byte| byte.is_ascii_digit());
        Ok(())
    }

    fn string(&mut self) -> Result<Option<Token<'t>>, End> {
        let quote = self.byte(0);
        let escapes = if quote == b'"' { self.way.double } else { self.way.single };
        self.at += 1;
        while self.at < self.text.len() {
            match self.byte(0) {
                b'\\' if escapes && (!self.way.is_half || self.text[self.at - 1].is_ascii()) => self.at += 2,
                byte if byte == quote && self.byte(1) == quote => self.at += 2,
                byte if byte == quote => {
                    self.at += 1;
                    return Ok(Some(Token::Value));
                }
                _ => self.at += 1,
            }
        }
        Err(End::Wrong)
    }

    fn quoted_name(&mut self) -> Result<Option<Token<'t>>, End> {
        let begin = self.at;
        // In some character sets, the second half of a character looks like this quote.
        if begin > 0 && !self.text[begin - 1].is_ascii() {
            return Err(End::Stopped);
        }
        self.at += 1;
        loop {
            self.take(|byte| byte != b'`');
            match (self.byte(0), self.byte(1)) {
                (b'`', b'`') => self.at += 2,
                (b'`', _) => break,
                _ => return Err(End::Wrong),
            }
        }
        self.at += 1;
        self.word(begin)
    }

    /// A number, or a name that begins with a digit, which could be a part of a value.
    fn number(&mut self) -> Result<Option<Token<'t>>, End> {
        let is_part = |byte| is_name(byte) || byte == b'.';
        let taken = self.take(is_part);
        let is_exponent = matches!(taken, [.., b'e' | b'E']) && matches!(self.byte(0), b'+' | b'-');
        if is_exponent && taken.iter().filter(|byte| byte.is_ascii_alphabetic()).count() == 1 {
            self.at += 1;
            self.take(is_part);
        }
        Ok(Some(Token::Value))
    }

    fn name(&mut self) -> Result<Option<Token<'t>>, End> {
        let begin = self.at;
        let name = self.take(is_name);
        let is_prefix = name.len() == 1 && b"nNxXbB".contains(&name[0]);
        if is_prefix && matches!(self.byte(0), b'\'' | b'"') {
            return self.string();
        }
        self.word(begin)
    }

    fn operator(&mut self) -> Result<Option<Token<'t>>, End> {
        let begin = self.at;
        let is_arrow = self.byte(0) == b'-' && self.byte(1) == b'>';
        if is_arrow || self.take(|byte| b"<>=!:|&".contains(&byte)).is_empty() {
            self.at += 1;
            self.take(|byte| is_arrow && byte == b'>');
        }
        self.word(begin)
    }

    /// Returns what was passed since `begin`.
    fn word(&self, begin: usize) -> Result<Option<Token<'t>>, End> {
        let word = &self.text[begin..self.at];
        // In a character set that is not known, it is not known either where a character ends.
        let is_known = self.is_utf8 || word.is_ascii();
        let word = std::str::from_utf8(word).ok().filter(|_| is_known).ok_or(End::Stopped)?;
        Ok(Some(Token::Word(word)))
    }
}
