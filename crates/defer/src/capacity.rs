//! How many consumers may run now.

/// Says how many threads may process buffers beside the program. A program's claim is one
/// (`corewise-program` implements this for it); a number is one that never changes.
pub trait Capacity: Send + Sync + 'static {
    /// How many may run now. Read before every buffer; it should cost no more than a few nanoseconds.
    fn threads(&self) -> u32;
}

impl Capacity for u32 {
    fn threads(&self) -> u32 {
        *self
    }
}

/// The CPUs that Linux lets this process use, when it is asked: affinity and CPU quotas considered; at
/// least one.
pub fn available() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cpus).unwrap_or(u32::MAX)
}
