//! Under what a result is kept: which program, called how, on how much input, on which machine, next
//! to how much else. Two runs with the same key may use the same number of threads.
//!
//! The functions here take what they need to know of files as an argument, so that they are pure;
//! [`on_disk`] and [`ProgramKey::of`] are the ones that look.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A program's file, and its script's where it is an interpreter. A file that was rebuilt or edited
/// is another program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProgramKey {
    /// The file, canonical. (Bytes that are not UTF-8 are replaced when it is stored; size and time
    /// still tell programs apart.)
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// When it was last changed, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// For an interpreter, the script's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Box<ProgramKey>>,
}

fn lossy<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

impl ProgramKey {
    /// Looks at a program and its script.
    ///
    /// # Errors
    /// One of the files is not there or not accessible.
    pub fn of(program: &Path, script: Option<&Path>) -> std::io::Result<Self> {
        let path = program.canonicalize()?;
        let meta = std::fs::metadata(&path)?;
        let script = script.map(|s| Self::of(s, None)).transpose()?.map(Box::new);
        let mtime_ns = meta
            .mtime()
            .saturating_mul(1_000_000_000)
            .saturating_add(meta.mtime_nsec());
        Ok(Self {
            path,
            size: meta.size(),
            mtime_ns,
            script,
        })
    }
}

/// The machine, as far as a number of threads depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MachineKey {
    /// The CPU's model, as the kernel names it.
    pub cpu_model: String,
    /// CPUs of the machine.
    pub cpus: u32,
    /// Effective CPUs, rounded to whole ones, at least 1.
    pub effective_cpus: u32,
}

impl MachineKey {
    /// Rounds `effective_cpus` (a quota may make it a fraction).
    #[must_use]
    pub fn new(cpu_model: &str, cpus: u32, effective_cpus: f64) -> Self {
        let effective_cpus = whole(effective_cpus).max(1);
        let cpu_model = cpu_model.split_whitespace().collect::<Vec<_>>().join(" ");
        Self {
            cpu_model,
            cpus,
            effective_cpus,
        }
    }
}

/// Under what a result is kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The program.
    pub program: ProgramKey,
    /// How it was called: [`shape`].
    pub shape: String,
    /// How much input: [`size_class`].
    pub size_class: u32,
    /// Where.
    pub machine: MachineKey,
    /// How many CPUs others were using: [`load_class`].
    pub load_class: u32,
    /// What was searched for (`speed`, `share`).
    pub objective: String,
}

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A regular file of so many bytes.
    File(u64),
    /// A folder.
    Folder,
}

/// Looks at the file system.
#[must_use]
pub fn on_disk(path: &Path) -> Option<PathKind> {
    let meta = std::fs::metadata(path).ok()?;
    if meta.is_dir() {
        return Some(PathKind::Folder);
    }
    meta.is_file().then_some(PathKind::File(meta.len()))
}

/// The arguments' shape: numbers become `N`, files `F` with their suffix, folders `D`; all other
/// words and `{threads}` stay. `env` are the pairs of `--env`, which belong to the call.
///
/// A word that only looks like a file (it has a suffix that begins with a letter) becomes `F` too:
/// outputs do not exist before the first run and do afterwards, and the shape must not change.
#[must_use]
pub fn shape(
    args: &[OsString],
    env: &[(String, String)],
    look: &dyn Fn(&Path) -> Option<PathKind>,
) -> String {
    let mut words: Vec<String> = env
        .iter()
        .map(|(name, value)| format!("{name}={}", value_shape(OsStr::new(value), look)))
        .collect();
    words.extend(args.iter().map(|arg| word_shape(arg, look)));
    words.join(" ")
}

fn word_shape(word: &OsStr, look: &dyn Fn(&Path) -> Option<PathKind>) -> String {
    if look(Path::new(word)).is_some() {
        return value_shape(word, look);
    }
    // `--input=FILE` and `if=FILE`: the name stays, the value has a shape of its own.
    if let Some(at) = word.as_bytes().iter().position(|&b| b == b'=') {
        let (name, value) = (
            &word.as_bytes()[..at],
            OsStr::from_bytes(&word.as_bytes()[at + 1..]),
        );
        if !name.is_empty() {
            let name = numbers_to_n(&String::from_utf8_lossy(name));
            return format!("{name}={}", value_shape(value, look));
        }
    }
    value_shape(word, look)
}

fn value_shape(word: &OsStr, look: &dyn Fn(&Path) -> Option<PathKind>) -> String {
    let text = word.to_string_lossy();
    let suffix = suffix_of(&text);
    match look(Path::new(word)) {
        Some(PathKind::Folder) => "D".into(),
        Some(PathKind::File(_)) => format!("F{}", suffix.map(numbers_to_n).unwrap_or_default()),
        None if text.contains("{threads}") => text
            .split("{threads}")
            .map(numbers_to_n)
            .collect::<Vec<_>>()
            .join("{threads}"),
        None if text.parse::<f64>().is_ok_and(f64::is_finite) => "N".into(),
        None => match suffix {
            Some(suffix) if looks_like_a_file(&text, suffix) => {
                format!("F{}", numbers_to_n(suffix))
            }
            _ => numbers_to_n(&text),
        },
    }
}

/// The last suffix of the last part of a path, with its dot.
fn suffix_of(text: &str) -> Option<&str> {
    let name = text.rsplit('/').next().unwrap_or(text);
    let at = name.rfind('.').filter(|&at| at > 0)?;
    Some(&name[at..])
}

fn looks_like_a_file(text: &str, suffix: &str) -> bool {
    let mut letters = suffix.chars().skip(1);
    !text.starts_with('-')
        && !text.contains(char::is_whitespace)
        && letters.next().is_some_and(|c| c.is_ascii_alphabetic())
        && suffix.len() <= 8
        && letters.all(|c| c.is_ascii_alphanumeric())
}

/// Each run of digits becomes one `N`, with a fraction, exponent or sign of its own.
fn numbers_to_n(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if !c.is_ascii_digit() {
            out.push(c);
            continue;
        }
        out.push('N');
        while let Some(&next) = chars.peek() {
            let fraction = next == '.' && {
                let mut ahead = chars.clone();
                ahead.next();
                ahead.peek().is_some_and(char::is_ascii_digit)
            };
            if !next.is_ascii_digit() && !fraction {
                break;
            }
            chars.next();
        }
    }
    out
}

/// Total size of the input files among the arguments, in bytes, plus `stdin` (the size of standard
/// input where it is a regular file). What follows an output option is not input.
#[must_use]
pub fn input_bytes(
    args: &[OsString],
    stdin: Option<u64>,
    look: &dyn Fn(&Path) -> Option<PathKind>,
) -> u64 {
    const OUTPUT: &[&str] = &["-o", "-O", "--output", "--out", "--output-file", "of"];
    let is_output = |word: &[u8]| OUTPUT.iter().any(|o| o.as_bytes() == word);
    let mut total = stdin.unwrap_or(0);
    let mut after_output = false;
    for arg in args {
        let bytes = arg.as_bytes();
        let (name, value) = match bytes.iter().position(|&b| b == b'=') {
            Some(at) => (&bytes[..at], &bytes[at + 1..]),
            None => (&b""[..], bytes),
        };
        let output = std::mem::replace(&mut after_output, is_output(bytes)) || is_output(name);
        if output {
            continue;
        }
        let size = |path: &[u8]| match look(Path::new(OsStr::from_bytes(path))) {
            Some(PathKind::File(size)) => Some(size),
            _ => None,
        };
        total = total.saturating_add(size(bytes).or_else(|| size(value)).unwrap_or(0));
    }
    total
}

/// The class of an input's size: 0 for none, else 1 + log2 of the bytes, rounded to the nearest
/// (each class spans a factor of two).
#[must_use]
pub fn size_class(bytes: u64) -> u32 {
    if bytes == 0 {
        return 0;
    }
    #[allow(clippy::cast_precision_loss)] // A class needs no more than a few digits.
    let log = (bytes as f64).log2();
    1 + whole(log)
}

/// The class of load: CPUs that others were using, rounded to the nearest whole one.
#[must_use]
pub fn load_class(cpus_used_by_others: f64) -> u32 {
    whole(cpus_used_by_others)
}

/// The script among an interpreter's arguments: the first that is an existing file, unless `-c` or
/// `-m` comes before it. For `-m` the module stays in the shape.
#[must_use]
pub fn script_among<'a>(
    args: &'a [OsString],
    look: &dyn Fn(&Path) -> Option<PathKind>,
) -> Option<&'a Path> {
    args.iter()
        .take_while(|a| *a != "-c" && *a != "-m" && *a != "-e")
        .map(Path::new)
        .find(|p| {
            !p.as_os_str().as_bytes().starts_with(b"-")
                && matches!(look(p), Some(PathKind::File(_)))
        })
}

/// The nearest whole number, at least 0; what is not a number is 0.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // `as` saturates, as wanted here.
fn whole(value: f64) -> u32 {
    value.round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two files and a folder exist.
    fn look(path: &Path) -> Option<PathKind> {
        match path.to_str()? {
            "big.tar" => Some(PathKind::File(1 << 20)),
            "/data/x.y4m" => Some(PathKind::File(3 << 20)),
            "Makefile" => Some(PathKind::File(10)),
            "train.py" => Some(PathKind::File(100)),
            "dir" => Some(PathKind::Folder),
            _ => None,
        }
    }

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    fn shape_of(text: &str) -> String {
        shape(&words(text), &[], &look)
    }

    #[test]
    fn numbers_files_and_folders_lose_what_is_theirs_alone() {
        assert_eq!(shape_of("-k -p{threads} big.tar"), "-k -p{threads} F.tar");
        assert_eq!(
            shape_of("--crf 28.5 --pools={threads} /data/x.y4m"),
            "--crf N --pools={threads} F.yNm"
        );
        assert_eq!(
            shape_of("1e9 -d3 --limit=4096k Makefile dir"),
            "N -dN --limit=Nk F D"
        );
        assert_eq!(shape_of("if=big.tar bs=1M"), "if=F.tar bs=NM");
        assert_eq!(shape_of("--mode fast"), "--mode fast");
    }

    #[test]
    fn an_output_that_does_not_exist_yet_has_the_shape_that_it_will_have() {
        let later = |path: &Path| (path == Path::new("out.hevc")).then_some(PathKind::File(7));
        let args = words("-o out.hevc");
        assert_eq!(shape(&args, &[], &look), shape(&args, &[], &later));
        let args = words("-o out.hevc big.tar");
        let both = |path: &Path| look(path).or_else(|| later(path));
        assert_eq!(
            input_bytes(&args, None, &look),
            input_bytes(&args, None, &both)
        );
    }

    #[test]
    fn variables_belong_to_the_shape() {
        let env = [
            ("JOBS".to_owned(), "{threads}".to_owned()),
            ("DEPTH".to_owned(), "12".to_owned()),
        ];
        assert_eq!(shape(&words("x"), &env, &look), "JOBS={threads} DEPTH=N x");
    }

    #[test]
    fn sizes_add_up_and_fall_into_classes_of_a_factor_of_two() {
        assert_eq!(
            input_bytes(&words("-k big.tar if=/data/x.y4m dir"), Some(5), &look),
            (4 << 20) + 5
        );
        assert_eq!(
            input_bytes(&words("of=big.tar --output=big.tar"), None, &look),
            0
        );
        assert_eq!(size_class(0), 0);
        assert_eq!(size_class(1), 1);
        assert_eq!(size_class(1 << 20), 21);
        assert_eq!(size_class((1 << 20) + 100), 21);
        assert_eq!(size_class(1 << 22), 23);
        assert_eq!(size_class(u64::MAX), 65);
    }

    #[test]
    fn load_and_machine_are_rounded() {
        assert_eq!(
            [0.0, 0.4, 0.6, 1.2, -1.0, f64::NAN].map(load_class),
            [0, 0, 1, 1, 0, 0]
        );
        assert_eq!(MachineKey::new("A  CPU ", 4, 0.3).effective_cpus, 1);
        assert_eq!(
            MachineKey::new("A  CPU ", 4, 1.6),
            MachineKey::new("A CPU", 4, 2.0)
        );
    }

    #[test]
    fn the_script_of_an_interpreter_is_its_first_file() {
        let script = |text: &str| script_among(&words(text), &look).map(Path::to_owned);
        assert_eq!(
            script("-u -W ignore train.py big.tar"),
            Some("train.py".into())
        );
        assert_eq!(script("-m train big.tar"), None);
        assert_eq!(script("-c code big.tar"), None);
    }

    #[test]
    fn a_changed_file_is_another_program() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p");
        std::fs::write(&file, "one").unwrap();
        let before = ProgramKey::of(&file, None).unwrap();
        assert_eq!(
            before,
            ProgramKey::of(&dir.path().join("./p"), None).unwrap()
        );
        std::fs::write(&file, "other").unwrap();
        assert_ne!(before, ProgramKey::of(&file, None).unwrap());
        assert_ne!(
            before,
            ProgramKey::of(Path::new("/bin/true"), Some(&file)).unwrap()
        );
    }
}
