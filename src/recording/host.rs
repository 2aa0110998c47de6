//! Identifies this machine.

use std::fs;
use std::path::Path;

use super::schema::Host;

impl Host {
    /// Returns this machine, which has this CPU and runs process `pid`.
    pub fn here(pid: i32, cpu_model: &str) -> Host {
        let line = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
        Host {
            name: line("/proc/sys/kernel/hostname").unwrap_or_default(),
            kernel: line("/proc/sys/kernel/osrelease").unwrap_or_default(),
            os: fs::read_to_string("/etc/os-release").ok().as_deref().and_then(pretty_name),
            cpu_model: cpu_model.to_owned(),
            cpus: line("/sys/devices/system/cpu/online").and_then(|list| list_length(&list)).unwrap_or(0),
            server_cpus: server_cpus(pid),
            ghz: ghz(),
            numa_nodes: line("/sys/devices/system/node/online").and_then(|list| list_length(&list)),
            memory_bytes: fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(memory_bytes),
        }
    }
}

fn pretty_name(os_release: &str) -> Option<String> {
    let name = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches('"').to_owned())
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let kib: u64 =
        meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns how many numbers a list of the kernel's has: 4 for `0-2,5`.
fn list_length(list: &str) -> Option<u32> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.trim().split(',').map(range).try_fold(0_u32, |sum, n| sum.checked_add(n?))
}

/// Returns the number of CPUs that process `pid` may use.
fn server_cpus(pid: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    list_length(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)
}

/// Returns the highest clock of the first CPU, in GHz. Without the kernel's frequency control, as in most virtual machines,
/// it is the one in x86's /proc/cpuinfo, which is the nominal clock there; arm64 has none.
fn ghz() -> Option<f64> {
    let khz = Path::new("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
    let from_control = fs::read_to_string(khz).ok().and_then(|khz| Some(khz.trim().parse::<f64>().ok()? / 1e6));
    from_control.or_else(|| cpuinfo_ghz(&fs::read_to_string("/proc/cpuinfo").ok()?)).filter(|ghz| *ghz > 0.0)
}

fn cpuinfo_ghz(cpuinfo: &str) -> Option<f64> {
    let (_, mhz) = cpuinfo.lines().find(|line| line.starts_with("cpu MHz"))?.split_once(':')?;
    Some(mhz.trim().parse::<f64>().ok()? / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_lists_are_counted() {
        assert_eq!(list_length("0-2,5\n"), Some(4));
        assert_eq!(list_length("7"), Some(1));
        for bad in ["", "x", "3-1", "0-4294967295", "1,,2"] {
            assert_eq!(list_length(bad), None, "{bad}");
        }
    }

    #[test]
    fn proc_files_are_read() {
        assert_eq!(pretty_name("ID=x\nPRETTY_NAME=\"openEuler 24.03\"\n").as_deref(), Some("openEuler 24.03"));
        assert_eq!(memory_bytes("MemTotal:       2 kB\nMemFree: 1 kB\n"), Some(2048));
        assert_eq!(cpuinfo_ghz("processor\t: 0\ncpu MHz\t\t: 2500.000\n"), Some(2.5));
        assert_eq!(cpuinfo_ghz("processor\t: 0\nBogoMIPS\t: 200.00\n"), None);
    }

    #[test]
    fn this_machine_has_cpus_and_a_kernel() {
        let host = Host::here(std::process::id() as i32, "a CPU");
        assert!(host.cpus > 0 && host.server_cpus.is_some_and(|n| n > 0), "{host:?}");
        assert!(!host.kernel.is_empty() && !host.name.is_empty(), "{host:?}");
    }
}
