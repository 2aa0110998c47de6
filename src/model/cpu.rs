//! Classes of CPU time.

/// The purpose of a function, for the known costs of database servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CpuClass {
    /// Spin loops of latches, and the latches' own code where the loop is inlined.
    Spin,
    /// The rest of the latches' code: acquiring, releasing, going to sleep.
    Latch,
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
    Other,
}

impl CpuClass {
    pub const ALL: [CpuClass; 11] = [
        CpuClass::Spin,
        CpuClass::Latch,
        CpuClass::Checksum,
        CpuClass::Charset,
        CpuClass::Atomic,
        CpuClass::Barrier,
        CpuClass::Getcpu,
        CpuClass::Memcpy,
        CpuClass::Futex,
        CpuClass::Kernel,
        CpuClass::Other,
    ];

    /// Returns the class with this name, or `None` if there is none.
    pub fn from_name(name: &str) -> Option<CpuClass> {
        CpuClass::ALL.into_iter().find(|class| class.as_str() == name)
    }

    /// Returns the value of the `class` label.
    pub fn as_str(self) -> &'static str {
        match self {
            CpuClass::Spin => "spin",
            CpuClass::Latch => "latch",
            CpuClass::Checksum => "checksum",
            CpuClass::Charset => "charset",
            CpuClass::Atomic => "atomic",
            CpuClass::Barrier => "barrier",
            CpuClass::Getcpu => "getcpu",
            CpuClass::Memcpy => "memcpy",
            CpuClass::Futex => "futex",
            CpuClass::Kernel => "kernel",
            CpuClass::Other => "other",
        }
    }
}
