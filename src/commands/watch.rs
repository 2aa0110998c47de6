//! `armtrace run --watch LATCH`: finds the instance of a latch with the most waiters, watches its cache line, reports
//! what touches it, and exits.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::output::{json, print, Format};
use super::run::RunArgs;
use super::session::{self, Ends};
use super::Failure;
use crate::agent::{Agent, Options};
use crate::attach::Writes;
use crate::host::Domains;
use crate::measure::latch::{StatementDetail, StatementOptions};
use crate::measure::watchpoint::{Allowance, Wanted, Watcher};
use crate::server::Target;
use crate::ui;

pub(super) fn watch(args: &RunArgs, pid: i32, latch: &str) -> Result<(), Failure> {
    let failure = |why| Failure::Watch { latch: latch.to_owned(), why };
    let target = session::open(pid, &args.attach, Writes::Nothing)?;
    // Fails before anything is attached.
    let allowance = Allowance::of_share(args.attach.max_overhead, args.accept_crash_risk.into()).map_err(failure)?;
    let runtime = session::runtime()?;
    let end = end_of(&runtime, &target).map_err(Failure::Start)?;
    let is_over = || end.load(Ordering::Relaxed);
    let options = Options {
        max_overhead: args.attach.max_overhead,
        without_probes: false,
        statements: StatementOptions { detail: StatementDetail::Off, ..StatementOptions::default() },
        domains: Domains::Off,
        keep: Duration::ZERO,
        cache: args.attach.cache(),
        more: None,
    };
    let agent = Agent::attach(target, options)?;
    let watcher = Watcher { target: Arc::clone(&agent.target), latches: agent.source().latches(), allowance };
    let wanted = Wanted::Part(latch.to_owned());
    let seen = watcher.look(&wanted, is_over);
    agent.detach();
    let found = watcher.watch(&wanted, &seen.map_err(failure)?, |_| is_over()).map_err(failure)?;
    found.map_or(Ok(()), |found| {
        print(&match (args.json, args.format) {
            (true, _) | (_, Format::Json) => json(&found)?,
            (false, Format::Text) => ui::watch::text(&found),
        })
    })
}

/// Returns a flag that becomes true on SIGINT, SIGTERM or the server's end.
fn end_of(runtime: &Runtime, target: &Target) -> io::Result<Arc<AtomicBool>> {
    let is_over = Arc::new(AtomicBool::new(false));
    let mut ends = {
        let _entered = runtime.enter();
        Ends::new(target)?
    };
    let over = Arc::clone(&is_over);
    runtime.spawn(async move {
        ends.wait().await;
        over.store(true, Ordering::Relaxed);
    });
    Ok(is_over)
}
