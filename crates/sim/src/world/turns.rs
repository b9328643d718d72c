//! Turns, as programs' hosts keep them: all threads are stopped at the end of a window, and let go at the
//! beginning of the next. Everyone reads the same clock; nobody is told of a switch.

use super::{Due, SimWorld};
use corewise_decide::gang::Turn;
use corewise_decide::status::ProgramId;

impl SimWorld<'_> {
    /// A program is told a turn: it stands on the claim page, and is read when a grant would be.
    pub(super) fn turn(&mut self, program: ProgramId, turn: Option<&Turn>) {
        let Some(local) = self.managed.get_mut(&program) else {
            return;
        };
        local.turn = turn.cloned();
        local.turns += 1;
        let due = Due::Turn(program, local.turns);
        self.look_at_waits_soon();
        self.soon(due);
    }

    /// The program's host stops it, or lets it go, or does nothing, as its turn has it now. Looks that belong to
    /// an earlier turn are over.
    pub(super) fn keep_turn(&mut self, program: ProgramId, step: u64) {
        let now = self.kernel.now();
        let late_ns = self.scenario.switch_ns;
        let Some(local) = self
            .managed
            .get(&program)
            .filter(|local| local.turns == step)
        else {
            return;
        };
        let number = local.number;
        let Some(turn) = &local.turn else {
            self.programs.freeze(&mut self.kernel, number, false);
            return;
        };
        let at = now.saturating_sub(late_ns);
        let (runs, next) = (turn.runs_at(at), turn.next_change(at));
        if let Some(runs) = runs {
            self.programs.freeze(&mut self.kernel, number, !runs);
        }
        self.at(next.saturating_add(late_ns), Due::Turn(program, step));
    }
}
