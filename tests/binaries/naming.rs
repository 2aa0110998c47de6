//! Latch names derived from real server binaries of both architectures, which `tests/lab/src/binaries.rs` provides.
//!
//! The live tests compare the names with performance_schema's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use armtrace::audit;
use armtrace::catalog::Naming;
use armtrace::discovery::{self, is_in_lock_array};
use armtrace::host::clock::now_ns;
use armtrace::isa::decode;
use armtrace::names::{locks, Instruments, Key, Locks, MariadbRules, MysqlRules};
use armtrace::symbols::Image;
use lab::binaries::{
    debian_mariadb, lab_image, mariadb_10_1, mariadb_10_1_path, mariadb_10_2, mariadb_10_2_path, mariadb_amd64,
    mariadb_amd64_path, mysql_amd64, mysql_arm64, patched, stripped,
};

fn mysql_rules(image: &Image) -> MysqlRules {
    match discovery::family(image).expect("a known family").naming {
        Naming::Mysql(names) => MysqlRules::new(image, names),
        Naming::Mariadb(_) | Naming::None => panic!("this server does not have MySQL's latches"),
    }
}

/// Returns the event name of each latch id.
fn ids(rules: &MysqlRules) -> BTreeMap<String, String> {
    rules.ids().filter_map(|id| Some((id.to_owned(), rules.id_name(id)?.event))).collect()
}

/// Returns the source file, without its folders, and the event name of each place that creates rw-locks. Lines are left
/// out because they differ between builds.
fn sites(rules: &MysqlRules) -> BTreeSet<(String, String)> {
    let name =
        |s: &armtrace::names::CreationSite| rules.site_name(&s.file, s.line).map_or("none".to_owned(), |n| n.event);
    rules.sites().iter().map(|s| (s.file.rsplit('/').next().unwrap_or_default().to_owned(), name(s))).collect()
}

/// Ids whose instrument has a different name, and some whose instrument has the same name.
const IDS: &[(&str, &str)] = &[
    ("FIL_SHARD", "wait/synch/mutex/innodb/fil_system_mutex"),
    ("LOCK_SYS_PAGE", "wait/synch/mutex/innodb/lock_sys_page_mutex"),
    ("LOCK_SYS_WAIT", "wait/synch/mutex/innodb/lock_wait_mutex"),
    ("LOG_SN_MUTEX", "wait/synch/mutex/innodb/log_sn_mutex"),
    ("LOG_WRITER", "wait/synch/mutex/innodb/log_writer_mutex"),
    ("SRV_SYS_TASKS", "wait/synch/mutex/innodb/srv_threads_mutex"),
    ("SYNC_ARRAY_MUTEX", "wait/synch/mutex/innodb/sync_array_mutex"),
    ("TRX", "wait/synch/mutex/innodb/trx_mutex"),
    ("TRX_SYS", "wait/synch/mutex/innodb/trx_sys_mutex"),
    ("UNDO_SPACE_RSEG", "wait/synch/mutex/innodb/undo_space_rseg_mutex"),
    ("BUF_BLOCK_MUTEX", "wait/synch/mutex/innodb/buffer_block_mutex"),
];

const SITES: &[(&str, &str)] = &[
    ("btr0sea.cc", "btr_search_latch"),
    ("buf0buf.cc", "buf_block_lock"),
    ("dict0dict.cc", "dict_operation_lock"),
    ("dict0dict.cc", "dict_table_stats"),
    ("dict0dict.cc", "index_tree_rw_lock"),
    ("fil0fil.cc", "fil_space_latch"),
    ("fts0fts.cc", "fts_cache_init_rw_lock"),
    ("fts0fts.cc", "fts_cache_rw_lock"),
    ("gis0sea.cc", "rtr_match_block_lock"),
    ("hash0hash.cc", "hash_table_locks"),
    ("ibuf0ibuf.cc", "index_tree_rw_lock"),
    ("sync0sharded_rw.h", "lock_sys_global_rw_lock"),
    ("trx0i_s.cc", "trx_i_s_cache_lock"),
    ("trx0purge.cc", "trx_purge_latch"),
    ("trx0purge.cc", "undo_spaces_lock"),
    ("trx0rseg.cc", "rsegs_lock"),
];

fn names_mysql(image: &Image) {
    let rules = mysql_rules(image);
    let ids = ids(&rules);
    for (id, name) in IDS {
        assert_eq!(ids.get(*id).map(String::as_str), Some(*name), "{id}");
    }
    assert!(ids.len() >= 100, "only {} ids: {ids:?}", ids.len());
    let expected = SITES.iter().map(|(f, n)| ((*f).to_owned(), format!("wait/synch/sxlock/innodb/{n}"))).collect();
    assert_eq!(sites(&rules), expected);
    let unknown: Vec<_> = rules.sites().iter().filter(|s| s.key == Key::Unknown).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn mysql_names_come_from_amd64_code() {
    names_mysql(&mysql_amd64());
}

#[test]
fn mysql_names_come_from_arm64_code() {
    names_mysql(&mysql_arm64());
}

/// Ids without an instrument may be missing, because the compiler may have folded the constant for "no instrument".
#[test]
fn both_architectures_have_the_same_names() {
    let (amd64, arm64) = (mysql_amd64(), mysql_arm64());
    let instrumented = |image: &Image| {
        let mut names = ids(&mysql_rules(image));
        names.retain(|id, _| !["EVENT_MANAGER", "WORK_QUEUE", "BUF_BLOCK_MUTEX"].contains(&id.as_str()));
        names
    };
    assert_eq!(instrumented(&amd64), instrumented(&arm64));
}

fn mariadb_rules(image: &Image) -> MariadbRules {
    let family = discovery::family(image).expect("a known family");
    match family.naming {
        Naming::Mariadb(names) => MariadbRules::new(image, family, names),
        Naming::Mysql(_) | Naming::None => panic!("this server does not have MariaDB's latches"),
    }
}

/// Returns the latches in static data: the link-time address of the lock word, and the kind and last part of the event
/// name.
fn statics(rules: &MariadbRules) -> BTreeMap<u64, String> {
    let bare = |event: &str| event.strip_prefix("wait/synch/").expect("a name").replace("/innodb/", " ");
    rules.statics().iter().map(|(&at, name)| (at, bare(&name.event))).collect()
}

#[test]
fn mariadb_static_latches_are_named_by_the_code_that_creates_them() {
    let image = mariadb_amd64();
    let found: BTreeSet<(String, u64, String)> = statics(&mariadb_rules(&image))
        .into_iter()
        .map(|(at, name)| {
            let object = image.symbol_at(at).expect("a variable");
            (object.name.to_owned(), at - object.addr, name)
        })
        .collect();
    // From the debug info of 11.4.5.
    let expected = [
        ("dict_sys", 72, "rwlock dict_operation_lock"),
        ("lock_sys", 72, "rwlock lock_latch"),
        ("log_sys", 72, "rwlock log_latch"),
        ("log_sys", 240, "mutex log_lsn_lock"),
        ("purge_sys", 8, "rwlock trx_purge_latch"),
        ("purge_sys", 128, "rwlock trx_purge_end_latch"),
    ];
    let expected = expected.map(|(object, offset, name)| (object.to_owned(), offset, name.to_owned()));
    assert_eq!(found, expected.into());
}

/// Mutexes of the C library in InnoDB's static objects have names too.
#[test]
fn mariadb_static_mutexes_are_named_by_the_code_that_creates_them() {
    let image = mariadb_amd64();
    let found: BTreeSet<(String, u64, String)> = mariadb_rules(&image)
        .static_mutexes()
        .into_iter()
        .map(|(at, name)| {
            let object = image.symbol_at(at).expect("a variable");
            (object.name.to_owned(), at - object.addr, name.event)
        })
        .collect();
    // From the debug info of 11.4.5.
    for (object, offset, name) in [
        ("buf_pool", 0x4180, "buf_pool_mutex"),
        ("buf_pool", 0x42c0, "flush_list_mutex"),
        ("fil_system", 0x20, "fil_system_mutex"),
        ("lock_sys", 0x80, "lock_wait_mutex"),
    ] {
        let expected = (object.to_owned(), offset, format!("wait/synch/mutex/innodb/{name}"));
        assert!(found.contains(&expected), "{expected:x?} is not in {found:x?}");
    }
}

/// Symbols are not needed to name latches.
#[test]
fn a_stripped_mariadb_has_the_same_names() {
    let (whole, stripped) = (mariadb_rules(&mariadb_amd64()), mariadb_rules(&stripped(&mariadb_amd64_path())));
    assert!(!whole.statics().is_empty());
    assert_eq!(stripped.statics(), whole.statics());
    assert_eq!(stripped.made(), whole.made());
    assert_eq!(stripped.static_mutexes(), whole.static_mutexes());
}

/// Every build for both architectures has the same latches in static data and as members of objects.
#[test]
fn debian_mariadb_latches_are_named() {
    const ALWAYS: [&str; 5] = [
        "rwlock dict_operation_lock",
        "rwlock lock_latch",
        "rwlock log_latch",
        "rwlock trx_purge_end_latch",
        "rwlock trx_purge_latch",
    ];
    for arch in ["amd64", "arm64"] {
        for suite in ["bookworm", "trixie", "sid"] {
            let rules = mariadb_rules(&debian_mariadb(arch, suite));
            let statics = statics(&rules);
            let mut names: BTreeSet<&str> = statics.values().map(String::as_str).collect();
            assert_eq!(names.len(), statics.len(), "{arch} {suite}: two places for one name: {statics:x?}");
            names.retain(|name| !["rwlock trx_i_s_cache_lock", "mutex log_lsn_lock"].contains(name));
            assert_eq!(names, ALWAYS.into(), "{arch} {suite}");
            for name in ["index_tree_rw_lock", "fil_space_latch", "trx_rseg_latch"] {
                assert!(rules.made().members.contains_key(name), "{arch} {suite}: {name}");
            }
        }
    }
}

#[test]
fn a_rollback_segment_has_its_latch_after_its_tablespace() {
    for arch in ["amd64", "arm64"] {
        let rules = mariadb_rules(&debian_mariadb(arch, "bookworm"));
        assert_eq!(rules.made().members["trx_rseg_latch"], BTreeSet::from([8]), "{arch}");
    }
}

/// The program is linked to fixed addresses, which are plain numbers in tables and code.
#[test]
fn mariadb_10_2_names_come_from_its_code() {
    let rules = mysql_rules(&mariadb_10_2());
    let ids = ids(&rules);
    for (id, name) in [
        ("TRX_SYS", "trx_sys_mutex"),
        ("LOG_SYS", "log_sys_mutex"),
        ("REDO_RSEG", "redo_rseg_mutex"),
        ("SRV_SYS_TASKS", "srv_threads_mutex"),
    ] {
        assert_eq!(ids.get(id), Some(&format!("wait/synch/mutex/innodb/{name}")), "{id}");
    }
    let sites = sites(&rules);
    for (file, name) in [
        ("dict0dict.cc", "rwlock/innodb/index_tree_rw_lock"),
        ("fil0fil.cc", "rwlock/innodb/fil_space_latch"),
        ("hash0hash.cc", "rwlock/innodb/hash_table_locks"),
        ("buf0buf.cc", "sxlock/innodb/buf_block_lock"),
    ] {
        assert!(sites.contains(&(file.to_owned(), format!("wait/synch/{name}"))), "{file} {name}: {sites:?}");
    }
}

/// Without the load of the instrument's key in the code that describes a latch id, the id has no name. Neither the id
/// itself nor the key of an adjacent id is used as one.
#[test]
fn a_latch_id_without_a_key_has_no_name() {
    let image = mariadb_10_2();
    let mut expected = ids(&mysql_rules(&image));
    assert!(expected.remove("LOG_SYS").is_some(), "{expected:?}");
    let key = image.symbol("log_sys_mutex_key").expect("its key").addr;
    let init = image.symbol("_Z15sync_check_initv").expect("sync_check_init").addr;
    let insns = decode(&image, image.function_at(init).expect("a function"));
    let load = insns.iter().find(|i| i.memory == Some(key)).expect("a load of the key");
    let nops = vec![0x90; (load.end() - load.addr) as usize];
    assert_eq!(ids(&mysql_rules(&patched(&mariadb_10_2_path(), &[(load.addr, &nops)]))), expected);
}

/// Its mutexes have no latch id but, like rw-locks, store the place that created them.
#[test]
fn mariadb_10_1_names_come_from_where_latches_are_created() {
    let rules = mysql_rules(&mariadb_10_1());
    let sites = sites(&rules);
    for (file, name) in [
        ("log0log.cc", "mutex/innodb/log_sys_mutex"),
        ("lock0lock.cc", "mutex/innodb/lock_mutex"),
        ("trx0sys.cc", "mutex/innodb/trx_sys_mutex"),
        ("trx0rseg.cc", "mutex/innodb/rseg_mutex"),
        // Its key is defined in a different file from the code that creates it.
        ("srv0start.cc", "mutex/innodb/srv_monitor_file_mutex"),
        ("buf0buf.cc", "mutex/innodb/buffer_block_mutex"),
        ("buf0buf.cc", "rwlock/innodb/buf_block_lock"),
        ("btr0sea.cc", "rwlock/innodb/btr_search_latch"),
        ("dict0dict.cc", "rwlock/innodb/index_tree_rw_lock"),
        ("fil0fil.cc", "rwlock/innodb/fil_space_latch"),
        ("hash0hash.cc", "rwlock/innodb/hash_table_locks"),
    ] {
        assert!(sites.contains(&(file.to_owned(), format!("wait/synch/{name}"))), "{file} {name}: {sites:?}");
    }
    assert!(rules.ids().next().is_none());
}

/// Returns the names of the latches that a source file creates.
fn created_in(image: &Image, file: &str) -> BTreeSet<String> {
    let rules = mysql_rules(image);
    let sites = rules.sites().iter().filter(|s| s.file.ends_with(file));
    sites.filter_map(|s| rules.site_name(&s.file, s.line)).map(|n| n.event).collect()
}

/// Without the load of the instrument's key in `lock_sys_create`, the mutex has no name, not even that of an adjacent
/// one.
#[test]
fn a_mutex_without_a_key_has_no_name() {
    let image = mariadb_10_1();
    let lock_mutex = "wait/synch/mutex/innodb/lock_mutex".to_owned();
    let mut expected = created_in(&image, "/lock0lock.cc");
    assert!(expected.remove(&lock_mutex), "{expected:?}");
    let create = image.symbol("_Z15lock_sys_createm").expect("lock_sys_create").addr;
    let key = image.symbol("lock_sys_mutex_key").expect("its key").addr;
    let insns = decode(&image, image.function_at(create).expect("a function"));
    let load = insns.iter().find(|i| i.memory == Some(key)).expect("a load of the key");
    let nops = vec![0x90; (load.end() - load.addr) as usize];
    assert_eq!(created_in(&patched(&mariadb_10_1_path(), &[(load.addr, &nops)]), "/lock0lock.cc"), expected);
}

/// Without the number that marks a page's latch as uninstrumented, its key is unknown, so it could have any instrument.
#[test]
fn a_latch_with_an_unknown_key_is_not_treated_as_uninstrumented() {
    // mov $0xffffffff,%edi
    const NO_INSTRUMENT: [u8; 5] = [0xbf, 0xff, 0xff, 0xff, 0xff];
    let image = mariadb_10_1();
    let mut expected = created_in(&image, "/buf0buf.cc");
    assert!(expected.remove("wait/synch/rwlock/innodb/buf_block_lock"), "{expected:?}");
    let init = image.symbol("_Z22buf_pool_init_instanceP10buf_pool_tmm").expect("buf_pool_init_instance").addr;
    let insns = decode(&image, image.function_at(init).expect("a function"));
    let last = insns.iter().rfind(|i| i.bytes() == NO_INSTRUMENT).expect("the number");
    assert_eq!(created_in(&patched(&mariadb_10_1_path(), &[(last.addr, &[0x90; 5])]), "/buf0buf.cc"), expected);
}

/// Attaching must be quick. The limit is generous because tests run without optimisation and on busy machines.
#[test]
fn naming_is_set_up_quickly() {
    let image = mysql_amd64();
    let start = Instant::now();
    let rules = mysql_rules(&image);
    let took = start.elapsed();
    assert!(rules.ids().count() > 0);
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// How much longer than reading all of the code the search for locks may take.
const MOST_TIMES_READING: u64 = 20;

fn created_locks(image: &Image) -> Locks {
    locks(image, &Instruments::new(image, &image.static_pointers()))
}

/// The search for locks takes a few times as long as reading all of the code once, however many classes the program
/// has. On an emulated machine, or beside a busy server, more than that is minutes without names.
#[test]
fn the_search_for_locks_is_cheap() {
    let cpu_ns = || now_ns(libc::CLOCK_THREAD_CPUTIME_ID);
    for image in [mysql_amd64(), mysql_arm64()] {
        let begin = cpu_ns();
        assert!(audit::count(&image).is_ok());
        let read = cpu_ns();
        created_locks(&image);
        let (read, searched) = (read - begin, cpu_ns() - read);
        println!(
            "{:?}: {} ms to read the code, {} ms to find locks",
            image.arch(),
            read / 1_000_000,
            searched / 1_000_000
        );
        assert!(searched < MOST_TIMES_READING * read, "{searched} ns, and {read} ns to read the code");
    }
}

/// Returns the names of the locks in a static object.
fn locks_in(image: &Image, symbol: &str) -> BTreeSet<String> {
    let object = image.symbol(symbol).unwrap_or_else(|| panic!("no {symbol}"));
    let locks = created_locks(image);
    locks.statics.range(object.addr..object.addr + object.size).map(|(_, name)| name.event.clone()).collect()
}

fn assert_locks(found: &BTreeSet<String>, expected: &[&str]) {
    for name in expected {
        assert!(found.contains(*name), "no {name}: {found:#?}");
    }
}

/// The keys are members of the same object, which other code sets, several at a time through a vector register.
#[test]
fn mysql_binary_log_locks_have_names() {
    let image = mysql_amd64();
    assert_locks(
        &locks_in(&image, "mysql_bin_log"),
        &[
            "wait/synch/mutex/sql/MYSQL_BIN_LOG::LOCK_log",
            "wait/synch/mutex/sql/MYSQL_BIN_LOG::LOCK_commit",
            "wait/synch/mutex/sql/MYSQL_BIN_LOG::LOCK_sync",
            "wait/synch/cond/sql/MYSQL_BIN_LOG::update_cond",
        ],
    );
    // These locks' keys are arguments, some of them on the stack, or the object is returned by a function.
    let all: BTreeSet<String> = created_locks(&image).statics.values().map(|name| name.event.clone()).collect();
    assert_locks(
        &all,
        &[
            "wait/synch/mutex/sql/MYSQL_BIN_LOG::LOCK_done",
            "wait/synch/mutex/sql/MYSQL_BIN_LOG::LOCK_flush_queue",
            "wait/synch/rwlock/sql/gtid_mode_lock",
            "wait/synch/mutex/mysys/THR_LOCK_open",
        ],
    );
}

const MARIADB_BINARY_LOG: &[&str] = &[
    "wait/synch/mutex/sql/LOG::LOCK_log",
    "wait/synch/mutex/sql/MYSQL_BIN_LOG::LOCK_index",
    "wait/synch/mutex/sql/MYSQL_BIN_LOG::LOCK_binlog_end_pos",
    "wait/synch/mutex/sql/MYSQL_BIN_LOG::LOCK_xid_list",
];

#[test]
fn mariadb_binary_log_locks_have_names() {
    for image in [mariadb_amd64(), mariadb_10_2(), debian_mariadb("amd64", "bookworm")] {
        assert_locks(&locks_in(&image, "mysql_bin_log"), MARIADB_BINARY_LOG);
    }
}

/// A name needs complete evidence. Here the key is written to a different member from the one it is read from.
#[test]
fn a_lock_with_an_unknown_key_has_no_name() {
    let path = mariadb_amd64_path();
    let image = mariadb_amd64();
    let lock = "wait/synch/mutex/sql/MYSQL_BIN_LOG::LOCK_binlog_end_pos";
    assert!(locks_in(&image, "mysql_bin_log").contains(lock));
    // mov %eax,0x490(%rdi)
    let store = [0x89, 0x87, 0x90, 0x04, 0x00, 0x00];
    let function = image.symbol("_Z21init_common_variablesv").or_else(|| image.symbol("_ZL21init_common_variablesv"));
    let range = image.function_at(function.expect("the function").addr).expect("its bounds");
    let found: Vec<u64> =
        armtrace::isa::decode(&image, range).iter().filter(|i| i.bytes() == store).map(|i| i.addr).collect();
    let &[at] = &found[..] else { panic!("{found:x?}") };
    let mut bytes = std::fs::read(&path).expect("the program");
    let offset = image.file_offset(at).expect("a place in the file") as usize;
    bytes[offset + 3] = 0x06;
    let copy = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(copy.path(), bytes).expect("the copy");
    let patched = Image::open(copy.path()).expect("the copy");
    let without = locks_in(&patched, "mysql_bin_log");
    assert!(!without.contains(lock), "{without:?}");
    assert_locks(&without, &["wait/synch/mutex/sql/LOG::LOCK_log", "wait/synch/mutex/sql/MYSQL_BIN_LOG::LOCK_index"]);
}

/// Whether a `rw_pr_lock_t` is a prlock or an rwlock differs between releases, but not by their number.
#[test]
fn the_rwlock_of_a_metadata_lock_has_the_kind_of_its_release() {
    const OLD: &str = "wait/synch/rwlock/sql/MDL_lock::rwlock";
    const NEW: &str = "wait/synch/prlock/sql/MDL_lock::rwlock";
    for (server, event) in [("mysql-5.7", OLD), ("mysql-8.0.12", OLD), ("mysql-8.0.31", NEW)] {
        assert_eq!(discovery::metadata_lock_event(&lab_image(server)), event, "{server}");
    }
    for image in [mysql_amd64(), mysql_arm64()] {
        assert_eq!(discovery::metadata_lock_event(&image), NEW);
    }
    assert_eq!(discovery::metadata_lock_event(&mariadb_amd64()), OLD);
}

/// The instances of MySQL's table cache, whose size differs between builds, have one name. The sizes were read from the
/// disassembly of `Table_cache_manager::destroy`.
#[test]
fn all_instances_of_the_table_cache_are_one_latch() {
    let lab = [("mysql-5.7", 0xb0), ("mysql-8.0.12", 0x78), ("mysql-8.0.31", 0x78)];
    let lab = lab.map(|(server, size)| (lab_image(server), size));
    for (image, size) in lab.into_iter().chain([(mysql_amd64(), 0x90), (mysql_arm64(), 0x98)]) {
        let array = &discovery::family(&image).expect("a known family").pthread.arrays[0];
        let from = image.symbol(array.symbol).expect("the table cache");
        let found: Vec<u64> = (0..from.size).filter(|at| is_in_lock_array(&image, array, from.addr + at)).collect();
        let expected: Vec<u64> = (0..64).map(|instance| instance * size).collect();
        assert_eq!(found, expected, "instances of {size} bytes");
        assert!(!is_in_lock_array(&image, array, from.addr + from.size), "behind the last instance");
    }
}
