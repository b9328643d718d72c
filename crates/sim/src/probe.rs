//! Probes of simulated programs: the same searches and the same watch as on Linux, and the same loop
//! ([`corewise_decide::search::host`]), before a program that is alone on the simulated machine.
//!
//! A probe costs the program nothing here, every counter is exact, and nothing is left of it. Regions are not
//! counted, as for an ordinary user on Linux.

use crate::kernel::{Event, Kernel};
use crate::machine::SimMachine;
use crate::program::{Notice, ProgramNumber, ProgramSpec, Programs, Start, WaitPolicy};
use corewise_decide::cpus::CpuSet;

use corewise_decide::search::host::Prober;
use corewise_decide::setting;
use corewise_decide::watch::{Watch, WatchPlan, WatchStep, Watched};
use std::sync::Arc;

/// Linux's weight of a session.
const USUAL_WEIGHT: u32 = 1024;

/// Makes probes of one simulated program, each from the program's beginning, on a machine that does nothing else.
#[derive(Clone, Debug)]
pub struct SimProber {
    machine: SimMachine,
    spec: Arc<ProgramSpec>,
    seed: u64,
    cpus: Vec<u32>,
}

/// A program that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the program cannot go on in its probe with {threads} threads: {why}")]
pub struct ProbeStuck {
    /// With which number.
    pub threads: u32,
    /// What its threads wait for.
    pub why: String,
}

impl SimProber {
    /// Probes of `spec` on all of `machine`; what is random begins with `seed`.
    pub fn new(machine: SimMachine, spec: Arc<ProgramSpec>, seed: u64) -> SimProber {
        SimProber {
            cpus: (0..machine.cpus()).collect(),
            machine,
            spec,
            seed,
        }
    }
}

impl Prober for SimProber {
    type Error = ProbeStuck;

    fn probe(&mut self, plan: WatchPlan) -> Result<Watched, ProbeStuck> {
        let setting = plan.setting;
        let mut probe = Probe::start(self, setting);
        let mut watch = Watch::new(plan, 0);
        let mut step = watch.first_look();
        loop {
            let at_ns = match step {
                WatchStep::Look { at_ns } => at_ns,
                WatchStep::Finished(watched) => return Ok(*watched),
            };
            let ended = probe.run_until(at_ns).map_err(|why| ProbeStuck {
                threads: setting.threads,
                why,
            })?;
            if let Some(wall_ns) = ended {
                return Ok(watch.on_end(wall_ns, wall_ns));
            }
            let reading = probe.programs.reading(&probe.kernel, probe.number);
            step = watch.on_reading(reading, probe.kernel.reading());
        }
    }

    fn is_failure(_: &ProbeStuck) -> bool {
        true
    }

    fn offers_passive(&self) -> bool {
        self.spec.wait.is_some_and(|wait| wait != WaitPolicy::BLOCK)
    }

    fn most_threads(&self) -> u32 {
        let most = self.spec.max_threads.as_ref();
        most.map_or(u32::MAX, |most| *most.get_ref())
    }

    fn cpus(&self) -> &[u32] {
        &self.cpus
    }
}

/// One that runs.
struct Probe {
    kernel: Kernel,
    programs: Programs,
    number: ProgramNumber,
}

impl Probe {
    fn start(prober: &SimProber, setting: setting::Setting) -> Probe {
        let mut kernel = Kernel::new(&prober.machine, prober.seed);
        let mut programs = Programs::new(prober.seed);
        let group = kernel.add_group(USUAL_WEIGHT, None);
        let passive = setting.wait == setting::WaitPolicy::Passive;
        let start = Start {
            threads: Some(setting.threads),
            group,
            allowed: CpuSet::first(prober.machine.cpus()),
            malleable_under_claim: false,
            wait: passive.then_some(WaitPolicy::BLOCK),
        };
        let number = programs.start(&mut kernel, &prober.spec, start);
        Probe {
            kernel,
            programs,
            number,
        }
    }

    /// Goes on until `time_ns`, or until the program has ended: then how long it ran.
    fn run_until(&mut self, time_ns: u64) -> Result<Option<u64>, String> {
        while let Some(event) = self.kernel.next(time_ns) {
            if !matches!(event, Event::Timer(_)) {
                let went_on = self.programs.on(&mut self.kernel, event);
                went_on.map_err(|stuck| stuck.to_string())?;
            }
            let ended = Notice::Ended(self.number);
            if self.programs.notices().contains(&ended) {
                return Ok(Some(self.kernel.now()));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_decide::search::bounds::BoundSearch;
    use corewise_decide::search::host::{Limits, host};
    use corewise_decide::search::reinforcer::ThreadReinforcer;
    use corewise_decide::search::{Space, StopReason};

    fn prober(cpus: u32, text: &str) -> SimProber {
        let spec = ProgramSpec::from_toml(text).unwrap();
        SimProber::new(SimMachine::flat(cpus), Arc::new(spec), 1)
    }

    /// A sixth of its work is one thread's.
    const AMDAHL: &str = r#"
        name = "amdahl"
        [[phase]]
        repeat = 200
        [[phase.phase]]
        serial = { work_ms = 5 }
        [[phase.phase]]
        region = { work_ms = 25 }
    "#;

    #[test]
    fn searches_run_on_simulated_programs_as_on_real_ones() {
        let mut prober = prober(24, AMDAHL);
        let mut search = ThreadReinforcer::scaled(Space::for_cpus(24.0));
        let (choice, probes) = host(&mut search, &mut prober, Limits::default(), &mut ()).unwrap();
        assert!(
            probes.len() >= 2 && choice.setting.threads >= 8,
            "{choice:?}"
        );
        // One probe shows the default search that the first thread's own work bounds it.
        let mut search = BoundSearch::new(Space::for_cpus(24.0));
        let (choice, probes) = host(&mut search, &mut prober, Limits::default(), &mut ()).unwrap();
        assert_eq!(
            (choice.setting.threads, probes.len()),
            (24, 1),
            "{choice:?}"
        );
        assert_eq!(choice.stop, StopReason::Saturated);
    }

    #[test]
    fn a_window_shows_what_the_program_does_in_it() {
        let plan = WatchPlan {
            setting: setting::Setting::threads(4),
            window_ns: 300_000_000,
            to_the_end: false,
            begin: None,
            end: None,
            startup_limit_ns: 2_000_000_000,
            cpus: (0..4).collect(),
        };
        let mut prober = prober(4, AMDAHL);
        let profile = prober.probe(plan.clone()).unwrap().profile.unwrap();
        // 30 ms of work in 5 + 25 / 4 ms.
        assert!((profile.cpu_util - 30.0 / 11.25).abs() < 0.2, "{profile:?}");
        assert_eq!(prober.probe(plan).unwrap().profile, Ok(profile));
    }

    #[test]
    fn a_program_that_locks_itself_out_says_what_it_waits_for() {
        let text = r#"
            name = "stuck"
            [[phase]]
            [[phase.group]]
            name = "one"
            steps = [{ work_us = 10 }, { wait = "never" }]
            [[phase.group]]
            name = "another"
            steps = [{ wait = "now" }, { post = "never" }, { post = "now" }]
        "#;
        let mut search = BoundSearch::new(Space::for_cpus(4.0));
        let mut prober = prober(4, text);
        let error = host(&mut search, &mut prober, Limits::default(), &mut ()).unwrap_err();
        assert!(error.why.contains("never"), "{error}");
    }
}
