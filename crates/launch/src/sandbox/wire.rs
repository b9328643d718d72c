//! What the sandbox's first process tells corewise through the status pipe: records of one size,
//! each written in one go.

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The sandbox could not be made.
    SetupFailed { stage: Stage, errno: i32 },
    /// A mount could only be shown read-only, or (`omitted`) not at all.
    Degraded {
        step: u32,
        errno: i32,
        omitted: bool,
    },
    /// Everything is in place; the program may start.
    Ready,
    /// The program could not be started.
    StartFailed { stage: Stage, errno: i32 },
    /// The program runs; it took this long from the word to start.
    Started { exec_ns: u64 },
    /// The program has ended.
    Ended {
        /// As wait(2) has it.
        wait_status: i32,
        wall_ns: u64,
        user_ns: u64,
        system_ns: u64,
        max_rss_kib: u64,
    },
}

/// Where making a sandbox, or starting a program in it, can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Stage {
    MapIds = 1,
    PrivateMounts,
    Scratch,
    Step,
    Pivot,
    Loopback,
    Watch,
    Fork,
    Folder,
    Input,
    Privileges,
    Affinity,
    Exec,
}

impl Stage {
    const ALL: [Self; 13] = [
        Self::MapIds,
        Self::PrivateMounts,
        Self::Scratch,
        Self::Step,
        Self::Pivot,
        Self::Loopback,
        Self::Watch,
        Self::Fork,
        Self::Folder,
        Self::Input,
        Self::Privileges,
        Self::Affinity,
        Self::Exec,
    ];

    /// What was being done, to follow "could not".
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::MapIds => "map the user into the sandbox's user namespace",
            Self::PrivateMounts => "make the sandbox's mounts private",
            Self::Scratch => "mount a file system in memory over /proc",
            Self::Step => "put the copy-on-write view together",
            Self::Pivot => "enter the copy-on-write view",
            Self::Loopback => "bring the sandbox's loopback interface up",
            Self::Watch => "watch the program",
            Self::Fork => "make a process for the program",
            Self::Folder => "enter the current folder",
            Self::Input => "open the program's standard input",
            Self::Privileges => "drop privileges",
            Self::Affinity => "set the CPUs that the program may use",
            Self::Exec => "execute the program",
        }
    }
}

/// Bytes of a record.
pub(crate) const RECORD: usize = 48;

impl Event {
    pub(crate) fn encode(self) -> [u8; RECORD] {
        let (kind, a, b, c): (u32, i32, i32, [u64; 4]) = match self {
            Self::SetupFailed { stage, errno } => (1, stage as i32, errno, [0; 4]),
            Self::Degraded {
                step,
                errno,
                omitted,
            } => (2, step.cast_signed(), errno, [u64::from(omitted), 0, 0, 0]),
            Self::Ready => (3, 0, 0, [0; 4]),
            Self::StartFailed { stage, errno } => (4, stage as i32, errno, [0; 4]),
            Self::Started { exec_ns } => (5, 0, 0, [exec_ns, 0, 0, 0]),
            Self::Ended {
                wait_status,
                wall_ns,
                user_ns,
                system_ns,
                max_rss_kib,
            } => (
                6,
                wait_status,
                0,
                [wall_ns, user_ns, system_ns, max_rss_kib],
            ),
        };
        let mut out = [0; RECORD];
        out[0..4].copy_from_slice(&kind.to_ne_bytes());
        out[4..8].copy_from_slice(&a.to_ne_bytes());
        out[8..12].copy_from_slice(&b.to_ne_bytes());
        for (i, value) in c.iter().enumerate() {
            out[16 + 8 * i..24 + 8 * i].copy_from_slice(&value.to_ne_bytes());
        }
        out
    }

    pub(crate) fn decode(record: &[u8; RECORD]) -> Option<Self> {
        let word = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&record[at..at + 4]);
            i32::from_ne_bytes(bytes)
        };
        let long = |i: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&record[16 + 8 * i..24 + 8 * i]);
            u64::from_ne_bytes(bytes)
        };
        let stage = || Stage::ALL.into_iter().find(|s| *s as i32 == word(4));
        Some(match word(0) {
            1 => Self::SetupFailed {
                stage: stage()?,
                errno: word(8),
            },
            2 => Self::Degraded {
                step: word(4).cast_unsigned(),
                errno: word(8),
                omitted: long(0) != 0,
            },
            3 => Self::Ready,
            4 => Self::StartFailed {
                stage: stage()?,
                errno: word(8),
            },
            5 => Self::Started { exec_ns: long(0) },
            6 => Self::Ended {
                wait_status: word(4),
                wall_ns: long(0),
                user_ns: long(1),
                system_ns: long(2),
                max_rss_kib: long(3),
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_survives_the_pipe() {
        let mut events = vec![
            Event::Degraded {
                step: 7,
                errno: 22,
                omitted: true,
            },
            Event::Ready,
            Event::Started { exec_ns: 1 << 40 },
            Event::Ended {
                wait_status: 0x8b,
                wall_ns: 1,
                user_ns: 2,
                system_ns: 3,
                max_rss_kib: 4,
            },
        ];
        for stage in Stage::ALL {
            events.push(Event::SetupFailed { stage, errno: 1 });
            events.push(Event::StartFailed { stage, errno: 2 });
        }
        for event in events {
            assert_eq!(Event::decode(&event.encode()), Some(event));
        }
    }
}
