//! The reader of recordings, and all reports of what it accepts.

use std::io::Write;

use flate2::write::DeflateEncoder;
use flate2::Compression;

use crate::recording::compare::{self, Comparison, Options, Scaling, Side};
use crate::recording::{Folded, Html, Recording, Report, Text};

const MARK: &[u8] = b"\x8aARMTR\r\n\x01\0\0\0";

/// A fuzzer does not find correct checksums. So every input is used twice: as a file, and as frames for a valid file,
/// which are separated by zero bytes and consist of a kind and a text.
pub(super) fn recording(input: &[u8]) {
    report_all(input);
    let mut file = MARK.to_vec();
    for frame in input.split(|byte| *byte == 0) {
        if let Some((kind, text)) = frame.split_first() {
            write_frame(&mut file, *kind, text);
        }
    }
    report_all(&file);
}

fn report_all(file: &[u8]) {
    let Ok(recording) = Recording::read_from(file) else { return };
    let report = Report::new(&recording);
    _ = (Text(&report).to_string(), Html(&report).to_string(), Folded(&recording).to_string());
    let side = Side::of_recording("a", &recording, None);
    let comparison = Comparison::new(&side, &side, Options::default());
    _ = (compare::Text(&comparison).to_string(), compare::Html(&comparison).to_string());
    let points = [1.0, 2.0, 4.0, 8.0].map(|n| (n, side.clone()));
    if let Ok(scaling) = Scaling::new("threads", points.to_vec()) {
        _ = (compare::Text(&scaling).to_string(), compare::Html(&scaling).to_string());
    }
}

fn write_frame(file: &mut Vec<u8>, kind: u8, text: &[u8]) {
    let mut deflated = DeflateEncoder::new(Vec::new(), Compression::fast());
    deflated.write_all(text).expect("a vector takes everything");
    let body = deflated.finish().expect("a vector takes everything");
    let mut head = vec![kind];
    head.extend((body.len() as u32).to_le_bytes());
    let mut crc = crc32fast::Hasher::new();
    crc.update(&head);
    crc.update(&body);
    file.extend(head);
    file.extend(crc.finalize().to_le_bytes());
    file.extend(body);
}
