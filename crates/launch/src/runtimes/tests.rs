use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::Command;

use super::*;

fn surroundings(environment: &[(&str, &str)], cpus: u32) -> Surroundings {
    Surroundings {
        environment: environment
            .iter()
            .map(|(n, v)| (n.into(), v.into()))
            .collect(),
        cpus: (0..cpus).collect(),
    }
}

fn mapped(names: &[&str]) -> Detected {
    from_mapped(names.iter().map(|n| Path::new("/nowhere").join(n)))
}

fn found(detected: &Detected) -> Vec<Runtime> {
    detected.runtimes.iter().map(|f| f.runtime).collect()
}

fn variable<'a>(applied: &'a Applied, name: &str) -> Option<&'a OsStr> {
    applied
        .env
        .iter()
        .find(|(n, _)| n == name)
        .map(|(_, v)| v.as_os_str())
}

/// Compiles a C program; `None` (with a word on stderr) where there is no compiler.
fn compile(dir: &Path, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let (c, out) = (dir.join("p.c"), dir.join("p"));
    fs::write(&c, source).unwrap();
    let done = Command::new("cc")
        .arg(&c)
        .arg("-o")
        .arg(&out)
        .args(flags)
        .output();
    match done {
        Ok(output) if output.status.success() => Some(out),
        Ok(output) => {
            eprintln!(
                "skipped: cc {flags:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            None
        }
        Err(error) => {
            eprintln!("skipped: no C compiler: {error}");
            None
        }
    }
}

#[test]
fn every_runtime_has_a_row_of_its_own() {
    for row in TABLE {
        assert_eq!(row.runtime.row().name, row.name);
    }
}

#[test]
fn libraries_are_known_by_whole_names_in_all_their_spellings() {
    for (file, stem) in [
        ("libgomp.so.1", "libgomp"),
        ("libgomp-a34b3233.so.1.0.0", "libgomp"),
        ("libomp.so.5", "libomp"),
        ("libomp-7bfa8f5d.so", "libomp"),
        ("libtbb.so.12", "libtbb"),
        ("libtbb12.so", "libtbb"),
        ("libopenblas.so.0", "libopenblas"),
        ("libopenblasp-r0.3.21.so", "libopenblas"),
        ("libopenblas64_p-r0-15028c96.3.21.so", "libopenblas"),
        ("libscipy_openblas64_-ff651d7f.so", "libscipy_openblas"),
        ("libscipy_openblas-c128ec02.so", "libscipy_openblas"),
        ("libblis-mt.so.4", "libblis"),
        ("libmkl_rt.so.2", "libmkl_rt"),
    ] {
        assert!(is_library(file, stem), "{file} is {stem}");
    }
    for (file, stem) in [
        ("libompl.so.16", "libomp"),
        ("libompd.so", "libomp"),
        ("libtbbmalloc.so.2", "libtbb"),
        ("libtbbbind_2_5.so.3", "libtbb"),
        ("libgomp.txt", "libgomp"),
        ("libjvmti.so", "libjvm"),
    ] {
        assert!(!is_library(file, stem), "{file} is not {stem}");
    }
}

#[test]
fn an_openmp_program_is_found_by_what_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    let source = "int main(void){int n=0;\n#pragma omp parallel\n{\n#pragma omp atomic\nn++;}\nreturn n==0;}\n";
    let Some(program) = compile(dir.path(), source, &["-fopenmp"]) else {
        return;
    };
    let detected = detect(&program);
    assert_eq!(found(&detected), [Runtime::Libgomp]);
    assert!(
        !detected.interpreter
            && !detected.is_static
            && !detected.set_id
            && detected.foreign.is_none()
    );
    assert_eq!(
        detected.knobs(),
        KnobSupport {
            threads: true,
            threads_by_affinity: false,
            at_most_cpus: false,
            wait_policy: true
        }
    );
}

#[test]
fn a_real_openmp_program_obeys_what_is_applied() {
    let dir = tempfile::tempdir().unwrap();
    let source = "#include <omp.h>\n#include <stdio.h>\nint main(void){int n=0;\n#pragma omp parallel\n\
                  {\n#pragma omp single\nn=omp_get_num_threads();}\nprintf(\"%d\",n);}\n";
    let Some(program) = compile(dir.path(), source, &["-fopenmp"]) else {
        return;
    };
    let applied = detect(&program).apply(Some(3), WaitPolicy::Passive, &[], &surroundings(&[], 2));
    let output = Command::new(&program)
        .env_remove("OMP_NUM_THREADS")
        .envs(applied.env.iter().map(|(n, v)| (n, v)))
        .env("OMP_DISPLAY_ENV", "true")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "3");
    let settings = String::from_utf8_lossy(&output.stderr);
    assert!(
        settings.contains("OMP_WAIT_POLICY = 'PASSIVE'"),
        "{settings}"
    );
}

#[test]
fn a_runtime_behind_a_private_library_is_found_through_origin() {
    let dir = tempfile::tempdir().unwrap();
    let inner =
        "int f(void){int n=0;\n#pragma omp parallel\n{\n#pragma omp atomic\nn++;}\nreturn n;}\n";
    fs::create_dir(dir.path().join("private")).unwrap();
    let Some(built) = compile(
        dir.path(),
        inner,
        &["-fopenmp", "-shared", "-fPIC", "-Wl,-soname,libinner.so"],
    ) else {
        return;
    };
    fs::rename(built, dir.path().join("private/libinner.so")).unwrap();
    let search = format!("-L{}", dir.path().join("private").display());
    let outer = "int f(void);int main(void){return f()==0;}\n";
    for flags in [
        "-Wl,--enable-new-dtags,-rpath,$ORIGIN/private",
        "-Wl,--disable-new-dtags,-rpath,$ORIGIN/private",
    ] {
        let Some(program) = compile(
            dir.path(),
            outer,
            &[&search, "-linner", flags, "-Wl,--no-as-needed"],
        ) else {
            return;
        };
        assert_eq!(found(&detect(&program)), [Runtime::Libgomp], "{flags}");
    }
}

#[test]
fn a_program_linked_statically_shows_its_runtime_by_its_text() {
    let dir = tempfile::tempdir().unwrap();
    let source = "int main(void){int n=0;\n#pragma omp parallel\n{\n#pragma omp atomic\nn++;}\nreturn n==0;}\n";
    let Some(program) = compile(dir.path(), source, &["-fopenmp", "-static"]) else {
        return;
    };
    let detected = detect(&program);
    assert!(detected.is_static);
    assert_eq!(found(&detected), [Runtime::Libgomp]);
}

#[test]
fn rayon_is_known_by_the_name_of_its_variable_even_across_two_chunks() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p");
    let mut bytes = fs::read("/proc/self/exe").unwrap();
    bytes.truncate(1 << 16);
    bytes.resize((1 << 20) + 20, 0);
    bytes.extend_from_slice(b"RAYON_NUM_THREADS");
    fs::write(&file, &bytes).unwrap();
    let marks = elf::marks(&file).unwrap();
    assert!(
        marks.contains(&(Runtime::Rayon, "RAYON_NUM_THREADS")),
        "{marks:?}"
    );
}

#[test]
fn a_script_is_followed_to_its_interpreter_through_env() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("train.py");
    let python = dir.path().join("python3.11");
    fs::copy("/bin/true", &python).unwrap();
    fs::write(&script, "#!/usr/bin/env python3.11\nimport numpy\n").unwrap();
    let mut environment = Environment::new();
    environment.insert("PATH".into(), dir.path().into());
    let detected = detect_in(&script, &environment);
    assert_eq!(detected.executable, python);
    assert_eq!(detected.script.as_deref(), Some(script.as_path()));
    assert!(detected.interpreter && detected.unknown_libraries());
}

#[test]
fn an_interpreter_gets_all_usual_variables_until_a_probe_shows_its_libraries() {
    let python = Detected {
        interpreter: true,
        ..Detected::default()
    };
    let before = python.apply(Some(3), WaitPolicy::Passive, &[], &surroundings(&[], 8));
    for name in [
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "NUMBA_NUM_THREADS",
        "RAYON_NUM_THREADS",
    ] {
        assert_eq!(variable(&before, name), Some(OsStr::new("3")), "{name}");
    }
    assert_eq!(
        before.affinity, None,
        "affinity is never narrowed on a guess"
    );
    let after = python.merge(mapped(&["libscipy_openblas64_-ff651d7f.so", "libc.so.6"]));
    let applied = after.apply(Some(3), WaitPolicy::Passive, &[], &surroundings(&[], 8));
    let names: Vec<_> = applied
        .env
        .iter()
        .map(|(n, _)| n.to_string_lossy().into_owned())
        .collect();
    assert_eq!(names, ["OPENBLAS_NUM_THREADS", "OPENBLAS_THREAD_TIMEOUT"]);
}

#[test]
fn a_variable_of_the_user_is_never_overridden_and_is_named() {
    let program = mapped(&["libgomp.so.1", "libopenblas.so.0"]);
    let user = surroundings(
        &[("OMP_NUM_THREADS", "3"), ("OMP_WAIT_POLICY", "active")],
        8,
    );
    let applied = program.apply(Some(2), WaitPolicy::Passive, &[], &user);
    assert_eq!(variable(&applied, "OMP_NUM_THREADS"), None);
    assert_eq!(variable(&applied, "OMP_WAIT_POLICY"), None);
    // OpenBLAS obeys the user's OMP_NUM_THREADS, since its own variable is not set.
    assert_eq!(variable(&applied, "OPENBLAS_NUM_THREADS"), None);
    assert!(applied.all_fixed_by_user());
    assert_eq!(
        applied.fixed_by_user[0].to_string(),
        "Fixed by user: OMP_NUM_THREADS=3"
    );
}

#[test]
fn one_wait_variable_of_the_user_decides_how_a_runtime_waits() {
    let program = mapped(&["libomp.so.5"]);
    for (name, value) in [
        ("OMP_WAIT_POLICY", "active"),
        ("KMP_BLOCKTIME", "200"),
        ("KMP_LIBRARY", "turnaround"),
    ] {
        let applied = program.apply(
            None,
            WaitPolicy::Passive,
            &[],
            &surroundings(&[(name, value)], 2),
        );
        assert_eq!(
            (applied.env.len(), applied.passive_set.len()),
            (0, 0),
            "{name}"
        );
        assert!(!applied.fixed_by_user[0].threads);
    }
    let free = program.apply(None, WaitPolicy::Passive, &[], &surroundings(&[], 2));
    assert_eq!(variable(&free, "KMP_BLOCKTIME"), Some(OsStr::new("0")));
}

#[test]
fn limits_of_runtimes_are_known() {
    assert!(mapped(&["libopenblas.so.0"]).knobs().at_most_cpus);
    assert!(
        !mapped(&["libopenblas.so.0", "libgomp.so.1"])
            .knobs()
            .at_most_cpus
    );
    assert!(!Detected::default().knobs().at_most_cpus);
    let numexpr = mapped(&["numexpr/interpreter.cpython-311-x86_64-linux-gnu.so"]);
    let applied = numexpr.apply(Some(100), WaitPolicy::Default, &[], &surroundings(&[], 128));
    assert_eq!(
        variable(&applied, "NUMEXPR_NUM_THREADS"),
        Some(OsStr::new("64"))
    );
}

#[test]
fn java_takes_the_number_as_its_first_option_and_the_users_option_wins() {
    let java = Detected {
        java_launcher: true,
        runtimes: vec![Found {
            runtime: Runtime::Jvm,
            evidence: String::new(),
        }],
        ..Detected::default()
    };
    let args: Vec<OsString> = vec!["-jar".into(), "x.jar".into()];
    let applied = java.apply(Some(2), WaitPolicy::Passive, &args, &surroundings(&[], 8));
    assert_eq!(applied.insert_args, ["-XX:ActiveProcessorCount=2"]);
    assert_eq!(applied.affinity, None);
    assert!(applied.passive_set.is_empty());
    let args: Vec<OsString> = vec!["-XX:ActiveProcessorCount=5".into()];
    let applied = java.apply(Some(2), WaitPolicy::Default, &args, &surroundings(&[], 8));
    assert!(applied.insert_args.is_empty() && applied.all_fixed_by_user());
}

#[test]
fn onetbb_follows_the_affinity_when_fewer_threads_than_cpus_are_wanted() {
    let program = mapped(&["libtbb.so.12"]);
    let fewer = program.apply(Some(2), WaitPolicy::Default, &[], &surroundings(&[], 4));
    assert_eq!(fewer.affinity, Some(vec![0, 1]));
    let all = program.apply(Some(4), WaitPolicy::Default, &[], &surroundings(&[], 4));
    assert_eq!(all.affinity, None);
    assert!(!all.sets_no_threads());
    assert!(program.knobs().threads_by_affinity);
    let numba = mapped(&[
        "libtbb.so.12",
        "numba/np/ufunc/tbbpool.cpython-311-x86_64-linux-gnu.so",
    ]);
    assert!(
        !numba.knobs().threads_by_affinity,
        "numba tells oneTBB how many threads it wants"
    );
}

#[test]
fn another_architecture_and_set_id_are_said() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p");
    let mut bytes = fs::read("/bin/true").unwrap();
    bytes[18..20].copy_from_slice(&object::elf::EM_SPARCV9.to_le_bytes());
    fs::write(&file, &bytes).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
    let detected = detect(&file);
    assert!(detected.foreign.is_some() && detected.set_id);
}

#[test]
fn broken_files_are_never_fatal() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p");
    let good = fs::read("/bin/true").unwrap();
    for cut in [0, 3, 16, 40, 64, 200, 1000, good.len() / 2] {
        fs::write(&file, &good[..cut.min(good.len())]).unwrap();
        let _ = detect(&file);
    }
    let mut bytes = good;
    for at in (0..bytes.len().min(4096)).step_by(7) {
        bytes[at] ^= 0x5a;
        if bytes[..4] == *b"\x7fELF" {
            fs::write(&file, &bytes).unwrap();
            let _ = detect(&file);
        }
    }
    assert_eq!(detect(Path::new("/no/such/file")).runtimes, []);
}
