//! Classes of CPU time.

use strum::{EnumIter, EnumString, IntoStaticStr};

/// The purpose of a function, for the known costs of database servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr, EnumString, EnumIter)]
#[strum(serialize_all = "lowercase")]
pub enum CpuClass {
    /// Spin loops of latches, and the latches' own code where the loop is inlined.
    Spin,
    /// The rest of the latches' code: acquiring, releasing, going to sleep.
    Latch,
    /// Computing checksums.
    Checksum,
    /// Conversion between character sets.
    Charset,
    /// Atomic instructions in code of no other class.
    Atomic,
    /// Barriers, and ordered loads and stores, in code of no other class.
    Barrier,
    /// Finding out which CPU the thread runs on.
    Getcpu,
    /// Copying, filling and comparing memory.
    Memcpy,
    /// Kernel code in a futex system call.
    Futex,
    /// All other kernel code.
    Kernel,
    /// All other user code.
    Other,
}

impl CpuClass {
    /// Returns the class with this name, or `None` if there is none.
    pub fn from_name(name: &str) -> Option<CpuClass> {
        name.parse().ok()
    }

    /// Returns the value of the `class` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
