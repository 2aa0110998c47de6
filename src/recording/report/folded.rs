//! Writes folded stacks, the input of flame graphs: server, latch, calls, microseconds.

use std::fmt::{self, Display, Formatter};

use crate::measure::latch::report::{towers, Tower};
use crate::recording::Recording;

/// A recording as lines `frame;frame;frame microseconds`. Waits without known calls end at the latch, so the lines add
/// up to all wait time.
pub struct Folded<'a>(pub &'a Recording);

impl Display for Folded<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let server = &self.0.start.server;
        let root = frame(&format!("{} {}", server.flavor, server.version));
        for Tower { latch, calls, wait_ns } in towers(self.0) {
            let frames = [root.clone(), frame(&latch)].into_iter().chain(calls.iter().map(|call| frame(call)));
            match wait_ns / 1000 {
                0 => {}
                microseconds => writeln!(f, "{} {microseconds}", frames.collect::<Vec<_>>().join(";"))?,
            }
        }
        Ok(())
    }
}

/// Returns a name without the characters that separate frames and lines.
fn frame(name: &str) -> String {
    name.replace(';', ":").replace(char::is_control, " ")
}
