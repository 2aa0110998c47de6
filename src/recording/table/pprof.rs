//! Recordings as a profile in the format of pprof: wait time by latch and calls, and CPU time by function.
//!
//! The messages are those of pprof's `profile.proto`, as far as they are used.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::write::GzEncoder;
use flate2::Compression;
use prost::Message;

use crate::measure::cpu::CpuTime;
use crate::measure::latch::shares::paths;
use crate::present::format;
use crate::recording::Recording;

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

/// What a value of a sample means. Texts are numbers in the table of strings, here and in all that follow.
#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    name: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

/// Values of one stack.
#[derive(Clone, PartialEq, Message)]
struct Sample {
    /// The stack, beginning with the function that called no other.
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
}

/// Returns a compressed profile of all recordings. Its samples have the labels `host`, `server` and, of a wait, `mode`.
/// A stack is the server, the calls and the latch, or the server, the purpose and the function.
///
/// # Errors
/// Fails if it cannot be compressed.
pub fn pprof(recordings: &[Recording]) -> io::Result<Vec<u8>> {
    let mut profile = Builder::default();
    // The first string stands for none.
    profile.string("");
    for (name, unit) in [("waits", "count"), ("wait", "nanoseconds"), ("cpu", "nanoseconds")] {
        let sample_type = ValueType { name: profile.string(name), unit: profile.string(unit) };
        profile.made.sample_type.push(sample_type);
    }
    profile.made.default_sample_type = profile.string("wait");
    profile.made.time_nanos = recordings.first().map_or(0, |first| first.start.began_ms as i64 * 1_000_000);
    profile.made.duration_nanos = recordings.iter().map(|each| each.duration().as_nanos() as i64).max().unwrap_or(0);
    recordings.iter().for_each(|recording| profile.add(recording));
    let mut file = GzEncoder::new(Vec::new(), Compression::default());
    file.write_all(&profile.made.encode_to_vec())?;
    file.finish()
}

/// What was measured for one stack.
#[derive(Default)]
struct Values {
    waits: u64,
    wait_ns: u64,
    cpu_ns: u64,
}

/// A profile that is being made.
#[derive(Default)]
struct Builder {
    made: Profile,
    strings: HashMap<String, i64>,
    /// The numbers of functions, of which each has one location with the same number.
    functions: HashMap<String, u64>,
}

impl Builder {
    fn add(&mut self, recording: &Recording) {
        let server = &recording.start.server;
        let server = format!("{} {}", format::flavor(&server.flavor), server.version);
        let labels = vec![self.label("host", &recording.start.host.name), self.label("server", &server)];
        let (stacks, callsites) = (recording.call_stacks(), recording.callsites());
        for modes in recording.contended() {
            for path in paths(&modes, &stacks, &callsites) {
                let values = Values { waits: path.waits, wait_ns: path.wait_ns, cpu_ns: 0 };
                let mode = path.mode.map(|mode| self.label("mode", mode.as_str()));
                let latch = modes[0].latch.as_str();
                let calls = path.calls.iter().rev().map(String::as_str);
                let stack: Vec<&str> = [latch].into_iter().chain(calls).chain([server.as_str()]).collect();
                self.sample(&stack, values, labels.iter().cloned().chain(mode).collect());
            }
        }
        for row in recording.entries::<CpuTime>() {
            let values = Values { cpu_ns: row.ns, ..Values::default() };
            self.sample(&[&row.function, row.class.as_str(), &server], values, labels.clone());
        }
    }

    /// Adds what was measured for a stack, unless it is nothing.
    fn sample(&mut self, stack: &[&str], values: Values, label: Vec<Label>) {
        let value: Vec<i64> = [values.waits, values.wait_ns, values.cpu_ns].map(|value| value as i64).to_vec();
        if value.iter().all(|value| *value == 0) {
            return;
        }
        let location_id = stack.iter().map(|function| self.function(function)).collect();
        self.made.sample.push(Sample { location_id, value, label });
    }

    fn label(&mut self, key: &str, text: &str) -> Label {
        Label { key: self.string(key), text: self.string(text) }
    }

    fn function(&mut self, name: &str) -> u64 {
        if let Some(id) = self.functions.get(name) {
            return *id;
        }
        let id = self.functions.len() as u64 + 1;
        self.functions.insert(name.to_owned(), id);
        let name = self.string(name);
        self.made.function.push(Function { id, name });
        self.made.location.push(Location { id, line: vec![Line { function_id: id }] });
        id
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(number) = self.strings.get(text) {
            return *number;
        }
        let number = self.made.string_table.len() as i64;
        self.strings.insert(text.to_owned(), number);
        self.made.string_table.push(text.to_owned());
        number
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;
    use crate::model::Kind;
    use crate::recording::read;

    /// Returns the sums of a profile's values, by the value's name and the label `server`.
    fn sums(file: &[u8]) -> BTreeMap<(String, String), i64> {
        let mut bytes = Vec::new();
        GzDecoder::new(file).read_to_end(&mut bytes).expect("a compressed file");
        let profile = Profile::decode(bytes.as_slice()).expect("a profile");
        let text = |number: i64| profile.string_table[number as usize].clone();
        let mut sums = BTreeMap::new();
        for sample in &profile.sample {
            for id in &sample.location_id {
                let location = profile.location.iter().find(|location| location.id == *id).expect("a location");
                assert!(profile.function.iter().any(|function| function.id == location.line[0].function_id));
            }
            let server = sample.label.iter().find(|label| text(label.key) == "server").expect("a server");
            for (value, of) in sample.value.iter().zip(&profile.sample_type) {
                *sums.entry((text(of.name), text(server.text))).or_default() += value;
            }
        }
        sums
    }

    #[test]
    fn a_profile_has_all_of_its_recordings() {
        let fixture = |name: &str| {
            read(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).expect(name)
        };
        let one = fixture("mysql-8.0.31.rec");
        let latches = one.latches().into_iter().filter(|row| row.kind != Kind::Cond);
        let wait_ns = latches.map(|row| row.waits.sum_ns as i64).sum::<i64>();
        let cpu_ns = one.entries::<CpuTime>().iter().map(|row| row.ns as i64).sum::<i64>();
        assert!(wait_ns > 0 && cpu_ns > 0);
        let key = |name: &str| (name.to_owned(), "MySQL 8.0.31".to_owned());
        let single = sums(&pprof(std::slice::from_ref(&one)).expect("a profile"));
        assert_eq!((single[&key("wait")], single[&key("cpu")]), (wait_ns, cpu_ns));
        let both = sums(&pprof(&[one.clone(), one]).expect("a profile"));
        assert_eq!(both[&key("wait")], 2 * wait_ns);
    }
}
