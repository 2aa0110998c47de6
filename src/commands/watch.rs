//! `armtrace run --watch LATCH`: finds the instance of a latch with the most waiters, watches its cache line, reports
//! what touches it, and exits.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use tokio::runtime::Runtime;

use super::output::{json, print, Format};
use super::run::RunArgs;
use super::session::{self, Ends};
use crate::agent::{Agent, Options};
use crate::failure::Failure;
use crate::host::Domains;
use crate::measure::watchpoint::{Allowance, Unwatched, Wanted, Watcher};
use crate::server::Target;
use crate::ui;

pub(super) fn watch(args: &RunArgs, latch: &str) -> Result<(), Failure> {
    let failure = |why| failure(latch, why);
    let target = session::open(&args.attach)?;
    // Fails before anything is attached.
    let allowance = Allowance::of_share(args.attach.max_overhead).map_err(failure)?;
    let failed = |e: io::Error| Failure::running(format!("cannot start: {e}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(failed)?;
    let end = end_of(&runtime, &target).map_err(failed)?;
    let is_over = || end.load(Ordering::Relaxed);
    let options = Options { max_overhead: args.attach.max_overhead, domains: Domains::Off, more: None };
    let agent = Agent::attach(target, options)?;
    let watcher = Watcher { target: Arc::clone(&agent.target), latches: agent.source().latches(), allowance };
    let wanted = Wanted::Part(latch.to_owned());
    let seen = watcher.look(&wanted, is_over);
    agent.detach();
    let found = watcher.watch(&wanted, &seen.map_err(failure)?, |_| is_over()).map_err(failure)?;
    found.map_or(Ok(()), |found| {
        print(&match args.format {
            Format::Text => ui::watch::text(&found),
            Format::Json => json(&found)?,
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

fn failure(latch: &str, why: Unwatched) -> Failure {
    let said = format!("--watch {latch}: {why}");
    match why {
        Unwatched::NoAtomics | Unwatched::Refused(_) => Failure::privilege(said),
        Unwatched::Unclear(_) => Failure::usage(said),
        Unwatched::Ended(_) => Failure::target(why),
        Unwatched::Unreadable(_) => Failure::running(said),
        Unwatched::NobodyWaited(others) => {
            let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
            Failure::running(format!("{said}.\nlatches with waiters: {others}"))
        }
    }
}
