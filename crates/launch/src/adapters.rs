//! Which adapters are loaded into a program so that its runtimes follow its claim while it runs, and why,
//! or why not.
//!
//! An adapter is a preloaded library (`LD_PRELOAD`), which every process of the program inherits. So it is
//! only loaded where it can do good, and never where it is known to do harm:
//!
//! - *static* programs, and those of the musl C library, have no loader that could load it, or one that
//!   ends the program when it cannot;
//! - programs *with another user's rights* are not loaded into by the loader itself, and not by us;
//! - programs of *another architecture or size of pointers* would print that it cannot be loaded;
//! - programs with a *sanitizer* want theirs to be the first library. Processes further down that have
//!   one are told to accept another (`ASAN_OPTIONS`);
//! - what the *user* preloads comes first, and so keeps its say.

use crate::command::Command;
use crate::runtimes::{Detected, Environment, Runtime, THREAD_SANITIZER};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The file name of the library that is preloaded.
pub const SHIM: &str = "libcorewise_shim.so";

/// The variable that says in which folder the library is, where it is not beside the command.
pub const FOLDER_VARIABLE: &str = "COREWISE_LIB_DIR";

/// The variable that tells adapters to change numbers that programs demand.
pub const OVERRIDE_VARIABLE: &str = "COREWISE_OVERRIDE_CLAUSES";

/// What would be loaded into a program, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The library to preload; `None`: nothing is loaded.
    pub preload: Option<PathBuf>,
    /// Why, for people, without a full stop.
    pub why: String,
    /// The program's runtimes, as far as they are known: which follow while they run.
    pub runtimes: Vec<Follows>,
}

/// Whether a runtime follows a claim while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follows {
    /// Which.
    pub runtime: Runtime,
    /// Whether its number of threads follows.
    pub threads: bool,
    /// When, or what there is instead, for people.
    pub how: &'static str,
}

impl Plan {
    /// For a program of which `detected` is known, with the library at `shim` (or the reason why there is
    /// none).
    pub fn new(detected: &Detected, shim: Result<PathBuf, String>) -> Plan {
        let runtimes: Vec<Follows> = detected
            .runtimes
            .iter()
            .map(|found| of_this_copy(follows(found.runtime), &found.evidence))
            .collect();
        let (preload, why) = match (harm(detected), use_of(detected, &runtimes), shim) {
            (Some(why), _, _) => (None, why),
            (None, Err(why), _) => (None, why),
            (None, Ok(_), Err(missing)) => (None, missing),
            (None, Ok(why), Ok(shim)) => (Some(shim), why),
        };
        Plan {
            preload,
            why,
            runtimes,
        }
    }

    /// The same where the program's locks are to be counted, too: there is always a use, if no harm.
    pub fn counting_locks(detected: &Detected, shim: Result<PathBuf, String>) -> Plan {
        let plan = Plan::new(detected, shim.clone());
        match (&plan.preload, harm(detected), shim) {
            (None, None, Ok(shim)) => Plan {
                preload: Some(shim),
                why: "its locks can be counted".to_owned(),
                ..plan
            },
            _ => plan,
        }
    }

    /// Whether everything that gives the program its threads, as far as that is known, follows.
    pub fn all_follow(&self) -> bool {
        !self.runtimes.is_empty() && self.runtimes.iter().all(|f| f.threads)
    }

    /// Whether it has a runtime whose parallel regions can be timed, and be given numbers of their own.
    pub fn times_regions(&self) -> bool {
        let timed = |runtime| {
            matches!(
                runtime,
                Runtime::Libgomp | Runtime::LlvmOpenmp | Runtime::IntelOpenmp
            )
        };
        self.runtimes.iter().any(|f| f.threads && timed(f.runtime))
    }

    /// The names of the runtimes that are known to stay as they are while the program runs; all that are
    /// known where nothing is loaded.
    pub fn staying(&self, loaded: bool) -> Vec<String> {
        let stays = self.runtimes.iter().filter(|f| !(loaded && f.threads));
        stays.map(|f| f.runtime.row().name.to_owned()).collect()
    }

    /// Adds what loads the adapters to a command that is about to run; `link` is the variable that leads
    /// them to their pages. Without anything to load the command stays as it is.
    #[must_use]
    pub fn load(
        &self,
        command: Command,
        environment: &Environment,
        link: (&str, &str),
        override_clauses: bool,
    ) -> Command {
        let Some(shim) = &self.preload else {
            return command;
        };
        let command = preload(command, environment, shim).env(link.0, link.1);
        match override_clauses {
            true => command.env(OVERRIDE_VARIABLE, "1"),
            false => command,
        }
    }
}

/// A command that is about to run, with one more library loaded into it, behind those that its user
/// preloads.
#[must_use]
pub fn preload(command: Command, environment: &Environment, library: &Path) -> Command {
    let set = command.environment(environment.clone());
    let before = |name: &str| {
        let found = set.iter().find(|(n, _)| n == name);
        found
            .map(|(_, value)| value.as_os_str())
            .unwrap_or_default()
    };
    let preload = joined(before("LD_PRELOAD"), library.as_os_str());
    let sanitizer = joined(
        before("ASAN_OPTIONS"),
        OsStr::new("verify_asan_link_order=0"),
    );
    command
        .env("LD_PRELOAD", preload)
        .env("ASAN_OPTIONS", sanitizer)
}

/// Both of two lists, as the loader and the sanitizers have them.
fn joined(first: &OsStr, second: &OsStr) -> OsString {
    let mut all = first.as_bytes().to_vec();
    if !all.is_empty() {
        all.push(b':');
    }
    all.extend_from_slice(second.as_bytes());
    OsString::from_vec(all)
}

/// Finds the adapters' library (see [`find_library`]).
///
/// # Errors
/// Where it was looked for, for people.
pub fn find_shim(environment: &Environment, command: &Path) -> Result<PathBuf, String> {
    find_library(SHIM, environment, command)
}

/// Finds a library that is loaded into programs: where the user says, beside the command, or in
/// `../lib/corewise`.
///
/// # Errors
/// Where it was looked for, for people.
pub fn find_library(
    name: &str,
    environment: &Environment,
    command: &Path,
) -> Result<PathBuf, String> {
    let folders = match environment.get(OsStr::new(FOLDER_VARIABLE)) {
        Some(folder) => vec![PathBuf::from(folder)],
        None => {
            let beside = command.parent().unwrap_or(Path::new("."));
            vec![beside.to_owned(), beside.join("../lib/corewise")]
        }
    };
    let found = folders
        .iter()
        .map(|folder| folder.join(name))
        .find(|file| file.is_file());
    let Some(found) = found else {
        let folders: Vec<_> = folders.iter().map(|f| f.display().to_string()).collect();
        return Err(format!(
            "{name} is not in {}: install it there, or say with {FOLDER_VARIABLE} where it is",
            folders.join(" or ")
        ));
    };
    let found = found.canonicalize().unwrap_or(found);
    // The loader takes both for the end of a name.
    match found
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|b| b": ".contains(b))
    {
        true => Err(format!(
            "the loader cannot load {}: its path has a space or a colon",
            found.display()
        )),
        false => Ok(found),
    }
}

/// Why loading anything into this program would do harm, or nothing.
pub fn harm(detected: &Detected) -> Option<String> {
    let first = |name: &String| format!("{name} must be the first library that is loaded into it");
    harm_without_sanitizers(detected).or_else(|| detected.sanitizer.as_ref().map(first))
}

/// The same for a library that takes the place of ThreadSanitizer's runtime.
pub fn harm_as_thread_sanitizer(detected: &Detected) -> Option<String> {
    match detected.sanitizer.as_deref() {
        Some(THREAD_SANITIZER) => harm_without_sanitizers(detected),
        _ => harm(detected),
    }
}

fn harm_without_sanitizers(detected: &Detected) -> Option<String> {
    if let Some(architecture) = &detected.foreign {
        return Some(format!("it is built for {architecture}"));
    }
    if detected.is_static {
        return Some("it is linked statically: it has no loader".to_owned());
    }
    if detected.set_id {
        return Some("it runs with another user's or group's rights".to_owned());
    }
    if let Some(why) = &detected.no_preload {
        return Some(why.clone());
    }
    if !cfg!(target_arch = "x86_64") {
        return Some("the adapters are for x86-64 so far".to_owned());
    }
    None
}

/// What loading is good for.
fn use_of(detected: &Detected, runtimes: &[Follows]) -> Result<String, String> {
    let name = |follows: &Follows| follows.runtime.row().name;
    let following: Vec<_> = runtimes.iter().filter(|f| f.threads).map(name).collect();
    if !following.is_empty() {
        return Ok(format!("{} can follow", following.join(" and ")));
    }
    if detected.unknown_libraries() {
        return Ok("it is an interpreter: what it will load is not known yet".to_owned());
    }
    match runtimes {
        [] => Err("it shows no runtime whose number of threads could follow".to_owned()),
        some => {
            let names: Vec<_> = some.iter().map(name).collect();
            Err(format!("{} cannot follow while it runs", names.join(", ")))
        }
    }
}

/// What is known of a runtime.
fn follows(runtime: Runtime) -> Follows {
    let (threads, how) = match runtime {
        Runtime::Libgomp => (
            true,
            "each parallel region; loops with a dynamic schedule also within",
        ),
        Runtime::LlvmOpenmp | Runtime::IntelOpenmp => (
            true,
            "each parallel region; oneMKL's regions keep their number",
        ),
        Runtime::Openblas => (true, "each product of matrices, also within a longer call"),
        Runtime::Onetbb => (
            true,
            "workers join and leave its arenas between tasks (oneTBB 2021.11 and later)",
        ),
        Runtime::Numba => (
            true,
            "as its layer does: omp each parallel region, tbb between pieces of a loop; workqueue stays",
        ),
        Runtime::Go => (
            false,
            "it follows the number of its CPUs within about a second, unless GOMAXPROCS is set (Go 1.25 and \
             later; earlier ones stay)",
        ),
        Runtime::Jvm => (
            false,
            "availableProcessors follows its CPUs, unless -XX:ActiveProcessorCount is set; pools that exist, \
             such as the common pool, stay",
        ),
        Runtime::Rayon => (
            false,
            "its pool has the number that it was made with; threads without work sleep",
        ),
        Runtime::Polars => (
            false,
            "its pool (rayon's) has the number that it was made with; threads without work sleep",
        ),
        Runtime::Tokio => (
            false,
            "a runtime has the number of workers that it was made with; those without work sleep",
        ),
        Runtime::Julia => (
            false,
            "its number of threads is read when it starts; they share the CPUs of the claim",
        ),
        Runtime::Dotnet => (
            false,
            "it reads its number of processors when it starts; its thread pool tries other numbers by itself",
        ),
        _ => (
            false,
            "its number of threads stays; they share the CPUs of the claim",
        ),
    };
    Follows {
        runtime,
        threads,
        how,
    }
}

/// What does not hold for every copy of a runtime, as far as its file tells: `evidence` is the library's path.
fn of_this_copy(follows: Follows, evidence: &str) -> Follows {
    let how = match follows.runtime {
        Runtime::Onetbb if !asks_for_permits(evidence) => {
            "only oneTBB 2021.11 and later follows; its number of workers stays"
        }
        Runtime::LlvmOpenmp if evidence.contains(" contains ") => {
            "linked statically, it stays; as a library it would follow"
        }
        Runtime::Numba if evidence.contains("/workqueue.") => {
            "its workqueue layer stays; its tbb and omp layers follow"
        }
        _ => return follows,
    };
    Follows {
        threads: false,
        how,
        ..follows
    }
}

/// Whether a copy of oneTBB asks for permits. Its file's name ends with the version that it is compatible
/// with, `libtbb.so.12.11` for 2021.11; where it does not say, it may.
fn asks_for_permits(library: &str) -> bool {
    let file = Path::new(library);
    let file = file.canonicalize().unwrap_or(file.to_owned());
    let name = file
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let Some((_, version)) = name.split_once(".so.") else {
        return true;
    };
    let mut numbers = version.split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(12)), Some(Ok(minor))) => minor >= 11,
        (Some(Ok(major)), _) => major >= 12,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtimes::Found;

    fn with(runtimes: &[Runtime]) -> Detected {
        let found = |runtime: &Runtime| Found {
            runtime: *runtime,
            evidence: String::new(),
        };
        Detected {
            runtimes: runtimes.iter().map(found).collect(),
            ..Detected::default()
        }
    }

    fn plan(detected: &Detected) -> Plan {
        Plan::new(detected, Ok("/opt/shim.so".into()))
    }

    #[test]
    fn a_program_with_openmp_is_loaded_into() {
        let plan = plan(&with(&[Runtime::Libgomp]));
        assert_eq!(plan.preload.as_deref(), Some(Path::new("/opt/shim.so")));
        assert_eq!(plan.why, "GNU OpenMP (libgomp) can follow");
    }

    #[test]
    fn a_program_with_onetbb_follows() {
        let plan = plan(&with(&[Runtime::Onetbb, Runtime::Numba]));
        assert!(plan.preload.is_some() && plan.all_follow());
        let arenas = plan.runtimes.first().map(|follows| follows.how);
        assert!(arenas.is_some_and(|how| how.contains("workers join and leave")));
    }

    #[test]
    fn copies_that_are_too_old_or_another_layer_stay() {
        let follow = |runtime, evidence: &str| {
            let evidence = evidence.to_owned();
            let found = Found { runtime, evidence };
            let detected = Detected {
                runtimes: vec![found],
                ..Detected::default()
            };
            plan(&detected).all_follow()
        };
        for (library, follows) in [
            ("/usr/lib/libtbb.so.12.8", false),
            ("/usr/lib/libtbb.so.2", false),
            ("/x/lib/libtbb.so.12.11", true),
            ("/x/lib/libtbb.so.12.20", true),
            ("/x/lib/libtbb-4f2a.so.12", true),
            ("contains \"TBB_VERSION\"", true),
        ] {
            assert_eq!(follow(Runtime::Onetbb, library), follows, "{library}");
        }
        for (layer, follows) in [("tbbpool", true), ("omppool", true), ("workqueue", false)] {
            let library = format!("/x/numba/np/ufunc/{layer}.cpython-311.so");
            assert_eq!(follow(Runtime::Numba, &library), follows, "{library}");
        }
    }

    #[test]
    fn an_interpreter_is_loaded_into_until_it_shows_that_nothing_can_follow() {
        let mut python = Detected {
            interpreter: true,
            ..Detected::default()
        };
        assert!(plan(&python).preload.is_some());
        python.probed = true;
        assert!(plan(&python).preload.is_none());
    }

    #[test]
    fn whoever_could_be_harmed_is_left_alone() {
        let openmp = with(&[Runtime::Libgomp]);
        let cases = [
            Detected {
                is_static: true,
                ..openmp.clone()
            },
            Detected {
                set_id: true,
                ..openmp.clone()
            },
            Detected {
                foreign: Some("arm64".into()),
                ..openmp.clone()
            },
            Detected {
                no_preload: Some("it uses musl".into()),
                ..openmp.clone()
            },
        ];
        for case in cases {
            assert_eq!(plan(&case).preload, None, "{case:?}");
        }
        assert!(plan(&openmp).preload.is_some());
    }

    #[test]
    fn what_cannot_follow_is_not_loaded_into_and_said() {
        let plan = plan(&with(&[Runtime::Go]));
        assert_eq!(plan.preload, None);
        assert!(plan.why.contains("cannot follow"), "{}", plan.why);
    }

    #[test]
    fn llvms_openmp_follows_as_a_library() {
        let follow = |evidence: &str| {
            let found = Found {
                runtime: Runtime::LlvmOpenmp,
                evidence: evidence.to_owned(),
            };
            let detected = Detected {
                runtimes: vec![found],
                ..Detected::default()
            };
            plan(&detected).all_follow()
        };
        assert!(follow("/usr/lib/llvm-14/lib/libomp.so.5"));
        assert!(!follow("/usr/bin/solver contains \"KMP_BLOCKTIME\""));
        assert!(plan(&with(&[Runtime::IntelOpenmp])).all_follow());
    }

    #[test]
    fn the_users_own_preload_comes_first() {
        let command = Command::new("true").unwrap();
        let mut environment = Environment::new();
        environment.insert("LD_PRELOAD".into(), "/usr/lib/mine.so".into());
        let plan = plan(&with(&[Runtime::Libgomp]));
        let loaded = plan.load(command, &environment, ("LINK", "1:2"), false);
        let set: Environment = loaded.environment(environment).into_iter().collect();
        let value = |name: &str| set.get(OsStr::new(name)).and_then(|v| v.to_str());
        assert_eq!(value("LD_PRELOAD"), Some("/usr/lib/mine.so:/opt/shim.so"));
        assert_eq!(value("LINK"), Some("1:2"));
        assert_eq!(value(OVERRIDE_VARIABLE), None);
    }

    #[test]
    fn a_folder_that_the_loader_cannot_name_is_said() {
        let folder = tempfile::Builder::new().prefix("a b").tempdir().unwrap();
        std::fs::write(folder.path().join(SHIM), "").unwrap();
        let mut environment = Environment::new();
        environment.insert(FOLDER_VARIABLE.into(), folder.path().into());
        let error = find_shim(&environment, Path::new("/usr/bin/corewise")).unwrap_err();
        assert!(error.contains("space"), "{error}");
        environment.insert(FOLDER_VARIABLE.into(), "/nowhere".into());
        let error = find_shim(&environment, Path::new("/usr/bin/corewise")).unwrap_err();
        assert!(error.contains("/nowhere"), "{error}");
    }
}
