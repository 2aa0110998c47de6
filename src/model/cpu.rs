//! What CPU time goes into.

use strum::{EnumIter, EnumString, IntoStaticStr};

/// What a function is there for, where that is a known cost of database servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, IntoStaticStr, EnumString, EnumIter)]
#[strum(serialize_all = "lowercase")]
pub enum CpuClass {
    /// Spin loops of latches, and the locks' own code where the loop is inlined.
    Spin,
    /// The rest of the latches' code: taking, giving back, going to sleep.
    Latch,
    Checksum,
    /// Conversion between character sets.
    Charset,
    /// Atomic instructions in code that is there for nothing else here.
    Atomic,
    /// The same of barriers, and of loads and stores that order.
    Barrier,
    /// Asking which CPU the thread runs on.
    Getcpu,
    /// Copying, filling and comparing memory.
    Memcpy,
    /// In the kernel, in a futex system call.
    Futex,
    /// In the kernel, for anything else.
    Kernel,
    Other,
}

impl CpuClass {
    /// The class that has this name.
    pub fn from_name(name: &str) -> Option<CpuClass> {
        name.parse().ok()
    }

    /// The value of the `class` label.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
