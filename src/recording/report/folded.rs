//! Writes folded stacks, the input of flame graphs: server, latch, call site, microseconds.

use std::fmt::{self, Display, Formatter};

use crate::measure::latch::CallsiteWaits;
use crate::model::Kind;
use crate::recording::Recording;

/// A recording as lines `frame;frame;frame microseconds`. Waits without a known call site end at the latch, so the
/// lines add up to all wait time.
pub struct Folded<'a>(pub &'a Recording);

impl Display for Folded<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let server = &self.0.start.server;
        let root = frame(&format!("{} {}", server.flavor, server.version));
        let callsites = self.0.callsites();
        let mut latches: Vec<(String, u64)> = Vec::new();
        for latch in self.0.latches().into_iter().filter(|latch| latch.kind != Kind::Cond) {
            match latches.iter_mut().find(|(name, _)| *name == latch.latch) {
                Some((_, sum)) => *sum = sum.saturating_add(latch.waits.sum_ns),
                None => latches.push((latch.latch, latch.waits.sum_ns)),
            }
        }
        for (latch, wait_ns) in latches {
            let mut rest = wait_ns;
            for (callsite, wait_ns) in in_all_modes(callsites.iter().filter(|site| site.latch == latch)) {
                let ns = wait_ns.min(rest);
                rest -= ns;
                line(f, &[&root, &frame(&latch), &frame(callsite)], ns)?;
            }
            line(f, &[&root, &frame(&latch)], rest)?;
        }
        Ok(())
    }
}

/// Returns nanoseconds by call site, in the order of first occurrence.
fn in_all_modes<'a>(sites: impl Iterator<Item = &'a CallsiteWaits>) -> Vec<(&'a str, u64)> {
    let mut sums: Vec<(&str, u64)> = Vec::new();
    for site in sites {
        match sums.iter_mut().find(|(callsite, _)| *callsite == site.callsite) {
            Some((_, sum)) => *sum = sum.saturating_add(site.wait_ns),
            None => sums.push((&site.callsite, site.wait_ns)),
        }
    }
    sums
}

fn line(f: &mut Formatter, frames: &[&str], ns: u64) -> fmt::Result {
    match ns / 1000 {
        0 => Ok(()),
        microseconds => writeln!(f, "{} {microseconds}", frames.join(";")),
    }
}

/// Returns a name without the characters that separate frames and lines.
fn frame(name: &str) -> String {
    name.replace(';', ":").replace(char::is_control, " ")
}
