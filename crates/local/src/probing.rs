//! Making one probe: starting the program in its sandbox, reading it as the watch asks, ending it.

use corewise_decide::search::host;
use corewise_decide::watch::{Watch, WatchPlan, WatchStep, Watched};
use corewise_launch::command::Command;
use corewise_launch::probe::Probe;
use corewise_launch::runtimes::{Detected, Surroundings, from_mapped};
use corewise_launch::sandbox::Sandbox;
use corewise_launch::spool::Spool;
use corewise_launch::template::{Template, TemplateError};
use corewise_machine::program::{self, MonitorOptions, ProgramMonitor, Sensing};
use corewise_machine::{HostReader, Root};
use rustix::time::{ClockId, clock_gettime};
use std::path::PathBuf;
use std::time::Duration;

/// Why a probe could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The command cannot be made from what the user typed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The probe could not be started.
    #[error(transparent)]
    Start(#[from] corewise_launch::sandbox::Error),
    /// The program cannot be read.
    #[error(transparent)]
    Monitor(#[from] program::Error),
    /// The machine cannot be read.
    #[error(transparent)]
    Machine(#[from] corewise_machine::Error),
    /// The program failed.
    #[error(
        "the program failed in its probe with {setting}: {status}{}",
        told(stderr)
    )]
    ProgramFailed {
        /// With which setting.
        setting: corewise_decide::setting::Setting,
        /// How it ended, in words.
        status: String,
        /// The end of what it said.
        stderr: String,
    },
}

fn told(stderr: &str) -> String {
    match stderr.trim_end() {
        "" => "; it said nothing on standard error".to_owned(),
        text => format!("; it said:\n{text}"),
    }
}

/// Makes probes of one program.
pub struct Prober<'a> {
    template: &'a Template,
    surroundings: &'a Surroundings,
    sandbox: &'a Sandbox,
    stdin: &'a Spool,
    cpus: Vec<u32>,
    within: Option<Vec<u32>>,
    detected: Detected,
    lock_method: String,
    spin_method: String,
}

impl<'a> Prober<'a> {
    /// Probes of `template` in `sandbox`, on `cpus`, fed with `stdin`.
    pub fn new(
        template: &'a Template,
        detected: Detected,
        surroundings: &'a Surroundings,
        sandbox: &'a Sandbox,
        stdin: &'a Spool,
        cpus: Vec<u32>,
    ) -> Prober<'a> {
        Prober {
            template,
            surroundings,
            sandbox,
            stdin,
            cpus,
            within: None,
            detected,
            lock_method: "not measured".to_owned(),
            spin_method: "not measured".to_owned(),
        }
    }

    /// Confines the probes to these CPUs.
    #[must_use]
    pub fn within(mut self, cpus: Option<Vec<u32>>) -> Prober<'a> {
        self.within = cpus;
        self
    }

    /// What is known of the program's runtimes; the first probe of an interpreter adds to it.
    pub fn detected(&self) -> &Detected {
        &self.detected
    }

    /// How lock time was seen in the last probe.
    pub fn lock_method(&self) -> &str {
        &self.lock_method
    }

    /// How spinning was seen in the last probe.
    pub fn spin_method(&self) -> &str {
        &self.spin_method
    }

    /// Interpreters load runtimes later: by the time that the program is parallel, they are mapped.
    /// The sandbox's own first process is not the program.
    fn see_libraries(&mut self, monitor: &ProgramMonitor, sandbox_pid: i32) {
        if self.detected.unknown_libraries() {
            let mapped: Vec<PathBuf> = monitor
                .processes()
                .into_iter()
                .filter(|&pid| pid != sandbox_pid)
                // A process that has just ended has no libraries.
                .filter_map(|pid| program::mapped_libraries(pid).ok())
                .flatten()
                .collect();
            self.detected = self.detected.clone().merge(from_mapped(mapped));
        }
    }
}

impl host::Prober for Prober<'_> {
    type Error = ProbeError;

    fn probe(&mut self, plan: WatchPlan) -> Result<Watched, ProbeError> {
        let setting = plan.setting;
        let mut resolved = self
            .template
            .resolve(&setting, &self.detected, self.surroundings)?;
        confine(&mut resolved.command, self.within.as_deref());
        let mut probe = Probe::start(self.sandbox, &resolved.command, self.stdin)?;
        let mut monitor = ProgramMonitor::attach(probe.root_pid(), MonitorOptions::default())?;
        self.lock_method = method(monitor.lock_method());
        self.spin_method = method(&monitor.spin_method());
        let mut host = HostReader::open(&Root::system())?;

        probe.release()?;
        let mut watch = Watch::new(plan, now_ns());
        let mut step = watch.first_look();
        let watched = loop {
            let at_ns = match step {
                WatchStep::Look { at_ns } => at_ns,
                WatchStep::Finished(watched) => break *watched,
            };
            let wait = Duration::from_nanos(at_ns.saturating_sub(now_ns()));
            if let Some(end) = probe.wait_timeout(wait)? {
                let watched = watch.on_end(now_ns(), end.wall_ns);
                if !end.status.success() {
                    return Err(ProbeError::ProgramFailed {
                        setting,
                        status: end.status.to_string(),
                        stderr: String::from_utf8_lossy(&probe.stderr_tail()).into_owned(),
                    });
                }
                break watched;
            }
            step = watch.on_reading(monitor.sample(program::Detail::Full)?, host.read()?);
            if watch.is_open() {
                self.see_libraries(&monitor, probe.root_pid());
            }
        };
        probe.kill();
        Ok(watched)
    }

    fn is_failure(error: &ProbeError) -> bool {
        matches!(error, ProbeError::ProgramFailed { .. })
    }

    fn offers_passive(&self) -> bool {
        self.detected.knobs().wait_policy
    }

    fn most_threads(&self) -> u32 {
        most_threads(self.template, &self.detected, self.cpus.len())
    }

    fn cpus(&self) -> &[u32] {
        &self.cpus
    }
}

/// Narrows a command's affinity to `cpus`, unless it is narrower already.
pub(crate) fn confine(command: &mut Command, cpus: Option<&[u32]>) {
    if let (None, Some(cpus)) = (&command.affinity, cpus) {
        command.affinity = Some(cpus.to_vec());
    }
}

/// Some runtimes run no more threads than there are CPUs, whatever they are told.
pub(crate) fn most_threads(template: &Template, detected: &Detected, cpus: usize) -> u32 {
    if detected.knobs().at_most_cpus && !template.has_placeholder() {
        u32::try_from(cpus.max(1)).unwrap_or(u32::MAX)
    } else {
        u32::MAX
    }
}

fn method(sensing: &Sensing) -> String {
    use corewise_decide::reading::Method;
    match sensing.method {
        Some(Method::Exact) => "exact".to_owned(),
        Some(Method::Sampled) if sensing.why.is_empty() => "sampled".to_owned(),
        Some(Method::Sampled) => format!("sampled: {}", sensing.why),
        None => format!("not measured: {}", sensing.why),
    }
}

/// Monotonic time, the clock of all readings.
fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}
