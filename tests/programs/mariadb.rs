use std::collections::BTreeMap;

use armtrace::analysis::direct_calls;
use armtrace::catalog::{Family, Flavor, Naming, Table};
use armtrace::discovery::{self, event_waits, find_wait_function, spin_functions, Number, Variables};
use armtrace::names::{Made, MariadbRules};
use armtrace::symbols::{Image, SymbolSource};

use super::{address, compiled, latch_plan, COMPILERS};

const MUTEX_WAIT: &str = "_ZN14srw_mutex_implILb0EE13wait_and_lockEv";
const SPIN_MUTEX_WAIT: &str = "_ZN14srw_mutex_implILb1EE13wait_and_lockEv";
const READ_WAIT: &str = "_ZN14ssux_lock_implILb0EE7rd_waitEv";
const SPIN_READ_WAIT: &str = "_ZN14ssux_lock_implILb1EE7rd_waitEv";
const WRITE_WAIT: &str = "_ZN14ssux_lock_implILb0EE7wr_waitEj";
const SPIN_WRITE_WAIT: &str = "_ZN14ssux_lock_implILb1EE7wr_waitEj";
/// In the catalog's order.
const WAITS: [&str; 6] = [MUTEX_WAIT, SPIN_MUTEX_WAIT, READ_WAIT, SPIN_READ_WAIT, WRITE_WAIT, SPIN_WRITE_WAIT];

fn mariadb(compiler: &str, options: &[&str]) -> Image {
    compiled(compiler, &["mariadb.c", "mariadb_keys.c"], options)
}

fn family(image: &Image) -> &'static Family {
    let family = discovery::family(image).expect("a known family");
    assert_eq!(discovery::flavor(image, family), Flavor::Mariadb);
    family
}

fn entries(image: &Image) -> Vec<Vec<u64>> {
    let functions = family(image).wait_functions.iter();
    functions
        .map(|function| find_wait_function(image, function).into_iter().map(|range| range.start).collect())
        .collect()
}

#[test]
fn wait_functions_are_told_apart_without_names() {
    for compiler in COMPILERS {
        let whole = mariadb(compiler, &[]);
        let expected: Vec<Vec<u64>> = WAITS.iter().map(|name| vec![address(&whole, name)]).collect();
        assert_eq!(entries(&whole), expected, "{compiler}");
        let stripped = mariadb(compiler, &["-s"]);
        assert_eq!(stripped.symbol_source(), SymbolSource::Dynsym, "{compiler}");
        assert_eq!(stripped.symbol(MUTEX_WAIT), None);
        assert_eq!(entries(&stripped), expected, "{compiler}");
    }
}

#[test]
fn the_same_sites_are_planned_without_names() {
    for compiler in COMPILERS {
        let [whole, stripped] = [&[][..], &["-s"]].map(|options| latch_plan(&mariadb(compiler, options)));
        let sites = |plan: &armtrace::measure::latch::Plan| -> Vec<(String, u64)> {
            plan.sites.iter().map(|site| (site.name.clone(), site.addr)).collect()
        };
        assert_eq!(sites(&whole), sites(&stripped), "{compiler}");
        assert!(whole.gaps.is_empty() && stripped.gaps.is_empty(), "{compiler}: {:?} {:?}", whole.gaps, stripped.gaps);
        for label in [
            "srw_mutex_wait_and_lock",
            "srw_spin_mutex_wait_and_lock",
            "ssux_rd_wait",
            "ssux_spin_rd_wait",
            "ssux_wr_wait",
            "ssux_spin_wr_wait",
        ] {
            let is_of = |site: &&armtrace::measure::latch::PlannedSite| site.name.split(':').next() == Some(label);
            assert!(whole.sites.iter().filter(is_of).count() >= 2, "{compiler}: {label}");
        }
        let spinning: Vec<(&str, bool)> =
            whole.functions.iter().map(|function| (function.label.as_str(), function.has_loop)).collect();
        assert!(spinning.iter().all(|(label, spins)| label.contains("_spin_") == *spins), "{spinning:?}");
    }
}

#[test]
fn a_second_function_that_waits_alike_is_a_second_variant() {
    for compiler in COMPILERS {
        let image = mariadb(compiler, &["-s", "-DTWO_FIRST"]);
        let whole = mariadb(compiler, &["-DTWO_FIRST"]);
        let mut both = vec![address(&whole, MUTEX_WAIT), address(&whole, "_Z14mutex_wait_tooPj")];
        both.sort_unstable();
        assert_eq!(entries(&image)[0], both, "{compiler}");
        let labels: Vec<String> = latch_plan(&image).functions.into_iter().map(|function| function.label).collect();
        assert_eq!(labels[..2], ["srw_mutex_wait_and_lock", "srw_mutex_wait_and_lock_2"], "{compiler}");
    }
}

#[test]
fn callers_of_lock_functions_are_found() {
    for compiler in COMPILERS {
        let image = mariadb(compiler, &[]);
        let lock = image.function_at(address(&image, "_ZN5mtr_t6s_lockEP5index")).expect("its bounds");
        let calls = direct_calls(&image, &[address(&image, READ_WAIT)].into());
        let calls: Vec<u64> = calls.into_iter().map(|(at, _)| at).filter(|at| lock.contains(at)).collect();
        let length = if compiler == "gcc" { 5 } else { 4 };
        assert_eq!(latch_plan(&image).wrapper_returns, [calls[0] + length], "{compiler}");
        let spinning =
            spin_functions(&image, family(&image)).into_iter().map(|function| (function.name, function.range.start));
        let expected = [
            ("srw_spin_mutex_wait_and_lock", SPIN_MUTEX_WAIT),
            ("ssux_spin_rd_wait", SPIN_READ_WAIT),
            ("ssux_spin_wr_wait", SPIN_WRITE_WAIT),
        ];
        let mut expected = expected.map(|(label, name)| (label.to_owned(), address(&image, name)));
        expected.sort_by_key(|(_, at)| *at);
        assert_eq!(spinning.collect::<Vec<_>>(), expected, "{compiler}");
    }
}

#[test]
fn variables_are_found_in_their_tables() {
    for compiler in COMPILERS {
        let image = mariadb(compiler, &["-s"]);
        let whole = mariadb(compiler, &[]);
        let pointers = image.static_pointers();
        let [system, status] = [Table::System, Table::Status].map(|table| Variables::new(&image, &pointers, table));
        let number = |name: &str| system.number(name);
        let at = |name: &str, size| Some(Number { addr: address(&whole, name), size });
        assert_eq!(number("sync_spin_loops"), at("srv_n_spin_wait_rounds", 8), "{compiler}");
        assert_eq!(number("spin_wait_delay"), at("srv_spin_wait_delay", 4), "{compiler}");
        assert_eq!(number("doublewrite"), at("innodb_doublewrite", 1), "{compiler}");
        // Text, one value per connection, two variables of one name, and none.
        assert_eq!(["text", "own", "twice", "spin_wait"].map(number), [None; 4], "{compiler}");
        let log = address(&whole, "log_sys");
        assert_eq!(system.variable("log_buffer_size"), Some(log), "{compiler}");
        assert_eq!(status.variable("log_waits"), Some(log + 24), "{compiler}");
        assert_eq!(status.variable("log_buffer_size"), None, "{compiler}");
    }
}

#[test]
fn latches_in_static_data_are_named() {
    for compiler in COMPILERS {
        let whole = mariadb(compiler, &[]);
        for options in [&[][..], &["-s"]] {
            let image = mariadb(compiler, options);
            let Naming::Mariadb(catalog) = family(&image).naming else { panic!("not MariaDB's naming") };
            let rules = MariadbRules::new(&image, family(&image), catalog);
            let found: BTreeMap<u64, &str> =
                rules.statics().iter().map(|(at, name)| (*at, name.event.as_str())).collect();
            let expected = [
                ("dict_sys", 8, "wait/synch/rwlock/innodb/dict_operation_lock"),
                ("lock_sys", 8, "wait/synch/sxlock/innodb/lock_latch"),
                ("purge_sys", 8, "wait/synch/rwlock/innodb/trx_purge_latch"),
                ("purge_sys", 128, "wait/synch/rwlock/innodb/trx_purge_end_latch"),
                // On the cache line of variables that are members of `log_sys`.
                ("log_sys", 8, "wait/synch/rwlock/innodb/log_latch"),
                ("log_sys", 16, "wait/synch/mutex/innodb/log_lsn_lock"),
            ];
            let expected = expected.map(|(object, offset, event)| (address(&whole, object) + offset, event));
            assert_eq!(found, BTreeMap::from(expected), "{compiler}");
            let pool = address(&whole, "buf_pool") + 8;
            let mutexes: Vec<(u64, String)> =
                rules.static_mutexes().into_iter().map(|(at, name)| (at, name.event)).collect();
            assert_eq!(mutexes, [(pool, "wait/synch/mutex/innodb/buf_pool_mutex".to_owned())], "{compiler}");
            let Made { members, .. } = rules.made();
            assert_eq!(members.keys().collect::<Vec<_>>(), ["index_tree_rw_lock"], "{compiler}");
            assert_eq!(members["index_tree_rw_lock"], [40].into(), "{compiler}");
        }
    }
}

fn mariadb_10_5(compiler: &str, event_at: u32, more: &[&str]) -> Image {
    let event_at = format!("-DEVENT_AT={event_at}");
    compiled(compiler, &["mariadb_10_5.c"], &[&[event_at.as_str()], more].concat())
}

#[test]
fn waits_for_events_are_recognised_by_how_they_wait() {
    for compiler in COMPILERS {
        let whole = mariadb_10_5(compiler, 0x10, &[]);
        let waits = |image: &Image| -> Vec<u64> {
            let mut entries: Vec<u64> = event_waits(image).into_iter().map(|range| range.start).collect();
            entries.sort_unstable();
            entries
        };
        let [forever, until] = ["_ZN8os_event8wait_lowEl", "_ZN8os_event13wait_time_lowEml"];
        let mut expected = vec![address(&whole, forever), address(&whole, until)];
        expected.sort_unstable();
        assert_eq!(waits(&whole), expected, "{compiler}");
        assert_eq!(waits(&mariadb_10_5(compiler, 0x10, &["-s"])), expected, "{compiler}");
        let family = family(&whole);
        assert!(family.wait_functions.is_empty() && matches!(family.naming, Naming::None), "{compiler}");
        assert!(latch_plan(&whole).gaps.iter().any(|gap| gap.why.contains("unnamed:os_event")), "{compiler}");
        // The members lie elsewhere, or the function does more than wait.
        let other = mariadb_10_5(compiler, 0x18, &[]);
        assert_eq!(waits(&other), [0; 0], "{compiler}");
        let why = discovery::family(&other).expect_err("no latch functions").to_string();
        assert_eq!(why, "a MySQL or MariaDB server, but armtrace cannot find its latch functions");
        let long = mariadb_10_5(compiler, 0x10, &["-DTOO_LONG"]);
        assert_eq!(waits(&long), [address(&long, until)], "{compiler}");
    }
}
