//! Where waits for row locks and metadata locks begin and end, in the servers' binaries.

use armtrace::attach::ProbeClass;
use armtrace::catalog::LockKind;
use armtrace::measure::locks::{lock_plan, LockPlan};
use armtrace::symbols::Image;

use lab::binaries::{mariadb_arm64, mysql_arm64, open, programs};

/// Servers whose builds name only some of the functions, or none: those without a symbol table.
const WITHOUT_ROW_LOCKS: &[&str] = &["mariadb-11.8-debian", "mariadb-10.11-debian", "mariadb-10.5-debian"];

fn shown(plan: &LockPlan) -> String {
    let site = |(name, site): (String, &armtrace::measure::locks::PlannedLockSite)| {
        let (addr, instruction) = (site.addr, &site.instruction);
        format!("  {name} {addr:#x} {instruction} {}", site.class.as_str())
    };
    let gaps = plan.gaps.iter().map(|gap| format!("  {gap}"));
    plan.sites().map(site).chain(gaps).collect::<Vec<String>>().join("\n")
}

fn has(plan: &LockPlan, row: bool) -> bool {
    plan.waits.iter().any(|wait| (wait.waits_for == LockKind::Row) == row)
}

/// Checks what must be true of every plan: no return probe is needed, and the begins of waits for metadata are cheap.
fn check(server: &str, image: &Image) -> LockPlan {
    let plan = lock_plan(image, false, true);
    println!("{server}\n{}", shown(&plan));
    assert_eq!(plan.waits.len() + plan.gaps.len(), 2, "{server}: two kinds of locks");
    for wait in &plan.waits {
        assert!(!wait.begins.is_empty() && !wait.ends.is_empty() && !wait.at_return, "{server}: {wait:?}");
        let is_cheap = wait.begins.iter().all(|site| site.class == ProbeClass::Emulated);
        assert!(is_cheap || wait.waits_for == LockKind::Row, "{server}: {wait:?}");
    }
    plan
}

#[test]
fn every_server_shows_where_locks_are_waited_for() {
    for (server, path) in programs() {
        let plan = check(&server, &open(&path));
        assert!(has(&plan, false), "{server}: metadata locks");
        assert_eq!(has(&plan, true), !WITHOUT_ROW_LOCKS.contains(&&*server), "{server}: row locks");
    }
}

#[test]
fn builds_for_arm64_show_it_too() {
    let plan = check("mysql-arm64", &mysql_arm64());
    assert!(has(&plan, true) && has(&plan, false), "MySQL");
    assert!(has(&check("mariadb-arm64", &mariadb_arm64()), false), "MariaDB");
}
