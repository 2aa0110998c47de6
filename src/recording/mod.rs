//! Recordings: what one server waited for, second by second, in a file that needs nothing else.

pub mod compare;
mod frame;
mod host;
mod reader;
mod report;
mod schema;
mod writer;

pub use frame::{FormatError, VERSION};
pub use reader::{read, Handed, Recording};
pub use report::{Bucket, Finding, Folded, Html, Report, Text};
pub use schema::{
    CallsiteKey, ChecksumKey, Code, CpuKey, End, Ending, HandoffDelta, HandoffKey, Host, LatchDelta, LatchKey, NewRows,
    OrderingKey, PageKey, Probe, Second, Server, Start, WaitDelta,
};
pub use writer::Recorder;
