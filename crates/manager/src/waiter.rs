//! Waiting for descriptors and for a time.

use crate::Error;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::os::fd::{AsFd, OwnedFd};

/// Events that are taken from the kernel at once.
const EVENTS: usize = 64;

/// What the timer's events are about; never given out.
const TIMER: u64 = u64::MAX;

const ZERO: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// The monotonic clock, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Monotonic time is not negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Waits for any of many descriptors (epoll) until a time, to the nanosecond: epoll's own timeout has
/// milliseconds, so a timer is one of the descriptors.
pub(crate) struct Waiter {
    epoll: OwnedFd,
    timer: OwnedFd,
    /// What the timer is set to.
    timer_ns: Option<u64>,
    events: Vec<epoll::Event>,
}

impl Waiter {
    /// Waits for nothing yet.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn new() -> Result<Waiter, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(Error::system("make an epoll descriptor"))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(Error::system("make a timer"))?;
        let waiter = Waiter {
            epoll,
            timer,
            timer_ns: None,
            events: Vec::with_capacity(EVENTS),
        };
        waiter.add(&waiter.timer, TIMER)?;
        Ok(waiter)
    }

    /// Waits for a descriptor to become readable, too, until it is closed; its events are `about`.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn add(&self, what: impl AsFd, about: u64) -> Result<(), Error> {
        let data = EventData::new_u64(about);
        epoll::add(&self.epoll, what, data, EventFlags::IN)
            .map_err(Error::system("wait for a descriptor"))
    }

    /// Waits for other events of a descriptor from now on. Its end is always one.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn change(
        &self,
        what: impl AsFd,
        about: u64,
        flags: EventFlags,
    ) -> Result<(), Error> {
        epoll::modify(&self.epoll, what, EventData::new_u64(about), flags)
            .map_err(Error::system("wait for a descriptor"))
    }

    /// Waits until something happens, or until a time (`Some(0)`: not at all), and gives what has
    /// happened: what it is about, and the flags.
    ///
    /// # Errors
    /// [`Error::System`].
    pub(crate) fn wait(&mut self, until_ns: Option<u64>) -> Result<Vec<(u64, EventFlags)>, Error> {
        let at_once = until_ns.is_some_and(|until| until <= now_ns());
        if !at_once {
            self.set_timer(until_ns)?;
        }
        self.events.clear();
        let room = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, room, at_once.then_some(&ZERO)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::system("wait for what happens")(errno)),
        }
        let mut happened = Vec::with_capacity(self.events.len());
        for event in &self.events {
            let (about, flags) = (event.data.u64(), event.flags);
            if about == TIMER {
                // The time is looked at anyway.
                let _ = rustix::io::read(&self.timer, &mut [0_u8; 8]);
                self.timer_ns = None;
            } else {
                happened.push((about, flags));
            }
        }
        Ok(happened)
    }

    fn set_timer(&mut self, until_ns: Option<u64>) -> Result<(), Error> {
        if self.timer_ns == until_ns {
            return Ok(());
        }
        // 0 switches it off; every real time is later.
        let until = until_ns.unwrap_or(0).min(i64::MAX as u64);
        let value = Itimerspec {
            it_interval: ZERO,
            it_value: Timespec {
                tv_sec: (until / 1_000_000_000) as i64,
                tv_nsec: (until % 1_000_000_000) as i64,
            },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &value)
            .map_err(Error::system("set the timer"))?;
        self.timer_ns = until_ns;
        Ok(())
    }
}
