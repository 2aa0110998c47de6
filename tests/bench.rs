//! The benchmark's arithmetic and tables. They are tested here because a benchmark target has no tests.

use lab::bench::report::{document, times, together, ModeRun, Pair, Run, ToolUse, Window};
use lab::bench::stats::{Summary, Together};

/// A sample around 0.98, spread evenly over ±0.1.
fn spread(count: usize) -> Vec<f64> {
    (0..count).map(|i| 0.88 + 0.2 * (i as f64 + 0.5) / count as f64).collect()
}

#[test]
fn an_empty_sample_has_no_summary() {
    assert_eq!(Summary::of(&[]), None);
}

#[test]
fn medians_and_quartiles_are_interpolated() {
    let s = Summary::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
    assert_eq!((s.count, s.median, s.quartiles), (4, 2.5, (1.75, 3.25)));
    let s = Summary::of(&[5.0]).unwrap();
    assert_eq!((s.median, s.quartiles, s.interval), (5.0, (5.0, 5.0), (5.0, 5.0)));
}

/// For nine values, the second and the eighth enclose the median with a probability of 96 %.
#[test]
fn the_interval_agrees_with_order_statistics() {
    let s = Summary::of(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]).unwrap();
    assert!((2.0..=3.0).contains(&s.interval.0) && (7.0..=8.0).contains(&s.interval.1), "{s:?}");
}

#[test]
fn intervals_contain_the_median_and_shrink() {
    let few = Summary::of(&spread(10)).unwrap();
    let many = Summary::of(&spread(400)).unwrap();
    let width = |s: &Summary| s.interval.1 - s.interval.0;
    assert!(width(&many) < width(&few) / 4.0, "{few:?} {many:?}");
    assert!(many.interval.0 < 0.98 && 0.98 < many.interval.1, "{many:?}");
    assert_eq!(Summary::of(&spread(10)), Some(few), "not reproducible");
}

#[test]
fn small_costs_settle_within_one_percent_and_large_ones_within_a_tenth() {
    let s = |median, half| Summary {
        count: 9,
        median,
        quartiles: (median, median),
        interval: (median - half, median + half),
    };
    assert!(s(0.99, 0.0099).settled());
    assert!(!s(0.99, 0.011).settled());
    assert!(s(0.5, 0.04).settled());
    assert!(!s(0.5, 0.06).settled());
}

fn window(tps: f64, tool: Option<ToolUse>) -> Window {
    Window { tps, cpu: 100.0 / tps, p95: Some(1000.0 / tps), tool }
}

fn run() -> Run {
    let tool = Some(ToolUse { cpu: 0.004, memory: 27.6 });
    let pair = |with| Pair::new(window(900.0, None), window(with, tool), window(1100.0, None));
    let mode = |title: &str, pairs: Vec<Pair>, gave_up: Option<&str>| ModeRun {
        mode: title.to_owned(),
        title: title.to_owned(),
        attach: pairs.iter().map(|_| 0.25).collect(),
        detach: pairs.iter().map(|_| 0.1).collect(),
        pairs,
        switched: Vec::new(),
        gave_up: gave_up.map(str::to_owned),
    };
    Run {
        server: "mysql-9.7".into(),
        version: "9.7.4".into(),
        test: "oltp_update_index".into(),
        threads: 16,
        date: "2026-11-21".into(),
        machine: "2 CPUs".into(),
        tools: "perf 6.1".into(),
        detached: vec![window(900.0, None), window(1100.0, None), window(1000.0, None)],
        modes: vec![
            mode("armtrace", vec![pair(990.0), pair(980.0), pair(1010.0)], None),
            mode("perf", vec![], Some("perf ended:\nno")),
        ],
    }
}

#[test]
fn a_window_is_compared_with_the_mean_of_the_adjacent_ones() {
    let run = run();
    let ratios = run.modes[0].ratio(|w| w.tps).unwrap();
    assert_eq!((ratios.count, ratios.median, ratios.quartiles), (3, 0.99, (0.985, 1.0)));
    assert!(run.modes[1].ratio(|w| w.tps).is_none());
}

#[test]
fn a_load_becomes_a_table() {
    let table = run().table();
    assert!(table.starts_with("### MySQL 9.7.4, `oltp_update_index`, 16 threads\n"), "{table}");
    assert!(
        table.contains("3 windows with nothing attached, medians: 1000 transactions/s, 0.100 CPU seconds"),
        "{table}"
    );
    let row = "| armtrace | 3 | **0.990** | 0.985 to 1.000 | 0.980 to 1.010 | 1.000 | 0.980 to 1.010 | 1.00 | 0.4 % | 28 MiB |\n";
    assert!(table.contains(row), "{table}");
    assert!(table.contains("| perf | 0 |") && table.ends_with("\nperf was given up: perf ended: no\n"), "{table}");
    let mut untried = run();
    untried.modes[1].gave_up = None;
    assert!(!untried.table().contains("| perf |"), "a mode without pairs has a row");
    let columns = |line: &str| line.matches('|').count();
    assert!(table.lines().filter(|l| l.starts_with('|')).all(|l| columns(l) == 11), "{table}");
}

/// The kernel counts CPU time in ticks, and most windows have none.
#[test]
fn a_tools_own_cpu_is_a_mean() {
    let mut run = run();
    let uses = [0.0, 0.0, 0.015].map(|cpu| Some(ToolUse { cpu, memory: 27.6 }));
    for (pair, tool) in run.modes[0].pairs.iter_mut().zip(uses) {
        pair.with.tool = tool;
    }
    assert!(run.table().contains("| 0.5 % | 28 MiB |"), "{}", run.table());
}

#[test]
fn times_are_combined_over_loads() {
    let mut slow = run();
    slow.modes[0].attach = vec![0.75];
    let text = times(&[run(), slow]);
    assert!(text.contains("| MySQL | armtrace | 0.25 s | 0.75 s | 0.10 s | 0.10 s |\n"), "{text}");
    assert!(!text.contains("perf"), "a mode without times has a row: {text}");
}

#[test]
fn the_document_names_each_machine_once() {
    let text = document(&[run(), run()]);
    assert_eq!(text.matches("2 CPUs; perf 6.1.").count(), 1, "{text}");
    assert_eq!(text.matches("### MySQL").count(), 2);
}

#[test]
fn results_survive_serialisation() {
    let text = serde_json::to_string(&run()).unwrap();
    let again: Run = serde_json::from_str(&text).unwrap();
    assert_eq!(again.table(), run().table());
}

#[test]
fn loads_are_weighted_equally() {
    let known = Together::of(&[vec![0.9; 3], vec![1.0; 300], vec![]]).unwrap();
    assert_eq!((known.samples, known.count), (2, 303));
    assert!((known.mean - 0.9_f64.sqrt()).abs() < 1e-9, "{known:?}");
    assert_eq!(Together::of(&[vec![], vec![]]), None);
    let one = Together::of(&[spread(40)]).unwrap();
    let many = Together::of(&vec![spread(40); 9]).unwrap();
    let width = |t: &Together| t.interval.1 - t.interval.0;
    assert!(width(&many) < width(&one) / 2.0, "{one:?} {many:?}");
    assert!(many.interval.0 < 0.98 && 0.98 < many.interval.1, "{many:?}");
}

#[test]
fn tools_are_summarised_for_each_server_and_for_both() {
    let mut maria = run();
    maria.server = "mariadb-11.4".into();
    let text = together(&[run(), run(), maria]);
    for row in
        ["| MySQL | armtrace | 2 | 6 | **0.990** |", "| MariaDB | armtrace | 1 | 3 |", "| both | armtrace | 3 | 9 |"]
    {
        assert!(text.contains(row), "{row}: {text}");
    }
    assert!(!text.contains("perf"), "a tool without pairs has a row: {text}");
}

#[test]
fn newer_pairs_replace_older_ones_of_the_same_kind() {
    let mut newer = run();
    newer.date = "2026-11-22".into();
    newer.modes.truncate(1);
    newer.modes[0].switched = vec![newer.modes[0].pairs[0]; 8];
    newer.modes[0].pairs.clear();
    let both = run().with_newer(newer);
    assert_eq!((both.date.as_str(), both.modes.len()), ("2026-11-22", 2));
    assert_eq!((both.modes[0].pairs.len(), both.modes[0].switched.len(), both.modes[0].attach.len()), (3, 8, 3));
}

#[test]
fn short_windows_give_throughput_and_long_ones_the_rest() {
    let mut both = run();
    let short = |tps| Window { p95: None, ..window(tps, Some(ToolUse { cpu: 0.004, memory: 27.6 })) };
    both.modes[0].switched = vec![Pair::new(short(900.0), short(970.0), short(1100.0)); 9];
    let (long, both) = (run().table(), both.table());
    let row = |table: &str| table.lines().find(|l| l.starts_with("| armtrace")).unwrap().to_owned();
    assert!(row(&both).starts_with("| armtrace | 9 | **0.970** |"), "{both}");
    let last = |table: &str| row(table).rsplit(" | ").take(3).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(last(&both), last(&long));
}
