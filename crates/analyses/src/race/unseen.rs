//! Which parts of a program were not compiled to tell of their accesses.

use crate::region::Module;
use object::read::elf::ElfFile64;
use object::{Object as _, ObjectSymbol as _};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// What every program is made of, and no program's author compiles: their accesses on behalf of the program
/// are interposed where they matter.
const USUAL: [&str; 12] = [
    "ld-linux",
    "libc.so",
    "libm.so",
    "libdl.so",
    "librt.so",
    "libpthread.so",
    "libgcc_s.so",
    "libstdc++.so",
    "libc++.so",
    "libtsan.so",
    "libcorewise_race.so",
    "linux-vdso",
];

/// The files that call no function of ThreadSanitizer's interface, besides the languages' own libraries.
///
/// A file of which only a part was compiled so is not among them.
pub fn unseen(modules: &[Module]) -> BTreeSet<String> {
    let files = modules
        .iter()
        .map(|module| Path::new(OsStr::from_bytes(&module.path)));
    let unseen = files.filter(|file| !is_usual(file) && tells(file) == Some(false));
    unseen
        .map(|file| file.to_string_lossy().into_owned())
        .collect()
}

fn is_usual(file: &Path) -> bool {
    file.file_name().is_none_or(|name| {
        let name = name.to_string_lossy();
        USUAL.iter().any(|usual| name.starts_with(usual))
    })
}

/// Whether a file calls what the compiler puts in. `None`: it cannot be read.
fn tells(file: &Path) -> Option<bool> {
    let bytes = std::fs::read(file).ok()?;
    let file = ElfFile64::<object::Endianness>::parse(bytes.as_slice()).ok()?;
    let mut names = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_undefined())
        .filter_map(|symbol| symbol.name().ok());
    Some(names.any(|name| {
        // A file without any access has functions, at least.
        ["__tsan_func_entry", "__tsan_read", "__tsan_write"]
            .iter()
            .any(|start| name.starts_with(start))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &Path) -> Module {
        Module {
            bias: 0,
            start: 0,
            end: 1,
            path: path.as_os_str().as_bytes().to_vec(),
        }
    }

    #[test]
    fn a_program_that_was_not_compiled_so_is_unseen_and_the_c_library_is_not_mentioned() {
        let this = std::env::current_exe().unwrap();
        let modules = [
            module(&this),
            module(Path::new("/lib/x86_64-linux-gnu/libc.so.6")),
            module(Path::new("/nowhere/libx.so")),
        ];
        let expected = BTreeSet::from([this.to_string_lossy().into_owned()]);
        assert_eq!(unseen(&modules), expected);
    }
}
