//! The live views, drawn from hand-built snapshots.

use armtrace::measure::checksum::Implementation;
use armtrace::measure::files::FileOperation;
use armtrace::measure::holder::HolderState;
use armtrace::measure::{cpu, files, fsync, latch, locks};
use armtrace::measure::{Replayed, Snapshot};
use armtrace::model::{Kind, Mode, ProbeState};
use armtrace::ui::table::LatchTable;
use armtrace::ui::LiveView;
use lab::snapshots::*;
use ratatui::backend::TestBackend;
use ratatui::Terminal;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const URL: &str = "http://localhost:9435/metrics";

fn rendered(now: &Snapshot, earlier: Option<&Snapshot>, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| frame.render_widget(&LatchTable::new(now, earlier, URL), frame.area())).unwrap();
    let content = terminal.backend().buffer().content.chunks(usize::from(width));
    content.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_string()).collect()
}

#[test]
fn the_table_at_80_columns() {
    let lines = rendered(&busy(60), Some(&busy(58)), 80, 24);
    let expected = "\
MySQL 9.7.4 · pid 4242 · 1m00s · http://localhost:9435/metrics
0.28 threads waiting · 175 waits/s · overhead 0.10% · aarch64 Neoverse-N1
100k statements/s, each 20.0µs CPU · 2.80µs waits · 500ns atomics and barriers
cpu: other 60% · kernel 15% · spin 10% · futex 10% · checksum 5%
remote handoffs: 29% of wait time · innodb/trx_mutex 29%
hot pages: sbtest/sbtest1.k_1 level 0 80.0ms/s
events not counted: 183 map_full
latch (last 2s)           mode waits/s  wait/s   mean    p99 spin/sleep  total
innodb/trx_mutex             -     100   150ms 1.50ms 1.50ms     50/50%  9.15s
innodb/index_tree_rw_lock    X      10  ~120ms 12.0ms 12.0ms     50/50%  7.32s
innodb/index_tree_rw_lock   SX      20  6.00ms  300µs  300µs     50/50%  366ms
innodb/index_tree_rw_lock    S      40  3.60ms 90.0µs 89.7µs     50/50%  220ms
innodb/trx_rseg_latch        X       5   200µs 40.0µs 39.9µs     50/50% 12.2ms
top call sites
  innodb/trx_mutex ← lock0lock.cc:5872 67%
  innodb/index_tree_rw_lock X ← btr0cur.cc:971 100%";
    assert_eq!(lines.join("\n").trim_end(), expected, "\n{}", lines.join("\n"));
}

#[test]
fn an_estimate_is_shown_whole_with_its_error() {
    let estimated = |ticks| {
        let mut snapshot = busy(ticks);
        // In each second, the standard error of trx_mutex is a third of its wait time.
        let waits = snapshot.latch.waits.iter_mut().find(|waits| waits.latch.ends_with("/trx_mutex")).unwrap();
        (waits.estimated_ns, waits.variance_us2) = (waits.waits.sum_ns, 50_000 * 50_000 * ticks);
        snapshot
    };
    for width in [80, 120] {
        let lines = rendered(&estimated(60), Some(&estimated(58)), width, 24);
        let row = lines.iter().find(|line| line.starts_with("innodb/trx_mutex")).unwrap();
        assert!(row.contains("     100 ~150ms ±46% 1.50ms 1.50ms     50/50%"), "{row}");
    }
}

#[test]
fn a_servers_own_words_are_no_commands_for_the_terminal() {
    let mut hostile = busy(60);
    hostile.target.version = "9.7\x1b]0;owned\x07".to_owned();
    hostile.latch.waits[0].latch = "wait/synch/mutex/innodb/\x1b[2Jx".to_owned();
    let output = Output::default();
    LiveView::with_output(Box::new(output.clone()), None, URL).draw(&hostile).unwrap();
    let text = output.take();
    assert!(text.contains("owned") && text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
}

/// Returns the busy server as if from a recording.
fn replayed(ticks: u64) -> Snapshot {
    let replayed = Replayed {
        name: "demo.rec".to_string(),
        length: Duration::from_secs(60),
        began_ms: 1_790_000_000_000,
        host: "db1".to_string(),
        ..Replayed::default()
    };
    Snapshot { replayed: Some(replayed), ..busy(ticks) }
}

const REPLAY: &str = "REPLAY of demo.rec, 1m00s recorded 2026-09-21 14:13 UTC on db1";

#[test]
fn a_replay_is_not_taken_for_a_live_server() {
    assert_eq!(rendered(&replayed(60), Some(&replayed(58)), 80, 24)[1], REPLAY);
    assert!(!rendered(&busy(60), Some(&busy(58)), 80, 24).join("\n").contains("REPLAY"));
    let mut over = replayed(60);
    over.replayed.as_mut().unwrap().is_over = true;
    assert_eq!(rendered(&over, None, 80, 24)[1], format!("{REPLAY}, over"));
}

/// Readers and writers of a latch wait at different call sites.
#[test]
fn each_mode_has_its_own_call_sites() {
    let mut now = busy(60);
    now.latch.callsites.extend([
        callsite(INDEX, Mode::S, "row0row.cc:965", 500_000_000_000),
        callsite(INDEX, Mode::S, "btr0cur.cc:971", 125_000_000_000),
    ]);
    let lines = rendered(&now, None, 120, 24);
    let row = |mode: &str| lines.iter().find(|line| line.contains(&format!("index_tree_rw_lock   {mode}"))).unwrap();
    assert!(row(" X").ends_with("btr0cur.cc:971 100%"), "{}", row(" X"));
    assert!(row(" S").ends_with("row0row.cc:965 80%"), "{}", row(" S"));
    assert!(!row("SX").contains(".cc:"), "this mode has no known call sites: {}", row("SX"));
}

/// Returns the busy server with reacquires that take this many milliseconds per second in all.
fn herd(ticks: u64, milliseconds: u64) -> Snapshot {
    let wait_ns = milliseconds * 1_000_000 * ticks;
    let all = vec![reacquires(COND_MUTEX, 3_000 * ticks, wait_ns), reacquires("unnamed:f", ticks, wait_ns / 2)];
    Snapshot { latch: latch::Figures { reacquires: all, ..busy(ticks).latch }, ..busy(ticks) }
}

#[test]
fn reacquires_have_a_line_but_no_row() {
    let line = "wake-ups, no contention: sql/LOCK_thread_cache 1.20s/s in 3.00k waits/s";
    let lines = rendered(&herd(60, 1200), Some(&herd(58, 1200)), 80, 24);
    assert!(lines.contains(&line.to_string()), "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line.contains("LOCK_thread_cache")).count(), 1);
    assert!(lines[1].starts_with("0.28 threads waiting"), "reacquires are not in the sums: {}", lines[1]);
    let wide = rendered(&herd(60, 1200), Some(&herd(58, 1200)), 120, 24);
    assert!(wide.contains(&format!("{line} · unnamed:f 600ms/s in 1 waits/s")), "{wide:#?}");
}

#[test]
fn locks_have_a_line_while_somebody_waits_or_has_waited() {
    let with = |ticks, waits, threads| Snapshot { locks: locks_waited_for(waits, threads), ..busy(ticks) };
    let lines = |now: &Snapshot| rendered(now, Some(&with(58, 4, 0)), 80, 24).join("\n");
    assert!(
        lines(&with(60, 12, 0)).contains("\nlocks: row lock 200ms/s in 4 waits/s\n"),
        "{}",
        lines(&with(60, 12, 0))
    );
    let both = "\nlocks: row lock 200ms/s in 4 waits/s, 2 waiting, the first for 300ms\n\
                locked: shop.orders (PRIMARY) 75%\n\
                blocked by: connection 12, idle in a transaction 75%\n";
    assert!(lines(&with(60, 12, 2)).contains(both), "{}", lines(&with(60, 12, 2)));
    assert!(lines(&with(60, 4, 2)).contains("\nlocks: row lock 2 waiting, the first for 300ms\n"));
    assert!(!lines(&with(60, 4, 0)).contains("locks:"));
}

#[test]
fn files_have_a_line_while_threads_wait_for_them() {
    let log = |ticks| file_waits("innodb/innodb_log_file", FileOperation::Sync, "", 300_000_000 * ticks);
    let data = |ticks, file| file_waits("innodb/innodb_data_file", FileOperation::Read, file, 50_000_000 * ticks);
    let with = |ticks| {
        let waits = vec![log(ticks), data(3 * ticks, "shop/orders.ibd"), data(ticks, "shop/items.ibd")];
        Snapshot { files: files::Figures { waits }, fsync: fsync::Figures::default(), ..busy(ticks) }
    };
    let line = "\nfiles: innodb_log_file sync ~300ms/s · innodb_data_file read ~200ms/s, 75% shop/orders.ibd\n";
    let table = rendered(&with(60), Some(&with(58)), 120, 24).join("\n");
    assert!(table.contains(line), "{table}");
    let timed = |ticks| {
        let calls = vec![flushes("innodb/innodb_log_file", 400 * ticks, 1_000_000)];
        Snapshot { fsync: fsync::Figures { calls, rests: false }, ..with(ticks) }
    };
    let line = "\nfiles: innodb_log_file sync 400ms/s in 400 calls/s, p99 995µs · innodb_data_file read ~200ms/s";
    let table = rendered(&timed(60), Some(&timed(58)), 120, 24).join("\n");
    assert!(table.contains(line), "{table}");
    let few = rendered(&busy(60), Some(&busy(58)), 120, 24).join("\n");
    assert!(!few.contains("files:"), "next to nothing is not told: {few}");
}

#[test]
fn locks_that_are_beyond_the_budget_have_a_line() {
    let mut now = busy(60);
    now.locks.rests = true;
    let lines = rendered(&now, Some(&busy(58)), 80, 24).join("\n");
    assert!(
        lines.contains("locks: not measured for some minutes: measuring so many would exceed the budget"),
        "{lines}"
    );
}

#[test]
fn quick_reacquires_have_no_line() {
    let lines = rendered(&herd(60, 14), Some(&herd(58, 14)), 80, 24);
    assert!(!lines.iter().any(|line| line.contains("wake-ups")), "{lines:#?}");
}

#[test]
fn wider_terminals_have_a_column_of_call_sites() {
    let lines = rendered(&busy(60), Some(&busy(58)), 120, 24);
    assert!(lines[5].ends_with("sbtest/sbtest1.PRIMARY level 1 40.0ms/s"), "{}", lines[5]);
    assert!(lines[7].ends_with("top call site"), "{}", lines[7]);
    assert!(lines[8].ends_with("lock0lock.cc:5872 67%"), "{}", lines[8]);
    assert_eq!(lines.len(), 24);
}

#[test]
fn idle_latches_come_after_contended_ones() {
    let mut earlier = busy(10);
    earlier.latch.waits.push(latch("wait/synch/mutex/sql/LOCK_open", Kind::Mutex, Mode::None, 9, 5_000_000_000));
    let mut now = busy(12);
    now.latch.waits.push(earlier.latch.waits.last().unwrap().clone());
    let lines = rendered(&now, Some(&earlier), 80, 24);
    let idle = lines.iter().find(|line| line.contains("LOCK_open")).unwrap();
    assert!(idle.starts_with("sql/LOCK_open"), "{idle}");
    assert!(idle.ends_with("-       0       0      -      -          -  45.0s"), "{idle}");
    assert_eq!(lines.iter().position(|line| line == idle), Some(13), "{}", lines.join("\n"));
}

#[test]
fn costs_are_shown_per_statement() {
    let each = |change: fn(&mut Snapshot)| {
        let (mut earlier, mut now) = (busy(58), busy(60));
        change(&mut earlier);
        change(&mut now);
        rendered(&now, Some(&earlier), 100, 24).into_iter().find(|line| line.contains("statements/s"))
    };
    let text = each(|_| {}).unwrap();
    assert_eq!(text, "100k statements/s, each 20.0µs CPU · 2.80µs waits · 500ns atomics and barriers");
    let not_sampled = each(|snapshot| snapshot.cpu.time.clear()).unwrap();
    assert_eq!(not_sampled, "100k statements/s, each 20.0µs CPU · 2.80µs waits");
    assert_eq!(each(|snapshot| snapshot.statements = None), None);
    assert_eq!(each(|snapshot| snapshot.statements = Some(7)), None, "there were no statements in the interval");
}

#[test]
fn unknown_figures_are_not_invented() {
    let lines = rendered(&empty(), None, 80, 24);
    assert!(lines[1].starts_with("0.00 threads waiting · 0 waits/s · overhead not known"), "{}", lines[1]);
    assert_eq!(lines[2], "no contended waits so far");
}

/// Returns a server after this many seconds, of whose CPU time probes took a tenth: 10 ms of each second.
fn idle(seconds: u64, statements: Option<u64>) -> Snapshot {
    let mut snapshot = Snapshot { statements, server_cpu_ns: Some(seconds * 10_000_000), ..empty() };
    snapshot.elapsed = Duration::from_secs(seconds);
    snapshot.probes = vec![probe("mutex_wait", ProbeState::Attached, seconds * 1_000, Some(1_000.0))];
    snapshot
}

#[test]
fn an_idle_server_is_called_idle() {
    let lines = rendered(&idle(60, None), Some(&idle(56, None)), 80, 24);
    assert!(lines[1].contains("overhead 0.10% of a CPU"), "{}", lines[1]);
    assert_eq!(lines[2], "server is idle: 1.00% of a CPU in the last 4s");
    let lines = rendered(&idle(60, Some(7)), Some(&idle(56, Some(7))), 80, 24);
    assert_eq!(lines[2], "server is idle: no statements and 1.00% of a CPU in the last 4s");
    let mut screen = armtrace::ui::screen::Screen::new(idle(56, None));
    screen.update(idle(60, None));
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let text = terminal.backend().to_string();
    assert!(
        text.contains("server is idle: 1.00% of a CPU in the last 4s") && text.contains("0.10% of a CPU"),
        "{text}"
    );
    assert!(text.contains("0.00 threads waiting") && !text.contains("-0"), "{text}");
}

#[test]
fn a_server_that_does_something_is_not_called_idle() {
    let says = |now: &Snapshot, earlier: &Snapshot| rendered(now, Some(earlier), 80, 24).join("\n").contains("idle");
    let before = idle(56, Some(7));
    assert!(says(&idle(60, Some(7)), &before));
    assert!(!says(&idle(60, Some(8)), &before), "statements");
    assert!(!says(&Snapshot { server_cpu_ns: Some(800_000_000), ..idle(60, Some(7)) }, &before), "CPU time");
    assert!(!says(&Snapshot { server_cpu_ns: None, ..idle(60, Some(7)) }, &before), "not known");
    assert!(!says(&Snapshot { paused: true, ..idle(60, Some(7)) }, &before), "not seen");
    assert!(!says(&Snapshot { up: false, ..idle(60, Some(7)) }, &before), "ended");
    let mut waits = idle(60, Some(7));
    waits.latch.waits.push(latch("wait/synch/mutex/sql/LOCK_open", Kind::Mutex, Mode::None, 9, 5_000_000_000));
    assert!(!says(&waits, &before), "waits");
    assert!(!says(&busy(60), &busy(58)));
}

/// Returns the lines of advice for a snapshot.
fn advice(now: &Snapshot) -> String {
    let lines = rendered(now, None, 220, 24);
    let advice = lines.into_iter().filter(|line| line.contains("hardware CRC") || line.contains("spinning is"));
    advice.collect::<Vec<_>>().join("\n")
}

#[test]
fn software_checksums_are_reported_if_the_cpu_has_an_instruction() {
    let mut now = busy(60);
    assert_eq!(advice(&now), "");
    now.cpu.time[4].function = "software::crc32".to_string();
    now.checksum.chosen = vec![checksum("software::crc32", Implementation::Software)];
    assert_eq!(
        advice(&now),
        "hardware CRC available, not used for crc32c of pages and redo log (software::crc32): about 5.00% of CPU to gain"
    );
    now.cpu.time.clear();
    assert!(advice(&now).ends_with("(software::crc32)"), "{}", advice(&now));
    now.checksum.chosen[0].cpu_has_instruction = false;
    assert_eq!(advice(&now), "");
}

#[test]
fn wasted_spins_are_reported() {
    let mut now = busy(60);
    // Half of the waits for this latch take more than a millisecond, and spinning ends after 180 µs.
    (now.latch.waits[0].spins_won, now.latch.waits[0].spins_wasted) = (1_000, 9_000);
    let long = "spinning is too long: 10.0% of the CPU time, and 90% of the spins for innodb/trx_mutex end asleep";
    assert!(advice(&now).starts_with(long), "{}", advice(&now));
    assert!(advice(&now).ends_with("(innodb_spin_wait_delay 6, innodb_sync_spin_loops 30)"), "{}", advice(&now));
    // If little CPU time is spent spinning, there is little to gain.
    now.cpu.time[3].ns = 1;
    assert_eq!(advice(&now), "");
    now.latch.waits[0].waits = waits(&[200_000; 10_000]);
    assert!(advice(&now).starts_with("spinning is too short: 90% of the spins"), "{}", advice(&now));
    // Successful spins need no advice.
    (now.latch.waits[0].spins_won, now.latch.waits[0].spins_wasted) = (9_000, 1_000);
    assert_eq!(advice(&now), "");
    now.latch.waits[0].spins_wasted = 90_000;
    now.spin = None;
    assert_eq!(advice(&now), "");
}

#[test]
fn any_terminal_size_is_survived() {
    for (width, height) in [(1, 1), (10, 3), (40, 5), (79, 4), (104, 9), (300, 2)] {
        rendered(&busy(9), Some(&busy(7)), width, height);
    }
}

#[test]
fn idle_waits_on_conditions_are_not_contention() {
    let text = rendered(&busy(60), None, 160, 24).join("\n");
    assert!(!text.contains("COND_thread_cache"), "{text}");
}

/// An output that stores what is written to it.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Output {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut self.0.lock().unwrap())).unwrap()
    }
}

#[test]
fn without_a_terminal_the_table_is_printed_as_plain_lines() {
    let output = Output::default();
    let mut view = LiveView::with_output(Box::new(output.clone()), None, URL);
    view.draw(&busy(10)).unwrap();
    view.draw(&busy(20)).unwrap();
    let text = output.take();
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    assert_eq!(text.matches("MySQL 9.7.4").count(), 2);
    assert!(text.contains("latch (last 10s)"), "{text}");
    assert!(text.contains("lock0lock.cc:5872 67%"), "{text}");
    assert!(text.ends_with("\n\n"), "{text:?}");
    assert_eq!(view.interval().as_secs(), 10);
}

#[test]
fn figures_cover_a_full_period_of_the_duty_cycle() {
    let output = Output::default();
    let mut view = LiveView::with_output(Box::new(output.clone()), Some(|| (80, 24)), URL);
    let mut drawn = |snapshot: &Snapshot| {
        view.draw(snapshot).unwrap();
        output.take()
    };
    assert!(drawn(&busy(2)).contains("latch (last 2s)"));
    assert!(drawn(&busy(4)).contains("latch (last 2s)"));
    for ticks in [6, 8, 10] {
        let text = drawn(&busy(ticks));
        assert!(text.contains("latch (last 4s)") && text.contains("100   150ms"), "{ticks}: {text}");
    }
    // Waits of one second are spread over the whole period.
    let mut after_burst = busy(12);
    after_burst.latch.waits[0] = latch(TRX, Kind::Mutex, Mode::None, 1_100 + 400, 1_500_000);
    assert!(drawn(&after_burst).contains("innodb/trx_mutex             -     150"), "after a burst of waits");
}

#[test]
fn on_a_terminal_the_table_is_redrawn_in_place() {
    let output = Output::default();
    let mut view = LiveView::with_output(Box::new(output.clone()), Some(|| (80, 24)), URL);
    view.draw(&busy(2)).unwrap();
    let lines = output.take().matches('\n').count();
    view.draw(&busy(4)).unwrap();
    let again = output.take();
    assert!(again.contains(&format!("\x1b[{lines}A")), "{again:?}");
}

#[test]
fn the_terminal_keeps_its_modes() {
    let output = Output::default();
    let mut view = LiveView::with_output(Box::new(output.clone()), Some(|| (80, 24)), URL);
    view.draw(&busy(2)).unwrap();
    let text = output.take();
    let modes = ["\x1b[?25l", "\x1b[?1049h", "\x1b[?7l", "\x1b[?1000h"];
    assert!(modes.iter().all(|mode| !text.contains(mode)), "{text:?}");
    assert_eq!(text.matches("\x1b[?2026h").count(), text.matches("\x1b[?2026l").count());
    assert!(text.trim_end_matches("\x1b[?2026l").ends_with("\x1b[0m\x1b[K\n\x1b[J"), "{text:?}");
}

#[test]
fn a_table_taller_than_the_terminal_is_cut() {
    let output = Output::default();
    let mut view = LiveView::with_output(Box::new(output.clone()), Some(|| (80, 6)), URL);
    view.draw(&busy(2)).unwrap();
    assert_eq!(output.take().matches('\n').count(), 5);
}

mod screen {
    use super::*;
    use armtrace::ui::screen::{Answer, Screen, Watching};
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    fn busy_screen() -> Screen {
        let mut screen = Screen::new(busy(58));
        screen.update(busy(60));
        screen
    }

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let content = terminal.backend().buffer().content.chunks(usize::from(width.max(1)));
        content.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_string()).collect()
    }

    fn press(screen: &mut Screen, keys: &[KeyCode]) {
        for key in keys {
            assert_eq!(screen.key(KeyEvent::new(*key, KeyModifiers::NONE)), Answer::Continue, "{key:?}");
        }
    }

    fn text(screen: &mut Screen) -> String {
        drawn(screen, 80, 24).join("\n")
    }

    /// Returns the names in the list, in order.
    fn names(screen: &mut Screen) -> Vec<String> {
        let lines = drawn(screen, 80, 24);
        let rows = lines[4..23].iter().take_while(|line| !line.is_empty());
        rows.map(|line| line.split_whitespace().next().unwrap_or_default().to_string()).collect()
    }

    /// Returns what is on a large screen, under a heading.
    fn screenshot(heading: &str, screen: &mut Screen) -> String {
        format!("== {heading}\n{}\n", drawn(screen, 130, 36).join("\n"))
    }

    /// `ARMTRACE_BLESS=1 cargo test --test ui` writes the screens anew.
    #[test]
    fn each_view_shows_all_figures() {
        let mut all = String::new();
        for view in '1'..='6' {
            let mut screen = busy_screen();
            press(&mut screen, &[KeyCode::Char(view)]);
            all += &screenshot(&format!("view {view}"), &mut screen);
            press(&mut screen, &[KeyCode::Char('t')]);
            all += &screenshot(&format!("view {view}, since attach"), &mut screen);
            press(&mut screen, &[KeyCode::Char('t'), KeyCode::Down, KeyCode::Enter]);
            all += &screenshot(&format!("view {view}, its second row opened"), &mut screen);
            press(&mut screen, &[KeyCode::Esc, KeyCode::Char('>'), KeyCode::Char('I')]);
            all += &screenshot(&format!("view {view}, by the next column, backwards"), &mut screen);
        }
        let mut screen = busy_screen();
        press(&mut screen, &[KeyCode::Enter]);
        all += &screenshot("the first latch", &mut screen);
        press(&mut screen, &[KeyCode::Esc, KeyCode::F(1)]);
        all += &screenshot("help", &mut screen);
        lab::golden::check("ui/screens.txt", &all);
    }

    #[test]
    fn keys_move_through_the_list() {
        let mut screen = busy_screen();
        let opened = |screen: &mut Screen, keys: &[KeyCode]| {
            press(screen, keys);
            press(screen, &[KeyCode::Enter]);
            let first = text(screen).lines().nth(3).unwrap_or_default().to_owned();
            press(screen, &[KeyCode::Esc]);
            first
        };
        let all = [KeyCode::Home, KeyCode::Down, KeyCode::Char('j'), KeyCode::Up, KeyCode::Char('k'), KeyCode::End];
        let shown: Vec<String> = all.iter().map(|key| opened(&mut screen, &[*key])).collect();
        lab::golden::check("ui/moves.txt", &(shown.join("\n") + "\n"));
    }

    #[test]
    fn latches_at_80_by_24() {
        let lines = drawn(&mut busy_screen(), 80, 24);
        let expected = "\
MySQL 9.7.4 · pid 4242 · 1m00s · aarch64 Neoverse-N1
0.28 threads waiting · 175 waits/s · overhead 0.10% · 183 events not counted
 1 Latches  2 Call sites  3 Pages  4 CPU  5 NUMA  6 Probes  last 2s
latch                    mode waits/s wait/s▼   mean    p99    max asleep  total
innodb/trx_mutex            -     100   150ms 1.50ms 1.50ms 1.50ms    50%  9.15s
innodb/i…ex_tree_rw_lock    X      10  ~120ms 12.0ms 12.0ms 12.0ms    50%  7.32s
innodb/i…ex_tree_rw_lock   SX      20  6.00ms  300µs  300µs  300µs    50%  366ms
innodb/i…ex_tree_rw_lock    S      40  3.60ms 90.0µs 89.7µs 90.0µs    50%  220ms
innodb/trx_rseg_latch       X       5   200µs 40.0µs 39.9µs 40.0µs    50% 12.2ms";
        assert_eq!(lines[..23].join("\n").trim_end(), expected, "\n{}", lines.join("\n"));
        assert!(lines[23].starts_with("F1 help") && lines[23].ends_with("q quit"), "{}", lines[23]);
        assert_eq!(lines.len(), 24);
        assert!(lines.iter().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn a_replay_says_so_above_every_view() {
        let mut screen = Screen::new(replayed(58));
        screen.update(replayed(60));
        for view in '1'..='6' {
            press(&mut screen, &[KeyCode::Char(view)]);
            assert_eq!(drawn(&mut screen, 80, 24)[1], REPLAY, "view {view}");
        }
    }

    /// A server that ends with its recording starts again when the recording repeats.
    #[test]
    fn figures_of_the_last_seconds_come_back_when_the_server_does() {
        let mut screen = Screen::new(replayed(56));
        screen.update(Snapshot { up: false, ..replayed(58) });
        assert!(text(&mut screen).contains("since attach"));
        screen.update(replayed(60));
        assert!(text(&mut screen).contains("last 4s"), "{}", text(&mut screen));
    }

    #[test]
    fn reacquires_are_shown_above_the_latches() {
        let mut screen = Screen::new(herd(58, 1200));
        screen.update(herd(60, 1200));
        let lines = drawn(&mut screen, 80, 24);
        assert_eq!(lines[3], "wake-ups, no contention: sql/LOCK_thread_cache 1.20s/s in 3.00k waits/s");
        assert!(!names(&mut screen).iter().any(|name| name.contains("LOCK_thread_cache")));
        press(&mut screen, &[KeyCode::Char('2')]);
        assert!(!text(&mut screen).contains("wake-ups"));
    }

    #[test]
    fn any_column_sorts_both_ways() {
        let mut screen = busy_screen();
        assert_eq!(names(&mut screen)[0], "innodb/trx_mutex");
        // From wait/s to mean: waits for the index in X mode take longest.
        press(&mut screen, &[KeyCode::Char('>')]);
        assert!(text(&mut screen).contains("mean▼"));
        assert!(drawn(&mut screen, 80, 24)[4].contains("12.0ms"));
        press(&mut screen, &[KeyCode::Char('I')]);
        assert!(text(&mut screen).contains("mean▲") && drawn(&mut screen, 80, 24)[4].contains("40.0µs"));
        // Back to the names, and from there wrap around to total.
        press(&mut screen, &[KeyCode::Char('<'); 4]);
        let by_name = names(&mut screen);
        assert!(text(&mut screen).contains("latch▼"), "{}", text(&mut screen));
        assert_eq!((by_name[0].as_str(), by_name[4].as_str()), ("innodb/i…ex_tree_rw_lock", "innodb/trx_rseg_latch"));
        press(&mut screen, &[KeyCode::Char('<')]);
        assert!(text(&mut screen).contains("total▼"));
    }

    #[test]
    fn totals_are_since_attach() {
        let mut screen = busy_screen();
        press(&mut screen, &[KeyCode::Char('t')]);
        let all = text(&mut screen);
        assert!(all.contains("since attach") && all.contains("102"), "{all}");
    }

    #[test]
    fn a_latch_opens_and_closes() {
        let mut screen = busy_screen();
        press(&mut screen, &[KeyCode::Down, KeyCode::Enter]);
        let opened = text(&mut screen);
        for part in [
            "wait/synch/sxlock/innodb/index_tree_rw_lock X",
            "20 waits · p50 10.0ms · p90 11.6ms · p99 12.0ms · max 12.0ms",
            "awake 120ms · asleep 120ms in 20 sleeps",
            "spinning took 60.0ms of CPU time · 20 spins, 75% of them won",
            "          wait   waits    spin   won",
            "     X   7.32s     610   1.83s   75%",
            "≤ 16.0ms      20 ███████████████████    100%   7.32s btr0cur.cc:971",
        ] {
            assert!(opened.contains(part), "{part:?} is not in\n{opened}");
        }
        press(&mut screen, &[KeyCode::Esc]);
        assert!(!text(&mut screen).contains("histogram of waits"));
    }

    /// The latch has waits in all 25 buckets, and more call sites than fit.
    #[test]
    fn an_opened_latch_fits_on_the_screen() {
        let mut now = busy(60);
        now.latch.waits.truncate(1);
        now.latch.waits[0].waits.buckets = std::array::from_fn(|i| 100 * i as u64 + 10_000);
        now.latch.callsites =
            (0..30).map(|i| callsite(TRX, Mode::None, &format!("lock0lock.cc:{i}"), 1_000 + i)).collect();
        let mut screen = Screen::new(now);
        press(&mut screen, &[KeyCode::Enter]);
        let opened = text(&mut screen);
        assert!(
            opened.contains("≤ 8.00µs") && opened.contains("more") && opened.contains("lock0lock.cc:29"),
            "{opened}"
        );
        assert!(opened.lines().all(|line| line.chars().count() <= 80), "{opened}");
        assert_eq!(opened.lines().filter(|line| line.contains('█')).count(), 7, "{opened}");
        for last in [" not woken      0    915", "100% not known"] {
            assert!(opened.contains(last), "{last:?} is not in\n{opened}");
        }
    }

    #[test]
    fn a_filter_hides_rows_until_it_is_removed() {
        let mut screen = busy_screen();
        press(&mut screen, &[KeyCode::Char('/'), KeyCode::Char('R'), KeyCode::Char('s'), KeyCode::Char('q')]);
        assert!(text(&mut screen).contains("no name matches the filter"), "q is part of the filter");
        press(&mut screen, &[KeyCode::Backspace, KeyCode::Enter]);
        assert_eq!(names(&mut screen), ["innodb/trx_rseg_latch"]);
        press(&mut screen, &[KeyCode::Esc]);
        assert_eq!(names(&mut screen).len(), 5);
    }

    #[test]
    fn views_have_their_own_columns() {
        let mut screen = busy_screen();
        press(&mut screen, &[KeyCode::Tab]);
        assert!(text(&mut screen).contains("lock0lock.cc:5872") && text(&mut screen).contains("share"));
        press(&mut screen, &[KeyCode::Char('3')]);
        assert!(text(&mut screen).contains("sbtest/sbtest1.k_1") && text(&mut screen).contains("level"));
        press(&mut screen, &[KeyCode::Char('6')]);
        let probes = text(&mut screen);
        assert!(probes.contains("mutex_enter_inline:begin") && probes.contains("failed"), "{probes}");
        press(&mut screen, &[KeyCode::Char('1')]);
        assert!(text(&mut screen).contains("asleep"));
    }

    #[test]
    fn cpu_time_is_shown_by_class_and_function() {
        let mut screen = busy_screen();
        press(&mut screen, &[KeyCode::Char('4')]);
        let lines = drawn(&mut screen, 80, 24);
        let expected = "\
100k statements/s, each 20.0µs CPU · 2.80µs waits · 500ns atomics and barriers
cpu: other 60% · kernel 15% · spin 10% · futex 10% · checksum 5%
statements, since attach
   40±1% UPDATE sbtest1 SET k = k + ? WHERE id = ?
   25±1% no statement
   20±1% SELECT c FROM sbtest1 WHERE id = ?
class · function                                            CPUs▼  share   total
other · other                                                1.20  60.0%   73.2s
kernel · other                                               0.30  15.0%   18.3s
futex · native_queued_spin_lock_slowpath                     0.20  10.0%   12.2s
spin · ut_delay                                              0.20  10.0%   12.2s
checksum · hardware::crc32_using_pclmul                      0.10  5.00%   6.10s";
        assert_eq!(lines[3..23].join("\n").trim_end(), expected, "\n{}", lines.join("\n"));
        press(&mut screen, &[KeyCode::Char('/'), KeyCode::Char('s'), KeyCode::Char('p'), KeyCode::Enter]);
        assert!(!text(&mut screen).contains("kernel ·") && text(&mut screen).contains("ut_delay"));
        let mut without = Screen::new(Snapshot { cpu: cpu::Figures { time: Vec::new(), ..busy(60).cpu }, ..busy(60) });
        press(&mut without, &[KeyCode::Char('4')]);
        assert!(text(&mut without).contains("nothing seen so far"), "{}", text(&mut without));
        press(&mut without, &[KeyCode::Char('1'), KeyCode::Enter]);
        assert!(!text(&mut without).contains("CPU time"), "{}", text(&mut without));
    }

    #[test]
    fn handoffs_are_shown_by_latch_and_opened_by_node() {
        let mut screen = busy_screen();
        press(&mut screen, &[KeyCode::Char('5')]);
        let lines = drawn(&mut screen, 80, 24);
        // Per second there are 100 waits of 1.5 ms: 60 handoffs from 0 to 0, 25 from 0 to 1, and 15 to 1 without a
        // wake-up.
        let expected = "\
between 0, 1: 25% of the wait remote, 60% local, 15% not woken
latch                             handed/s  wait/s remote/▼  local remote  moved
innodb/trx_mutex                       100   150ms   37.5ms  60.0%  25.0%  20.0%";
        assert_eq!(lines[3..23].join("\n").trim_end(), expected, "\n{}", lines.join("\n"));
        press(&mut screen, &[KeyCode::Enter]);
        let opened = text(&mut screen);
        let matrix = [
            "from \\ to       0      1",
            "         0    120     50",
            "         1      0      0",
            " not woken      0     30",
        ];
        for part in ["wait/synch/mutex/innodb/trx_mutex", matrix[0], matrix[1], matrix[2], matrix[3]] {
            assert!(opened.contains(part), "{part:?} is not in\n{opened}");
        }
        press(&mut screen, &[KeyCode::Char('t')]);
        assert!(text(&mut screen).contains("         0  3.66k  1.52k"), "{}", text(&mut screen));
    }

    /// A matrix of eight nodes would not fit, so the pairs with the most handoffs are listed.
    #[test]
    fn with_many_nodes_the_most_handoffs_are_listed() {
        let places: Vec<String> = (0..8).map(|n| format!("cpus {}-{}", 16 * n, 16 * n + 15)).collect();
        let cells = places.iter().zip(places.iter().skip(1)).zip(1..);
        let handoffs = cells.map(|((from, to), n)| handoffs(TRX, Some(from), to, 100 * n)).collect();
        let mut screen = Screen::new(Snapshot {
            latch: latch::Figures { domains: places.clone(), handoffs, ..busy(60).latch },
            ..busy(60)
        });
        press(&mut screen, &[KeyCode::Char('5')]);
        assert!(text(&mut screen).contains("between cpus 0-"), "{}", text(&mut screen));
        press(&mut screen, &[KeyCode::Enter]);
        let opened = text(&mut screen);
        assert!(opened.contains("most handoffs") && opened.contains("    700 cpus 96-111 → cpus 112-127"), "{opened}");
        assert!(!opened.contains("300 cpus") && opened.lines().all(|line| line.chars().count() <= 80), "{opened}");
    }

    #[test]
    fn a_machine_with_one_node_says_so() {
        let mut screen = Screen::new(Snapshot {
            latch: latch::Figures { domains: Vec::new(), handoffs: Vec::new(), ..busy(60).latch },
            ..busy(60)
        });
        press(&mut screen, &[KeyCode::Char('5')]);
        let numa = text(&mut screen);
        assert!(numa.contains("only one NUMA node") && numa.contains("--handoffs core"), "{numa}");
        press(&mut screen, &[KeyCode::Char('1'), KeyCode::Enter]);
        let opened = text(&mut screen);
        assert!(opened.contains("histogram of waits") && !opened.contains("from \\ to"), "{opened}");
    }

    #[test]
    fn waits_for_locks_are_above_the_list() {
        let mut screen = Screen::new(busy(58));
        screen.update(Snapshot { locks: locks_waited_for(12, 2), ..busy(60) });
        let lines = drawn(&mut screen, 80, 24);
        assert!(lines[2].starts_with("locks: row lock ") && lines[2].contains("2 waiting"), "{lines:#?}");
    }

    /// The longest line of tabs fits into 80 columns.
    #[test]
    fn a_paused_screen_of_totals_says_so() {
        let mut screen = busy_screen();
        press(&mut screen, &[KeyCode::Char('t'), KeyCode::Char('Z')]);
        let tabs = drawn(&mut screen, 80, 24).into_iter().find(|line| line.contains("6 Probes"));
        assert!(tabs.is_some_and(|tabs| tabs.ends_with("since attach  paused")), "{}", text(&mut screen));
    }

    #[test]
    fn a_paused_screen_does_not_change() {
        let mut screen = busy_screen();
        press(&mut screen, &[KeyCode::Char('Z')]);
        let before = text(&mut screen);
        screen.update(busy(70));
        assert!(before.contains("paused"));
        assert_eq!(text(&mut screen), before);
        press(&mut screen, &[KeyCode::Char('Z')]);
        screen.update(busy(72));
        assert!(text(&mut screen).contains("1m12s"));
    }

    #[test]
    fn the_selection_stays_visible() {
        let latches = (0..50)
            .map(|i| latch(&format!("wait/synch/mutex/innodb/m{i:02}"), Kind::Mutex, Mode::None, 100 - i, 1_000));
        let mut screen = Screen::new(Snapshot {
            latch: latch::Figures { waits: latches.collect(), reacquires: Vec::new(), ..busy(2).latch },
            locks: locks::Figures::default(),
            ..busy(2)
        });
        press(&mut screen, &[KeyCode::End]);
        assert_eq!(names(&mut screen).last().map(String::as_str), Some("innodb/m49"));
        press(&mut screen, &[KeyCode::PageUp, KeyCode::PageUp, KeyCode::PageUp]);
        assert_eq!(names(&mut screen)[0], "innodb/m00");
    }

    #[test]
    fn a_question_mark_says_what_is_known_of_a_latch() {
        let mut screen = busy_screen();
        press(&mut screen, &[KeyCode::Down, KeyCode::Char('?')]);
        let shown = text(&mut screen);
        for words in ["innodb/index_tree_rw_lock", "that in modes X and SX", "→ Insert in the order of the primary key"]
        {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        assert!(shown.contains("docs/reference/latches.md#trees-of-indexes"), "{shown}");
        press(&mut screen, &[KeyCode::Esc, KeyCode::Up, KeyCode::Char('?')]);
        assert!(text(&mut screen).contains("Nothing is known of innodb/trx_mutex"), "{}", text(&mut screen));
        let mut slow = busy(62);
        slow.checksum.chosen = vec![checksum("ut_crc32_sw", Implementation::Software)];
        screen.update(slow);
        press(&mut screen, &[KeyCode::Esc, KeyCode::Char('4'), KeyCode::Char('?')]);
        let shown = drawn(&mut screen, 120, 60).join("\n");
        assert!(shown.contains("Trees of indexes: "), "the whole server's: {shown}");
        assert!(shown.contains("hardware CRC available"), "the whole server's: {shown}");
        press(&mut screen, &[KeyCode::Esc]);
        assert!(!drawn(&mut screen, 120, 60).join("\n").contains("Trees of indexes: "), "any key closes it");
    }

    #[test]
    fn a_holder_that_queues_without_a_cpu_has_not_slept_for_it() {
        let mut snapshot = busy(4);
        let preempted = snapshot.holder.blocked.iter_mut().find(|row| row.holding.state == HolderState::Preempted);
        preempted.expect("a preempted holder").holding.waits_for = Some(TRX.to_string());
        let mut screen = Screen::new(snapshot);
        press(&mut screen, &[KeyCode::Down, KeyCode::Enter]);
        let shown = drawn(&mut screen, 120, 60).join("\n");
        assert!(shown.contains("had no CPU → innodb/trx_mutex"), "{shown}");
        assert!(shown.contains("waited for innodb/trx_mutex"), "{shown}");
    }

    #[test]
    fn three_keys_quit_and_f1_shows_help() {
        for (key, modifiers) in [
            (KeyCode::Char('q'), KeyModifiers::NONE),
            (KeyCode::F(10), KeyModifiers::NONE),
            (KeyCode::Char('c'), KeyModifiers::CONTROL),
        ] {
            assert_eq!(busy_screen().key(KeyEvent::new(key, modifiers)), Answer::Quit);
        }
        let mut screen = busy_screen();
        press(&mut screen, &[KeyCode::F(1)]);
        assert!(text(&mut screen).contains("sort by the next column"));
        press(&mut screen, &[KeyCode::Char('q')]);
        assert!(!text(&mut screen).contains("sort by the next column"), "any key closes the help");
    }

    fn answer(screen: &mut Screen, key: char) -> Answer {
        screen.key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE))
    }

    #[test]
    fn a_watched_line_at_80_by_24() {
        let mut screen = busy_screen();
        assert!(text(&mut screen).contains("w watch"));
        assert_eq!(answer(&mut screen, 'w'), Answer::Watch(TRX.to_string()));
        let looking = text(&mut screen);
        assert!(looking.contains("watching innodb/trx_mutex: looking for waiters"), "{looking}");
        assert!(looking.contains("histogram of waits") && looking.contains("w stop watching"), "{looking}");
        screen.watching(Watching::Bursts { done: 12, of: 35 });
        assert!(text(&mut screen).contains("watching innodb/trx_mutex: 12 of 35 bursts"));
        screen.watching(Watching::Found(Box::new(false_sharing())));
        let lines = drawn(&mut screen, 80, 24);
        let expected = "\
FALSE SHARING: threads that do not hold the latch take its cache line away by
touching the words marked *. 200 of 400 accesses (50.0%) came from another CPU
than the one before and moved the line.
64 bytes around 0x7f0000001040 · 35 bursts in 2.2s · 700 accesses, 15.0µs each
watched: the instance of 3 with the most waiters (75.0%)
 offset  what                            touches  per ms  writes  CPUs
     +0  the latch                           400      40    100%  1 75%, 0 25%
           count_pages                      100%            100%
     +8* neighbour: buf_stat+8               200      20    100%  1 75%, 0 25%
           count_pages                      100%            100%";
        let begin = lines.iter().position(|line| line.starts_with("FALSE")).unwrap_or(0);
        assert!(lines[3].starts_with(TRX) && lines[4].contains("p99"), "{}", lines.join("\n"));
        assert!(lines[begin - 1].is_empty(), "{}", lines.join("\n"));
        assert_eq!(lines[begin..23].join("\n").trim_end(), expected, "\n{}", lines.join("\n"));
        assert!(lines[23].starts_with("Esc back to its waits") && lines[23].ends_with("q quit"), "{}", lines[23]);
    }

    #[test]
    fn a_tall_screen_shows_the_waits_below_the_watched_line() {
        let mut screen = busy_screen();
        answer(&mut screen, 'w');
        screen.watching(Watching::Found(Box::new(false_sharing())));
        let tall = drawn(&mut screen, 120, 45).join("\n");
        assert!(tall.contains("lock xadd %rax,(%rdi)") && tall.contains("histogram of waits"), "{tall}");
        assert!(!text(&mut screen).contains("histogram of waits"));
    }

    #[test]
    fn a_watched_line_stays_until_the_user_closes_it() {
        let mut screen = busy_screen();
        answer(&mut screen, 'w');
        press(&mut screen, &[KeyCode::Esc]);
        assert!(text(&mut screen).contains("[watching innodb/trx_mutex: looking for waiters]"));
        screen.watching(Watching::Found(Box::new(false_sharing())));
        assert!(!text(&mut screen).contains("watching"));
        press(&mut screen, &[KeyCode::Enter]);
        assert!(text(&mut screen).contains("FALSE SHARING"));
        press(&mut screen, &[KeyCode::Esc]);
        let page = text(&mut screen);
        assert!(page.contains("histogram of waits") && !page.contains("FALSE SHARING"), "{page}");
        press(&mut screen, &[KeyCode::Esc]);
        assert!(text(&mut screen).contains("wait/s▼"));
    }

    #[test]
    fn one_latch_is_watched_at_a_time() {
        let mut screen = busy_screen();
        assert_eq!(answer(&mut screen, 'w'), Answer::Watch(TRX.to_string()));
        press(&mut screen, &[KeyCode::Esc, KeyCode::Down]);
        assert_eq!(answer(&mut screen, 'w'), Answer::Continue, "another latch is being watched");
        let other = text(&mut screen);
        assert!(other.contains(INDEX) && other.contains("[watching innodb/trx_mutex"), "{other}");
        press(&mut screen, &[KeyCode::Esc, KeyCode::Up, KeyCode::Enter]);
        assert_eq!(answer(&mut screen, 'w'), Answer::StopWatch);
        screen.watching(Watching::Found(Box::new(false_sharing())));
        assert_eq!(answer(&mut screen, 'w'), Answer::Watch(TRX.to_string()), "again");
        // Rows in other views are not latches, so there is nothing to watch.
        let mut screen = busy_screen();
        press(&mut screen, &[KeyCode::Char('6')]);
        assert_eq!(answer(&mut screen, 'w'), Answer::Continue);
    }

    #[test]
    fn a_failed_watch_shows_the_reason_above_the_waits() {
        let mut screen = busy_screen();
        answer(&mut screen, 'w');
        let why = "no hardware watchpoint is free: a debugger, perf or another --watch uses them. Try again when that has ended";
        screen.watching(Watching::Failed(why.to_string()));
        let failed = text(&mut screen);
        assert!(failed.contains("NOT WATCHED: no hardware watchpoint is free"), "{failed}");
        assert!(failed.contains("histogram of waits"), "{failed}");
        press(&mut screen, &[KeyCode::Esc]);
        assert!(!text(&mut screen).contains("NOT WATCHED"));
    }

    /// Nothing panics, whatever the size and the view.
    #[test]
    fn every_view_survives_any_terminal_size() {
        for (width, height) in [(0, 0), (1, 1), (5, 3), (20, 4), (40, 6), (80, 5), (200, 60)] {
            let mut screen = busy_screen();
            for keys in [
                &[][..],
                &[KeyCode::Enter],
                &[KeyCode::Char('2')],
                &[KeyCode::Char('4')],
                &[KeyCode::Char('5')],
                &[KeyCode::Enter],
                &[KeyCode::Char('6')],
                &[KeyCode::F(1)],
            ] {
                press(&mut screen, keys);
                drawn(&mut screen, width, height);
            }
            press(&mut screen, &[KeyCode::Esc, KeyCode::Char('1')]);
            answer(&mut screen, 'w');
            for state in [
                Watching::Looking,
                Watching::Bursts { done: 1, of: 35 },
                Watching::Failed("no watchpoint is free".to_string()),
                Watching::Found(Box::new(false_sharing())),
            ] {
                screen.watching(state);
                drawn(&mut screen, width, height);
            }
        }
        let mut idle = Screen::new(empty());
        assert!(text(&mut idle).contains("nothing seen so far"));
        press(&mut idle, &[KeyCode::Enter, KeyCode::Down, KeyCode::End]);
        let mut ended = busy_screen();
        ended.update(Snapshot { up: false, ..busy(61) });
        assert!(text(&mut ended).contains("server has ended"));
    }
}

mod watched_line {
    use super::*;
    use armtrace::measure::watchpoint::{Moves, Sharing, TouchingFunction};
    use armtrace::ui::watch;

    #[test]
    fn false_sharing_is_reported_with_its_evidence() {
        let expected = "\
wait/synch/mutex/innodb/trx_mutex at 0x7f0000001040, the instance of 3 with the most waiters (75.0%)
cache line of 64 bytes · 35 bursts in 2.2s on 2 CPUs, each at most 10ms and 200 accesses per word and CPU · 700 accesses seen, 15.0µs each

 offset  what                                            touches  per ms  writes  CPUs
     -8  not touched
     +0  the latch                                           400      40    100%  1 75%, 0 25%
           count_pages                                      100%            100%  lock xadd %rax,(%rdi)
     +8* neighbour: buf_stat+8                               200      20    100%  1 75%, 0 25%
           count_pages                                      100%            100%  lock xadd %rax,(%rdi)
+16…+24  not touched

FALSE SHARING: threads that do not hold the latch take its cache line away by touching buf_stat+8 at +8 (written by count_pages), 75.0% of the line's moves while it was watched. 200 of 400 accesses (50.0%) came from another CPU than the one before and moved the line.
";
        let text = watch::text(&false_sharing());
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn a_screen_has_the_verdict_and_the_functions_that_touch_the_line_most() {
        let mut seen = false_sharing();
        let function = |i: u64| TouchingFunction { function: format!("f{i}"), ..touching(199 - i) };
        seen.words[1].functions = (0..9).map(function).collect();
        let expected = "\
FALSE SHARING: threads that do not hold the latch take its cache line away by
touching the words marked *. 200 of 400 accesses (50.0%) came from another CPU
than the one before and moved the line.
64 bytes around 0x7f0000001040 · 35 bursts in 2.2s · 700 accesses, 15.0µs each
watched: the instance of 3 with the most waiters (75.0%)
 offset  what                            touches  per ms  writes  CPUs
     +0  the latch                           400      40    100%  1 75%, 0 25%
           f0                              49.8%            100%
           f1                              49.5%            100%
     +8* neighbour: buf_stat+8               200      20    100%  1 75%, 0 25%
           count_pages                      100%            100%";
        let shown = watch::lines(&seen, 80, 11).join("\n");
        assert_eq!(shown, expected, "\n{shown}");
        // Words come before functions, and the most touched words come first.
        let words = |height| watch::lines(&seen, 80, height).iter().filter(|line| line.contains("25%")).count();
        assert_eq!([6, 7, 8, 9].map(words), [0, 1, 2, 2]);
        let wide = watch::lines(&seen, 120, 20).join("\n");
        assert!(wide.contains("lock xadd") && wide.contains("f3") && !wide.contains("f4"), "{wide}");
        for (width, height) in [(0, 0), (1, 1), (10, 3), (40, 8), (200, 60)] {
            let shown = watch::lines(&seen, width, height);
            assert!(shown.len() <= height && shown.iter().all(|line| line.chars().count() <= width), "{shown:?}");
        }
    }

    #[test]
    fn every_verdict_has_its_evidence() {
        let moves = Moves { followed: 400, moved: 200, between_domains: 100, user: 150, ..Moves::default() };
        let says = |verdict, words: &[&str]| {
            let text = watch::text(&line_watch(verdict, moves));
            let last = text.lines().last().unwrap_or_default();
            assert!(words.iter().all(|word| last.contains(word)), "{last}");
        };
        says(
            Sharing::Shared,
            &["NO FALSE SHARING, but", "buf_stat+8 at +8", "75.0% of", "50.0% of them between NUMA nodes"],
        );
        says(Sharing::LatchOnly, &["NO FALSE SHARING: the latch itself", "200 of 400"]);
        says(Sharing::Still, &["NO FALSE SHARING: the line hardly moves", "200 of 400"]);
        says(Sharing::Quiet, &["TOO LITTLE", "400 accesses"]);
    }
}
