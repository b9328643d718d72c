//! What tests of several files need.

use corewise_defer::{By, Spent, Strategy, Work};
use std::sync::Mutex;

/// Executes nothing by itself: gives buffers only to those who wait, and those the newest first.
#[derive(Default)]
pub(crate) struct Lazy(Mutex<Vec<Work>>);

impl Strategy for Lazy {
    fn submit(&self, work: Work) -> Spent {
        self.0.lock().unwrap().push(work);
        Spent::default()
    }

    fn help(&self) -> bool {
        let work = self.0.lock().unwrap().pop();
        let found = work.is_some();
        work.into_iter().for_each(|work| work.run(By::Waiter));
        found
    }
}
