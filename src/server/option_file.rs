//! Reads the `[client]` groups of an option file, as MySQL's and MariaDB's own clients do: the user, the password and
//! the address of the server.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use mysql::{Opts, OptsBuilder};

/// The reason why an option file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OptionFileError {
    /// It cannot be read.
    #[error("--defaults-file {}: {why}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: io::Error,
    },
    /// A line is not understood. Its text is not repeated, because it may contain a password.
    #[error("--defaults-file {}, line {line}: {what}", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// The beginning of the name of each group that is read.
const CLIENT: &str = "client";

/// Reads the group `[client]`. Without `host` and `socket`, it is the server of this host on its usual port.
///
/// # Errors
/// Fails if the file cannot be read, includes others, or has a port that is no number.
pub(super) fn read(path: &Path) -> Result<Opts, OptionFileError> {
    read_by(path, |lines| of_group(lines, ""))
}

/// Reads the groups `[client]` and `[clientSUFFIX]`. As for clients that are told a suffix, what is in `[client]` is in
/// the others, too.
///
/// # Errors
/// As [`read`].
pub(super) fn read_all(path: &Path) -> Result<Vec<Opts>, OptionFileError> {
    read_by(path, |lines| {
        let suffixes: BTreeSet<&str> = lines.iter().map(|line| line.suffix).collect();
        suffixes.into_iter().map(|suffix| of_group(lines, suffix)).collect()
    })
}

fn read_by<T>(
    path: &Path,
    take: impl FnOnce(&[OptionLine]) -> Result<T, (usize, &'static str)>,
) -> Result<T, OptionFileError> {
    let of_file = |why| OptionFileError::Unreadable { path: path.to_owned(), why };
    let text = std::fs::read_to_string(path).map_err(of_file)?;
    let taken = parse(&text).and_then(|lines| take(&lines));
    taken.map_err(|(line, what)| OptionFileError::Line { path: path.to_owned(), line, what })
}

/// An option of a client.
struct OptionLine<'a> {
    number: usize,
    /// What its group's name has behind `client`.
    suffix: &'a str,
    name: &'a str,
    value: &'a str,
}

/// Returns the options of clients in the text of a file, or the number of the line that is not understood, and why.
fn parse(text: &str) -> Result<Vec<OptionLine<'_>>, (usize, &'static str)> {
    let mut lines = Vec::new();
    let mut group = None;
    for (number, line) in (1..).zip(text.lines().map(|line| without_comment(line).trim())) {
        if line.is_empty() || line.starts_with(';') {
            continue;
        }
        if line.starts_with('!') {
            return Err((number, "other files are not included: name the one with the group [client]"));
        }
        if let Some(name) = line.strip_prefix('[') {
            group = name.split(']').next().unwrap_or_default().trim().strip_prefix(CLIENT);
            continue;
        }
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        let name = name.trim();
        lines.extend(group.map(|suffix| OptionLine { number, suffix, name, value }));
    }
    Ok(lines)
}

/// Returns the options of the group with this suffix and of those without, of which the last ones count.
fn of_group(lines: &[OptionLine], suffix: &str) -> Result<Opts, (usize, &'static str)> {
    let mut options = OptsBuilder::new();
    let (mut host, mut socket) = (None, None);
    for line in lines.iter().filter(|line| line.suffix.is_empty() || line.suffix == suffix) {
        let value = value_of(line.value);
        match line.name {
            "user" => options = options.user(Some(value)),
            "password" => options = options.pass(Some(value)),
            "host" => host = Some(value),
            "socket" => socket = Some(value),
            "port" => options = options.tcp_port(value.parse().map_err(|_| (line.number, "the port is no number"))?),
            // Clients have many more.
            _ => {}
        }
    }
    // Clients take the socket for this host only when it is called by this name.
    let socket = socket.filter(|_| host.as_ref().is_none_or(|host| host == "localhost"));
    let host = host.unwrap_or_else(|| "127.0.0.1".to_owned());
    Ok(options.ip_or_hostname(Some(host)).socket(socket).into())
}

/// Returns a line up to the first `#` that is not between quotation marks, as the servers' clients read it.
fn without_comment(line: &str) -> &str {
    let (mut quoted_by, mut is_escaped) = (None, false);
    for (at, c) in line.char_indices() {
        match quoted_by {
            None if c == '#' => return &line[..at],
            None if matches!(c, '"' | '\'') => quoted_by = Some(c),
            Some(mark) if c == mark && !is_escaped => quoted_by = None,
            _ => {}
        }
        is_escaped = quoted_by.is_some() && c == '\\' && !is_escaped;
    }
    line
}

/// Returns a value without its quotation marks, and with its escapes resolved.
fn value_of(text: &str) -> String {
    let text = text.trim();
    let quoted = ['"', '\''].iter().find_map(|mark| text.strip_prefix(*mark)?.strip_suffix(*mark));
    let inner = quoted.unwrap_or(text);
    let mut value = String::with_capacity(inner.len());
    let mut rest = inner.chars();
    while let Some(c) = rest.next() {
        let escaped = if c == '\\' { rest.next() } else { None };
        match (c, escaped) {
            ('\\', Some('n')) => value.push('\n'),
            ('\\', Some('t')) => value.push('\t'),
            ('\\', Some('r')) => value.push('\r'),
            ('\\', Some('b')) => value.push('\u{8}'),
            ('\\', Some('s')) => value.push(' '),
            ('\\', Some(c @ ('\\' | '"' | '\''))) => value.push(c),
            (c, escaped) => value.extend([Some(c), escaped].into_iter().flatten()),
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_client(text: &str) -> Result<Opts, (usize, &'static str)> {
        of_group(&parse(text)?, "")
    }

    #[test]
    fn the_group_of_clients_is_read() {
        let text = "\
# of the host
[mysqld]
user = mysql
port=3307

[client] # of monitoring
user=monitor\t# for graphs
password = \"a # b\\\\c\\\"d\"
; none
socket='/run/my sqld.sock'
default-character-set = utf8mb4
[mysql]
password=other
";
        let options = of_client(text).expect("options");
        assert_eq!((options.get_user(), options.get_pass()), (Some("monitor"), Some("a # b\\c\"d")));
        assert_eq!(options.get_socket(), Some("/run/my sqld.sock"));
        assert_eq!(options.get_tcp_port(), 3306);
    }

    #[test]
    fn without_an_address_it_is_this_host() {
        let options = of_client("[client]\nport = 3310\npassword=\\s\\x\n").expect("options");
        assert_eq!((options.get_ip_or_hostname().as_ref(), options.get_tcp_port()), ("127.0.0.1", 3310));
        assert_eq!(options.get_pass(), Some(" \\x"));
    }

    #[test]
    fn groups_with_a_suffix_complete_the_group_of_clients() {
        let text = "\
[client]\nuser=monitor\npassword=a\nsocket=/1\n[client2]\nsocket=/2\n[mysqld]\nport=1\n[client_3]\npassword=b\nhost=::1\nport=3\n";
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("a file");
        let all = read_all(file.path()).expect("options");
        let shown = |opts: &Opts| format!("{:?} {:?} {}", opts.get_pass(), opts.get_socket(), opts.get_tcp_port());
        let expected = ["Some(\"a\") Some(\"/1\") 3306", "Some(\"a\") Some(\"/2\") 3306", "Some(\"b\") None 3"];
        assert_eq!(all.iter().map(shown).collect::<Vec<_>>(), expected);
        assert!(all.iter().all(|opts| opts.get_user() == Some("monitor")));
    }

    /// As `my_print_defaults` shows them.
    #[test]
    fn a_comment_ends_a_value_that_is_not_quoted() {
        for (line, password) in [
            ("password=abc#x", "abc"),
            ("password='abc#x'", "abc#x"),
            ("password='a\\'#b' # c", "a'#b"),
            ("password=\"a'#\"b#c", "\"a'#\"b"),
            ("password=#", ""),
        ] {
            let options = of_client(&format!("[client]\n{line}\n")).expect("options");
            assert_eq!(options.get_pass().unwrap_or_default(), password, "{line}");
        }
    }

    #[test]
    fn errors_name_the_line_and_not_its_text() {
        for (text, line) in [("[client]\nport=secret", 2), ("!includedir /etc/mysql/conf.d/\n", 1)] {
            let (number, what) = of_client(text).expect_err("an error");
            assert!(number == line && !what.contains("secret"), "{number} {what}");
        }
        let error = read(Path::new("/nowhere/my.cnf")).expect_err("no such file");
        assert!(error.to_string().starts_with("--defaults-file /nowhere/my.cnf: "), "{error}");
    }
}
