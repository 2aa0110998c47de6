//! `armtrace dump`: writes what a running armtrace has measured lately to a recording.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use clap::Args;

use super::hindsight::{self, KEPT};
use super::log;
use super::new_file::{refuse_existing, write_whole};
use super::output;
use super::values::{pid, positive};
use super::{Failure, UsageError};
use crate::dumps::Spell;
use crate::local::{self, Asked};
use crate::present::format;
use crate::recording::Recording;

#[derive(Args, Clone, Debug)]
pub(super) struct DumpArgs {
    /// Process ID of the server, if several are measured
    #[arg(long, value_name = "PID", value_parser = pid, conflicts_with = "target")]
    pid: Option<i32>,
    /// The same by its name, as in the label `target`
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// How much of the past
    #[arg(long, default_value = KEPT, value_name = "TIME", value_parser = hindsight::last)]
    last: Duration,
    /// Wait until so many threads have waited for latches for 5 seconds, and write 5 seconds later
    #[arg(long, value_name = "THREADS", value_parser = positive)]
    when_waiting: Option<f64>,
    /// File to write; - for standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Overwrite the file if it exists
    #[arg(long)]
    force: bool,
}

pub(super) fn dump(args: &DumpArgs) -> Result<(), Failure> {
    let is_printed = args.output.as_os_str() == "-";
    if !is_printed {
        refuse_existing(&args.output, args.force)?;
    }
    let Chosen { asked, ended } = match args.when_waiting {
        None => chosen(local::servers(&local::folder())?, args)?,
        Some(threads) => await_waiting(threads, args)?,
    };
    let recording = recorded(&asked, args.last)?;
    if is_printed {
        let mut bytes = Vec::new();
        recording.write(&mut bytes).map_err(Failure::Output)?;
        output::print_bytes(&bytes)?;
    } else {
        write_whole(&args.output, args.force, |to| recording.write(to))?;
    }
    let length = recording.duration();
    let short = if length + SLACK < args.last { ", which is all that was kept" } else { "" };
    let length = format::span(Duration::from_secs_f64(length.as_secs_f64().round()));
    log::tell(&format!("the last {length} of {} are written{short}", in_words(&asked)));
    for other in &ended {
        log::tell(&format!("the past of {} is kept, too: --pid {}", in_words(other), other.server.pid));
    }
    Ok(())
}

/// The server that is meant, and those that have ended and might be.
struct Chosen {
    asked: Asked,
    ended: Vec<Asked>,
}

/// By how much less than was asked for need not be told.
const SLACK: Duration = Duration::from_secs(2);

/// The interval at which the threads that wait are asked for.
const SECOND: Duration = Duration::from_secs(1);

/// Returns the server that is meant once so many of its threads have waited for some seconds.
fn await_waiting(threads: f64, args: &DumpArgs) -> Result<Chosen, Failure> {
    // What is wrong from the start will not come right.
    let mut meant = chosen(local::servers(&local::folder())?, args)?;
    let (mut spell, mut is_more) = (Spell::default(), false);
    while !spell.second(is_more) {
        sleep(SECOND);
        let all = local::servers(&local::folder());
        if spell.is_certain() {
            // Whatever becomes of the server now, its past is wanted.
            continue;
        }
        is_more = match all.map_err(Failure::from).and_then(|all| chosen(all, args)) {
            Ok(now) => {
                meant = now;
                meant.asked.server.waiting >= threads && !meant.asked.server.has_ended
            }
            // The server restarts, or armtrace does.
            Err(Failure::NotKept(_) | Failure::NothingKept | Failure::Local(_)) => false,
            Err(why) => return Err(why),
        };
    }
    Ok(meant)
}

/// Returns the server that is meant.
fn chosen(all: Vec<Asked>, args: &DumpArgs) -> Result<Chosen, Failure> {
    if all.is_empty() {
        return Err(Failure::NothingKept);
    }
    let kept = |asked: &Asked| format::span(Duration::from_millis(asked.server.reaches_ms));
    let names: Vec<String> = all.iter().map(|asked| format!("{} ({})", in_words(asked), kept(asked))).collect();
    let is_meant = |asked: &Asked| {
        args.pid.is_none_or(|pid| asked.server.pid == pid)
            && args.target.as_ref().is_none_or(|target| asked.server.name.as_ref() == Some(target))
    };
    let (ended, running): (Vec<Asked>, Vec<Asked>) =
        all.into_iter().filter(is_meant).partition(|asked| asked.server.has_ended);
    // One that has ended is meant if it is named, or if no other is left.
    let (meant, ended) = if running.is_empty() { (ended, Vec::new()) } else { (running, ended) };
    let mut meant = meant.into_iter();
    match (meant.next(), meant.next()) {
        (Some(asked), None) => Ok(Chosen { asked, ended }),
        (Some(_), Some(_)) => Err(UsageError::SeveralKept(names).into()),
        (None, _) => Err(Failure::NotKept(names)),
    }
}

/// Returns the server's name and process.
fn in_words(asked: &Asked) -> String {
    let server = &asked.server;
    let flavor = format::flavor(&server.flavor);
    let name = server.name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
    let ended = if server.has_ended { ", which has ended" } else { "" };
    format!("{name}{flavor} {}, process {}{ended}", server.version, server.pid)
}

fn recorded(asked: &Asked, last: Duration) -> Result<Recording, Failure> {
    Recording::of_files(&asked.files(last)?, last).map_err(Failure::Kept)
}
