//! The table of runtimes: how each is recognised, which variables it obeys, what it cannot do.
//!
//! The variables are those of the runtimes' documentation. Tried with real programs, whose threads
//! were counted in `/proc` and whose CPU time was read: libgomp (numba, LightGBM, scikit-learn),
//! OpenBLAS (NumPy's wheel), numexpr, numba's three layers, oneTBB's affinity, Go, the JVM's option.
//! On two CPUs, fifty short parallel calls 20 ms apart cost OpenBLAS 1.22 s of CPU by default and
//! 0.26 s with a thread timeout of 4; libgomp 0.34 s by default and 0.01 s when passive.

use serde::{Deserialize, Serialize};

/// What gives a program its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Runtime {
    /// GNU OpenMP, also the private copies that Python wheels carry.
    Libgomp,
    /// LLVM OpenMP (`libomp`).
    LlvmOpenmp,
    /// Intel OpenMP (`libiomp5`), LLVM's sibling.
    IntelOpenmp,
    /// oneTBB and the older TBB.
    Onetbb,
    /// OpenBLAS in any of its builds and names.
    Openblas,
    /// Intel MKL.
    Mkl,
    /// BLIS and AMD's AOCL-BLIS.
    Blis,
    /// numexpr's virtual machine (Python).
    Numexpr,
    /// numba's parallel layers (Python).
    Numba,
    /// polars' pool (a rayon pool with a variable of its own).
    Polars,
    /// rayon, linked statically into Rust programs and extension modules.
    Rayon,
    /// tokio's worker threads.
    Tokio,
    /// The Go runtime.
    Go,
    /// A Java virtual machine.
    Jvm,
    /// Julia.
    Julia,
    /// .NET (CoreCLR).
    Dotnet,
}

/// How the number of threads reaches a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadsKnob {
    /// A variable. Of several names the runtime obeys the first that is set; we set the first.
    Variables(&'static [&'static str]),
    /// `-XX:ActiveProcessorCount=N` as the first argument of the `java` launcher; the affinity where
    /// the launcher is somebody else's.
    JavaOption,
    /// No variable: the runtime counts the CPUs that it may use when it starts.
    Affinity,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Which runtime this row is about.
    pub runtime: Runtime,
    /// As its makers write it.
    pub name: &'static str,
    /// Beginnings of the file name of its shared library (`libgomp` matches `libgomp.so.1` and
    /// `libgomp-a34b3233.so.1.0.0`): what follows must be `.so`, `-` or another separator.
    pub libraries: &'static [&'static str],
    /// Parts of the path of a mapped extension module.
    pub modules: &'static [&'static str],
    /// Text that a statically linked copy carries in its read-only data.
    pub marks: &'static [&'static str],
    /// How the number of threads is set.
    pub threads: ThreadsKnob,
    /// The runtime never starts more threads than there are CPUs in its affinity.
    pub at_most_cpus: bool,
    /// Variables that make waiting passive; empty where the runtime has no such choice.
    pub passive: &'static [(&'static str, &'static str)],
    /// Variables that decide how threads wait: where the user has set one, the choice is theirs.
    pub wait_variables: &'static [&'static str],
    /// Whether Python wheels commonly bring it, so that it is set for an interpreter whose libraries
    /// are not yet known.
    pub in_wheels: bool,
}

use ThreadsKnob::{Affinity, JavaOption, Variables};

/// All runtimes that are known.
pub static TABLE: &[Row] = &[
    Row {
        runtime: Runtime::Libgomp,
        name: "GNU OpenMP (libgomp)",
        libraries: &["libgomp"],
        modules: &[],
        marks: &["\nlibgomp: "],
        threads: Variables(&["OMP_NUM_THREADS"]),
        at_most_cpus: false,
        // Passive alone sets the spin count to 0; GOMP_SPINCOUNT, where it is set, wins.
        passive: &[("OMP_WAIT_POLICY", "passive")],
        wait_variables: &["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"],
        in_wheels: true,
    },
    Row {
        runtime: Runtime::LlvmOpenmp,
        name: "LLVM OpenMP (libomp)",
        libraries: &["libomp"],
        modules: &[],
        marks: &["KMP_BLOCKTIME"],
        threads: Variables(&["OMP_NUM_THREADS"]),
        at_most_cpus: false,
        // Passive means a block time of 0 only since LLVM 3.9: KMP_BLOCKTIME says it to all.
        passive: &[("OMP_WAIT_POLICY", "passive"), ("KMP_BLOCKTIME", "0")],
        wait_variables: &["OMP_WAIT_POLICY", "KMP_BLOCKTIME", "KMP_LIBRARY"],
        in_wheels: true,
    },
    Row {
        runtime: Runtime::IntelOpenmp,
        name: "Intel OpenMP (libiomp5)",
        libraries: &["libiomp5"],
        modules: &[],
        marks: &[],
        threads: Variables(&["OMP_NUM_THREADS"]),
        at_most_cpus: false,
        passive: &[("OMP_WAIT_POLICY", "passive"), ("KMP_BLOCKTIME", "0")],
        wait_variables: &["OMP_WAIT_POLICY", "KMP_BLOCKTIME", "KMP_LIBRARY"],
        in_wheels: true,
    },
    Row {
        runtime: Runtime::Onetbb,
        name: "oneTBB",
        libraries: &["libtbb"],
        modules: &[],
        marks: &["TBB_VERSION"],
        threads: Affinity,
        at_most_cpus: true,
        passive: &[],
        wait_variables: &[],
        in_wheels: false,
    },
    Row {
        runtime: Runtime::Openblas,
        name: "OpenBLAS",
        libraries: &["libopenblas", "libscipy_openblas"],
        modules: &[],
        marks: &["OPENBLAS_NUM_THREADS"],
        threads: Variables(&[
            "OPENBLAS_NUM_THREADS",
            "GOTO_NUM_THREADS",
            "OMP_NUM_THREADS",
        ]),
        at_most_cpus: true,
        // Log2 of the cycles that an idle worker spins before it sleeps, 4 to 30, default 26 (28 in
        // some builds). Builds on OpenMP ignore it and follow OMP_WAIT_POLICY; builds on pthreads
        // ignore OMP_WAIT_POLICY.
        passive: &[("OPENBLAS_THREAD_TIMEOUT", "4")],
        wait_variables: &["OPENBLAS_THREAD_TIMEOUT"],
        in_wheels: true,
    },
    Row {
        runtime: Runtime::Mkl,
        name: "Intel MKL",
        libraries: &[
            "libmkl_rt",
            "libmkl_core",
            "libmkl_intel_thread",
            "libmkl_gnu_thread",
        ],
        modules: &[],
        marks: &["MKL_NUM_THREADS"],
        threads: Variables(&["MKL_NUM_THREADS", "OMP_NUM_THREADS"]),
        at_most_cpus: false,
        // MKL's threads are those of an OpenMP runtime, which has a row of its own.
        passive: &[],
        wait_variables: &[],
        in_wheels: true,
    },
    Row {
        runtime: Runtime::Blis,
        name: "BLIS",
        libraries: &["libblis"],
        modules: &[],
        marks: &["BLIS_NUM_THREADS"],
        threads: Variables(&["BLIS_NUM_THREADS", "OMP_NUM_THREADS"]),
        at_most_cpus: false,
        passive: &[],
        wait_variables: &[],
        in_wheels: true,
    },
    Row {
        runtime: Runtime::Numexpr,
        name: "numexpr",
        libraries: &[],
        modules: &["/numexpr/interpreter."],
        marks: &[],
        threads: Variables(&["NUMEXPR_NUM_THREADS", "OMP_NUM_THREADS"]),
        at_most_cpus: false,
        passive: &[],
        wait_variables: &[],
        in_wheels: true,
    },
    Row {
        runtime: Runtime::Numba,
        name: "numba",
        libraries: &[],
        modules: &[
            "/numba/np/ufunc/workqueue.",
            "/numba/np/ufunc/omppool.",
            "/numba/np/ufunc/tbbpool.",
        ],
        marks: &[],
        threads: Variables(&["NUMBA_NUM_THREADS"]),
        at_most_cpus: false,
        passive: &[],
        wait_variables: &[],
        in_wheels: true,
    },
    Row {
        runtime: Runtime::Polars,
        name: "polars",
        libraries: &[],
        modules: &["/polars/polars.", "/_polars_runtime_"],
        marks: &["POLARS_MAX_THREADS"],
        threads: Variables(&["POLARS_MAX_THREADS"]),
        at_most_cpus: false,
        passive: &[],
        wait_variables: &[],
        in_wheels: true,
    },
    Row {
        runtime: Runtime::Rayon,
        name: "rayon",
        libraries: &[],
        modules: &[],
        marks: &["RAYON_NUM_THREADS"],
        threads: Variables(&["RAYON_NUM_THREADS"]),
        at_most_cpus: false,
        passive: &[],
        wait_variables: &[],
        in_wheels: true,
    },
    Row {
        runtime: Runtime::Tokio,
        name: "tokio",
        libraries: &[],
        modules: &[],
        marks: &["TOKIO_WORKER_THREADS"],
        threads: Variables(&["TOKIO_WORKER_THREADS"]),
        at_most_cpus: false,
        passive: &[],
        wait_variables: &[],
        in_wheels: false,
    },
    Row {
        runtime: Runtime::Go,
        name: "Go",
        libraries: &[],
        modules: &[],
        marks: &[],
        threads: Variables(&["GOMAXPROCS"]),
        at_most_cpus: false,
        passive: &[],
        wait_variables: &[],
        in_wheels: false,
    },
    Row {
        runtime: Runtime::Jvm,
        name: "Java virtual machine",
        libraries: &["libjvm"],
        modules: &[],
        marks: &[],
        threads: JavaOption,
        at_most_cpus: false,
        passive: &[],
        wait_variables: &[],
        in_wheels: false,
    },
    Row {
        runtime: Runtime::Julia,
        name: "Julia",
        libraries: &["libjulia"],
        modules: &[],
        marks: &[],
        threads: Variables(&["JULIA_NUM_THREADS"]),
        at_most_cpus: false,
        passive: &[],
        wait_variables: &[],
        in_wheels: false,
    },
    Row {
        runtime: Runtime::Dotnet,
        name: ".NET",
        libraries: &["libcoreclr"],
        modules: &[],
        marks: &["DOTNET_PROCESSOR_COUNT"],
        threads: Variables(&["DOTNET_PROCESSOR_COUNT"]),
        at_most_cpus: false,
        passive: &[],
        wait_variables: &[],
        in_wheels: false,
    },
];

impl Runtime {
    /// The runtime's row of the table.
    #[must_use]
    pub fn row(self) -> &'static Row {
        // Each runtime has a row: a test holds it.
        TABLE
            .iter()
            .find(|row| row.runtime == self)
            .unwrap_or(&TABLE[0])
    }

    /// Whether the runtime can be told to wait passively.
    #[must_use]
    pub fn supports_wait_policy(self) -> bool {
        !self.row().passive.is_empty()
    }
}

/// Whether a library's file name begins with `stem` as a whole word: `libomp` is in `libomp.so.5`
/// and `libomp5-1a2b.so`, but neither in `libompt.so` nor in `libompl.so`.
#[must_use]
pub fn is_library(file_name: &str, stem: &str) -> bool {
    let Some(rest) = file_name.strip_prefix(stem) else {
        return false;
    };
    if !file_name.contains(".so") {
        return false;
    }
    // `libopenblas64_p-r0-15028c96.3.21.so`, `libscipy_openblas64_-ff651d7f.so`,
    // `libtbb12.so`, `libopenblasp-r0.3.21.so`, `libopenblaso.so.0`: digits, and for OpenBLAS and
    // BLIS also a letter or two that names the build.
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_');
    let rest = match stem {
        "libopenblas" | "libscipy_openblas" => {
            rest.trim_start_matches(['p', 'o', 's', '_', '6', '4'])
        }
        "libblis" => rest.strip_prefix("-mt").unwrap_or(rest),
        _ => rest,
    };
    rest.starts_with(['.', '-'])
}
