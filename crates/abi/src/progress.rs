//! The progress page: what a program has done and could use. The program writes it, the manager reads
//! it and believes nothing that matters to others.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{PAGE_BYTES, PageHeader};

const MAGIC: u32 = u32::from_le_bytes(*b"CWpr");

/// The progress page. All fields are atomics at fixed offsets; the rest of the page is reserved, and
/// zero.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ProgressPage {
    header: PageHeader,
    _reserved: [AtomicU64; 6],
    /// Pieces of work done so far, in the program's own unit.
    pub progress: AtomicU64,
    /// Workers that the program runs now.
    pub team: AtomicU32,
    /// Threads that it could use now; 0: it does not say.
    pub could_use: AtomicU32,
    /// The last generation of the claim that it follows.
    pub seen_generation: AtomicU32,
    /// Workers that are blocked outside of their work (input, locks of others).
    pub blocked: AtomicU32,
}

const _: () = assert!(size_of::<ProgressPage>() <= PAGE_BYTES);

impl Default for ProgressPage {
    fn default() -> ProgressPage {
        ProgressPage::new()
    }
}

impl ProgressPage {
    /// The offset of each field of the header file's `struct corewise_progress_page`, in bytes.
    #[doc(hidden)]
    pub fn layout() -> impl Iterator<Item = (&'static str, usize)> {
        let own = [
            ("progress", core::mem::offset_of!(ProgressPage, progress)),
            ("team", core::mem::offset_of!(ProgressPage, team)),
            ("could_use", core::mem::offset_of!(ProgressPage, could_use)),
            (
                "seen_generation",
                core::mem::offset_of!(ProgressPage, seen_generation),
            ),
            ("blocked", core::mem::offset_of!(ProgressPage, blocked)),
        ];
        PageHeader::LAYOUT.into_iter().chain(own)
    }

    /// A page of zeroes in ordinary memory, as a mapped page is before [`ProgressPage::initialise`]:
    /// for a program that nobody manages, and for tests.
    pub fn new() -> ProgressPage {
        ProgressPage {
            header: PageHeader::new(),
            _reserved: core::array::from_fn(|_| AtomicU64::new(0)),
            progress: AtomicU64::new(0),
            team: AtomicU32::new(0),
            could_use: AtomicU32::new(0),
            seen_generation: AtomicU32::new(0),
            blocked: AtomicU32::new(0),
        }
    }

    /// Makes a page of zeroes a progress page.
    pub fn initialise(&self) {
        self.header.initialise(MAGIC, size_of::<ProgressPage>(), 0);
    }

    /// Whether this is a progress page of a version that we can write.
    pub fn is_valid(&self) -> bool {
        self.header
            .read(MAGIC)
            .is_some_and(|(version, size)| version >= 1 && usize::from(size) >= size_of::<Self>())
    }

    /// A copy of what the program says.
    pub fn read(&self) -> Progress {
        Progress {
            progress: self.progress.load(Ordering::Relaxed),
            team: self.team.load(Ordering::Relaxed),
            could_use: self.could_use.load(Ordering::Relaxed),
            seen_generation: self.seen_generation.load(Ordering::Relaxed),
            blocked: self.blocked.load(Ordering::Relaxed),
        }
    }
}

/// What a program says of itself; see [`ProgressPage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Pieces of work done so far.
    pub progress: u64,
    /// Workers that the program runs now.
    pub team: u32,
    /// Threads that it could use now; 0: it does not say.
    pub could_use: u32,
    /// The last generation of the claim that it follows.
    pub seen_generation: u32,
    /// Workers that are blocked outside of their work.
    pub blocked: u32,
}
