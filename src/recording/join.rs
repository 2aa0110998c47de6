//! Joins recordings of one server that follow each other into one.

use std::io::{self, Write};
use std::time::Duration;

use super::frame::{write_frame, write_mark, FormatError, FrameKind};
use super::reader::Recording;
use super::schema::{AllNumbers, Code, End, Second};

impl Recording {
    /// Returns one recording of several that one armtrace made without a gap between them. It has the last so much time
    /// of them, in whole seconds. `None` if there are none.
    pub fn joined(parts: &[Recording], last: Duration) -> Option<Recording> {
        let (first, newest) = (parts.first()?, parts.last()?);
        let length: Duration = parts.iter().map(Recording::duration).sum();
        let cut_ns = length.saturating_sub(last).as_nanos() as u64;
        let mut joined = Joined::default();
        parts.iter().for_each(|part| joined.add(part, cut_ns));
        let Joined { numbers, mut seconds, left_out_ns, code, .. } = joined;
        // What was known of the server's code before the first second is known in it.
        let oldest = seconds.first_mut()?;
        oldest.code = oldest.code.take().or(code);
        let mut whole = first.empty();
        whole.start.began_ms += left_out_ns / 1_000_000;
        (whole.rows, whole.seconds) = (numbers.into_rows(), seconds);
        (whole.code, whole.end) = (newest.code.clone(), newest.end.clone());
        if whole.fits() {
            return Some(whole);
        }
        // A recording is only as long as it can be read.
        Recording::joined(parts, last.min(whole.duration()) / 2)
    }

    /// Returns the one that these files together are, as [`Recording::joined`] does.
    ///
    /// # Errors
    /// Fails if one of them is no recording, or if there are none.
    pub fn of_files(files: &[Vec<u8>], last: Duration) -> Result<Recording, FormatError> {
        let parts = files.iter().map(|file| Recording::read_from(file.as_slice())).collect::<Result<Vec<_>, _>>()?;
        Recording::joined(&parts, last).ok_or(FormatError::Empty)
    }

    /// Writes it to a file.
    ///
    /// # Errors
    /// Fails when the file cannot be written.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        write_mark(&mut to)?;
        write_frame(&mut to, FrameKind::Start, &self.start)?;
        let mut rows = Some(self.rows.clone());
        for second in &self.seconds {
            let new = rows.take().unwrap_or_default();
            write_frame(&mut to, FrameKind::Second, &Second { new, ..second.clone() })?;
        }
        let end = self.end.as_ref().map(|end| End { code: Some(self.code.clone()), ..end.clone() });
        end.iter().try_for_each(|end| write_frame(&mut to, FrameKind::End, end))?;
        to.flush()
    }
}

/// The seconds of recordings that are being joined.
#[derive(Default)]
struct Joined {
    numbers: AllNumbers,
    seconds: Vec<Second>,
    /// The length of what was added, and how much of it is left out at the beginning.
    whole_ns: u64,
    left_out_ns: u64,
    /// What was known of the server's code in what is left out.
    code: Option<Code>,
}

impl Joined {
    /// Adds a recording, without what ends at `cut_ns` or before.
    fn add(&mut self, part: &Recording, cut_ns: u64) {
        for second in &part.seconds {
            let at_ns = self.whole_ns + second.at_ns;
            if at_ns <= cut_ns {
                self.left_out_ns = at_ns;
                self.code = second.code.clone().or(self.code.take());
            } else {
                let renumbered = self.numbers.second(&part.rows, second);
                self.seconds.push(Second { at_ns: at_ns - self.left_out_ns, ..renumbered });
            }
        }
        self.whole_ns += part.duration().as_nanos() as u64;
    }
}
