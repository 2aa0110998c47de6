//! The CPUs of a machine: their numbers, their model, their frequency and their cache lines.

use std::fmt;

use super::{field, Machine};

/// The CPU model, as the CPU identifies itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuId {
    /// An arm64 CPU, by fields of `MIDR_EL1`.
    Arm {
        /// The designer, such as 0x41 for Arm.
        implementer: u8,
        /// The design, in the designer's own numbering.
        part: u16,
    },
    /// An x86_64 CPU whose vendor is `GenuineIntel`.
    Intel {
        /// The family, as /proc/cpuinfo shows it.
        family: u8,
        /// The model within the family.
        model: u8,
    },
    /// An x86_64 CPU whose vendor is `AuthenticAMD`.
    Amd {
        /// The family, as /proc/cpuinfo shows it.
        family: u8,
        /// The model within the family.
        model: u8,
    },
}

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CpuId::Arm { implementer, part } => write!(f, "implementer {implementer:#x}, part {part:#x}"),
            CpuId::Intel { family, model } => write!(f, "Intel, family {family}, model {model}"),
            CpuId::Amd { family, model } => write!(f, "AMD, family {family}, model {model}"),
        }
    }
}

impl Machine {
    /// Returns the numbers of the online CPUs; empty if the kernel does not say.
    pub fn online_cpus(&self) -> Vec<i32> {
        self.cpu_list("sys/devices/system/cpu/online")
    }

    /// Returns the CPUs that share a core with this one, including it.
    pub fn siblings(&self, cpu: i32) -> Vec<i32> {
        self.cpu_list(&format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
    }

    /// Returns the model of the first CPU; `None` if it is not described.
    pub fn cpu_id(&self) -> Option<CpuId> {
        let midr = self.line("sys/devices/system/cpu/cpu0/regs/identification/midr_el1");
        midr.as_deref().and_then(from_midr).or_else(|| from_cpuinfo(&self.text("proc/cpuinfo")?))
    }

    /// Returns the CPU's own name. On arm64, /proc/cpuinfo has none; there it is the implementer and part number, as in
    /// `MIDR_EL1`.
    pub fn cpu_model(&self) -> Option<String> {
        let cpuinfo = self.text("proc/cpuinfo")?;
        let field = |name| field(&cpuinfo, name);
        field("model name")
            .map(str::to_owned)
            .or_else(|| Some(format!("{}/{}", field("CPU implementer")?, field("CPU part")?)))
    }

    /// Returns the highest frequency of the first CPU, in gigahertz. Without the kernel's frequency control, as in most
    /// virtual machines, it is the frequency in /proc/cpuinfo, which is the nominal one there; on arm64, /proc/cpuinfo
    /// has none.
    pub fn ghz(&self) -> Option<f64> {
        let number = |text: &str| text.parse::<f64>().ok();
        let khz = self.line("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
        let of_control = khz.as_deref().and_then(number).map(|khz| khz / 1e6);
        let nominal = || Some(number(field(&self.text("proc/cpuinfo")?, "cpu MHz")?)? / 1000.0);
        of_control.or_else(nominal).filter(|ghz| *ghz > 0.0)
    }

    /// Returns the cache line size in bytes, the largest of any of the first CPU's caches.
    pub fn cache_line_bytes(&self) -> u64 {
        /// The size where the kernel does not say, and the possible sizes.
        const USUAL: u64 = 64;
        const POSSIBLE: std::ops::RangeInclusive<u64> = 8..=256;
        const CACHES: &str = "sys/devices/system/cpu/cpu0/cache";
        let line = |cache: String| {
            let bytes: u64 = self.line(&format!("{CACHES}/{cache}/coherency_line_size"))?.parse().ok()?;
            (bytes.is_power_of_two() && POSSIBLE.contains(&bytes)).then_some(bytes)
        };
        self.entries(CACHES).into_iter().filter_map(line).max().unwrap_or(USUAL)
    }

    /// Returns the CPUs or nodes that a file lists; empty if there is no such list.
    pub(super) fn cpu_list(&self, path: &str) -> Vec<i32> {
        self.line(path).and_then(|list| cpu_list(&list)).unwrap_or_default()
    }
}

/// Parses the kernel's list format for CPUs and nodes, for example `0-3,5`. Returns `None` for any other text, and for
/// an empty one.
pub fn cpu_list(text: &str) -> Option<Vec<i32>> {
    /// An upper bound on numbers, above any kernel's limit (`NR_CPUS` is at most 8192).
    const MOST: i32 = 1 << 16;
    let mut numbers = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (i32, i32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > MOST {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Parses a hexadecimal number, with or without `0x`.
pub fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// Parses `0x00000000410fd0c1`: the implementer is in bits 24 to 31, the part number in bits 4 to 15.
fn from_midr(text: &str) -> Option<CpuId> {
    let midr = hexadecimal(text)?;
    Some(CpuId::Arm { implementer: (midr >> 24) as u8, part: (midr >> 4) as u16 & 0xfff })
}

fn from_cpuinfo(text: &str) -> Option<CpuId> {
    let field = |name: &str| field(text, name);
    let small = |name: &str| field(name)?.parse().ok();
    match field("vendor_id") {
        Some("GenuineIntel") => Some(CpuId::Intel { family: small("cpu family")?, model: small("model")? }),
        Some("AuthenticAMD") => Some(CpuId::Amd { family: small("cpu family")?, model: small("model")? }),
        _ => Some(CpuId::Arm {
            implementer: u8::try_from(hexadecimal(field("CPU implementer")?)?).ok()?,
            part: u16::try_from(hexadecimal(field("CPU part")?)?).ok()?,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::machine;
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(cpu_list("0"), Some(vec![0]));
        assert_eq!(cpu_list("7\n"), Some(vec![7]));
        assert_eq!(cpu_list("0-2,5,7-8"), Some(vec![0, 1, 2, 5, 7, 8]));
        for bad in ["", "x", "-", "3-1", "0-2000000000", "0-4294967295", "1,,2"] {
            assert_eq!(cpu_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_machine_has_cpus() {
        assert!(!Machine::this().online_cpus().is_empty());
    }

    #[test]
    fn the_kernel_lists_online_cpus_and_siblings() {
        let (_dir, machine) = machine(&[
            ("sys/devices/system/cpu/online", "0-2,6"),
            ("sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "2,6"),
        ]);
        assert_eq!(machine.online_cpus(), [0, 1, 2, 6]);
        assert_eq!((machine.siblings(2), machine.siblings(0)), (vec![2, 6], vec![]));
    }

    #[test]
    fn identities_are_read() {
        assert_eq!(from_midr("0x00000000481fd010"), Some(CpuId::Arm { implementer: 0x48, part: 0xd01 }));
        for bad in [
            "",
            "vendor_id : GenuineIntel\n",
            "vendor_id : AuthenticAMD\ncpu family : 999\nmodel : 1\n",
            "CPU part : 0xd0c\n",
        ] {
            assert_eq!(from_cpuinfo(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_model_is_a_name_or_two_numbers() {
        let model = |cpuinfo| machine(&[("proc/cpuinfo", cpuinfo)]).1.cpu_model();
        assert_eq!(model("processor\t: 0\nmodel name\t: A CPU @ 2.00GHz").as_deref(), Some("A CPU @ 2.00GHz"));
        assert_eq!(model("CPU implementer\t: 0x41\nCPU part\t: 0xd0c").as_deref(), Some("0x41/0xd0c"));
        assert_eq!(model("processor\t: 0"), None);
    }

    #[test]
    fn the_highest_frequency_comes_first() {
        let ghz = |files: &[_]| machine(files).1.ghz();
        let nominal = ("proc/cpuinfo", "processor\t: 0\ncpu MHz\t\t: 2500.000");
        assert_eq!(ghz(&[nominal]), Some(2.5));
        assert_eq!(ghz(&[("proc/cpuinfo", "processor\t: 0\nBogoMIPS\t: 200.00")]), None);
        let highest = ("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3000000");
        assert_eq!(ghz(&[nominal, highest]), Some(3.0));
    }

    #[test]
    fn a_line_is_as_long_as_the_longest_of_the_caches() {
        assert_eq!(machine(&[]).1.cache_line_bytes(), 64);
        let (_dir, machine) = machine(&[
            ("sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size", "64"),
            ("sys/devices/system/cpu/cpu0/cache/index3/coherency_line_size", "128"),
            ("sys/devices/system/cpu/cpu0/cache/index2/coherency_line_size", "garbage"),
            ("sys/devices/system/cpu/cpu0/cache/index1/coherency_line_size", "4096"),
        ]);
        assert_eq!(machine.cache_line_bytes(), 128);
    }
}
