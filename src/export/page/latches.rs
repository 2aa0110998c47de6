//! The latches that threads wait for, and each one's histogram and call sites.

use std::collections::BTreeMap;

use maud::{html, Markup};

use super::{bar, breakable, period};
use crate::measure::latch::{CallsiteWaits, LatchWaits};
use crate::measure::Snapshot;
use crate::model::{Histogram, Mode, BUCKET_BOUNDS_NS};
use crate::present::format::{self, NOTHING};
use crate::present::names::short_names;
use crate::ui::top::{Interval, TopLatch};

/// The most latches that the page lists, and the most call sites of each.
const LATCHES: usize = 15;
const CALLSITES: usize = 8;

type Names<'a> = BTreeMap<&'a str, String>;

/// Returns the table of the top latches, and what can be opened of each.
pub fn section(now: &Snapshot, interval: &Interval, top: &[TopLatch]) -> Markup {
    let shown = &top[..top.len().min(LATCHES)];
    let names = short_names(top.iter().map(|latch| latch.latch.as_str()), usize::MAX);
    html! {
        section aria-labelledby="latches" {
            h2 id="latches" { "Latches " span.soft { (period(interval)) } }
            @if shown.is_empty() {
                p { "No thread has waited for a latch so far." }
            } @else {
                @if shown.iter().all(|latch| latch.wait_ns_per_second == 0.0) {
                    p { "No thread waited for a latch " (period(interval)) "." }
                }
                div.latches {
                    div { (table(shown, &names)) (legend(now, shown)) }
                    div.details {
                        @for latch in shown { (detail(now, interval, latch, &names)) }
                        p id="gone" hidden { "No waits for this latch are among the longest now." }
                    }
                }
            }
        }
    }
}

fn legend(now: &Snapshot, shown: &[TopLatch]) -> Markup {
    html! {
        p.soft {
            "wait/s is the time waited per second by all threads: 2.50s means that 2.5 threads are waiting."
            @if shown.iter().any(|latch| latch.is_estimated) {
                " ~ marks partly estimated figures: probes were off to stay within the overhead budget. ± is half the \
                width of the estimated 95% interval."
            }
            @if !now.latch.counted() {
                " No probe is attached: the threads are looked at many times a second, and waits are not counted."
            }
            @if !now.latch.sleeps_seen { " Sleeping cannot be told from spinning here." }
        }
    }
}

fn table(shown: &[TopLatch], names: &Names) -> Markup {
    let all: f64 = shown.iter().map(|latch| latch.wait_ns_per_second).sum();
    html! {
        table {
            caption.hidden { "Latches by the time that threads wait for them" }
            thead {
                tr {
                    th scope="col" { "latch" }
                    th.wide scope="col" { "mode" }
                    th.wide scope="col" { span.hidden { "share of the wait time" } }
                    th scope="col" { "wait/s" }
                    th scope="col" { "waits/s" }
                    th.wide scope="col" { "mean" }
                    th scope="col" { "p99" }
                    th.wide scope="col" { "spin/sleep" }
                    th.text.wide scope="col" { "top call site" }
                }
            }
            tbody { @for latch in shown { (row(latch, names, all)) } }
        }
    }
}

fn row(latch: &TopLatch, names: &Names, all: f64) -> Markup {
    let id = id(latch);
    html! {
        tr id={ "row/" (id) } .idle[latch.wait_ns_per_second == 0.0] {
            th scope="row" {
                a.latch href={ "#" (id) } { (breakable(&names[latch.latch.as_str()])) }
                @if latch.mode != Mode::None { span.narrow { " " (format::mode(latch.mode)) } }
            }
            td.wide { (format::mode(latch.mode)) }
            td.wide { (bar(latch.wait_ns_per_second / all.max(1.0))) }
            td { (format::estimate(format::nanoseconds(latch.wait_ns_per_second), latch.is_estimated, latch.error)) }
            td { (format::rate(latch.waits_per_second)) }
            td.wide { (time(latch.mean_ns)) }
            td { (time(latch.p99_ns)) }
            td.wide { (latch.sleep_share.map_or(NOTHING.to_owned(), format::spin_and_sleep)) }
            td.text.wide {
                @match &latch.callsite {
                    Some(site) => { code { (breakable(&site.callsite)) } " " (whole_percent(site.share)) },
                    None => { (NOTHING) },
                }
            }
        }
    }
}

/// Returns the fragment of the page's address that selects a latch in a mode, such as `latch/mutex/innodb/trx_mutex` or
/// `latch/sxlock/innodb/index_tree_rw_lock:x`.
fn id(latch: &TopLatch) -> String {
    let name = latch.latch.strip_prefix("wait/synch/").unwrap_or(&latch.latch);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/_-.:".contains(&byte);
    let plain = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("~{byte:02x}") };
    let name: String = name.bytes().map(plain).collect();
    let mode = if latch.mode == Mode::None { String::new() } else { format!(":{}", latch.mode.as_str()) };
    format!("latch/{name}{mode}")
}

/// Returns what is shown of a latch that is selected.
fn detail(now: &Snapshot, interval: &Interval, latch: &TopLatch, names: &Names) -> Markup {
    let counted = interval.waits_for(latch).filter(|row| row.waits.sum_ns > 0);
    let of = if counted.is_some() { period(interval) } else { "since attach".to_owned() };
    let row = counted.or_else(|| Interval::new(now, None).waits_for(latch));
    let mode = if latch.mode == Mode::None { "" } else { format::mode(latch.mode) };
    html! {
        section.detail id=(id(latch)) aria-label={ (names[latch.latch.as_str()]) " " (mode) } {
            h3 { code { (breakable(&names[latch.latch.as_str()])) } " " (mode) }
            @if let Some(row) = &row {
                (waits(now, row))
                @if now.latch.counted() { (histogram(&row.waits, &of)) }
            }
            p { "since attach: " (format::nanoseconds(latch.total_ns as f64)) " waited" }
            (callsites(now, latch))
        }
    }
}

fn waits(now: &Snapshot, row: &LatchWaits) -> Markup {
    let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|q| time(row.waits.quantile_ns(q)));
    let [awake, asleep] = [row.spin_ns(), row.sleep_ns.min(row.waits.sum_ns)].map(|ns| format::nanoseconds(ns as f64));
    html! {
        p { "p50 " (p50) " · p90 " (p90) " · p99 " (p99) " · max " (format::nanoseconds(row.waits.max_ns as f64)) }
        @if now.latch.sleeps_seen {
            p { "awake " (awake) " · asleep " (asleep) " in " (format::count(row.sleeps as f64)) " sleeps" }
        }
    }
}

/// Returns bars for the buckets from the first to the last with waits.
fn histogram(waits: &Histogram, of: &str) -> Markup {
    let has_waits = |n: &u64| *n > 0;
    let first = waits.buckets.iter().position(has_waits).unwrap_or(0);
    let last = waits.buckets.iter().rposition(has_waits).unwrap_or(0);
    let highest = waits.buckets.iter().copied().max().unwrap_or(0).max(1) as f64;
    html! {
        table.histogram {
            caption { (format::count(waits.count as f64)) " waits by duration, " (of) }
            thead.hidden { tr { th scope="col" { "duration" } th scope="col" { "waits" } td {} } }
            tbody {
                @for bucket in first..=last {
                    tr {
                        th scope="row" { (bound(bucket)) }
                        td { (format::count(waits.buckets[bucket] as f64)) }
                        td { (bar(waits.buckets[bucket] as f64 / highest)) }
                    }
                }
            }
        }
    }
}

/// Formats the upper bound of a bucket.
fn bound(bucket: usize) -> String {
    let bound = BUCKET_BOUNDS_NS.get(bucket);
    bound.map_or("longer".to_owned(), |&ns| format!("≤ {}", format::nanoseconds(ns as f64)))
}

fn callsites(now: &Snapshot, latch: &TopLatch) -> Markup {
    let is_of = |site: &&CallsiteWaits| site.is_of(&latch.latch, latch.mode) && site.wait_ns > 0;
    let mut sites: Vec<&CallsiteWaits> = now.latch.callsites.iter().filter(is_of).collect();
    sites.sort_by(|a, b| b.wait_ns.cmp(&a.wait_ns).then_with(|| a.callsite.cmp(&b.callsite)));
    let all: f64 = sites.iter().map(|site| site.wait_ns as f64).sum();
    html! {
        @if sites.is_empty() {
            p.soft { "No call site of these waits is known." }
        } @else {
            table {
                caption { "call sites, since attach" }
                thead.hidden {
                    tr { th scope="col" { "call site" } th scope="col" { "share" } th scope="col" { "wait" } }
                }
                tbody {
                    @for site in sites.iter().take(CALLSITES) {
                        tr {
                            th scope="row" { code { (breakable(&site.callsite)) } }
                            td { (whole_percent(site.wait_ns as f64 / all)) }
                            td { (format::nanoseconds(site.wait_ns as f64)) }
                        }
                    }
                }
            }
        }
    }
}

fn time(ns: Option<f64>) -> String {
    ns.map_or(NOTHING.to_owned(), format::nanoseconds)
}

fn whole_percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}
