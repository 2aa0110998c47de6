//! The machine that armtrace runs on, as the kernel describes it in /proc and /sys: CPUs, NUMA nodes, memory, clocks.
//!
//! Nothing here knows a server or uses the rest of the crate.

pub mod clock;
mod cpus;
mod numa;
mod topology;

pub use cpus::{cpu_list, hexadecimal, CpuId};
pub use numa::NumaNode;
pub use topology::{Domains, Topology};

use std::fs;
use std::path::{Path, PathBuf};

/// A machine, described by its /proc and /sys.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
}

impl Machine {
    /// Returns the machine that armtrace runs on.
    pub fn this() -> Machine {
        Machine::at(Path::new("/"))
    }

    /// Returns a machine whose /proc, /sys and /etc are in this directory.
    pub fn at(root: &Path) -> Machine {
        Machine { root: root.to_owned() }
    }

    /// Returns the host name.
    pub fn name(&self) -> Option<String> {
        self.line("proc/sys/kernel/hostname")
    }

    /// Returns the kernel's release, as `uname -r` shows it.
    pub fn kernel_release(&self) -> Option<String> {
        self.line("proc/sys/kernel/osrelease")
    }

    /// Returns the first two numbers of the kernel's version.
    pub fn kernel_version(&self) -> Option<(u32, u32)> {
        let release = self.kernel_release()?;
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    }

    /// Returns the name and version of the distribution.
    pub fn distribution(&self) -> Option<String> {
        let release = self.text("etc/os-release")?;
        let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
        Some(name.trim_matches('"').to_owned())
    }

    /// Returns the size of the machine's memory, in bytes.
    pub fn memory_bytes(&self) -> Option<u64> {
        let meminfo = self.text("proc/meminfo")?;
        let kib: u64 = field(&meminfo, "MemTotal")?.split_whitespace().next()?.parse().ok()?;
        kib.checked_mul(1024)
    }

    /// Returns the content of a file by its path below the root.
    pub fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    /// Returns the content of a file that holds one line, without the line's end.
    pub fn line(&self, path: &str) -> Option<String> {
        self.text(path).map(|text| text.trim().to_owned())
    }

    /// Returns the names of a directory's entries, sorted; empty if there is no such directory.
    pub fn entries(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(directory)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Returns whether there is such a file.
    pub fn has(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Returns the numbers of a directory's entries that are called `prefix` and a number, ascending.
    fn numbered(&self, directory: &str, prefix: &str) -> Vec<u32> {
        let names = self.entries(directory);
        let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok()).collect();
        numbers.sort_unstable();
        numbers
    }
}

/// Returns the first value of a field in lines of `name : value`, as /proc/cpuinfo and /proc/meminfo have them.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a machine from files and their contents.
    pub(super) fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("{text}\n")).unwrap();
        }
        let machine = Machine::at(dir.path());
        (dir, machine)
    }

    #[test]
    fn the_kernels_version_begins_its_release() {
        let version = |release| machine(&[("proc/sys/kernel/osrelease", release)]).1.kernel_version();
        let cases = ["6.18.44-fc-v669", "5.10.0-35-arm64", "6.11-rc1", "7.2"].map(version);
        assert_eq!(cases, [Some((6, 18)), Some((5, 10)), Some((6, 11)), Some((7, 2))]);
        assert_eq!(["", "linux", "6"].map(version), [None; 3]);
    }

    #[test]
    fn proc_files_are_read() {
        let (_dir, machine) = machine(&[
            ("etc/os-release", "ID=x\nPRETTY_NAME=\"openEuler 24.03\""),
            ("proc/meminfo", "MemTotal:       2 kB\nMemFree: 1 kB"),
        ]);
        assert_eq!(machine.distribution().as_deref(), Some("openEuler 24.03"));
        assert_eq!(machine.memory_bytes(), Some(2048));
        assert_eq!(machine.kernel_release(), None);
    }

    #[test]
    fn this_machine_has_a_name_and_a_kernel() {
        let machine = Machine::this();
        assert!(machine.name().is_some_and(|name| !name.is_empty()));
        assert!(machine.kernel_release().is_some_and(|release| !release.is_empty()));
    }
}
