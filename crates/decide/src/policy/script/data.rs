//! Data of scripts: CPU sets as arrays of numbers, and how much of anything there may be.

use super::desk::Failed;
use super::engine::{MAX_ARRAY, MAX_DEPTH, MAX_MAP, MAX_NAME, MAX_STRING};
use super::error::Exceeded;
use crate::cpus::CpuSet;
use rhai::{Array, Dynamic};

/// CPUs above this are none: Linux has fewer.
const MOST_CPUS: i64 = 65_535;

/// This many elements are looked at, or copied, in about the time of a usual operation or some.
const LOOKED_AT_AT_ONCE: usize = 256;

/// A set of CPUs, as a script sees it.
pub(super) fn array(cpus: &CpuSet) -> Array {
    cpus.iter().map(|cpu| i64::from(cpu).into()).collect()
}

/// A set of CPUs that a script gave.
pub(super) fn cpu_set(array: &[Dynamic]) -> Result<CpuSet, Failed> {
    let cpu = |value: &Dynamic| match value.as_int() {
        Ok(cpu @ 0..=MOST_CPUS) => Ok(u32::try_from(cpu).unwrap_or(u32::MAX)),
        _ => Err(format!(
            "CPUs are numbers from 0, and one of them is {}",
            shown(value)
        )),
    };
    Ok(array.iter().map(cpu).collect::<Result<CpuSet, String>>()?)
}

/// A number of threads, a weight or the like that a script gave.
pub(super) fn count(what: &str, value: i64) -> Result<u32, Failed> {
    u32::try_from(value).map_err(|_| format!("{what} cannot be {value}").into())
}

/// The start of a text, at most `most` bytes of it.
pub(super) fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// What `period_ms` gave, in nanoseconds.
pub(super) fn period_ns(said: &Dynamic) -> Result<Option<u64>, String> {
    if said.is_unit() {
        return Ok(None);
    }
    let ms = match (said.as_int(), said.as_float()) {
        (Ok(ms), _) => ms as f64,
        (_, Ok(ms)) => ms,
        _ => return Err(format!("period_ms() gave {}: not a number", shown(said))),
    };
    if !(0.0..=1e12).contains(&ms) {
        return Err(format!("period_ms() gave {ms}: not a time"));
    }
    Ok((ms > 0.0).then_some((ms * 1e6) as u64))
}

/// How much data there is.
#[derive(Default)]
pub(super) struct Size {
    elements: usize,
    entries: usize,
    bytes: usize,
}

impl Size {
    /// An entry of a map; its value is added on its own.
    ///
    /// # Errors
    /// What is exceeded.
    pub(super) fn add_entry(&mut self, name: &str) -> Result<(), Exceeded> {
        self.entries += 1;
        if name.len() > MAX_NAME {
            let what = format!("a name of more than {MAX_NAME} bytes in a map");
            return Err(Exceeded(what));
        }
        self.check()
    }

    /// A value with all that is in it, `depth` levels down.
    ///
    /// # Errors
    /// What is exceeded.
    pub(super) fn add(&mut self, value: &Dynamic, depth: usize) -> Result<(), Exceeded> {
        if depth > MAX_DEPTH {
            return Err(Exceeded::depth());
        }
        if let Ok(array) = value.as_array_ref() {
            self.elements += array.len();
            self.check()?;
            for element in array.iter() {
                self.add(element, depth + 1)?;
            }
        } else if let Ok(map) = value.as_map_ref() {
            for (name, element) in map.iter() {
                self.add_entry(name)?;
                self.add(element, depth + 1)?;
            }
        } else if let Ok(text) = value.as_immutable_string_ref() {
            self.bytes += text.len();
        }
        self.check()
    }

    /// What looking at it counts for, in operations: so that large data cannot make an event long.
    pub(super) fn operations(&self) -> u64 {
        ((self.elements + self.entries) / LOOKED_AT_AT_ONCE) as u64
    }

    fn check(&self) -> Result<(), Exceeded> {
        let fits =
            self.elements <= MAX_ARRAY && self.entries <= MAX_MAP && self.bytes <= MAX_STRING;
        fits.then_some(()).ok_or_else(Exceeded::size)
    }
}

/// Whether a value is data through and through.
pub(super) fn plain(value: &Dynamic) -> Result<(), String> {
    if let Ok(array) = value.as_array_ref() {
        array.iter().try_for_each(plain)
    } else if let Ok(map) = value.as_map_ref() {
        map.values().try_for_each(plain)
    } else if value.is_unit()
        || value.is_bool()
        || value.is_int()
        || value.is_float()
        || value.is_char()
        || value.is_string()
    {
        Ok(())
    } else {
        let kind = value.type_name();
        let kind = kind.rsplit("::").next().unwrap_or(kind);
        Err(format!(
            "it has a {}; keep numbers, texts, arrays and maps, and of a program its id",
            kind.trim_end_matches("View")
        ))
    }
}

/// A value for people.
pub(super) fn shown(value: &Dynamic) -> String {
    cut(&value.to_string(), 64).to_owned()
}
