//! From what a user typed to how the program should run: recalled from past runs, found by a search,
//! or, where neither can be had, by rule.

mod error;
pub mod later;
mod seen;

pub use error::AdviseError;

use crate::history::{Point, Record};
use crate::live::{self, FoundRegion};
use crate::memory::{Memory, stop_from};
use crate::probing::{ProbeError, Prober, confine, most_threads};
use crate::request::{Algorithm, Request};
use crate::tune::{Progress, Tuned, tune};
use corewise_decide::search::runs::Next;
use corewise_decide::search::unprobed;
use corewise_decide::search::{Choice, Objective, Search, Space, is_denied};
use corewise_decide::setting::Setting;
use corewise_launch::command::Command;
use corewise_launch::runtimes::{Detected, Surroundings, detect_in};
use corewise_launch::sandbox::{self, Sandbox};
use corewise_launch::spool::Spool;
use corewise_launch::template::{Resolved, TemplateError};
use corewise_machine::{EffectiveCpus, Root, effective_cpus};
use error::fixed_by_user;
use seen::Seen;

/// Below so many CPUs used by others a machine is as good as idle.
const QUIET: f64 = 0.2;

/// Where advice comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A past search of the same program on like input, beside a like load.
    Recalled(Box<Record>),
    /// A search made now.
    Tuned(Box<Tuned>),
    /// Rules, because of this.
    Rule(String),
}

/// How to run the program.
#[derive(Clone, Debug)]
pub struct Advice {
    /// The setting.
    pub choice: Choice,
    /// Where it comes from.
    pub source: Source,
    /// What whole runs before this one say of the number of threads; `None` where they are not timed
    /// ([`Advisor::go_by_whole_runs`]).
    pub next: Option<Next>,
}

/// Everything known of a program before it runs.
pub struct Advisor {
    request: Request,
    detected: Detected,
    effective: EffectiveCpus,
    surroundings: Surroundings,
    /// What others use; `None`: nobody has looked.
    seen: Option<Seen>,
    memory: Memory,
    stdin: Option<Spool>,
}

impl Advisor {
    /// Looks at the program and at the CPUs that it may use; takes some milliseconds. What others use is looked
    /// at where something depends on it.
    ///
    /// # Errors
    /// When the program cannot be started, or the request cannot be met by any setting.
    pub fn prepare(request: Request) -> Result<Advisor, AdviseError> {
        let effective = effective_cpus(&Root::system(), None)?;
        let surroundings = Surroundings::of_this_process(effective.cpus.clone());
        let program = Command::new(&request.template.program)?.program;
        let detected = detect_in(&program, &surroundings.environment);
        request
            .space(&detected, &effective, 0.0, effective.count)
            .check()?;
        let memory = Memory::open(&request);
        let mut advisor = Advisor {
            request,
            detected,
            effective,
            surroundings,
            seen: None,
            memory,
            stdin: None,
        };
        // Says what to write where there is no way to set the number of threads.
        if !advisor.request.untuned {
            advisor.resolve(Setting::threads(advisor.one_per_cpu()))?;
        }
        advisor.set_key();
        Ok(advisor)
    }

    /// Looks at what others use, unless that is known: 30 ms.
    fn look(&mut self) {
        if self.seen.is_some() {
            return;
        }
        match Seen::look(&self.effective) {
            Ok((seen, idlest_first)) => {
                // Runtimes that follow affinity are given the idlest CPUs.
                self.surroundings.cpus = idlest_first;
                self.seen = Some(seen);
                self.set_key();
            }
            // The program can run without.
            Err(error) => self
                .memory
                .warn(format!("what others use is not known: {error}")),
        }
    }

    /// Looks for longer at what others use: 70 ms more, once.
    fn look_longer(&mut self) {
        if let Some(seen) = &mut self.seen {
            seen.look_longer(&self.effective);
            self.set_key();
        }
    }

    /// Things that went wrong without stopping anything.
    pub fn warnings(&self) -> &[String] {
        self.memory.warnings()
    }

    /// The effective CPUs that the program has.
    pub fn effective(&self) -> &EffectiveCpus {
        &self.effective
    }

    /// CPUs that others use; `None` where nothing depended on it, and nobody has looked.
    pub fn others(&self) -> Option<f64> {
        self.seen.as_ref().map(|seen| seen.others)
    }

    /// What is known of the program's runtimes.
    pub fn detected(&self) -> &Detected {
        &self.detected
    }

    /// What was taken from standard input for probes: the real run must be given it back.
    pub fn stdin(&self) -> Option<&Spool> {
        self.stdin.as_ref()
    }

    /// One thread for each effective CPU: what most programs take unasked.
    pub fn one_per_cpu(&self) -> u32 {
        self.space().one_per_cpu()
    }

    /// The command for `setting`.
    ///
    /// # Errors
    /// When there is no way to set the number of threads.
    pub fn resolve(&self, setting: Setting) -> Result<Resolved, TemplateError> {
        let template = &self.request.template;
        let mut resolved = template.resolve(&setting, &self.detected, &self.surroundings)?;
        confine(&mut resolved.command, self.idle_cpus().as_deref());
        let cpus = self.effective.cpus.len();
        // Without a quota, one thread for each CPU is what they take.
        if setting.threads as usize == cpus && self.effective.count >= cpus as f64 {
            resolved.leave_to_itself();
        }
        Ok(resolved)
    }

    /// The setting to start a program with whose runtimes follow its claim: where others used the machine
    /// when `setting` was found, the program may grow when they are gone, up to one thread for each CPU.
    pub fn room_to_grow(&self, setting: Setting) -> Setting {
        match self.others().is_some_and(|others| others > QUIET) {
            true => Setting {
                threads: setting.threads.max(self.one_per_cpu()),
                ..setting
            },
            false => setting,
        }
    }

    /// The command as plain Linux would run it.
    ///
    /// # Errors
    /// When a placeholder needs a number: then one for each CPU is written.
    pub fn plain(&self) -> Result<Command, TemplateError> {
        if self.request.template.has_placeholder() {
            let resolved = self.resolve(Setting::threads(self.one_per_cpu()))?;
            return Ok(resolved.command);
        }
        self.request.template.unchanged()
    }

    /// The result of a past search beside a like load, if there is one that fits.
    fn recall(&mut self) -> Option<Advice> {
        self.look();
        let record = self.memory.recall()?;
        let space = self.space();
        // It was found beside neighbours of our own scheduling group, perhaps, or where the kernel did not give
        // the group its share.
        let denied = |p: &Point| p.used().is_some_and(|used| is_denied(space.fair, &used));
        let most = match record.points.iter().any(denied) {
            true => u32::MAX,
            false => space.most_by_group().unwrap_or(u32::MAX),
        };
        let advice = self.recalled(record)?;
        (advice.choice.setting.threads <= most).then_some(advice)
    }

    /// What was found on the idle machine, for a program that `follows` its claim while it runs: what others
    /// leave to it is then told by the claim, from moment to moment, and a search beside them would only find
    /// out what they leave now.
    fn recall_from_idle(&mut self, follows: &dyn Fn(&Detected) -> bool) -> Option<Advice> {
        let record = self.memory.recall_from_idle()?;
        if !follows(record.detected.as_ref().unwrap_or(&self.detected)) {
            return None;
        }
        self.recalled(record)
    }

    fn recalled(&mut self, record: Record) -> Option<Advice> {
        let setting = record.setting();
        let space = self.space();
        let in_range = |n| (space.min..=space.max).contains(&n);
        // Thread Reinforcer's range is of totals.
        let fits = in_range(setting.threads) || in_range(space.convert.total_for(setting.threads));
        if record.algorithm != self.request.algorithm.name() || !fits {
            return None;
        }
        if let Some(detected) = &record.detected {
            // The probes saw more than can be seen before the program runs.
            self.detected = detected.clone();
        }
        Some(Advice {
            choice: Choice {
                setting,
                stop: stop_from(&record.stop_reason),
                confidence: record.confidence,
            },
            source: Source::Recalled(Box::new(record)),
            next: None,
        })
    }

    /// Searches, and remembers the result.
    ///
    /// # Errors
    /// Without a sandbox (unless it is waived), when the user's settings leave nothing to search, when the
    /// program fails in its first probe, and when a probe shows that there is no way to set the number of
    /// its threads.
    pub fn tune(&mut self, progress: &mut dyn Progress) -> Result<Advice, AdviseError> {
        self.look();
        self.check_free()?;
        let make = |advisor: &Advisor| {
            let past = advisor.memory.past();
            advisor.request.search(advisor.space(), past)
        };
        let tuned = self.host(&make, progress)?;
        // What is free while others are at work is no answer to what is fast.
        if self.request.algorithm != Algorithm::Calibration {
            self.memory.remember(&tuned);
        }
        Ok(Advice {
            choice: tuned.choice.clone(),
            source: Source::Tuned(Box::new(tuned)),
            next: None,
        })
    }

    /// Has the probes made that the search asks for.
    fn host(
        &mut self,
        make: &dyn Fn(&Advisor) -> Box<dyn Search>,
        progress: &mut dyn Progress,
    ) -> Result<Tuned, AdviseError> {
        let sandbox = self.sandbox()?;
        // Not before: what is read from a pipe must be given to the run by us.
        let stdin = match self.stdin.take() {
            Some(stdin) => stdin,
            None => Spool::capture(self.request.stdin_limit).map_err(AdviseError::Stdin)?,
        };
        self.look_longer();
        let mut search = make(self);
        let within = self.idle_cpus();
        let stdin = self.stdin.insert(stdin);
        let mut prober = Prober::new(
            &self.request.template,
            self.detected.clone(),
            &self.surroundings,
            &sandbox,
            stdin,
            self.effective.cpus.clone(),
        )
        .within(within);
        let tuned = tune(search.as_mut(), &mut prober, self.request.limits, progress);
        self.detected = prober.detected().clone();
        if let Err(error @ ProbeError::ProgramFailed { .. }) = tuned {
            return Err(error.into());
        }
        // What the program loaded may have shown that it cannot be told a number: then nothing was found.
        let told = self.resolve(Setting::threads(self.one_per_cpu()));
        if let Err(error @ TemplateError::NoKnob { .. }) = told {
            self.memory.remember_no_knob(&self.detected);
            return Err(error.into());
        }
        Ok(tuned?)
    }

    /// Recalls, else searches, else goes by rule: `run` always has something to go by. `follows` says whether
    /// a program with these runtimes will follow a claim while it runs.
    ///
    /// # Errors
    /// When the program fails in its first probe, the user's own settings leave nothing to choose, or
    /// what was typed cannot be used.
    pub fn advise(
        &mut self,
        progress: &mut dyn Progress,
        follows: &dyn Fn(&Detected) -> bool,
    ) -> Result<Advice, AdviseError> {
        self.check_free()?;
        self.check_knob()?;
        let recalled = self.recall_from_idle(follows).or_else(|| self.recall());
        if let Some(recalled) = recalled {
            return Ok(recalled);
        }
        // What a moment showed of the load may have been chance; a search costs much more than a longer look.
        self.look_longer();
        match self.recall() {
            Some(recalled) => Ok(recalled),
            None => self.tune_or_rule(progress),
        }
    }

    /// Searches, else goes by rule.
    ///
    /// # Errors
    /// As [`Advisor::advise`].
    pub fn tune_or_rule(&mut self, progress: &mut dyn Progress) -> Result<Advice, AdviseError> {
        match self.tune(progress) {
            Err(error @ AdviseError::NoSandbox { .. }) => {
                let may_spin = self.detected.knobs().wait_policy;
                Ok(Advice {
                    choice: unprobed::choice(&self.space(), may_spin),
                    source: Source::Rule(error.to_string()),
                    next: None,
                })
            }
            other => other,
        }
    }

    /// What an earlier `corewise run --live` has found for the program's regions.
    pub fn known_regions(&mut self) -> Vec<FoundRegion> {
        self.memory.recall_regions()
    }

    /// Keeps what was found for the program's regions while it ran for so long.
    pub fn found_regions(&mut self, tuned: &live::Tuned, wall_seconds: f64) {
        let threads = self.one_per_cpu();
        self.memory.remember_regions(tuned, threads, wall_seconds);
    }

    /// The largest number of threads that the program can be given.
    fn most_threads(&self) -> u32 {
        let cpus = self.effective.cpus.len();
        most_threads(&self.request.template, &self.detected, cpus)
    }

    fn space(&self) -> Space {
        let seen = self.seen.as_ref();
        let (others, fair) =
            seen.map_or((0.0, self.effective.count), |seen| (seen.others, seen.fair));
        self.request
            .space(&self.detected, &self.effective, others, fair)
    }

    /// The CPUs that the program is confined to, where it is to use only idle ones.
    fn idle_cpus(&self) -> Option<Vec<u32>> {
        let seen = self.seen.as_ref()?;
        (self.request.objective == Objective::Share).then(|| seen.idle.clone())
    }

    fn set_key(&mut self) {
        let others = self.others().unwrap_or(0.0);
        self.memory
            .look_for(&self.request, &self.detected, &self.effective, others);
    }

    /// Whether an earlier probe has shown that the program cannot be told a number of threads. That does not
    /// depend on what else runs.
    fn check_knob(&mut self) -> Result<(), AdviseError> {
        let Some(detected) = self.memory.recall_no_knob() else {
            return Ok(());
        };
        let before = std::mem::replace(&mut self.detected, detected);
        match self.resolve(Setting::threads(self.one_per_cpu())) {
            Err(error @ TemplateError::NoKnob { .. }) => Err(error.into()),
            // This version knows better.
            _ => {
                self.detected = before;
                Ok(())
            }
        }
    }

    /// Whether the user's own settings leave anything to choose.
    fn check_free(&self) -> Result<(), AdviseError> {
        if self.request.untuned {
            return Err(AdviseError::Untuned);
        }
        let resolved = self.resolve(Setting::threads(self.one_per_cpu()))?;
        if resolved.applied.all_fixed_by_user() {
            return Err(fixed_by_user(&resolved.applied));
        }
        Ok(())
    }

    fn sandbox(&self) -> Result<Sandbox, AdviseError> {
        match Sandbox::prepare() {
            Ok(sandbox) => Ok(sandbox),
            Err(sandbox::Error::Unavailable { .. }) if self.request.unsafe_probes => {
                Ok(Sandbox::none()?)
            }
            Err(sandbox::Error::Unavailable { why }) => Err(AdviseError::NoSandbox { why }),
            Err(error) => Err(error.into()),
        }
    }
}
