//! What is fuzzed: everything that reads what somebody else chose. Each function takes one input and must neither
//! panic, nor take long, nor take much memory. `fuzz/` drives them with libFuzzer; the tests here repeat its seeds.

mod programs;
mod readers;
mod recordings;
mod services;

/// A function that examines one input.
pub type Examine = fn(&[u8]);

/// Everything that is fuzzed, by the name of its folder of seeds.
pub const TARGETS: [(&str, Examine); 14] = [
    ("audit", programs::audit),
    ("code", programs::code),
    ("debugdata", readers::debugdata),
    ("debuginfod", services::debuginfod),
    ("dump", readers::dump),
    ("http", services::http),
    ("kernel", readers::kernel),
    ("memory", programs::memory),
    ("plan", programs::kept_plan),
    ("program", programs::program),
    ("recording", recordings::recording),
    ("statement", readers::statement),
    ("symbols", readers::symbols),
    ("unwind", programs::unwind),
];

/// Returns what examines the inputs of this name.
pub fn target(name: &str) -> Option<Examine> {
    TARGETS.iter().find(|(other, _)| *other == name).map(|(_, examine)| *examine)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::*;

    /// Much more than any seed takes, also without optimisation and on a machine that is busy.
    const LONG: Duration = Duration::from_secs(60);

    fn repeat(names: &[&str]) {
        for name in names {
            let examine = target(name).expect("a target");
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(name);
            let seeds = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
            let mut count = 0;
            for seed in seeds {
                let seed = seed.expect("an entry").path();
                let begun = Instant::now();
                eprintln!("{}", seed.display());
                examine(&fs::read(&seed).expect("a seed"));
                assert!(begun.elapsed() < LONG, "{}", seed.display());
                count += 1;
            }
            assert!(count > 0, "{name} has no seeds");
        }
    }

    #[test]
    fn seeds_that_are_programs_do_no_harm() {
        repeat(&["audit", "code", "memory", "program", "unwind"]);
    }

    #[test]
    fn seeds_that_are_read_do_no_harm() {
        repeat(&["debugdata", "dump", "kernel", "plan", "recording", "symbols"]);
    }

    #[test]
    fn seeds_from_the_network_do_no_harm() {
        repeat(&["debuginfod", "http"]);
    }

    #[test]
    fn every_folder_of_seeds_has_a_target() {
        let folders = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds")).expect("the seeds");
        let mut names: Vec<_> = folders.map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        assert_eq!(names, TARGETS.map(|(name, _)| name));
    }
}
