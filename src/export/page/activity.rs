//! The pages that threads wait for, and the server's CPU time.

use maud::{html, Markup};

use super::{bar, breakable};
use crate::measure::Snapshot;
use crate::model::CpuClass;
use crate::present::format::{self, NOTHING};
use crate::ui::top::Interval;

/// The most places of pages that are listed.
const PLACES: usize = 10;
/// The least share of the CPU time that is listed.
const LEAST_SHARE: f64 = 0.001;

/// Returns the tables and indexes whose pages threads wait for.
pub fn pages(now: &Snapshot, interval: &Interval) -> Markup {
    let top = interval.top_pages();
    let all: f64 = top.iter().map(|place| place.wait_ns_per_second).sum();
    html! {
        section aria-labelledby="pages" {
            h2 id="pages" { "Pages" }
            @if top.is_empty() {
                p { (no_pages(now)) }
            } @else {
                table {
                    caption.hidden { "Tables and indexes by the time that threads wait for their pages" }
                    thead {
                        tr {
                            th scope="col" { "table.index" }
                            th scope="col" { "level" }
                            th scope="col" { span.hidden { "share of the wait time" } }
                            th scope="col" { "wait/s" }
                        }
                    }
                    tbody {
                        @for place in top.iter().take(PLACES) {
                            tr {
                                th scope="row" { code { (breakable(&place.page.place())) } }
                                td { (place.page.level.map_or(NOTHING.to_owned(), |level| level.to_string())) }
                                td { (bar(place.wait_ns_per_second / all)) }
                                td { (format::nanoseconds(place.wait_ns_per_second)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn no_pages(now: &Snapshot) -> &'static str {
    match (&now.replayed, now.latch.pages.is_empty()) {
        (_, false) => "No thread waited for a page in this time.",
        (Some(_), true) => "This recording has no waits for pages.",
        (None, true) => "No wait for a page was seen so far.",
    }
}

/// Returns the server's CPU time by purpose.
pub fn cpu(now: &Snapshot, interval: &Interval) -> Markup {
    let classes = interval.cpu_classes();
    html! {
        section aria-labelledby="cpu" {
            h2 id="cpu" { "CPU time" }
            @if classes.is_empty() {
                p { (no_cpu_time(now)) }
            } @else {
                table {
                    caption.hidden { "The server's CPU time by purpose" }
                    thead {
                        tr {
                            th scope="col" { "purpose" }
                            th scope="col" { span.hidden { "share" } }
                            th scope="col" { "share" }
                        }
                    }
                    tbody {
                        @for (class, share) in classes.iter().filter(|(_, share)| *share >= LEAST_SHARE) {
                            tr {
                                th scope="row" { (meaning(*class)) }
                                td { (bar(*share)) }
                                td { (format::percent(*share)) }
                            }
                        }
                    }
                }
            }
            @for checksum in &now.checksum.chosen {
                p.soft { (checksum.purpose) ": " (checksum) }
            }
            @if let Some(spin) = &now.spin {
                p.soft { "spinning: " (spin) }
            }
        }
    }
}

fn no_cpu_time(now: &Snapshot) -> &'static str {
    match (&now.replayed, now.cpu.time.is_empty()) {
        (_, false) => "The server used no CPU time that was sampled in this time.",
        (Some(_), true) => "This recording has no CPU time by purpose.",
        (None, true) => "No CPU time was sampled so far. --sample-hz 0 turns sampling off.",
    }
}

/// Returns what the server does in this class of its CPU time.
fn meaning(class: CpuClass) -> &'static str {
    match class {
        CpuClass::Spin => "spin loops",
        CpuClass::Latch => "the rest of the latch code",
        CpuClass::Checksum => "checksums of pages and logs",
        CpuClass::Charset => "conversion of character sets",
        CpuClass::Atomic => "atomic instructions",
        CpuClass::Barrier => "memory barriers",
        CpuClass::Getcpu => "finding out the CPU",
        CpuClass::Memcpy => "copying and comparing memory",
        CpuClass::Futex => "kernel: sleeping and waking",
        CpuClass::Kernel => "kernel: everything else",
        CpuClass::Other => "everything else",
    }
}
