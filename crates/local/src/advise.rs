//! From what a user typed to how the program should run: recalled from past runs, found by a search,
//! or, where neither can be had, by rule.

use crate::history::{self, History, Key, MachineKey, Point, ProgramKey, Record};
use crate::load;
use crate::probing::{ProbeError, Prober, most_threads};
use crate::tune::{Limits, Progress, Tuned, tune};
use corewise_decide::profile::Measure;
use corewise_decide::search::bounds::BoundSearch;
use corewise_decide::search::reinforcer::{ThreadReinforcer, Thresholds, range_for_cpus};
use corewise_decide::search::sweep::Sweep;
use corewise_decide::search::unprobed::{self, Past};
use corewise_decide::search::{Choice, Objective, Search, Space, SpaceError, StopReason};
use corewise_decide::setting::{Convert, Setting};
use corewise_launch::command::{Command, LookupError};
use corewise_launch::runtimes::{Applied, Detected, Surroundings, detect_in};
use corewise_launch::sandbox::{self, Sandbox};
use corewise_launch::spool::Spool;
use corewise_launch::template::{Resolved, Template, TemplateError};
use corewise_machine::{EffectiveCpus, Root, effective_cpus};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long to look at the machine before recalling: a recalled result should cost under 50 ms.
const LOOK_BEFORE_RECALL: Duration = Duration::from_millis(30);
/// How much longer before searching.
const LOOK_BEFORE_SEARCH: Duration = Duration::from_millis(70);
/// The part of the search's time that is for windows; the rest is for making and ending probes.
const WINDOWS_PART: f64 = 0.75;
/// How often a sweep runs each setting.
const SWEEP_ROUNDS: u32 = 3;

/// Which search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// [`BoundSearch`].
    #[default]
    Bounds,
    /// [`ThreadReinforcer`].
    ThreadReinforcer,
    /// [`Sweep`].
    Sweep,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Algorithm::Bounds => "bounds",
            Algorithm::ThreadReinforcer => "thread-reinforcer",
            Algorithm::Sweep => "sweep",
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The program.
    pub template: Template,
    /// What a total of threads means as the program's argument.
    pub convert: Convert,
    /// How to search.
    pub algorithm: Algorithm,
    /// What to optimise.
    pub objective: Objective,
    /// Smallest number of threads, where the user has a wish.
    pub min_threads: Option<u32>,
    /// Largest number of threads, where the user has a wish.
    pub max_threads: Option<u32>,
    /// Probe without a sandbox where none can be had.
    pub unsafe_probes: bool,
    /// How long to wait for the program.
    pub limits: Limits,
    /// Time that searching may take, besides the program's own start-ups.
    pub budget: Duration,
    /// Where past results are; `None` for the usual place.
    pub history: Option<PathBuf>,
    /// How much of a piped standard input is kept for probes, in bytes.
    pub stdin_limit: u64,
}

/// Why there is no advice.
#[derive(Debug, thiserror::Error)]
pub enum AdviseError {
    /// The program cannot be found or executed.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// What was typed cannot be used.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The range of numbers is empty.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The machine cannot be read.
    #[error(transparent)]
    Machine(#[from] corewise_machine::Error),
    /// Standard input cannot be kept.
    #[error("standard input cannot be kept for probes: {0}")]
    Stdin(std::io::Error),
    /// The program's file cannot be found or started.
    #[error(transparent)]
    Sandbox(#[from] sandbox::Error),
    /// A probe could not be made, or the program failed in it.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// No sandbox, and no leave to probe without.
    #[error(
        "probes cannot be kept from changing files here: {why}; give --unsafe-probes if running the \
         program several times does no harm"
    )]
    NoSandbox {
        /// What is missing.
        why: String,
    },
    /// The user's own settings leave nothing to search.
    #[error("the number of threads is fixed by {what}: unset it to have it searched")]
    FixedByUser {
        /// The variables and their values.
        what: String,
        /// The number, if they agree on one.
        threads: Option<u32>,
    },
}

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
}

/// Everything known of a program before it runs.
pub struct Advisor {
    request: Request,
    detected: Detected,
    effective: EffectiveCpus,
    surroundings: Surroundings,
    others: f64,
    history: Option<History>,
    key: Option<Key>,
    stdin: Option<Spool>,
    warnings: Vec<String>,
}

impl Advisor {
    /// Looks at the program and at the machine; takes about 35 ms, most of it to see what others use.
    ///
    /// # Errors
    /// When the program cannot be started, or the request cannot be met by any setting.
    pub fn prepare(request: Request) -> Result<Advisor, AdviseError> {
        let effective = effective_cpus(&Root::system(), None)?;
        let mut surroundings = Surroundings::of_this_process(effective.cpus.clone());
        let program = Command::new(&request.template.program)?.program;
        let detected = detect_in(&program, &surroundings.environment);
        let load = load::measure(&effective.cpus, LOOK_BEFORE_RECALL)?;
        // Runtimes that follow affinity are given the idlest CPUs.
        surroundings.cpus = load.idlest_first();
        let others = load.others();
        let mut advisor = Advisor {
            request,
            detected,
            effective,
            surroundings,
            others,
            history: None,
            key: None,
            stdin: None,
            warnings: Vec::new(),
        };
        advisor.space().check()?;
        // Says what to write where there is no way to set the number of threads.
        advisor.resolve(Setting::threads(advisor.space().one_per_cpu()))?;
        advisor.open_history();
        advisor.key = advisor.make_key();
        Ok(advisor)
    }

    /// Things that went wrong without stopping anything.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The effective CPUs that the program has.
    pub fn effective(&self) -> &EffectiveCpus {
        &self.effective
    }

    /// CPUs that others use.
    pub fn others(&self) -> f64 {
        self.others
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
        self.request
            .template
            .resolve(&setting, &self.detected, &self.surroundings)
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

    /// The result of a past search, if there is one that fits.
    pub fn recall(&mut self) -> Option<Advice> {
        let (history, key) = (self.history.as_ref()?, self.key.as_ref()?);
        match history.recall(key) {
            Ok(Some(record)) if record.algorithm == self.request.algorithm.name() => {
                let setting = record.setting();
                let space = self.space();
                let total = space.convert.total_for(setting.threads);
                let in_range = |n| (space.min..=space.max).contains(&n);
                // Thread Reinforcer's range is of totals.
                if !in_range(setting.threads) && !in_range(total) {
                    return None;
                }
                Some(Advice {
                    choice: Choice {
                        setting,
                        stop: stop_from(&record.stop_reason),
                        confidence: record.confidence,
                    },
                    source: Source::Recalled(Box::new(record)),
                })
            }
            Ok(_) => None,
            Err(error) => {
                self.warnings
                    .push(format!("past results cannot be read: {error}"));
                None
            }
        }
    }

    /// Searches, and remembers the result.
    ///
    /// # Errors
    /// Without a sandbox (unless it is waived), when the user's settings leave nothing to search, and
    /// when the program fails in its first probe.
    pub fn tune(&mut self, progress: &mut dyn Progress) -> Result<Advice, AdviseError> {
        let resolved = self.resolve(Setting::threads(self.space().one_per_cpu()))?;
        if resolved.applied.all_fixed_by_user() {
            return Err(fixed_by_user(&resolved.applied));
        }
        let sandbox = self.sandbox()?;
        // Not before: what is read from a pipe must be given to the run by us.
        let stdin = match self.stdin.take() {
            Some(stdin) => stdin,
            None => Spool::capture(self.request.stdin_limit).map_err(AdviseError::Stdin)?,
        };
        self.stdin = Some(stdin);
        self.look_again();
        let mut search = self.search();
        let stdin = self.stdin.get_or_insert_with(Spool::none);
        let mut prober = Prober::new(
            &self.request.template,
            self.detected.clone(),
            &self.surroundings,
            &sandbox,
            stdin,
            self.effective.cpus.clone(),
        );
        let tuned = tune(search.as_mut(), &mut prober, self.request.limits, progress)?;
        self.detected = tuned.detected.clone();
        self.remember(&tuned);
        Ok(Advice {
            choice: tuned.choice.clone(),
            source: Source::Tuned(Box::new(tuned)),
        })
    }

    /// Recalls, else searches, else goes by rule: `run` always has something to go by.
    ///
    /// # Errors
    /// When the program fails in its first probe, the user's own settings leave nothing to choose, or
    /// what was typed cannot be used.
    pub fn advise(&mut self, progress: &mut dyn Progress) -> Result<Advice, AdviseError> {
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
                })
            }
            other => other,
        }
    }

    /// Notes how long the real run took.
    pub fn ran(&mut self, wall_seconds: f64) {
        if let (Some(history), Some(key)) = (self.history.as_mut(), self.key.as_ref())
            && let Err(error) = history.used(key, wall_seconds)
        {
            self.warnings.push(format!("not remembered: {error}"));
        }
    }

    fn space(&self) -> Space {
        let space = Space::for_cpus(self.effective.count);
        let (min, max) = match self.request.algorithm {
            Algorithm::ThreadReinforcer => {
                let (min, _, max) = range_for_cpus(self.effective.count);
                (min, max)
            }
            _ => (space.min, space.max),
        };
        let template = &self.request.template;
        let max = max.min(most_threads(
            template,
            &self.detected,
            self.effective.cpus.len(),
        ));
        // One end given alone moves the other out of its way.
        let (min, max) = match (self.request.min_threads, self.request.max_threads) {
            (None, None) => (min, max),
            (Some(a), None) => (a, max.max(a)),
            (None, Some(b)) => (min.min(b), b),
            (Some(a), Some(b)) => (a, b),
        };
        Space {
            min,
            max,
            others: self.others,
            convert: self.request.convert,
            passive: self.detected.knobs().wait_policy,
            objective: self.request.objective,
            budget_ns: u64::try_from(self.request.budget.mul_f64(WINDOWS_PART).as_nanos())
                .unwrap_or(u64::MAX),
            ..space
        }
    }

    fn search(&self) -> Box<dyn Search> {
        let mut space = self.space();
        match self.request.algorithm {
            Algorithm::Bounds => {
                space.prior = self.past().map(|past| unprobed::prior(&space, &past));
                Box::new(BoundSearch::new(space))
            }
            Algorithm::ThreadReinforcer => {
                let (_, step, _) = range_for_cpus(self.effective.count);
                Box::new(ThreadReinforcer::new(space, step, Thresholds::default()))
            }
            Algorithm::Sweep => {
                let limit = self.request.limits.whole_run.as_nanos();
                let limit = u64::try_from(limit).unwrap_or(u64::MAX);
                Box::new(Sweep::new(space, SWEEP_ROUNDS, limit))
            }
        }
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

    /// A longer look than the one before recalling, while the sensors are made ready.
    fn look_again(&mut self) {
        let load = std::thread::scope(|scope| {
            scope.spawn(corewise_machine::program::prepare);
            load::measure(&self.effective.cpus, LOOK_BEFORE_SEARCH)
        });
        if let Ok(load) = load {
            let (short, long) = (
                LOOK_BEFORE_RECALL.as_secs_f64(),
                LOOK_BEFORE_SEARCH.as_secs_f64(),
            );
            self.others = (self.others * short + load.others() * long) / (short + long);
        }
    }

    fn open_history(&mut self) {
        let opened = match &self.request.history {
            Some(path) => History::open(path),
            None => history::default_path().and_then(|path| History::open(&path)),
        };
        match opened {
            Ok(history) => self.history = Some(history),
            Err(error) => self.warnings.push(format!("no past results: {error}")),
        }
    }

    fn make_key(&self) -> Option<Key> {
        let look = &history::key::on_disk;
        let args = &self.request.template.args;
        let script = self.detected.script.as_deref().or_else(|| {
            let among = self.detected.interpreter;
            among
                .then(|| history::key::script_among(args, look))
                .flatten()
        });
        let program = ProgramKey::of(&self.detected.executable, script).ok()?;
        let bytes = history::key::input_bytes(args, stdin_size(), look);
        Some(Key {
            program,
            shape: history::key::shape(args, &self.request.template.env, look),
            size_class: history::key::size_class(bytes),
            machine: MachineKey::new(
                &corewise_machine::identity::cpu_model(&Root::system()),
                corewise_machine::identity::cpus_online(&Root::system()),
                self.effective.count,
            ),
            load_class: history::key::load_class(self.others),
            objective: match self.request.objective {
                Objective::Speed => "speed",
                Objective::Share => "share",
            }
            .to_owned(),
        })
    }

    fn past(&self) -> Option<Past> {
        let entries = self.history.as_ref()?.similar(self.key.as_ref()?).ok()?;
        let newest = entries.into_iter().next()?;
        Some(Past {
            setting: newest.record.setting(),
            others: f64::from(newest.key.load_class),
            spins: newest.record.spins,
        })
    }

    fn remember(&mut self, tuned: &Tuned) {
        // The load may have been judged better since.
        self.key = self.make_key();
        let (Some(history), Some(key)) = (self.history.as_mut(), &self.key) else {
            return;
        };
        let record = record(tuned);
        if let Err(error) = history.remember(key, &record) {
            self.warnings
                .push(format!("the result is not remembered: {error}"));
        }
    }
}

/// As the history keeps it: the name that JSON has.
fn stop_text(stop: StopReason) -> String {
    serde_json::to_value(stop)
        .ok()
        .and_then(|v| v.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// A reason that another version wrote and this one does not know is as good as any.
fn stop_from(text: &str) -> StopReason {
    serde_json::from_value(text.into()).unwrap_or(StopReason::Bounded)
}

fn fixed_by_user(applied: &Applied) -> AdviseError {
    let fixed: Vec<_> = applied.fixed_by_user.iter().filter(|f| f.threads).collect();
    let mut numbers: Vec<Option<u32>> = fixed.iter().map(|f| f.value.trim().parse().ok()).collect();
    numbers.dedup();
    let what: Vec<String> = fixed
        .iter()
        .map(|f| format!("{}={}", f.variable, f.value))
        .collect();
    AdviseError::FixedByUser {
        what: what.join(", "),
        threads: match numbers[..] {
            [one] => one,
            _ => None,
        },
    }
}

/// The size of standard input in bytes, where it is a file.
fn stdin_size() -> Option<u64> {
    use std::os::fd::AsFd;
    let stat = rustix::fs::fstat(std::io::stdin().as_fd()).ok()?;
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    is_file.then(|| u64::try_from(stat.st_size).unwrap_or(0))
}

/// What is remembered of a search.
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
            lock: Some(p.lock),
            vcx_rate: Some(p.vcx_rate),
            migration_rate: Some(p.migration_rate),
            seconds: Some(p.window_ns as f64 / 1e9),
        })
        .collect();
    Record {
        created_unix_s: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs()),
        chosen_threads: tuned.choice.setting.threads,
        wait_policy: tuned.choice.setting.wait,
        algorithm: tuned.algorithm.clone(),
        confidence: tuned.choice.confidence,
        stop_reason: stop_text(tuned.choice.stop),
        points,
        spins: tuned
            .profiles()
            .any(corewise_decide::profile::Profile::spins),
        search_seconds: tuned.search_seconds(),
        ..Record::default()
    }
}
