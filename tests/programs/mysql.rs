use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use armtrace::analysis::{direct_calls, import_stubs};
use armtrace::audit::{audit, spin_hint};
use armtrace::catalog::{self, Naming};
use armtrace::discovery;
use armtrace::model::Kind;
use armtrace::names::{locks, locks_one_member, waited, Instruments, Key, MysqlRules};
use armtrace::symbols::{Arch, Image, Parameter};

use super::{address, compiled, latch_plan, COMPILERS};

/// Compiles a program with the latch functions of MySQL 8.0, for a vendor and with these definitions.
fn mysql_8_0(compiler: &str, vendor: &str, defines: &[&str]) -> Image {
    let vendor = format!("-DMAKER=\"{vendor}\"");
    compiled(compiler, &["mysql_8_0.c"], &[&["-ffreestanding", "-nostdlib", &vendor], defines].concat())
}

/// Compiles the same program with the code that creates and names latches.
fn mysql_with_names(compiler: &str) -> Image {
    compiled(
        compiler,
        &["mysql_8_0.c", "mysql_names.c", "mysql_keys.c"],
        &["-DMAKER=\"MySQL Community Server - GPL\"", "-DLINE_AT=0x38"],
    )
}

/// The `version_comment` that `mysqld --version` prints in parentheses, as published by users of 8.0.16, 8.0.26-16 and
/// 8.0.46-37, and the flavor that it identifies.
const VENDORS: &[(&str, &str)] = &[
    ("MySQL Community Server - GPL", "mysql"),
    ("Percona Server (GPL), Release 16, Revision 3d64165", "percona"),
    ("Percona Server (GPL), Release 37, Revision 39e2b60e", "percona"),
];

#[test]
fn mysql_8_0_is_recognised_by_its_older_signatures() {
    for compiler in COMPILERS {
        for (vendor, flavor) in VENDORS {
            let image = mysql_8_0(compiler, vendor, &["-DLINE_AT=0x38"]);
            let family = discovery::family(&image).unwrap_or_else(|error| panic!("{compiler}: {error}"));
            assert_eq!(discovery::flavor(&image, family).as_str(), *flavor, "{compiler}: {vendor}");
            let sites = latch_plan(&image).sites;
            for label in ["rw_lock_s_lock_spin:begin", "rw_lock_x_lock_func:begin"] {
                assert!(sites.iter().any(|site| site.name.starts_with(label)), "{compiler}: {label}");
            }
        }
    }
}

const RW_LOCK_LINE: catalog::Member =
    catalog::Member { set_by: &["_Z19rw_lock_create_funcP9rw_lock_t"], to: Parameter::Line, shown_by: None };

#[test]
fn the_layout_of_latches_is_read_from_the_code() {
    for compiler in COMPILERS {
        for line_at in [0x38, 0x48] {
            let image = mysql_8_0(compiler, "MySQL Community Server - GPL", &[&format!("-DLINE_AT={line_at}")]);
            let family = discovery::family(&image).unwrap_or_else(|error| panic!("{compiler}: {error}"));
            let kept = discovery::Layout::of(&image, family).kept(&RW_LOCK_LINE).map(|kept| (kept.offset, kept.mask));
            assert_eq!(kept, Some((line_at, u32::MAX)), "{compiler}");
        }
    }
}

/// Two functions create rw-locks and store the line at different offsets. Names read from either could be wrong.
#[test]
fn contradictory_code_leads_to_no_name() {
    for compiler in COMPILERS {
        let image = mysql_8_0(compiler, "MySQL Community Server - GPL", &["-DLINE_AT=0x38", "-DCONTRADICTION"]);
        let family = discovery::family(&image).unwrap_or_else(|error| panic!("{compiler}: {error}"));
        assert_eq!(discovery::Layout::of(&image, family).kept(&RW_LOCK_LINE), None, "{compiler}");
        let plan = latch_plan(&image);
        let gap =
            plan.gaps.iter().find(|gap| gap.function == "rw_lock_s_lock_spin").unwrap_or_else(|| panic!("{compiler}"));
        assert!(gap.why.contains("does not show how its latches are identified"), "{gap}");
        assert!(!plan.sites.iter().any(|site| site.name.starts_with("rw_lock")), "{compiler}");
    }
}

/// Only x86-64's atomic instructions are known.
#[test]
fn inlined_waits_are_found_around_the_call_that_sleeps() {
    let image = mysql_8_0("gcc", "MySQL Community Server - GPL", &["-DLINE_AT=0x38", "-DINLINED"]);
    let plan = latch_plan(&image);
    let expected =
        "mutex_enter_inlined: of 4 inlined mutexes, 3 are measured from the beginning of a wait, the others \
                    from where spinning is given up";
    assert!(plan.limits.iter().any(|limit| limit == expected), "{:?}", plan.limits);
    for (name, is_known) in [
        ("_Z13take_argumentP5mutex", true),
        ("_Z11take_memberP6object", true),
        ("_Z11take_staticv", true),
        ("_Z10never_spinP5mutex", false),
    ] {
        let range = image.function_at(address(&image, name)).expect("its bounds");
        let inside = |what: &str| {
            let name = format!("mutex_enter_inlined:{what}");
            plan.sites.iter().filter(|site| range.contains(&site.addr) && site.name.starts_with(&name)).count()
        };
        assert_eq!((inside("begin") == 1, inside("end") >= 1), (is_known, is_known), "{name}");
    }
    // The rest is measured in the function that sleeps.
    assert!(plan.sites.iter().any(|site| site.name == "mutex_wait:begin"));
}

#[test]
fn an_audit_finds_the_spin_hint_in_a_short_function_that_is_called() {
    for (compiler, hint) in COMPILERS.into_iter().zip(["pause", "isb"]) {
        let verdicts = |options: &[&str]| -> BTreeMap<&str, (bool, Vec<String>)> {
            let image = mysql_8_0(compiler, "MySQL", &[&["-DLINE_AT=0x38"], options].concat());
            let report = audit(&image, Path::new("mysqld")).expect("a report");
            report.verdicts.into_iter().map(|v| (v.id, (v.is_finding, v.evidence))).collect()
        };
        let without = verdicts(&[]);
        assert!(without["no-spin-hint"].1[0].starts_with("ut_delay at 0x"), "{without:?}");
        assert!(without["no-spin-hint"].0 && !without.contains_key("spin-hint"), "{compiler}: {without:?}");
        let with = verdicts(&["-DHINT"]);
        assert!(!with["spin-hint"].0 && with["spin-hint"].1[0].contains(hint), "{compiler}: {with:?}");
        assert!(!with.contains_key("no-spin-hint"));
        let image = mysql_8_0(compiler, "MySQL", &["-DLINE_AT=0x38", "-DHINT"]);
        let wait = image.function_at(address(&image, "_Z19rw_lock_s_lock_spinP9rw_lock_tmPKcm")).expect("its bounds");
        let (at, text) = spin_hint(&image, wait.clone()).expect("in what it calls");
        assert!(text.starts_with(hint) && !wait.contains(&at), "{compiler}: {text} at {at:#x}");
        let other = image.function_at(address(&image, "_Z21sync_array_wait_eventP12sync_array_tRP11sync_cell_t"));
        assert_eq!(spin_hint(&image, other.expect("its bounds")), None, "{compiler}");
        // The server's checksums.
        assert!(without["software-crc32c"].0 && without["software-crc32c"].1.is_empty(), "{compiler}");
        for (option, id) in [("-DCRC", "hardware-crc32c"), ("-DMULTIPLY", "multiply-crc32c")] {
            let found = verdicts(&[option]);
            assert!(!found[id].0 && found[id].1[0].contains("in start"), "{compiler}: {found:?}");
        }
    }
}

fn rules(image: &Image) -> MysqlRules {
    match discovery::family(image).expect("a known family").naming {
        Naming::Mysql(names) => MysqlRules::new(image, names),
        Naming::Mariadb(_) | Naming::None => panic!("not MySQL's naming"),
    }
}

/// The latch ids of `mysql_names.c`, with the names of their instruments; the last two have none.
const IDS: [(&str, &str); 24] = [
    ("AUTOINC", "autoinc_mutex"),
    ("BUF_POOL_CHUNKS", "buf_pool_chunks_mutex"),
    ("BUF_POOL_FREE_LIST", "buf_pool_free_list_mutex"),
    ("BUF_POOL_LRU_LIST", "buf_pool_LRU_list_mutex"),
    ("DICT_SYS", "dict_sys_mutex"),
    ("FIL_SHARD", "fil_system_mutex"),
    ("FLUSH_LIST", "flush_list_mutex"),
    ("FTS_DELETE", "fts_delete_mutex"),
    ("IBUF", "ibuf_mutex"),
    ("LOCK_SYS_PAGE", "lock_sys_page_mutex"),
    ("LOCK_SYS_WAIT", "lock_wait_mutex"),
    ("LOG_CHECKPOINTER", "log_checkpointer_mutex"),
    ("LOG_WRITER", "log_writer_mutex"),
    ("PAGE_CLEANER", "page_cleaner_mutex"),
    ("PURGE_SYS_PQ", "purge_sys_pq_mutex"),
    ("RECV_SYS", "recv_sys_mutex"),
    ("RTR_MATCH_MUTEX", "rtr_match_mutex"),
    ("SRV_SYS", "srv_sys_mutex"),
    ("SYNC_ARRAY_MUTEX", "sync_array_mutex"),
    ("TRX", "trx_mutex"),
    ("TRX_SYS", "trx_sys_mutex"),
    ("UNDO_SPACE_RSEG", "undo_space_rseg_mutex"),
    ("BUF_BLOCK_MUTEX", "buffer_block_mutex"),
    ("EVENT_MANAGER", "event_manager_mutex"),
];

#[test]
fn latch_ids_are_named_by_the_code_that_describes_them() {
    for compiler in COMPILERS {
        let rules = rules(&mysql_with_names(compiler));
        let found: BTreeMap<&str, String> = rules.ids().filter_map(|id| Some((id, rules.id_name(id)?.event))).collect();
        let event = |name: &str| format!("wait/synch/mutex/innodb/{name}");
        let expected: BTreeMap<&str, String> = IDS.iter().map(|(id, name)| (*id, event(name))).collect();
        assert_eq!(found, expected, "{compiler}");
        assert_eq!(rules.id_name("SYNC_LEVEL"), None, "{compiler}");
    }
}

#[test]
fn rw_locks_are_named_by_the_code_that_creates_them() {
    for compiler in COMPILERS {
        let rules = rules(&mysql_with_names(compiler));
        let name = |file: &str, line| rules.site_name(file, line).map(|name| name.event);
        let found: BTreeSet<(&str, u32, Option<String>)> = rules
            .sites()
            .iter()
            .map(|site| (site.file.rsplit('/').next().unwrap_or_default(), site.line, name(&site.file, site.line)))
            .collect();
        let event = |event: &str| Some(format!("wait/synch/{event}"));
        let expected = [
            ("fil0fil.cc", 1101, event("sxlock/innodb/fil_space_latch")),
            ("trx0purge.cc", 245, event("rwlock/innodb/trx_purge_latch")),
            ("buf0buf.cc", 780, event("sxlock/innodb/buf_block_lock")),
            ("gis0sea.cc", 1650, event("sxlock/innodb/rtr_match_block_lock")),
            // Through a function that passes on where it is called.
            ("dict0dict.cc", 2500, event("sxlock/innodb/index_tree_rw_lock")),
            // No key is known of it.
            ("row0row.cc", 9, None),
            // `start` of the program, which creates no instrumented latch.
            ("8.0.26-16", 2, None),
        ];
        assert_eq!(found, BTreeSet::from(expected), "{compiler}");
        let unknown: BTreeSet<u32> =
            rules.sites().iter().filter(|site| site.key == Key::Unknown).map(|site| site.line).collect();
        assert_eq!(unknown, BTreeSet::from([2, 9]), "{compiler}");
        assert_eq!(name("/src/innobase/fil/fil0fil.cc", 1102), None);
        assert_eq!(name("/src/innobase/trx/trx0purge.cc", 1101), None);
    }
}

#[test]
fn instruments_are_read_from_their_tables() {
    for compiler in COMPILERS {
        let image = mysql_with_names(compiler);
        let instruments = Instruments::new(&image, &image.static_pointers());
        let key = |name: &str| image.symbol(name).expect("a key").addr;
        let tree = instruments.by_key(key("index_tree_rw_lock_key")).expect("an instrument");
        assert_eq!((tree.name.as_str(), tree.is_sxlock()), ("index_tree_rw_lock", true), "{compiler}");
        assert_eq!(tree.entry, image.symbol("innodb_rwlocks").expect("a table").addr + 64);
        assert!(!instruments.by_name("trx_purge_latch").expect("an instrument").is_sxlock());
        // Two names are registered with it.
        assert_eq!(instruments.by_key(key("key_twice")), None);
        assert!(instruments.is_contradicted(key("key_twice")));
        assert!(!instruments.is_contradicted(key("trx_mutex_key")));
        // 22 mutexes and 3 rw-locks of InnoDB, and 5 locks of the SQL layer.
        assert_eq!(instruments.keys().count(), 30);
    }
}

#[test]
fn sql_locks_are_named_by_the_code_that_creates_them() {
    for compiler in COMPILERS {
        let image = mysql_with_names(compiler);
        let found = locks(&image, &Instruments::new(&image, &image.static_pointers()));
        let found: BTreeMap<&str, &str> = found
            .statics
            .iter()
            .map(|(at, name)| (image.symbol_at(*at).expect("a lock").name, name.event.as_str()))
            .collect();
        let expected = [
            ("LOCK_status", "wait/synch/mutex/sql/LOCK_status"),
            ("LOCK_grant", "wait/synch/rwlock/sql/LOCK_grant"),
            ("LOCK_by_argument", "wait/synch/mutex/sql/MYSQL_RELAY_LOG::LOCK_log"),
            ("LOCK_by_two", "wait/synch/mutex/sql/MYSQL_RELAY_LOG::LOCK_log"),
        ];
        // `LOCK_twice` is created with two keys.
        assert_eq!(found, BTreeMap::from(expected), "{compiler}");
    }
}

/// Returns the return addresses of a function's calls of one of the C library's.
fn returns(image: &Image, function: &str, callee: &str) -> Vec<u64> {
    let range = image.function_at(address(image, function)).expect("its bounds");
    let stubs = import_stubs(image).into_iter().filter(|(_, name)| name == callee).map(|(at, _)| at).collect();
    let calls = direct_calls(image, &stubs).into_iter().map(|(at, _)| at).filter(|at| range.contains(at));
    calls.map(|at| at + if image.arch() == Arch::X86_64 { 5 } else { 4 }).collect()
}

#[test]
fn what_is_waited_for_follows_from_the_object_that_contains_it() {
    for compiler in COMPILERS {
        let image = mysql_with_names(compiler);
        let found = locks(&image, &Instruments::new(&image, &image.static_pointers()));
        let name = |function, callee, kind| -> Vec<Option<String>> {
            let waited = |at| waited(&image, &found, at, kind).map(|name| name.event);
            returns(&image, function, callee).into_iter().map(waited).collect()
        };
        let event = |event: &str| Some(format!("wait/synch/{event}"));
        let rotate = "_ZN13MYSQL_BIN_LOG6rotateEv";
        let log = event("mutex/sql/MYSQL_BIN_LOG::LOCK_log");
        assert_eq!(name(rotate, "pthread_mutex_lock", Kind::Mutex), std::slice::from_ref(&log), "{compiler}");
        assert_eq!(name(rotate, "pthread_cond_wait", Kind::Mutex), [log], "{compiler}");
        let cond = event("cond/sql/MYSQL_BIN_LOG::update_cond");
        assert_eq!(name(rotate, "pthread_cond_wait", Kind::Cond), [cond], "{compiler}");
        assert_eq!(name(rotate, "pthread_mutex_lock", Kind::Cond), [None], "{compiler}");
        // In what a static variable points to, which was created with another key.
        let relay = event("mutex/sql/MYSQL_RELAY_LOG::LOCK_log");
        assert_eq!(name("_Z11use_currentv", "pthread_mutex_lock", Kind::Mutex), [relay], "{compiler}");
        assert!(locks_one_member(&image, address(&image, rotate)), "{compiler}");
        assert!(locks_one_member(&image, address(&image, "_Z11use_currentv") + 4), "{compiler}");
        let instrumented = address(&image, "_Z16use_instrumentedP13MYSQL_BIN_LOG");
        assert!(locks_one_member(&image, instrumented), "{compiler}");
        assert!(!locks_one_member(&image, address(&image, "_Z8use_bothP13MYSQL_BIN_LOGS0_")), "{compiler}");
        assert!(!locks_one_member(&image, address(&image, "_Z11init_statusv")), "{compiler}");
    }
}

#[test]
fn the_rwlock_of_a_metadata_lock_has_the_kind_of_its_release() {
    for (vendor, kind) in [("wait/synch/prlock", "prlock"), ("MySQL Community Server - GPL", "rwlock")] {
        let image = mysql_8_0("gcc", vendor, &["-DLINE_AT=0x38"]);
        let event = discovery::metadata_lock_event(&image);
        assert_eq!(event, format!("wait/synch/{kind}/{}", catalog::METADATA_LOCK));
    }
}
