//! The analysis of every server in `tests/lab/servers`, without running it.
//!
//! `ARMTRACE_ALL_SERVERS=1` includes the big ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;

use armtrace::analysis::ThreadOffset;
use armtrace::catalog::{Member, Naming};
use armtrace::discovery::{self, Layout};
use armtrace::kept::Cache;
use armtrace::measure::latch::{kept_plan, plan, Allowed, Plan};
use armtrace::names::{locks, Instruments, Locks, MariadbRules, MysqlRules};
use armtrace::symbols::{Image, Parameter};

use lab::binaries::{
    debian_mariadb, mariadb_arm64, mysql_amd64_path, mysql_arm64, mysql_arm64_path, open, patched, programs, stripped,
};

const RW_LOCK_CREATE: &str = "_Z19rw_lock_create_funcP9rw_lock_t";

const ALLOWED: Allowed = Allowed { uretprobes: true, calls: true, many_sites: true, every_round: true };

fn latch_plan(image: &Image) -> Plan {
    let family = discovery::family(image).unwrap_or_else(|error| panic!("{error}"));
    plan(image, family, ALLOWED)
}

/// What was found in a program is the same when it is read from the folder where it is kept.
#[test]
fn kept_plans_are_whole() {
    for (server, path) in programs().into_iter().chain([("mysql-arm64".to_owned(), mysql_arm64_path())]) {
        let image = Image::open_running(&path).unwrap_or_else(|error| panic!("{server}: {error}"));
        if image.build_id().is_empty() {
            println!("{server}: not kept, as it has no build ID");
            continue;
        }
        let family = discovery::family(&image).unwrap_or_else(|error| panic!("{server}: {error}"));
        let folder = tempfile::tempdir().expect("a folder");
        let looked = || {
            let plan = kept_plan(&Cache::below(folder.path()), &image, family, ALLOWED);
            let files = fs::read_dir(folder.path().join("plans")).expect("a folder of plans");
            let file = files.map(|file| file.unwrap().metadata().unwrap()).next();
            let file = file.unwrap_or_else(|| panic!("{server}: nothing is kept"));
            (serde_json::to_string(&plan).expect("JSON"), file.ino(), file.len())
        };
        let (new, kept) = (looked(), looked());
        println!("{server}: {} KiB", new.2 / 1024);
        // A plan that had to be made again would be in another file.
        assert!(new == kept, "{server}: another plan, or the file {} instead of {}", kept.1, new.1);
    }
}

/// The same for the locks that it creates. A file has at most 512 KiB.
#[test]
fn kept_locks_are_whole() {
    for (server, path) in programs() {
        let image = Image::open_running(&path).unwrap_or_else(|error| panic!("{server}: {error}"));
        let found = locks(&image, &Instruments::new(&image, &image.static_pointers()));
        let json = |locks: &Locks| serde_json::to_value(locks).expect("JSON");
        let text = json(&found).to_string();
        println!("{server}: {} KiB", text.len() / 1024);
        assert!(text.len() < 500 << 10, "{server}: {} bytes", text.len());
        let kept: Locks = serde_json::from_str(&text).expect("locks");
        assert!(kept.fits(&image) && json(&kept) == json(&found), "{server}");
    }
}

/// The offsets of the id in a mutex and in a page's mutex, those of the file and the line in an rw-lock, and the line's
/// bit mask. They were read from the disassembly of `PolicyMutex::init`, `sync_array_cell_print` and
/// `rw_lock_create_func`.
const LAYOUTS: &[(&str, [i64; 4], u32)] = &[
    ("mysql-9.7", [0x20, 0x18, 0x30, 0x38], u32::MAX),
    ("mysql-8.0", [0x20, 0x18, 0x30, 0x38], u32::MAX),
    ("mysql-8.0-arm64", [0x20, 0x18, 0x30, 0x38], u32::MAX),
    ("mysql-8.0-stripped", [0x20, 0x18, 0x30, 0x38], u32::MAX),
    ("mysql-8.0.31", [0x20, 0x18, 0x30, 0x38], u32::MAX),
    ("mysql-8.0.12", [0x28, 0x20, 0x40, 0x58], 0x1fff),
    ("mysql-5.7", [0x28, 0x20, 0x40, 0x58], 0x1fff),
    ("mariadb-10.2", [0x20, 0x18, 56, 80], 0x1fff),
];

#[test]
fn latch_layouts_match_the_disassembly() {
    for (server, path) in programs() {
        let Some((_, offsets, bits)) = LAYOUTS.iter().find(|(name, ..)| *name == server) else { continue };
        let image = open(&path);
        let family = discovery::family(&image).unwrap_or_else(|error| panic!("{server}: {error}"));
        let layout = Layout::of(&image, family);
        let found = |matches: &dyn Fn(&Member) -> bool| {
            let mut found = layout.members().filter(|(member, _)| matches(member)).map(|(_, kept)| kept);
            found.next().unwrap_or_else(|| panic!("{server}: {layout:?}"))
        };
        let of_policy = |policy: &'static str| move |m: &Member| m.set_by[0].contains(policy);
        let of_rw_lock = |to: Parameter| move |m: &Member| m.set_by == [RW_LOCK_CREATE] && m.to == to;
        let (id, block_id) = (found(&of_policy("13GenericPolicy")), found(&of_policy("16BlockMutexPolicy")));
        let (file, line) = (found(&of_rw_lock(Parameter::File)), found(&of_rw_lock(Parameter::Line)));
        assert_eq!([id, block_id, file, line].map(|kept| kept.offset), *offsets, "{server}");
        assert_eq!(line.mask, *bits, "{server}");
    }
}

/// Names are read from the code of every build: most latch ids and most places that create latches have an instrument.
#[test]
fn latches_have_names() {
    for (server, path) in programs() {
        let image = open(&path);
        let family = discovery::family(&image).unwrap_or_else(|error| panic!("{server}: {error}"));
        let Naming::Mysql(catalog) = family.naming else { continue };
        let rules = MysqlRules::new(&image, catalog);
        let ids: Vec<String> = rules.ids().filter_map(|id| Some(rules.id_name(id)?.event)).collect();
        if catalog.ids.is_some() {
            assert!(ids.len() >= 60, "{server}: {ids:?}");
            for known in ["trx_sys_mutex", "srv_sys_mutex", "lock_wait_mutex"] {
                assert!(ids.iter().any(|id| id.ends_with(known)), "{server}: no {known} in {ids:?}");
            }
        }
        let sites = rules.sites();
        let named = sites.iter().filter(|site| rules.site_name(&site.file, site.line).is_some()).count();
        println!("{server}: {} latch ids, {named} of {} places that create latches", ids.len(), sites.len());
        assert!(sites.len() >= 10 && named * 100 >= sites.len() * 85, "{server}: {sites:#?}");
    }
}

/// Returns the names found in the code, by latch id, by source location, or by address.
fn names(image: &Image) -> BTreeMap<String, String> {
    let Ok(family) = discovery::family(image) else { return BTreeMap::new() };
    match family.naming {
        Naming::Mysql(catalog) => {
            let rules = MysqlRules::new(image, catalog);
            let ids = rules.ids().filter_map(|id| Some((id.to_owned(), rules.id_name(id)?.event)));
            let sites = rules.sites().iter().filter_map(|site| {
                let name = rules.site_name(&site.file, site.line)?;
                Some((format!("{}:{}", site.file, site.line), name.event))
            });
            ids.chain(sites).collect()
        }
        Naming::Mariadb(catalog) => {
            let rules = MariadbRules::new(image, family, catalog);
            rules.statics().iter().map(|(addr, name)| (format!("{addr:#x}"), name.event.clone())).collect()
        }
        Naming::None => BTreeMap::new(),
    }
}

/// Everything found without symbols is also found with them, at the same addresses and under the same names.
#[test]
fn symbols_only_add() {
    for (server, path) in programs() {
        let whole = open(&path);
        // A server that exports none of its latch functions has no sites without symbols.
        let sites = |image: &Image| -> BTreeSet<(String, u64)> {
            let plan = discovery::family(image).map(|_| latch_plan(image).sites).unwrap_or_default();
            plan.iter().map(|site| (site.name.clone(), site.addr)).collect()
        };
        let bare = stripped(&path);
        let (with, without) = (sites(&whole), sites(&bare));
        let has_latches = discovery::family(&whole).is_ok_and(|family| !family.wait_functions.is_empty());
        assert!(!with.is_empty() || !has_latches, "{server}: no probes");
        println!("{server}: {} probes with all symbols, {} stripped", with.len(), without.len());
        let lost: Vec<_> = without.difference(&with).collect();
        assert!(lost.is_empty(), "{server}: found only without symbols: {lost:x?}");
        let all = names(&whole);
        for (latch, name) in names(&bare) {
            assert_eq!(all.get(&latch), Some(&name), "{server}: {latch}");
        }
    }
}

/// Where the code says that threads have their sessions.
#[derive(Debug, PartialEq)]
enum Session {
    /// At this distance from the thread pointer.
    At(i64),
    /// At the distance that is in the global offset table, or in static data.
    InSlot,
    /// Where the C library has the variable of the key `THR_THD`.
    OfKey,
}

use Session::{At, InSlot, OfKey};

/// The places, read from the disassembly of `thd_get_current_thd` and `thd_query_unsafe`, or of `_current_thd` and
/// `thd_query_string`, with the offset of the text in the session.
const STATEMENTS: &[(&str, (Session, u64))] = &[
    ("mysql-9.7", (InSlot, 0x510)),
    ("mysql-8.0.31", (InSlot, 0x518)),
    ("mysql-8.0.12", (At(-0xc8), 0x218)),
    ("mysql-5.7", (OfKey, 0x1d8)),
    ("mysql-5.6", (OfKey, 0x50)),
    ("mariadb-11.8-debian", (At(-0xb8), 0x68)),
    ("mariadb-11.4", (At(-0x90), 0x68)),
    ("mariadb-10.11", (At(-0xd0), 0x68)),
    ("mariadb-10.11-debian", (At(-0x68), 0x68)),
    ("mariadb-10.5-debian", (At(-0x38), 0x68)),
    ("mariadb-10.2", (OfKey, 0x60)),
    ("mariadb-10.1", (OfKey, 0x60)),
];

/// Returns the place in a program.
fn statement(image: &Image) -> Option<(Session, u64)> {
    let at = discovery::statement(image).ok()?;
    let session = match at.session {
        ThreadOffset::Fixed(distance) => At(distance),
        ThreadOffset::InSlot(slot) => {
            assert!(image.is_static_data(slot) || image.section(".got").is_some_and(|got| got.contains(&slot)));
            InSlot
        }
        ThreadOffset::OfKey(key) => {
            assert_eq!(image.symbol("THR_THD").map(|symbol| symbol.addr), Some(key));
            OfKey
        }
    };
    Some((session, at.text))
}

#[test]
fn statements_are_found_in_the_code() {
    for (server, path) in programs() {
        let Some((_, expected)) = STATEMENTS.iter().find(|(name, _)| *name == server) else { continue };
        assert_eq!(statement(&open(&path)).as_ref(), Some(expected), "{server}");
    }
}

#[test]
fn statements_are_found_in_arm64_code() {
    assert_eq!(statement(&mysql_arm64()), Some((At(0x58), 0x520)));
    assert_eq!(statement(&mariadb_arm64()), Some((At(0x10), 0x68)));
    assert_eq!(statement(&debian_mariadb("arm64", "bullseye")), Some((At(0x10), 0x68)));
}

/// The offsets of connection IDs in sessions, read from the disassembly of `thd_get_thread_id`.
const CONNECTIONS: &[(&str, u64)] = &[
    ("mysql-9.7", 0x25d0),
    ("mysql-8.0.31", 0x2508),
    ("mysql-8.0.12", 0x1fe0),
    ("mysql-5.7", 0x1ec0),
    ("mysql-5.6", 0x1b70),
    ("mariadb-11.8-debian", 0x4058),
    ("mariadb-11.4", 0x3fb0),
    ("mariadb-10.11", 0x3ed0),
    ("mariadb-10.11-debian", 0x3f18),
    ("mariadb-10.5-debian", 0x3c40),
    ("mariadb-10.2", 0x3658),
    ("mariadb-10.1", 0x3590),
];

#[test]
fn connections_are_found_in_the_code() {
    for (server, path) in programs() {
        let Some((_, expected)) = CONNECTIONS.iter().find(|(name, _)| *name == server) else { continue };
        assert_eq!(discovery::connection(&open(&path)), Some(*expected), "{server}");
    }
}

/// Where a session has the name of its user.
#[derive(Debug, PartialEq)]
enum User {
    /// At this offset in its security context, to which it has a pointer at that offset.
    InContext(u64, u64),
    /// At this offset in itself.
    InSession(u64),
    /// No function shows it.
    NotKnown,
}

use User::{InContext, InSession, NotKnown};

/// Where sessions keep for whom they work: the offset of the schema, and where the user is. Read from the disassembly
/// of `Item_func_database::val_str`, and of `thd_get_security_context` and `Security_context::user`, of
/// `thd_user_name`, or of `Item_func_user::fix_fields`.
const ACCOUNTS: &[(&str, (Option<u64>, User))] = &[
    ("mysql-9.7", (Some(0x558), InContext(0x1800, 0))),
    ("mysql-8.0", (Some(0x560), InContext(0x1778, 0))),
    ("mysql-8.0.31", (Some(0x560), InContext(0x1768, 0))),
    ("mysql-8.0.12", (Some(0x258), InSession(0xf30))),
    ("mysql-5.7", (Some(0x218), InSession(0xe30))),
    ("mysql-5.6", (Some(0x88), InSession(0x1000))),
    ("mariadb-11.8-debian", (Some(0xa0), InContext(0x2720, 8))),
    ("mariadb-11.4", (Some(0xa0), InContext(0x2680, 8))),
    ("mariadb-10.11", (Some(0xa0), InContext(0x25b8, 8))),
    ("mariadb-10.11-debian", (Some(0xa0), InContext(0x25f8, 8))),
    ("mariadb-10.5-debian", (Some(0xa0), InContext(0x2388, 8))),
    ("mariadb-10.2", (Some(0x98), NotKnown)),
    ("mariadb-10.1", (Some(0x98), NotKnown)),
];

/// Returns the place in a program.
fn account(image: &Image) -> (Option<u64>, User) {
    let at = discovery::account(image);
    let user = at.user.map_or(NotKnown, |user| match user.context {
        Some(context) => InContext(context, user.name),
        None => InSession(user.name),
    });
    (at.schema, user)
}

#[test]
fn accounts_are_found_in_the_code() {
    for (server, path) in programs() {
        let Some((_, expected)) = ACCOUNTS.iter().find(|(name, _)| *name == server) else { continue };
        assert_eq!(account(&open(&path)), *expected, "{server}");
    }
}

#[test]
fn accounts_are_found_in_arm64_code() {
    assert_eq!(account(&mysql_arm64()), (Some(0x568), InContext(0x1840, 0)));
    assert_eq!(account(&mariadb_arm64()), (Some(0xa0), InContext(0x2740, 8)));
    assert_eq!(account(&debian_mariadb("arm64", "bullseye")), (Some(0xa0), InContext(0x23a0, 8)));
}

/// Without the functions that show it, nothing is known.
#[test]
fn statements_are_not_guessed() {
    use armtrace::discovery::NoStatements;
    let path = mysql_amd64_path();
    let image = open(&path);
    let at = |name: &str| image.symbol(name).expect("a function").addr;
    // ret
    let session = patched(&path, &[(at("_Z19thd_get_current_thdv"), &[0xc3])]);
    assert_eq!(discovery::statement(&session), Err(NoStatements::NoSession));
    let text = patched(&path, &[(at("_Z16thd_query_unsafeP3THD"), &[0xc3])]);
    assert_eq!(discovery::statement(&text), Err(NoStatements::NoText));
}
