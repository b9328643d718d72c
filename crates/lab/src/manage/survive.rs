//! `survive`: the manager and the programs are killed again and again at random moments, programs join
//! and leave by the thousand, the socket and the pages are fed nonsense, and another user looks.
//! Nothing may be lost: every program that lives ends with the right output, every setting is put
//! back, and the next manager starts clean.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::thread::sched_getaffinity;

use crate::actor::{self, Beside, Shared};
use crate::experiment::{Bar, Context, Report};
use crate::manage::stage::{Manager, Player};

mod crowd;
mod fuzz;

/// A program's units of work, and how long one takes.
const UNITS: u64 = 300;
const UNIT_US: u64 = 1_000;
/// The policy that sets the most: a CPU for each thread.
const POLICY: &str = "fcfs";

/// Runs the experiment. `--only manager`, `programs`, `crowd`, `fuzz` and `user` pick parts; `--rounds`
/// is the number of kills of each kind.
///
/// # Errors
/// If a program or the manager cannot be started.
pub fn run(context: &Context) -> Result<Report> {
    let mut report = Report::new(
        context,
        "survive",
        "programs and managers that are killed, against what must hold afterwards: outputs, settings, \
         descriptors, memory, files",
        "everything in the lab's session",
    );
    let parts = context.pick(&["manager", "programs", "crowd", "fuzz", "user"]);
    let kills = context.rounds(100, 5);
    if parts.contains(&"manager") {
        let found = managers_killed(context, kills)?;
        found.show("manager", kills, &mut report);
    }
    if parts.contains(&"programs") {
        let found = programs_killed(context, kills)?;
        found.show("programs", kills, &mut report);
    }
    if parts.contains(&"crowd") {
        crowd::run(context, &mut report)?;
    }
    if parts.contains(&"fuzz") {
        fuzz::run(context, &mut report)?;
    }
    if parts.contains(&"user") {
        crowd::another_user(context, &mut report)?;
    }
    Ok(report)
}

/// What went wrong.
#[derive(Default)]
struct Found {
    wrong_outputs: u32,
    settings_left: u32,
    files_left: u32,
    programs_left: u32,
    ended_well: u32,
}

impl Found {
    fn show(&self, part: &str, kills: u32, report: &mut Report) {
        report.figure(format!("{part}_kills"), f64::from(kills));
        report.figure(
            format!("{part}_programs_that_ended"),
            f64::from(self.ended_well),
        );
        for (name, count) in [
            ("wrong outputs", self.wrong_outputs),
            ("settings not put back", self.settings_left),
            ("files left in the undo log's folder", self.files_left),
            (
                "programs that the next manager still lists",
                self.programs_left,
            ),
        ] {
            report.bars.push(Bar::at_most(
                format!("{part} killed: {name}"),
                f64::from(count),
                0.0,
            ));
        }
    }
}

/// Three programs: two that nobody changed, with local managers beside them, and one that links the
/// library.
struct Programs {
    beside: Vec<(Player, i32)>,
    team: Option<Player>,
    expected: u64,
}

impl Programs {
    fn start(manager: &Manager, per_ms: u64) -> Result<Programs> {
        let loops = per_ms * UNIT_US / 1_000;
        let (units, words) = (UNITS.to_string(), loops.to_string());
        let mut beside = Vec::new();
        for _ in 0..2 {
            let parts = ["beside", &units, &words, "3", "outlived"];
            let mut player = Player::start(&parts, Some(manager))?;
            let pid = began(&mut player)?;
            beside.push((player, pid));
        }
        let mut team = Player::start(&["team", &units, &words], Some(manager))?;
        team.line().context("the team did not begin")?;
        Ok(Programs {
            beside,
            team: Some(team),
            expected: actor::expected_sum(UNITS, loops),
        })
    }

    /// Waits for those that live, and looks at what they say.
    fn judge(self, found: &mut Found) {
        let sums = self.beside.into_iter().map(|(player, _)| {
            let said: Result<Beside> = player.finish();
            said.map(|b| b.program.sum)
        });
        let team = self.team.into_iter().map(|player| {
            let said: Result<Shared> = player.finish();
            said.map(|s| s.sum)
        });
        for sum in sums.chain(team) {
            match sum {
                Ok(sum) if sum == self.expected => found.ended_well += 1,
                Ok(_) => found.wrong_outputs += 1,
                Err(error) => {
                    eprintln!("lab: {error:#}");
                    found.wrong_outputs += 1;
                }
            }
        }
    }
}

/// The line `began PID` of a local manager's program.
fn began(player: &mut Player) -> Result<i32> {
    let line = player.line()?;
    let pid = line
        .strip_prefix("began ")
        .context("a program did not begin")?;
    pid.parse()
        .with_context(|| format!("{line:?} has no process number"))
}

fn managers_killed(context: &Context, kills: u32) -> Result<Found> {
    let per_ms = actor::loops_per_ms();
    let mut random = fastrand::Rng::with_seed(1);
    let mut found = Found::default();
    let mut manager = Manager::start(context, POLICY)?;
    for kill in 0..kills {
        let programs = Programs::start(&manager, per_ms)?;
        let pids: Vec<i32> = programs.beside.iter().map(|p| p.1).collect();
        std::thread::sleep(Duration::from_millis(random.u64(0..350)));
        manager.kill()?;
        if random.bool() {
            // Nobody manages any longer: the local managers put back what they set.
            for pid in pids {
                found.settings_left += u32::from(!is_free_soon(pid));
            }
            programs.judge(&mut found);
            manager.start_again()?;
        } else {
            manager.start_again()?;
            programs.judge(&mut found);
        }
        clean(&manager, &mut found)?;
        if (kill + 1) % 10 == 0 {
            context.say(format_args!("the manager was killed {} times", kill + 1));
        }
    }
    Ok(found)
}

fn programs_killed(context: &Context, kills: u32) -> Result<Found> {
    let per_ms = actor::loops_per_ms();
    let mut random = fastrand::Rng::with_seed(2);
    let mut found = Found::default();
    let manager = Manager::start(context, POLICY)?;
    for kill in 0..kills {
        let mut programs = Programs::start(&manager, per_ms)?;
        std::thread::sleep(Duration::from_millis(random.u64(0..350)));
        if random.bool() {
            let (local, program) = programs.beside.remove(random.usize(0..2));
            local.kill()?;
            // Its program goes on, as if it had never been managed.
            found.settings_left += u32::from(!is_free_soon(program));
        } else if let Some(team) = programs.team.take() {
            team.kill()?;
        }
        programs.judge(&mut found);
        clean(&manager, &mut found)?;
        if (kill + 1) % 10 == 0 {
            context.say(format_args!("programs were killed {} times", kill + 1));
        }
    }
    Ok(found)
}

/// Whether a program's threads may run wherever the lab may, at the latest in some seconds, or the
/// program has ended.
fn is_free_soon(pid: i32) -> bool {
    let Ok(own) = sched_getaffinity(None) else {
        return false;
    };
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
            return true;
        };
        let tids = tasks
            .flatten()
            .filter_map(|t| t.file_name().to_str()?.parse().ok());
        let free = tids.filter_map(rustix::process::Pid::from_raw).all(|tid| {
            // A thread that has ended is as free as can be.
            sched_getaffinity(Some(tid)).map_or(true, |set| set == own)
        });
        if free || Instant::now() > until {
            return free;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a manager without programs must look like.
fn clean(manager: &Manager, found: &mut Found) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let status = manager.status()?;
        let programs = status["programs"].as_array().map_or(usize::MAX, Vec::len);
        let files = undo_files(manager.folder())?.len();
        if (programs == 0 && files == 0) || Instant::now() > until {
            found.programs_left += u32::from(programs > 0);
            found.files_left += u32::from(files > 0);
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn undo_files(folder: &Path) -> Result<BTreeSet<String>> {
    let undo = folder.join("undo");
    if !undo.exists() {
        return Ok(BTreeSet::new());
    }
    let mut names = BTreeSet::new();
    for file in std::fs::read_dir(undo)? {
        names.insert(file?.file_name().to_string_lossy().into_owned());
    }
    ensure!(names.len() < 10_000, "the undo log's folder overflows");
    Ok(names)
}
