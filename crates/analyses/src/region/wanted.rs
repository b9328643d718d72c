//! What is wanted of a profile, or of a search for races.

/// How the calls of a program are processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Manner {
    /// Deferred, with the strategy `Adaptive`.
    Adaptive = 0,
    /// Deferred, with the strategy `Synchronous`.
    Synchronous = 1,
    /// Deferred, with the strategy `Pool`.
    Pool = 2,
    /// Deferred, with the strategy `Pool` where a CPU is free.
    LowestPool = 3,
    /// Not deferred: the analysis runs at each call.
    Sequential = 4,
    /// The hooks keep the stack of calls, and record nothing: what the instrumentation alone costs.
    Nothing = 5,
}

impl Manner {
    /// All, with the names that people use.
    pub const ALL: [(&'static str, Manner); 6] = [
        ("adaptive", Manner::Adaptive),
        ("synchronous", Manner::Synchronous),
        ("pool", Manner::Pool),
        ("pool-lowest", Manner::LowestPool),
        ("sequential", Manner::Sequential),
        ("nothing", Manner::Nothing),
    ];

    pub(super) fn of(number: u32) -> Manner {
        let known = Manner::ALL.iter().map(|(_, manner)| *manner);
        known
            .into_iter()
            .find(|manner| *manner as u32 == number)
            .unwrap_or(Manner::Adaptive)
    }
}

/// What is wanted of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// How calls are processed.
    pub manner: Manner,
    /// Calls in a buffer; 0: found while running.
    pub capacity: u32,
    /// Buffers in the queue; 0: the strategy's own number.
    pub queue: u32,
    /// Consumers of a pool; 0: one for each CPU.
    pub threads: u32,
    /// Functions that each program's table has room for; rounded up to a power of two.
    pub functions: u32,
    /// Races are searched for, with so many MiB for what each process image did; 0: calls are profiled.
    pub race_mib: u32,
    /// How races are told from what is ordered: a number of [`Order`](crate::race::Order).
    pub order: u32,
}

impl Default for Wanted {
    fn default() -> Self {
        Wanted {
            manner: Manner::Adaptive,
            capacity: 0,
            queue: 0,
            threads: 0,
            functions: 1 << 15,
            race_mib: 0,
            order: 0,
        }
    }
}
