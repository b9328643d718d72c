//! The sandbox's first process: it makes the sandbox from inside, starts the program when told to,
//! reaps orphans, reports, and takes everything with it when it ends.
//!
//! With namespaces it is process 1 of its PID namespace: when it ends, however it ends, the kernel
//! kills every process in there. Without (`--unsafe-probes`), it is a subreaper and kills its
//! descendants one by one. In both cases it ends when the control pipe's other end is closed, which
//! the kernel does when corewise dies, even by SIGKILL.
//!
//! # Safety
//! This code runs in a copy of a process that may have had other threads, so it makes system calls
//! and nothing else: no allocation, no lock, no panic. Pointers given to the kernel are of strings
//! and structs that live through the call; descriptors are those that the plan names, or made here.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_long};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use super::carry_out::{self, check};
use super::confine;
use super::plan::MountPlan;
use super::wire::{Event, Stage};
use crate::exec::{ExecImage, errno};
use crate::signals;

/// Everything that the new process needs, made before it exists.
pub(crate) struct InitPlan<'a> {
    /// `None`: no namespaces.
    pub(crate) inside: Option<Inside<'a>>,
    /// Read end; a byte starts the program, its end ends everything.
    pub(crate) control: c_int,
    /// Write end; [`Event`]s.
    pub(crate) status: c_int,
    pub(crate) input: Input,
    /// The program's standard error.
    pub(crate) stderr: c_int,
    pub(crate) cwd: &'a CStr,
    /// `None`: a trial of the sandbox without a program.
    pub(crate) exec: Option<&'a ExecImage>,
}

/// What is private to a sandbox with namespaces.
pub(crate) struct Inside<'a> {
    pub(crate) mounts: &'a MountPlan,
    /// Mount options of the file system in memory that takes all writes.
    pub(crate) scratch_options: &'a CStr,
    /// The lines for `uid_map` and `gid_map` when there is a new user namespace.
    pub(crate) id_maps: Option<&'a (CString, CString)>,
}

/// Where the program's standard input comes from.
pub(crate) enum Input {
    /// An open descriptor.
    Descriptor(c_int),
    /// A file as seen in the sandbox, from an offset in bytes.
    File { path: CString, offset: i64 },
}

/// The new process's whole life.
pub(crate) fn live(plan: &InitPlan<'_>) -> ! {
    let code = match run(plan) {
        Ok(()) => 0,
        Err((stage, errno)) => {
            report(plan, Event::SetupFailed { stage, errno });
            1
        }
    };
    if plan.inside.is_none() {
        kill_descendants();
    }
    // SAFETY: ends this process without running anything of the copied one.
    unsafe { libc::_exit(code) }
}

fn run(plan: &InitPlan<'_>) -> Result<(), (Stage, i32)> {
    for signal in 1..=64 {
        signals::set_disposition(signal, false);
    }
    // SAFETY: a system call. A group of its own, so that the terminal's and the program's signals to
    // their groups do not come here; the session stays, because Linux schedules by session.
    unsafe { libc::setpgid(0, 0) };
    close_others(plan);
    // SAFETY: a system call.
    let umask = unsafe { libc::umask(0) };
    if let Some(inside) = &plan.inside {
        if let Some(maps) = inside.id_maps {
            confine::map_ids(maps).map_err(|e| (Stage::MapIds, e))?;
        }
        confine::loopback_up().map_err(|e| (Stage::Loopback, e))?;
        carry_out::enter(
            inside.mounts,
            inside.scratch_options,
            inside.id_maps.is_some(),
            &|event| report(plan, event),
        )?;
    } else {
        // SAFETY: a system call.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    }
    let child_signal = signals::set_of(&[libc::SIGCHLD]);
    // SAFETY: every signal has been blocked since before this process existed; SIGCHLD is taken
    // from this descriptor.
    let children = check(c_long::from(unsafe {
        libc::signalfd(
            -1,
            &raw const child_signal,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        )
    }))
    .map_err(|e| (Stage::Watch, e))? as c_int;
    report(plan, Event::Ready);
    let Some(image) = plan.exec else {
        wait_for_word(plan.control);
        return Ok(());
    };
    if !wait_for_word(plan.control) {
        return Ok(());
    }
    let told = now_ns();
    let stamp = shared_stamp().map_err(|e| (Stage::Watch, e))?;
    let Some(program) = start(plan, image, umask, stamp) else {
        return Ok(());
    };
    let started = stamp.load(Ordering::Relaxed);
    report(
        plan,
        Event::Started {
            exec_ns: started.saturating_sub(told),
        },
    );
    watch(plan, children, program, started);
    Ok(())
}

/// Waits until corewise says go (true) or is gone (false).
fn wait_for_word(control: c_int) -> bool {
    loop {
        let mut byte = 0u8;
        // SAFETY: one byte into a byte.
        match unsafe { libc::read(control, (&raw mut byte).cast(), 1) } {
            1 => return true,
            -1 if errno() == libc::EINTR => {}
            _ => return false,
        }
    }
}

/// A number that this process and the program's share until the program takes over: the time of
/// that moment. This process may be woken much later, when the CPUs are busy.
fn shared_stamp() -> Result<&'static AtomicU64, i32> {
    // SAFETY: a new page, zeroed, aligned, never unmapped in this process.
    unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            size_of::<AtomicU64>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if page == libc::MAP_FAILED {
            return Err(errno());
        }
        Ok(&*page.cast())
    }
}

/// Starts the program; `None` when that failed, which has been reported by then.
fn start(
    plan: &InitPlan<'_>,
    image: &ExecImage,
    umask: libc::mode_t,
    stamp: &AtomicU64,
) -> Option<libc::pid_t> {
    // SAFETY: a copy of this process; with CLONE_VFORK this one sleeps until the copy has become
    // the program, or ended.
    let pid = unsafe {
        libc::syscall(
            libc::SYS_clone,
            c_long::from(libc::CLONE_VFORK | libc::SIGCHLD),
            0,
            0,
            0,
            0,
        )
    };
    if pid < 0 {
        let errno = errno();
        report(
            plan,
            Event::StartFailed {
                stage: Stage::Fork,
                errno,
            },
        );
        return None;
    }
    if pid > 0 {
        return Some(pid as libc::pid_t);
    }
    let (stage, errno) = become_program(plan, image, umask, stamp);
    report(plan, Event::StartFailed { stage, errno });
    // SAFETY: ends this process only.
    unsafe { libc::_exit(127) }
}

/// Everything between the program's process and the program. Returns only when it fails.
fn become_program(
    plan: &InitPlan<'_>,
    image: &ExecImage,
    umask: libc::mode_t,
    stamp: &AtomicU64,
) -> (Stage, i32) {
    // SAFETY: system calls on strings and on descriptors that the plan names.
    unsafe {
        libc::setpgid(0, 0);
        libc::umask(umask);
        if plan.inside.is_none() {
            // The first process kills this one when it ends; this is for when it is killed.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        }
        if libc::chdir(plan.cwd.as_ptr()) < 0 {
            return (Stage::Folder, errno());
        }
        let input = match &plan.input {
            Input::Descriptor(fd) => *fd,
            Input::File { path, offset } => {
                let fd = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
                if fd < 0 || (*offset > 0 && libc::lseek(fd, *offset, libc::SEEK_SET) < 0) {
                    return (Stage::Input, errno());
                }
                fd
            }
        };
        // Not /dev/null: programs that recognise it (grep, tar) then leave out their work.
        let output = libc::open(c"/dev/zero".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if output < 0 {
            return (Stage::Input, errno());
        }
        for (fd, number) in [(input, 0), (output, 1), (plan.stderr, 2)] {
            if libc::dup2(fd, number) < 0 {
                return (Stage::Input, errno());
            }
        }
        libc::syscall(
            libc::SYS_close_range,
            3,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        );
        confine::no_core_dump();
        if plan.inside.is_some()
            && let Err(e) = confine::drop_capabilities()
        {
            return (Stage::Privileges, e);
        }
        if let Err(e) = image.apply_affinity() {
            return (Stage::Affinity, e);
        }
    }
    stamp.store(now_ns(), Ordering::Relaxed);
    (Stage::Exec, image.exec())
}

/// Reports the end of the program; returns when it has ended or corewise is gone.
fn watch(plan: &InitPlan<'_>, children: c_int, program: libc::pid_t, started: u64) {
    loop {
        let mut polled = [plan.control, children].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        // SAFETY: two entries, as stated.
        unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) };
        if polled[0].revents != 0 {
            return;
        }
        let mut drained = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        // SAFETY: at most one record, into space for one.
        while unsafe {
            libc::read(
                children,
                drained.as_mut_ptr().cast(),
                size_of::<libc::signalfd_siginfo>(),
            )
        } > 0
        {}
        loop {
            let mut wait_status = 0;
            let mut usage = MaybeUninit::<libc::rusage>::zeroed();
            // SAFETY: both structs live through the call.
            let (pid, usage) = unsafe {
                let pid = libc::wait4(-1, &raw mut wait_status, libc::WNOHANG, usage.as_mut_ptr());
                (pid, usage.assume_init())
            };
            if pid <= 0 {
                break;
            }
            if pid == program {
                let ended = Event::Ended {
                    wait_status,
                    wall_ns: now_ns().saturating_sub(started),
                    user_ns: timeval_ns(usage.ru_utime),
                    system_ns: timeval_ns(usage.ru_stime),
                    max_rss_kib: usage.ru_maxrss.cast_unsigned(),
                };
                report(plan, ended);
                return;
            }
        }
    }
}

fn report(plan: &InitPlan<'_>, event: Event) {
    let record = event.encode();
    // SAFETY: as many bytes as the record has. If nobody reads, nobody needs to know.
    unsafe { libc::write(plan.status, record.as_ptr().cast(), record.len()) };
}

/// Closes every descriptor but the plan's own: nothing inherited may reach the program, and pipes
/// of other probes must not be kept open here.
fn close_others(plan: &InitPlan<'_>) {
    let input = match plan.input {
        Input::Descriptor(fd) => fd,
        Input::File { .. } => plan.control,
    };
    let mut keep = [plan.control, plan.status, plan.stderr, input];
    // Four numbers: sorted by hand, without the library's possible panics.
    for i in 0..keep.len() {
        for j in i + 1..keep.len() {
            if keep[j] < keep[i] {
                keep.swap(i, j);
            }
        }
    }
    // The first three stay taken, or files opened later would come to lie there and be in the way
    // of the program's own.
    // SAFETY: system calls on a string and the descriptor made here.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for number in 0..3 {
            libc::dup2(null, number);
        }
    }
    let mut from = 3u32;
    for fd in keep {
        let fd = fd.cast_unsigned();
        if fd > from {
            // SAFETY: a system call; nothing in this process uses those descriptors any more.
            unsafe { libc::syscall(libc::SYS_close_range, from, fd - 1, 0) };
        }
        from = from.max(fd + 1);
    }
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_close_range, from, libc::c_uint::MAX, 0) };
}

/// Kills and reaps children until there are none; as a subreaper, this process inherits their
/// children in turn.
fn kill_descendants() {
    loop {
        let mut text = [0u8; 4096];
        // SAFETY: system calls on a string, space of the stated size and the descriptor made here.
        let length = unsafe {
            let fd = libc::open(
                c"/proc/thread-self/children".as_ptr(),
                libc::O_RDONLY | libc::O_CLOEXEC,
            );
            let length = libc::read(fd, text.as_mut_ptr().cast(), text.len());
            libc::close(fd);
            length
        };
        let mut pid = 0;
        for &byte in text.iter().take(usize::try_from(length).unwrap_or(0)) {
            if byte.is_ascii_digit() {
                pid = pid * 10 + i32::from(byte - b'0');
            } else if pid > 1 {
                // SAFETY: a child of ours that we have not reaped, so the number is still its own.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                pid = 0;
            }
        }
        // SAFETY: a system call.
        if unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) } < 0 && errno() != libc::EINTR {
            return;
        }
    }
}

fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a struct that lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

fn timeval_ns(time: libc::timeval) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_usec.cast_unsigned() * 1_000
}

/// Makes the first process, in new namespaces if `flags` say so. In the caller: its number.
///
/// All signals are blocked around the call, so that no handler runs in the new process.
pub(crate) fn spawn(flags: u64, plan: &InitPlan<'_>) -> Result<libc::pid_t, i32> {
    // Read before anything is changed, for the program.
    signals::Inherited::get();
    let old = signals::change_mask(libc::SIG_SETMASK, &signals::all());
    let mut args = MaybeUninit::<libc::clone_args>::zeroed();
    // SAFETY: a zeroed struct of the kernel's layout. The new process has its own copy of memory
    // and does nothing but `live`, whose rules stand at the head of this file.
    let pid = unsafe {
        let args = args.assume_init_mut();
        args.flags = flags;
        args.exit_signal = libc::SIGCHLD as u64;
        libc::syscall(
            libc::SYS_clone3,
            &raw mut *args,
            size_of::<libc::clone_args>(),
        )
    };
    if pid == 0 {
        live(plan);
    }
    let error = errno();
    signals::change_mask(libc::SIG_SETMASK, &old);
    if pid < 0 {
        Err(error)
    } else {
        Ok(pid as libc::pid_t)
    }
}
