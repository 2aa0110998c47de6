//! Reports of recordings.

use armtrace::measure::checksum::Implementation;
use armtrace::measure::latch::LatchWaits;
use armtrace::measure::Snapshot;
use armtrace::measure::{checksum, cpu, latch, locks};
use armtrace::model::{CpuClass, Kind, Mode};
use armtrace::recording::{Ending, Folded, Html, Report, Text};
use std::time::Duration;

use crate::{busy_file, busy_seconds, file, read, sampled_recording, start};
use lab::snapshots::{busy, callsite, checksum, empty, latch, locks_waited_for, reacquires, COND_MUTEX, INDEX, TRX};

fn near(a: f64, b: f64) -> bool {
    (a / b - 1.0).abs() < 1e-9
}

fn report() -> Report {
    Report::new(&read(&busy_file(30)))
}

#[test]
fn figures_cover_the_whole_recording() {
    let report = report();
    // The 30 seconds have 31 ticks, each with the waits of snapshots::busy.
    let per_tick = 0.150 + 0.0036 + 0.006 + 0.120 + 0.0002;
    assert!(near(report.totals.wait, 31.0 * per_tick), "{}", report.totals.wait);
    assert_eq!(report.totals.waits, Some(31 * 175));
    assert_eq!(report.totals.queries, Some(30_000));
    assert!(near(report.totals.server_cpu.unwrap(), 62.0));
    let top = &report.latch.latches[0];
    assert_eq!((top.latch.as_str(), top.mode, top.waits), (TRX, "", Some(3100)));
    assert!(
        near(top.share, 0.150 / per_tick)
            && near(top.mean.unwrap(), 0.0015)
            && near(top.sleep.unwrap(), top.wait / 2.0)
    );
    assert_eq!(top.wait_by_second.len(), 30);
    assert!(near(top.wait_by_second.iter().sum(), top.wait));
    assert_eq!(top.callsites[0].callsite, "lock0lock.cc:5872");
    assert!(near(top.callsites[0].share, 2.0 / 3.0));
    assert!(report.latch.latches.iter().all(|latch| latch.kind != "cond"));
    assert_eq!(report.latch.conditions.len(), 1);
    let histogram: u64 = top.histogram.iter().map(|bucket| bucket.waits).sum();
    assert_eq!(histogram, 3100);
    let locks = &report.parts.locks.lock_waits;
    assert_eq!(locks.iter().map(|row| (row.lock.as_str(), row.waits)).collect::<Vec<_>>(), [("row lock", 4)]);
    assert!(near(locks[0].wait, 0.2) && near(locks[0].max, 0.05), "{locks:?}");
    assert!(Text(&report).to_string().contains("4 waits, 200ms in all, 50.0ms at most"));
    let files = "innodb_data_file read ~124ms ±76%: 75% sbtest/sbtest1.ibd, 25% sbtest/sbtest2.ibd; innodb_log_file";
    assert!(Text(&report).to_string().contains(files), "{}", Text(&report));
}

/// While the probes rest, nothing is counted, and nothing that was counted goes away; the report says for how long.
#[test]
fn times_in_which_waits_for_locks_are_not_measured_are_told() {
    let report_of = |rested: fn(u64) -> u64| {
        let mut seconds = busy_seconds(10);
        for (second, (snapshot, _)) in (1..).zip(&mut seconds) {
            let ns = rested(second) * 1_000_000_000;
            snapshot.locks = locks::Figures {
                rests: (4..7).contains(&second),
                rested: (ns > 0).then_some(locks::Rested { ns }).into_iter().collect(),
                ..locks_waited_for(if second < 4 { 4 * second as usize } else { 12 }, 0)
            };
        }
        Report::new(&read(&file(&start(64), &seconds, Some(Ending::Complete))))
    };
    let told = "not measured for 3s";
    let rested = report_of(|second| second.saturating_sub(3).min(3));
    let locks = &rested.parts.locks;
    assert_eq!((locks.lock_waits[0].waits, locks.lock_waits_not_measured), (12, 3.0));
    assert!(Text(&rested).to_string().contains(told), "{}", Text(&rested));
    let measured = report_of(|_| 0);
    assert_eq!((measured.parts.locks.lock_waits[0].waits, measured.parts.locks.lock_waits_not_measured), (12, 0.0));
    assert!(!Text(&measured).to_string().contains("not measured for"));
}

/// One call site may wait for a latch in several modes.
#[test]
fn call_sites_are_reported_by_mode() {
    let second = |n: u64| {
        let site = |mode, callsite_name, ns| callsite(INDEX, mode, callsite_name, ns * n);
        let more = [site(Mode::S, "row0row.cc:965", 1_000_000), site(Mode::S, "btr0cur.cc:971", 3_000_000)];
        let busy = busy(n);
        (
            Snapshot {
                latch: latch::Figures {
                    callsites: [busy.latch.callsites, more.to_vec()].concat(),
                    call_stacks: Vec::new(),
                    ..busy.latch
                },
                ..busy
            },
            None,
        )
    };
    let recording = read(&file(&start(16), &[second(1), second(2)], None));
    let report = Report::new(&recording);
    let sites = |mode: &str| -> Vec<(String, f64)> {
        let latch = report.latch.latches.iter().find(|row| row.latch == INDEX && row.mode == mode).unwrap();
        latch.callsites.iter().map(|site| (site.callsite.clone(), site.share)).collect()
    };
    assert_eq!(sites("x"), [("btr0cur.cc:971".to_owned(), 1.0)]);
    assert_eq!(sites("s"), [("btr0cur.cc:971".to_owned(), 0.75), ("row0row.cc:965".to_owned(), 0.25)]);
    assert!(sites("sx").is_empty());
    let folded = Folded(&recording).to_string();
    let at_site: Vec<&str> = folded.lines().filter(|line| line.contains("btr0cur.cc:971")).collect();
    assert_eq!(at_site.len(), 1, "one line of a flame graph covers all modes: {folded}");
    assert!(at_site[0].ends_with(" 366000"), "{at_site:?}");
}

#[test]
fn findings_are_sentences_with_figures() {
    let all: Vec<String> = report().findings.into_iter().map(|finding| finding.text).collect();
    let text = all.join("\n");
    for words in [
        "On average 0.29 threads wait for a latch, while the server keeps 2.07 of 4 CPUs busy.",
        "It serves 1.00k statements per second",
        "wait/synch/mutex/innodb/trx_mutex has 53.6% of all wait time",
        "66.7% of the waits for it, by time, begin at lock0lock.cc:5872.",
        "is for sbtest/sbtest1.k_1 level 0.",
        "takes longer than",
    ] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    assert!(!text.contains("incomplete") && !text.contains("bursts"), "{text}");
}

/// Returns the report of a thundering herd: per second there are 3,000 reacquires that take 1.2 s in all, waits of 0.15
/// s for another latch, and a contended wait of `other_ns` for the mutex.
fn herd(other_ns: u64) -> Report {
    let second = |n: u64| Snapshot {
        elapsed: Duration::from_secs(n),
        latch: latch::Figures {
            waits: vec![
                latch(TRX, Kind::Mutex, Mode::None, 100 * n, 1_500_000),
                latch(COND_MUTEX, Kind::Mutex, Mode::None, n, other_ns),
            ],
            reacquires: vec![reacquires(COND_MUTEX, 3_000 * n, 1_200_000_000 * n)],
            ..empty().latch
        },
        ..empty()
    };
    let seconds: Vec<_> = (1..=10).map(|n| (second(n), None)).collect();
    Report::new(&read(&file(&start(1), &seconds, Some(Ending::Complete))))
}

#[test]
fn reacquires_are_not_reported_as_a_hot_mutex() {
    let report = herd(50_000_000);
    assert!(near(report.totals.wait, 10.0 * 0.2), "reacquires are not in the sum: {}", report.totals.wait);
    let row = &report.latch.reacquires[0];
    assert_eq!((row.latch.as_str(), row.waits), (COND_MUTEX, Some(30_000)));
    assert!(near(row.wait, 12.0) && near(row.other_wait, 0.5), "{row:?}");
    let text = Text(&report).to_string();
    for words in [
        "· Threads that a condition variable woke queue to reacquire wait/synch/mutex/sql/LOCK_thread_cache: 1.20 threads at \
         any moment, 3.00k times per second. These are wake-ups, not a hot mutex; no other wait time includes them. Besides, \
         0.05 threads wait for it.",
        "woken by a condition variable, waiting to reacquire its mutex: not contention, and in no sum\n     1.20s/s    3.00k waits/s  \
         wait/synch/mutex/sql/LOCK_thread_cache\n",
        "On average 0.20 threads wait for a latch",
    ] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    let page = Html(&report).to_string();
    assert!(
        page.contains("<h2>Wake-ups</h2>") && page.contains("</code></td><td>1.20</td><td>3.00k</td><td>0.05</td>"),
        "{page}"
    );
}

#[test]
fn a_mutex_with_reacquires_and_contention_is_reported_as_both() {
    let text = Text(&herd(2_000_000_000)).to_string();
    assert!(text.contains("wake-ups, in addition to contention") && !text.contains("not a hot mutex"), "{text}");
}

/// The busy server's recording has too few reacquires for a finding.
#[test]
fn a_few_reacquires_are_listed_without_a_finding() {
    let report = report();
    assert_eq!(report.latch.reacquires.len(), 1);
    assert!(report.findings.iter().all(|finding| !finding.text.contains("condition variable")));
}

#[test]
fn cpu_time_is_reported_by_class_function_and_latch() {
    let report = report();
    let cpu = report.cpu.as_ref().unwrap();
    // 31 ticks with 2 s each: 1.2 other, 0.3 kernel, 0.2 futex, 0.2 spin, 0.1 checksum.
    assert!(near(cpu.cpu, 62.0));
    let classes: Vec<_> = cpu.classes.iter().map(|row| row.class).collect();
    assert_eq!(classes, ["other", "kernel", "spin", "futex", "checksum"]);
    let spin = &cpu.classes[2];
    assert!(near(spin.cpu, 6.2) && near(spin.share, 0.1) && near(cpu.share(CpuClass::Spin), 0.1), "{spin:?}");
    // The first second includes two ticks.
    assert!(near(spin.cpu_by_second[0], 0.4) && near(spin.cpu_by_second[29], 0.2) && spin.cpu_by_second.len() == 30);
    assert_eq!(cpu.functions[2].function, "ut_delay");
    assert!(near(cpu.functions[2].cpu, 6.2) && near(cpu.functions[2].share, 0.1));
    let top = &report.latch.latches[0];
    assert!(near(top.spin_cpu.unwrap(), top.wait / 4.0));
    let spins = top.spins.unwrap();
    assert_eq!((spins.won, spins.wasted, spins.won_share()), (2325, 775, 0.75));
    let checksum = &report.parts.checksum.checksums[0];
    assert!(near(checksum.cpu.unwrap(), 3.1) && checksum.checksum.instruction.as_deref() == Some("pclmulqdq"));
    let text = Text(&report).to_string();
    for words in [
        "Spinning takes 10.0% of the server's CPU time. 53.6% of that is for wait/synch/mutex/innodb/trx_mutex, for which 75.0% \
         of the spins are won.",
        "cpu: other 60% · kernel 15% · spin 10% · futex 10% · checksum 5%",
        "   10.0%  spin      ut_delay\n",
        "crc32c of pages and redo log: hardware::crc32_using_pclmul (pclmulqdq)",
        "spinning: 40ns a turn (isb), 180µs before a sleep",
    ] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    let page = Html(&report).to_string();
    for part in ["<h2>CPUs busy, over time</h2>", "<code>ut_delay</code></td><td>spin</td><td>10.0%</td><td>0.21</td>"]
    {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn handoffs_are_reported_by_latch_and_node() {
    let report = report();
    let handoffs = report.handoffs.as_ref().unwrap();
    // 31 ticks, each with 60 waits of 1.5 ms from 0 to 0, 25 from 0 to 1, and 15 to 1 without a wake-up.
    assert_eq!(handoffs.latches.len(), 1);
    let sums = &handoffs.latches[0].sums;
    assert_eq!([sums.local.waits, sums.remote.waits, sums.unknown.waits], [31 * 60, 31 * 25, 31 * 15]);
    assert!(
        near(sums.remote.wait, 31.0 * 25.0 * 0.0015) && near(sums.remote_share().unwrap(), 25.0 / 85.0),
        "{sums:?}"
    );
    assert_eq!(sums.migrations, 31 * 60 / 5 + 31 * 25 / 5 + 31 * 15 / 5);
    assert_eq!(sums.between(None, Some("1")), sums.unknown);
    let text = Text(&report).to_string();
    for words in [
        "handed over between nodes 0, 1 handoffs/s   local  remote not woken   moved\n",
        "innodb/trx_mutex                      103   60.0%   25.0%     15.0%   20.0%\n",
        "handoffs/s from \\ to                    0          1\n",
        "                            0         62         26\n",
        "                    not woken          0         16\n",
        "Of the time waited for known handoffs, 29.4% is for latches from another part of the machine, 100% of that for",
    ] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    let page = Html(&report).to_string();
    assert!(
        page.contains("<h2>Handoffs</h2>") && page.contains("<td><span>not woken</span></td><td>0</td><td>16</td>"),
        "{page}"
    );
}

#[test]
fn barriers_and_checksums_are_reported() {
    let report = report();
    let cpu = report.cpu.as_ref().unwrap();
    // 50 ms of each tick's 2 s.
    assert!(near(cpu.ordering_share().unwrap(), 0.025) && near(cpu.ordering[0].cpu, 31.0 * 0.05), "{:?}", cpu.ordering);
    let checksum = &report.parts.checksum.checksums[0];
    let calls = checksum.calls.unwrap();
    assert_eq!((calls.calls, calls.bytes, calls.bursts), (31 * 2_000, 31 * 1_024_000, 30));
    // 0.1 s for 1,000 KiB.
    assert!(near(checksum.cpu_per_kib.unwrap(), 1e-4), "{checksum:?}");
    let text = Text(&report).to_string();
    for words in [
        "barriers and atomics 2.50%: lock cmpxchg 2.50%\n   2.50%  lock cmpxchg in mutex_enter_inline\n",
        "(pclmulqdq), 2.07k calls/s of 512 bytes by 30 bursts, 100µs a KiB\n",
    ] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    assert!(Html(&report).to_string().contains("<code>lock cmpxchg</code></td><td>mutex_enter_inline</td>"));
    // A few bursts are not enough for a cost.
    assert_eq!(Report::new(&read(&busy_file(9))).parts.checksum.checksums[0].cpu_per_kib, None);
}

#[test]
fn unmeasured_figures_are_absent_not_zero() {
    let seconds = [(
        Snapshot {
            latch: latch::Figures { domains: Vec::new(), handoffs: Vec::new(), ..busy(1).latch },
            cpu: cpu::Figures { time: Vec::new(), ordering: Vec::new(), ..busy(1).cpu },
            checksum: checksum::Figures { calls: Vec::new(), ..busy(1).checksum },
            ..busy(1)
        },
        None,
    )];
    let start = armtrace::recording::Start { places: Vec::new(), ..start(1) };
    let report = Report::new(&read(&file(&start, &seconds, Some(Ending::Complete))));
    assert!(report.handoffs.is_none() && report.cpu.is_none() && report.parts.checksum.checksums[0].calls.is_none());
    let text = [Text(&report).to_string(), Html(&report).to_string()].concat();
    assert!(!text.contains("anded over") && !text.contains("andoffs") && !text.contains("atomics"), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert!(json["handoffs"].is_null() && json["checksums"][0]["calls"].is_null());
}

#[test]
fn advice_is_the_same_as_in_the_live_table() {
    let mut seconds = busy(30);
    seconds.checksum.chosen = vec![checksum("software::crc32", Implementation::Software)];
    seconds.cpu.time[4].function = "software::crc32".to_owned();
    (seconds.latch.waits[0].spins_won, seconds.latch.waits[0].spins_wasted) = (1_000, 9_000);
    let report = Report::new(&read(&file(&start(1), &[(seconds, None)], Some(Ending::Complete))));
    let problems: Vec<&str> = report.findings.iter().filter(|f| f.is_problem).map(|f| f.text.as_str()).collect();
    let text = problems.join("\n");
    for words in [
        "Hardware CRC available, not used for crc32c of pages and redo log (software::crc32): about 5.00% of CPU to gain.",
        "Spinning is too long: 10.0% of the CPU time, and 90% of the spins for innodb/trx_mutex end asleep",
    ] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
}

#[test]
fn without_samples_there_are_no_figures_of_cpu_time() {
    let seconds: Vec<_> = (1..=30)
        .map(|second| (Snapshot { cpu: cpu::Figures { time: Vec::new(), ..busy(second).cpu }, ..busy(second) }, None))
        .collect();
    let report = Report::new(&read(&file(&start(1), &seconds, Some(Ending::Complete))));
    assert!(
        report.cpu.is_none()
            && report.parts.checksum.checksums[0].cpu.is_none()
            && report.latch.latches[0].spin_cpu.is_none()
    );
    let text = Text(&report).to_string();
    assert!(text.contains("time that waiting threads are awake") && !text.contains("cpu:"), "{text}");
    assert!(!Html(&report).to_string().contains("<h2>CPUs busy"));
}

#[test]
fn bursts_losses_and_an_early_end_are_reported() {
    let mut waits = 0;
    let seconds: Vec<_> = (1..=40)
        .map(|second| {
            waits += if second == 17 || second == 18 { 1000 } else { 1 };
            let waits_for_trx = latch(TRX, Kind::Mutex, Mode::None, waits, 1_000_000);
            let latches =
                vec![LatchWaits { estimated_ns: waits * 500_000, variance_us2: waits * 90_000, ..waits_for_trx }];
            let lost = vec![("map_full".to_owned(), waits)];
            (
                Snapshot {
                    elapsed: Duration::from_secs(second),
                    lost,
                    latch: latch::Figures { waits: latches, ..empty().latch },
                    ..empty()
                },
                None,
            )
        })
        .collect();
    let report = Report::new(&read(&file(&start(1), &seconds, None)));
    let problems: Vec<&str> = report.findings.iter().filter(|f| f.is_problem).map(|f| f.text.as_str()).collect();
    let text = problems.join("\n");
    for words in [
        "50.0% of the wait time is estimated",
        "half of their time falls into 2 of 40 seconds",
        "were not counted",
        "The recording is incomplete",
    ] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
    let ended = Report::new(&read(&file(&start(1), &seconds, Some(Ending::ServerEnded))));
    assert!(ended.findings.iter().any(|finding| finding.text.contains("The server ended")));
}

#[test]
fn an_idle_server_has_no_waits() {
    let idle = Snapshot { elapsed: Duration::from_secs(1), ..empty() };
    let report = Report::new(&read(&file(&start(1), &[(idle, None)], Some(Ending::Complete))));
    assert_eq!(report.findings.len(), 1);
    assert_eq!(report.findings[0].text, "No thread waited for a latch.");
    assert!(Text(&report).to_string().contains("No thread waited for a latch."));
    assert!(Html(&report).to_string().ends_with("</html>\n"));
}

#[test]
fn text_has_the_server_the_host_and_the_latches() {
    let text = Text(&report()).to_string();
    assert!(text.starts_with("MySQL 9.7.4 · aarch64 Neoverse-N1 · db1\n"), "{text}");
    for words in [
        "4 CPUs · 2 of them for the server · 3.00 GHz · 2 NUMA nodes · 16 GiB · Linux 6.12.1 · openEuler 24.03 · 30s recorded",
        "threads=64",
        "innodb_spin_wait_delay=6",
        "innodb/trx_mutex",
        "events not counted: map_full 93",
    ] {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
}

#[test]
fn unknown_figures_are_absent() {
    let mut start = start(1);
    start.sleeps_seen = false;
    let seconds = [(Snapshot { server_cpu_ns: None, ..busy(1) }, None)];
    let report = Report::new(&read(&file(&start, &seconds, Some(Ending::Complete))));
    assert!(report.totals.sleep.is_none() && report.totals.spin.is_none() && report.latch.latches[0].sleep.is_none());
    assert!(report.latch.latches[0].spins.is_none(), "without sleeps, spins are unknown");
    assert!(report.totals.queries.is_none() && report.totals.server_cpu.is_none() && report.overhead().is_none());
    assert!(!report.findings.iter().any(|finding| finding.text.contains("awake")));
}

#[test]
fn the_html_page_is_self_contained_and_escapes_names() {
    let mut start = start(64);
    start.host.name = "<script>alert(1)</script>&\"".to_owned();
    let page = Html(&Report::new(&read(&file(&start, &[(busy(2), None)], Some(Ending::Complete))))).to_string();
    for part in
        ["default-src 'none'", "<svg", "class=\"bar\"", "lock0lock.cc:5872", "<title>armtrace report: MySQL 9.7.4"]
    {
        assert!(page.contains(part), "{part}");
    }
    for outside in ["<script", "http://", "https://", "url(", "@import", " src="] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;"));
}

/// Returns an hour in which every figure of 60 latches with long names changes each second, with 10 call sites each.
fn busy_hour() -> Vec<(Snapshot, Option<u64>)> {
    let name = |i: u64| format!("wait/synch/sxlock/innodb/a_latch_that_has_quite_a_long_name_{i}");
    // Anything irregular.
    let noise = |n: u64, i: u64| (n * 2_654_435_761 + i * 40_503) % 1_000_003;
    let row = |n: u64, i: u64| {
        let mut row = latch(&name(i), Kind::Sxlock, Mode::X, 1, 1);
        row.waits.buckets = [n * (i + 1); 25];
        (row.waits.count, row.waits.sum_ns) = (25 * n * (i + 1), (n * 1_000_003 + noise(n, i)) * (60 - i));
        row
    };
    let sites = |i: u64| (0..10).map(move |site| callsite(&name(i), Mode::X, &format!("btr0cur.cc:{site}"), 1_000_000));
    let second = |n: u64| {
        let busy = busy(n);
        let latch = latch::Figures {
            waits: (0..60).map(|i| row(n, i)).collect(),
            callsites: (0..60).flat_map(sites).collect(),
            ..busy.latch
        };
        let mut cpu = busy.cpu;
        cpu.time.iter_mut().zip(0..).for_each(|(time, i)| time.ns = n * 1_000_003 + noise(n, i));
        (Snapshot { elapsed: Duration::from_secs(n), latch, cpu, ..busy }, Some(1000 * n))
    };
    (1..=3600).map(second).collect()
}

/// Pages are sent by mail and chat.
#[test]
fn the_page_of_an_hour_is_small_and_has_every_second() {
    let report = Report::new(&read(&file(&start(1), &busy_hour(), Some(Ending::Complete))));
    let page = Html(&report).to_string();
    assert!(page.len() < 300 << 10, "{} bytes", page.len());
    assert_eq!(page.matches("<section class=\"part\"").count(), 24, "12 of waits and 12 of CPU time");
    let links = page.matches(" href=\"#").count();
    assert_eq!(links, 2 * (12 + 11 + 11 + 12), "to each part, earlier, later and back");
    for target in page.split(" href=\"#").skip(1).map(|rest| rest.split('"').next().unwrap()) {
        assert!(page.contains(&format!(" id=\"{target}\"")), "{target}");
    }
    assert!(page.contains("Recorded on db1, 2026-09-21 14:13:20 to 15:13:20 UTC"), "{}", &page[..9000]);
    let charts = page.split("<svg").skip(1).map(|chart| chart.split('>').next().unwrap());
    assert!(charts.clone().all(|chart| chart.contains(" role=\"img\" aria-label=\"")), "a chart without a name");
}

#[test]
fn folded_stacks_add_up_to_all_wait_time() {
    let mut without = busy_seconds(30);
    without.iter_mut().for_each(|(second, _)| second.latch.call_stacks.clear());
    let without = file(&start(64), &without, Some(Ending::Complete));
    let trx = "mysql 9.7.4;wait/synch/mutex/innodb/trx_mutex";
    let of_callsites = format!("{trx};lock0lock.cc:5872 3100000\n");
    // Of 75 samples, 50 and 20.
    let of_stacks =
        format!("{trx};do_command;row_upd;lock_rec_lock 3100000\n{trx};do_command;row_ins;lock_rec_lock 12");
    for (bytes, expected) in [(without, of_callsites), (busy_file(30), of_stacks)] {
        let recording = read(&bytes);
        let folded = Folded(&recording).to_string();
        assert!(folded.contains(&expected), "{folded}");
        let sum: u64 = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
        let wait = Report::new(&recording).totals.wait;
        assert!((sum as f64 / 1e6 - wait).abs() < 1e-3, "{sum} µs of {wait} s");
    }
}

/// Without probes, the times of waits are known, but not how many there were or how long each was.
#[test]
fn without_probes_only_times_are_reported() {
    let (sampled, counted) = (Report::new(&sampled_recording(30)), report());
    assert!(sampled.sampled && !counted.sampled);
    assert_eq!((sampled.totals.waits, sampled.totals.wait), (None, counted.totals.wait));
    let top = &sampled.latch.latches[0];
    assert_eq!((top.latch.as_str(), top.wait), (TRX, counted.latch.latches[0].wait));
    assert_eq!((top.waits, top.sleeps, top.mean, top.p50, top.p99, top.max), (None, None, None, None, None, None));
    assert!(top.histogram.is_empty() && top.sleep.is_some());
    assert!(near(top.callsites[0].share, 2.0 / 3.0) && top.callsites[0].waits.is_none());
    assert!(sampled.latch.reacquires.iter().all(|row| row.waits.is_none() && row.wait > 0.0));
    let findings: Vec<&str> = sampled.findings.iter().map(|finding| finding.text.as_str()).collect();
    let says = |words: &str| findings.iter().filter(|finding| finding.contains(words)).count();
    assert_eq!((says("without probes"), says("--max-overhead")), (1, 0), "{findings:?}");
    let dashes = |report: &Report| {
        let text = Text(report).to_string();
        let row = text.lines().find(|line| line.starts_with("innodb/trx_mutex")).unwrap().to_owned();
        row.split_whitespace().filter(|cell| *cell == "-").count()
    };
    assert_eq!(dashes(&sampled), dashes(&counted) + 5, "waits/s, mean, p99, max, won");
    let page = Html(&sampled).to_string();
    assert!(!page.contains(" waits</title>") && page.contains("without probes"), "no histogram");
}
