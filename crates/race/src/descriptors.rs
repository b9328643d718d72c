//! File descriptors, interposed: what is written into a pipe or socket, or told to an event descriptor, comes
//! before what is read from it, and the bytes that are read or written are accessed. A descriptor itself is
//! used by each of these and ended by `close`, as memory is by `free`.
//!
//! What is written to and read from one pipe, or event descriptor, is ordered by that; all files share one
//! order, and so do all sockets, since whose bytes come out of them is not known here. Descriptors whose begin
//! was not seen order nothing.
//!
//! **Why it is sound.** As in [`crate::interposed`]. Only what the kernel has written successfully is read
//! here: the numbers of new descriptors.

use crate::interposed::{Call, interposed, nothing_after, nothing_before};
use crate::thread::Thread;
use corewise_analyses::inside::Next;
use corewise_analyses::race::{DESCRIPTOR_BYTES, Order, kind};
use libc::{c_int, c_void};
use std::sync::atomic::{AtomicU16, Ordering};

/// Descriptors that are told apart.
const MOST: usize = 1 << 16;
/// Orders that are told apart.
const ORDERS: u16 = 1 << 12;
/// What stands for a descriptor: nothing is ever there, but its address is accessed.
#[repr(C, align(16))]
struct Descriptors([[u8; DESCRIPTOR_BYTES as usize]; MOST]);

/// Reports know it by its name, `race::DESCRIPTORS`.
#[unsafe(no_mangle)]
static corewise_descriptors: Descriptors = Descriptors([[0; DESCRIPTOR_BYTES as usize]; MOST]);

/// What orders the users of files, and of sockets; 0: nothing.
const FILES: u16 = 1;
const SOCKETS: u16 = 2;

/// What orders the users of each descriptor.
static ORDER: [AtomicU16; MOST] = [const { AtomicU16::new(0) }; MOST];

/// Addresses that stand for the orders.
static ORDERED: [u64; ORDERS as usize] = [0; ORDERS as usize];

/// The calling thread's, where others run, too.
fn among_others() -> Option<&'static mut Thread> {
    Thread::active().filter(|thread| !thread.alone)
}

fn order(descriptor: u64) -> Option<&'static AtomicU16> {
    ORDER.get(descriptor as u32 as usize)
}

/// The address at which the users of a descriptor release and acquire.
fn key(descriptor: u64) -> Option<u64> {
    let order = order(descriptor)?.load(Ordering::Relaxed);
    (order != 0).then(|| ORDERED.as_ptr() as u64 + 8 * u64::from(order % ORDERS))
}

fn access(descriptor: u64, kind: u8, code: u64) {
    let number = descriptor as u32 as usize;
    if number < MOST
        && let Some(thread) = among_others()
        && thread.process.search.order() == Order::HappensBefore
    {
        let at = (&raw const corewise_descriptors) as u64 + DESCRIPTOR_BYTES * number as u64;
        thread.access(at, 1, kind, code);
    }
}

/// A descriptor of this number is new, by a call that counts as an access of this kind.
fn begin(descriptor: u64, ordered_by: u16, kind: u8, code: u64) {
    let Some(order) = order(descriptor) else {
        return;
    };
    order.store(ordered_by, Ordering::Relaxed);
    next_life(descriptor);
    access(descriptor, kind, code);
}

fn next_life(descriptor: u64) {
    let at =
        (&raw const corewise_descriptors) as u64 + DESCRIPTOR_BYTES * u64::from(descriptor as u32);
    if let Some(thread) = among_others() {
        thread.quietly(|thread| thread.next_life(at, DESCRIPTOR_BYTES));
    }
}

/// An order that no descriptor has, or has had lately.
fn new_order() -> u16 {
    static LAST: AtomicU16 = AtomicU16::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) % (ORDERS - 3) + 3
}

fn uses(call: &Call) {
    access(call.arguments[0], kind::ATOMIC, call.code);
}

fn releases(call: &Call) {
    uses(call);
    if let Some(thread) = among_others()
        && let Some(key) = key(call.arguments[0])
    {
        thread.release(key);
    }
}

fn acquires(call: &Call, answer: i64) {
    if answer >= 0
        && let Some(thread) = among_others()
        && let Some(key) = key(call.arguments[0])
    {
        thread.acquire(key);
    }
}

fn writes(call: &Call) {
    if let Some(thread) = among_others() {
        // A pipe or socket takes no more at once; of a file, more would be too much to remember.
        let bytes = call.arguments[2].min(1 << 20);
        thread.range(call.arguments[1], bytes, 0, call.code);
    }
    releases(call);
}

fn has_read(call: &Call, answer: i64) {
    acquires(call, answer);
    if answer > 0
        && let Some(thread) = among_others()
    {
        thread.range(call.arguments[1], answer as u64, kind::WRITE, call.code);
    }
}

/// What waits for events learns of those who asked for them, or set them off.
fn has_waited(call: &Call, answer: i64) {
    acquires(call, i64::from(answer as c_int));
}

fn opened(call: &Call, answer: i64, ordered_by: u16) {
    if answer as c_int >= 0 {
        begin(answer as u64, ordered_by, kind::WRITE, call.code);
    }
}

fn opens(call: &Call, answer: i64) {
    opened(call, answer, FILES);
}

fn opens_socket(call: &Call, answer: i64) {
    opened(call, answer, SOCKETS);
}

fn opens_events(call: &Call, answer: i64) {
    opened(call, answer, new_order());
}

fn accepts(call: &Call, answer: i64) {
    has_waited(call, answer);
    opens_socket(call, answer);
}

fn two(call: &Call, answer: i64, place: u64) {
    if answer as c_int == 0 {
        let order = new_order();
        // SAFETY: two numbers, which the kernel has just written.
        let both = unsafe { (place as *const [c_int; 2]).read_unaligned() };
        for descriptor in both {
            begin(descriptor as u64, order, kind::WRITE, call.code);
        }
    }
}

fn opens_pipe(call: &Call, answer: i64) {
    two(call, answer, call.arguments[0]);
}

fn opens_pair(call: &Call, answer: i64) {
    two(call, answer, call.arguments[3]);
}

fn closes(call: &Call) {
    access(call.arguments[0], kind::WRITE, call.code);
    ends(call.arguments[0]);
}

/// The next of this number is another, also if its begin is not seen.
fn ends(descriptor: u64) {
    let Some(order) = order(descriptor) else {
        return;
    };
    order.store(0, Ordering::Relaxed);
    next_life(descriptor);
}

/// What replaces a descriptor does so at once: others may go on using its number.
fn duplicates(call: &Call, answer: i64) {
    if answer as c_int >= 0 {
        let ordered_by = order(call.arguments[0]).map_or(0, |order| order.load(Ordering::Relaxed));
        begin(answer as u64, ordered_by, kind::ATOMIC, call.code);
    }
}

/// What the second argument says is replaced.
fn replaces(call: &Call) {
    uses(call);
    access(call.arguments[1], kind::ATOMIC, call.code);
}

fn controls(call: &Call, answer: i64) {
    if matches!(
        call.arguments[1] as c_int,
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC
    ) {
        duplicates(call, answer);
    }
}

interposed! { -1;
    read c"read" uses has_read;
    pread c"pread" uses has_read;
    pread64 c"pread64" uses has_read;
    readv c"readv" uses acquires;
    recv c"recv" uses has_read;
    recvmsg c"recvmsg" uses acquires;
    write c"write" writes nothing_after;
    pwrite c"pwrite" writes nothing_after;
    pwrite64 c"pwrite64" writes nothing_after;
    writev c"writev" releases nothing_after;
    send c"send" writes nothing_after;
    sendmsg c"sendmsg" releases nothing_after;
    open c"open" nothing_before opens;
    open64 c"open64" nothing_before opens;
    openat c"openat" nothing_before opens;
    openat64 c"openat64" nothing_before opens;
    creat c"creat" nothing_before opens;
    creat64 c"creat64" nothing_before opens;
    socket c"socket" nothing_before opens_socket;
    connect c"connect" releases nothing_after;
    accept c"accept" uses accepts;
    accept4 c"accept4" uses accepts;
    socketpair c"socketpair" nothing_before opens_pair;
    pipe c"pipe" nothing_before opens_pipe;
    pipe2 c"pipe2" nothing_before opens_pipe;
    eventfd c"eventfd" nothing_before opens_events;
    eventfd_write c"eventfd_write" releases nothing_after;
    eventfd_read c"eventfd_read" uses has_waited;
    timerfd_create c"timerfd_create" nothing_before opens;
    signalfd c"signalfd" nothing_before opens;
    inotify_init c"inotify_init" nothing_before opens;
    inotify_init1 c"inotify_init1" nothing_before opens;
    epoll_create c"epoll_create" nothing_before opens_events;
    epoll_create1 c"epoll_create1" nothing_before opens_events;
    epoll_ctl c"epoll_ctl" releases nothing_after;
    epoll_wait c"epoll_wait" uses has_waited;
    dup c"dup" uses duplicates;
    dup2 c"dup2" replaces duplicates;
    dup3 c"dup3" replaces duplicates;
    fcntl c"fcntl" uses controls;
    fcntl64 c"fcntl64" uses controls;
    close c"close" closes nothing_after;
}

/// Functions of six arguments: where they were called is not known, since theirs need every register.
type Six = unsafe extern "C-unwind" fn(u64, u64, u64, u64, u64, u64) -> isize;

macro_rules! of_six {
    ($($name:ident $text:literal $before:ident $after:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            a: u64, b: u64, c: u64, d: u64, e: u64, f: u64,
        ) -> isize {
            static NEXT: Next = Next::new($text);
            let Some(real) = NEXT.get() else { return -1 };
            let call = Call { arguments: [a, b, c, d, e], code: 0 };
            $before(&call);
            // SAFETY: a function of this type has this name.
            let answer =
                unsafe { std::mem::transmute::<*mut c_void, Six>(real)(a, b, c, d, e, f) };
            $after(&call, answer as i64);
            answer
        }
    )*};
}

of_six! {
    sendto c"sendto" writes nothing_after;
    recvfrom c"recvfrom" uses has_read;
    epoll_pwait c"epoll_pwait" uses has_waited;
    mmap c"mmap" nothing_before maps;
    mmap64 c"mmap64" nothing_before maps;
}

/// Memory that is mapped begins another life. Longer pieces are taken to be where nothing was before.
fn maps(call: &Call, answer: i64) {
    const LONGEST: u64 = 1 << 30;
    if answer != -1
        && call.arguments[1] <= LONGEST
        && let Some(thread) = among_others()
    {
        thread.quietly(|thread| thread.next_life(answer as u64, call.arguments[1]));
    }
}
