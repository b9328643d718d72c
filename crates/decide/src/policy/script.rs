//! Script policies: a policy as one file that an administrator writes, tries and loads.
//!
//! The language is [Rhai](https://rhai.rs), because it is Rust throughout and has limits on everything
//! that a script can use up. A script has a function for each event that it wants to hear of; docs/policies.md
//! shows how to write one. What a script can do is bounded:
//!
//! - it reaches no file, clock, variable of the environment or other script: its only inputs are the
//!   event, the status and what it kept itself, so the same inputs give the same orders;
//! - an event may take [`MAX_OPERATIONS`] operations: the limit in time, which needs no clock and so
//!   falls at the same place in every replay;
//! - data, variables and calls are bounded (see [`engine`](self)), and so is memory.
//!
//! An event either happens or it does not: when the script fails, or exceeds a limit, nothing of what
//! it ordered is done, what it kept is as before, and a note with the line goes to the journal. The
//! checks of [`crate::global`] see to it that programs have claims nevertheless.

use crate::policy::memory::Memory;
use crate::policy::{Decides, Event, Order, Orders, Policy};
use crate::status::{LocalRule, ProgramId, Request, Status};
use rhai::{AST, CallFnOptions, Dynamic, Engine, Scope};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

mod data;
mod desk;
mod engine;
mod error;
mod functions;
mod kept;
mod objects;
mod rehearsal;
mod state;

pub use engine::{
    MAX_ARRAY, MAX_CALLS, MAX_DEPTH, MAX_MAP, MAX_NAME, MAX_OPERATIONS, MAX_ORDERS, MAX_STRING,
    MAX_VARIABLES,
};
pub use error::{ScriptError, ScriptErrorKind};
pub use kept::Kept;
pub use rehearsal::{Rehearsal, played, rehearse};

use desk::SharedDesk;
use objects::{ClaimView, ProgramView};

/// The longest script, in bytes.
pub const MAX_TEXT: usize = 256 * 1024;

/// The time between readings where the script does not say, in nanoseconds.
pub const USUAL_PERIOD_NS: u64 = 1_000_000_000;

/// The functions that a script may have for events, and how many arguments each takes.
const HOOKS: [(&str, usize); 10] = [
    ("on_machine", 0),
    ("on_joined", 1),
    ("on_asked", 1),
    ("on_threads", 3),
    ("on_answered", 3),
    ("on_left", 2),
    ("on_readings", 0),
    ("on_overridden", 1),
    ("on_failed", 1),
    ("on_event", 1),
];

/// The other functions that are called by their names, all without arguments.
const SETTINGS: [&str; 3] = ["name", "local_rule", "period_ms"];

/// How many failures a [`Report`] keeps.
const KEPT_FAILURES: usize = 100;

/// What running a script has shown so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The most operations that one event took; at most one more than [`MAX_OPERATIONS`].
    pub most_operations: u64,
    /// The first errors of running, at most 100 of them.
    pub failures: Vec<ScriptError>,
}

/// What a script may set, and judge by, by the names that stand in it.
fn decides(text: &str) -> Decides {
    Decides {
        own_cpus: text.contains("grant_alone") || text.contains("share_out"),
        prefetchers: text.contains("set_prefetchers"),
        frequencies: text.contains("set_frequency_mhz"),
        duty_cycles: text.contains("set_duty_cycle"),
        instructions: text.contains(".instructions"),
    }
}

/// A policy that a script is.
pub struct ScriptPolicy {
    name: String,
    file: String,
    rule: LocalRule,
    decides: Decides,
    wants_heat: bool,
    engine: Engine,
    ast: AST,
    /// The script's functions that are called by name, and the lines where they begin.
    has: BTreeMap<String, Option<usize>>,
    desk: SharedDesk,
    period_ns: Option<u64>,
    report: Arc<Mutex<Report>>,
    /// The last failure, and how often it came one after the other.
    repeated: (String, u64),
}

impl ScriptPolicy {
    /// Reads a script. `file_name` is how errors name it, and without its folder and ending the
    /// policy's name unless the script says another.
    ///
    /// # Errors
    /// [`ScriptError`] with the place in the text: what is not Rhai, a name that nobody has defined, a
    /// function that looks like an event's but is none, or a top level that fails.
    pub fn new(text: &str, file_name: &str) -> Result<ScriptPolicy, ScriptError> {
        guarded(file_name, || ScriptPolicy::read(text, file_name))?
    }

    fn read(text: &str, file: &str) -> Result<ScriptPolicy, ScriptError> {
        if text.len() > MAX_TEXT {
            return Err(ScriptError::new(
                ScriptErrorKind::Limit,
                file,
                format!("the script is longer than {MAX_TEXT} bytes"),
            ));
        }
        let desk = SharedDesk::new(0);
        let mut engine = engine::sandbox(&desk);
        let loose = engine
            .compile(text)
            .map_err(|e| ScriptError::parsing(file, &e))?;
        // The top level is run once, for its constants.
        let mut scope = Scope::new();
        engine
            .run_ast_with_scope(&mut scope, &loose)
            .map_err(|e| ScriptError::running(file, "the top level", *e))?;
        for (name, constant, value) in scope.iter() {
            if !constant {
                let what = format!(
                    "functions do not see `let {name}` of the top level: make it a `const`, or keep \
                     it as `state.{name}`"
                );
                return Err(ScriptError::at_text(
                    file,
                    text,
                    &format!("let {name}"),
                    what,
                ));
            }
            desk.lock().constants.insert(name.to_owned(), value);
        }
        // A second time, now that all names are known: one that nobody defined is an error at once,
        // not in the night when its line is first reached.
        let mut known = scope;
        for name in desk::GLOBALS {
            known.push_constant(name, ());
        }
        engine.set_strict_variables(true);
        let ast = engine
            .compile_with_scope(&known, text)
            .map_err(|e| ScriptError::parsing(file, &e))?;
        let has = called_by_name(&ast, file, text)?;
        let mut policy = ScriptPolicy {
            name: stem(file),
            file: file.to_owned(),
            rule: LocalRule::Whole,
            decides: decides(text),
            wants_heat: text.contains(".temperature"),
            engine,
            ast: ast.clone_functions_only(),
            has,
            desk,
            period_ns: Some(USUAL_PERIOD_NS),
            report: Arc::default(),
            repeated: (String::new(), 0),
        };
        policy.name = policy.said_name()?;
        policy.rule = policy.said_rule()?;
        Ok(policy)
    }

    /// Starts `permute` elsewhere in its sequence, so that managers need not all begin with the same
    /// program. Without it, it always starts at the same place.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> ScriptPolicy {
        self.desk.lock().random = fastrand::Rng::with_seed(seed);
        self
    }

    /// Goes on where another one of the same text was.
    pub(crate) fn with_kept(self, kept: Kept) -> ScriptPolicy {
        let mut desk = self.desk.lock();
        desk.state = kept.state();
        desk.random = kept.random;
        drop(desk);
        ScriptPolicy {
            period_ns: kept.period_ns,
            repeated: kept.repeated,
            ..self
        }
    }

    /// What has been seen of the script so far. It stays up to date while a manager has the policy.
    pub fn report(&self) -> Arc<Mutex<Report>> {
        Arc::clone(&self.report)
    }

    fn said_name(&self) -> Result<String, ScriptError> {
        if !self.has.contains_key("name") {
            return Ok(self.name.clone());
        }
        let said = self.call("name", Vec::new())?;
        said.into_string()
            .map_err(|kind| self.wrong("name", format!("it gave a {kind}, not a text")))
    }

    fn said_rule(&self) -> Result<LocalRule, ScriptError> {
        if !self.has.contains_key("local_rule") {
            return Ok(LocalRule::Whole);
        }
        let said = self.call("local_rule", Vec::new())?;
        match said.to_string().as_str() {
            "leave" => Ok(LocalRule::Leave),
            "whole" => Ok(LocalRule::Whole),
            "one-each" => Ok(LocalRule::OneEach),
            other => {
                let what =
                    format!("it gave `{other}`: it must give \"leave\", \"whole\" or \"one-each\"");
                Err(self.wrong("local_rule", what))
            }
        }
    }

    /// What a function gave or left is wrong.
    fn wrong(&self, function: &str, what: String) -> ScriptError {
        let begins = self.has.get(function).copied().flatten();
        ScriptError::new(ScriptErrorKind::Run, &self.file, what)
            .within(function)
            .or_line(begins)
    }

    /// Calls a function of the script, and counts its operations.
    fn call(&self, function: &str, arguments: Vec<Dynamic>) -> Result<Dynamic, ScriptError> {
        self.desk.lock().operations.reset();
        let options = CallFnOptions::new().eval_ast(false);
        let mut scope = Scope::new();
        let result: Result<Dynamic, _> = self
            .engine
            .call_fn_with_options(options, &mut scope, &self.ast, function, arguments);
        let used = self.desk.lock().operations.used();
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.most_operations = report.most_operations.max(used);
        drop(report);
        let exceeded = self.desk.lock().was_exceeded();
        let error = match (result, exceeded) {
            (Ok(said), None) => return Ok(said),
            (Ok(_), Some(exceeded)) => {
                ScriptError::new(ScriptErrorKind::Limit, &self.file, exceeded.0).within(function)
            }
            (Err(error), exceeded) => {
                let mut error = ScriptError::running(&self.file, function, *error);
                if let Some(exceeded) = exceeded {
                    error.kind = ScriptErrorKind::Limit;
                    error.message = exceeded.0;
                }
                error
            }
        };
        Err(error.or_line(self.has.get(function).copied().flatten()))
    }

    /// The event, as the script's function hears it; `None` if the script has no function for it.
    fn heard(&self, event: &Event, status: &Arc<Status>) -> Option<(&'static str, Vec<Dynamic>)> {
        let program = |id: &ProgramId| Dynamic::from(ProgramView::new(status, *id));
        let (hook, arguments) = match event {
            Event::Machine => ("on_machine", Vec::new()),
            Event::Joined(id) => ("on_joined", vec![program(id)]),
            Event::Asked(id) => ("on_asked", vec![program(id)]),
            Event::Threads {
                program: id,
                before,
                now,
            } => {
                let (before, now) = (i64::from(*before), i64::from(*now));
                ("on_threads", vec![program(id), before.into(), now.into()])
            }
            Event::Answered {
                program: id,
                what,
                yes,
            } => {
                let what = match what {
                    Request::Expand => "expand",
                    Request::Shrink => "shrink",
                };
                ("on_answered", vec![program(id), what.into(), (*yes).into()])
            }
            Event::Left { program, claim } => {
                let had = claim.clone().map(ClaimView);
                let had = had.map_or(Dynamic::UNIT, Dynamic::from);
                let id = i64::try_from(program.0).unwrap_or(i64::MAX);
                ("on_left", vec![id.into(), had])
            }
            Event::Readings => ("on_readings", Vec::new()),
            Event::Overridden(id) => ("on_overridden", vec![program(id)]),
            Event::Failed(what) => ("on_failed", vec![data::cut(what, MAX_STRING).into()]),
        };
        if self.has.contains_key(hook) {
            Some((hook, arguments))
        } else if self.has.contains_key("on_event") {
            let what = hook.trim_start_matches("on_");
            Some(("on_event", vec![what.into()]))
        } else {
            None
        }
    }

    /// One event: what the script orders.
    fn run(&mut self, event: &Event, status: &Status) -> Result<Vec<Order>, ScriptError> {
        let status = Arc::new(status.clone());
        let heard = self.heard(event, &status);
        let asks_period = self.has.contains_key("period_ms");
        if heard.is_none() && !asks_period {
            return Ok(Vec::new());
        }
        let kept = self.desk.lock().open(status);
        let ran = guarded(&self.file, || {
            if let Some((hook, arguments)) = heard {
                drop(self.call(hook, arguments)?);
            }
            if !asks_period {
                return Ok(self.period_ns);
            }
            let period = self.call("period_ms", Vec::new())?;
            data::period_ns(&period).map_err(|what| self.wrong("period_ms", what))
        });
        let orders = self.desk.lock().close();
        match ran.and_then(|ran| ran) {
            Ok(period_ns) => {
                self.period_ns = period_ns;
                Ok(orders)
            }
            Err(error) => {
                self.desk.lock().state = kept;
                Err(error)
            }
        }
    }

    /// Says in the journal why nothing was ordered: the first time, and each time that it has happened
    /// twice as often, so that a script that fails at every reading does not fill the journal.
    fn failed(&mut self, error: ScriptError, orders: &mut Orders) {
        let text = error.to_string();
        if self.repeated.0 == text {
            self.repeated.1 += 1;
        } else {
            self.repeated = (text, 1);
        }
        let (text, times) = &self.repeated;
        if times.is_power_of_two() {
            let often = match times {
                1 => String::new(),
                times => format!(" ({times} times so far)"),
            };
            orders.note(format!("{text}; nothing of this event is done{often}"));
        }
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        if report.failures.len() < KEPT_FAILURES {
            report.failures.push(error);
        }
    }
}

impl Policy for ScriptPolicy {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn local_rule(&self) -> LocalRule {
        self.rule
    }

    /// As the script's `period_ms` said after the last event that went well.
    fn period_ns(&self, _status: &Status) -> Option<u64> {
        self.period_ns
    }

    fn wants_heat(&self) -> bool {
        self.wants_heat
    }

    /// By the functions whose names stand in it: whether it will ever call them, nobody can know.
    fn decides(&self) -> Decides {
        self.decides
    }

    fn memory(&self) -> Memory {
        let desk = self.desk.lock();
        let kept = Kept::new(
            &desk.state,
            desk.random.clone(),
            self.period_ns,
            self.repeated.clone(),
        );
        Memory::Script(Box::new(kept))
    }

    fn on(&mut self, event: &Event, status: &Status, orders: &mut Orders) {
        match self.run(event, status) {
            Ok(list) => orders.list.extend(list),
            Err(error) => self.failed(error, orders),
        }
    }
}

impl std::fmt::Debug for ScriptPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptPolicy")
            .field("name", &self.name)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

/// A panic in the language's own code is the script's failure, not the manager's end.
fn guarded<T>(file: &str, run: impl FnOnce() -> T) -> Result<T, ScriptError> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|_| {
        let what = "the script made its interpreter panic; this is a bug of corewise or Rhai";
        ScriptError::new(ScriptErrorKind::Run, file, what)
    })
}

/// The script's functions that are called by name, checked: a misspelt one would never be called.
fn called_by_name(
    ast: &AST,
    file: &str,
    text: &str,
) -> Result<BTreeMap<String, Option<usize>>, ScriptError> {
    let mut has = BTreeMap::new();
    for function in ast.iter_functions() {
        let (name, count) = (function.name, function.params.len());
        let hook = HOOKS.iter().find(|(hook, _)| *hook == name);
        let takes = match hook {
            Some((_, takes)) => *takes,
            None if SETTINGS.contains(&name) => 0,
            None if name.starts_with("on_") => {
                let names: Vec<&str> = HOOKS.iter().map(|(name, _)| *name).collect();
                let what = format!(
                    "there is no event for {name}(); there are {}",
                    names.join(", ")
                );
                return Err(ScriptError::at_text(
                    file,
                    text,
                    &format!("fn {name}"),
                    what,
                ));
            }
            None => continue,
        };
        if takes != count {
            let what = format!("{name}() must take {takes} arguments, not {count}");
            return Err(ScriptError::at_text(
                file,
                text,
                &format!("fn {name}"),
                what,
            ));
        }
        has.insert(name.to_owned(), error::line_of(text, &format!("fn {name}")));
    }
    if !HOOKS.iter().any(|(hook, _)| has.contains_key(*hook)) {
        let what = "the script has no function for any event, such as fn on_joined(program)";
        return Err(ScriptError::new(ScriptErrorKind::Compile, file, what));
    }
    Ok(has)
}

fn stem(file: &str) -> String {
    let stem = std::path::Path::new(file).file_stem();
    stem.map_or_else(|| file.to_owned(), |s| s.to_string_lossy().into_owned())
}
