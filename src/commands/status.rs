//! The exit status that scripts rely on. It is decided here alone: the rest of the code says what is wrong.

use std::process::ExitCode;

use super::config::ConfigError;
use super::failure::Failure;
use crate::agent::AttachError;
use crate::fleet::FleetError;
use crate::local::LocalError;
use crate::measure::statements::UncountedStatements;
use crate::measure::watchpoint::Unwatched;
use crate::server::{ClientError, OpenError, OptionFileError};

/// The exit status of a command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It failed while running. A file that is missing, or that is not what the command needs, is such a failure.
    Failed = 1,
    /// The command line alone shows that it cannot be done.
    Usage = 2,
    /// There is no such process, no server at all, or it is not a supported one.
    Target = 3,
    /// A privilege or a feature of the kernel is missing.
    Privilege = 4,
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> ExitCode {
        ExitCode::from(status as u8)
    }
}

impl Failure {
    /// Returns the exit status of a command that failed for this reason.
    pub fn status(&self) -> Status {
        match self {
            Failure::Usage(_) => Status::Usage,
            Failure::Config(error) => of_config(error),
            Failure::NoServer | Failure::NothingKept | Failure::NotKept(_) => Status::Target,
            Failure::Open(error) => of_open(error),
            Failure::Privilege(_) | Failure::NotReady => Status::Privilege,
            Failure::Client(error) => of_client(error),
            Failure::Statements(UncountedStatements::Client(error)) => of_client(error),
            Failure::Attach(error) => of_attach(error),
            Failure::Watch { why, .. } => of_watch(why),
            Failure::Fleet(error) => of_fleet(error),
            Failure::Local(error) => of_local(error),
            Failure::Statements(UncountedStatements::Thread(_))
            | Failure::File { .. }
            | Failure::Program(_)
            | Failure::Symbols(_)
            | Failure::NoBuildId(_)
            | Failure::Exists(_)
            | Failure::Dumps { .. }
            | Failure::Write { .. }
            | Failure::Roots(_)
            | Failure::Scaling(_)
            | Failure::Listen(_)
            | Failure::Web(_)
            | Failure::Start(_)
            | Failure::Export(_)
            | Failure::Tables(_)
            | Failure::Kept(_)
            | Failure::Terminal(_)
            | Failure::Output(_)
            | Failure::Json(_) => Status::Failed,
        }
    }
}

fn of_config(error: &ConfigError) -> Status {
    match error {
        ConfigError::Unreadable { .. } => Status::Failed,
        ConfigError::Line { .. } | ConfigError::Variable { .. } => Status::Usage,
    }
}

fn of_open(error: &OpenError) -> Status {
    match error {
        OpenError::Symbols(_) => Status::Failed,
        OpenError::NoProcess(_)
        | OpenError::Thread { .. }
        | OpenError::Unwatchable { .. }
        | OpenError::NoProgram { .. }
        | OpenError::Program { .. }
        | OpenError::NotLoaded { .. }
        | OpenError::Unsupported(_) => Status::Target,
        OpenError::NoPidfd | OpenError::NotPermitted(_) => Status::Privilege,
    }
}

fn of_client(error: &ClientError) -> Status {
    match error {
        ClientError::Url(_) | ClientError::OptionFile(OptionFileError::Line { .. }) => Status::Usage,
        ClientError::OptionFile(OptionFileError::Unreadable { .. }) => Status::Failed,
        ClientError::Server(_) | ClientError::NoCounter => Status::Failed,
    }
}

fn of_attach(error: &AttachError) -> Status {
    match error {
        AttachError::Failed(_) => Status::Failed,
        AttachError::NoSites { .. } | AttachError::Ended(_) => Status::Target,
        AttachError::Privilege(_) | AttachError::NotPermitted(_) | AttachError::NoProbe(_) | AttachError::NoStacks => {
            Status::Privilege
        }
    }
}

fn of_fleet(error: &FleetError) -> Status {
    match error {
        FleetError::Url { .. } | FleetError::Short { .. } => Status::Usage,
        FleetError::Config { .. }
        | FleetError::Request { .. }
        | FleetError::NoServers { .. }
        | FleetError::NoWindows { .. } => Status::Failed,
    }
}

fn of_local(error: &LocalError) -> Status {
    match error {
        LocalError::NotPermitted(_) => Status::Privilege,
        LocalError::NoAnswer(_) | LocalError::Io(_) => Status::Failed,
    }
}

fn of_watch(why: &Unwatched) -> Status {
    match why {
        Unwatched::NobodyWaited(_) | Unwatched::Unreadable(_) => Status::Failed,
        Unwatched::Unclear(_) => Status::Usage,
        Unwatched::Ended(_) => Status::Target,
        Unwatched::NoAtomics | Unwatched::MayKill | Unwatched::Refused(_) => Status::Privilege,
    }
}

#[cfg(test)]
mod tests {
    use crate::recording::table::ExportError;
    use std::collections::BTreeSet;
    use std::fmt::Debug;
    use std::io;
    use std::path::{Path, PathBuf};

    use strum::VariantNames;

    use super::Status::{Failed, Privilege, Target, Usage};
    use super::*;
    use crate::attach::MissingPrivilege;
    use crate::commands::{FileError, Problem, UsageError};
    use crate::discovery::Unrecognized;
    use crate::export::{BindError, Listen, Web};
    use crate::recording::compare::ScalingError;
    use crate::recording::FormatError;
    use crate::server::Unsupported;
    use crate::symbols::{ImageError, NamedFileError, UnusableFile};

    /// Checks the status of each error, and that every variant of the error is among them.
    fn check<E>(status: impl Fn(&E) -> Status, cases: Vec<(E, Status)>)
    where
        E: Debug + VariantNames,
        for<'e> &'e E: Into<&'static str>,
    {
        let given: BTreeSet<&str> = cases.iter().map(|(error, _)| error.into()).collect();
        assert_eq!(given, E::VARIANTS.iter().copied().collect());
        for (error, expected) in cases {
            assert_eq!(status(&error), expected, "{error:?}");
        }
    }

    fn io() -> io::Error {
        io::ErrorKind::NotFound.into()
    }

    fn symbol_file() -> NamedFileError {
        NamedFileError { path: PathBuf::from("x"), why: UnusableFile::NoBuildId }
    }

    fn open_errors() -> Vec<(OpenError, Status)> {
        let (pid, name) = (1, "x".to_owned());
        let why = ImageError::Machine { path: "x".to_owned(), machine: 0 };
        let unsupported = Unsupported {
            pid,
            name: name.clone(),
            what: Unrecognized::NotAServer,
            version: None,
            symbols: String::new(),
            trials: std::sync::Arc::default(),
        };
        vec![
            (OpenError::NoProcess(pid), Target),
            (OpenError::Thread { thread: 2, process: pid }, Target),
            (OpenError::NoPidfd, Privilege),
            (OpenError::Unwatchable { pid, why: io() }, Target),
            (OpenError::NotPermitted(pid), Privilege),
            (OpenError::NoProgram { pid, name }, Target),
            (OpenError::Program { pid, why }, Target),
            (OpenError::NotLoaded { pid, why: io() }, Target),
            (OpenError::Symbols(symbol_file()), Failed),
            (OpenError::Unsupported(Box::new(unsupported)), Target),
        ]
    }

    fn client_errors() -> Vec<(ClientError, Status)> {
        vec![
            (ClientError::Url(mysql::UrlError::BadUrl), Usage),
            (ClientError::OptionFile(OptionFileError::Unreadable { path: "x".into(), why: io() }), Failed),
            (ClientError::OptionFile(OptionFileError::Line { path: "x".into(), line: 1, what: "" }), Usage),
            (ClientError::Server(io().into()), Failed),
            (ClientError::NoCounter, Failed),
        ]
    }

    fn config_errors() -> Vec<(ConfigError, Status)> {
        let what = || Problem::NotText;
        vec![
            (ConfigError::Unreadable { path: "x".into(), why: io() }, Failed),
            (ConfigError::Line { path: "x".into(), line: 1, what: what() }, Usage),
            (ConfigError::Variable { variable: "x".to_owned(), what: what() }, Usage),
        ]
    }

    fn attach_errors() -> Vec<(AttachError, Status)> {
        let why = || anyhow::anyhow!("no");
        vec![
            (AttachError::Privilege(MissingPrivilege::HostPidNamespace), Privilege),
            (AttachError::NoSites { pid: 1, server: "x".to_owned() }, Target),
            (AttachError::Ended(1), Target),
            (AttachError::NotPermitted(why()), Privilege),
            (AttachError::NoProbe(why()), Privilege),
            (AttachError::NoStacks, Privilege),
            (AttachError::Failed(why()), Failed),
        ]
    }

    fn reasons_not_to_watch() -> Vec<(Unwatched, Status)> {
        vec![
            (Unwatched::NoAtomics, Privilege),
            (Unwatched::MayKill, Privilege),
            (Unwatched::Refused(io()), Privilege),
            (Unwatched::Unclear(Vec::new()), Usage),
            (Unwatched::NobodyWaited(Vec::new()), Failed),
            (Unwatched::Ended(1), Target),
            (Unwatched::Unreadable(anyhow::anyhow!("no")), Failed),
        ]
    }

    fn fleet_errors() -> Vec<(FleetError, Status)> {
        let (servers, range) = (String::new(), crate::fleet::Range { from_ms: 0, to_ms: 1 });
        let (every, least) = (Default::default(), Default::default());
        let why = crate::fleet::RequestError::Refused(401);
        vec![
            (FleetError::Url { url: "x".to_owned(), what: "" }, Usage),
            (FleetError::Config { path: "x".into(), why: io().into() }, Failed),
            (FleetError::Request { url: "x".to_owned(), why }, Failed),
            (FleetError::NoServers { servers: servers.clone(), range }, Failed),
            (FleetError::NoWindows { servers: servers.clone(), range }, Failed),
            (FleetError::Short { servers, every, least }, Usage),
        ]
    }

    fn local_errors() -> Vec<(LocalError, Status)> {
        vec![
            (LocalError::NotPermitted("x".into()), Privilege),
            (LocalError::NoAnswer("x".to_owned()), Failed),
            (LocalError::Io(io()), Failed),
        ]
    }

    #[test]
    fn every_error_of_the_server_and_of_the_kernel_has_a_status() {
        check(of_config, config_errors());
        check(of_open, open_errors());
        check(of_client, client_errors());
        check(of_attach, attach_errors());
        check(of_watch, reasons_not_to_watch());
        check(of_fleet, fleet_errors());
        check(of_local, local_errors());
    }

    #[test]
    fn every_failure_has_the_status_of_its_cause() {
        let path = || PathBuf::from("x");
        let own = vec![
            (Failure::Usage(UsageError::NobodyToAsk { option: "--x", access: "--y" }), Usage),
            (Failure::Usage(UsageError::NowhereToDump("--x")), Usage),
            (Failure::Usage(UsageError::NothingToDump), Usage),
            (Failure::Usage(UsageError::NoFolder), Usage),
            (Failure::Usage(UsageError::NoFolderNeeded), Usage),
            (Failure::Usage(UsageError::SeveralOnScreen), Usage),
            (Failure::Usage(UsageError::ReplayedTwice("x.rec".into())), Usage),
            (Failure::Usage(UsageError::SeveralKept(Vec::new())), Usage),
            (Failure::NoServer, Target),
            (Failure::NothingKept, Target),
            (Failure::NotKept(Vec::new()), Target),
            (Failure::Kept(FormatError::Empty), Failed),
            (Failure::Privilege(MissingPrivilege::TypeInformation), Privilege),
            (Failure::Statements(UncountedStatements::Thread(io())), Failed),
            (Failure::File { path: path(), why: FileError::Io(io()) }, Failed),
            (Failure::Program(ImageError::Open { path: "x".to_owned(), source: io() }), Failed),
            (Failure::Symbols(symbol_file()), Failed),
            (Failure::NoBuildId(path()), Failed),
            (Failure::Exists(path()), Failed),
            (Failure::Dumps { folder: path(), why: io() }, Failed),
            (Failure::Write { path: path(), why: io() }, Failed),
            (Failure::Roots(io()), Failed),
            (Failure::Scaling(ScalingError::OneRecording), Failed),
            (Failure::Listen(BindError::NoSuchAddress(Listen::default())), Failed),
            (Failure::Web(Web::open(Path::new("/missing")).err().expect("an error")), Failed),
            (Failure::Start(io()), Failed),
            (Failure::Export(prometheus::Error::AlreadyReg), Failed),
            (Failure::Tables(ExportError::Exists(path())), Failed),
            (Failure::Terminal(io()), Failed),
            (Failure::Output(io()), Failed),
            (Failure::Json(serde_json::Error::io(io())), Failed),
            (Failure::NotReady, Privilege),
        ];
        let config = config_errors().into_iter().map(|(error, status)| (Failure::Config(error), status));
        let open = open_errors().into_iter().map(|(error, status)| (Failure::Open(error), status));
        let client = client_errors().into_iter().map(|(error, status)| (Failure::Client(error), status));
        let counting = client_errors()
            .into_iter()
            .map(|(error, status)| (Failure::Statements(UncountedStatements::Client(error)), status));
        let attach = attach_errors().into_iter().map(|(error, status)| (Failure::Attach(error), status));
        let watch = reasons_not_to_watch()
            .into_iter()
            .map(|(why, status)| (Failure::Watch { latch: "x".to_owned(), why }, status));
        check(
            Failure::status,
            own.into_iter()
                .chain(config)
                .chain(open)
                .chain(client)
                .chain(counting)
                .chain(attach)
                .chain(watch)
                .chain(local_errors().into_iter().map(|(error, status)| (Failure::Local(error), status)))
                .chain(fleet_errors().into_iter().map(|(error, status)| (Failure::Fleet(error), status)))
                .collect(),
        );
    }

    #[test]
    fn statuses_are_those_in_the_documentation() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/exit-statuses.md");
        let page = std::fs::read_to_string(page).unwrap();
        let (table, _) = page.split_once("\n## ").unwrap();
        let rows: Vec<&str> = table.lines().filter_map(|line| line.strip_prefix("| ")).skip(1).collect();
        let meanings = ["done", "failed while running", "bad usage", "no such process", "missing privilege"];
        assert_eq!(rows.len(), meanings.len(), "{rows:?}");
        let numbers = [0, Failed as u8, Usage as u8, Target as u8, Privilege as u8];
        for ((row, number), meaning) in rows.iter().zip(numbers).zip(meanings) {
            assert!(row.starts_with(&format!("{number} | {meaning}")), "{row}");
        }
    }
}
