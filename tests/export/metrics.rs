//! The metric families that the collector produces from a snapshot.

use armtrace::export::{families, Exporter};
use armtrace::measure::checksum::{Checksum, Implementation};
use armtrace::measure::holder::HolderState;
use armtrace::measure::Snapshot;
use armtrace::model::{Kind, Mode, ProbeState};
use lab::exporter::of_many;
use lab::snapshots::*;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The samples of one scrape, by `name{labels}`.
type Samples = BTreeMap<String, f64>;

fn text(snapshot: Snapshot) -> String {
    Exporter::new(Arc::new(move || snapshot.clone())).unwrap().metrics().unwrap()
}

fn samples(text: &str) -> Samples {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.rsplit_once(' ')).map(|(name, n)| (name.to_string(), n.parse().unwrap())).collect()
}

/// Returns the sum of a metric's samples whose labels contain `with`.
fn sum(samples: &Samples, metric: &str, with: &str) -> f64 {
    let prefix = format!("{metric}{{");
    samples.iter().filter(|(name, _)| name.starts_with(&prefix) && name.contains(with)).map(|(_, n)| n).sum()
}

/// An exporter for repeated scrapes.
struct Scraped {
    now: Arc<Mutex<Snapshot>>,
    exporter: Exporter,
}

impl Scraped {
    fn new() -> Scraped {
        let now = Arc::new(Mutex::new(empty()));
        let source = now.clone();
        let exporter = Exporter::new(Arc::new(move || source.lock().unwrap().clone())).unwrap();
        Scraped { now, exporter }
    }

    fn scrape(&self, snapshot: Snapshot) -> Samples {
        *self.now.lock().unwrap() = snapshot;
        samples(&self.exporter.metrics().unwrap())
    }
}

#[test]
fn a_busy_server_fills_every_family() {
    let many = of_many(vec![("a", busy(5))]).metrics().unwrap();
    let text = text(busy(5)) + &text(sampled(5)) + &many;
    for family in families() {
        assert!(text.contains(&format!("# TYPE {} ", family.name)), "{}", family.name);
    }
    for name in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds"] {
        assert!(text.contains(&format!("\n{name} ")), "{name}");
    }
}

#[test]
fn the_series_of_several_servers_are_told_apart() {
    let (all, one) = (of_many(vec![("a", busy(5)), ("b", busy(7))]).metrics().unwrap(), text(busy(7)));
    assert_eq!(all.matches("# TYPE armtrace_latch_wait_seconds ").count(), 1, "a family comes once");
    assert_eq!(all.matches("\narmtrace_build_info{").count(), 1, "and what is of no server once");
    let with = |line: &str, target: &str| line.contains(&format!("target=\"{target}\""));
    let of = |target| all.lines().filter(move |line| with(line, target) && !line.contains("attaches")).count();
    let alone = one.lines().filter(|line| !line.starts_with('#')).count();
    let own =
        one.lines().filter(|line| line.starts_with("process_") || line.starts_with("armtrace_build_info")).count();
    assert_eq!(of("b"), alone - own, "a server has the series that it has alone");
    assert!(!all.lines().any(|line| with(line, "a") && with(line, "b")));
    let samples = samples(&all);
    let labels = |name: &str| samples.keys().filter(|key| key.starts_with(name)).cloned().collect::<Vec<_>>();
    assert_eq!(
        labels("armtrace_target_attaches_total{result=\"attached\"").len()
            + labels("armtrace_target_attaches_total{result=\"failed\"").len(),
        6,
        "of the one that has ended, too"
    );
    let of_ended = |key: &&String| key.contains("target=\"ended\"") && !key.contains("attaches");
    assert_eq!(samples.keys().filter(of_ended).collect::<Vec<_>>(), ["armtrace_target_up{target=\"ended\"}"]);
    assert_eq!(samples["armtrace_target_up{target=\"ended\"}"], 0.0);
    assert_eq!(samples["armtrace_target_up{target=\"a\"}"], 1.0);
}

#[test]
fn histograms_are_exact_cumulative_and_in_seconds() {
    let mut snapshot = empty();
    let mut x = latch(INDEX, Kind::Sxlock, Mode::X, 0, 0);
    x.waits = waits(&[1_000, 1_001, 70_000, 20_000_000_001]);
    snapshot.latch.waits = vec![x];
    let samples = samples(&text(snapshot));
    let labels = format!("latch=\"{INDEX}\",kind=\"sxlock\",mode=\"x\"");
    let bucket = |le: &str| samples[&format!("armtrace_latch_wait_seconds_bucket{{{labels},le=\"{le}\"}}")];
    let bounds = ["0.000001", "0.000004", "0.000064", "0.000256", "1", "10", "+Inf"];
    assert_eq!(bounds.map(bucket), [1.0, 2.0, 2.0, 3.0, 3.0, 3.0, 4.0]);
    assert_eq!(samples[&format!("armtrace_latch_wait_seconds_sum{{{labels}}}")], 20.000072002);
    assert_eq!(samples[&format!("armtrace_latch_wait_seconds_count{{{labels}}}")], 4.0);
    assert_eq!(samples[&format!("armtrace_latch_wait_max_seconds{{{labels}}}")], 20.000000001);
}

#[test]
fn alerts_have_the_servers_cpu_time_and_the_budget() {
    let of = |snapshot: Snapshot| samples(&text(snapshot));
    let busy_samples = of(busy(5));
    assert_eq!(busy_samples["armtrace_target_cpu_seconds_total"], 12.0);
    assert_eq!(busy_samples["armtrace_overhead_budget_ratio"], 0.01);
    let unknown = of(Snapshot { server_cpu_ns: None, max_overhead: None, ..busy(5) });
    let gone = ["armtrace_target_cpu_seconds_total", "armtrace_overhead_budget_ratio", "armtrace_overhead_ratio"];
    assert!(!gone.iter().any(|name| unknown.contains_key(*name)), "unknown is absent");
}

#[test]
fn an_instruction_is_unused_only_if_the_cpu_has_it() {
    let mut snapshot = empty();
    let software = |function: &str| checksum(function, Implementation::Software);
    let old = Checksum { cpu_has_instruction: false, ..software("old") };
    snapshot.checksum.chosen = vec![checksum("fast", Implementation::Hardware), software("slow"), old];
    let samples = samples(&text(snapshot));
    let unused = |function: &str| sum(&samples, "armtrace_checksum_instruction_unused", &format!("\"{function}\""));
    assert_eq!(["fast", "slow", "old"].map(unused), [0.0, 1.0, 0.0]);
}

#[test]
fn the_count_is_never_below_the_last_bucket() {
    let mut snapshot = busy(1);
    snapshot.latch.waits[0].waits.count -= 1;
    let with = format!("latch=\"{TRX}\"");
    let samples = samples(&text(snapshot));
    let count = sum(&samples, "armtrace_latch_wait_seconds_count", &with);
    assert_eq!(count, sum(&samples, "armtrace_latch_wait_seconds_bucket", "trx_mutex\",kind=\"mutex\",le=\"10\""));
}

#[test]
fn spinning_and_sleeping_add_up_to_the_wait() {
    let samples = samples(&text(busy(5)));
    let spin = sum(&samples, "armtrace_latch_spin_seconds_total", TRX);
    let sleep = sum(&samples, "armtrace_latch_sleep_seconds_total", TRX);
    assert_eq!(spin + sleep, sum(&samples, "armtrace_latch_wait_seconds_sum", TRX));
    assert_eq!(sum(&samples, "armtrace_latch_sleeps_total", TRX), 600.0);
}

#[test]
fn condition_variables_are_separate_from_latches() {
    let samples = samples(&text(busy(5)));
    assert_eq!(sum(&samples, "armtrace_cond_wait_seconds_count", COND), 12.0);
    assert_eq!(samples.keys().filter(|name| name.contains("armtrace_latch") && name.contains(COND)).count(), 0);
}

#[test]
fn reacquires_are_separate_from_waits() {
    let samples = samples(&text(busy(5)));
    let of = |metric: &str| samples[&format!("{metric}{{latch=\"{COND_MUTEX}\"}}")];
    assert_eq!(of("armtrace_latch_reacquires_total"), 30.0);
    assert_eq!(of("armtrace_latch_reacquire_seconds_total"), 0.012);
    assert_eq!(samples.keys().filter(|name| name.contains(COND_MUTEX)).count(), 2, "reacquires are in no other figure");
    assert!(!text(empty()).contains("reacquire"));
}

#[test]
fn reacquires_are_capped_and_their_sum_stays_true() {
    let mut snapshot = empty();
    let name = |i| format!("wait/synch/mutex/sql/m{i:02}");
    snapshot.latch.reacquires = (1..=60).map(|i| reacquires(&name(i), i, i * 1_000_000_000)).collect();
    let samples = samples(&text(snapshot));
    assert_eq!(samples.keys().filter(|name| name.starts_with("armtrace_latch_reacquires_total{")).count(), 21);
    assert_eq!(sum(&samples, "armtrace_latch_reacquire_seconds_total", ""), 1830.0);
    assert_eq!(samples["armtrace_latch_reacquires_total{latch=\"other\"}"], 820.0);
}

#[test]
fn unseen_sleeps_are_absent() {
    let mut snapshot = busy(5);
    let split =
        ["armtrace_latch_spin_seconds_total{", "armtrace_latch_sleep_seconds_total{", "armtrace_latch_sleeps_total{"];
    assert!(split.iter().all(|name| text(snapshot.clone()).contains(name)));
    snapshot.latch.sleeps_seen = false;
    let text = text(snapshot);
    assert!(split.iter().all(|name| !text.contains(name)), "{text}");
    assert!(text.contains("armtrace_latch_wait_seconds_count{"));
}

#[test]
fn without_probes_waits_are_times_only() {
    let text = text(sampled(5));
    let now = samples(&text);
    let of = |state: &str| {
        now[&format!("armtrace_latch_sampled_wait_seconds_total{{latch=\"{TRX}\",kind=\"mutex\",state=\"{state}\"}}")]
    };
    let counted = samples(&self::text(busy(5)));
    assert_eq!(of("asleep"), sum(&counted, "armtrace_latch_sleep_seconds_total", TRX));
    assert_eq!(of("asleep") + of("awake"), sum(&counted, "armtrace_latch_wait_seconds_sum", TRX));
    for absent in ["wait_seconds_", "wait_max", "sleep_seconds", "sleeps", "spin", "reacquire"] {
        assert!(!text.contains(&format!("armtrace_latch_{absent}")), "{absent}");
    }
    assert!(!text.contains("armtrace_cond_wait"));
}

#[test]
fn unknown_costs_are_absent() {
    let mut snapshot = busy(5);
    snapshot.probes =
        vec![probe("known", ProbeState::Attached, 10, Some(1e6)), probe("unknown", ProbeState::Attached, 1, None)];
    let samples_now = samples(&text(snapshot.clone()));
    assert_eq!(samples_now["armtrace_probe_cost_seconds_total{probe=\"known\"}"], 0.01);
    assert!(!samples_now.contains_key("armtrace_probe_cost_seconds_total{probe=\"unknown\"}"));
    assert!(!samples_now.contains_key("armtrace_overhead_ratio"), "a sum with a missing part would be too low");
    snapshot.probes.pop();
    snapshot.server_cpu_ns = Some(1_000_000_000);
    assert_eq!(samples(&text(snapshot.clone()))["armtrace_overhead_ratio"], 0.01);
    snapshot.server_cpu_ns = None;
    assert!(!text(snapshot).contains("armtrace_overhead_ratio"));
}

#[test]
fn a_probe_is_in_exactly_one_state() {
    let samples = samples(&text(busy(5)));
    let failed = samples.iter().filter(|(name, _)| name.contains("rw_lock_x_lock_func:end") && name.contains("state"));
    let states: Vec<_> = failed.map(|(name, n)| (name.contains("\"failed\""), *n)).collect();
    assert_eq!(states.len(), 4);
    assert!(states.iter().all(|(is_failed, n)| (*n == 1.0) == *is_failed), "{states:?}");
}

#[test]
fn reasons_without_lost_events_are_exported_as_zero() {
    let samples = samples(&text(busy(5)));
    assert_eq!(samples["armtrace_lost_events_total{reason=\"no_start\"}"], 0.0);
    assert_eq!(samples["armtrace_lost_events_total{reason=\"map_full\"}"], 18.0);
}

#[test]
fn the_target_is_described_and_its_exit_is_seen() {
    let mut snapshot = busy(5);
    let text_up = text(snapshot.clone());
    assert!(text_up.contains(
        "\narmtrace_target_info{flavor=\"mysql\",version=\"9.7.4\",arch=\"aarch64\",cpu_model=\"Neoverse-N1\",\
         build_id=\"5d41402abc4b2a76b9719d911017c592\",symbol_source=\"dynsym\",kernel=\"6.12.57-arm64\",numa_nodes=\"2\",\
         page_size=\"65536\"} 1\n"
    ));
    assert!(
        text_up.contains("\narmtrace_target_cpus 64\n")
            && text_up.contains("\narmtrace_target_cpu_max_hertz 3000000000\n")
    );
    assert!(text_up.contains("\narmtrace_target_up 1\n"));
    assert!(!text_up.contains("4242"), "a pid must not be a label");
    snapshot.up = false;
    assert!(text(snapshot).contains("\narmtrace_target_up 0\n"));
}

#[test]
fn one_latch_listed_twice_is_one_series() {
    let mut snapshot = busy(5);
    snapshot.latch.waits.push(snapshot.latch.waits[0].clone());
    snapshot.probes.push(snapshot.probes[0].clone());
    snapshot.lost.push(snapshot.lost[0].clone());
    let text = text(snapshot);
    let mut names: Vec<_> = text.lines().filter_map(|line| line.rsplit_once(' ')).map(|(name, _)| name).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(all, names.len());
    assert_eq!(sum(&samples(&text), "armtrace_latch_wait_seconds_count", TRX), 1_200.0);
}

/// Returns a snapshot of many latches, where latch number i has i waits of 1 ms.
fn many(latches: u64) -> Snapshot {
    let mut snapshot = empty();
    let name = |i| format!("wait/synch/mutex/innodb/m{i:04}");
    snapshot.latch.waits = (1..=latches).map(|i| latch(&name(i), Kind::Mutex, Mode::None, i, 1_000_000)).collect();
    snapshot.latch.callsites = (1..=latches).map(|i| callsite(&name(i), Mode::None, "f.cc:1", i)).collect();
    snapshot
}

#[test]
fn cpu_time_is_exported_by_class_and_function() {
    let samples = samples(&text(busy(5)));
    let value = |name: &str| samples[name];
    assert_eq!(value("armtrace_cpu_seconds_total{class=\"spin\",function=\"ut_delay\"}"), 1.2);
    assert_eq!(sum(&samples, "armtrace_cpu_seconds_total", ""), 12.0);
    let cas = "instruction=\"lock cmpxchg\",function=\"mutex_enter_inline\"";
    assert_eq!(value(&format!("armtrace_barrier_cpu_seconds_total{{{cas}}}")), 0.3);
    let crc = "function=\"hardware::crc32_using_pclmul\",implementation=\"hardware\"";
    assert_eq!(value(&format!("armtrace_checksum_seconds_total{{{crc}}}")), 0.6);
    assert_eq!(value(&format!("armtrace_checksum_calls_total{{{crc}}}")), 12_000.0);
    assert_eq!(value(&format!("armtrace_checksum_bytes_total{{{crc}}}")), 6_144_000.0);
    assert_eq!(value("armtrace_getcpu_calls_total{path=\"syscall\"}"), 6000.0);
    assert_eq!(value("armtrace_statements_total"), 600_000.0);
}

#[test]
fn unsampled_figures_are_absent() {
    let mut snapshot = busy(5);
    snapshot.cpu.time.clear();
    snapshot.cpu.getcpu_calls = None;
    let text = text(snapshot);
    for name in ["cpu_seconds_total", "checksum_seconds_total", "latch_spin_cpu_seconds_total", "getcpu_calls_total"] {
        assert!(!text.contains(&format!("armtrace_{name}{{")), "{name}");
    }
}

#[test]
fn uncounted_statements_are_absent() {
    let text = text(Snapshot { statements: None, ..busy(5) });
    assert!(!text.contains("armtrace_statements_total"));
}

#[test]
fn handoffs_are_exported_by_origin_and_destination() {
    let samples = samples(&text(busy(5)));
    let handoffs = |from: &str, to: &str| {
        samples[&format!("armtrace_latch_handoffs_total{{latch=\"{TRX}\",from_node=\"{from}\",to_node=\"{to}\"}}")]
    };
    assert_eq!((handoffs("0", "0"), handoffs("0", "1"), handoffs("unknown", "1")), (360.0, 150.0, 90.0));
    let seconds = |locality: &str| {
        samples[&format!("armtrace_latch_handoff_wait_seconds_total{{latch=\"{TRX}\",locality=\"{locality}\"}}")]
    };
    assert_eq!((seconds("local"), seconds("remote"), seconds("unknown")), (0.54, 0.225, 0.135));
    assert_eq!(samples[&format!("armtrace_latch_waiter_migrations_total{{latch=\"{TRX}\"}}")], 120.0);
    let mut snapshot = busy(5);
    snapshot.latch.handoffs.clear();
    assert!(!text(snapshot).contains("handoff"), "a machine with one node has no handoffs");
}

#[test]
fn handoffs_are_capped_and_their_sum_stays_true() {
    let mut snapshot = busy(0);
    let latch = |i: u64| handoffs(&format!("wait/synch/mutex/innodb/latch_{i}"), Some("0"), "1", i);
    snapshot.latch.handoffs = (1..=30).map(latch).collect();
    let samples = samples(&text(snapshot));
    let rows = samples.keys().filter(|name| name.starts_with("armtrace_latch_handoffs_total{")).count();
    assert_eq!(rows, 21);
    assert_eq!(samples["armtrace_latch_handoffs_total{latch=\"other\",from_node=\"0\",to_node=\"1\"}"], 55.0);
}

#[test]
fn hardware_events_have_a_scope_and_a_running_ratio() {
    let mut snapshot = busy(5);
    snapshot.hardware.events[1].running_ratio = None;
    let samples = samples(&text(snapshot));
    let labels = "event=\"dmb_spec\",scope=\"process\"";
    assert_eq!(samples[&format!("armtrace_perf_events_total{{{labels}}}")], 30_000.0);
    assert_eq!(samples[&format!("armtrace_perf_event_running_ratio{{{labels}}}")], 0.5);
    assert_eq!(sum(&samples, "armtrace_perf_events_total", "branch-misses"), 420_000.0);
    assert!(!samples.keys().any(|name| name.contains("running_ratio") && name.contains("branch-misses")));
    let labels = "event=\"branch-misses\",function=\"row_search_mvcc\"";
    assert_eq!(samples[&format!("armtrace_perf_events_by_function_total{{{labels}}}")], 180_000.0);
}

#[test]
fn spins_have_outcomes() {
    let samples = samples(&text(busy(5)));
    let spins = |outcome: &str| {
        samples[&format!("armtrace_latch_spins_total{{latch=\"{TRX}\",kind=\"mutex\",outcome=\"{outcome}\"}}")]
    };
    assert_eq!((spins("won"), spins("wasted")), (450.0, 150.0));
    assert_eq!(sum(&samples, "armtrace_latch_spin_cpu_seconds_total", TRX), 0.225);
    let mut snapshot = busy(5);
    snapshot.latch.waits.iter_mut().for_each(|latch| (latch.spins_won, latch.spins_wasted) = (0, 0));
    assert!(!text(snapshot).contains("armtrace_latch_spins_total{"), "waiters that do not spin have no outcomes");
}

#[test]
fn pages_are_exported_by_table_index_and_level() {
    let samples = samples(&text(busy(5)));
    let page = |labels: &str| samples[&format!("armtrace_latch_page_wait_seconds_total{{{labels}}}")];
    assert_eq!(page("table=\"sbtest/sbtest1\",index=\"k_1\",level=\"0\""), 0.48);
    assert_eq!(page("table=\"innodb_undo_001\",index=\"(undo log)\""), 0.012);
}

#[test]
fn pages_are_capped_and_their_sum_stays_true() {
    let scraped = Scraped::new();
    let mut snapshot = empty();
    snapshot.latch.pages = (0..300).map(|i| page("db/t", &format!("k_{i}"), Some(0), 1_000_000_000)).collect();
    snapshot.latch.pages.push(page("other", "", None, 5_000_000_000));
    let samples = scraped.scrape(snapshot);
    let all: Vec<f64> =
        samples.iter().filter(|(name, _)| name.contains("page_wait_seconds")).map(|(_, seconds)| *seconds).collect();
    assert_eq!(all.len(), 51);
    assert_eq!(all.iter().sum::<f64>(), 305.0);
    assert_eq!(samples["armtrace_latch_page_wait_seconds_total{table=\"other\"}"], 255.0);
}

#[test]
fn holders_are_capped_and_their_states_stay_true() {
    let samples = samples(&text(everything()));
    let of = |what: &str| sum(&samples, "armtrace_latch_blocked_by_seconds_total", what);
    for state in ["running", "preempted", "io", "unknown"] {
        assert_eq!(of(&format!("holder_state=\"{state}\"")), 100.0, "{state}");
    }
    let series = samples.keys().filter(|name| name.starts_with("armtrace_latch_blocked_by_seconds_total"));
    assert_eq!(series.count(), 60 + 4);
    assert!(of("latch=\"other\"") > 0.0);
}

#[test]
fn series_are_capped_and_sums_stay_true() {
    let samples = samples(&text(many(500)));
    let counts = samples.keys().filter(|name| name.starts_with("armtrace_latch_wait_seconds_count{")).count();
    assert_eq!(counts, 51);
    let all = f64::from(500 * 501 / 2);
    for (metric, total) in [
        ("armtrace_latch_wait_seconds_count", all),
        ("armtrace_latch_sleeps_total", all),
        ("armtrace_latch_wait_seconds_sum", all / 1e3),
        ("armtrace_latch_sleep_seconds_total", all / 2e3),
        ("armtrace_latch_spin_seconds_total", all / 2e3),
        ("armtrace_latch_callsite_wait_seconds_total", all / 1e9),
    ] {
        let sum = sum(&samples, metric, "");
        assert!((sum - total).abs() < 1e-9 * total, "{metric}: {sum} instead of {total}");
    }
    assert_eq!(sum(&samples, "armtrace_latch_wait_seconds_count", "latch=\"other\""), f64::from(450 * 451 / 2));
    assert!(
        sum(&samples, "armtrace_latch_wait_seconds_count", "m0451") > 0.0,
        "the largest latches have their own series"
    );
}

/// Returns a server on which everything that can have a row has one, on a machine of 8 nodes.
fn everything() -> Snapshot {
    let (busy, name) = (busy(5), |i: u64| format!("wait/synch/rwlock/innodb/l{i:04}"));
    let modes = [Mode::S, Mode::Sx, Mode::X];
    let row = |i: u64| modes.map(|mode| latch(&name(i), Kind::Sxlock, mode, 1_000 + i, 1_000_000));
    let cond = |i| latch(&format!("wait/synch/cond/sql/c{i}"), Kind::Cond, Mode::None, 1_000, 1_000_000);
    let site = |i| callsite(&name(i), Mode::X, &format!("f.cc:{i}"), 1_000_000_000);
    let nodes: Vec<String> = (0..8).map(|node| node.to_string()).collect();
    let from: Vec<Option<&str>> = nodes.iter().map(|node| Some(node.as_str())).chain([None]).collect();
    let pairs = || from.iter().flat_map(|from| nodes.iter().map(move |to| (*from, to.as_str())));
    let handed = |i: u64| pairs().map(move |(from, to)| handoffs(&name(i), from, to, 10 + i)).collect::<Vec<_>>();
    let mut snapshot = busy;
    snapshot.latch.waits = (0..500).flat_map(row).chain((0..500).map(cond)).collect();
    snapshot.latch.callsites = (0..1_000).map(site).collect();
    snapshot.latch.pages = (0..1_000).map(|i| page("db/t", &format!("k_{i}"), Some(0), 1_000_000_000)).collect();
    let states = [HolderState::Running, HolderState::Preempted, HolderState::Io, HolderState::Unknown];
    let holder = |i: u64| states.map(|state| held(&name(i), Mode::X, state, Some(&format!("f{i}")), 1_000_000_000));
    snapshot.holder.blocked = (0..100).flat_map(holder).collect();
    snapshot.latch.reacquires = (0..500).map(|i| reacquires(&name(i), 10, 1_000_000_000)).collect();
    snapshot.latch.handoffs = (0..100).flat_map(handed).collect();
    snapshot.probes = (0..60).map(|i| probe(&format!("p{i}"), ProbeState::Attached, 1, Some(1.0))).collect();
    snapshot
}

/// What the table of functions bounds is not in it: at most 100 each of CPU time, of barriers, and of events.
#[test]
fn a_server_has_at_most_3000_series() {
    let samples = samples(&text(everything()));
    assert!(samples.len() + 3 * 110 <= 3_000, "{}", samples.len());
    let of = |family: &str| samples.keys().filter(|name| name.starts_with(family)).count();
    assert_eq!(of("armtrace_latch_handoffs_total{"), 4 * 9 * 8, "of three latches, and the others");
}

#[test]
fn a_call_site_has_one_series_for_all_modes() {
    let mut snapshot = many(300);
    let latch = snapshot.latch.callsites[299].latch.clone();
    let site = |mode, ns| callsite(&latch, mode, "f.cc:2", ns);
    snapshot.latch.callsites.extend([site(Mode::S, 2_000), site(Mode::X, 3_000)]);
    let samples = samples(&text(snapshot));
    let of = |what: &str| sum(&samples, "armtrace_latch_callsite_wait_seconds_total", what);
    assert_eq!(of("f.cc:2"), 5e-6);
    let series = samples.keys().filter(|name| name.starts_with("armtrace_latch_callsite_wait_seconds_total"));
    assert_eq!(series.count(), 101, "all modes together use one series");
}

#[test]
fn no_counter_decreases_when_the_order_changes() {
    let scraped = Scraped::new();
    let before = scraped.scrape(many(300));
    let mut later = many(300);
    for latch in &mut later.latch.waits {
        *latch = reversed(latch.latch.clone(), latch.waits.count);
    }
    later.latch.callsites.iter_mut().for_each(|site| site.wait_ns += 1_000 - site.wait_ns);
    let after = scraped.scrape(later);
    for (name, value) in before.iter().filter(|(name, _)| name.contains("armtrace_") && !name.contains("max")) {
        assert!(after.get(name).is_some_and(|now| now >= value), "{name}: {value}, then {:?}", after.get(name));
    }
}

/// Returns a latch's later figures: the fewer waits it had before, the more it has had since.
fn reversed(name: String, count: u64) -> armtrace::measure::latch::LatchWaits {
    latch(&name, Kind::Mutex, Mode::None, count + 10 * (300 - count), 1_000_000)
}

#[test]
fn spinning_does_not_decrease_while_a_sleep_is_ahead_of_its_wait() {
    let scraped = Scraped::new();
    let before = sum(&scraped.scrape(busy(5)), "armtrace_latch_spin_seconds_total", TRX);
    let mut ahead = busy(5);
    ahead.latch.waits[0].sleep_ns += 100_000_000;
    assert_eq!(sum(&scraped.scrape(ahead), "armtrace_latch_spin_seconds_total", TRX), before);
    let restarted = sum(&scraped.scrape(busy(1)), "armtrace_latch_spin_seconds_total", TRX);
    assert!(restarted < before, "after another attach, counters start from zero");
}

/// The sum and the sleep are rounded to nanoseconds each.
#[test]
fn without_probes_time_awake_does_not_decrease() {
    let scraped = Scraped::new();
    let awake = |snapshot| sum(&scraped.scrape(snapshot), "armtrace_latch_sampled_wait_seconds_total", "awake");
    let before = awake(sampled(5));
    let mut ahead = sampled(5);
    ahead.latch.waits.iter_mut().for_each(|row| row.sleep_ns += 1);
    assert!(before > 0.0);
    assert_eq!(awake(ahead), before);
}

#[test]
fn its_own_cpu_time_has_fractions_of_a_second() {
    let end = std::time::Instant::now() + Duration::from_millis(30);
    while std::time::Instant::now() < end {}
    assert!(samples(&text(empty()))["process_cpu_seconds_total"] > 0.0);
}

/// Returns what `armtrace --version` prints after the program's name: the number, and what is in parentheses.
fn version() -> (String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_armtrace")).arg("--version").output().expect("armtrace");
    let line = String::from_utf8(output.stdout).expect("text");
    let version = line.strip_prefix("armtrace ").expect("its name").trim_end();
    let (number, rest) = version.split_once(' ').unwrap_or((version, ""));
    (number.to_owned(), rest.trim_matches(['(', ')']).to_owned())
}

/// Returns whether this folder is a repository with a commit, and not only in one.
fn is_repository() -> bool {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    git(&["rev-parse", "--show-prefix", "HEAD"]).is_some_and(|answer| answer.len() == 40)
}

#[test]
fn a_build_says_of_which_revision_it_is() {
    let (number, details) = version();
    assert_eq!(number, env!("CARGO_PKG_VERSION"));
    let revision = details.strip_prefix("rev ").and_then(|rest| rest.split(", ").next()).unwrap_or("");
    if is_repository() && std::env::var_os("ARMTRACE_REVISION").is_none() {
        let (hash, mark) = revision.split_once('-').unwrap_or((revision, "dirty"));
        assert!(hash.len() == 12 && hash.chars().all(|c| c.is_ascii_hexdigit()) && mark == "dirty", "{details}");
        let date = details.rsplit_once(", ").map(|(_, date)| date.split('-').map(str::len).collect::<Vec<_>>());
        assert_eq!(date, Some(vec![4, 2, 2]), "{details}");
    }
    let text = text(busy(5));
    let info = text.lines().find(|line| line.starts_with("armtrace_build_info{")).expect("the metric");
    for label in [format!("version=\"{number}\""), format!("revision=\"{revision}\""), "rustc=\"1.".to_owned()] {
        assert!(info.contains(&label), "{info} lacks {label}");
    }
}
