//! Probes that are made once: the same probe of a simulated program shows the same each time, so that many
//! thresholds can be tried on the profiles of a few probes.

use std::collections::HashMap;
use std::sync::Arc;

use corewise_decide::search::host::Prober;
use corewise_decide::setting::Setting;
use corewise_decide::watch::{WatchPlan, Watched};
use corewise_sim::machine::SimMachine;
use corewise_sim::probe::{ProbeStuck, SimProber};

use super::catalogue::Paper;

/// Setting, length, whether to the end, and where it begins, in nanoseconds of CPU time.
type Key = (Setting, u64, bool, Option<u64>);

/// Probes of one program, each made once.
pub(super) struct Remembering {
    prober: SimProber,
    made: HashMap<Key, Watched>,
}

impl Remembering {
    /// Probes of that program on that machine.
    pub(super) fn new(paper: &Paper, machine: &SimMachine, seed: u64) -> Remembering {
        Remembering {
            prober: SimProber::new(machine.clone(), Arc::clone(&paper.spec), seed),
            made: HashMap::new(),
        }
    }
}

impl Prober for Remembering {
    type Error = ProbeStuck;

    fn probe(&mut self, plan: WatchPlan) -> Result<Watched, ProbeStuck> {
        let begin = plan.begin.map(|begin| begin.cpu_ns);
        let key = (plan.setting, plan.window_ns, plan.to_the_end, begin);
        if let Some(watched) = self.made.get(&key) {
            return Ok(watched.clone());
        }
        let watched = self.prober.probe(plan)?;
        self.made.insert(key, watched.clone());
        Ok(watched)
    }

    fn is_failure(error: &ProbeStuck) -> bool {
        SimProber::is_failure(error)
    }

    fn offers_passive(&self) -> bool {
        self.prober.offers_passive()
    }

    fn most_threads(&self) -> u32 {
        self.prober.most_threads()
    }

    fn cpus(&self) -> &[u32] {
        self.prober.cpus()
    }
}
