//! How many tokens a build's jobserver keeps in circulation.
//!
//! **The problem.** GNU make's jobserver (its manual, "POSIX Jobserver") is a pipe with a byte, a *token*,
//! for each job that may run besides the first: whoever wants to start another job reads one, and writes it
//! back when the job ends. A client needs no token for its first job. So `n` jobs are `n - 1` tokens; but
//! the number is fixed when the pipe is made, whereas a claim changes while the build runs.
//!
//! **The approach.** Growing is writing more tokens. Shrinking is reading tokens out of the pipe, and that
//! takes as long as their holders' jobs: nobody is made to give one back. What could not be read at once is
//! a *debt*, paid with the tokens that come back next. Only what we wrote ourselves and have not read again
//! is counted, so that a token which a killed job took with it lowers the number of jobs of this build, as
//! under plain make, and nothing else.
//!
//! [`Tokens`] knows nothing of pipes: it is told what was written and read, and says what is to be done.

/// The largest number of jobs: one more than the tokens that any pipe holds, however small the kernel made
/// it (one page).
pub const MOST_JOBS: u32 = 4097;

/// The tokens of one build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    most: u32,
    allowed: u32,
    circulating: u32,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, until the number of jobs changes.
    Rest,
    /// Write so many tokens.
    Put(u32),
    /// Read up to so many tokens, now and as they come back.
    Take(u32),
}

impl Tokens {
    /// The tokens of a build that may run `most` jobs at once, 1 to [`MOST_JOBS`]; larger and smaller numbers
    /// mean the nearest of these. None are in circulation, and one job is allowed.
    pub fn new(most: u32) -> Tokens {
        Tokens {
            most: most.clamp(1, MOST_JOBS),
            allowed: 1,
            circulating: 0,
        }
    }

    /// From now on `jobs` may run at once; never fewer than one, and no more than were asked for.
    pub fn allow(&mut self, jobs: u32) {
        self.allowed = jobs.clamp(1, self.most);
    }

    /// What is to be done. The same until something is told.
    pub fn step(&self) -> Step {
        let wanted = self.allowed - 1;
        if self.circulating < wanted {
            return Step::Put(wanted - self.circulating);
        }
        match self.circulating - wanted {
            0 => Step::Rest,
            debt => Step::Take(debt),
        }
    }

    /// So many tokens were written.
    pub fn put(&mut self, tokens: u32) {
        self.circulating = self.circulating.saturating_add(tokens);
    }

    /// So many tokens were read. More than were ever written can only come from a client that invents some:
    /// they are gone as well.
    pub fn taken(&mut self, tokens: u32) {
        self.circulating = self.circulating.saturating_sub(tokens);
    }

    /// How many jobs may run at once, 1 to [`most`](Self::most).
    pub fn allowed(&self) -> u32 {
        self.allowed
    }

    /// How many jobs the build's user allows.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// How many tokens are in the pipe, held by clients, or lost with killed ones.
    pub fn circulating(&self) -> u32 {
        self.circulating
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A build: tokens in its pipe, tokens that its jobs hold, and tokens that killed jobs took along.
    #[derive(Debug)]
    struct Build {
        tokens: Tokens,
        pipe: u32,
        held: u32,
        lost: u32,
    }

    impl Build {
        fn of(most: u32) -> Build {
            Build {
                tokens: Tokens::new(most),
                pipe: 0,
                held: 0,
                lost: 0,
            }
        }

        fn allow(&mut self, jobs: u32) {
            self.tokens.allow(jobs);
            self.serve();
        }

        /// What the owner of the pipe does whenever something has happened to it.
        fn serve(&mut self) {
            match self.tokens.step() {
                Step::Rest => {}
                Step::Put(tokens) => {
                    self.pipe += tokens;
                    self.tokens.put(tokens);
                }
                Step::Take(tokens) => {
                    let read = tokens.min(self.pipe);
                    self.pipe -= read;
                    self.tokens.taken(read);
                }
            }
        }

        /// As many more jobs as there are tokens for, up to `jobs`.
        fn start_jobs(&mut self, jobs: u32) {
            let more = jobs.min(self.pipe);
            self.pipe -= more;
            self.held += more;
        }

        fn end_jobs(&mut self, jobs: u32) {
            let ended = jobs.min(self.held);
            self.held -= ended;
            self.pipe += ended;
        }

        fn kill_jobs(&mut self, jobs: u32) {
            let killed = jobs.min(self.held);
            self.held -= killed;
            self.lost += killed;
        }
    }

    #[test]
    fn a_build_gets_a_token_for_each_thread_of_its_claim_but_the_first() {
        let mut build = Build::of(8);
        build.allow(4);
        assert_eq!(build.pipe, 3);
        assert_eq!(build.tokens.step(), Step::Rest);
    }

    #[test]
    fn a_claim_of_more_than_the_user_asked_for_changes_nothing() {
        let mut build = Build::of(4);
        build.allow(64);
        assert_eq!((build.pipe, build.tokens.allowed()), (3, 4));
    }

    #[test]
    fn a_build_is_never_left_without_its_first_job() {
        let mut build = Build::of(4);
        build.allow(4);
        build.allow(0);
        assert_eq!((build.pipe, build.tokens.allowed()), (0, 1));
    }

    #[test]
    fn tokens_that_jobs_hold_are_taken_when_they_come_back() {
        let mut build = Build::of(8);
        build.allow(8);
        build.start_jobs(7);
        build.allow(3);
        assert_eq!(build.tokens.step(), Step::Take(5));
        build.end_jobs(2);
        build.serve();
        assert_eq!((build.pipe, build.held), (0, 5));
        build.end_jobs(5);
        build.serve();
        assert_eq!(build.pipe, 2);
        assert_eq!(build.tokens.step(), Step::Rest);
    }

    #[test]
    fn a_claim_that_grows_again_forgives_the_debt_first() {
        let mut build = Build::of(8);
        build.allow(8);
        build.start_jobs(7);
        build.allow(2);
        build.allow(6);
        assert_eq!(build.tokens.step(), Step::Take(2));
        build.allow(8);
        assert_eq!(build.tokens.step(), Step::Rest);
        assert_eq!(build.pipe, 0);
    }

    #[test]
    fn a_token_that_a_killed_job_took_along_is_not_made_again_nor_owed_for_ever_by_others() {
        let mut build = Build::of(4);
        build.allow(4);
        build.start_jobs(3);
        build.kill_jobs(1);
        build.end_jobs(3);
        build.serve();
        assert_eq!((build.pipe, build.tokens.circulating()), (2, 3));
        // Another build has tokens of its own.
        assert_eq!(Build::of(4).tokens.circulating(), 0);
    }

    #[test]
    fn tokens_that_a_client_invents_do_not_upset_the_count() {
        let mut tokens = Tokens::new(2);
        tokens.taken(3);
        assert_eq!(tokens.circulating(), 0);
        tokens.allow(2);
        assert_eq!(tokens.step(), Step::Put(1));
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Allow(u32),
        Start(u32),
        End(u32),
        Kill(u32),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            3 => (0..40u32).prop_map(Event::Allow),
            4 => (0..20u32).prop_map(Event::Start),
            4 => (0..20u32).prop_map(Event::End),
            1 => (0..3u32).prop_map(Event::Kill),
        ]
    }

    proptest! {
        #[test]
        fn no_token_is_lost_or_made_and_no_more_circulate_than_are_allowed_or_still_held(
            most in 1..32u32,
            events in prop::collection::vec(event(), 0..200),
        ) {
            let mut build = Build::of(most);
            for event in events {
                match event {
                    Event::Allow(jobs) => build.allow(jobs),
                    Event::Start(jobs) => build.start_jobs(jobs),
                    Event::End(jobs) => build.end_jobs(jobs),
                    Event::Kill(jobs) => build.kill_jobs(jobs),
                }
                build.serve();
                let (tokens, gone) = (build.tokens, build.held + build.lost);
                prop_assert_eq!(tokens.circulating(), build.pipe + gone);
                prop_assert!(tokens.circulating() <= (tokens.allowed() - 1).max(gone));
                prop_assert!(tokens.allowed() <= most);
            }
            // Once every job has ended, just what is allowed is there, but for what was lost.
            build.end_jobs(u32::MAX);
            build.serve();
            let wanted = build.tokens.allowed() - 1;
            prop_assert_eq!(build.pipe, wanted.saturating_sub(build.lost));
            prop_assert_eq!(build.tokens.circulating(), wanted.max(build.lost));
        }
    }
}
