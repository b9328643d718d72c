//! A manager that grants what the test says, and nothing else.

use corewise_wire::abi::VERSION;
use corewise_wire::abi::message::{Join, LocalRule, Request, ToManager, ToProgram, Wants};
use corewise_wire::{Channel, ClaimWriter, Error, Folder, ProgressReader};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);

/// It listens; programs that are run with its folder join it.
pub(crate) struct Manager {
    runtime: TempDir,
    socket: OwnedFd,
}

impl Manager {
    pub(crate) fn new() -> Manager {
        let runtime = tempfile::tempdir().unwrap();
        let folder = Folder::at(runtime.path()).unwrap();
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        let address = SocketAddrUnix::new(folder.socket()).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 8).unwrap();
        Manager { runtime, socket }
    }

    /// For COREWISE_RUNTIME_DIR.
    pub(crate) fn runtime(&self) -> &Path {
        self.runtime.path()
    }

    /// Waits for a program that joins, and grants it one thread on `cpus`.
    pub(crate) fn welcome(&self, cpus: &[u32]) -> Managed {
        assert!(readable(&self.socket, PATIENCE), "nobody joins");
        let socket = rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC).unwrap();
        let channel = Channel::from(socket);
        let first = channel.receive_within(PATIENCE).unwrap().message;
        let ToManager::Join(join) = first else {
            panic!("not a join: {first:?}");
        };
        let (mut claim, claim_page) = ClaimWriter::create(1).unwrap();
        let (progress, progress_page) = ProgressReader::create().unwrap();
        claim.grant(1, cpus.iter().copied());
        let welcome = ToProgram::Welcome {
            version: VERSION,
            features: 0,
            program: 1,
            rule: LocalRule::Leave,
        };
        let pages = [claim_page.as_fd(), progress_page.as_fd()];
        channel.send(&welcome, &pages).unwrap();
        Managed {
            channel,
            claim,
            progress,
            join,
        }
    }
}

/// A program that has joined.
pub(crate) struct Managed {
    channel: Channel,
    claim: ClaimWriter,
    pub(crate) progress: ProgressReader,
    pub(crate) join: Join,
}

impl Managed {
    /// Waits until the program asks for something; `None` when it has ended. What else it says is left
    /// out.
    pub(crate) fn asked(&mut self) -> Option<Wants> {
        loop {
            match self.channel.receive_within::<ToManager>(PATIENCE) {
                Ok(received) => {
                    if let ToManager::Ask(wants) = received.message {
                        return Some(wants);
                    }
                }
                Err(Error::Closed) => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn grant(&mut self, threads: u32, cpus: &[u32]) {
        self.claim.grant(threads, cpus.iter().copied());
    }

    /// Asks the program; its answer.
    pub(crate) fn request(&mut self, what: Request) -> bool {
        let request = 77;
        let message = ToProgram::Request { request, what };
        self.channel.send(&message, &[]).unwrap();
        loop {
            let received = self.channel.receive_within::<ToManager>(PATIENCE);
            if let ToManager::Answer { request: 77, yes } = received.unwrap().message {
                return yes;
            }
        }
    }
}

fn readable(socket: &OwnedFd, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).ok();
    poll(&mut [PollFd::new(socket, PollFlags::IN)], timeout.as_ref()).unwrap() > 0
}
