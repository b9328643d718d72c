//! The Linux world: waits for what happens, and carries out what is decided.

use crate::clocks::ProcessClocks;
use crate::connection::{Connection, Managed, WINDOW_NS};
use crate::journal::Journal;
use crate::listen::Listener;
use crate::machine::MachineWatch;
use crate::outer::{Outer, Sum};
use crate::policy::{Changed, PolicyWatch};
use crate::sensing::HardwareSensors;
use crate::service::ServiceManager;
use crate::settings::Settings;
use crate::sys::Signals;
use crate::waiter::{Waiter, now_ns};
use crate::{Error, Options, status};
use corewise_abi::message::{LocalRule, ToProgram};
use corewise_decide::global::GlobalManager;
use corewise_decide::policy::source::Source;
use corewise_decide::status::ProgramId;
use corewise_decide::world::{Entry, Happened, Input, Output, World};
use corewise_machine::neighbours::scheduling_group;
use corewise_machine::{HostReader, Root};
use rustix::event::epoll::EventFlags;
use std::collections::{BTreeMap, HashMap};

/// What an event is about: these, or a connection's number doubled, and one more for its process.
const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
pub(crate) const OUTER: u64 = 2;
pub(crate) const OUTER_GRANTS: u64 = 3;
const FIRST_CONNECTION: u64 = 2;

/// Time between looks at what of the machine may be used, and at the policy's file, in nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;

/// The Linux world of one manager.
pub(crate) struct LinuxWorld<'log> {
    pub(crate) options: Options,
    pub(crate) uid: u32,
    pub(crate) waiter: Waiter,
    signals: Signals,
    pub(crate) listener: Listener,
    pub(crate) connections: HashMap<u64, Connection>,
    pub(crate) next_connection: u64,
    pub(crate) most_connections: usize,
    /// Also those that have left, until what was decided on that is carried out.
    pub(crate) programs: BTreeMap<ProgramId, Managed>,
    pub(crate) next_program: u64,
    /// What has happened and was not handed over yet.
    pub(crate) inputs: Vec<Input>,
    /// What follows once these inputs are decided on.
    pub(crate) afterwards: Afterwards,
    /// Connections that have said enough for now, and when they are heard again.
    pub(crate) paused: Vec<u64>,
    resume_ns: Option<u64>,
    pub(crate) host: HostReader,
    pub(crate) sensors: HardwareSensors,
    pub(crate) clocks: ProcessClocks,
    pub(crate) machine: MachineWatch,
    /// What bounds what may be used of the machine, if somebody does.
    pub(crate) outer: Outer,
    pub(crate) service: ServiceManager,
    /// Until when programs of the manager before us are waited for.
    pub(crate) restored_until_ns: u64,
    pub(crate) policy: PolicyWatch,
    /// The policy's local rule, as it was after the last decision.
    pub(crate) rule: Option<LocalRule>,
    /// When machine and policy were looked at last.
    pub(crate) looked_ns: u64,
    pub(crate) journal: Journal,
    pub(crate) settings: Settings<'log>,
    /// Since when there has been no program; `None` while there is one.
    idle_since_ns: Option<u64>,
    pub(crate) stopping: bool,
}

/// What is done once the inputs of a moment are decided on and carried out: nobody's claim waits for
/// it.
#[derive(Debug, Default)]
pub(crate) struct Afterwards {
    /// Programs to be welcomed.
    pub(crate) welcome: Vec<ProgramId>,
    /// What programs are asked that are not welcomed yet: they expect their welcome first.
    ask: Vec<(ProgramId, ToProgram)>,
    /// Programs whose scheduling group is to be found out: nobody's claim waits for that.
    pub(crate) group: Vec<ProgramId>,
    /// Connections that asked for the status.
    pub(crate) status: Vec<u64>,
    /// Connections whose wish was fulfilled.
    pub(crate) done: Vec<u64>,
    /// Programs that have left.
    pub(crate) gone: Vec<ProgramId>,
    /// Whether an outer manager is to be told all there is to know.
    pub(crate) tell_outer: bool,
}

impl Afterwards {
    fn is_empty(&self) -> bool {
        self.welcome.is_empty()
            && self.status.is_empty()
            && self.done.is_empty()
            && self.gone.is_empty()
            && !self.tell_outer
    }
}

/// What events of a connection are about.
pub(crate) fn of_connection(id: u64) -> u64 {
    2 * id
}

/// What events of the process of a connection's program are about.
pub(crate) fn of_process(id: u64) -> u64 {
    2 * id + 1
}

/// The connection's number of an event, and whether it is about its process.
fn connection_of(event: u64) -> (u64, bool) {
    (event / 2, event % 2 == 1)
}

impl<'log> LinuxWorld<'log> {
    /// A world whose manager has been elected.
    pub(crate) fn new(
        options: Options,
        listener: Listener,
        policy: PolicyWatch,
        source: Source,
        settings: Settings<'log>,
        most_connections: usize,
        service: ServiceManager,
    ) -> Result<LinuxWorld<'log>, Error> {
        let signals = Signals::to_end().map_err(|source| Error::System {
            what: "receive signals as a descriptor",
            source,
        })?;
        let journal = Journal::begin(options.folder.journal(), source, options.journal_bytes);
        let mut world = LinuxWorld {
            uid: rustix::process::geteuid().as_raw(),
            waiter: Waiter::new()?,
            signals,
            listener,
            connections: HashMap::new(),
            next_connection: FIRST_CONNECTION,
            most_connections,
            programs: BTreeMap::new(),
            next_program: 1,
            inputs: Vec::new(),
            afterwards: Afterwards::default(),
            paused: Vec::new(),
            resume_ns: None,
            host: HostReader::open(&Root::system())?,
            sensors: HardwareSensors::new(options.hardware.clone()),
            clocks: ProcessClocks::default(),
            machine: MachineWatch::new(),
            outer: Outer::new(options.system.clone()),
            service,
            restored_until_ns: 0,
            policy,
            rule: None,
            looked_ns: 0,
            journal,
            settings,
            idle_since_ns: Some(now_ns()),
            stopping: false,
            options,
        };
        world.waiter.add(&world.listener, LISTENER)?;
        world.waiter.add(&world.signals, SIGNALS)?;
        world.look_at_machine()?;
        Ok(world)
    }

    /// When there is something to do even if nothing happens.
    fn deadline(&self, read_at_ns: Option<u64>) -> Option<u64> {
        let looked = self.looked_ns.saturating_add(LOOK_NS);
        let leave = self.idle_since_ns.filter(|_| self.options.on_demand);
        let linger = u64::try_from(self.options.linger.as_nanos()).unwrap_or(u64::MAX);
        [
            read_at_ns,
            self.resume_ns,
            self.journal.due_ns(),
            self.settings.sweep_ns(),
            // Without programs nobody needs to know; who joins sees to it.
            (!self.programs.is_empty()).then_some(looked),
            leave.map(|since| since.saturating_add(linger)),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Takes what has happened from the kernel; waits for it until `until_ns` if there is nothing
    /// else to do.
    fn take_events(&mut self, until_ns: Option<u64>) -> Result<(), Error> {
        let busy = !self.inputs.is_empty() || !self.afterwards.is_empty();
        let now = now_ns();
        let until_ns = match self.held_back_until_ns(now) {
            Some(until) => Some(until),
            None if busy => Some(0),
            None => until_ns,
        };
        for (about, flags) in self.waiter.wait(until_ns)? {
            match about {
                LISTENER => self.accept_all(),
                SIGNALS => self.stopping |= self.signals.came(),
                OUTER | OUTER_GRANTS => {
                    match about {
                        OUTER => {
                            let new = self.outer.hear(&self.waiter, now);
                            self.afterwards.tell_outer |= new;
                        }
                        _ => self.outer.hear_grant(),
                    }
                    self.follow_outer();
                }
                _ => self.on_connection(about, flags),
            }
        }
        Ok(())
    }

    fn on_connection(&mut self, about: u64, flags: EventFlags) {
        let (connection, ended) = connection_of(about);
        if ended {
            // The process has ended; others may still hold its connection.
            self.close(connection);
            return;
        }
        if flags.contains(EventFlags::OUT) {
            self.say_more(connection);
        }
        // Also at its end: what was sent before is heard, and then the end itself.
        let ends = EventFlags::HUP | EventFlags::ERR;
        if flags.intersects(EventFlags::IN | ends) {
            self.hear(connection, flags.intersects(ends));
        }
    }

    /// Looks at machine and policy again, if it is time.
    fn look_around(&mut self, now_ns: u64) -> Result<(), Error> {
        if self.programs.is_empty() || now_ns < self.looked_ns.saturating_add(LOOK_NS) {
            return Ok(());
        }
        self.outer.seek(&self.waiter, now_ns);
        self.follow_outer();
        self.look_at_machine()
    }

    /// Looks at machine and policy; what has changed becomes an input.
    pub(crate) fn look_at_machine(&mut self) -> Result<(), Error> {
        self.looked_ns = now_ns();
        // The first look must succeed; later ones may fail for a moment: the machine stays.
        match self.machine.look() {
            Ok(changed) => self.inputs.extend(changed.map(Input::Machine)),
            Err(error) if !self.machine.is_known() => return Err(error.into()),
            Err(_) => {}
        }
        match self.policy.look() {
            Some(Changed::Policy(source)) => {
                // Whatever the last one set: the next one begins with the machine as it was.
                self.settings.release_hardware();
                self.rule = None;
                self.inputs.push(Input::Policy(source));
            }
            Some(Changed::Wrong(what)) => self.inputs.push(Input::Failed {
                program: None,
                what,
            }),
            None => {}
        }
        Ok(())
    }

    /// Those who had said enough are heard again.
    fn resume(&mut self, now_ns: u64) {
        if self.resume_ns.is_none_or(|at| at > now_ns) {
            return;
        }
        self.resume_ns = None;
        for id in std::mem::take(&mut self.paused) {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.paused = false;
            }
            self.renew_interest(id);
        }
    }

    /// Does not listen to a connection for a while.
    pub(crate) fn pause(&mut self, id: u64, now_ns: u64) {
        self.paused.push(id);
        self.resume_ns.get_or_insert(now_ns + WINDOW_NS);
        self.renew_interest(id);
    }

    /// Tells epoll what a connection waits for.
    pub(crate) fn renew_interest(&mut self, id: u64) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let mut flags = EventFlags::empty();
        if !connection.paused {
            flags |= EventFlags::IN;
        }
        if connection.has_more_to_say() {
            flags |= EventFlags::OUT;
        }
        let about = of_connection(id);
        if self
            .waiter
            .change(&connection.channel, about, flags)
            .is_err()
        {
            self.close(id);
        }
    }

    /// Whether a manager on demand has been without programs for long enough, and nobody is about to
    /// join.
    fn leaves(&mut self, now_ns: u64) -> Result<bool, Error> {
        let linger = u64::try_from(self.options.linger.as_nanos()).unwrap_or(u64::MAX);
        let since = self.idle_since_ns.filter(|_| self.options.on_demand);
        if since.is_none_or(|since| now_ns < since.saturating_add(linger)) {
            return Ok(false);
        }
        // Nobody can connect from here on. Who has connected before may have joined already.
        let ours = self.listener.withdraw();
        self.accept_all();
        let connections: Vec<u64> = self.connections.keys().copied().collect();
        for id in connections {
            self.hear(id, false);
        }
        if self.programs.is_empty() {
            return Ok(true);
        }
        if ours {
            self.listener = Listener::open(&self.options, None)?;
            self.waiter.add(&self.listener, LISTENER)?;
        }
        Ok(false)
    }

    /// Ends in good order: claims bind no longer, nobody can connect, the journal is whole.
    pub(crate) fn end(mut self) {
        self.listener.withdraw();
        for managed in self.programs.values_mut() {
            managed.claim.end();
        }
        self.journal.write();
        // Before the connections are closed: who waits for our end finds everything as it was.
        self.settings.end();
        for connection in self.connections.values() {
            connection.end();
        }
    }
}

impl World for LinuxWorld<'_> {
    type Error = Error;

    fn next(&mut self, read_at_ns: Option<u64>) -> Result<Option<Happened>, Error> {
        loop {
            self.journal.write_if_due(now_ns());
            self.take_events(self.deadline(read_at_ns))?;
            let mut now = now_ns();
            if self.held_back_until_ns(now).is_some() && !self.stopping {
                continue;
            }
            self.resume(now);
            self.look_around(now)?;
            self.settings.sweep(now);
            if read_at_ns.is_some_and(|at| at <= now) {
                let readings = self.read(now);
                self.inputs.push(Input::Readings(readings));
                now = now_ns();
            }
            if self.stopping || self.leaves(now)? {
                return Ok(None);
            }
            if !self.inputs.is_empty() || !self.afterwards.is_empty() {
                return Ok(Some(Happened {
                    time_ns: now,
                    inputs: std::mem::take(&mut self.inputs),
                }));
            }
        }
    }

    fn carry_out(&mut self, output: &Output) -> Result<(), String> {
        match output {
            Output::Grant {
                program,
                cpus,
                threads,
                ..
            } => {
                if let Some(managed) = self.programs.get_mut(program) {
                    managed.claim.grant(*threads, cpus.iter());
                }
                Ok(())
            }
            Output::Turn { program, turn, .. } => {
                if let Some(managed) = self.programs.get_mut(program) {
                    managed.claim.set_turn(turn.as_ref());
                }
                Ok(())
            }
            Output::Tell {
                program,
                request,
                what,
                ..
            } => {
                let connection = self.programs.get(program).map(|managed| managed.connection);
                let connection = connection.and_then(|id| self.connections.get(&id));
                let Some(connection) = connection else {
                    return Err(format!("{program} has left"));
                };
                let (request, what) = (*request, *what);
                let message = ToProgram::Request { request, what };
                if self.afterwards.welcome.contains(program) {
                    self.afterwards.ask.push((*program, message));
                    return Ok(());
                }
                connection
                    .channel
                    .send(&message, &[])
                    .map_err(|error| format!("{program} cannot be asked: {error}"))
            }
            Output::Act { action, .. } => {
                let Some(program) = action.program() else {
                    return self.settings.set_hardware(action, self.machine.allowed());
                };
                let managed = self.programs.get(&program);
                let pid = managed.ok_or_else(|| format!("{program} has left"))?.pid;
                self.settings.set(pid, program, action)
            }
            Output::Note(_) => Ok(()),
        }
    }

    fn record(&mut self, entry: &Entry) {
        self.journal.keep(entry);
    }

    fn decided(&mut self, manager: &GlobalManager) {
        let now = std::mem::take(&mut self.afterwards);
        let rule = manager.policy().local_rule();
        let failed = self
            .sensors
            .follow(manager.policy(), self.machine.allowed());
        self.inputs.extend(failed.map(|what| Input::Failed {
            program: None,
            what,
        }));
        for program in now.welcome {
            self.welcome(program, manager.local_rule_of(program));
        }
        for (program, message) in now.ask {
            if let Some(connection) = self.programs.get(&program).map(|p| p.connection) {
                self.say(connection, [message]);
            }
        }
        self.tell_rule(rule, manager);
        for id in now.done {
            self.say(id, [ToProgram::Done]);
        }
        for id in now.status {
            let answer = self.status_for(id, manager);
            self.say(id, status::parts(&answer));
        }
        for program in now.gone {
            if let Some(managed) = self.programs.remove(&program) {
                self.settings.release(program, !managed.itself, now_ns());
            }
        }
        if self.outer.is_linked() {
            match self.programs.is_empty() {
                true => self.outer.leave(),
                false => self.outer.tell(Sum::of(manager.status())),
            }
            self.follow_outer();
        }
        for program in now.group {
            let pid = self.programs.get(&program).map(|managed| managed.pid);
            let group = pid.and_then(|pid| scheduling_group(&Root::system(), pid));
            self.inputs
                .extend(group.map(|group| Input::Group { program, group }));
        }
        self.journal.turn_over(manager);
        if self.programs.is_empty() {
            self.settings.release_hardware();
        }
        self.idle_since_ns = match self.programs.is_empty() {
            true => Some(self.idle_since_ns.unwrap_or_else(now_ns)),
            false => None,
        };
    }
}
