//! Breakpoints that a killed tracer has left in a server's code, and two tracers at the same time.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use armtrace::server::load_bias;
use armtrace::symbols::Image;

use lab::agent::{doctor, Agent};
use lab::load::Load;
use lab::releases::Release;
use lab::server::{wait_for, Options, Server};

/// A function of the server that nothing calls while it serves.
const NOT_CALLED: [&str; 2] = ["my_print_variables", "_Z18my_print_variables"];

#[cfg(target_arch = "x86_64")]
const BREAKPOINT: &[u8] = &[0xcc];
#[cfg(target_arch = "aarch64")]
const BREAKPOINT: &[u8] = &0xd420_00a0_u32.to_le_bytes();

/// Where the server's code can be changed.
struct Code {
    memory: std::fs::File,
    address: u64,
    original: Vec<u8>,
}

impl Code {
    fn of_uncalled_function(pid: i32) -> Result<Code> {
        let image = Image::open(&PathBuf::from(format!("/proc/{pid}/exe")))?;
        let mut found = NOT_CALLED.iter().flat_map(|name| image.functions_named(name));
        let function = found.next().context("the server lacks the function")?.addr;
        let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        let address = function + load_bias(pid, &image)?;
        let mut code = Code { memory, address, original: Vec::new() };
        code.original = code.read()?;
        ensure!(code.original != BREAKPOINT, "a breakpoint is there already");
        Ok(code)
    }

    fn read(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; BREAKPOINT.len()];
        self.memory.read_exact_at(&mut bytes, self.address)?;
        Ok(bytes)
    }

    /// Writes what a tracer leaves that is killed at the wrong moment.
    fn leave_breakpoint(&self) -> Result<()> {
        Ok(self.memory.write_all_at(BREAKPOINT, self.address)?)
    }
}

fn breakpoints(server: &Server) -> Result<u64> {
    doctor(server.pid())?["server"]["breakpoints"].as_u64().context("doctor says nothing of breakpoints")
}

fn are_taken_out(release: Release) -> Result<()> {
    let server = Server::start(release, &Options::default())?;
    let mut load = Load::start(&server, "oltp_update_index", 16)?;
    load.wait_running()?;
    ensure!(breakpoints(&server)? == 0, "there are some already");
    let code = Code::of_uncalled_function(server.pid())?;
    code.leave_breakpoint()?;
    ensure!(breakpoints(&server)? == 1, "doctor does not see it");
    let agent = Agent::attach(&server)?;
    ensure!(code.read()? == code.original, "it is still there");
    let said = agent.errors()?;
    ensure!(said.contains("now taken out: 1"), "{said}");
    // Those of an agent at work are another matter.
    ensure!(breakpoints(&server)? > 0, "the agent has no probe");
    let second = Agent::attach(&server)?;
    let said = second.errors()?;
    ensure!(said.is_empty(), "{said}");
    for agent in [&agent, &second] {
        agent.first_name()?;
    }
    second.stop()?;
    ensure!(breakpoints(&server)? > 0, "the first agent has lost its probes");
    agent.stop()?;
    wait_for("the last breakpoint", Duration::from_secs(5), || Ok((breakpoints(&server)? == 0).then_some(())))?;
    let report = load.stop()?;
    ensure!(report.errors == 0 && report.reconnects == 0 && report.transactions > 0, "{report:?}");
    server.shut_down()
}

#[test]
fn breakpoints_that_were_left_are_taken_out() -> Result<()> {
    are_taken_out(Release::MARIADB_11_4)?;
    are_taken_out(Release::MYSQL_9_7)
}
