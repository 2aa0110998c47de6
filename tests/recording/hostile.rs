//! Forged files: complete frames with correct checksums around nonsense. Neither reading nor reporting them may panic.

use std::io::{Read, Write};

use armtrace::recording::compare::{self, Comparison, Options, Scaling, Side};
use armtrace::recording::{Folded, Html, Recording, Report, Text};
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use flate2::Compression;

use crate::{busy_file, read};

/// A frame's kind and its uncompressed text.
type Plain = (u8, Vec<u8>);

fn opened(file: &[u8]) -> Vec<Plain> {
    let mut rest = &file[12..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[1..5].try_into().unwrap()) as usize;
        let mut text = Vec::new();
        DeflateDecoder::new(&rest[9..9 + length]).read_to_end(&mut text).unwrap();
        frames.push((rest[0], text));
        rest = &rest[9 + length..];
    }
    frames
}

fn closed(mark: &[u8], frames: &[Plain]) -> Vec<u8> {
    let mut file = mark.to_vec();
    for (kind, text) in frames {
        let mut deflated = DeflateEncoder::new(Vec::new(), Compression::fast());
        deflated.write_all(text).unwrap();
        let body = deflated.finish().unwrap();
        let mut frame = vec![*kind];
        frame.extend((body.len() as u32).to_le_bytes());
        let mut crc = crc32fast::Hasher::new();
        crc.update(&frame);
        crc.update(&body);
        frame.extend(crc.finalize().to_le_bytes());
        file.extend(frame);
        file.extend(body);
    }
    file
}

/// Replaces every occurrence of a text in a file's frames.
pub fn replaced(file: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut frames = opened(file);
    for (_, text) in &mut frames {
        while let Some(at) = text.windows(from.len()).position(|window| window == from) {
            text.splice(at..at + from.len(), to.iter().copied());
        }
    }
    closed(&file[..12], &frames)
}

/// Produces every kind of report and comparison.
fn report_all(recording: &Recording) {
    let report = Report::new(recording);
    let reports = [Text(&report).to_string(), Html(&report).to_string(), Folded(recording).to_string()];
    let side = Side::of_recording("a", recording, None);
    let comparison = Comparison::new(&side, &side, Options { price: [Some(1.0); 2], ..Options::default() });
    let compared = [compare::Text(&comparison).to_string(), compare::Html(&comparison).to_string()];
    let json = [serde_json::to_string(&report).unwrap(), serde_json::to_string(&comparison).unwrap()];
    assert!(reports.iter().chain(&compared).chain(&json).all(|text| text.len() < 1 << 24));
    let scaling = Scaling::new("threads", [1.0, 2.0, 4.0, 8.0].map(|n| (n, side.clone())).to_vec());
    if let Ok(scaling) = scaling {
        assert!(compare::Text(&scaling).to_string().len() + compare::Html(&scaling).to_string().len() > 0);
    }
}

/// Some kilobytes that become millions of rows.
#[test]
fn a_file_with_millions_of_rows_is_not_read() {
    let file = busy_file(1);
    let frames = opened(&file);
    let keys = vec!["\"\""; 5_000_000].join(",");
    let second = format!("{{\"at_ns\":1,\"new\":{{\"lock_waits\":[{keys}]}}}}");
    let forged = [frames[0].clone(), (frames[1].0, second.into_bytes())];
    let error = Recording::read_from(&closed(&file[..12], &forged)[..]).unwrap_err().to_string();
    assert!(error.contains("too many rows"), "{error}");
}

/// Replaces a number or a byte of the text, or truncates it.
fn corrupt(text: &mut Vec<u8>, random: &mut fastrand::Rng) {
    let numbers: [&[u8]; 8] = [
        b"0",
        b"-1",
        b"18446744073709551615",
        b"9223372036854775807",
        b"-9223372036854775808",
        b"1e308",
        b"null",
        b"[]",
    ];
    let digits: Vec<usize> = (0..text.len()).filter(|i| text[*i].is_ascii_digit()).collect();
    match random.u8(..10) {
        0 => text.truncate(random.usize(..=text.len())),
        1 if !text.is_empty() => {
            let at = random.usize(..text.len());
            text[at] = random.u8(..);
        }
        _ if !digits.is_empty() => {
            let begin = digits[random.usize(..digits.len())];
            let end = begin + text[begin..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            text.splice(begin..end, random.choice(numbers).unwrap().iter().copied());
        }
        _ => {}
    }
}

#[test]
fn nonsense_with_a_correct_checksum_is_an_error_or_reported() {
    let whole = busy_file(12);
    let frames = opened(&whole);
    assert_eq!(read(&closed(&whole[..12], &frames)).seconds, read(&whole).seconds);
    let mut random = fastrand::Rng::with_seed(7);
    let mut readable = 0;
    for _ in 0..500 {
        let mut corrupted = frames.clone();
        for _ in 0..random.usize(1..4) {
            let frame = random.usize(..corrupted.len());
            match random.u8(..12) {
                0 => drop(corrupted.remove(frame)),
                1 => corrupted.swap(0, frame),
                2 => corrupted[frame].0 = random.u8(..5),
                _ => corrupt(&mut corrupted[frame].1, &mut random),
            }
            if corrupted.is_empty() {
                break;
            }
        }
        if let Ok(recording) = Recording::read_from(&closed(&whole[..12], &corrupted)[..]) {
            report_all(&recording);
            readable += 1;
        }
    }
    assert!(readable >= 30, "only {readable} files could be read, so the test shows little");
}

#[test]
fn a_decompression_bomb_is_rejected() {
    let whole = busy_file(2);
    let mut frames = opened(&whole);
    frames[1].1 = vec![b' '; 17 << 20];
    let file = closed(&whole[..12], &frames);
    assert!(file.len() < 1 << 20, "{}", file.len());
    let error = Recording::read_from(&file[..]).unwrap_err().to_string();
    assert!(error.contains("cannot be decompressed"), "{error}");
}

#[test]
fn deeply_nested_json_is_rejected() {
    let whole = busy_file(2);
    let mut frames = opened(&whole);
    frames[1].1 = [&b"{\"x\":"[..], &vec![b'['; 1 << 20]].concat();
    assert!(Recording::read_from(&closed(&whole[..12], &frames)[..]).is_err());
}

/// The figures of that many rows and seconds would not fit into memory.
#[test]
fn too_many_rows_and_seconds_are_rejected() {
    let row = r#"{"latch":"l","kind":"mutex"}"#;
    let first = format!(r#"{{"at_ns":1,"new":{{"latches":[{}]}}}}"#, vec![row; 40_000].join(","));
    let later = (2..=1000).map(|at| format!(r#"{{"at_ns":{at}}}"#));
    let seconds = std::iter::once(first).chain(later).map(|text| (2, text.into_bytes()));
    let whole = busy_file(2);
    let file = closed(&whole[..12], &[&opened(&whole)[..1], &seconds.collect::<Vec<_>>()].concat());
    let error = Recording::read_from(&file[..]).unwrap_err().to_string();
    assert!(error.contains("too many rows and seconds"), "{error}");
}
