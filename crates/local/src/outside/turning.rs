//! Whether a program is a gang, and who keeps its turns.

use super::turns::{Keeper, Turns};
use corewise_abi::message::{Gang, TurnsBy};
use std::path::PathBuf;
use std::sync::OnceLock;

/// Whether a program's threads run at the same time, or not at all, where CPUs are short.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Coscheduling {
    /// It is a gang.
    Asked(Gang),
    /// If the manager finds that it is one: it is rigid, and its threads wait for each other in loops. Until there
    /// are signs of that, it costs nothing.
    IfFound,
    /// It runs always.
    #[default]
    Never,
}

/// One program's part in that.
#[derive(Debug)]
pub(super) struct Turning {
    pid: i32,
    undo: PathBuf,
    wish: Coscheduling,
    /// Keeps its turns, or why nobody does; empty as long as there was no need.
    keeper: OnceLock<Result<Keeper, String>>,
}

impl Turning {
    /// Of the process `pid` and all below it; undo logs go to the folder `undo`.
    pub(super) fn new(pid: i32, undo: PathBuf, wish: Coscheduling) -> Turning {
        let turning = Turning {
            pid,
            undo,
            wish,
            keeper: OnceLock::new(),
        };
        if turning.asked().is_some() {
            turning.start();
        }
        turning
    }

    /// What it is, if it was asked to be a gang.
    pub(super) fn asked(&self) -> Option<&Gang> {
        match &self.wish {
            Coscheduling::Asked(gang) => Some(gang),
            Coscheduling::IfFound | Coscheduling::Never => None,
        }
    }

    pub(super) fn may_be_found(&self) -> bool {
        self.wish == Coscheduling::IfFound
    }

    /// Sees to it that there is a keeper, if the program can be stopped at all.
    pub(super) fn start(&self) {
        self.keeper
            .get_or_init(|| Keeper::start(self.pid, self.undo.clone()));
    }

    pub(super) fn is_started(&self) -> bool {
        self.keeper.get().is_some()
    }

    /// The keeper of its turns, where there is one that can stop it.
    pub(super) fn keeper(&self) -> Option<&Keeper> {
        let keeper = self.keeper.get()?.as_ref().ok();
        keeper.filter(|keeper| keeper.means().is_ok())
    }

    /// How its turns are kept; `None` as long as there was no need.
    pub(super) fn by(&self) -> Option<TurnsBy> {
        Some(match self.keeper.get()? {
            Ok(keeper) => keeper.by(),
            Err(why) => TurnsBy {
                means: None,
                why_not: Some(why.clone()),
            },
        })
    }

    /// What came of it so far; `None` where there was nothing to keep, and nobody had asked for it.
    pub(super) fn turns(&self) -> Option<Turns> {
        let name = self.asked().map_or("", |gang| &gang.name);
        let turns = match self.keeper.get()? {
            Ok(keeper) => keeper.turns(name),
            Err(why) => Turns {
                name: name.to_owned(),
                why_not: Some(why.clone()),
                ..Turns::default()
            },
        };
        let found = self.asked().is_none();
        (!found || turns.switches > 0).then_some(Turns { found, ..turns })
    }
}
