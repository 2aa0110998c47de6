//! Reads and writes the bytes of a file: a mark, a version, then self-contained frames.
//!
//! ```text
//! file   mark (8 bytes), version (u32), frames
//! frame  kind (u8), length of the body (u32), CRC-32 of kind, length and body (u32), body: JSON, deflated
//! ```
//!
//! Numbers are little-endian. Each frame is compressed and checksummed separately, so a file that a full disk or
//! `kill -9` cut short is valid up to its last whole frame. JSON names its fields: an earlier armtrace ignores a field
//! that a later one adds, and a missing field has its default. Frames of an unknown kind are skipped. The version
//! therefore rises only when files would be misread otherwise.

use std::io::{self, Read, Write};

use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use flate2::Compression;
use serde::de::DeserializeOwned;
use serde::Serialize;

/// The first bytes of a file. The first byte is not text, and the line ends reveal a transfer that changed them.
const MARK: [u8; 8] = *b"\x8aARMTR\r\n";
/// The version of the format that is written. All versions up to it are read.
pub const VERSION: u32 = 1;

/// The most bytes of a body, compressed. A second of a very busy server takes less than 50 KB; only damaged or hostile
/// files exceed this and the following limits.
const LONGEST_BODY: u32 = 4 << 20;
/// The most bytes of a body, decompressed.
const LONGEST_TEXT: u64 = 16 << 20;
/// The most bytes of all bodies of a file, decompressed. An hour of a very busy server fits.
const LONGEST_FILE: u64 = 256 << 20;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// What is known when recording begins: the first frame.
    Start = 1,
    /// What one second added.
    Second = 2,
    /// What is known only when recording ends: the last frame.
    End = 3,
}

/// The reason why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The file does not begin with the mark.
    #[error("it is not an armtrace recording: give a file that `armtrace record` wrote")]
    NotARecording,
    /// The mark has other line ends.
    #[error("its line ends were changed in transfer: copy it as binary")]
    TakenForText,
    /// The file has this version, which is newer than [`VERSION`].
    #[error("it has format {0}, but this armtrace reads only formats up to {VERSION}: update armtrace")]
    Newer(u32),
    /// The content is not valid.
    #[error("it is damaged at byte {at}: {what}. Copy it again from the host that recorded it")]
    Damaged {
        /// The offset of the damaged frame in the file, in bytes.
        at: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The file has no whole second.
    #[error("it ends before the first whole second, so nothing was recorded: record again")]
    Empty,
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Writes the mark and the version.
pub fn write_mark(to: &mut impl Write) -> io::Result<()> {
    to.write_all(&MARK)?;
    to.write_all(&VERSION.to_le_bytes())
}

/// Writes one frame in one piece.
pub fn write_frame(to: &mut impl Write, kind: FrameKind, body: &impl Serialize) -> io::Result<()> {
    // In one piece: the encoder clears 32 KiB for each write, however small.
    let text = serde_json::to_vec(body)?;
    let too_many = || io::Error::other("a second has too many figures");
    if text.len() as u64 > LONGEST_TEXT {
        return Err(too_many());
    }
    let mut deflated = DeflateEncoder::new(Vec::new(), Compression::best());
    deflated.write_all(&text)?;
    let body = deflated.finish()?;
    let length = u32::try_from(body.len()).ok().filter(|length| *length <= LONGEST_BODY);
    let length = length.ok_or_else(too_many)?;
    let mut frame = vec![kind as u8];
    frame.extend(length.to_le_bytes());
    let checksum = checksum(&frame, &body);
    frame.extend(checksum.to_le_bytes());
    frame.extend(body);
    to.write_all(&frame)
}

fn checksum(head: &[u8], body: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(head);
    crc.update(body);
    crc.finalize()
}

/// The frames of a file, in order.
pub struct Frames<R> {
    from: R,
    at: u64,
    text_left: u64,
}

/// A frame's body, checked.
pub struct Frame {
    kind: u8,
    at: u64,
    text: Vec<u8>,
}

impl<R: Read> Frames<R> {
    /// Reads the mark and the version.
    pub fn new(mut from: R) -> Result<Frames<R>, FormatError> {
        let mut head = [0; 12];
        let got = read_up_to(&mut from, &mut head)?;
        // If line ends were changed, what follows them has moved.
        if head[..6] == MARK[..6] && got >= 8 && head[..8] != MARK {
            return Err(FormatError::TakenForText);
        }
        if got < 12 || head[..8] != MARK {
            return Err(FormatError::NotARecording);
        }
        let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        match version {
            0 => Err(FormatError::Damaged { at: 8, what: "there is no format 0" }),
            1..=VERSION => Ok(Frames { from, at: 12, text_left: LONGEST_FILE }),
            _ => Err(FormatError::Newer(version)),
        }
    }

    /// Returns the next whole frame; `None` at the end of the file, even if it was cut short within a frame.
    pub fn next(&mut self) -> Result<Option<Frame>, FormatError> {
        let at = self.at;
        let damaged = |what| FormatError::Damaged { at, what };
        let mut head = [0; 9];
        if read_up_to(&mut self.from, &mut head)? < head.len() {
            return Ok(None);
        }
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
        if length > LONGEST_BODY {
            return Err(damaged("a frame is too long"));
        }
        let mut body = Vec::new();
        (&mut self.from).take(u64::from(length)).read_to_end(&mut body)?;
        if body.len() < length as usize {
            return Ok(None);
        }
        if checksum(&head[..5], &body).to_le_bytes() != head[5..] {
            return Err(damaged("a checksum is wrong"));
        }
        self.at += head.len() as u64 + u64::from(length);
        let text = self.inflate(&body).ok_or_else(|| damaged("a frame cannot be decompressed"))?;
        Ok(Some(Frame { kind: head[0], at, text }))
    }

    fn inflate(&mut self, body: &[u8]) -> Option<Vec<u8>> {
        let limit = self.text_left.min(LONGEST_TEXT);
        let mut text = Vec::new();
        DeflateDecoder::new(body).take(limit + 1).read_to_end(&mut text).ok()?;
        self.text_left -= text.len().min(limit as usize) as u64;
        (text.len() as u64 <= limit).then_some(text)
    }
}

impl Frame {
    /// Returns whether the frame is of this kind.
    pub fn is(&self, kind: FrameKind) -> bool {
        self.kind == kind as u8
    }

    /// Parses the body.
    ///
    /// # Errors
    /// Fails if the body does not have the form of `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, FormatError> {
        serde_json::from_slice(&self.text)
            .map_err(|_| self.damaged("the content of a frame does not have the form of its kind"))
    }

    /// Returns the error for a frame whose content is wrong.
    pub fn damaged(&self, what: &'static str) -> FormatError {
        FormatError::Damaged { at: self.at, what }
    }
}

/// Fills `into` unless the input ends first. Returns the number of bytes read.
fn read_up_to(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < into.len() {
        match from.read(&mut into[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}
