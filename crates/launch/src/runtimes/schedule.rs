//! Which schedules the OpenMP loops of a program ask its runtime for.
//!
//! A static schedule needs no runtime: compilers write the division into the program. Every other one is a call to
//! libgomp or to LLVM's runtime, and so a name that the program's file asks the loader for.

use std::collections::BTreeSet;
use std::path::Path;

use object::{Object, ObjectSymbol};

/// A larger file is not looked at, in bytes.
const LARGEST: u64 = 256 << 20;

/// The functions by which loops of the program's own file are dealt out while they run, sorted; empty where its loops
/// are all static, or it has none. `None` where the file cannot be read. Takes some milliseconds.
#[must_use]
pub fn dealt_out_while_running(program: &Path) -> Option<Vec<String>> {
    if std::fs::metadata(program).ok()?.len() > LARGEST {
        return None;
    }
    let bytes = std::fs::read(program).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    let symbols = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_undefined());
    let names = symbols.filter_map(|symbol| symbol.name().ok());
    let asked: BTreeSet<&str> = names.filter(|name| deals_out(name)).collect();
    Some(asked.into_iter().map(str::to_owned).collect())
}

/// Whether a runtime's function of this name begins a loop whose pieces are dealt out while it runs.
fn deals_out(name: &str) -> bool {
    let libgomp = name.strip_prefix("GOMP_").is_some_and(|rest| {
        let begins = !rest.contains("_next") && !rest.contains("_end");
        let how = ["dynamic", "guided", "runtime"];
        rest.contains("loop") && begins && how.iter().any(|how| rest.contains(how))
    });
    libgomp || name.starts_with("__kmpc_dispatch_init")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_that_are_dealt_out_while_they_run_are_known_by_the_runtimes_functions() {
        for name in [
            "GOMP_parallel_loop_dynamic",
            "GOMP_parallel_loop_nonmonotonic_guided",
            "GOMP_loop_ull_dynamic_start",
            "GOMP_loop_runtime_start",
            "__kmpc_dispatch_init_4",
        ] {
            assert!(deals_out(name), "{name}");
        }
        for name in [
            "GOMP_parallel",
            "GOMP_loop_end",
            "GOMP_loop_nonmonotonic_dynamic_next",
            "GOMP_loop_static_start",
            "__kmpc_for_static_init_4",
            "dynamic_loop",
        ] {
            assert!(!deals_out(name), "{name}");
        }
    }

    #[test]
    fn a_file_that_is_no_program_tells_nothing() {
        assert_eq!(dealt_out_while_running(Path::new("/nonexistent")), None);
        let own = std::env::current_exe().unwrap();
        assert_eq!(dealt_out_while_running(&own), Some(Vec::new()));
    }
}
