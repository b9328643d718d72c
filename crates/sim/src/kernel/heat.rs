//! Temperature, what the hardware does about it, power and prefetchers.
//!
//! Each core is one body that is warmed by its own power and a little by that of all, and cools towards the air:
//! it approaches `air + own °C/W × its power + shared °C/W × all power` exponentially. From one temperature on
//! (REEact's T1) the hardware lowers the core's frequency until it is cooler by some degrees; from another one on
//! (T2) it stops the core until it is below the first. What a core's siblings by SMT use counts as its own.
//!
//! All of it is found anew each [`EVERY_NS`], and not while all CPUs are idle: then the cooling since is made up
//! for in one step. Left out: the heat sink's own inertia, and how leakage grows with temperature.

use super::Kernel;
use super::thread::Job;
use crate::machine::HeatModel;
use corewise_decide::reading::CpuHeat;

/// How often temperatures are found anew, in nanoseconds.
const EVERY_NS: u64 = 50_000_000;

/// A core that the hardware has stopped does so little, as a part of its speed: none at all would have no end.
const STOPPED: f64 = 1e-3;

#[derive(Clone, Debug)]
pub(super) struct Heat {
    pub(super) slot: usize,
    model: HeatModel,
    cpus: Vec<Core>,
    seen_ns: u64,
    energy_j: f64,
}

#[derive(Clone, Copy, Debug)]
struct Core {
    celsius: f64,
    /// What it had used at the last look.
    powered_ns: f64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Full,
    Slowed,
    Stopped,
}

impl Heat {
    /// All cores as warm as they are when they have been idle for long.
    pub(super) fn of(model: &HeatModel, cpus: usize) -> Heat {
        let idle = |cpu| Core {
            celsius: model.celsius(cpu, model.idle_w, model.idle_w * cpus as f64),
            powered_ns: 0.0,
            state: State::Full,
        };
        Heat {
            slot: 0,
            cpus: (0..cpus as u32).map(idle).collect(),
            model: model.clone(),
            seen_ns: 0,
            energy_j: 0.0,
        }
    }

    /// Goes on to `now_ns`, in which each CPU has used `powered_ns` altogether. CPUs whose state has changed.
    fn go_on(&mut self, now_ns: u64, powered_ns: &[f64]) -> Vec<usize> {
        let span_ns = (now_ns - self.seen_ns) as f64;
        self.seen_ns = now_ns;
        if span_ns <= 0.0 {
            return Vec::new();
        }
        let model = &self.model;
        let watts: Vec<f64> = self
            .cpus
            .iter()
            .zip(powered_ns)
            .map(|(core, now)| model.idle_w + model.busy_w * (now - core.powered_ns) / span_ns)
            .collect();
        let all: f64 = watts.iter().sum();
        self.energy_j += (all + model.uncore_w) * span_ns / 1e9;
        let keeps = (-span_ns / 1e9 / model.seconds).exp();
        let mut changed = Vec::new();
        for (cpu, core) in self.cpus.iter_mut().enumerate() {
            core.powered_ns = powered_ns[cpu];
            let goal = model.celsius(cpu as u32, watts[cpu], all);
            core.celsius = goal + (core.celsius - goal) * keeps;
            let state = core.next(model);
            if state != core.state {
                core.state = state;
                changed.push(cpu);
            }
        }
        changed
    }
}

impl Core {
    fn next(&self, model: &HeatModel) -> State {
        let cool = model.slows_at_c - model.cooler_by_c;
        match self.state {
            _ if self.celsius >= model.stops_at_c => State::Stopped,
            State::Stopped if self.celsius >= model.slows_at_c => State::Stopped,
            State::Full if self.celsius >= model.slows_at_c => State::Slowed,
            State::Slowed | State::Stopped if self.celsius >= cool => State::Slowed,
            _ => State::Full,
        }
    }
}

impl Kernel {
    /// A CPU has something to run: temperatures are followed from now on.
    pub(super) fn heat_begins(&mut self, cpu: usize) {
        let Some(slot) = self.heat.as_ref().map(|heat| heat.slot) else {
            return;
        };
        if self.cpus[cpu].current.is_some() && self.agenda.slot(slot).is_none() {
            self.follow_heat();
            self.agenda.set_slot(slot, Some(self.now_ns + EVERY_NS));
        }
    }

    /// Temperatures are to be found anew.
    pub(super) fn heat_is_due(&mut self) {
        self.follow_heat();
        let busy = self.cpus.iter().any(|c| c.current.is_some());
        let next = busy.then_some(self.now_ns + EVERY_NS);
        if let Some(heat) = &self.heat {
            self.agenda.set_slot(heat.slot, next);
        }
    }

    fn follow_heat(&mut self) {
        let cpus = 0..self.cpus.len();
        let powered: Vec<f64> = cpus.map(|cpu| self.powered_ns(cpu)).collect();
        let now = self.now_ns;
        let Some(heat) = &mut self.heat else { return };
        for cpu in heat.go_on(now, &powered) {
            self.settle(cpu, false);
            self.find_speed(cpu);
            self.touch(cpu);
        }
    }

    /// What a CPU has used up to now: each nanosecond in which it was busy times its power.
    fn powered_ns(&self, cpu: usize) -> f64 {
        let c = &self.cpus[cpu];
        let running = match c.current {
            Some(_) => (self.now_ns - c.settled_ns) as f64 * c.power,
            None => 0.0,
        };
        c.powered_ns + running
    }

    /// How fast a CPU is for its temperature, and what power it uses then for what it runs.
    pub(super) fn hot_speed(&self, cpu: usize) -> (f64, f64) {
        let current = self.cpus[cpu].current;
        let demand = current.map(|t| self.threads[t as usize].demand);
        let demand = demand.unwrap_or_default();
        let prefetching = if self.prefetches {
            demand.prefetch_power
        } else {
            0.0
        };
        let power = 1.0 + demand.extra_power + prefetching;
        let Some(heat) = &self.heat else {
            return (1.0, power);
        };
        match heat.cpus[cpu].state {
            State::Full => (1.0, power),
            State::Slowed => (heat.model.slow_speed, power * heat.model.slow_power),
            State::Stopped => (STOPPED, 0.0),
        }
    }

    /// How fast what a CPU runs is for the prefetchers.
    pub(super) fn prefetch_speed(&self, cpu: usize) -> f64 {
        let current = self.cpus[cpu].current.filter(|_| !self.prefetches);
        let thread = current.map(|t| &self.threads[t as usize]);
        let works = thread.filter(|t| matches!(t.job, Job::Work { .. }));
        works.map_or(1.0, |t| 1.0 / (1.0 + t.demand.prefetch_gain))
    }

    /// Switches the hardware prefetchers of all cores.
    pub fn set_prefetchers(&mut self, on: bool) {
        if std::mem::replace(&mut self.prefetches, on) == on {
            return;
        }
        for cpu in 0..self.cpus.len() {
            if self.cpus[cpu].current.is_some() {
                self.settle(cpu, false);
                self.find_speed(cpu);
                self.touch(cpu);
            }
        }
    }

    /// Temperatures of all CPUs now; empty if the machine has no model of them. (Their last look is at most 50 ms
    /// old, but for a machine that is idle, which is cooler by now.)
    pub fn heat(&self) -> Vec<CpuHeat> {
        let Some(heat) = &self.heat else {
            return Vec::new();
        };
        let of = |(cpu, core): (usize, &Core)| CpuHeat {
            cpu: cpu as u32,
            celsius: core.celsius,
            slows_at: Some(heat.model.slows_at_c),
            stops_at: Some(heat.model.stops_at_c),
        };
        heat.cpus.iter().enumerate().map(of).collect()
    }

    /// Energy that the processors have used until now, in joules; 0 if the machine has no model of it.
    pub fn energy_j(&self) -> f64 {
        let cpus = 0..self.cpus.len();
        let powered: Vec<f64> = cpus.map(|cpu| self.powered_ns(cpu)).collect();
        let Some(mut heat) = self.heat.clone() else {
            return 0.0;
        };
        heat.go_on(self.now_ns, &powered);
        heat.energy_j
    }

    /// Instructions that all threads have retired together: one for each nanosecond of work at full speed, and for
    /// each of waiting in a loop.
    pub fn instructions(&self) -> u64 {
        let threads = (0..self.threads()).map(|t| self.thread(super::ThreadId(t)));
        threads.map(|used| used.work_ns + used.spin_ns).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> HeatModel {
        HeatModel {
            air_c: 25.0,
            idle_w: 5.0,
            busy_w: 20.0,
            uncore_w: 10.0,
            own_c_per_w: 1.0,
            shared_c_per_w: 0.2,
            seconds: 10.0,
            slows_at_c: 70.0,
            stops_at_c: 90.0,
            cooler_by_c: 5.0,
            slow_speed: 0.5,
            slow_power: 0.3,
            worse: [(0, 1.8)].into(),
        }
    }

    /// `seconds` in which the first of two CPUs works and the other is idle, in steps of 50 ms.
    fn work(heat: &mut Heat, seconds: u32) {
        for _ in 0..seconds * 20 {
            let step = EVERY_NS as f64;
            let slowed = match heat.cpus[0].state {
                State::Full => 1.0,
                State::Slowed => heat.model.slow_power,
                State::Stopped => 0.0,
            };
            let used = heat.cpus[0].powered_ns + step * slowed;
            heat.go_on(heat.seen_ns + EVERY_NS, &[used, 0.0]);
        }
    }

    #[test]
    fn a_core_warms_towards_what_its_power_gives() {
        let mut heat = Heat::of(
            &HeatModel {
                worse: [].into(),
                ..model()
            },
            2,
        );
        let before = heat.cpus[1].celsius;
        assert!((before - (25.0 + 5.0 + 2.0)).abs() < 1e-9, "{before}");
        work(&mut heat, 100);
        // 25 W of its own, 30 W of both.
        assert!(
            (heat.cpus[0].celsius - (25.0 + 25.0 + 6.0)).abs() < 0.1,
            "{heat:?}"
        );
        assert!(heat.cpus[1].celsius > before);
        assert_eq!(heat.cpus[0].state, State::Full);
    }

    #[test]
    fn behind_a_broken_screw_a_core_is_slowed_down_again_and_again() {
        let mut heat = Heat::of(&model(), 2);
        let mut seen = Vec::new();
        for _ in 0..200 {
            work(&mut heat, 1);
            seen.push(heat.cpus[0].state);
        }
        assert!(seen.contains(&State::Slowed) && seen[20..].contains(&State::Full));
        assert!(!seen.contains(&State::Stopped), "slowing down is enough");
        assert!(heat.cpus[0].celsius < 71.0);
    }

    #[test]
    fn a_core_that_gets_too_hot_all_the_same_is_stopped_until_it_is_cool() {
        let hot = HeatModel {
            slow_power: 1.0,
            worse: [(0, 4.0)].into(),
            ..model()
        };
        let mut heat = Heat::of(&hot, 2);
        let mut warmest: f64 = 0.0;
        let mut stopped = false;
        for _ in 0..1000 {
            work(&mut heat, 1);
            warmest = warmest.max(heat.cpus[0].celsius);
            stopped |= heat.cpus[0].state == State::Stopped;
        }
        assert!(stopped && warmest < 95.0, "{warmest}");
    }

    #[test]
    fn energy_is_power_times_time() {
        let mut heat = Heat::of(&model(), 2);
        heat.go_on(2_000_000_000, &[1e9, 0.0]);
        // 10 W idle and 10 W uncore for two seconds, 20 W for one.
        assert!((heat.energy_j - 60.0).abs() < 1e-9, "{}", heat.energy_j);
    }
}
