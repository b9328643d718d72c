//! What follows the claim of a program: adapters within its processes, or the jobserver of a build.

use super::Managed;
use corewise_decide::cpus::CpuSet;
use corewise_decide::status::Wants;
use std::fmt::Debug;

/// Something that follows a program's claim while it runs, and knows what the program could use.
pub trait Follower: Debug + Send + Sync {
    /// The program's claim is this from now on. Must not block.
    fn grant(&self, threads: u32, cpus: &CpuSet);

    /// No manager says anything: the program may do as it would without corewise. May be said again.
    fn release(&self);

    /// What the program wants by what this follower knows; `None` while it follows nothing.
    fn wants(&self) -> Option<Wants>;

    /// How many threads run now, and how many occasions to follow there have been; `None` where the
    /// program's threads may be confined to its claim before it has come down to it.
    fn running(&self) -> Option<(u32, u64)>;

    /// What follows the claim now, by the names that people know. Empty while nothing does.
    fn names(&self) -> Vec<&'static str>;

    /// Whether threads of what follows now wait for each other in loops, unless told otherwise.
    fn spins(&self) -> bool;

    /// Adds what came of it so far.
    fn tell(&self, managed: &mut Managed);
}

/// All that follow one program's claim.
#[derive(Debug, Default)]
pub(super) struct Followers(Vec<Box<dyn Follower>>);

impl Followers {
    pub(super) fn new(all: impl IntoIterator<Item = Box<dyn Follower>>) -> Followers {
        Followers(all.into_iter().collect())
    }

    pub(super) fn grant(&self, threads: u32, cpus: &CpuSet) {
        for follower in &self.0 {
            follower.grant(threads, cpus);
        }
    }

    pub(super) fn release(&self) {
        for follower in &self.0 {
            follower.release();
        }
    }

    /// Each is granted the whole claim: the one that could use most says what is wanted.
    pub(super) fn wants(&self) -> Option<Wants> {
        let wants = self.0.iter().filter_map(|follower| follower.wants());
        wants.max_by_key(|wants| wants.max_threads)
    }

    /// The largest number of threads, and all occasions.
    pub(super) fn running(&self) -> Option<(u32, u64)> {
        let running = self.0.iter().filter_map(|follower| follower.running());
        running.reduce(|(run, occasions), (other, more)| (run.max(other), occasions + more))
    }

    pub(super) fn names(&self) -> Vec<&'static str> {
        self.0.iter().flat_map(|f| f.names()).collect()
    }

    pub(super) fn spins(&self) -> bool {
        self.0.iter().any(|follower| follower.spins())
    }

    pub(super) fn tell(&self, managed: &mut Managed) {
        for follower in &self.0 {
            follower.tell(managed);
        }
    }
}
