//! The experiments: each a named function that measures and returns a report. The frame and the
//! tools that experiments share are here; the command line is in main.rs.
//!
//! To add one: a module below, and a line in [`EXPERIMENTS`].

// The frame and the tools.
pub mod actor;
pub mod cells;
pub mod cgroup;
pub mod corewise;
pub mod debian;
pub mod experiment;
pub mod gang;
pub mod inputs;
pub mod later_runs;
pub mod load;
pub mod made;
pub mod measure;
pub mod peak;
pub mod programs;
pub mod stats;

// The experiments.
pub mod adapted;
pub mod busy_neighbour;
pub mod catalogue_check;
pub mod defer;
pub mod manage;
pub mod oversubscribed;
pub mod probes_harmless;
pub mod race;
pub mod readings;
pub mod simulated;
pub mod tune_real;

use experiment::Experiment;

/// Every experiment, in the order in which `list` shows them.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "tune-real",
        about: "what `corewise tune` chooses for real programs, against the best of a full sweep",
        run: tune_real::run,
    },
    Experiment {
        name: "busy-neighbour",
        about: "`corewise run` beside one busy process, against every static setting",
        run: busy_neighbour::run,
    },
    Experiment {
        name: "probes-harmless",
        about: "whether tuning harmful programs leaves files, listeners and processes as before",
        run: probes_harmless::run,
    },
    Experiment {
        name: "readings",
        about: "what is read of a program from outside, against what it knows of itself, and the cost",
        run: readings::run,
    },
    Experiment {
        name: "manager-cost",
        about: "what it costs programs to be managed, and what the managers use themselves",
        run: manage::cost::run,
    },
    Experiment {
        name: "claim-latency",
        about: "what reading a claim costs, and how soon a program sees a new one",
        run: manage::latency::run,
    },
    Experiment {
        name: "automax-waves",
        about: "a malleable program beside waves of jobs, against fixed numbers of threads and an oracle",
        run: manage::waves::run,
    },
    Experiment {
        name: "survive",
        about: "whether anything is lost when managers and programs are killed, or talk nonsense",
        run: manage::survive::run,
    },
    Experiment {
        name: "sim-real",
        about: "what the simulated world says of this machine, against this machine",
        run: simulated::real::run,
    },
    Experiment {
        name: "sim-neighbour",
        about: "why spinning collapses beside a busy neighbour, simulated on 2, 8 and 24 CPUs",
        run: simulated::neighbour::run,
    },
    Experiment {
        name: "sim-policy",
        about: "policies, built in and as scripts, on a thousand random simulated scenarios",
        run: simulated::policy::run,
    },
    Experiment {
        name: "sim-speed",
        about: "how long simulating takes, and what an event costs by the number of threads",
        run: simulated::speed::run,
    },
    Experiment {
        name: "sim-scaling",
        about: "Thread Reinforcer's sixteen programs on simulated 24 cores: speed-ups, against its Tables III and IV",
        run: simulated::reinforcer::scaling::run,
    },
    Experiment {
        name: "sim-reinforcer",
        about: "what Thread Reinforcer and the default search find for those programs, against its Tables VII to XII",
        run: simulated::reinforcer::search::run,
    },
    Experiment {
        name: "sim-broken-screw",
        about: "programs on a simulated quad core with a broken screw: the policy, plain Linux, and the best CPU",
        run: simulated::reeact::screw::run,
    },
    Experiment {
        name: "sim-automax",
        about: "a malleable program beside waves of jobs on simulated four cores, against REEact's Figure 5",
        run: simulated::reeact::automax::run,
    },
    Experiment {
        name: "sim-prefetch",
        about: "prefetchers switched by policy, always on and always off: time and energy, against REEact's Figure 6",
        run: simulated::reeact::prefetch::run,
    },
    Experiment {
        name: "sim-together",
        about: "two policies from one file on a simulated machine, against each alone",
        run: simulated::reeact::together::run,
    },
    Experiment {
        name: "sim-oversubscription",
        about: "where a static program's time rises beside busy threads on simulated eight CPUs, and what is detected",
        run: simulated::oversubscription::run,
    },
    Experiment {
        name: "sim-gangs",
        about: "virtual machines that compile on simulated four cores: fair, coscheduled as in the paper, and our gangs",
        run: simulated::gangs::run,
    },
    Experiment {
        name: "oversubscription",
        about: "a static and a dynamic program with ever more threads beside another, and whether that is detected",
        run: oversubscribed::run,
    },
    Experiment {
        name: "later-runs",
        about: "real programs run again and again, with trials of other numbers of threads and without",
        run: later_runs::run,
    },
    Experiment {
        name: "adapters-cost",
        about: "what adapters cost a program: each parallel region, each piece of a loop, its start",
        run: adapted::cost::run,
    },
    Experiment {
        name: "follow",
        about: "how soon each runtime follows a change of its program's claim",
        run: adapted::follow::run,
    },
    Experiment {
        name: "adapters-same-result",
        about: "whether programs compute the same while their claims are flipped at random",
        run: adapted::same_result::run,
    },
    Experiment {
        name: "neighbour-comes-and-goes",
        about: "programs beside a busy process that comes and goes, against an oracle that switches for it",
        run: adapted::comes_and_goes::run,
    },
    Experiment {
        name: "co-run",
        about: "pairs of real programs side by side under a manager, against plain Linux",
        run: adapted::co_run::run,
    },
    Experiment {
        name: "share",
        about: "what Linux gives a busy thread of a session of its own, beside real programs of another",
        run: adapted::share::run,
    },
    Experiment {
        name: "gang-pairs",
        about: "copies of programs whose threads need each other, by turns, against plain Linux and bin packing",
        run: gang::pairs::run,
    },
    Experiment {
        name: "gang-partial",
        about: "gangs that leave CPUs idle, simulated, and the other setups of the paper's table, against bin packing",
        run: gang::partial::run,
    },
    Experiment {
        name: "gang-scale",
        about: "what a decision of the gang schedule costs on machines of up to 1,024 CPUs with up to 10,000 sets",
        run: gang::scale::run,
    },
    Experiment {
        name: "gang-collective",
        about: "how long stopping and continuing all threads takes, and how much of the time they run at once",
        run: gang::collective::run,
    },
    Experiment {
        name: "gang-bystander",
        about: "what a program outside any set, and a periodic task, notice of gangs",
        run: gang::bystander::run,
    },
    Experiment {
        name: "gang-survive",
        about: "whether anything stays stopped when managers and hosts of gangs are killed",
        run: gang::survive::run,
    },
    Experiment {
        name: "live-tuning",
        about: "each region's number of threads found while the program runs, against an exhaustive sweep",
        run: adapted::live::run,
    },
    Experiment {
        name: "defer-append",
        about: "what one deferred call costs its caller, beside libraries that store events; calls a second",
        run: defer::append::run,
    },
    Experiment {
        name: "defer-baselines",
        about: "the analysis at each call, and one task a call, against plain programs: what buffers are for",
        run: defer::baselines::run,
    },
    Experiment {
        name: "defer-table1",
        about: "capacities of queue and buffers against speed-up, and the capacity found while running",
        run: defer::table::run,
    },
    Experiment {
        name: "defer-strategies",
        about: "the profiler on real programs with each strategy, over the sequential analysis",
        run: defer::strategies::run,
    },
    Experiment {
        name: "profile-cost",
        about: "the slow-down by the profiler beside uftrace and callgrind, and whether counts are the same",
        run: defer::cost::run,
    },
    Experiment {
        name: "race-truth",
        about: "which races of small programs are found, and which that are none, beside other detectors",
        run: race::truth::run,
    },
    Experiment {
        name: "race-cost",
        about: "the slow-down and the memory of the race detector beside ThreadSanitizer, by strategy",
        run: race::cost::run,
    },
    Experiment {
        name: "race-same",
        about: "whether verdicts depend on the strategy, the capacity of buffers or the number of CPUs",
        run: race::same::run,
    },
    Experiment {
        name: "programs",
        about: "whether each program of the catalogue obeys its number of threads, and its times",
        run: catalogue_check::run,
    },
];
