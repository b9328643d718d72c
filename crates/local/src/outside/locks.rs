//! What the adapters have counted of locks, for people: where threads were blocked, by the names of the
//! functions that called.
//!
//! The page is written by the program, which may write anything: what is in it is only shown. The files that it
//! names are opened with the rights of whoever asked for the run, and read only where they are regular files.

use corewise_abi::locks::{Called, Kind, LocksPage, PATH_BYTES, Waited};
use object::{Object, ObjectSymbol, ReadCache, SymbolKind};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Callers that are told.
const MOST: usize = 10;

/// Where the threads of a program were blocked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Locks {
    /// Time, added over all threads, of calls that have ended.
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub ns: u64,
    /// Calls that had to wait.
    pub waits: u64,
    /// The same by what they waited for.
    pub kinds: BTreeMap<&'static str, Time>,
    /// Who waited longest, the longest first; at most ten.
    pub callers: Vec<Caller>,
    /// Threads.
    pub threads: Threads,
}

/// Time, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Time {
    /// Added over all threads.
    #[serde(rename = "seconds", serialize_with = "seconds")]
    pub ns: u64,
    /// Calls that had to wait.
    pub waits: u64,
}

/// A place in a program's code, and what was waited there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Caller {
    /// For people: `FUNCTION in FILE`, or `FILE+0xPLACE` where the file does not name its functions.
    pub caller: String,
    /// What it waited for.
    pub kind: &'static str,
    /// The file; only the end of a long path.
    pub file: String,
    /// Where the call returns to, as the file numbers its addresses.
    pub address: u64,
    /// How long, and how often.
    #[serde(flatten)]
    pub time: Time,
}

/// Threads that began while it was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Threads {
    /// Threads that the C library created.
    pub created: u64,
    /// How many of them have ended, before their process did.
    pub ended: u64,
    /// The names that threads were given, `#` for numbers in them; at most 16.
    pub names: Vec<String>,
}

fn seconds<S: Serializer>(ns: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(*ns as f64 / 1e9)
}

impl Locks {
    /// What a page says. Costs some milliseconds for each file with long tables of symbols.
    pub(super) fn read(page: &LocksPage, created: u64, ended: u64) -> Locks {
        let totals = Kind::ALL.map(|kind| (kind, page.total(kind)));
        let all: Waited = totals.iter().map(|(_, total)| *total).sum();
        let kinds = totals.iter().filter(|(_, total)| total.waits > 0);
        let mut called: Vec<Called> = page.callers().collect();
        called.sort_by_key(|called| std::cmp::Reverse(called.waited.ns));
        called.truncate(MOST);
        let text = |name: [u8; _]| {
            let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
            shown(&String::from_utf8_lossy(&name[..end]))
        };
        Locks {
            ns: all.ns,
            waits: all.waits,
            kinds: kinds
                .map(|(kind, total)| (kind.name(), Time::of(total)))
                .collect(),
            callers: named(page, &called),
            threads: Threads {
                created,
                ended,
                names: page.names().map(text).collect(),
            },
        }
    }
}

impl Time {
    fn of(waited: &Waited) -> Time {
        Time {
            ns: waited.ns,
            waits: waited.waits,
        }
    }
}

/// Gives callers their names; each file is looked at once.
fn named(page: &LocksPage, called: &[Called]) -> Vec<Caller> {
    let mut symbols: BTreeMap<usize, Vec<Option<String>>> = BTreeMap::new();
    let callers = called.iter().map(|one| {
        let (path, length) = page.path(one.object).unwrap_or(([0; PATH_BYTES], 0));
        let path = Path::new(OsStr::from_bytes(&path[..length]));
        let found = symbols.entry(one.object).or_insert_with(|| {
            let addresses = called.iter().filter(|c| c.object == one.object);
            let addresses: Vec<u64> = addresses.map(|c| c.address).collect();
            functions(path, &addresses).unwrap_or_default()
        });
        // In the order in which they were asked.
        let function = match found.is_empty() {
            true => None,
            false => found.remove(0),
        };
        let file = path.file_name().unwrap_or(OsStr::new("?"));
        let file = file.to_string_lossy();
        Caller {
            caller: shown(&match function {
                Some(function) => format!("{function} in {file}"),
                None => format!("{file}+{:#x}", one.address),
            }),
            kind: one.kind.name(),
            file: shown(&path.to_string_lossy()),
            address: one.address,
            time: Time::of(&one.waited),
        }
    });
    callers.collect()
}

/// A name without what a terminal would obey.
fn shown(name: &str) -> String {
    name.replace(char::is_control, "?")
}

/// The functions of a file to whose calls these addresses return. `None` where it cannot be read.
fn functions(path: &Path, addresses: &[u64]) -> Option<Vec<Option<String>>> {
    // The end of a path is none, and what is no regular file may never end.
    if !path.is_absolute() {
        return None;
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags((rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY).bits() as i32)
        .open(path)
        .ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let cache = ReadCache::new(file);
    let file = object::File::parse(&cache).ok()?;
    let mut found = vec![None; addresses.len()];
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        if symbol.kind() != SymbolKind::Text {
            continue;
        }
        let range = symbol.address()..symbol.address().saturating_add(symbol.size());
        for (address, found) in addresses.iter().zip(&mut found) {
            // The call is before the address that it returns to, which may be another function's.
            if found.is_none() && range.contains(&address.saturating_sub(1)) {
                let name = symbol.name().unwrap_or_default();
                *found = (!name.is_empty()).then(|| name.to_owned());
            }
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_named_by_their_function_or_their_place() {
        let page = LocksPage::new();
        let own = std::env::current_exe().unwrap();
        let own_object = page.object(own.as_os_str().as_bytes());
        // A symbol of this very program, whatever it is called.
        let cache = ReadCache::new(std::fs::File::open(&own).unwrap());
        let file = object::File::parse(&cache).unwrap();
        let mut symbols = file.symbols();
        let symbol = symbols
            .find(|s| s.kind() == SymbolKind::Text && s.size() > 8)
            .unwrap();
        let inside = page.caller(Kind::Mutex, own_object, symbol.address() + 8);
        page.add(Kind::Mutex, inside, 5_000_000_000);
        let gone = page.object(b"/nowhere/libgone.so");
        page.add(
            Kind::Barrier,
            page.caller(Kind::Barrier, gone, 0x1234),
            1_000,
        );
        page.name(b"worker-7");
        let locks = Locks::read(&page, 3, 2);
        assert_eq!((locks.ns, locks.waits), (5_000_001_000, 2));
        let [first, second] = &locks.callers[..] else {
            panic!("{locks:?}");
        };
        let file = own.file_name().unwrap().to_string_lossy();
        assert!(
            first.caller.ends_with(&format!(" in {file}")),
            "{}",
            first.caller
        );
        assert_eq!(second.caller, "libgone.so+0x1234");
        let told = serde_json::to_value(&locks).unwrap();
        assert_eq!(told["kinds"]["mutex"]["seconds"], 5.0);
        assert_eq!(told["callers"][1]["kind"], "barrier");
        assert_eq!(told["callers"][1]["waits"], 1);
        assert_eq!(told["threads"]["created"], 3);
        assert_eq!(told["threads"]["names"][0], "worker-#");
    }

    #[test]
    fn a_file_that_is_none_is_not_read() {
        assert_eq!(functions(Path::new("/dev/zero"), &[1]), None);
        assert_eq!(functions(Path::new("end/of/a/path.so"), &[1]), None);
    }
}
