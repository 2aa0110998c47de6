//! The latches that performance engineers look for first: each must appear under its name on a real server.

use std::time::Duration;

use anyhow::{ensure, Result};

use lab::agent::{by_latch, Agent};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// Far longer than usually needed, for busy machines.
const LIMIT: Duration = Duration::from_secs(90);

const WAITS: &str = "armtrace_latch_wait_seconds_count";
/// Idle waits of condition variables, which are no contention.
const IDLE: &str = "armtrace_cond_wait_seconds_count";

/// How to provoke waits for some latches.
struct Provoked {
    release: Release,
    perf_schema: bool,
    args: &'static [&'static str],
    /// The sysbench test.
    load: &'static str,
    /// The metric and the event name of each latch.
    latches: &'static [(&'static str, &'static str)],
}

/// Pages are constantly written out and read back, and tables are constantly reopened.
static WRITES: Provoked = Provoked {
    release: Release::MARIADB_11_4,
    perf_schema: false,
    args: &["--innodb-buffer-pool-size=8M", "--table-open-cache=10", "--table-open-cache-instances=1"],
    load: "oltp_write_only",
    latches: &[
        (WAITS, "wait/synch/rwlock/innodb/trx_rseg_latch"),
        (WAITS, "wait/synch/rwlock/innodb/fil_space_latch"),
        (WAITS, "wait/synch/rwlock/innodb/log_latch"),
        (WAITS, "wait/synch/sxlock/innodb/index_tree_rw_lock"),
        (WAITS, "wait/synch/mutex/innodb/flush_list_mutex"),
        (WAITS, "wait/synch/rwlock/sql/MDL_lock::rwlock"),
        (WAITS, "wait/synch/mutex/sql/LOCK_table_cache"),
        (IDLE, "wait/synch/cond/mysys/COND_timer"),
    ],
};

/// Up to MariaDB 10.5, the buffer pool's mutex is one of InnoDB's own.
static OLD_UPDATES: Provoked = Provoked {
    release: Release::MARIADB_10_2,
    perf_schema: false,
    args: &["--innodb-buffer-pool-size=8M"],
    load: "oltp_update_index",
    latches: &[
        (WAITS, "wait/synch/mutex/innodb/buf_pool_mutex"),
        (WAITS, "wait/synch/rwlock/innodb/fil_space_latch"),
        (WAITS, "wait/synch/rwlock/innodb/index_tree_rw_lock"),
        (WAITS, "wait/synch/rwlock/sql/MDL_lock::rwlock"),
    ],
};

/// Aria's checkpoint thread waits for its next interval. The condition variable is in a static object with another
/// name, so only its instrument names it.
static CHECKPOINTS: Provoked = Provoked {
    release: Release::MARIADB_11_4,
    perf_schema: true,
    args: &["--aria-checkpoint-interval=1"],
    load: "oltp_point_select",
    latches: &[(IDLE, "wait/synch/cond/aria/SERVICE_THREAD_CONTROL::COND_control")],
};

/// Runs the load until every latch has a wait.
fn all_are_seen(provoked: &Provoked) -> Result<()> {
    let args = provoked.args.iter().map(|a| (*a).to_owned()).collect();
    let options = Options { perf_schema: provoked.perf_schema, args, ..Options::default() };
    let server = Server::start(provoked.release, &options)?;
    let mut load = Load::start(&server, provoked.load, 32)?;
    load.wait_running()?;
    let agent = Agent::attach_without_budget(&server)?;
    let unseen = || -> Result<Vec<&'static str>> {
        let samples = agent.scrape()?;
        let (waits, idle) = (by_latch(&samples, WAITS), by_latch(&samples, IDLE));
        let seen = |metric: &str, name: &str| {
            let counts = if metric == WAITS { &waits } else { &idle };
            counts.get(name).is_some_and(|count| *count > 0.0)
        };
        Ok(provoked.latches.iter().filter(|(metric, name)| !seen(metric, name)).map(|(_, name)| *name).collect())
    };
    let found = wait_for("waits for all these latches", LIMIT, || Ok(unseen()?.is_empty().then_some(())));
    ensure!(found.is_ok(), "{:?}: no waits for {:?}", found, unseen()?);
    load.stop()?;
    let (status, _) = agent.stop()?;
    ensure!(status.success(), "{status}");
    server.stop()
}

#[test]
fn well_known_latches_of_writes_are_seen() -> Result<()> {
    all_are_seen(&WRITES)
}

#[test]
fn well_known_latches_of_old_updates_are_seen() -> Result<()> {
    all_are_seen(&OLD_UPDATES)
}

#[test]
fn well_known_latches_of_checkpoints_are_seen() -> Result<()> {
    all_are_seen(&CHECKPOINTS)
}
