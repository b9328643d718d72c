//! Names of functions: from the symbols of the files that were mapped, demangled. A stripped file's come from
//! its debugging file, where that is installed, and from its dynamic symbols.

use crate::region::Module;
use cpp_demangle::{DemangleOptions, Symbol};
use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSymbol as _, SymbolKind};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// What a function is called, and the file that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name, or the file and offset.
    pub name: String,
    /// The file's path; empty: no file is known at that address.
    pub file: String,
}

/// Names, with the files that were read.
#[derive(Debug, Default)]
pub struct Names {
    files: BTreeMap<Vec<u8>, Vec<Range>>,
}

#[derive(Debug)]
struct Range {
    start: u64,
    end: u64,
    name: String,
}

impl Names {
    /// The function at an address, where these files were mapped.
    pub fn of(&mut self, modules: &[Module], address: u64) -> Named {
        let within = |module: &&Module| (module.start..module.end).contains(&address);
        let Some(module) = modules.iter().find(within) else {
            return Named {
                name: format!("0x{address:x}"),
                file: String::new(),
            };
        };
        let path = Path::new(OsStr::from_bytes(&module.path));
        let ranges = self.ranges(&module.path);
        let offset = address.wrapping_sub(module.bias);
        let after = ranges.partition_point(|range| range.start <= offset);
        let name = ranges[..after].last().filter(|range| offset < range.end);
        let file = path.file_name().unwrap_or(path.as_os_str());
        Named {
            name: match name {
                Some(range) => range.name.clone(),
                None => format!("{}+0x{offset:x}", file.to_string_lossy()),
            },
            file: path.to_string_lossy().into_owned(),
        }
    }

    /// The variable or function that an address is in, how far from its start, and the file.
    pub fn variable(&mut self, modules: &[Module], address: u64) -> Option<(String, u64, String)> {
        let within = |module: &&Module| (module.start..module.end).contains(&address);
        let module = modules.iter().find(within)?;
        let path = Path::new(OsStr::from_bytes(&module.path));
        let offset = address.wrapping_sub(module.bias);
        let ranges = self.ranges(&module.path);
        let after = ranges.partition_point(|range| range.start <= offset);
        let found = ranges[..after].last().filter(|range| offset < range.end)?;
        let file = path.to_string_lossy().into_owned();
        Some((found.name.clone(), offset - found.start, file))
    }

    fn ranges(&mut self, path: &[u8]) -> &[Range] {
        self.files
            .entry(path.to_vec())
            .or_insert_with(|| read(Path::new(OsStr::from_bytes(path))))
    }

    /// Whether a file has names for functions of its own, and not only for those that it exports.
    pub fn is_stripped(path: &Path) -> bool {
        let Ok(bytes) = std::fs::read(path) else {
            return false;
        };
        match ElfFile64::<object::Endianness>::parse(bytes.as_slice()) {
            Ok(file) => file.symbols().next().is_none(),
            Err(_) => false,
        }
    }
}

/// The functions of a file, by where they begin; none where it cannot be read.
fn read(path: &Path) -> Vec<Range> {
    let mut ranges = Vec::new();
    if let Ok(bytes) = std::fs::read(path)
        && let Ok(file) = ElfFile64::<object::Endianness>::parse(bytes.as_slice())
    {
        add(&file, &mut ranges);
        if file.symbols().next().is_none()
            && let Some(debug) = debugging_file(&file)
            && let Ok(bytes) = std::fs::read(debug)
            && let Ok(file) = ElfFile64::<object::Endianness>::parse(bytes.as_slice())
        {
            add(&file, &mut ranges);
        }
    }
    ranges.sort_by(|a, b| (a.start, &a.name).cmp(&(b.start, &b.name)));
    // Aliases: the first name by the alphabet.
    ranges.dedup_by_key(|range| range.start);
    // What has no size (assembly) goes on to the next.
    for index in 0..ranges.len() {
        if ranges[index].end == ranges[index].start {
            ranges[index].end = ranges.get(index + 1).map_or(u64::MAX, |next| next.start);
        }
    }
    ranges
}

fn add(file: &ElfFile64<'_>, ranges: &mut Vec<Range>) {
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        // A program can tell of functions that are data (corewise_profile.h).
        let kind = matches!(
            symbol.kind(),
            SymbolKind::Text | SymbolKind::Data | SymbolKind::Unknown
        );
        if !kind || symbol.is_undefined() || symbol.address() == 0 {
            continue;
        }
        if let Ok(name) = symbol.name() {
            ranges.push(Range {
                start: symbol.address(),
                end: symbol.address() + symbol.size(),
                name: demangled(name),
            });
        }
    }
}

/// Where distributions install what they strip, by the build's number.
fn debugging_file(file: &ElfFile64<'_>) -> Option<PathBuf> {
    let number = file.build_id().ok()??;
    let (first, rest) = number.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(PathBuf::from(format!(
        "/usr/lib/debug/.build-id/{first:02x}/{rest}.debug"
    )))
}

/// A name of C++ or Rust as one writes it; other names as they are.
pub fn demangled(name: &str) -> String {
    // Rust's older names are C++ names with a hash at their end.
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    if !name.starts_with("_Z") {
        return name.to_owned();
    }
    // Clones that the compiler makes have a suffix that is not part of the mangled name.
    let (mangled, clone) = match name.find('.') {
        Some(dot) => name.split_at(dot),
        None => (name, ""),
    };
    let symbol = Symbol::new(mangled.as_bytes()).ok();
    let text = symbol.and_then(|symbol| {
        symbol
            .demangle_with_options(&DemangleOptions::default())
            .ok()
    });
    text.map_or_else(|| name.to_owned(), |text| format!("{text}{clone}"))
}

/// A name in so many letters at most; what is left out shows.
pub(crate) fn shortened(name: &str, letters: usize) -> String {
    match name.chars().count() <= letters {
        true => name.to_owned(),
        false => name
            .chars()
            .take(letters.saturating_sub(1))
            .chain(['…'])
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cpp_are_demangled_and_others_stay() {
        assert_eq!(demangled("_ZN3one3twoEi"), "one::two(int)");
        assert_eq!(demangled("_ZN3one3twoEi.part.0"), "one::two(int).part.0");
        assert_eq!(demangled("main"), "main");
        assert_eq!(demangled("_Zebra"), "_Zebra");
    }

    #[test]
    fn names_of_rust_are_demangled_without_their_hashes() {
        let old = "_ZN4core3ptr4copy17h0123456789abcdefE";
        assert_eq!(demangled(old), "core::ptr::copy");
        let new = "_RNvMs0_NtCsjrHSEGnQ3l9_3std6threadNtB5_6Thread3new";
        assert_eq!(demangled(new), "<std::thread::Thread>::new");
        assert_eq!(demangled("_Rest"), "_Rest");
    }

    #[test]
    fn an_address_outside_of_every_file_is_its_own_name() {
        let named = Names::default().of(&[], 0x1234);
        assert_eq!((named.name.as_str(), named.file.as_str()), ("0x1234", ""));
    }

    #[test]
    fn this_program_finds_itself() {
        let path = std::env::current_exe().unwrap();
        let ranges = read(&path);
        assert!(ranges.iter().any(|range| range.name == "main"));
        assert!(!Names::is_stripped(&path));
    }
}
