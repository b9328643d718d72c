//! Where the dynamic loader would find a library, in its own order: `DT_RPATH` of the file and of
//! those that needed it (unless the file has `DT_RUNPATH`), `LD_LIBRARY_PATH`, `DT_RUNPATH`, the
//! loader's cache, the default folders.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::elf::Elf;

const CACHE: &str = "/etc/ld.so.cache";
const CACHE_MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// Libraries that are followed at most, so that a strange file cannot cost seconds.
const MOST_LIBRARIES: usize = 512;

/// All libraries that `program` needs, directly and transitively, that were found; breadth first.
/// `library_path` is the value of `LD_LIBRARY_PATH`. Libraries that are not found are given by name
/// alone.
pub(super) fn needed(program: &Path, elf: &Elf, library_path: Option<&OsStr>) -> Vec<PathBuf> {
    let from_env: Vec<PathBuf> = library_path
        .map(|p| {
            std::env::split_paths(p)
                .filter(|d| !d.as_os_str().is_empty())
                .collect()
        })
        .unwrap_or_default();
    let mut cache = None;
    let mut seen: HashSet<String> = HashSet::new();
    let mut found = Vec::new();
    let mut queue: VecDeque<(PathBuf, Elf, Vec<PathBuf>)> = VecDeque::new();
    queue.push_back((program.to_owned(), elf.clone(), Vec::new()));

    while let Some((file, elf, inherited)) = queue.pop_front() {
        let origin = file
            .canonicalize()
            .ok()
            .and_then(|f| f.parent().map(Path::to_owned))
            .unwrap_or_default();
        let expand = |paths: &[String]| -> Vec<PathBuf> {
            paths
                .iter()
                .map(|p| expand_tokens(p, &origin, elf.class64))
                .collect()
        };
        let mut rpath = Vec::new();
        if elf.runpath.is_empty() {
            rpath = expand(&elf.rpath);
            rpath.extend(inherited);
        }
        let runpath = expand(&elf.runpath);
        for name in &elf.needed {
            if seen.len() >= MOST_LIBRARIES || !seen.insert(name.clone()) {
                continue;
            }
            let fits = |path: &Path| {
                Elf::read(path).filter(|e| e.machine == elf.machine && e.class64 == elf.class64)
            };
            let hit = if name.contains('/') {
                let path = expand_tokens(name, &origin, elf.class64);
                fits(&path).map(|e| (path, e))
            } else {
                let in_folders = |folders: &[PathBuf]| {
                    folders
                        .iter()
                        .map(|d| d.join(name))
                        .find_map(|p| fits(&p).map(|e| (p, e)))
                };
                in_folders(&rpath)
                    .or_else(|| in_folders(&from_env))
                    .or_else(|| in_folders(&runpath))
                    .or_else(|| {
                        let cache = cache.get_or_insert_with(|| {
                            std::fs::read(CACHE)
                                .map(|d| parse_cache(&d))
                                .unwrap_or_default()
                        });
                        cache
                            .get(name)?
                            .iter()
                            .find_map(|p| fits(p).map(|e| (p.clone(), e)))
                    })
                    .or_else(|| in_folders(&default_folders()))
            };
            match hit {
                Some((path, library)) => {
                    found.push(path.clone());
                    queue.push_back((path, library, rpath.clone()));
                }
                None => found.push(PathBuf::from(name)),
            }
        }
    }
    found
}

fn expand_tokens(text: &str, origin: &Path, class64: bool) -> PathBuf {
    let origin = origin.to_string_lossy();
    let lib = if class64 { "lib64" } else { "lib" };
    let mut text = text.to_owned();
    for (token, value) in [
        ("ORIGIN", origin.as_ref()),
        ("LIB", lib),
        ("PLATFORM", std::env::consts::ARCH),
    ] {
        text = text
            .replace(&format!("${{{token}}}"), value)
            .replace(&format!("${token}"), value);
    }
    PathBuf::from(text)
}

fn default_folders() -> Vec<PathBuf> {
    let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
    [
        format!("/lib/{triplet}"),
        format!("/usr/lib/{triplet}"),
        "/lib64".into(),
        "/usr/lib64".into(),
        "/lib".into(),
        "/usr/lib".into(),
        "/usr/local/lib".into(),
    ]
    .into_iter()
    .map(PathBuf::from)
    .collect()
}

/// The loader's cache, in the format that glibc has written since 2.2: a header of 48 bytes, then
/// entries of 24 bytes (flags, name, path, two more), offsets from the header's start. An older
/// table may come first. Anything unexpected yields an empty map.
fn parse_cache(data: &[u8]) -> HashMap<String, Vec<PathBuf>> {
    let mut map: HashMap<String, Vec<PathBuf>> = HashMap::new();
    let Some(start) = memchr::memmem::find(data, CACHE_MAGIC) else {
        return map;
    };
    let data = &data[start..];
    let word = |at: usize| -> Option<usize> {
        let bytes: [u8; 4] = data.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_ne_bytes(bytes)).ok()
    };
    let text = |at: usize| -> Option<String> {
        let bytes = data.get(at..)?;
        let end = memchr::memchr(0, bytes)?;
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    };
    let count = word(20).unwrap_or(0).min(data.len() / 24);
    for entry in 0..count {
        let at = 48 + entry * 24;
        let (Some(name), Some(path)) = (word(at + 4).and_then(text), word(at + 8).and_then(text))
        else {
            continue;
        };
        map.entry(name).or_default().push(PathBuf::from(path));
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_cache_of_this_machine_names_the_c_library() {
        let Ok(data) = std::fs::read(CACHE) else {
            eprintln!("skipped: no {CACHE} here");
            return;
        };
        let cache = parse_cache(&data);
        assert!(
            cache
                .get("libc.so.6")
                .is_some_and(|paths| paths.iter().any(|p| p.is_file()))
        );
    }

    #[test]
    fn a_cache_of_any_bytes_is_never_fatal() {
        assert!(parse_cache(b"").is_empty());
        let mut bytes = CACHE_MAGIC.to_vec();
        bytes.extend([0xff; 40]);
        parse_cache(&bytes);
        parse_cache(&bytes[..22]);
    }

    #[test]
    fn origin_is_replaced_in_both_spellings() {
        let origin = Path::new("/opt/app");
        assert_eq!(
            expand_tokens("$ORIGIN/../lib", origin, true),
            Path::new("/opt/app/../lib")
        );
        assert_eq!(
            expand_tokens("${ORIGIN}/x", origin, true),
            Path::new("/opt/app/x")
        );
    }
}
