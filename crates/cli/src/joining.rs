//! How the program of `corewise run` comes under management, and what is said of it afterwards.

use corewise_launch::command::Command;
use corewise_local::outside::{
    Coscheduling, Followed, Follower, Jobs, Locks, Managed, Outside, Program, Turns,
};
use corewise_wire::Folder;
use serde_json::{Value, json};
use std::time::Duration;

/// Names the process of a `corewise run` for those that its program starts: they are part of the
/// managed program, and are not managed a second time.
const WITHIN: &str = "COREWISE_RUN";

/// How long the manager may take to say which policy it has.
const ANSWER_WITHIN: Duration = Duration::from_millis(200);

/// A program beside which there is a local manager, or the reason why there is none.
pub(crate) enum Joining {
    /// It is managed, or will be as soon as there is a manager.
    Outside(Outside, Folder),
    /// It runs as on plain Linux, but for what its followers do without a manager.
    Not {
        /// Why.
        why: String,
        followers: Vec<Box<dyn Follower>>,
    },
}

/// What came of it.
pub(crate) struct Joined {
    managed: Managed,
    policy: Option<String>,
}

/// Says to corewise itself, further down, that this program is managed.
pub(crate) fn marked(command: Command, alone: bool) -> Command {
    match alone {
        true => command,
        false => command.env(WITHIN, std::process::id().to_string()),
    }
}

impl Joining {
    /// Starts managing a program that runs. Fails open, and takes no time of the program's.
    pub(crate) fn start(
        pid: i32,
        command: &Command,
        threads: u32,
        alone: bool,
        stay: Vec<String>,
        gang: Coscheduling,
        followers: Vec<Box<dyn Follower>>,
    ) -> Joining {
        if let Some(why) = unmanaged(alone) {
            return Joining::not(why, followers);
        }
        let folder = match Folder::of_user() {
            Ok(folder) => folder,
            Err(error) => return Joining::not(error.to_string(), followers),
        };
        let name = command.program.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let asked = folder.clone();
        let manager = |folder: &Folder| {
            let command = std::env::current_exe().map_err(|e| e.to_string())?;
            corewise_manager::start_on_demand(folder, &command).map_err(|e| e.to_string())
        };
        let program = Program {
            stay,
            gang,
            ..Program::rigid(pid, name, threads)
        };
        match Outside::start(program, folder, Box::new(manager), followers) {
            Some(outside) => Joining::Outside(outside, asked),
            None => Joining::not(
                "no thread can be started to manage it".to_owned(),
                Vec::new(),
            ),
        }
    }

    fn not(why: String, followers: Vec<Box<dyn Follower>>) -> Joining {
        for follower in &followers {
            follower.release();
        }
        Joining::Not { why, followers }
    }

    /// The program has ended. `ask` also asks for the policy's name, which takes a moment.
    pub(crate) fn finish(self, ask: bool) -> Joined {
        match self {
            Joining::Outside(outside, folder) => {
                // Before it leaves: a manager on demand may leave with it.
                let ask = ask && outside.has_joined();
                let policy = ask.then(|| policy(folder)).flatten();
                let managed = outside.finish();
                Joined { managed, policy }
            }
            Joining::Not { why, followers } => {
                let mut managed = Managed {
                    why_not: Some(why),
                    ..Managed::default()
                };
                for follower in followers {
                    follower.tell(&mut managed);
                }
                Joined {
                    managed,
                    policy: None,
                }
            }
        }
    }
}

impl Joined {
    /// For people.
    pub(crate) fn sentence(&self) -> String {
        let claims = match self.managed.claims {
            1 => "1 claim".to_owned(),
            n => format!("{n} claims"),
        };
        let followed = self
            .managed
            .followed
            .as_ref()
            .map(followed)
            .unwrap_or_default();
        let jobs = self.managed.jobs.map(jobs).unwrap_or_default();
        let locks = self
            .managed
            .followed
            .as_ref()
            .and_then(|f| f.locks.as_ref());
        let locks = locks.map(blocked).unwrap_or_default();
        let managed = match (&self.managed.why_not, self.managed.program) {
            (None, Some(_)) => format!("Managed: {claims}{followed}{jobs}."),
            (Some(why), Some(_)) => format!("Managed at first ({claims}), then not: {why}."),
            (Some(why), None) => format!("Not managed: {why}."),
            (None, None) => "Not managed.".to_owned(),
        };
        let turns = self.managed.gang.as_ref().map(turns);
        let turns = turns.filter(|_| self.managed.program.is_some());
        format!("{managed}{locks}{}", turns.unwrap_or_default())
    }

    /// Whether it was always left the `cpus` CPUs that its threads could use, as far as corewise is concerned.
    pub(crate) fn had_all(&self, cpus: usize) -> bool {
        let fewest = self.managed.fewest_cpus;
        let turns = self.managed.gang.as_ref();
        fewest.is_none_or(|fewest| fewest >= cpus) && turns.is_none_or(|turns| turns.switches == 0)
    }

    /// What came of its turns, for the summary; `None` where it was no gang.
    pub(crate) fn gang(&self) -> Option<&Turns> {
        self.managed.gang.as_ref()
    }

    /// For the summary.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "policy": self.policy,
            "program": self.managed.program,
            "claims": self.managed.claims,
            "why_not": self.managed.why_not,
            "followed": self.managed.followed,
            "jobs": self.managed.jobs,
        })
    }
}

/// What its runtimes did, as the end of a sentence.
fn followed(followed: &Followed) -> String {
    if followed.runtimes.is_empty() {
        return String::new();
    }
    let demanded = match followed.demanded {
        0 => String::new(),
        n => format!(", {n} demanded their number (see --override-clauses)"),
    };
    format!(
        ", followed by {}: {} of {} times with fewer threads{demanded}",
        followed.runtimes.join(" and "),
        followed.shrunk,
        followed.occasions + followed.demanded,
    )
}

/// Where its threads were blocked, as a sentence of its own.
fn blocked(locks: &Locks) -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let longest = locks.callers.first().map(|caller| {
        let (time, kind) = (seconds(caller.time.ns), caller.kind);
        format!(", longest in {} ({time:.3} s, {kind})", caller.caller)
    });
    format!(
        " Blocked in locks: {:.3} s over all threads, {} times{}.",
        seconds(locks.ns),
        locks.waits,
        longest.unwrap_or_default()
    )
}

/// What came of its turns, as a sentence of its own.
fn turns(turns: &Turns) -> String {
    let ms = |ns: u64| ns as f64 / 1e6;
    let name = match (turns.found, turns.name.as_str()) {
        (true, _) => " (its threads wait in loops)".to_owned(),
        (false, "") => String::new(),
        (false, name) => format!(" {name:?}"),
    };
    let why = turns.why_not.as_deref().unwrap_or("nothing is known");
    match (turns.means, turns.switches) {
        (None, _) => format!(" No gang: it cannot be stopped and continued: {why}."),
        (Some(_), 0) if turns.refused > 0 => format!(" Gang{name}: it ran always: {why}."),
        (Some(_), 0) => format!(" Gang{name}: it ran always, there was no need for turns."),
        (Some(means), n) => format!(
            " Gang{name}: stopped and continued {n} times by {means}, {:.3} ms late (median; at worst {:.3} ms).",
            ms(turns.late_ns_median),
            ms(turns.late_ns_worst),
        ),
    }
}

/// How many jobs a build might run, as the end of a sentence.
fn jobs(jobs: Jobs) -> String {
    match jobs.fewest == jobs.most {
        true => format!(
            ", followed by its jobserver: {} jobs at once throughout",
            jobs.most
        ),
        false => format!(
            ", followed by its jobserver: between {} and {} jobs at once",
            jobs.fewest, jobs.most
        ),
    }
}

/// The name of the policy, if the manager says so at once: a summary does not wait for it.
fn policy(folder: Folder) -> Option<String> {
    let (answer, asked) = std::sync::mpsc::channel();
    std::thread::Builder::new()
        .spawn(move || {
            // Nobody may be left who wants to know.
            let _ = answer.send(corewise_manager::status_json(&folder));
        })
        .ok()?;
    let status = asked.recv_timeout(ANSWER_WITHIN).ok()?.ok()??;
    Some(status["policy"].as_str()?.to_owned())
}

/// Why a program of ours will not be managed, if that is known already: nobody wants it, or it is a part of
/// what another `corewise run` manages.
pub(crate) fn unmanaged(alone: bool) -> Option<String> {
    if alone {
        return Some("--alone was given".to_owned());
    }
    let outer = outer_run()?;
    Some(format!(
        "it is part of what process {outer} (corewise run) manages"
    ))
}

/// Whether this process is a part of what another `corewise run` manages.
pub(crate) fn is_within_another() -> bool {
    outer_run().is_some()
}

/// The `corewise run` whose program started this process, directly or not. The variable alone says
/// little: whoever became a daemon carries it on.
fn outer_run() -> Option<i32> {
    let outer: i32 = std::env::var(WITHIN).ok()?.parse().ok()?;
    let mut pid = parent(i32::try_from(std::process::id()).ok()?)?;
    while pid > 1 {
        if pid == outer {
            return Some(outer);
        }
        pid = parent(pid)?;
    }
    None
}

fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything; then come the state and the parent.
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processs_parent_is_found() {
        let own = i32::try_from(std::process::id()).unwrap();
        let expected = i32::try_from(std::os::unix::process::parent_id()).unwrap();
        assert_eq!(parent(own), Some(expected));
        assert_eq!(parent(0), None);
    }

    #[test]
    fn what_is_said_tells_whether_it_was_managed_and_why_not() {
        let joined = |program, claims, why: Option<&str>| Joined {
            managed: Managed {
                program,
                claims,
                why_not: why.map(str::to_owned),
                ..Managed::default()
            },
            policy: None,
        };
        assert_eq!(joined(Some(1), 2, None).sentence(), "Managed: 2 claims.");
        let gone = joined(Some(1), 1, Some("its manager is gone"));
        assert!(gone.sentence().contains("then not: its manager is gone"));
        let never = joined(None, 0, Some("--alone was given"));
        assert_eq!(never.sentence(), "Not managed: --alone was given.");
        assert_eq!(never.to_json()["why_not"], "--alone was given");
    }
}
