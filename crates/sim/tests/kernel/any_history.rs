//! What holds whatever happens.

use super::support::*;
use corewise_decide::cpus::CpuSet;
use corewise_sim::kernel::{
    Demand, Doing, Event, GroupId, Kernel, ProcessId, Quota, Recorder, ThreadId, ThreadSpec,
    ThreadState, Why,
};
use corewise_sim::machine::SimMachine;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

/// What somebody does at some time.
#[derive(Clone, Debug)]
enum Act {
    Spawn(u32, u32, u64, bool),
    Allow(u32, u64),
    Freeze(u32, bool),
    Wake(u32),
    Release(u32),
    Slice(u32, u64),
    Weight(u32, u32),
    Memory(u32, u8),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..4_u32, 0..6_u32, any::<u64>(), any::<bool>())
            .prop_map(|(g, p, a, memory)| Act::Spawn(g, p, a, memory)),
        2 => (0..30_u32, any::<u64>()).prop_map(|(t, a)| Act::Allow(t, a)),
        1 => (0..6_u32, any::<bool>()).prop_map(|(p, f)| Act::Freeze(p, f)),
        2 => (0..30_u32).prop_map(Act::Wake),
        2 => (0..30_u32).prop_map(Act::Release),
        1 => (0..30_u32, 0..30_000_000_u64).prop_map(|(t, s)| Act::Slice(t, s)),
        1 => (1..4_u32, 1..5000_u32).prop_map(|(g, w)| Act::Weight(g, w)),
        1 => (0..30_u32, 0..10_u8).prop_map(|(t, share)| Act::Memory(t, share)),
    ]
}

fn machines() -> impl Strategy<Value = SimMachine> {
    let more = "smt = 0.6\n[node]\nbandwidth_bytes_per_s = 5e9\nremote_factor = 1.5";
    let solaris = "scheduler = { solaris = { quantum_ns = 20_000_000 } }";
    prop_oneof![
        (1..6_u32).prop_map(SimMachine::flat),
        Just(synthetic("package:2 [numa] l3:1 core:2 pu:1", solaris)),
        Just(synthetic("package:2 [numa] l3:1 core:2 pu:2", more)),
        Just(synthetic("[numa] package:2 l2:2 core:2 pu:1", more)),
        Just(synthetic("package:2 [numa] l3:2 l2:1 core:1 pu:1", more)),
    ]
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Recorder for Log {
    fn on_cpu(&mut self, time_ns: u64, cpu: u32, what: Option<(ThreadId, Doing)>) {
        self.0
            .lock()
            .unwrap()
            .push(format!("{time_ns} {cpu} {what:?}"));
    }
}

struct History {
    k: Kernel,
    cpus: u32,
    groups: Vec<GroupId>,
    allowed: Vec<CpuSet>,
    born: Vec<u64>,
    ended: Vec<Option<u64>>,
    steps: Vec<u32>,
    log: Vec<String>,
    seed: u64,
}

impl History {
    fn new(machine: &SimMachine, seed: u64, recorder: Option<Log>) -> History {
        let mut k = Kernel::new(machine, seed);
        k.set_recorder(recorder.map(|log| Box::new(log) as Box<dyn Recorder>));
        let quota = Quota {
            quota_ns: 15 * MS,
            period_ns: 20 * MS,
        };
        let groups = vec![
            GroupId::ROOT,
            k.add_group(1024, None),
            k.add_group(300, None),
            k.add_group(1024, Some(quota)),
        ];
        History {
            k,
            cpus: machine.cpus(),
            groups,
            allowed: Vec::new(),
            born: Vec::new(),
            ended: Vec::new(),
            steps: Vec::new(),
            log: Vec::new(),
            seed,
        }
    }

    fn set(&self, bits: u64) -> CpuSet {
        let set: CpuSet = (0..self.cpus).filter(|c| bits >> c & 1 == 1).collect();
        if set.is_empty() {
            CpuSet::first(self.cpus)
        } else {
            set
        }
    }

    fn act(&mut self, act: &Act) {
        let count = self.born.len() as u32;
        let of = |t: u32| ThreadId(t % count.max(1));
        match *act {
            Act::Spawn(group, process, allowed, memory) => {
                let allowed = self.set(allowed);
                let share = if memory { 0.5 } else { 0.0 };
                self.k.spawn(ThreadSpec {
                    process: ProcessId(process),
                    group: self.groups[group as usize],
                    allowed: allowed.clone(),
                    parent: (count > 0).then(|| of(process)),
                    demand: Demand {
                        bandwidth_bytes_per_s: 4e9,
                        memory_share: share,
                        working_set_bytes: 1 << 18,
                        ..Demand::default()
                    },
                });
                self.allowed.push(allowed);
                self.born.push(self.k.now());
                self.ended.push(None);
                self.steps.push(0);
            }
            Act::Freeze(process, frozen) => self.k.freeze(ProcessId(process), frozen),
            Act::Weight(group, weight) => {
                self.k.set_weight(self.groups[group as usize], weight);
            }
            _ if count == 0 => {}
            Act::Allow(t, allowed) => {
                let allowed = self.set(allowed);
                self.k.set_allowed(of(t), &allowed);
                self.allowed[(t % count) as usize] = allowed;
            }
            Act::Wake(t) => self.k.wake(of(t), None),
            Act::Release(t) => self.k.release(of(t)),
            Act::Slice(t, slice) => self.k.set_slice(of(t), slice),
            Act::Memory(t, share) => self.k.set_demand(
                of(t),
                Demand {
                    bandwidth_bytes_per_s: 3e9,
                    memory_share: f64::from(share) / 10.0,
                    working_set_bytes: 1 << 20,
                    ..Demand::default()
                },
            ),
        }
    }

    /// What a thread does next depends on its number and step alone.
    fn ready(&mut self, t: ThreadId) {
        let at = t.0 as usize;
        self.steps[at] += 1;
        let mix = (u64::from(t.0) * 7919 + u64::from(self.steps[at]) * 104_729) ^ self.seed;
        let long = (mix.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) * 500;
        match mix.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 60 {
            0..6 => self.k.run(t, long),
            6 => self.k.spin(t, Some(long), false),
            7 => self.k.spin(t, Some(long / 10), true),
            8 => self.k.yield_now(t),
            9 | 10 => self.k.sleep(t, self.k.now() + long, Why::Sleep),
            11 => self.k.sleep(t, self.k.now() + long / 100, Why::Io),
            12 => self.k.block(t, Why::Futex),
            13 => {
                let other = ThreadId((mix % self.born.len() as u64) as u32);
                self.k.wake(other, Some(t));
                self.k.release(other);
                self.k.run(t, long / 100);
            }
            14 if self.steps[at] > 20 => {
                self.ended[at] = Some(self.k.now());
                self.k.exit(t);
            }
            _ => self.k.run(t, long / 1000),
        }
    }

    fn until(&mut self, time_ns: u64) {
        while let Some(event) = self.k.next(time_ns) {
            self.log.push(format!("{} {event:?}", self.k.now()));
            match event {
                Event::Ready(t) => {
                    assert_eq!(self.k.thread(t).state, Some(ThreadState::Running));
                    self.ready(t);
                }
                Event::Timer(_) => {}
            }
        }
    }

    fn check(&self) {
        let now = self.k.now();
        let mut ran = 0;
        let mut runnable = 0;
        for at in 0..self.born.len() {
            let used = self.k.thread(ThreadId(at as u32));
            ran += used.run_ns;
            let life = self.ended[at].unwrap_or(now) - self.born[at];
            let sum = used.run_ns
                + used.wait_ns
                + used.lock_ns
                + used.io_ns
                + used.sleep_ns
                + used.frozen_ns;
            assert_eq!(sum, life, "thread {at}: {used:?}");
            assert!(used.spin_ns + used.stall_ns <= used.run_ns);
            assert!(used.work_ns <= used.run_ns + 1);
            if let Some(cpu) = used.cpu {
                runnable += 1;
                assert!(
                    self.allowed[at].contains(cpu),
                    "thread {at} is on CPU {cpu}"
                );
            }
        }
        let busy: u64 = (0..self.cpus).map(|c| self.k.cpu(c).busy_ns).sum();
        assert_eq!(busy, ran, "CPUs' busy time is threads' run time");
        assert!(self.k.runnable() <= runnable);
        assert!(self.k.pressure_ns() <= now);
        for cpu in 0..self.cpus {
            let used = self.k.cpu(cpu);
            assert_eq!(used.busy_ns + used.idle_ns, now);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn time_is_conserved_and_affinity_is_kept(
        machine in machines(),
        seed in any::<u64>(),
        acts in prop::collection::vec((act(), 0..20_000_000_u64), 1..60),
    ) {
        let mut history = History::new(&machine, seed, None);
        let mut time = 0;
        for (act, after) in &acts {
            history.act(act);
            time += after;
            history.until(time);
            history.check();
        }
        history.until(time + 100 * MS);
        history.check();
    }

    #[test]
    fn the_same_calls_give_the_same_events(
        machine in machines(),
        seed in any::<u64>(),
        acts in prop::collection::vec((act(), 0..20_000_000_u64), 1..40),
    ) {
        let run = || {
            let log = Log::default();
            let mut history = History::new(&machine, seed, Some(log.clone()));
            let mut time = 0;
            for (act, after) in &acts {
                history.act(act);
                time += after;
                history.until(time);
            }
            (history.log, log.0.lock().unwrap().clone())
        };
        prop_assert_eq!(run(), run());
    }

    /// Hogs with any affinities: no CPU idles for long while one waits that it could run.
    #[test]
    fn no_cpu_stays_idle_while_a_thread_waits_that_it_could_run(
        machine in machines(),
        sets in prop::collection::vec(any::<u64>(), 1..12),
    ) {
        let mut play = Play::on(&machine);
        let count = machine.cpus();
        let set = |bits: u64| {
            let set: CpuSet = (0..count).filter(|c| bits >> c & 1 == 1).collect();
            if set.is_empty() { CpuSet::first(count) } else { set }
        };
        let threads: Vec<ThreadId> = sets
            .iter()
            .map(|bits| play.add_to(Does::Hog, GroupId::ROOT, &set(*bits)))
            .collect();
        // A round of balancing takes, in milliseconds, two for each CPU, at ticks; a thread with a warm
        // cache, or a heavy one, takes some rounds.
        let settle = 6 * (u64::from(count) * 2 + 8) * MS;
        play.until(settle);
        let idle: Vec<u64> = (0..count).map(|c| play.k.cpu(c).idle_ns).collect();
        let waits: Vec<u64> = threads.iter().map(|t| play.of(*t).wait_ns).collect();
        play.until(settle + 100 * MS);
        for (cpu, idle) in (0..count).zip(idle) {
            let idle = play.k.cpu(cpu).idle_ns - idle;
            for ((t, bits), waited) in threads.iter().zip(&sets).zip(&waits) {
                let waited = play.of(*t).wait_ns - waited;
                let both = idle == 100 * MS && waited > 90 * MS;
                prop_assert!(!(both && set(*bits).contains(cpu)), "{t:?} waits, CPU {cpu} is idle");
            }
        }
    }
}
