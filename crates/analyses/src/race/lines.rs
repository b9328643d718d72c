//! Where in the source code an address is: by the debugging information of the file that is mapped there.

use crate::names::Names;
use crate::region::Module;
use gimli::{EndianRcSlice, RunTimeEndian};
use object::{Object as _, ObjectSection as _};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;

type Reader = EndianRcSlice<RunTimeEndian>;

/// A function in a stack, and where it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The function.
    pub function: String,
    /// The source file; empty: not known.
    pub file: String,
    /// The line in it; 0: not known.
    pub line: u32,
    /// The file that is mapped there.
    pub module: String,
    /// Where in that file.
    pub offset: u64,
}

/// Source lines, with the files that were read.
#[derive(Default)]
pub struct Lines {
    names: Names,
    files: BTreeMap<Vec<u8>, Option<addr2line::Context<Reader>>>,
    known: BTreeMap<u64, Vec<Place>>,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").finish_non_exhaustive()
    }
}

impl Lines {
    /// The functions at a return address, the innermost first: more than one where calls were inlined.
    pub fn of(&mut self, modules: &[Module], code: u64) -> &[Place] {
        if !self.known.contains_key(&code) {
            let places = self.look(modules, code);
            self.known.insert(code, places);
        }
        self.known.get(&code).map_or(&[], Vec::as_slice)
    }

    /// Variables and functions.
    pub fn names(&mut self) -> &mut Names {
        &mut self.names
    }

    fn look(&mut self, modules: &[Module], code: u64) -> Vec<Place> {
        // The call itself lies before the address to which it returns.
        let address = code.saturating_sub(1);
        let named = self.names.of(modules, address);
        let within = |module: &&Module| (module.start..module.end).contains(&address);
        let Some(module) = modules.iter().find(within) else {
            return vec![Place {
                function: named.name,
                offset: address,
                ..Place::default()
            }];
        };
        let offset = address - module.bias;
        let place = |function: String, file: String, line: u32| Place {
            function,
            file,
            line,
            module: named.file.clone(),
            offset,
        };
        let context = self
            .files
            .entry(module.path.clone())
            .or_insert_with(|| read(Path::new(OsStr::from_bytes(&module.path))));
        let mut places = Vec::new();
        if let Some(context) = context
            && let Ok(mut frames) = context.find_frames(offset).skip_all_loads()
        {
            while let Ok(Some(frame)) = frames.next() {
                let name = frame.function.as_ref().and_then(|name| {
                    let raw = name.raw_name().ok()?;
                    Some(crate::names::demangled(&raw))
                });
                let (file, line) = frame.location.map_or((String::new(), 0), |location| {
                    let file = location.file.unwrap_or_default().to_owned();
                    (file, location.line.unwrap_or(0))
                });
                places.push(place(
                    name.unwrap_or_else(|| named.name.clone()),
                    file,
                    line,
                ));
            }
        }
        if places.is_empty() {
            places.push(place(named.name.clone(), String::new(), 0));
        }
        places
    }
}

fn read(path: &Path) -> Option<addr2line::Context<Reader>> {
    let bytes = std::fs::read(path).ok()?;
    let file = object::File::parse(bytes.as_slice()).ok()?;
    let endian = match file.is_little_endian() {
        true => RunTimeEndian::Little,
        false => RunTimeEndian::Big,
    };
    let section = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
        let data = file
            .section_by_name(id.name())
            .and_then(|section| section.uncompressed_data().ok());
        Ok(EndianRcSlice::new(
            Rc::from(data.unwrap_or_default().as_ref()),
            endian,
        ))
    };
    let dwarf = gimli::Dwarf::load(section).ok()?;
    addr2line::Context::from_dwarf(dwarf).ok()
}
