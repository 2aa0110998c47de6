//! `armtrace run --discover`: measures all servers of the host until interrupted.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::interval;

use super::hindsight::{self, HindsightArgs};
use super::log;
use super::notify::{Notifier, Supervised};
use super::reload::Reload;
use super::run::{RunArgs, Shown};
use super::session::{self, AttachArgs, Requests, Told};
use super::Failure;
use crate::agent::Options;
use crate::attach::{self, Writes};
use crate::dumps::{Dumps, Folder};
use crate::export::{Listener, Policy, Server, Servers, State};
use crate::follow::Following;
use crate::local::Socket;
use crate::measure::statements::StatementCounter;
use crate::measure::More;
use crate::server::{Accounts, ClientError};
use crate::symbols::Settings;
use crate::ui::servers::{Figures, ServerRow};
use crate::ui::LiveView;

pub(super) fn discover(args: &RunArgs) -> Result<(), Failure> {
    args.hindsight.check(("--defaults-file", args.attach.defaults_file.is_some()))?;
    session::confine(Writes::Nothing);
    attach::require_privilege()?;
    // The file is read with the privileges that armtrace keeps, because it may change later.
    let policy = args.port.policy()?;
    args.attach.defaults_file.as_deref().map(Accounts::read).transpose().map_err(ClientError::from)?;
    let listener = args.port.listen.bind()?;
    let folder = args.hindsight.folder()?;
    let socket = args.hindsight.socket();
    let runtime = session::runtime()?;
    let ended = runtime.block_on(follow(args, listener, policy, socket, folder));
    // A thread may still be blocked writing to a terminal that does not read. Do not wait for it.
    runtime.shutdown_background();
    ended
}

/// Measures, serves and shows all servers until a signal ends it, then detaches from them.
async fn follow(
    args: &RunArgs,
    listener: Listener,
    policy: Policy,
    socket: Option<Socket>,
    folder: Option<Folder>,
) -> Result<(), Failure> {
    let mut requests = Requests::new().map_err(Failure::Start)?;
    requests.reload_on_hangup();
    let following = Arc::new(Following::default());
    let shown = Shown::many(Arc::clone(&following) as Arc<dyn Servers>, listener, policy)?;
    let sources = hindsight::of_all(Arc::clone(&following) as Arc<dyn Servers>);
    let _answering = socket.map(|socket| hindsight::answer(socket, Arc::clone(&sources)));
    let log: fn(&str) = if io::stdout().is_terminal() { log_quietly } else { log_aloud };
    let reload = Arc::new(Reload::new(args));
    let wanted = Arc::clone(&reload);
    let kept = args.hindsight.clone();
    let options = Box::new(move |pid| options(pid, &wanted.attach_args(), &kept));
    let finder = following.start(options, Settings::from_env(None), log);
    let finder = finder.map_err(Failure::Start)?;
    let dumps = folder.map(|folder| args.hindsight.start_dumps(folder, sources, log)).transpose()?;
    dumps.as_ref().map_or(Ok(()), |_| requests.dump_on_quit()).map_err(Failure::Start)?;
    let notifier = Notifier::ready(Arc::clone(&following) as Arc<dyn Supervised>);
    until_told(requests, &following, dumps.as_ref(), &reload).await;
    notifier.stopping();
    shown.hide();
    finder.end();
    dumps.into_iter().for_each(Dumps::finish);
    following.detach();
    shown.stop().await;
    Ok(())
}

/// The longest that attaching to one server may take: each request to a debuginfod server may take five minutes.
const LONGEST_STEP: Duration = Duration::from_secs(30 * 60);

/// The most servers that a status names.
const NAMED: usize = 5;

impl Supervised for Following {
    fn status(&self) -> String {
        status_of(&self.servers())
    }

    fn is_alive(&self) -> bool {
        self.is_searching(LONGEST_STEP)
    }
}

/// Returns in one line which servers are measured, and why others are not.
fn status_of(servers: &[Server]) -> String {
    let measured = servers.iter().filter(|server| server.state == State::Measured).map(|server| server.name.clone());
    let refused = servers.iter().filter_map(|server| match &server.state {
        State::Refused(why) => Some(format!("{} ({why})", server.name)),
        _ => None,
    });
    let parts = [("Measuring", measured.collect::<Vec<_>>()), ("cannot measure", refused.collect())];
    let parts = parts.into_iter().filter(|(_, names)| !names.is_empty());
    let parts: Vec<String> = parts.map(|(what, names)| format!("{what} {}", some_of(&names))).collect();
    if parts.is_empty() {
        return "No server is measured; looking for MySQL and MariaDB servers".to_owned();
    }
    parts.join("; ")
}

/// Returns the first names, and how many others there are.
fn some_of(names: &[String]) -> String {
    let (named, others) = names.split_at(names.len().min(NAMED));
    let others = (!others.is_empty()).then(|| format!("{} more", others.len()));
    named.iter().cloned().chain(others).collect::<Vec<_>>().join(", ")
}

/// Detaches and reattaches all probes on SIGUSR1 and SIGUSR2, reads the settings again on SIGHUP, and writes dumps on
/// SIGQUIT, until a signal ends it.
async fn until_told(mut requests: Requests, following: &Following, dumps: Option<&Dumps>, reload: &Reload) {
    loop {
        match requests.told().await {
            Told::End(_) => return,
            Told::Pause => following.pause(),
            Told::Resume => following.resume(),
            Told::Reload if reload.all() => following.renew(),
            Told::Reload => {}
            Told::Dump => dumps.into_iter().for_each(Dumps::ask),
        }
    }
}

/// Returns what is measured on the server that is process `pid`.
fn options(pid: i32, args: &AttachArgs, kept: &HindsightArgs) -> Options {
    let wants_longest = kept.dump_when_statement.is_some();
    let count = |file| StatementCounter::start_when_possible(pid, file, wants_longest);
    let counter = args.defaults_file.clone().map(count);
    let counter = counter.transpose().unwrap_or_else(|error| {
        tracing::warn!("the statements of process {pid} are not counted: {error}");
        None
    });
    let statements = counter.map(Arc::new);
    let more = More { sample_hz: args.sample_hz, hardware_events: args.hardware_events, statements };
    Options {
        max_overhead: args.max_overhead,
        without_probes: args.no_probes,
        statements: args.statement_options(None),
        domains: args.handoffs,
        keep: kept.keep,
        cache: args.cache(),
        more: Some(more),
    }
}

/// Tells what happens to a server, where the output is a file, a pipe or the journal.
fn log_aloud(line: &str) {
    log::tell(line);
}

/// Tells it to those who want to know; the table shows it.
fn log_quietly(line: &str) {
    tracing::info!("{line}");
}

/// Redraws the table of servers at its interval. If the terminal is not read, only the drawing blocks.
pub(super) async fn show(servers: Arc<dyn Servers>, url: String) {
    let mut view = LiveView::new(true, &url);
    let mut ticks = interval(view.interval());
    loop {
        ticks.tick().await;
        let servers = Arc::clone(&servers);
        let drawn = spawn_blocking(move || {
            let rows: Vec<ServerRow> = servers.servers().into_iter().map(row).collect();
            view.draw_servers(&rows).map(|()| view)
        });
        view = match drawn.await {
            Ok(Ok(view)) => view,
            Ok(Err(error)) => return tracing::warn!("cannot write the live table: {error}"),
            Err(_) => return,
        };
    }
}

fn row(server: Server) -> ServerRow {
    let figures = match (&server.view, &server.state) {
        (Some(view), _) => Ok(view.remembering(Figures::new)),
        (None, State::Refused(why)) => Err(format!("not measured: {why}")),
        (None, _) => Err("has ended".to_owned()),
    };
    ServerRow { name: server.name, figures }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str, state: State) -> Server {
        Server { name: name.to_owned(), state, view: None, attached: 0, failed: 0 }
    }

    #[test]
    fn the_status_says_what_is_measured_or_why_nothing_is() {
        assert_eq!(status_of(&[]), "No server is measured; looking for MySQL and MariaDB servers");
        assert_eq!(status_of(&[server("a", State::Ended)]), status_of(&[]));
        let refused = server("b.service", State::Refused("no symbols".to_owned()));
        assert_eq!(status_of(std::slice::from_ref(&refused)), "cannot measure b.service (no symbols)");
        let measured = (0..7).map(|n| server(&format!("{n}"), State::Measured));
        let all: Vec<Server> = measured.chain([refused]).collect();
        assert_eq!(status_of(&all[5..]), "Measuring 5, 6; cannot measure b.service (no symbols)");
        assert_eq!(status_of(&all), "Measuring 0, 1, 2, 3, 4, 2 more; cannot measure b.service (no symbols)");
    }
}
