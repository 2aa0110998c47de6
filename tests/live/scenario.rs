//! The table of realistic loads, each with the setup of its server.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// How a server is set up. Scenarios with the same setup share a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    /// The lab's settings: all data in memory, no binlog, nothing flushed at commit.
    Lab,
    /// The version's own settings, with the binlog on and every commit flushed to log and binlog.
    Defaults,
    /// A buffer pool a third of the size of the data.
    SmallPool,
    /// The version's own settings, on a replica with several workers, which is the server measured.
    Replica,
}

impl Setup {
    pub const ALL: [Setup; 4] = [Setup::Lab, Setup::Defaults, Setup::SmallPool, Setup::Replica];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    pub name: &'static str,
    pub setup: Setup,
    /// The name of a sysbench test, or of one of the lab's own.
    pub test: &'static str,
    pub distribution: &'static str,
    /// The counter of the measured server that grows if the load works as intended.
    pub counter: &'static str,
    /// A statement that the server runs before the load.
    before: &'static str,
}

impl Scenario {
    const fn new(
        name: &'static str,
        setup: Setup,
        test: &'static str,
        distribution: &'static str,
        counter: &'static str,
    ) -> Scenario {
        Scenario { name, setup, test, distribution, counter, before: "DO 1" }
    }

    const fn after(self, before: &'static str) -> Scenario {
        Scenario { before, ..self }
    }

    /// Returns whether a release supports the scenario. MySQL 5.6 uses several workers only for several databases.
    pub fn suits(&self, release: Release) -> bool {
        self.setup != Setup::Replica || !release.is_mysql() || release.at_least("5.7")
    }
}

pub const SCENARIOS: [Scenario; 17] = [
    Scenario::new("point_select uniform", Setup::Lab, "oltp_point_select", "uniform", "Com_select"),
    Scenario::new("point_select pareto", Setup::Lab, "oltp_point_select", "pareto", "Com_select"),
    Scenario::new("read_only uniform", Setup::Lab, "oltp_read_only", "uniform", "Com_select"),
    Scenario::new("read_only pareto", Setup::Lab, "oltp_read_only", "pareto", "Com_select"),
    Scenario::new("read_write uniform", Setup::Lab, "oltp_read_write", "uniform", "Com_update"),
    Scenario::new("read_write pareto", Setup::Lab, "oltp_read_write", "pareto", "Com_update"),
    Scenario::new("update_index uniform", Setup::Lab, "oltp_update_index", "uniform", "Com_update"),
    Scenario::new("update_index pareto", Setup::Lab, "oltp_update_index", "pareto", "Com_update"),
    Scenario::new("update_non_index uniform", Setup::Lab, "oltp_update_non_index", "uniform", "Com_update"),
    Scenario::new("update_non_index pareto", Setup::Lab, "oltp_update_non_index", "pareto", "Com_update"),
    Scenario::new("ddl", Setup::Lab, "ddl", "uniform", "Com_alter_table"),
    // Without the thread cache, each connection creates a thread.
    Scenario::new("connections", Setup::Lab, "connections", "uniform", "Connections")
        .after("SET GLOBAL thread_cache_size = 0"),
    Scenario::new("defaults read_write", Setup::Defaults, "oltp_read_write", "uniform", "Binlog_cache_use"),
    Scenario::new("defaults update_index", Setup::Defaults, "oltp_update_index", "uniform", "Binlog_cache_use"),
    Scenario::new("tpcc", Setup::Defaults, "tpcc", "uniform", "Binlog_cache_use"),
    Scenario::new("small pool", Setup::SmallPool, "oltp_read_write", "uniform", "Innodb_buffer_pool_reads"),
    Scenario::new("replica", Setup::Replica, "oltp_update_index", "uniform", "Handler_update"),
];

/// The measured server, and if it is a replica, its source, which receives the load.
pub struct Stage {
    pub server: Server,
    source: Option<Server>,
}

impl Stage {
    pub fn start(release: Release, setup: Setup) -> Result<Stage> {
        let options = Options { perf_schema: true, ..Options::default() };
        let with = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
        let options = match setup {
            Setup::Lab => options,
            Setup::Defaults => Options { defaults: true, ..options },
            // sysbench's tables take 76 MB.
            Setup::SmallPool => Options { args: with(&["--innodb-buffer-pool-size=24M"]), ..options },
            Setup::Replica => Options { defaults: true, args: with(workers(release)), ..options },
        };
        let server = Server::start(release, &options)?;
        let source = (setup == Setup::Replica).then(|| source_of(release, &server)).transpose()?;
        Ok(Stage { server, source })
    }

    fn loaded(&self) -> &Server {
        self.source.as_ref().unwrap_or(&self.server)
    }

    pub fn prepare(&self, scenario: &Scenario) -> Result<()> {
        self.loaded().query(scenario.before)?;
        if scenario.test == "tpcc" {
            Load::prepare(self.loaded(), scenario.test)?;
        }
        Ok(())
    }

    pub fn load(&self, scenario: &Scenario, threads: u32) -> Result<Load> {
        let mut load =
            Load::start_with(self.loaded(), scenario.test, threads, &["--rand-type", scenario.distribution])?;
        load.wait_running()?;
        Ok(load)
    }

    pub fn stop(self) -> Result<()> {
        self.server.stop()?;
        self.source.map_or(Ok(()), Server::stop)
    }
}

/// Returns the settings of a replica with four workers, which apply in parallel what the source committed in parallel.
fn workers(release: Release) -> &'static [&'static str] {
    match (release.is_mysql(), release.at_least("8.0.27")) {
        (true, true) => &["--server-id=2", "--replica-parallel-workers=4"],
        (true, false) => &["--server-id=2", "--slave-parallel-workers=4", "--slave-parallel-type=LOGICAL_CLOCK"],
        (false, _) => &["--server-id=2", "--slave-parallel-threads=4", "--slave-parallel-mode=optimistic"],
    }
}

/// Starts a source that the replica follows from its first transaction on. Both start with the same data.
fn source_of(release: Release, replica: &Server) -> Result<Server> {
    // The source is not measured, so the replica must not have to wait for it.
    let args = ["--sync-binlog=0", "--innodb-flush-log-at-trx-commit=0"].map(str::to_owned).to_vec();
    let source = Server::start(release, &Options { defaults: true, args, ..Options::default() })?;
    replica.query(&follow(release, source.port()))?;
    // Create the user for the address and the host name: older versions have an anonymous user for the local host,
    // which would take precedence.
    for host in ["127.0.0.1", "localhost"] {
        source.query(&format!(
            "CREATE USER 'replica'@'{host}' IDENTIFIED BY ''; GRANT REPLICATION SLAVE ON *.* TO 'replica'@'{host}'"
        ))?;
    }
    source.query("CREATE TABLE sbtest.replicated (id INT PRIMARY KEY)")?;
    replica.query(if speaks_of_sources(release) { "START REPLICA" } else { "START SLAVE" })?;
    let arrived = "SELECT 1 FROM information_schema.tables WHERE table_name = 'replicated'";
    wait_for("the replica to follow", Duration::from_secs(30), || {
        Ok((!replica.query(arrived)?.is_empty()).then_some(()))
    })
    .with_context(|| {
        let log = fs::read_to_string(replica.dir().join("server.log")).unwrap_or_default();
        log.lines().rev().find(|line| line.contains("ERROR")).unwrap_or_default().to_owned()
    })?;
    ensure!(source.running(), "the source has exited");
    Ok(source)
}

/// Returns whether replication statements have their newer names. The older names may be missing.
fn speaks_of_sources(release: Release) -> bool {
    release.is_mysql() && release.at_least("8.0.23")
}

/// Returns the statement that makes a server a replica, from the beginning of the source's first binlog.
fn follow(release: Release, port: u16) -> String {
    let statement = if speaks_of_sources(release) { "CHANGE REPLICATION SOURCE TO" } else { "CHANGE MASTER TO" };
    let transport = match (release.is_mysql(), release.at_least("8.0")) {
        (true, true) => ", GET_MASTER_PUBLIC_KEY=1",
        (true, false) => "",
        // The lab runs MariaDB without TLS, which newer versions require by default.
        (false, _) => ", MASTER_SSL=0, MASTER_SSL_VERIFY_SERVER_CERT=0, MASTER_USE_GTID=no",
    };
    let options = format!(
        "MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='replica', MASTER_LOG_FILE='binlog.000001', \
         MASTER_LOG_POS=4, MASTER_CONNECT_RETRY=1{transport}"
    );
    let role = if speaks_of_sources(release) { "SOURCE" } else { "MASTER" };
    format!("{statement} {}", options.replace("MASTER", role))
}

/// Checks every load except sysbench's own tests with the lab's settings.
fn loads_run(release: Release) -> Result<()> {
    for setup in Setup::ALL {
        let own = |s: &Scenario| {
            s.setup == setup && s.suits(release) && !(setup == Setup::Lab && s.test.starts_with("oltp_"))
        };
        let scenarios: Vec<Scenario> = SCENARIOS.into_iter().filter(own).collect();
        if scenarios.is_empty() {
            continue;
        }
        let stage = Stage::start(release, setup).with_context(|| format!("{setup:?}"))?;
        for scenario in scenarios {
            counter_grows(&stage, &scenario).with_context(|| scenario.name)?;
        }
        stage.stop()?;
    }
    Ok(())
}

/// Checks that a load works as intended.
fn counter_grows(stage: &Stage, scenario: &Scenario) -> Result<()> {
    stage.prepare(scenario)?;
    let before = stage.server.status(scenario.counter)?;
    let load = stage.load(scenario, 16)?;
    let mut polls = 0;
    wait_for(scenario.counter, Duration::from_secs(20), || {
        // Each poll is itself a connection.
        polls += u64::from(scenario.counter == "Connections");
        Ok((stage.server.status(scenario.counter)? > before + polls).then_some(()))
    })?;
    load.stop()?;
    Ok(())
}

#[test]
#[ignore = "half a minute per server: make test-all"]
fn every_load_runs_on_every_server() -> Result<()> {
    for release in Release::chosen() {
        let start = Instant::now();
        loads_run(release).with_context(|| release.name())?;
        println!("{}: {:.0} s", release.name(), start.elapsed().as_secs_f64());
    }
    Ok(())
}
