//! What an ELF file says of itself: needed libraries and where to look for them, linkage,
//! architecture, the marks of statically linked runtimes. Reads only the parts that it needs.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use aho_corasick::packed::Searcher;
use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, ReadCache, ReadRef};

use super::table::{Runtime, TABLE};

/// Most bytes of a program that are searched for marks of statically linked runtimes. Larger
/// programs exist (embedded neural networks); their code comes first.
const MARKS_LIMIT: u64 = 256 << 20;

/// Facts of one ELF file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Elf {
    /// `e_machine`.
    pub(super) machine: u16,
    /// 64-bit.
    pub(super) class64: bool,
    /// Asks for no dynamic loader and needs no library.
    pub(super) is_static: bool,
    /// The dynamic loader that it asks for.
    pub(super) loader: Option<String>,
    /// `DT_NEEDED`, in order.
    pub(super) needed: Vec<String>,
    /// `DT_RPATH` (`$ORIGIN` not yet replaced).
    pub(super) rpath: Vec<String>,
    /// `DT_RUNPATH` (`$ORIGIN` not yet replaced).
    pub(super) runpath: Vec<String>,
    /// Has the section in which Go's linker keeps the build's description.
    pub(super) go: bool,
}

impl Elf {
    /// Reads `path`; `None` where it is no ELF file, or one too broken to tell anything.
    pub(super) fn read(path: &Path) -> Option<Self> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let ident = cache.read_bytes_at(0, 16).ok()?;
        if ident.get(..4)? != elf::ELFMAG {
            return None;
        }
        match ident[4] {
            elf::ELFCLASS64 => parse::<elf::FileHeader64<Endianness>, _>(&cache),
            elf::ELFCLASS32 => parse::<elf::FileHeader32<Endianness>, _>(&cache),
            _ => None,
        }
    }

    /// Why no library of ours may be preloaded into it.
    pub(super) fn no_preload(&self) -> Option<String> {
        if !self.class64 {
            return Some("it is a 32-bit program".into());
        }
        let loader = self.loader.as_deref()?;
        loader.contains("ld-musl").then(|| {
            "its C library is musl, whose loader ends a program for a library of another".into()
        })
    }

    /// Whether this machine's kernel runs it without an emulator, as far as the header tells.
    pub(super) fn foreign(&self) -> Option<String> {
        let native: &[u16] = match std::env::consts::ARCH {
            "x86_64" => &[elf::EM_X86_64, elf::EM_386],
            "aarch64" => &[elf::EM_AARCH64, elf::EM_ARM],
            "riscv64" => &[elf::EM_RISCV],
            "powerpc64" => &[elf::EM_PPC64, elf::EM_PPC],
            "s390x" => &[elf::EM_S390],
            _ => return None,
        };
        if native.contains(&self.machine) {
            return None;
        }
        Some(match self.machine {
            elf::EM_X86_64 => "x86-64".into(),
            elf::EM_386 => "x86 (32 bit)".into(),
            elf::EM_AARCH64 => "arm64".into(),
            elf::EM_ARM => "arm (32 bit)".into(),
            elf::EM_RISCV => "RISC-V".into(),
            elf::EM_PPC64 => "ppc64".into(),
            elf::EM_S390 => "s390".into(),
            other => format!("ELF machine {other}"),
        })
    }
}

fn parse<'d, H, R>(data: R) -> Option<Elf>
where
    H: FileHeader<Endian = Endianness>,
    R: ReadRef<'d>,
{
    let header = H::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, data).ok()?;
    let mut found = Elf {
        machine: header.e_machine(endian),
        class64: header.is_class_64(),
        ..Elf::default()
    };

    let mut has_loader = false;
    for segment in segments {
        if segment.p_type(endian) == elf::PT_INTERP {
            has_loader = true;
            let name = segment.interpreter(endian, data).ok().flatten();
            found.loader = name.map(|name| String::from_utf8_lossy(name).into_owned());
        }
        let Ok(Some(entries)) = segment.dynamic(endian, data) else {
            continue;
        };
        let mut strtab = 0_u64;
        let mut strsz = 0_u64;
        for entry in entries {
            match entry.tag32(endian) {
                Some(elf::DT_STRTAB) => strtab = entry.d_val(endian).into(),
                Some(elf::DT_STRSZ) => strsz = entry.d_val(endian).into(),
                _ => {}
            }
        }
        // The string table is given by its address in memory; a segment maps it from the file.
        let offset = segments.iter().find_map(|s| {
            let start: u64 = s.p_vaddr(endian).into();
            let size: u64 = s.p_filesz(endian).into();
            (s.p_type(endian) == elf::PT_LOAD && strtab >= start && strtab - start < size)
                .then(|| strtab - start + Into::<u64>::into(s.p_offset(endian)))
        });
        let Some(strings) = offset.and_then(|o| data.read_bytes_at(o, strsz).ok()) else {
            continue;
        };
        let text = |at: u64| -> Option<String> {
            let bytes = strings.get(usize::try_from(at).ok()?..)?;
            let end = memchr::memchr(0, bytes)?;
            Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
        };
        for entry in entries {
            let value: u64 = entry.d_val(endian).into();
            match entry.tag32(endian) {
                Some(elf::DT_NULL) => break,
                Some(elf::DT_NEEDED) => found.needed.extend(text(value)),
                Some(elf::DT_RPATH) => found.rpath = split_path(text(value)),
                Some(elf::DT_RUNPATH) => found.runpath = split_path(text(value)),
                _ => {}
            }
        }
    }
    found.is_static = !has_loader && found.needed.is_empty();

    if let Ok(sections) = header.sections(endian, data) {
        found.go = sections.iter().any(|s| {
            sections
                .section_name(endian, s)
                .is_ok_and(|name| name == b".go.buildinfo")
        });
    }
    Some(found)
}

fn split_path(text: Option<String>) -> Vec<String> {
    text.map(|t| {
        t.split(':')
            .filter(|p| !p.is_empty())
            .map(str::to_owned)
            .collect()
    })
    .unwrap_or_default()
}

/// Runtimes whose marks occur in the file's bytes: statically linked ones. One vectorised pass.
///
/// # Errors
/// The file could not be read.
pub(super) fn marks(path: &Path) -> io::Result<Vec<(Runtime, &'static str)>> {
    const CHUNK: usize = 1 << 20;
    let wanted: Vec<(Runtime, &'static str)> = TABLE
        .iter()
        .flat_map(|row| row.marks.iter().map(|mark| (row.runtime, *mark)))
        .collect();
    // Without vector instructions there is no such searcher: then nothing is found by marks.
    let Some(searcher) = Searcher::new(wanted.iter().map(|(_, mark)| mark)) else {
        return Ok(Vec::new());
    };
    let overlap = wanted.iter().map(|(_, mark)| mark.len()).max().unwrap_or(1);
    let mut file = File::open(path)?.take(MARKS_LIMIT);
    let mut found = vec![false; wanted.len()];
    let mut buffer = vec![0_u8; CHUNK + overlap];
    let mut kept = 0;
    loop {
        let read = match file.read(&mut buffer[kept..]) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let filled = kept + read;
        for hit in searcher.find_iter(&buffer[..filled]) {
            found[hit.pattern().as_usize()] = true;
        }
        // A mark may lie across two chunks.
        kept = overlap.min(filled);
        buffer.copy_within(filled - kept..filled, 0);
    }
    Ok(wanted
        .into_iter()
        .zip(found)
        .filter_map(|(mark, found)| found.then_some(mark))
        .collect())
}
