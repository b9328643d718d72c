//! Policies that are any text: loaded, and run on some events. They may be refused, fail, or be stopped
//! at a limit.
#![no_main]

use corewise_decide::global::GlobalManager;
use corewise_decide::policy::Policy;
use corewise_decide::policy::script::ScriptPolicy;
use corewise_decide::reading::{CpuReading, MachineReading};
use corewise_decide::status::{Machine, Placement, ProgramId, Wants};
use corewise_decide::world::{Input, ProgramUse, Readings};
use corewise_fuzz::check_claims;
use libfuzzer_sys::fuzz_target;

fn joined(program: u64, malleable: bool) -> Input {
    Input::Joined {
        program: ProgramId(program),
        pid: 100,
        name: "guest".to_owned(),
        wants: Wants {
            min_threads: 1,
            max_threads: 4,
            placement: Placement::Any,
            malleable,
        },
    }
}

fn readings(time_ns: u64) -> Input {
    let cpu = |cpu| CpuReading {
        cpu,
        busy_ns: time_ns / 2,
        idle_ns: 0,
        steal_ns: 0,
    };
    Input::Readings(Readings {
        machine: MachineReading {
            time_ns,
            cpus: (0..4).map(cpu).collect(),
            runnable: Some(3),
            pressure_ns: None,
            ..MachineReading::default()
        },
        programs: vec![ProgramUse {
            program: ProgramId(1),
            run_ns: time_ns,
            progress: 1,
            team: 2,
            could_use: 3,
            blocked: 0,
        }],
    })
}

fuzz_target!(
    init: {
        // A panic of the interpreter's is the script's failure, and caught as such: the hook that is there
        // would end the process first. One that is not caught still does.
        std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    },
    |text: &str| {
        let Ok(policy) = ScriptPolicy::new(text, "mine.rhai") else {
            return;
        };
        let _ = (policy.name(), policy.local_rule());
        let mut manager = GlobalManager::new(Box::new(policy));
        let one = ProgramId(1);
        let inputs = [
            Input::Machine(Machine::flat(4)),
            joined(1, true),
            joined(2, false),
            readings(1_000_000_000),
            Input::Threads { program: one, count: 3 },
            readings(2_000_000_000),
            Input::Answered { program: one, request: 1, yes: true },
            Input::Overridden { program: one, claim: None },
            Input::Failed { program: None, what: "something".to_owned() },
            Input::Left { program: one },
            readings(3_000_000_000),
        ];
        for (input, second) in inputs.iter().zip(1..) {
            manager.on(second * 1_000_000_000, input);
            check_claims(&manager);
            // What it keeps can be written down, and it goes on with it.
            let kept = serde_json::to_string(&manager.known()).unwrap();
            serde_json::from_str::<corewise_decide::global::Known>(&kept).unwrap();
        }
    }
);
