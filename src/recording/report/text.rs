//! Writes a report for a terminal.

use std::fmt::{self, Display, Formatter};

use super::Report;
use crate::advice::Advised;
use crate::present::format;
use crate::recording::{Host, Server};

/// A report as text.
pub struct Text<'a>(pub &'a Report);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let report = self.0;
        writeln!(f, "{}", heading(&report.server, &report.host))?;
        writeln!(f, "{}", circumstances(report))?;
        if !report.server.settings.is_empty() {
            writeln!(f, "{}", settings(&report.server))?;
        }
        writeln!(f)?;
        report
            .findings
            .iter()
            .try_for_each(|finding| writeln!(f, "{} {}", if finding.is_problem { "!" } else { "·" }, finding.text))?;
        what_to_do(&report.what_to_do, f)?;
        report.sections().iter().try_for_each(|section| section.text(report, f))?;
        let facts = report.sections().into_iter().flat_map(|section| section.facts(report));
        facts.into_iter().try_for_each(|(name, value)| writeln!(f, "{name}: {value}"))?;
        if !report.lost.is_empty() {
            let lost: Vec<String> = report.lost.iter().map(|(cause, n)| format!("{cause} {n}")).collect();
            writeln!(f, "\nevents not counted: {}", lost.join(", "))?;
        }
        Ok(())
    }
}

fn what_to_do(advised: &[Advised], f: &mut Formatter) -> fmt::Result {
    if advised.is_empty() {
        return Ok(());
    }
    writeln!(f, "\nwhat to do, one thing at a time")?;
    advised.iter().try_for_each(|advised| writeln!(f, "{advised}"))
}

/// Returns the server and its host in one line: `MySQL 9.7.4 · x86_64 Intel(R) Xeon(R) · db1`.
pub(crate) fn heading(server: &Server, host: &Host) -> String {
    let name = format!("{} {}", format::flavor(&server.flavor), server.version);
    [name, format!("{} {}", server.arch, host.cpu_model), host.name.clone()].join(" · ")
}

/// Returns what else the figures depend on: `2 CPUs · 2.50 GHz · 15 GiB · Linux 6.18 · Debian 12 · 60s recorded`.
pub(super) fn circumstances(report: &Report) -> String {
    let host = &report.host;
    let mut parts = vec![format!("{} CPUs", host.cpus)];
    parts.extend(host.server_cpus.filter(|n| *n != host.cpus).map(|n| format!("{n} of them for the server")));
    parts.extend(host.ghz.map(|ghz| format!("{ghz:.2} GHz")));
    parts.extend(host.numa_nodes.filter(|n| *n > 1).map(|n| format!("{n} NUMA nodes")));
    parts.extend(host.memory_bytes.map(|bytes| format!("{} GiB", bytes >> 30)));
    parts.push(format!("Linux {}", host.kernel));
    parts.extend(host.os.clone());
    parts.push(format!("{} recorded", format::span(std::time::Duration::from_secs_f64(report.duration.round()))));
    parts.extend(report.overhead().map(|share| format!("overhead {}", format::percent(share))));
    parts.extend(report.labels.iter().map(|(key, value)| format!("{key}={value}")));
    parts.join(" · ")
}

fn settings(server: &Server) -> String {
    let settings: Vec<String> = server.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("settings: {}", settings.join(" "))
}
