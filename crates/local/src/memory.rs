//! What is kept of a search, and under which key: between [`crate::tune`] and [`crate::history`].

mod whole;

use crate::history::{self, History, Key, MachineKey, Point, ProgramKey, Record};
use crate::live;
use crate::request::Request;
use crate::tune::Tuned;
use corewise_decide::profile::{Measure, Profile};
use corewise_decide::search::unprobed::Past;
use corewise_decide::search::{Objective, StopReason};
use corewise_launch::runtimes::Detected;
use corewise_machine::{EffectiveCpus, Root, identity};
use std::os::fd::AsFd;
use std::time::{SystemTime, UNIX_EPOCH};

/// The objective of most searches.
const SPEED: &str = "speed";

/// What stands in the place of an objective for what `corewise run --live` finds: other results are not
/// to be mixed up with it.
const LIVE: &str = "live";

/// The same for what could not be searched: a program that a probe has shown to take no number of threads.
const NO_KNOB: &str = "no-knob";

/// Within so many CPUs of a class of load, its results hold, too, where the nearest class has none. (That class is
/// within half a CPU.)
const NEAR: f64 = 0.75;

/// The history of one program under one condition. Whatever goes wrong with it is a warning: no
/// program is kept from running for it.
pub(crate) struct Memory {
    history: Option<History>,
    key: Option<Key>,
    /// CPUs that others use, before they became a class of the key.
    others: f64,
    /// What this very run works on.
    work: String,
    warnings: Vec<String>,
}

impl Memory {
    /// Opens the history that `request` names. Until [`Memory::look_for`] is called, it recalls
    /// nothing.
    pub(crate) fn open(request: &Request) -> Memory {
        let opened = match &request.history {
            Some(path) => History::open(path),
            None => history::default_path().and_then(|path| History::open(&path)),
        };
        let mut memory = Memory {
            history: None,
            key: None,
            others: 0.0,
            work: String::new(),
            warnings: Vec::new(),
        };
        match opened {
            Ok(history) => {
                memory
                    .warnings
                    .extend(history.notice().map(ToString::to_string));
                memory.history = Some(history);
            }
            Err(error) => memory.warn(format!("no past results: {error}")),
        }
        memory
    }

    /// Sets the key: the program that `detected` describes, `request`'s arguments, `effective` CPUs
    /// of which others use `others`.
    pub(crate) fn look_for(
        &mut self,
        request: &Request,
        detected: &Detected,
        effective: &EffectiveCpus,
        others: f64,
    ) {
        let look = &history::key::on_disk;
        let args = &request.template.args;
        // Of `python3 train.py` the script is train.py, even where python3 is itself a script.
        let script = match detected.interpreter {
            true => history::key::script_among(args, look),
            false => None,
        };
        let script = script.or(detected.script.as_deref());
        let bytes = history::key::input_bytes(args, stdin_size(), look);
        let root = Root::system();
        self.others = others;
        self.work = history::whole::work(args, &request.template.env, bytes);
        self.key = ProgramKey::of(&detected.executable, script)
            .ok()
            .map(|program| Key {
                program,
                shape: history::key::shape(args, &request.template.env, look),
                size_class: history::key::size_class(bytes),
                machine: MachineKey::new(
                    &identity::cpu_model(&root),
                    identity::cpus_online(&root),
                    effective.count,
                ),
                load_class: history::key::load_class(others),
                objective: match request.objective {
                    Objective::Speed => SPEED,
                    Objective::Share => "share",
                }
                .to_owned(),
            });
    }

    /// What went wrong so far.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The result for the key; else, where what others use lies near the border to the next class of load, that
    /// class's, whose key it goes on with: the same neighbour is seen now on this side of the border and now on
    /// that, and a search for each would find the same. An idle machine's class is not taken for a busy one's,
    /// nor the other way round.
    pub(crate) fn recall(&mut self) -> Option<Record> {
        let key = self.key.clone()?;
        let recalled = self.recall_for(&key);
        if recalled.is_some() {
            return recalled;
        }
        let class = key.load_class;
        let next = match self.others >= f64::from(class) {
            true => class + 1,
            false => class.saturating_sub(1),
        };
        if class == 0 || next == 0 || (self.others - f64::from(next)).abs() > NEAR {
            return None;
        }
        let key = Key {
            load_class: next,
            ..key
        };
        let recalled = self.recall_for(&key)?;
        self.key = Some(key);
        Some(recalled)
    }

    /// The result for the same on the idle machine.
    pub(crate) fn recall_from_idle(&mut self) -> Option<Record> {
        let key = Key {
            load_class: 0,
            ..self.key.clone()?
        };
        self.recall_for(&key)
    }

    fn recall_for(&mut self, key: &Key) -> Option<Record> {
        match self.history.as_ref()?.recall(key) {
            Ok(record) => record,
            Err(error) => {
                self.warn(format!("past results cannot be read: {error}"));
                None
            }
        }
    }

    /// The nearest result of the same program under another load or with another size of input.
    pub(crate) fn past(&self) -> Option<Past> {
        let entries = self.history.as_ref()?.similar(self.key.as_ref()?).ok()?;
        let mut probed = entries
            .into_iter()
            .filter(|e| e.key.objective != LIVE && e.key.objective != NO_KNOB);
        let nearest = probed.next()?;
        Some(Past {
            setting: nearest.record.setting(),
            others: f64::from(nearest.key.load_class),
            spins: nearest.record.spins,
        })
    }

    /// What an earlier probe has seen of a program that takes no number of threads.
    pub(crate) fn recall_no_knob(&mut self) -> Option<Detected> {
        let key = self.no_knob_key()?;
        self.recall_for(&key)?.detected
    }

    /// Keeps that a probe has seen `detected`, and that nothing of it takes a number of threads: it need not be
    /// probed again.
    pub(crate) fn remember_no_knob(&mut self, detected: &Detected) {
        let record = Record {
            created_unix_s: now_unix_s(),
            chosen_threads: 0,
            algorithm: NO_KNOB.to_owned(),
            stop_reason: "its number of threads cannot be set".to_owned(),
            detected: Some(detected.clone()),
            ..Record::default()
        };
        if let Some(key) = self.no_knob_key() {
            self.remember_for(&key, &record);
        }
    }

    /// What others use makes no difference to it.
    fn no_knob_key(&self) -> Option<Key> {
        Some(Key {
            objective: NO_KNOB.to_owned(),
            load_class: 0,
            ..self.key.clone()?
        })
    }

    /// What was found for the program's regions while it ran.
    pub(crate) fn recall_regions(&mut self) -> Vec<live::FoundRegion> {
        let (Some(history), Some(key)) = (&self.history, self.live_key()) else {
            return Vec::new();
        };
        match history.recall(&key) {
            Ok(record) => record.unwrap_or_default().regions,
            Err(error) => {
                self.warn(format!("past results cannot be read: {error}"));
                Vec::new()
            }
        }
    }

    /// Keeps what was found for the program's regions while it ran, with up to `threads` threads.
    pub(crate) fn remember_regions(
        &mut self,
        tuned: &live::Tuned,
        threads: u32,
        wall_seconds: f64,
    ) {
        let (Some(key), Some(history)) = (self.live_key(), self.history.as_mut()) else {
            return;
        };
        let before = history.recall(&key).ok().flatten();
        let record = Record {
            created_unix_s: now_unix_s(),
            chosen_threads: threads,
            algorithm: LIVE.to_owned(),
            confidence: 1.0,
            stop_reason: "regions searched while it ran".to_owned(),
            search_seconds: tuned.searching_seconds,
            regions: tuned.found.clone(),
            uses: before.map_or(0, |record| record.uses + 1),
            last_wall_seconds: Some(wall_seconds),
            ..Record::default()
        };
        if let Err(error) = history.remember(&key, &record) {
            self.warn(format!("what was found is not remembered: {error}"));
        }
    }

    fn live_key(&self) -> Option<Key> {
        Some(Key {
            objective: LIVE.to_owned(),
            ..self.key.clone()?
        })
    }

    /// Keeps a result under the key.
    pub(crate) fn remember(&mut self, tuned: &Tuned) {
        if let Some(key) = self.key.clone() {
            self.remember_for(&key, &record(tuned));
        }
    }

    fn remember_for(&mut self, key: &Key, record: &Record) {
        let Some(history) = self.history.as_mut() else {
            return;
        };
        if let Err(error) = history.remember(key, record) {
            self.warn(format!("the result is not remembered: {error}"));
        }
    }

    /// Notes that a run used the result.
    pub(crate) fn used(&mut self, wall_seconds: f64) {
        let (Some(history), Some(key)) = (self.history.as_mut(), &self.key) else {
            return;
        };
        if let Err(error) = history.used(key, wall_seconds) {
            self.warn(format!("the run is not remembered: {error}"));
        }
    }

    /// Adds something that went wrong without stopping anything.
    pub(crate) fn warn(&mut self, text: String) {
        self.warnings.push(text);
    }
}

/// What is kept of a search.
pub fn record(tuned: &Tuned) -> Record {
    let measure = Measure::common(tuned.profiles());
    let points = tuned
        .profiles()
        .map(|p| Point {
            threads: p.setting.threads,
            wait_policy: p.setting.wait,
            speed: measure.speed(p),
            spin: p.spin.map(|s| s / p.cpu_util.max(1e-9)),
            cpu_util: Some(p.cpu_util),
            cpu_wait: Some(p.cpu_wait),
            idle: Some(p.idle),
            lock: Some(p.lock),
            vcx_rate: Some(p.vcx_rate),
            migration_rate: Some(p.migration_rate),
            seconds: Some(p.window_ns as f64 / 1e9),
        })
        .collect();
    Record {
        created_unix_s: now_unix_s(),
        chosen_threads: tuned.choice.setting.threads,
        wait_policy: tuned.choice.setting.wait,
        algorithm: tuned.algorithm.clone(),
        confidence: tuned.choice.confidence,
        stop_reason: stop_text(tuned.choice.stop),
        points,
        spins: tuned.profiles().any(Profile::spins),
        search_seconds: tuned.search_seconds(),
        total_seconds: Some(tuned.total_seconds),
        detected: Some(tuned.detected.clone()),
        ..Record::default()
    }
}

fn now_unix_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |d| d.as_secs())
}

/// As the history keeps it: the name that JSON has.
fn stop_text(stop: StopReason) -> String {
    serde_json::to_value(stop)
        .ok()
        .and_then(|v| v.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// A reason that another version wrote and this one does not know is as good as any.
pub(crate) fn stop_from(text: &str) -> StopReason {
    serde_json::from_value(text.into()).unwrap_or(StopReason::Bounded)
}

/// The size of standard input in bytes, where it is a file.
fn stdin_size() -> Option<u64> {
    let stat = rustix::fs::fstat(std::io::stdin().as_fd()).ok()?;
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    is_file.then(|| u64::try_from(stat.st_size).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_read_as_it_was_written_and_an_unknown_one_is_no_error() {
        assert_eq!(
            stop_from(&stop_text(StopReason::NeverParallel)),
            StopReason::NeverParallel
        );
        assert_eq!(stop_from("from another version"), StopReason::Bounded);
    }

    /// The memory of a made program in `folder`, beside others that use a CPU.
    fn beside_others(folder: &std::path::Path) -> Memory {
        let program = folder.join("program");
        std::fs::write(&program, "x").unwrap();
        Memory {
            history: Some(History::open(&folder.join("history")).unwrap()),
            key: Some(Key {
                program: ProgramKey::of(&program, None).unwrap(),
                shape: "-n 1".to_owned(),
                size_class: 3,
                machine: MachineKey::new("a model", 2, 2.0),
                load_class: 1,
                objective: "speed".to_owned(),
            }),
            others: 1.0,
            work: "a".to_owned(),
            warnings: Vec::new(),
        }
    }

    #[test]
    fn what_was_found_beside_a_like_load_is_recalled_on_both_sides_of_the_classes_border() {
        let folder = tempfile::tempdir().unwrap();
        let mut memory = beside_others(folder.path());
        let see = |others: f64, memory: &mut Memory| {
            memory.others = others;
            memory.key.as_mut().unwrap().load_class = history::key::load_class(others);
        };
        let found = |threads| Record {
            chosen_threads: threads,
            ..Record::default()
        };
        see(1.9, &mut memory);
        memory.remember_for(&memory.key.clone().unwrap(), &found(2));
        see(1.4, &mut memory);
        assert_eq!(memory.recall().unwrap().chosen_threads, 2);
        see(1.1, &mut memory);
        assert_eq!(memory.recall(), None, "a load of one is not one of two");
        memory.remember_for(&memory.key.clone().unwrap(), &found(1));
        see(1.4, &mut memory);
        assert_eq!(
            memory.recall().unwrap().chosen_threads,
            1,
            "its own class first"
        );
        see(0.4, &mut memory);
        assert_eq!(memory.recall(), None, "idle is not busy");
    }

    #[test]
    fn what_was_found_on_the_idle_machine_does_not_stand_for_a_little_load() {
        let folder = tempfile::tempdir().unwrap();
        let mut memory = beside_others(folder.path());
        let idle = Key {
            load_class: 0,
            ..memory.key.clone().unwrap()
        };
        memory.remember_for(&idle, &Record::default());
        memory.others = 0.6;
        assert_eq!(memory.recall(), None);
    }

    #[test]
    fn that_a_program_takes_no_number_is_remembered_whatever_else_runs_and_is_no_result() {
        let folder = tempfile::tempdir().unwrap();
        let mut memory = beside_others(folder.path());
        assert_eq!(memory.recall_no_knob(), None);
        let detected = Detected {
            probed: true,
            ..Detected::default()
        };
        memory.remember_no_knob(&detected);
        memory.key.as_mut().unwrap().load_class = 0;
        assert_eq!(memory.recall_no_knob(), Some(detected));
        assert_eq!(memory.recall(), None);
        assert!(memory.past().is_none());
        assert!(memory.warnings.is_empty());
    }

    #[test]
    fn what_was_found_on_the_idle_machine_is_recalled_apart_from_what_fits_the_load() {
        let folder = tempfile::tempdir().unwrap();
        let mut memory = beside_others(folder.path());
        let idle = Key {
            load_class: 0,
            ..memory.key.clone().unwrap()
        };
        let found = Record {
            chosen_threads: 2,
            ..Record::default()
        };
        memory.remember_for(&idle, &found);
        assert_eq!(memory.recall(), None);
        let recalled = memory.recall_from_idle().unwrap();
        assert_eq!(recalled.chosen_threads, 2);
        assert!(memory.warnings.is_empty());
    }
}
