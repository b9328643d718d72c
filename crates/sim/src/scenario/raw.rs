//! A scenario as it stands in its file.

use super::check::{self, Wrong};
use super::error::line_of;
use super::{
    DEFAULT_DELAY_NS, DEFAULT_LIMIT_NS, Entry, Group, Managed, NextWave, Scenario, ScenarioError,
    Share, folder_of,
};
use crate::kernel::Quota;
use crate::machine::SimMachine;
use crate::program::{ProgramSpec, WaitPolicy};
use corewise_decide::cpus::CpuSet;
use corewise_decide::status::{Gang, Placement};
use corewise_machine::cpu_list;
use serde::Deserialize;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScenario {
    name: Option<String>,
    machine: Spanned<String>,
    #[serde(default)]
    seed: u64,
    policy: Option<Spanned<String>>,
    limit_ms: Option<Spanned<u64>>,
    delay_us: Option<Spanned<u64>>,
    switch_us: Option<Spanned<u64>>,
    #[serde(default = "yes")]
    autogroup: bool,
    manager: Option<Spanned<String>>,
    #[serde(default)]
    group: Vec<Spanned<RawGroup>>,
    #[serde(default)]
    program: Vec<Spanned<RawProgram>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGroup {
    name: String,
    #[serde(default = "usual_weight")]
    weight: u32,
    /// CPUs' worth of time in each period.
    quota_cpus: Option<f64>,
    #[serde(default = "usual_period")]
    period_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawProgram {
    name: Option<Spanned<String>>,
    file: Option<Spanned<String>>,
    spec: Option<ProgramSpec>,
    count: Option<Spanned<u32>>,
    #[serde(default)]
    start_ms: u64,
    after: Option<Spanned<String>>,
    waves: Option<Spanned<u32>>,
    pause_ms: Option<Spanned<u64>>,
    every_ms: Option<Spanned<u64>>,
    session: Option<Spanned<String>>,
    group: Option<Spanned<String>>,
    cpus: Option<Spanned<String>>,
    threads: Option<Spanned<u32>>,
    wait: Option<WaitPolicy>,
    #[serde(default = "yes")]
    managed: bool,
    malleable: Option<Spanned<bool>>,
    min_threads: Option<Spanned<u32>>,
    max_threads: Option<Spanned<u32>>,
    placement: Option<RawPlacement>,
    gang: Option<Spanned<RawGang>>,
    keeps_idle: Option<Spanned<bool>>,
    weight: Option<Spanned<u32>>,
    #[serde(default)]
    background: bool,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RawPlacement {
    Any,
    Compact,
    Scatter,
}

/// Whether a program is a gang of its own, or of which one it is.
#[derive(Deserialize)]
#[serde(untagged, expecting = "gang is true, false or a name")]
enum RawGang {
    Own(bool),
    Named(String),
}

fn yes() -> bool {
    true
}

fn usual_weight() -> u32 {
    100
}

fn usual_period() -> u64 {
    100
}

/// Where errors are, and where other files come from.
struct Source<'a> {
    text: &'a str,
    path: &'a Path,
    folder: PathBuf,
    read: &'a dyn Fn(&Path) -> io::Result<String>,
}

impl Source<'_> {
    fn wrong(&self, at: &Range<usize>, why: impl Into<String>) -> ScenarioError {
        ScenarioError::Wrong {
            path: self.path.to_owned(),
            line: line_of(self.text, at.start),
            why: why.into(),
        }
    }

    /// The text of a file that stands in the scenario.
    fn open(&self, name: &Spanned<String>) -> Result<(PathBuf, String), ScenarioError> {
        let path = self.folder.join(name.get_ref());
        match (self.read)(&path) {
            Ok(text) => Ok((path, text)),
            Err(error) => {
                let why = format!("cannot read {}: {error}", path.display());
                Err(self.wrong(&name.span(), why))
            }
        }
    }
}

pub(super) fn resolve(
    text: &str,
    path: &Path,
    read: &dyn Fn(&Path) -> io::Result<String>,
) -> Result<Scenario, ScenarioError> {
    let folder = folder_of(path);
    let source = Source {
        text,
        path,
        folder,
        read,
    };
    let raw: RawScenario = toml::from_str(text).map_err(|error| {
        let at = error.span().unwrap_or_default();
        source.wrong(&at, error.message())
    })?;
    let mut scenario = Scenario::new(name(&raw, path), machine(&source, &raw.machine)?);
    scenario.seed = raw.seed;
    scenario.autogroup = raw.autogroup;
    scenario.limit_ns = scaled(raw.limit_ms.as_ref(), 1_000_000, DEFAULT_LIMIT_NS);
    scenario.delay_ns = scaled(raw.delay_us.as_ref(), 1_000, DEFAULT_DELAY_NS);
    scenario.switch_ns = scaled(raw.switch_us.as_ref(), 1_000, 0);
    scenario.policy = policy(&source, &raw)?;
    for group in &raw.group {
        scenario.groups.push(self::group(&source, group)?);
    }
    if let Some(name) = &raw.manager {
        scenario.manager_group = Some(group_named(&source, &scenario.groups, name)?);
    }
    let names: Vec<String> = raw.program.iter().enumerate().map(entry_name).collect();
    for (program, name) in raw.program.iter().zip(&names) {
        let entry = entry(&source, &scenario.groups, &names, name, program)?;
        scenario.entries.push(entry);
    }
    check::scenario(&scenario).map_err(|wrong| {
        let at = place(&raw, &wrong);
        source.wrong(&at, wrong.why)
    })?;
    Ok(scenario)
}

fn name(raw: &RawScenario, path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    raw.name.clone().unwrap_or_else(|| stem.into_owned())
}

fn entry_name((index, program): (usize, &Spanned<RawProgram>)) -> String {
    let raw = program.get_ref();
    if let Some(name) = &raw.name {
        return name.get_ref().clone();
    }
    let stem = raw
        .file
        .as_ref()
        .and_then(|f| Path::new(f.get_ref()).file_stem());
    match stem {
        Some(stem) => stem.to_string_lossy().into_owned(),
        None => format!("program-{}", index + 1),
    }
}

fn scaled(value: Option<&Spanned<u64>>, unit: u64, otherwise: u64) -> u64 {
    value.map_or(otherwise, |v| v.get_ref().saturating_mul(unit))
}

fn machine(source: &Source<'_>, name: &Spanned<String>) -> Result<SimMachine, ScenarioError> {
    if let Some(cpus) = name.get_ref().strip_prefix("flat:") {
        return match cpus.parse() {
            Ok(cpus @ 1..=4096) => Ok(SimMachine::flat(cpus)),
            _ => {
                let why = "a flat machine has 1 to 4,096 CPUs, as in \"flat:8\"";
                Err(source.wrong(&name.span(), why))
            }
        };
    }
    let (path, text) = source.open(name)?;
    let folder = folder_of(&path);
    let xml = |name: &str| (source.read)(&folder.join(name));
    SimMachine::from_toml(&text, xml).map_err(|error| ScenarioError::within(&path, error))
}

fn policy(
    source: &Source<'_>,
    raw: &RawScenario,
) -> Result<Option<corewise_decide::policy::source::Source>, ScenarioError> {
    let (text, at) = match &raw.policy {
        Some(policy) => (policy.get_ref().as_str(), policy.span()),
        None => (corewise_decide::policy::NAMES[0], 0..0),
    };
    super::policy(text, &source.folder, raw.seed, source.read).map_err(|why| source.wrong(&at, why))
}

fn group(source: &Source<'_>, group: &Spanned<RawGroup>) -> Result<Group, ScenarioError> {
    let at = group.span();
    let raw = group.get_ref();
    let period_ns = raw.period_ms.saturating_mul(1_000_000);
    let quota = match raw.quota_cpus {
        None => None,
        Some(cpus) if cpus > 0.0 && cpus <= 65_536.0 => Some(Quota {
            quota_ns: (cpus * period_ns as f64) as u64,
            period_ns,
        }),
        Some(_) => {
            let why = format!("group {}: quota_cpus is above 0, at most 65,536", raw.name);
            return Err(source.wrong(&at, why));
        }
    };
    Ok(Group {
        name: raw.name.clone(),
        weight: raw.weight,
        quota,
    })
}

fn group_named(
    source: &Source<'_>,
    groups: &[Group],
    name: &Spanned<String>,
) -> Result<usize, ScenarioError> {
    let found = groups
        .iter()
        .position(|group| group.name == *name.get_ref());
    found.ok_or_else(|| {
        let why = format!("there is no [[group]] with the name {:?}", name.get_ref());
        source.wrong(&name.span(), why)
    })
}

fn entry(
    source: &Source<'_>,
    groups: &[Group],
    names: &[String],
    name: &str,
    program: &Spanned<RawProgram>,
) -> Result<Entry, ScenarioError> {
    let raw = program.get_ref();
    let spec = spec(source, program)?;
    let mut entry = Entry::new(name, Arc::new(spec));
    entry.count = raw.count.as_ref().map_or(1, |n| *n.get_ref());
    entry.start_ns = raw.start_ms.saturating_mul(1_000_000);
    entry.waves = raw.waves.as_ref().map_or(1, |n| *n.get_ref());
    entry.threads = raw.threads.as_ref().map(|n| *n.get_ref());
    entry.wait = raw.wait;
    entry.background = raw.background;
    if let Some(after) = &raw.after {
        let found = names.iter().position(|other| other == after.get_ref());
        entry.after = Some(found.ok_or_else(|| {
            let why = format!(
                "{name}: there is no program {:?} to wait for",
                after.get_ref()
            );
            source.wrong(&after.span(), why)
        })?);
    }
    entry.next_wave = match (&raw.pause_ms, &raw.every_ms) {
        (Some(_), Some(every)) => {
            let why = format!("{name}: either pause_ms or every_ms says when waves come");
            return Err(source.wrong(&every.span(), why));
        }
        (_, Some(every)) => NextWave::Every(every.get_ref().saturating_mul(1_000_000)),
        (pause, None) => NextWave::Pause(scaled(pause.as_ref(), 1_000_000, 0)),
    };
    match (&raw.session, &raw.group) {
        (Some(_), Some(group)) => {
            let why = format!(
                "{name}: sessions share the CPUs only outside of control groups; name one of the two"
            );
            return Err(source.wrong(&group.span(), why));
        }
        (Some(session), None) => entry.share = Share::Session(session.get_ref().clone()),
        (None, Some(group)) => entry.share = Share::Group(group_named(source, groups, group)?),
        (None, None) => {}
    }
    if let Some(cpus) = &raw.cpus {
        let list = cpu_list::parse(cpus.get_ref());
        let list = list.ok_or_else(|| {
            let why = format!("{name}: a list of CPUs is written as \"0-3,8\"");
            source.wrong(&cpus.span(), why)
        })?;
        entry.cpus = Some(list.into_iter().collect::<CpuSet>());
    }
    entry.managed = managed(source, name, raw, &entry.spec)?;
    entry.gang = gang(source, name, raw)?;
    Ok(entry)
}

fn gang(source: &Source<'_>, name: &str, raw: &RawProgram) -> Result<Option<Gang>, ScenarioError> {
    let gang = match raw.gang.as_ref().map(Spanned::get_ref) {
        Some(RawGang::Named(gang)) => Some(gang.clone()),
        Some(RawGang::Own(true)) => Some(String::new()),
        Some(RawGang::Own(false)) | None => None,
    };
    let only = raw.keeps_idle.as_ref().map(Spanned::span);
    let only = only.or(raw.weight.as_ref().map(Spanned::span));
    match (gang, only) {
        (None, Some(at)) => {
            let why =
                format!("{name}: only a gang keeps CPUs idle or has a weight; say `gang = true`");
            Err(source.wrong(&at, why))
        }
        (gang, _) => Ok(gang.map(|name| Gang {
            name,
            keeps_idle: raw.keeps_idle.as_ref().is_some_and(|k| *k.get_ref()),
            weight: raw.weight.as_ref().map_or(100, |w| *w.get_ref()),
        })),
    }
}

fn spec(source: &Source<'_>, program: &Spanned<RawProgram>) -> Result<ProgramSpec, ScenarioError> {
    let raw = program.get_ref();
    match (&raw.file, &raw.spec) {
        (Some(file), None) => {
            let (path, text) = source.open(file)?;
            ProgramSpec::from_toml(&text).map_err(|error| ScenarioError::within(&path, error))
        }
        (None, Some(spec)) => {
            let checked = spec.check();
            checked.map_err(|fault| source.wrong(&fault.span, fault.reason))?;
            Ok(spec.clone())
        }
        _ => {
            let why = "a program is described either by `file` or by a table `program.spec`";
            Err(source.wrong(&program.span(), why))
        }
    }
}

fn managed(
    source: &Source<'_>,
    name: &str,
    raw: &RawProgram,
    spec: &ProgramSpec,
) -> Result<Option<Managed>, ScenarioError> {
    if !raw.managed {
        return Ok(None);
    }
    let malleable = raw
        .malleable
        .as_ref()
        .map_or(spec.malleable, |m| *m.get_ref());
    if let Some(said) = raw
        .malleable
        .as_ref()
        .filter(|_| malleable && !spec.malleable)
    {
        let why = format!("{name}: its description does not say that it is malleable");
        return Err(source.wrong(&said.span(), why));
    }
    if malleable {
        let min = raw.min_threads.as_ref().or(spec.min_threads.as_ref());
        let max = raw.max_threads.as_ref().or(spec.max_threads.as_ref());
        return Ok(Some(Managed::Malleable {
            min_threads: min.map_or(1, |n| *n.get_ref()),
            max_threads: max.map(|n| *n.get_ref()),
            placement: match raw.placement {
                None | Some(RawPlacement::Any) => Placement::Any,
                Some(RawPlacement::Compact) => Placement::Compact,
                Some(RawPlacement::Scatter) => Placement::Scatter,
            },
        }));
    }
    match raw.min_threads.as_ref().or(raw.max_threads.as_ref()) {
        Some(said) => {
            let why = format!("{name}: only a malleable program has bounds; give it `threads`");
            Err(source.wrong(&said.span(), why))
        }
        None => Ok(Some(Managed::Rigid)),
    }
}

/// Where what is wrong stands: at its key, else at its table.
fn place(raw: &RawScenario, wrong: &Wrong) -> Range<usize> {
    let Some(program) = wrong.entry.and_then(|index| raw.program.get(index)) else {
        let limit = raw.limit_ms.as_ref().map(Spanned::span);
        let delay = raw.delay_us.as_ref().map(Spanned::span);
        let switch = raw.switch_us.as_ref().map(Spanned::span);
        let group = raw.group.last().map(Spanned::span);
        return match wrong.key {
            "limit_ms" => limit,
            "delay_us" => delay,
            "switch_us" => switch,
            "group" => group,
            _ => None,
        }
        .unwrap_or_default();
    };
    let p = program.get_ref();
    let key = match wrong.key {
        "name" => p.name.as_ref().map(Spanned::span),
        "count" => p.count.as_ref().map(Spanned::span),
        "after" => p.after.as_ref().map(Spanned::span),
        "waves" => p.waves.as_ref().map(Spanned::span),
        "every_ms" => p.every_ms.as_ref().map(Spanned::span),
        "cpus" => p.cpus.as_ref().map(Spanned::span),
        "threads" => p.threads.as_ref().map(Spanned::span),
        "min_threads" => p.min_threads.as_ref().map(Spanned::span),
        "gang" => p.gang.as_ref().map(Spanned::span),
        "weight" => p.weight.as_ref().map(Spanned::span),
        "max_threads" => p.max_threads.as_ref().map(Spanned::span),
        _ => None,
    };
    key.unwrap_or_else(|| program.span())
}
