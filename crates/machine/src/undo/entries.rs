//! What a log's lines add up to: for each setting its first original, what we set last, and what we
//! had set before that.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::setting::Setting;

/// The version of the lines; 2 brought settings of the hardware. A log of a later one is left for those who
/// understand it.
pub(super) const VERSION: u32 = 2;

/// The first line of a log: whose it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) version: u32,
    /// The boot that the numbers and start times belong to.
    pub(super) boot: String,
    /// The PID namespace that they belong to.
    pub(super) pid_namespace: String,
    /// The writer, for people.
    pub(super) owner: String,
    pub(super) pid: i32,
    pub(super) start_time: u64,
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Line {
    /// The first one.
    Log(Header),
    /// Something is about to be changed.
    Set {
        what: Setting,
        original: String,
        ours: String,
        /// In a log that was written anew: what we had set before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        earlier: Option<String>,
    },
    /// The last change of a setting did not happen.
    Failed(Setting),
    /// A setting is put back, gone, or somebody else's.
    Forget(Setting),
}

/// A setting that is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) what: Setting,
    pub(super) original: String,
    pub(super) ours: String,
    /// What was ours before. Whoever is killed between a line and its change leaves this value.
    pub(super) earlier: Option<String>,
    /// Somebody else changed it: leave it alone. In the file it is forgotten.
    pub(super) foreign: bool,
}

impl Entry {
    /// Whether a value is one that we left behind, whenever we were stopped.
    pub(super) fn is_ours(&self, present: &str) -> bool {
        let earlier = self.earlier.as_deref();
        let comes_of = |ours| self.what.comes_of(ours, present);
        comes_of(&self.ours) || earlier.is_some_and(comes_of)
    }

    pub(super) fn line(&self) -> Line {
        Line::Set {
            what: self.what.clone(),
            original: self.original.clone(),
            ours: self.ours.clone(),
            earlier: self.earlier.clone(),
        }
    }
}

/// All settings of a log, in the order in which they were first changed.
#[derive(Debug, Default)]
pub(super) struct Entries {
    in_order: BTreeMap<u64, Entry>,
    numbers: HashMap<Setting, u64>,
    next: u64,
}

impl Entries {
    pub(super) fn get(&self, what: &Setting) -> Option<&Entry> {
        self.in_order.get(self.numbers.get(what)?)
    }

    pub(super) fn get_mut(&mut self, what: &Setting) -> Option<&mut Entry> {
        self.in_order.get_mut(self.numbers.get(what)?)
    }

    /// In the order of their first change.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Entry> {
        self.in_order.values()
    }

    pub(super) fn len(&self) -> usize {
        self.in_order.len()
    }

    /// Takes a line in. Lines that make no sense here change nothing.
    pub(super) fn apply(&mut self, line: Line) {
        match line {
            Line::Log(_) => {}
            Line::Set {
                what,
                original,
                ours,
                earlier,
            } => self.set(what, original, ours, earlier),
            Line::Failed(what) => self.failed(&what),
            Line::Forget(what) => self.forget(&what),
        }
    }

    fn set(&mut self, what: Setting, original: String, ours: String, earlier: Option<String>) {
        if let Some(entry) = self.get_mut(&what) {
            entry.earlier = Some(std::mem::replace(&mut entry.ours, ours));
            return;
        }
        self.numbers.insert(what.clone(), self.next);
        let entry = Entry {
            what,
            original,
            ours,
            earlier,
            foreign: false,
        };
        self.in_order.insert(self.next, entry);
        self.next += 1;
    }

    fn failed(&mut self, what: &Setting) {
        let Some(entry) = self.get_mut(what) else {
            return;
        };
        match entry.earlier.take() {
            Some(earlier) => entry.ours = earlier,
            None => self.forget(what),
        }
    }

    fn forget(&mut self, what: &Setting) {
        if let Some(number) = self.numbers.remove(what) {
            self.in_order.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> Setting {
        Setting::CgroupFile {
            path: format!("/g/corewise-x/{name}").into(),
        }
    }

    fn set(name: &str, original: &str, ours: &str) -> Line {
        Line::Set {
            what: file(name),
            original: original.into(),
            ours: ours.into(),
            earlier: None,
        }
    }

    #[test]
    fn the_first_original_and_the_last_two_of_ours_count() {
        let mut entries = Entries::default();
        entries.apply(set("a", "1", "2"));
        entries.apply(set("b", "x", "y"));
        entries.apply(set("a", "2", "3"));
        entries.apply(set("a", "3", "4"));
        let a = entries.get(&file("a")).unwrap();
        assert_eq!((a.original.as_str(), a.ours.as_str()), ("1", "4"));
        assert!(a.is_ours("4") && a.is_ours("3"));
        assert!(!a.is_ours("2") && !a.is_ours("1"));
        let order: Vec<_> = entries.iter().map(|e| e.what.clone()).collect();
        assert_eq!(order, [file("a"), file("b")]);
    }

    #[test]
    fn a_change_that_failed_leaves_the_one_before() {
        let mut entries = Entries::default();
        entries.apply(set("a", "1", "2"));
        for _ in 0..3 {
            entries.apply(set("a", "2", "9"));
            entries.apply(Line::Failed(file("a")));
        }
        assert!(entries.get(&file("a")).unwrap().is_ours("2"));
        let mut entries = Entries::default();
        entries.apply(set("a", "1", "2"));
        entries.apply(Line::Failed(file("a")));
        assert_eq!(entries.len(), 0);
    }

    #[test]
    fn what_is_forgotten_begins_anew() {
        let mut entries = Entries::default();
        entries.apply(set("a", "1", "2"));
        entries.apply(Line::Forget(file("a")));
        entries.apply(Line::Forget(file("a")));
        entries.apply(Line::Failed(file("a")));
        entries.apply(set("a", "5", "6"));
        assert_eq!(entries.get(&file("a")).unwrap().original, "5");
    }

    #[test]
    fn lines_read_back_as_written() {
        for line in [
            set("a", "1", "2"),
            Line::Failed(file("a")),
            Line::Forget(file("b")),
        ] {
            let text = serde_json::to_string(&line).unwrap();
            assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line, "{text}");
        }
    }
}
