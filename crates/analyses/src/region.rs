//! The shared memory of a profile, or of a search for races. The command makes it and hands it down by a variable; each process of
//! the program maps it, enters its *image* (what it executes), and takes memory for tables and buffers. The
//! command reads it when the program is gone.
//!
//! It is a memory file of the command's: nothing is left behind when the command dies, no full disk can
//! stop it, and memory is reserved before it is touched, so that a program never gets SIGBUS. It only grows:
//! pieces are taken from its end.
//!
//! **Why it is sound.** Every piece is zero when it is taken, belongs to one image, and is only ever used
//! as what it was taken for: atomics, and bytes that are written before an offset to them is published with
//! release ordering. Mappings last until the process ends. What a hostile program writes there can make a
//! profile wrong; readers check every offset against the region's size before they follow it.
#![allow(unsafe_code, reason = "shared memory; see the module's head")]

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

mod image;
mod wanted;

pub use image::{Entered, Module};
pub use wanted::{Manner, Wanted};

/// The variable that leads a program's processes to the region of a profile.
pub const VARIABLE: &str = "COREWISE_PROFILE";
/// The variable that leads a program's processes to the region of a search for races.
pub const RACE_VARIABLE: &str = "COREWISE_RACE";
/// "corewise" and the version of what follows.
const MAGIC: u64 = 0x6377_7072_6f66_0002;
/// Address space of a profile; memory is only taken as it is used.
const BYTES: usize = 1 << 32;
/// The same of a search for races: room for all images with up to twice the memory that each has by default.
const RACE_BYTES: usize = 1 << 40;
/// Images that can be told apart.
const IMAGES: usize = 512;
/// Memory is reserved in steps of this.
const STEP: u64 = 1 << 18;

#[repr(C)]
struct Head {
    magic: AtomicU64,
    wanted: [AtomicU32; 7],
    /// Processes that could not enter an image.
    unseen: AtomicU32,
    /// How many images were entered.
    images: AtomicU32,
    /// Where the next piece begins.
    next: AtomicU64,
    /// Up to where memory is reserved.
    reserved: AtomicU64,
    /// The newest buffer.
    buffers: AtomicU64,
    entered: [Image; IMAGES],
}

/// What a process executes: entered anew after each `exec`; forked children share their parent's.
#[derive(Debug)]
#[repr(C)]
pub struct Image {
    /// The process that entered it.
    pub pid: AtomicU32,
    functions: AtomicU32,
    /// Where the tables, or the words, are; 0: none yet.
    tables: AtomicU64,
    /// The newest module.
    modules: AtomicU64,
    /// Calls and allocations that the tables had no room for.
    pub lost: AtomicU64,
    /// Calls in signal handlers that came in the middle of a hook.
    pub interrupted: AtomicU64,
    /// Buffers that waited when one was handed over last.
    queued: AtomicU64,
    /// Where the [window](crate::profile::Window) of its program's functions begins.
    pub window: AtomicU64,
    /// Buffers processed by producers, consumers and waiters; time that producers helped, and waited, in
    /// ns; the most memory of buffers, in bytes: of the processes that ended in order.
    pub account: [AtomicU64; 6],
}

/// A mapped region.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    bytes: usize,
    file: OwnedFd,
    ours: bool,
}

// SAFETY: shared memory of atomics; see the module's head.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// Why there is no region.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// A limit of this process is too low.
    #[error(
        "what is recorded needs {needed} GiB of address space, most of it never used; the limit is lower: raise it \
         (ulimit -{option})"
    )]
    Limit {
        /// What is needed, in GiB.
        needed: u64,
        /// The shell's option for the limit.
        option: char,
    },
    /// What the system said: no memory, or too many open files.
    #[error("no memory for what is recorded: {0}")]
    System(std::io::Error),
}

impl<E: Into<std::io::Error>> From<E> for Refused {
    fn from(error: E) -> Refused {
        Refused::System(error.into())
    }
}

impl Region {
    /// Makes one.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn create(wanted: Wanted) -> Result<Region, Refused> {
        let file = rustix::fs::memfd_create("corewise-profile", MemfdFlags::CLOEXEC)?;
        let bytes = if wanted.race_mib > 0 {
            RACE_BYTES
        } else {
            BYTES
        };
        // Beyond the limit of a file's size there is a signal, and no error.
        for (limit, option) in [(Resource::Fsize, 'f'), (Resource::As, 'v')] {
            if getrlimit(limit)
                .current
                .is_some_and(|most| most < bytes as u64)
            {
                let needed = (bytes >> 30) as u64;
                return Err(Refused::Limit { needed, option });
            }
        }
        rustix::fs::ftruncate(&file, bytes as u64)?;
        let first = (size_of::<Head>() as u64).next_multiple_of(STEP);
        rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, first)?;
        let base = Region::map(&file, bytes)?;
        let region = Region {
            base,
            bytes,
            file,
            ours: true,
        };
        let head = region.head();
        let Wanted {
            manner,
            capacity,
            queue,
            threads,
            functions,
            race_mib,
            order,
        } = wanted;
        let all = [
            manner as u32,
            capacity,
            queue,
            threads,
            functions,
            race_mib,
            order,
        ];
        for (field, value) in head.wanted.iter().zip(all) {
            field.store(value, Ordering::Relaxed);
        }
        let used = (size_of::<Head>() as u64).next_multiple_of(64);
        head.next.store(used, Ordering::Relaxed);
        head.reserved.store(first, Ordering::Relaxed);
        head.magic.store(MAGIC, Ordering::Release);
        Ok(region)
    }

    /// The variable, and its value, that leads a program to it.
    ///
    /// # Errors
    /// What the system said.
    pub fn variable(&self) -> std::io::Result<(&'static str, String)> {
        let status = rustix::fs::fstat(&self.file)?;
        let (pid, file) = (std::process::id(), self.file.as_raw_fd());
        let name = match self.bytes {
            RACE_BYTES => RACE_VARIABLE,
            _ => VARIABLE,
        };
        Ok((name, format!("{pid}:{file}:{}", status.st_ino)))
    }

    /// Maps the one that the value of the variable leads to. `None`: it is not there (any longer), or not
    /// ours to use.
    pub fn open(value: &str) -> Option<Region> {
        let mut numbers = value.split(':').map(str::parse::<u64>);
        let mut number = || numbers.next()?.ok();
        let (pid, file, inode) = (number()?, number()?, number()?);
        let path = format!("/proc/{pid}/fd/{file}");
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let status = rustix::fs::fstat(&file).ok()?;
        let bytes = usize::try_from(status.st_size).ok()?;
        if status.st_ino != inode || ![BYTES, RACE_BYTES].contains(&bytes) {
            return None;
        }
        let region = match Region::map(&file, bytes) {
            Ok(base) => Region {
                base,
                bytes,
                file,
                ours: false,
            },
            Err(_) => {
                // A limit of this process's own: there may be room for a word of it.
                let bytes = size_of::<Head>();
                let base = Region::map(&file, bytes).ok()?;
                Region {
                    base,
                    bytes,
                    file,
                    ours: true,
                }
                .head()
                .unseen
                .fetch_add(1, Ordering::Relaxed);
                return None;
            }
        };
        (region.head().magic.load(Ordering::Acquire) == MAGIC).then_some(region)
    }

    fn map(file: &OwnedFd, bytes: usize) -> rustix::io::Result<NonNull<u8>> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping of a file of this size, where the kernel likes.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0)? };
        // SAFETY: what was just mapped. A program that dumps core would have the kernel look at each page of it.
        let _ = unsafe { rustix::mm::madvise(base, bytes, Advice::LinuxDontDump) };
        NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)
    }

    fn head(&self) -> &Head {
        // SAFETY: the region begins with it; it is of atomics.
        unsafe { self.base.cast::<Head>().as_ref() }
    }

    /// What is wanted.
    pub fn wanted(&self) -> Wanted {
        let [manner, capacity, queue, threads, functions, race_mib, order] = self
            .head()
            .wanted
            .each_ref()
            .map(|f| f.load(Ordering::Relaxed));
        Wanted {
            manner: Manner::of(manner),
            capacity,
            queue,
            threads,
            functions,
            race_mib,
            order,
        }
    }

    /// Takes zeroed memory from the end, aligned to 64 bytes. `None`: there is none left.
    fn take(&self, bytes: usize) -> Option<u64> {
        let at = self.take_unreserved(bytes)?;
        self.reserve(at, at + bytes as u64).then_some(at)
    }

    /// The same without memory behind it: see [`Region::reserve`].
    fn take_unreserved(&self, bytes: usize) -> Option<u64> {
        let head = self.head();
        let bytes = (bytes as u64).next_multiple_of(64);
        let mut at = head.next.load(Ordering::Relaxed);
        loop {
            let end = at
                .checked_add(bytes)
                .filter(|end| *end <= self.bytes as u64)?;
            match head
                .next
                .compare_exchange_weak(at, end, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return Some(at),
                Err(now) => at = now,
            }
        }
    }

    /// Reserves memory, in whole steps. False: there is none.
    fn reserve(&self, from: u64, to: u64) -> bool {
        let from = from / STEP * STEP;
        let to = to.next_multiple_of(STEP).min(self.bytes as u64);
        let reserved = &self.head().reserved;
        // The steps are reserved in order but for what was taken without: others may reserve the same at
        // once, which does no harm.
        let known = reserved.load(Ordering::Acquire);
        if (from..to).contains(&known) || known < from {
            let done =
                rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, from, to - from);
            if done.is_err() {
                return false;
            }
            if from <= known {
                reserved.fetch_max(to, Ordering::AcqRel);
            }
        }
        true
    }

    /// A structure or array at an offset; `None`: it would not be within the region.
    fn at<T>(&self, offset: u64, count: usize) -> Option<NonNull<T>> {
        let bytes = size_of::<T>().checked_mul(count)? as u64;
        let end = offset.checked_add(bytes)?;
        let aligned = offset.is_multiple_of(align_of::<T>() as u64);
        if offset == 0 || !aligned || end > self.head().next.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: within the mapping.
        Some(unsafe { self.base.add(offset as usize) }.cast())
    }

    /// Enters an image of this process, with tables of its own. `None`: there is no room, which is counted.
    pub fn enter(&self) -> Option<Entered<'_>> {
        let entered = self.entered();
        if entered.is_none() {
            self.head().unseen.fetch_add(1, Ordering::Relaxed);
        }
        entered
    }

    fn entered(&self) -> Option<Entered<'_>> {
        let head = self.head();
        let functions = head.wanted[4].load(Ordering::Relaxed);
        let functions = functions.clamp(64, 1 << 22).next_power_of_two();
        let tables = match head.wanted[5].load(Ordering::Relaxed) as usize {
            0 => self.take(image::tables_bytes(functions as usize))?,
            mib => self.take_unreserved(mib << 20)?,
        };
        let index = head.images.fetch_add(1, Ordering::AcqRel) as usize;
        let image = head.entered.get(index)?;
        image.functions.store(functions, Ordering::Relaxed);
        image.pid.store(std::process::id(), Ordering::Relaxed);
        image.tables.store(tables, Ordering::Release);
        Some(Entered {
            region: self,
            image,
            index: index as u32,
        })
    }

    /// All images that were entered.
    pub fn images(&self) -> impl Iterator<Item = Entered<'_>> {
        let head = self.head();
        let count = (head.images.load(Ordering::Acquire) as usize).min(IMAGES);
        let entered = (0_u32..).zip(&head.entered[..count]);
        entered.map(|(index, image)| Entered {
            region: self,
            image,
            index,
        })
    }

    /// Processes that could not enter an image: there were too many, or a limit on their memory forbade it.
    pub fn unseen(&self) -> u32 {
        self.head().unseen.load(Ordering::Relaxed)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // In a program it stays: its threads may be in the middle of anything.
        if self.ours {
            // SAFETY: the whole mapping; what borrowed from it is gone.
            let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        }
    }
}
