//! A program joins a manager that answers with anything: any bytes, with any descriptors, which are
//! pages with anything on them. The program may be refused; it may not fault, hang, or read a CPU that
//! cannot be.
#![no_main]

use arbitrary::Arbitrary;
use corewise_abi::message::{Join, LocalRule, Placement, ToManager, ToProgram, Wants, encode};
use corewise_abi::{MAX_CPUS, PAGE_BYTES, VERSION};
use corewise_wire::{Channel, Folder, Joined, join};
use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

#[derive(Arbitrary, Debug)]
enum Answer {
    Bytes(Vec<u8>),
    Welcome {
        version: u16,
        features: u64,
        program: u64,
        rule: u8,
    },
    Refused(String),
    Nothing,
}

/// A descriptor that is sent along.
#[derive(Arbitrary, Debug)]
enum Page {
    /// A page with these words on it, from the offset on; the header is as it should be or not.
    Claim {
        good_header: bool,
        words: Vec<(u16, u64)>,
        seal: Seal,
    },
    Progress {
        good_header: bool,
        words: Vec<(u16, u64)>,
        seal: Seal,
    },
    /// A file of this length in bytes.
    Other {
        length: u16,
        seal: Seal,
    },
    Null,
}

#[derive(Arbitrary, Debug, Clone, Copy, PartialEq)]
enum Seal {
    None,
    Shrink,
    Grow,
    Size,
    All,
}

#[derive(Arbitrary, Debug)]
struct Input {
    answer: Answer,
    pages: Vec<Page>,
    /// Written to the claim page while it is read, where it can be.
    later: Vec<(u16, u64)>,
    /// Words of 64 CPUs that the reader has room for.
    room: u8,
}

fn claim_header() -> [u8; 16] {
    let mut header = [0; 16];
    header[..4].copy_from_slice(b"CWcl");
    header[4..6].copy_from_slice(&VERSION.to_le_bytes());
    header[6..8].copy_from_slice(&4096_u16.to_le_bytes());
    header
}

fn progress_header() -> [u8; 16] {
    let mut header = claim_header();
    header[..4].copy_from_slice(b"CWpr");
    header
}

fn seal(file: &OwnedFd, seal: Seal) {
    let seals = match seal {
        Seal::None => return,
        Seal::Shrink => SealFlags::SHRINK,
        Seal::Grow => SealFlags::GROW,
        Seal::Size => SealFlags::SHRINK | SealFlags::GROW,
        Seal::All => SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    };
    rustix::fs::fcntl_add_seals(file, seals).unwrap();
}

fn memfd(bytes: &[u8]) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("fuzz", flags).unwrap();
    rustix::io::pwrite(&file, bytes, 0).unwrap();
    file
}

fn page(good: bool, header: [u8; 16], words: &[(u16, u64)]) -> OwnedFd {
    let mut bytes = vec![0; PAGE_BYTES];
    if good {
        bytes[..16].copy_from_slice(&header);
    }
    for (index, word) in words {
        let at = usize::from(*index) % (PAGE_BYTES / 8) * 8;
        // A good header stays one.
        if !(good && at < 16) {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
    }
    memfd(&bytes)
}

fn made(what: &Page) -> OwnedFd {
    match what {
        Page::Claim {
            good_header,
            words,
            seal: how,
        } => {
            let file = page(*good_header, claim_header(), words);
            seal(&file, *how);
            file
        }
        Page::Progress {
            good_header,
            words,
            seal: how,
        } => {
            let file = page(*good_header, progress_header(), words);
            seal(&file, *how);
            file
        }
        Page::Other { length, seal: how } => {
            let file = memfd(&[]);
            rustix::fs::ftruncate(&file, u64::from(*length)).unwrap();
            seal(&file, *how);
            file
        }
        Page::Null => std::fs::File::open("/dev/null").unwrap().into(),
    }
}

fn bytes(answer: &Answer) -> Option<Vec<u8>> {
    let message = match answer {
        Answer::Bytes(bytes) => return Some(bytes.clone()),
        Answer::Nothing => return None,
        Answer::Refused(why) => ToProgram::Refused(why.clone()),
        Answer::Welcome {
            version,
            features,
            program,
            rule,
        } => ToProgram::Welcome {
            version: *version,
            features: *features,
            program: *program,
            rule: match rule % 3 {
                0 => LocalRule::Leave,
                1 => LocalRule::Whole,
                _ => LocalRule::OneEach,
            },
        },
    };
    encode(&message).ok()
}

type Reply = (Option<Vec<u8>>, Vec<OwnedFd>);

struct Stage {
    folder: Folder,
    reply: SyncSender<Reply>,
}

/// The manager: a thread that answers everyone with what it is given for them, and hangs up.
fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(|| {
        let kept = tempfile::tempdir().unwrap().keep();
        let folder = Folder::at(kept).unwrap();
        let kind = SocketType::SEQPACKET;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
                .unwrap();
        let address = SocketAddrUnix::new(folder.socket()).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 8).unwrap();
        let (reply, replies) = sync_channel(1);
        std::thread::spawn(move || answer_all(&socket, &replies));
        Stage { folder, reply }
    })
}

fn answer_all(socket: &OwnedFd, replies: &Receiver<Reply>) {
    for (bytes, fds) in replies {
        let accepted = rustix::net::accept_with(socket, SocketFlags::CLOEXEC).unwrap();
        let channel = Channel::from(accepted);
        let _ = channel.receive_within::<ToManager>(Duration::from_secs(1));
        let Some(bytes) = bytes else { continue };
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let flags = SendFlags::NOSIGNAL;
        let _ = rustix::net::sendmsg(&channel, &[IoSlice::new(&bytes)], &mut control, flags);
    }
}

fn look(joined: &Joined, room: usize) {
    let granted = joined.claim.granted();
    let _ = (granted, joined.claim.state(), joined.claim.manager_pid());
    let mut words = vec![u64::MAX; room];
    if joined.claim.cpus(&mut words).is_some() {
        let most = MAX_CPUS as usize / 64;
        assert!(words.iter().skip(most).all(|word| *word == 0));
    }
    // The time is over at once.
    joined.claim.wait(granted.generation, Some(Duration::ZERO));
    let _ = joined.progress.read();
    joined
        .progress
        .team
        .store(1, std::sync::atomic::Ordering::Relaxed);
}

fuzz_target!(|input: Input| {
    let stage = stage();
    let fds: Vec<OwnedFd> = input.pages.iter().take(6).map(made).collect();
    // What the manager still has of the claim page.
    let kept = fds.first().and_then(|fd| fd.try_clone().ok());
    stage.reply.send((bytes(&input.answer), fds)).unwrap();
    let ask = Join {
        version: VERSION,
        features: 0,
        pid: 1,
        name: "fuzz".to_owned(),
        wants: Wants {
            min_threads: 1,
            max_threads: 4,
            placement: Placement::Any,
            malleable: true,
        },
    };
    let Ok(joined) = join(&stage.folder, ask) else {
        return;
    };
    let room = usize::from(input.room);
    look(&joined, room);
    let Some(kept) = kept else { return };
    for (index, word) in input.later {
        let at = u64::from(index) % (PAGE_BYTES as u64 / 8) * 8;
        let _ = rustix::io::pwrite(&kept, &word.to_le_bytes(), at);
        look(&joined, room);
    }
    // Sealed: nobody can take it away.
    assert!(rustix::fs::ftruncate(&kept, 0).is_err());
    look(&joined, room);
});
