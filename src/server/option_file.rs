//! Reads the `[client]` group of an option file, as MySQL's and MariaDB's own clients do: the user, the password and
//! the address of the server.

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

/// Reads the file. Without `host` and `socket`, it is the server of this host on its usual port.
///
/// # Errors
/// Fails if the file cannot be read, includes others, or has a port that is no number.
pub(super) fn read(path: &Path) -> Result<Opts, OptionFileError> {
    let of_file = |why| OptionFileError::Unreadable { path: path.to_owned(), why };
    let text = std::fs::read_to_string(path).map_err(of_file)?;
    parse(&text).map_err(|(line, what)| OptionFileError::Line { path: path.to_owned(), line, what })
}

/// Returns the options in the text of a file, or the number of the line that is not understood, and why.
fn parse(text: &str) -> Result<Opts, (usize, &'static str)> {
    let mut options = OptsBuilder::new().ip_or_hostname(Some("127.0.0.1"));
    let mut is_ours = false;
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with('!') {
            return Err((number, "other files are not included: name the one with the group [client]"));
        }
        if let Some(group) = line.strip_prefix('[') {
            is_ours = group.trim_end_matches(']').trim() == "client";
            continue;
        }
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        if !is_ours {
            continue;
        }
        let value = value_of(value);
        options = match name.trim() {
            "user" => options.user(Some(value)),
            "password" => options.pass(Some(value)),
            "host" => options.ip_or_hostname(Some(value)),
            "socket" => options.socket(Some(value)),
            "port" => options.tcp_port(value.parse().map_err(|_| (number, "the port is no number"))?),
            // Clients have many more.
            _ => options,
        };
    }
    Ok(options.into())
}

/// Returns a value without its quotation marks or the comment behind it, and with its escapes resolved.
fn value_of(text: &str) -> String {
    let text = text.trim();
    let quoted = text.chars().next().filter(|mark| matches!(mark, '"' | '\''));
    let inner = match quoted.and_then(|mark| text[1..].rfind(mark).map(|end| &text[1..=end])) {
        Some(inner) => inner,
        None => text.split(" #").next().unwrap_or_default().trim_end(),
    };
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

    #[test]
    fn the_group_of_clients_is_read() {
        let text = "\
# of the host
[mysqld]
user = mysql
port=3307

[client]
user=monitor   # for graphs
password = \"a # b\\\\c\\\"d\"
; none
socket='/run/my sqld.sock'
default-character-set = utf8mb4
[mysql]
password=other
";
        let options = parse(text).expect("options");
        assert_eq!((options.get_user(), options.get_pass()), (Some("monitor"), Some("a # b\\c\"d")));
        assert_eq!(options.get_socket(), Some("/run/my sqld.sock"));
        assert_eq!(options.get_tcp_port(), 3306);
    }

    #[test]
    fn without_an_address_it_is_this_host() {
        let options = parse("[client]\nport = 3310\npassword=\\s\\x\n").expect("options");
        assert_eq!((options.get_ip_or_hostname().as_ref(), options.get_tcp_port()), ("127.0.0.1", 3310));
        assert_eq!(options.get_pass(), Some(" \\x"));
    }

    #[test]
    fn errors_name_the_line_and_not_its_text() {
        for (text, line) in [("[client]\nport=secret", 2), ("!includedir /etc/mysql/conf.d/\n", 1)] {
            let (number, what) = parse(text).expect_err("an error");
            assert!(number == line && !what.contains("secret"), "{number} {what}");
        }
        let error = read(Path::new("/nowhere/my.cnf")).expect_err("no such file");
        assert!(error.to_string().starts_with("--defaults-file /nowhere/my.cnf: "), "{error}");
    }
}
