//! What it costs to count a wait, where as many threads as there are CPUs count waits for the same latch at once: in an
//! entry that all CPUs share, and in entries of their own. Run it with `make bench-counting`, as root.

use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use libbpf_cargo::SkeletonBuilder;
use libbpf_rs::{Object, ObjectBuilder, ProgramInput, ProgramMut};
use rustix::thread::{sched_setaffinity, CpuSet};

/// Waits that one run of the program counts, as the program says.
const WAITS: f64 = 1000.0;
const RUNS: u32 = 2000;
const ROUNDS: usize = 9;

/// A loaded program that several threads run.
struct Counting<'obj>(ProgramMut<'obj>);

// SAFETY: a run passes the program's number to the kernel, and changes nothing in this process.
unsafe impl Sync for Counting<'_> {}

fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let object = built(folder.path())?;
    let cpus = thread::available_parallelism()?.get();
    println!("nanoseconds per wait, the median of {ROUNDS} rounds:");
    for name in ["together", "alone"] {
        let program = object.progs_mut().find(|program| program.name() == name).context("no such program")?;
        let program = Counting(program);
        let [one, all] = [1, cpus].map(|threads| -> Result<f64> {
            let mut rounds = (0..ROUNDS).map(|_| each_wait_ns(&program, threads)).collect::<Result<Vec<f64>>>()?;
            rounds.sort_by(f64::total_cmp);
            Ok(rounds[ROUNDS / 2])
        });
        println!("{name:<10} 1 thread {:5.0}, {cpus} threads {:5.0}", one?, all?);
    }
    Ok(())
}

fn built(folder: &Path) -> Result<Object> {
    let path = folder.join("counting.bpf.o");
    SkeletonBuilder::new()
        .source("benches/counting/counting.bpf.c")
        .obj(&path)
        .clang_args(["-Ibpf", "-Wall", "-Werror", "-Wno-unused-function", "-mcpu=v2"])
        .build()
        .context("building the program")?;
    Ok(ObjectBuilder::default().open_file(path)?.load()?)
}

/// Returns how long it takes to count a wait: the mean over threads that count at once, each on a CPU of its own.
fn each_wait_ns(program: &Counting<'_>, threads: usize) -> Result<f64> {
    let start = Barrier::new(threads);
    let count = |cpu: usize| -> Result<f64> {
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only)?;
        start.wait();
        let begin = Instant::now();
        for _ in 0..RUNS {
            program.0.test_run(ProgramInput::default())?;
        }
        Ok(begin.elapsed().as_nanos() as f64 / (WAITS * f64::from(RUNS)))
    };
    let count = &count;
    let times = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|cpu| scope.spawn(move || count(cpu))).collect();
        running.into_iter().map(|thread| thread.join().expect("it does not panic")).collect::<Result<Vec<f64>>>()
    });
    Ok(times?.iter().sum::<f64>() / threads as f64)
}
