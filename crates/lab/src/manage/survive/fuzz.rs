//! Nonsense on the socket and on the pages, beside programs that behave.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use corewise_abi::message::{self, Join, Placement, ToManager, Wants};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket_with,
};

use crate::experiment::{Bar, Context, Report};
use crate::manage::stage::{Manager, join_as};

/// The program that behaves cannot do without so many threads.
const MIN_THREADS: u32 = 2;

/// Feeds nonsense for ten minutes, and looks at a program that behaves.
pub(super) fn run(context: &Context, report: &mut Report) -> Result<()> {
    let seconds = if context.quick { 5 } else { 600 };
    let mut manager = Manager::start(context, "balanced")?;
    let folder = corewise_wire::Folder::at(manager.folder())?;
    let mut honest = corewise_wire::join(&folder, join_as("honest", MIN_THREADS, 4))?;
    let mut random = fastrand::Rng::with_seed(3);
    let until = Instant::now() + Duration::from_secs(seconds);
    let (mut packets, mut crashes, mut unfair, mut silent) = (0_u64, 0_u32, 0_u32, 0_u32);
    let mut stops = 0_u32;
    let mut next_look = Instant::now();
    while Instant::now() < until {
        packets += attack(&folder.socket(), &mut random)?;
        if random.u16(..) < 16 {
            scribble(&folder, &mut random);
        }
        if Instant::now() >= next_look {
            next_look = Instant::now() + Duration::from_secs(1);
            // Its claim is at least its minimum, and the manager still answers and grants.
            unfair += u32::from(honest.claim.granted().threads < MIN_THREADS);
            if let Some(status) = manager.ended()? {
                // Some nonsense means "end", and whoever may connect may say that.
                crashes += u32::from(!status.success());
                stops += 1;
                manager.start_again()?;
                honest = corewise_wire::join(&folder, join_as("honest", MIN_THREADS, 4))?;
            }
            silent += u32::from(manager.status().is_err());
        }
    }
    report.figure("fuzz_seconds", seconds as f64);
    report.figure("fuzz_packets", packets as f64);
    report.figure("fuzz_told_to_end", f64::from(stops));
    for (name, count) in [
        ("crashes of the manager", crashes),
        ("moments at which the manager did not answer", silent),
        (
            "moments at which a program had less than its minimum",
            unfair,
        ),
    ] {
        report.bars.push(Bar::at_most(
            format!("nonsense: {name}"),
            f64::from(count),
            0.0,
        ));
    }
    Ok(())
}

/// One connection with some packets; how many there were.
fn attack(socket: &Path, random: &mut fastrand::Rng) -> Result<u64> {
    let fd = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    if connect(&fd, &SocketAddrUnix::new(socket)?).is_err() {
        // Its queue is full: as it should be.
        std::thread::sleep(Duration::from_millis(1));
        return Ok(0);
    }
    let count = random.u64(1..6);
    for _ in 0..count {
        let bytes = nonsense(random);
        let with_descriptors = random.u8(..) < 40;
        send(&fd, &bytes, with_descriptors).context("a packet could not be sent")?;
    }
    Ok(count)
}

/// Bytes that are no message, or nearly one, or one that nobody should send.
fn nonsense(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = match random.u8(0..4) {
        0 => (0..random.usize(0..300)).map(|_| random.u8(..)).collect(),
        1 => vec![random.u8(..); random.usize(0..20_000)],
        _ => {
            let mut wants = || Wants {
                min_threads: random.u32(..),
                max_threads: random.u32(..),
                placement: Placement::Scatter,
                malleable: random.bool(),
            };
            let message = match wants().max_threads % 6 {
                0 => ToManager::Ask(wants()),
                1 => ToManager::Threads(u32::MAX),
                2 => ToManager::Answer {
                    request: wants().min_threads,
                    yes: true,
                },
                3 => ToManager::Status,
                _ => ToManager::Join(Join {
                    version: 1,
                    features: u64::MAX,
                    pid: wants().min_threads.cast_signed(),
                    name: "x".repeat(random.usize(0..2_000)),
                    wants: Wants {
                        min_threads: random.u32(..),
                        max_threads: random.u32(..),
                        placement: Placement::Any,
                        malleable: true,
                    },
                }),
            };
            message::encode(&message).unwrap_or_default()
        }
    };
    if random.bool() && !bytes.is_empty() {
        let index = random.usize(0..bytes.len());
        bytes[index] = random.u8(..);
    }
    bytes
}

fn send(fd: &OwnedFd, bytes: &[u8], with_descriptors: bool) -> Result<()> {
    let own = std::fs::File::open("/dev/null")?;
    let fds = [own.as_fd(), own.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if with_descriptors {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    // The manager closes a connection that talks nonsense: then nothing more can be sent.
    let _ = sendmsg(
        fd,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    );
    Ok(())
}

/// A program that joins as it should, and then writes nonsense on its progress page.
fn scribble(folder: &corewise_wire::Folder, random: &mut fastrand::Rng) {
    use std::sync::atomic::Ordering::Relaxed;
    // It may be refused while others crowd the socket.
    let Ok(joined) = corewise_wire::join(folder, join_as("honest", 1, 4)) else {
        return;
    };
    for _ in 0..50 {
        let page = &joined.progress;
        page.progress.store(random.u64(..), Relaxed);
        page.team.store(random.u32(..), Relaxed);
        page.could_use.store(random.u32(..), Relaxed);
        page.blocked.store(random.u32(..), Relaxed);
        page.seen_generation.store(random.u32(..), Relaxed);
        std::thread::sleep(Duration::from_millis(1));
    }
}
