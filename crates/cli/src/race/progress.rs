//! How far a search is, while the program runs: one line on a terminal, elsewhere one every so often if that
//! is wanted. Never on standard output, which is the program's.

use crate::output;
use anyhow::{Context as _, Result};
use corewise_analyses::race::report::{SoFar, so_far};
use corewise_analyses::region::Region;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks.
const STEP: Duration = Duration::from_millis(500);
/// Looks for each line where there is no terminal.
const SELDOM: u32 = 4;

/// Somebody who looks on.
pub(crate) struct Progress {
    stop: Sender<()>,
    looks: JoinHandle<()>,
}

impl Progress {
    /// Begins to look, if standard error is a terminal or it is `wanted` all the same.
    pub(crate) fn begin(region: &Arc<Region>, wanted: bool) -> Result<Option<Progress>> {
        let terminal = std::io::stderr().is_terminal();
        if !terminal && !wanted {
            return Ok(None);
        }
        let (stop, stopped) = channel();
        let region = Arc::clone(region);
        let looks = corewise_launch::run::beside("progress", move || {
            let bar = match terminal {
                true => ProgressBar::new_spinner(),
                false => ProgressBar::hidden(),
            };
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                bar.set_style(style);
            }
            let mut look = 0_u32;
            while stopped.recv_timeout(STEP) == Err(RecvTimeoutError::Timeout) {
                look += 1;
                let line = line(&so_far(&region));
                if terminal {
                    bar.set_message(line);
                    bar.tick();
                } else if look.is_multiple_of(SELDOM) {
                    output::say(&format!("corewise: {line}"));
                }
            }
            bar.finish_and_clear();
            if !terminal {
                output::say(&format!("corewise: {}", line(&so_far(&region))));
            }
        });
        let looks = looks.context("no thread to show progress")?;
        Ok(Some(Progress { stop, looks }))
    }

    /// The program is gone.
    pub(crate) fn end(self) {
        drop(self.stop);
        // It has nothing to say that is not on the terminal.
        let _ = self.looks.join();
    }
}

fn line(so_far: &SoFar) -> String {
    format!(
        "{} accesses seen, {} compared, {} waiting",
        so_far.recorded,
        so_far.compared,
        so_far.recorded.saturating_sub(so_far.compared),
    )
}
