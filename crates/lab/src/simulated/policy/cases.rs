//! Random scenarios: a machine of 1 to 128 CPUs, and programs of every kind that policies meet.
//!
//! A case is small data, so that it can be made smaller while it still shows what it shows, and it is
//! written as the text of a scenario file, so that people can run it with `corewise simulate`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use corewise_sim::scenario::{Scenario, read};

/// Numbers of CPUs, small ones as often as large ones.
const CPUS: [u32; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];

/// Longer than this, in milliseconds, no case is watched.
const LIMIT_MS: u64 = 60_000;

/// A random scenario.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Case {
    pub(super) seed: u64,
    pub(super) cpus: u32,
    pub(super) programs: Vec<Made>,
}

/// A program of a case.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Made {
    pub(super) kind: Kind,
    pub(super) start_ms: u32,
    /// The session that it is in, by number.
    pub(super) session: u32,
}

/// What a program is. Times are in milliseconds of CPU time at full speed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// A team that follows its claim: rounds of a serial part and a region of units.
    Team {
        most: u32,
        rounds: u32,
        serial_ms: u32,
        region_ms: u32,
        unit_ms: u32,
    },
    /// A program with a number of threads of its own: rounds of a serial part and a region of even shares.
    Rigid {
        threads: u32,
        rounds: u32,
        serial_ms: f64,
        region_ms: f64,
        wait: Wait,
    },
    /// A pipeline of three stages, the middle one wide.
    Pipeline {
        threads: u32,
        items: u32,
        item_ms: u32,
    },
    /// Busy threads without end that are not under management.
    Hog { threads: u32 },
    /// Waves of one-thread jobs.
    Jobs {
        at_once: u32,
        waves: u32,
        pause_ms: u32,
        work_ms: u32,
        managed: bool,
    },
    /// Threads that sleep most of the time.
    Sleeper {
        threads: u32,
        rounds: u32,
        work_us: u32,
        sleep_us: u32,
        managed: bool,
    },
}

/// How a rigid program's threads wait for each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wait {
    Block,
    SpinFirst,
    Spin,
}

impl Case {
    /// The case of a number: always the same.
    pub(super) fn random(seed: u64) -> Case {
        let mut random = fastrand::Rng::with_seed(seed);
        let cpus = CPUS[random.usize(..CPUS.len())];
        let count = random.usize(1..=5);
        // Work of the whole machine for about so long, in milliseconds of CPU time.
        let work_ms = cpus * random.u32(2_000..8_000);
        let own_sessions = random.bool();
        let programs = (0..count).map(|index| Made {
            kind: Kind::random(&mut random, cpus, work_ms / count as u32),
            start_ms: match random.u32(..3) {
                0 => 0,
                _ => random.u32(..1_000),
            },
            session: match own_sessions {
                true => index as u32,
                false => 0,
            },
        });
        let mut case = Case {
            seed,
            cpus,
            programs: programs.collect(),
        };
        // Something has to end.
        if case.programs.iter().all(|p| !p.kind.ends()) {
            let most = cpus;
            case.programs[0].kind = Kind::team(&mut random, most, cpus, work_ms);
        }
        case
    }

    /// The same with other programs.
    pub(super) fn with(&self, programs: Vec<Made>) -> Case {
        Case {
            programs,
            ..self.clone()
        }
    }

    /// The same programs, with other random numbers for how uneven their work is.
    pub(super) fn with_other_numbers(&self) -> Case {
        Case {
            seed: self.seed + 1_000_000,
            ..self.clone()
        }
    }

    /// Its scenario under a policy (`none`, a built-in one or a file).
    pub(super) fn scenario(&self, policy: &str, folder: &Path) -> Result<Scenario> {
        let path = folder.join(format!("case-{}.toml", self.seed));
        Ok(Scenario::from_toml(&self.text(policy), &path, &read)?)
    }

    /// As a scenario file.
    pub(super) fn text(&self, policy: &str) -> String {
        let mut text = format!(
            "name = \"random scenario {}\"\nmachine = \"flat:{}\"\npolicy = \"{policy}\"\nseed = {}\n\
             limit_ms = {LIMIT_MS}\n",
            self.seed, self.cpus, self.seed
        );
        for (index, made) in self.programs.iter().enumerate() {
            let name = format!("{}-{}", made.kind.word(), index + 1);
            let _ = write!(
                text,
                "\n[[program]]\nname = \"{name}\"\nstart_ms = {}\nsession = \"{}\"\n",
                made.start_ms, made.session
            );
            text += &made.kind.text(&name);
        }
        text
    }
}

impl Kind {
    fn random(random: &mut fastrand::Rng, cpus: u32, work_ms: u32) -> Kind {
        let few = |random: &mut fastrand::Rng| random.u32(1..=cpus.div_ceil(4));
        let any = |random: &mut fastrand::Rng| match random.u32(..3) {
            0 => cpus,
            _ => random.u32(1..=cpus),
        };
        match random.u32(..10) {
            0..=2 => {
                let most = match random.bool() {
                    true => cpus,
                    false => random.u32(1..=cpus),
                };
                Kind::team(random, most, cpus, work_ms)
            }
            3..=5 => {
                let threads = any(random);
                let each_ms = [0.2, 1.0, 5.0, 20.0][random.usize(..4)];
                let serial_ms = each_ms * [0.0, 0.1, 1.0][random.usize(..3)];
                let region_ms = each_ms * f64::from(threads);
                // Long enough to be noticed, and short enough to be simulated in large numbers.
                let alone_ms = f64::from(random.u32(500..4_000)).min(f64::from(work_ms));
                let rounds = (alone_ms / (each_ms + serial_ms)).max(1.0) as u32;
                Kind::Rigid {
                    threads,
                    rounds,
                    serial_ms,
                    region_ms,
                    wait: [Wait::Block, Wait::SpinFirst, Wait::Spin][random.usize(..3)],
                }
            }
            6 => {
                let item_ms = random.u32(1..10) * cpus.div_ceil(16);
                Kind::Pipeline {
                    threads: any(random),
                    items: (work_ms / item_ms / 2).max(1),
                    item_ms,
                }
            }
            7 => Kind::Hog {
                threads: few(random),
            },
            8 => Kind::Jobs {
                at_once: few(random),
                waves: random.u32(1..=3),
                pause_ms: random.u32(50..800),
                work_ms: random.u32(50..800),
                managed: random.bool(),
            },
            _ => Kind::Sleeper {
                threads: any(random),
                rounds: random.u32(50..200),
                work_us: random.u32(50..1_000),
                sleep_us: random.u32(2_000..20_000),
                managed: random.bool(),
            },
        }
    }

    fn team(random: &mut fastrand::Rng, most: u32, cpus: u32, work_ms: u32) -> Kind {
        let rounds = [1, 4, 20][random.usize(..3)];
        let region_ms = (work_ms / rounds).max(1);
        let serial_ms = match random.bool() {
            true => 0,
            // Up to as long as the region takes on all CPUs.
            false => random.u32(..=region_ms / cpus),
        };
        Kind::Team {
            most,
            rounds,
            serial_ms,
            region_ms,
            unit_ms: random.u32(1..=5) * cpus.div_ceil(16),
        }
    }

    /// Whether it ends by itself.
    pub(super) fn ends(&self) -> bool {
        !matches!(self, Kind::Hog { .. })
    }

    /// What it is called.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Kind::Team { .. } => "team",
            Kind::Rigid { wait, .. } => match wait {
                Wait::Block => "blocking",
                Wait::SpinFirst => "spinning-first",
                Wait::Spin => "spinning",
            },
            Kind::Pipeline { .. } => "pipeline",
            Kind::Hog { .. } => "hog",
            Kind::Jobs { .. } => "job",
            Kind::Sleeper { .. } => "sleeper",
        }
    }

    /// Programs that it is at the same time.
    pub(super) fn at_once(&self) -> u32 {
        match self {
            Kind::Hog { threads } => *threads,
            Kind::Jobs { at_once, .. } => *at_once,
            _ => 1,
        }
    }

    /// One program of it.
    pub(super) fn single(&self) -> Kind {
        let mut kind = self.clone();
        match &mut kind {
            Kind::Hog { threads } => *threads = 1,
            Kind::Jobs { at_once, waves, .. } => (*at_once, *waves) = (1, 1),
            _ => {}
        }
        kind
    }

    /// Half as much of it, for a smaller case; `None` where there is nothing to halve.
    pub(super) fn shorter(&self) -> Option<Kind> {
        let half = |n: u32| n.div_ceil(2);
        let mut kind = self.clone();
        match &mut kind {
            Kind::Team {
                rounds, region_ms, ..
            } => match *rounds {
                1 => *region_ms = half(*region_ms),
                _ => *rounds = half(*rounds),
            },
            Kind::Rigid { rounds, .. } | Kind::Sleeper { rounds, .. } => *rounds = half(*rounds),
            Kind::Pipeline { items, .. } => *items = half(*items),
            Kind::Jobs { waves, .. } => *waves = half(*waves),
            Kind::Hog { threads } => *threads = half(*threads),
        }
        (kind != *self).then_some(kind)
    }

    /// Its keys within `[[program]]`.
    fn text(&self, name: &str) -> String {
        match self {
            Kind::Team {
                most,
                rounds,
                serial_ms,
                region_ms,
                unit_ms,
            } => {
                let units = (region_ms / unit_ms).max(1);
                format!(
                    "malleable = true\nmax_threads = {most}\n[program.spec]\nname = \"{name}\"\n\
                     malleable = true\n[[program.spec.phase]]\nrepeat = {rounds}\n{}\
                     [[program.spec.phase.phase]]\nregion = {{ work_ms = {region_ms}, \
                     schedule = \"dynamic\", units = {units}, imbalance = 0.3 }}\n",
                    serial(f64::from(*serial_ms))
                )
            }
            Kind::Rigid {
                threads,
                rounds,
                serial_ms,
                region_ms,
                wait,
            } => {
                let wait = match wait {
                    Wait::Block => "\"block\"",
                    Wait::SpinFirst => "{ spin_us = 5000 }",
                    Wait::Spin => "\"spin\"",
                };
                format!(
                    "threads = {threads}\n[program.spec]\nname = \"{name}\"\nwait = {wait}\n\
                     [[program.spec.phase]]\nrepeat = {rounds}\n{}[[program.spec.phase.phase]]\n\
                     region = {{ work_ms = {region_ms}, imbalance = 0.1 }}\n",
                    serial(*serial_ms)
                )
            }
            Kind::Pipeline {
                threads,
                items,
                item_ms,
            } => format!(
                "threads = {threads}\n[program.spec]\nname = \"{name}\"\n[[program.spec.phase]]\n\
                 [program.spec.phase.pipeline]\nitems = {items}\n\
                 [[program.spec.phase.pipeline.stage]]\nname = \"read\"\nwork_us = 50\n\
                 [[program.spec.phase.pipeline.stage]]\nname = \"work\"\nthreads = \"team\"\n\
                 work_us = {}\nvariation = 0.5\n\
                 [[program.spec.phase.pipeline.stage]]\nname = \"write\"\nwork_us = 50\nordered = true\n",
                item_ms * 1_000
            ),
            Kind::Hog { threads } => format!(
                "count = {threads}\nthreads = 1\nmanaged = false\nbackground = true\n[program.spec]\n\
                 name = \"{name}\"\n[[program.spec.phase]]\nrepeat = \"forever\"\n\
                 serial = {{ work_ms = 10 }}\n"
            ),
            Kind::Jobs {
                at_once,
                waves,
                pause_ms,
                work_ms,
                managed,
            } => format!(
                "count = {at_once}\nwaves = {waves}\npause_ms = {pause_ms}\nthreads = 1\n\
                 managed = {managed}\n[program.spec]\nname = \"{name}\"\n[[program.spec.phase]]\n\
                 serial = {{ work_ms = {work_ms} }}\n"
            ),
            Kind::Sleeper {
                threads,
                rounds,
                work_us,
                sleep_us,
                managed,
            } => format!(
                "threads = 1\nmanaged = {managed}\n[program.spec]\nname = \"{name}\"\n\
                 [[program.spec.phase]]\n[[program.spec.phase.group]]\nname = \"thread\"\n\
                 threads = {threads}\nrepeat = {rounds}\n\
                 steps = [{{ work_us = {work_us} }}, {{ sleep_us = {sleep_us} }}]\n"
            ),
        }
    }
}

fn serial(ms: f64) -> String {
    match ms > 0.0 {
        true => format!("[[program.spec.phase.phase]]\nserial = {{ work_ms = {ms} }}\n"),
        false => String::new(),
    }
}
