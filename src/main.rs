fn main() {
    let t = std::time::Instant::now();
    println!("{:?} {:?}", armtrace::attach::calibrate(), t.elapsed());
    for f in armtrace::attach::features() { println!("{f:?}"); }
    println!("{:?} {:?}", armtrace::attach::capabilities(), t.elapsed());
}
