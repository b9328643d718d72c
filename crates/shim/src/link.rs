//! The pages between this process and its program's local manager.
//!
//! Safety: a page is only used when it is a memfd of the size of a page that is sealed against shrinking,
//! so that no access can fault; it stays mapped for ever; and its type consists of atomics, for which
//! every bit pattern is valid.

use crate::held::{self, Slot};
use corewise_abi::PAGE_BYTES;
use corewise_abi::claim::ClaimPage;
use corewise_abi::locks::LocksPage;
use corewise_abi::regions::RegionsPage;
use corewise_abi::reports::{LINK, Report, ReportsPage};
use libc::{c_char, c_int};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

static CLAIM: AtomicPtr<ClaimPage> = AtomicPtr::new(null_mut());
/// The claim that the program holds itself; null: it holds none that is to be followed.
static HELD: AtomicPtr<Slot> = AtomicPtr::new(null_mut());
static REPORT: AtomicPtr<Report> = AtomicPtr::new(null_mut());
static REGIONS: AtomicPtr<RegionsPage> = AtomicPtr::new(null_mut());
static LOCKS: AtomicPtr<LocksPage> = AtomicPtr::new(null_mut());

/// Called by the loader before the program begins.
#[used]
#[unsafe(link_section = ".init_array")]
static OPEN: extern "C" fn() = open;

extern "C" fn open() {
    let Some(pages) = variable().and_then(Pages::parse) else {
        return;
    };
    let claim = map::<ClaimPage>(pages.pid, pages.claim, libc::PROT_READ);
    if claim.is_some_and(ClaimPage::is_valid) {
        CLAIM.store(pointer(claim), Ordering::Release);
    }
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let reports = map::<ReportsPage>(pages.pid, pages.reports, writable);
    // SAFETY: no arguments, no way to fail.
    let own = unsafe { libc::getpid() };
    let report = reports
        .filter(|page| page.is_valid())
        .and_then(|page| page.take(own));
    REPORT.store(pointer(report), Ordering::Release);
    let regions = map::<RegionsPage>(pages.pid, pages.regions, writable);
    let regions = regions.filter(|page| page.is_valid());
    REGIONS.store(pointer(regions), Ordering::Release);
    let locks = map::<LocksPage>(pages.pid, pages.locks, writable);
    let locks = locks.filter(|page| page.is_valid());
    LOCKS.store(pointer(locks), Ordering::Release);
    #[cfg(target_arch = "x86_64")]
    crate::pthreads::follow(locks);
}

fn pointer<T>(of: Option<&'static T>) -> *mut T {
    of.map_or(null_mut(), |page| std::ptr::from_ref(page).cast_mut())
}

/// Goes on with a claim that the program holds itself.
pub(crate) fn hold(slot: &'static Slot, report: &'static Report) {
    let taken = REPORT.compare_exchange(
        null_mut(),
        std::ptr::from_ref(report).cast_mut(),
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    // Where a local manager has said where to report, it reads it.
    let _ = taken;
    HELD.store(std::ptr::from_ref(slot).cast_mut(), Ordering::Release);
}

/// Whether the program holds its claim itself.
pub(crate) fn is_held() -> bool {
    !HELD.load(Ordering::Acquire).is_null()
}

/// The claim, if this process is led to one.
#[inline]
pub(crate) fn claim() -> Option<&'static ClaimPage> {
    // SAFETY: null, or what `hold` was given.
    let page = match unsafe { HELD.load(Ordering::Acquire).as_ref() } {
        None => CLAIM.load(Ordering::Acquire),
        Some(slot) => held::page(slot),
    };
    // SAFETY: null, or a page as the module's words have it.
    unsafe { page.as_ref() }
}

/// Where this process reports, if it is led to a place.
#[inline]
pub(crate) fn report() -> Option<&'static Report> {
    // SAFETY: as above.
    unsafe { REPORT.load(Ordering::Acquire).as_ref() }
}

/// Where regions are timed, if they are to be.
#[inline]
pub(crate) fn timing() -> Option<&'static RegionsPage> {
    // SAFETY: as above.
    let regions = unsafe { REGIONS.load(Ordering::Acquire).as_ref() }?;
    let keeper_lives = !claim()?.keeper_has_died();
    (regions.is_timing() && keeper_lives).then_some(regions)
}

/// Whether the local manager that keeps the pages still lives.
pub(crate) fn keeper_lives() -> bool {
    // SAFETY: null, or a page as the module's words have it.
    let claim = unsafe { CLAIM.load(Ordering::Acquire).as_ref() };
    claim.is_some_and(|claim| !claim.keeper_has_died())
}

/// Where blocked time is counted, if it is to be.
#[inline]
pub(crate) fn locks() -> Option<&'static LocksPage> {
    // SAFETY: as above.
    unsafe { LOCKS.load(Ordering::Acquire).as_ref() }
}

/// How many threads this process may run, where a claim binds it.
#[inline]
pub(crate) fn limit() -> Option<u32> {
    let claim = claim()?;
    // libcorewise has a page of its own where nobody manages, also in a forked child: it binds nothing.
    (claim.manager_pid() != 0).then(|| claim.binding())?
}

/// A file of another process: its descriptor there, and who it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct File {
    descriptor: u32,
    inode: u64,
}

/// What the variable says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pages {
    pid: u32,
    claim: File,
    reports: File,
    regions: File,
    locks: File,
}

impl Pages {
    /// Reads `PID:CLAIM:INODE:REPORTS:INODE:REGIONS:INODE:LOCKS:INODE`.
    fn parse(text: &[u8]) -> Option<Pages> {
        let mut numbers = text.split(|b| *b == b':').map(number);
        let mut next = || numbers.next().flatten();
        let pid = u32::try_from(next()?).ok()?;
        let mut file = || {
            let descriptor = u32::try_from(next()?).ok()?;
            Some(File {
                descriptor,
                inode: next()?,
            })
        };
        let pages = Pages {
            pid,
            claim: file()?,
            reports: file()?,
            regions: file()?,
            locks: file()?,
        };
        numbers.next().is_none().then_some(pages)
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn variable() -> Option<&'static [u8]> {
    let mut name = [0; 32];
    name.get_mut(..LINK.len())?.copy_from_slice(LINK.as_bytes());
    // SAFETY: a string that ends with a zero; nobody changes the environment before the program begins.
    let value: *mut c_char = unsafe { libc::getenv(name.as_ptr().cast()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: the environment's strings end with a zero; it is only looked at before the program begins.
    Some(unsafe { CStr::from_ptr(value) }.to_bytes())
}

/// Maps a page of another process. `None` if it is not there, is another one, or could fault.
fn map<T>(pid: u32, file: File, protection: c_int) -> Option<&'static T> {
    let mut path = [0u8; 48];
    write_path(&mut path, pid, file.descriptor)?;
    let mode = match protection & libc::PROT_WRITE {
        0 => libc::O_RDONLY,
        _ => libc::O_RDWR,
    };
    // SAFETY: a string that ends with a zero. Not blocking: it could be anything.
    let flags = mode | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
    let descriptor = unsafe { libc::open(path.as_ptr().cast(), flags) };
    if descriptor < 0 {
        return None;
    }
    let page = is_page(descriptor, file.inode).then(|| {
        // SAFETY: a new mapping where the kernel likes.
        unsafe {
            libc::mmap(
                null_mut(),
                PAGE_BYTES,
                protection,
                libc::MAP_SHARED,
                descriptor,
                0,
            )
        }
    });
    // SAFETY: our own descriptor, not used any more.
    unsafe { libc::close(descriptor) };
    let page = page.filter(|page| *page != libc::MAP_FAILED)?;
    // SAFETY: see the module: a page that stays, of atomics, aligned as pages are.
    unsafe { page.cast::<T>().as_ref() }
}

/// Whether a file is the memfd that we are looking for, and can never become shorter.
fn is_page(descriptor: c_int, inode: u64) -> bool {
    // SAFETY: all zeroes is a valid `stat`, and it lives as long as the call.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    if unsafe { libc::fstat(descriptor, &raw mut status) } != 0 {
        return false;
    }
    // SAFETY: a plain question.
    let seals = unsafe { libc::fcntl(descriptor, libc::F_GET_SEALS) };
    seals >= 0
        && seals & libc::F_SEAL_SHRINK != 0
        && status.st_ino == inode
        && usize::try_from(status.st_size) == Ok(PAGE_BYTES)
}

/// Writes `/proc/PID/fd/N` and a zero.
fn write_path(into: &mut [u8], pid: u32, descriptor: u32) -> Option<()> {
    use std::io::Write as _;
    let mut rest = into;
    write!(rest, "/proc/{pid}/fd/{descriptor}\0").ok()
}
