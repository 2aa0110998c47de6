//! SIGHUP to a service: the settings are read again.

use parking_lot::Mutex;

use super::log;
use super::run::RunArgs;
use super::session::AttachArgs;
use super::Cli;

/// The settings that are in use.
pub(super) struct Reload(Mutex<RunArgs>);

impl Reload {
    /// Notes the settings of the start.
    pub fn new(args: &RunArgs) -> Reload {
        Reload(Mutex::new(args.clone()))
    }

    /// Returns what is to be attached, and how.
    pub fn attach_args(&self) -> AttachArgs {
        self.0.lock().attach.clone()
    }

    /// Reads the settings again, and tells what comes of it. Returns whether something else is to be attached.
    pub fn all(&self) -> bool {
        let Some(new) = read_again() else { return false };
        let mut used = self.0.lock();
        tell(&of_the_start(&used, &new));
        let is_new = std::mem::replace(&mut used.attach, new.attach.clone()) != new.attach;
        if is_new {
            log::tell("attaching to all servers again, by the new settings");
        }
        is_new
    }

    /// The same, but what is attached stays as it is.
    pub fn all_but_attached(&self) {
        let Some(new) = read_again() else { return };
        let used = self.0.lock();
        let mut late = of_the_start(&used, &new);
        if used.attach != new.attach {
            late.push("what is measured");
        }
        tell(&late);
    }
}

/// Reads the settings, and begins to log by them. Says why if they are of no use.
fn read_again() -> Option<RunArgs> {
    match Cli::run_again() {
        Ok((args, level)) => {
            log::set_level(&level);
            Some(args)
        }
        Err(why) => {
            let why = why.lines().next().unwrap_or_default();
            log::tell(&format!("the settings stay as they were: {}", why.trim_start_matches("error: ")));
            None
        }
    }
}

/// Returns the settings that have changed and are used at the start only.
fn of_the_start(used: &RunArgs, new: &RunArgs) -> Vec<&'static str> {
    let changes = [
        ("pid or discover", (used.pid, used.discover) != (new.pid, new.discover)),
        ("keep", used.hindsight.keep != new.hindsight.keep),
        ("dump-to", used.hindsight.dump_to != new.hindsight.dump_to),
        ("dump-when-waiting", used.hindsight.dump_when_waiting != new.hindsight.dump_when_waiting),
        ("dump-when-statement", used.hindsight.dump_when_statement != new.hindsight.dump_when_statement),
        ("listen", used.port.listen != new.port.listen),
        ("web.config.file", used.port.web_config_file != new.port.web_config_file),
        ("allowed-hosts", used.port.allowed_hosts != new.port.allowed_hosts),
        ("log-format", used.log.log_format != new.log.log_format),
    ];
    changes.into_iter().filter(|(_, has_changed)| *has_changed).map(|(setting, _)| setting).collect()
}

fn tell(late: &[&str]) {
    log::tell("the settings were read again");
    if !late.is_empty() {
        log::tell(&format!("only the next start changes {}", late.join(", ")));
    }
}
