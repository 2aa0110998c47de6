//! The server process: which program it runs, where that is loaded, what it uses, and when it ends.

mod client;
mod error;
mod executions;
mod instances;
mod listening;
mod maps;
mod memory;
mod numa;
mod option_file;
mod place;
mod process;
mod programs;
mod running;
mod settings;
mod threads;

pub use client::{Access, Account, Accounts, Client};
pub use error::{ClientError, OpenError, Unsupported};
pub use executions::{Execution, Executions, ExecutionsIn, NotShown};
pub use listening::{listens, sockets, tcp_listeners};
#[cfg(any(test, fuzzing))]
pub(crate) use maps::examine_maps;
pub use maps::{file_mappings, load_bias, FileMapping};
#[cfg(any(test, fuzzing))]
pub(crate) use memory::hostile;
pub use memory::Memory;
#[cfg(any(test, fuzzing))]
pub(crate) use numa::parse as numa_memory;
pub use numa::{nodes_allowed, NumaMemory};
pub use option_file::OptionFileError;
pub use place::Place;
pub use process::{
    cpu_time_ns, cpus_allowed, has_seccomp_filter, has_shadow_stack, is_another_armtrace, sleeps_at, started_at,
    threads,
};
pub use programs::Programs;
pub use running::{processes_like_servers, running_server, running_servers, RunningServer};
pub use settings::{SettingsAt, SETTINGS};
pub use threads::{Balancing, NumaThreads};

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use serde::de::DeserializeOwned;
use serde::Serialize;

use self::instances::Instances;
use crate::catalog::{self, Family, Flavor};
use crate::discovery;
use crate::host::Machine;
use crate::kept::Cache;
use crate::model::{HostInfo, TargetInfo};
use crate::symbols::{self, plain_name, Image, ImageError, Settings, Trial};

/// A running server that the catalog knows.
pub struct Target {
    /// The process ID.
    pub pid: i32,
    /// The program, with its symbols.
    pub image: Arc<Image>,
    /// The difference between addresses in the process and link-time addresses.
    pub bias: u64,
    /// What the catalog knows about such servers.
    pub family: &'static Family,
    /// The maintainer, which distinguishes Percona Server from MySQL.
    pub flavor: Flavor,
    /// The version that the server itself reports: `9.7.4`, `11.4.5-MariaDB`.
    pub version: String,
    /// The attempts to find symbols that the program itself does not have.
    pub symbol_trials: Arc<Vec<Trial>>,
    /// Whether the program's file was deleted or replaced on disk after the process started, as by a package upgrade.
    pub is_deleted: bool,
    /// Where what is found in the program is kept for the next start, if anywhere.
    pub cache: Option<Cache>,
    /// Becomes readable when the process ends.
    pidfd: OwnedFd,
    instances: Instances,
}

impl Target {
    /// Opens process `pid` and identifies the server that it runs, with symbols from wherever the environment allows.
    ///
    /// # Errors
    /// Fails like [`Target::open_with`], but never with [`OpenError::Symbols`].
    pub fn open(pid: i32) -> Result<Target, OpenError> {
        Target::open_with(pid, &Settings::from_env(None))
    }

    /// Opens process `pid` and identifies the server that it runs.
    ///
    /// # Errors
    /// Fails when there is no such process or it is not a supported server, when this user may not inspect it, or when
    /// the symbol file that the user named is not this server's.
    pub fn open_with(pid: i32, settings: &Settings) -> Result<Target, OpenError> {
        Target::open_sharing(pid, settings, &mut Programs::default())
    }

    /// Like [`Target::open_with`]. The program is read only if it is not one of `programs`, to which it is added.
    ///
    /// # Errors
    /// Fails like [`Target::open_with`].
    pub fn open_sharing(pid: i32, settings: &Settings, programs: &mut Programs) -> Result<Target, OpenError> {
        let pidfd = open_pidfd(pid)?;
        let (image, symbol_trials) = programs.of(pid, settings)?;
        let bias = load_bias(pid, &image).map_err(|why| match why.kind() {
            io::ErrorKind::PermissionDenied => OpenError::NotPermitted(pid),
            _ => OpenError::NotLoaded { pid, why },
        })?;
        let version = version(&image, &Memory::new(pid), bias);
        let family = match discovery::family(&image) {
            Ok(family) => family,
            Err(what) => {
                let (name, symbols) = (name_of(pid), image.symbols_in_words());
                let unsupported = Unsupported { pid, name, what, version, symbols, trials: symbol_trials };
                return Err(OpenError::Unsupported(Box::new(unsupported)));
            }
        };
        let flavor = discovery::flavor(&image, family);
        let version = version.ok_or(OpenError::NotPermitted(pid))?;
        let is_deleted = symbols::is_deleted(pid);
        Ok(Target {
            pid,
            image,
            bias,
            family,
            flavor,
            version,
            symbol_trials,
            is_deleted,
            cache: None,
            pidfd,
            instances: Instances::default(),
        })
    }

    /// Returns what an analysis of the program finds, now or at an earlier start: see [`Cache::get`].
    pub fn find<T: Serialize + DeserializeOwned>(
        &self,
        what: (&str, impl Serialize),
        fits: impl FnOnce(&T) -> bool,
        find: impl FnOnce() -> T,
    ) -> T {
        match &self.cache {
            Some(cache) => cache.get(&self.image, what, fits, find),
            None => find(),
        }
    }

    /// Returns a server with this program and [`hostile`] memory.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn hostile(image: Image, family: &'static Family) -> Target {
        Target {
            pid: hostile::PID,
            image: Arc::new(image),
            bias: 0,
            family,
            flavor: Flavor::Mysql,
            version: String::new(),
            symbol_trials: Arc::default(),
            is_deleted: false,
            cache: None,
            pidfd: std::fs::File::open("/dev/null").expect("a descriptor").into(),
            instances: Instances::default(),
        }
    }

    /// Returns a path that opens the program's file in any mount namespace, and even if it has been deleted, as by a
    /// package upgrade.
    pub fn exe(&self) -> PathBuf {
        exe_path(self.pid)
    }

    /// Returns what the user should know about the program and its symbols, one line each.
    pub fn remarks(&self) -> Vec<String> {
        let replaced = self.is_deleted.then(|| {
            format!(
                "the program of process {} was deleted or replaced on disk after the process started (a package upgrade?); \
                 armtrace reads it through /proc/{0}/exe and probes it as it runs",
                self.pid
            )
        });
        let damage = self.image.damage().map(|why| format!("the program of process {}: {why}", self.pid));
        let failed = self.symbol_trials.iter().filter(|t| t.is_failure()).map(|t| format!("no symbols from {t}"));
        replaced.into_iter().chain(damage).chain(failed).collect()
    }

    /// Returns how to get the symbols that the program lacks, if it lacks any.
    pub fn symbols_advice(&self) -> Option<String> {
        discovery::misses_symbols(&self.image).then(|| symbols_advice(&self.version))
    }

    /// Returns a descriptor that becomes readable when the process ends.
    ///
    /// # Errors
    /// Fails if this process has too many open descriptors.
    pub fn pidfd(&self) -> io::Result<OwnedFd> {
        self.pidfd.try_clone()
    }

    /// Returns whether the process has ended.
    pub fn ended(&self) -> bool {
        let mut pidfd = [PollFd::new(&self.pidfd, PollFlags::IN)];
        poll(&mut pidfd, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Returns the name of the function that contains this address of the process, without its arguments; `sub_ADDRESS`
    /// if the binary has no name for it.
    pub fn function_name(&self, addr: u64) -> String {
        let addr = addr.wrapping_sub(self.bias);
        match self.image.symbol_at(addr).filter(|s| s.is_function) {
            Some(symbol) => plain_name(symbol.name),
            None => format!("sub_{:x}", self.image.function_at(addr).map_or(addr, |f| f.start)),
        }
    }

    /// Returns the static object that contains this address of the process: its name, and the offset in it.
    pub fn static_object(&self, addr: u64) -> Option<(String, u64)> {
        let addr = addr.wrapping_sub(self.bias);
        let symbol = self.image.symbol_at(addr).filter(|s| !s.is_function)?;
        Some((plain_name(symbol.name), addr - symbol.addr))
    }

    /// Formats the static object that contains this address of the process: its name and the offset in it.
    pub fn data_name(&self, addr: u64) -> String {
        let addr = addr.wrapping_sub(self.bias);
        match self.image.symbol_at(addr) {
            Some(symbol) => format!("{}+{:#x}", plain_name(symbol.name), addr - symbol.addr),
            None => format!("data_{addr:x}"),
        }
    }

    /// Returns what identifies the server in snapshots.
    pub fn info(&self) -> TargetInfo {
        TargetInfo {
            pid: self.pid,
            flavor: self.flavor.as_str().to_owned(),
            version: self.version.clone(),
            arch: self.image.arch().as_str().to_owned(),
            cpu_model: Machine::this().cpu_model().unwrap_or_default(),
            build_id: self.image.build_id(),
            symbol_source: self.image.symbol_source().as_str().to_owned(),
            host: host_of(self.pid),
        }
    }
}

/// Returns what is known of this machine, where process `pid` runs.
fn host_of(pid: i32) -> HostInfo {
    let machine = Machine::this();
    let count = |list: Vec<i32>| u32::try_from(list.len()).unwrap_or(u32::MAX);
    HostInfo {
        kernel: machine.kernel_release().unwrap_or_default(),
        server_cpus: cpus_allowed(pid).map(count),
        ghz: machine.ghz(),
        numa_nodes: machine.numa_node_numbers().map(count),
        page_bytes: Some(rustix::param::page_size() as u64),
    }
}

/// Returns what the server calls its version. The variable of that name is part of its plugin interface.
fn version(image: &Image, memory: &Memory, bias: u64) -> Option<String> {
    memory.string(image.symbol("server_version")?.addr + bias)
}

fn exe_path(pid: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/exe"))
}

fn open_pidfd(pid: i32) -> Result<OwnedFd, OpenError> {
    if !Path::new(&format!("/proc/{pid}")).exists() {
        return Err(OpenError::NoProcess(pid));
    }
    let id = Pid::from_raw(pid).ok_or(Errno::INVAL);
    id.and_then(|id| pidfd_open(id, PidfdFlags::empty())).map_err(|error| match (error, process::of_thread(pid)) {
        (_, Some(process)) if process != pid => OpenError::Thread { thread: pid, process },
        (Errno::NOSYS, _) => OpenError::NoPidfd,
        _ => OpenError::Unwatchable { pid, why: error.into() },
    })
}

fn unusable(pid: i32, error: ImageError) -> OpenError {
    match error {
        ImageError::Open { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            OpenError::NotPermitted(pid)
        }
        ImageError::Open { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            OpenError::NoProgram { pid, name: name_of(pid) }
        }
        why => OpenError::Program { pid, why },
    }
}

fn name_of(pid: i32) -> String {
    process::name(pid).unwrap_or_else(|| "?".to_owned())
}

fn symbols_advice(version: &str) -> String {
    let package = catalog::debug_package(version);
    let package = package.map_or_else(
        || "the server's debug package (…-dbgsym, …-debuginfo)".to_owned(),
        |name| format!("{name} from the distribution's archive of debug symbols"),
    );
    format!("Install {package}, set DEBUGINFOD_URLS, or name a symbol file: --symbols FILE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_cpus_pages_and_a_kernel() {
        let host = host_of(std::process::id() as i32);
        assert!(host.server_cpus.is_some_and(|n| n > 0) && !host.kernel.is_empty(), "{host:?}");
        assert!(host.page_bytes.is_some_and(|bytes| bytes >= 4096 && bytes.is_power_of_two()), "{host:?}");
    }
}
