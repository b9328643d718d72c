//! Which runtimes give a program its threads, and how to tell them a number of threads and a way
//! of waiting without changing the program.
//!
//! Three sources of knowledge, cheap ones first:
//!
//! 1. [`detect`] looks at the file before it runs: what an ELF program needs (transitively, as the
//!    dynamic loader would find it), what is linked into it statically (Go's build section; text
//!    that a runtime carries, such as the name of its variable), and the interpreter of a script.
//! 2. [`from_mapped`] looks at the libraries that a running program had mapped: interpreters load
//!    theirs late.
//! 3. [`Detected::merge`] joins both.
//!
//! **Interpreters before the first probe.** Nobody knows yet what a Python script will import. The
//! first probe is started with the variables of *all* runtimes that wheels commonly bring (those
//! unused are harmless: a variable that no library reads changes nothing); what the probe had mapped
//! then narrows the set. oneTBB, which has no variable, is served only once it has been seen, since
//! narrowing the affinity is never harmless.
//!
//! **The user's variables are the user's.** A variable that is in the environment or came by `--env`
//! is never overridden; where it fixes a runtime's number of threads, [`Applied::fixed_by_user`]
//! says so. A runtime obeys the first of its variables that is set, so a user's `OMP_NUM_THREADS`
//! also fixes OpenBLAS.
//!
//! The facts are in [`table`].

mod apply;
mod elf;
mod libraries;
pub mod schedule;
mod script;
pub mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use apply::{Applied, FixedByUser};
pub(crate) use script::interpreter_of;
pub use table::Runtime;
use table::{TABLE, ThreadsKnob, is_library};

/// An environment: names and values.
pub type Environment = BTreeMap<OsString, OsString>;

pub use corewise_decide::setting::WaitPolicy;

/// What is around a program when it is started.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The user's environment: what the program would inherit if corewise did nothing.
    pub environment: Environment,
    /// The effective CPUs, those to be preferred first: where the affinity must be narrowed to N
    /// CPUs, the first N are taken.
    pub cpus: Vec<u32>,
}

impl Surroundings {
    /// This process's environment, and the given CPUs.
    #[must_use]
    pub fn of_this_process(cpus: Vec<u32>) -> Self {
        Self {
            environment: std::env::vars_os().collect(),
            cpus,
        }
    }
}

/// One runtime and how it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The runtime.
    pub runtime: Runtime,
    /// The library's path or the mark that gave it away.
    pub evidence: String,
}

/// What a program is, as far as its number of threads is concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detected {
    /// Runtimes, each once.
    pub runtimes: Vec<Found>,
    /// The file that is executed in the end: for a script its interpreter.
    pub executable: PathBuf,
    /// For a script, the script.
    pub script: Option<PathBuf>,
    /// An interpreter (Python, a shell, ...): its libraries are unknown until a first probe.
    pub interpreter: bool,
    /// The libraries of a running copy have been seen.
    pub probed: bool,
    /// The `java` launcher: takes `-XX:` options as its first arguments.
    pub java_launcher: bool,
    /// Linked statically: nothing can be preloaded into it.
    pub is_static: bool,
    /// Runs with another user's or group's rights: the loader ignores preloads, and probing it in a
    /// sandbox may behave differently.
    pub set_id: bool,
    /// Built for another architecture; its name.
    pub foreign: Option<String>,
    /// Why no library of ours may be preloaded into it, where nothing above says so.
    #[serde(default)]
    pub no_preload: Option<String>,
    /// The sanitizer whose runtime is a library of it.
    #[serde(default)]
    pub sanitizer: Option<String>,
}

/// Which knobs a detected program offers through its runtimes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnobSupport {
    /// The number of threads can be set.
    pub threads: bool,
    /// It is set by narrowing the affinity: it cannot exceed the number of effective CPUs.
    pub threads_by_affinity: bool,
    /// No runtime of this program starts more threads than there are effective CPUs, whatever it is
    /// told: larger numbers need no probe.
    pub at_most_cpus: bool,
    /// Waiting can be made passive.
    pub wait_policy: bool,
}

/// Looks at a program's file. A file that cannot be read yields an empty answer: starting it will
/// say why. Costs about 1 ms, and for large programs another 1 ms for each 4 MB (in the page cache).
#[must_use]
pub fn detect(program: &Path) -> Detected {
    detect_in(
        program,
        &Surroundings::of_this_process(Vec::new()).environment,
    )
}

/// As [`detect`], with the environment in which the program will run (`PATH` finds a script's
/// interpreter, `LD_LIBRARY_PATH` and `LD_PRELOAD` find libraries).
#[must_use]
pub fn detect_in(program: &Path, environment: &Environment) -> Detected {
    let mut detected = Detected {
        executable: program.to_owned(),
        ..Detected::default()
    };
    detected.set_id = set_id(program);
    if let Some(interpreter) = script::interpreter_of(program, environment) {
        detected.script = Some(program.to_owned());
        // The interpreter of an unknown script stays unknown until a probe, whatever it is called.
        detected.interpreter = true;
        detected.executable = interpreter;
    }
    let executable = detected
        .executable
        .canonicalize()
        .unwrap_or_else(|_| detected.executable.clone());
    detected.interpreter |=
        script::is_interpreter(&executable) || script::is_interpreter(&detected.executable);

    let Some(elf) = elf::Elf::read(&executable) else {
        return detected;
    };
    detected.is_static = elf.is_static;
    detected.foreign = elf.foreign();
    detected.no_preload = elf.no_preload();
    let library_path = environment
        .get(std::ffi::OsStr::new("LD_LIBRARY_PATH"))
        .filter(|_| !detected.set_id);
    for library in libraries::needed(&executable, &elf, library_path.map(OsString::as_os_str)) {
        detected.add_library(&library);
        if let Some(sanitizer) = sanitizer(&library) {
            detected.sanitizer = Some(sanitizer.to_owned());
        }
    }
    if let Some(preloads) = environment
        .get(std::ffi::OsStr::new("LD_PRELOAD"))
        .filter(|_| !detected.set_id)
    {
        for library in preloads
            .to_string_lossy()
            .split([' ', ':'])
            .filter(|p| !p.is_empty())
        {
            detected.add_library(Path::new(library));
        }
    }
    if elf.go {
        detected.add(Runtime::Go, ".go.buildinfo".into());
    }
    let name = executable
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    match name.as_str() {
        "java" => {
            detected.java_launcher = detected.script.is_none();
            detected.add(Runtime::Jvm, executable.display().to_string());
        }
        "julia" => detected.add(Runtime::Julia, executable.display().to_string()),
        "dotnet" => detected.add(Runtime::Dotnet, executable.display().to_string()),
        _ => {}
    }
    if let Ok(marks) = elf::marks(&executable) {
        for (runtime, mark) in marks {
            detected.add(
                runtime,
                format!("{} contains {:?}", executable.display(), mark.trim()),
            );
        }
    }
    detected
}

/// Which runtimes are among the libraries that a running program (all processes of its tree) had
/// mapped. Programs and extension modules of interpreters among them are also searched for
/// statically linked runtimes.
#[must_use]
pub fn from_mapped<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Detected {
    let mut detected = Detected {
        probed: true,
        ..Detected::default()
    };
    for path in paths {
        let path = path.as_ref();
        if detected.add_library(path) {
            continue;
        }
        let text = path.to_string_lossy();
        let name = path
            .file_name()
            .map(|n| n.to_string_lossy())
            .unwrap_or_default();
        let program = !name.contains(".so");
        if program && elf::Elf::read(path).is_some_and(|e| e.go) {
            detected.add(Runtime::Go, format!("{text}: .go.buildinfo"));
        }
        let module = name.contains(".abi3.so") || name.contains(".cpython-");
        if (module || program && is_elf(path))
            && let Ok(marks) = elf::marks(path)
        {
            for (runtime, mark) in marks {
                detected.add(runtime, format!("{text} contains {:?}", mark.trim()));
            }
        }
    }
    detected
}

impl Detected {
    /// Joins what the file told and what a running copy had mapped.
    #[must_use]
    pub fn merge(mut self, mapped: Detected) -> Self {
        self.probed |= mapped.probed;
        for found in mapped.runtimes {
            self.add(found.runtime, found.evidence);
        }
        self
    }

    /// Whether a runtime was found.
    #[must_use]
    pub fn has(&self, runtime: Runtime) -> bool {
        self.runtimes.iter().any(|f| f.runtime == runtime)
    }

    /// Which knobs there are. For an interpreter that no probe has shown yet, those that its usual
    /// libraries would have.
    #[must_use]
    pub fn knobs(&self) -> KnobSupport {
        let mut support = KnobSupport {
            at_most_cpus: true,
            ..KnobSupport::default()
        };
        for row in self.rows() {
            support.threads = true;
            support.at_most_cpus &= row.at_most_cpus || self.follows_affinity(row);
            support.wait_policy |= !row.passive.is_empty();
            support.threads_by_affinity |= self.follows_affinity(row);
        }
        support.at_most_cpus &= support.threads;
        support
    }

    /// Whether libraries may yet appear that nobody has seen.
    #[must_use]
    pub fn unknown_libraries(&self) -> bool {
        self.interpreter && !self.probed
    }

    /// The rows that count for this program: those found, and for an interpreter before its first
    /// probe those that wheels commonly bring.
    fn rows(&self) -> impl Iterator<Item = &'static table::Row> {
        let unknown = self.unknown_libraries();
        let found: Vec<Runtime> = self.runtimes.iter().map(|f| f.runtime).collect();
        TABLE
            .iter()
            .filter(move |row| found.contains(&row.runtime) || (unknown && row.in_wheels))
    }

    /// Whether this runtime's number of threads is set by narrowing the affinity.
    fn follows_affinity(&self, row: &table::Row) -> bool {
        match row.threads {
            ThreadsKnob::Variables(_) => false,
            ThreadsKnob::JavaOption => !self.java_launcher,
            // numba asks oneTBB for as many threads as its own variable says.
            // What an interpreter may load later is no reason to pin it.
            ThreadsKnob::Affinity => !self.has(Runtime::Numba) && !self.unknown_libraries(),
        }
    }

    /// Why there is no knob for the number of threads, as the end of a sentence.
    pub(crate) fn why_no_threads_knob(&self) -> String {
        if let Some(architecture) = &self.foreign {
            return format!("it is built for {architecture}");
        }
        if self.interpreter {
            return "none of the libraries that it loaded has a variable for it".into();
        }
        if self.is_static {
            return "it is linked statically and shows no runtime that reads a variable".into();
        }
        "it uses no runtime (OpenMP, oneTBB, OpenBLAS, MKL, rayon, Go, Java, ...) that takes the number \
         from a variable"
            .into()
    }

    fn add(&mut self, runtime: Runtime, evidence: String) {
        if !self.has(runtime) {
            self.runtimes.push(Found { runtime, evidence });
        }
    }

    /// Adds the runtimes that this library is; says whether it is any.
    fn add_library(&mut self, path: &Path) -> bool {
        let mut any = false;
        let text = path.to_string_lossy();
        let name = path
            .file_name()
            .map(|n| n.to_string_lossy())
            .unwrap_or_default();
        for row in TABLE {
            let known = row.libraries.iter().any(|stem| is_library(&name, stem))
                || row.modules.iter().any(|part| text.contains(part));
            if known {
                self.add(row.runtime, text.clone().into_owned());
                any = true;
            }
        }
        any
    }
}

/// The name of the sanitizer that finds races.
pub(crate) const THREAD_SANITIZER: &str = "ThreadSanitizer";

/// The sanitizer whose runtime a library is.
fn sanitizer(path: &Path) -> Option<&'static str> {
    let name = path.file_name()?.to_string_lossy();
    let known = [
        ("libasan.so", "AddressSanitizer"),
        ("libhwasan.so", "HWAddressSanitizer"),
        ("libtsan.so", THREAD_SANITIZER),
        ("liblsan.so", "LeakSanitizer"),
    ];
    let found = known.iter().find(|(stem, _)| name.starts_with(stem))?;
    Some(found.1)
}

fn is_elf(path: &Path) -> bool {
    elf::Elf::read(path).is_some()
}

fn set_id(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.permissions().mode() & 0o6000 != 0)
}
