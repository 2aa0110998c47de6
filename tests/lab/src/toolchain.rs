//! The LLVM tools that tests compile and assemble with.

use std::process::Command;

/// Returns the name under which this machine has a tool of LLVM: that of version 16, which CI has, otherwise its plain
/// name.
pub fn llvm(tool: &str) -> String {
    let of_ci = format!("{tool}-16");
    if Command::new(&of_ci).arg("--version").output().is_ok() {
        of_ci
    } else {
        tool.to_owned()
    }
}
