//! Carries a [`MountPlan`] out, in the sandbox's first process.
//!
//! # Safety
//! This runs in a copy of a process that may have had other threads, so it makes system calls and
//! nothing else: no allocation, no lock, no panic. Every pointer given to the kernel is of a
//! null-terminated string or a struct that lives through the call.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_long};
use std::ptr::null;

use super::plan::{Flags, MountPlan, NEW_ROOT, SCRATCH, Step};
use super::wire::{Event, Stage};
use crate::exec::errno;

const MOUNT_ATTR_RDONLY: u64 = 0x1;
const MOUNT_ATTR_NOSUID: u64 = 0x2;
const MOUNT_ATTR_NODEV: u64 = 0x4;
const MOUNT_ATTR_NOEXEC: u64 = 0x8;
const OPEN_TREE_CLONE: c_int = 1;
const MOVE_MOUNT_F_EMPTY_PATH: c_int = 4;
const FSOPEN_CLOEXEC: c_int = 1;
const FSMOUNT_CLOEXEC: c_int = 1;
const FSCONFIG_SET_FLAG: c_int = 0;
const FSCONFIG_SET_STRING: c_int = 1;
const FSCONFIG_CMD_CREATE: c_int = 6;

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

/// An error number, or what a system call returned.
type Sys<T> = Result<T, i32>;

pub(crate) fn check(result: c_long) -> Sys<c_long> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

/// Builds the new root under a private scratch file system (mounted with `scratch_options`) and
/// makes it this process's root. `report` is told of mounts that are not copy-on-write.
pub(crate) fn enter(
    plan: &MountPlan,
    scratch_options: &CStr,
    in_user_namespace: bool,
    report: &dyn Fn(Event),
) -> Result<(), (Stage, i32)> {
    let at = |stage| move |e| (stage, e);
    let (scratch, new_root) = (SCRATCH, NEW_ROOT);
    mount(c"none", c"/", None, libc::MS_REC | libc::MS_PRIVATE, None)
        .map_err(at(Stage::PrivateMounts))?;
    mount(
        c"corewise",
        scratch,
        Some(c"tmpfs"),
        libc::MS_NOSUID | libc::MS_NODEV,
        Some(scratch_options),
    )
    .map_err(at(Stage::Scratch))?;
    mkdir(new_root, 0o755).map_err(at(Stage::Scratch))?;
    for folder in &plan.folders {
        mkdir(folder, 0o755).map_err(at(Stage::Scratch))?;
    }
    for (index, step) in plan.steps.iter().enumerate() {
        let step_number = u32::try_from(index).unwrap_or(u32::MAX);
        match carry_out(step, in_user_namespace) {
            Done::Whole => {}
            Done::Degraded { errno, omitted } => report(Event::Degraded {
                step: step_number,
                errno,
                omitted,
            }),
            Done::Failed(errno) => {
                report(Event::Degraded {
                    step: step_number,
                    errno,
                    omitted: true,
                });
                return Err((Stage::Step, errno));
            }
        }
    }
    // SAFETY: system calls on strings.
    unsafe {
        check(c_long::from(libc::chdir(new_root.as_ptr()))).map_err(at(Stage::Pivot))?;
        // Put the old root on top of the new one and take it away: no folder is needed for it.
        check(libc::syscall(
            libc::SYS_pivot_root,
            c".".as_ptr(),
            c".".as_ptr(),
        ))
        .map_err(at(Stage::Pivot))?;
        check(c_long::from(libc::umount2(c".".as_ptr(), libc::MNT_DETACH)))
            .map_err(at(Stage::Pivot))?;
        check(c_long::from(libc::chdir(c"/".as_ptr()))).map_err(at(Stage::Pivot))?;
    }
    Ok(())
}

enum Done {
    Whole,
    Degraded { errno: i32, omitted: bool },
    Failed(i32),
}

impl Done {
    /// A step without which the program could still run.
    fn optional(result: Sys<()>) -> Self {
        match result {
            Ok(()) | Err(libc::ENOENT) => Self::Whole,
            Err(errno) => Self::Degraded {
                errno,
                omitted: true,
            },
        }
    }

    fn necessary(result: Sys<()>) -> Self {
        match result {
            Ok(()) => Self::Whole,
            Err(errno) => Self::Failed(errno),
        }
    }
}

fn carry_out(step: &Step, in_user_namespace: bool) -> Done {
    match step {
        Step::Overlay {
            source,
            target,
            lower,
            upper,
            work,
            flags,
            required,
        } => match overlay(
            source,
            target,
            lower,
            upper,
            work,
            *flags,
            in_user_namespace,
        ) {
            Ok(()) => Done::Whole,
            Err(libc::ENOENT) if !required => Done::Whole,
            Err(errno) if *required => Done::Failed(errno),
            Err(errno) => Done::Degraded {
                errno,
                omitted: read_only(source, target, MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID).is_err(),
            },
        },
        Step::ReadOnly { source, target } => Done::optional(read_only(
            source,
            target,
            MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID,
        )),
        Step::File { source, target } => Done::optional(file(source, target)),
        Step::Copy { source, target } => match copy(source, target) {
            Ok(()) => Done::Whole,
            Err(_) => Done::optional(file(source, target)),
        },
        Step::FolderLike { like, target } => {
            Done::optional(mkdir(target, 0o755).and_then(|()| take_attributes(like, target)))
        }
        Step::Folder { target, mode } => Done::optional(mkdir(target, *mode)),
        // SAFETY: system calls on strings.
        Step::Link { target, to } => Done::optional(unsafe {
            check(c_long::from(libc::symlink(to.as_ptr(), target.as_ptr()))).map(drop)
        }),
        // SAFETY: a system call on a string.
        Step::Node { target, mode } => Done::optional(unsafe {
            check(c_long::from(libc::mknod(target.as_ptr(), *mode, 0))).map(drop)
        }),
        Step::Memory { target, mode } => Done::necessary(mount(
            c"tmpfs",
            target,
            Some(c"tmpfs"),
            libc::MS_NOSUID | libc::MS_NODEV,
            Some(mode),
        )),
        Step::Proc {
            target,
            read_only: sub,
        } => {
            let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
            let mut result = mount(c"proc", target, Some(c"proc"), flags, None);
            for path in sub {
                if result.is_ok() {
                    result = match read_only(path, path, MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID) {
                        Err(libc::ENOENT) => Ok(()),
                        other => other,
                    };
                }
            }
            Done::necessary(result)
        }
        Step::Terminals { target } => Done::optional(mount(
            c"devpts",
            target,
            Some(c"devpts"),
            libc::MS_NOSUID | libc::MS_NOEXEC,
            Some(c"newinstance,ptmxmode=0666,mode=0620"),
        )),
    }
}

fn overlay(
    source: &CStr,
    target: &CStr,
    lower: &CStr,
    upper: &CStr,
    work: &CStr,
    flags: Flags,
    in_user_namespace: bool,
) -> Sys<()> {
    // The merged folder shows the upper one's owner and mode.
    take_attributes(source, upper)?;
    if lower == c"." {
        // SAFETY: a system call on a string.
        unsafe { check(c_long::from(libc::chdir(source.as_ptr())))? };
    }
    let mut attributes = MOUNT_ATTR_NODEV;
    for (flag, attribute) in [
        (flags.read_only, MOUNT_ATTR_RDONLY),
        (flags.nosuid, MOUNT_ATTR_NOSUID),
        (flags.noexec, MOUNT_ATTR_NOEXEC),
    ] {
        if flag {
            attributes |= attribute;
        }
    }
    // With redirect_dir, lower folders can be renamed as on the real file system.
    let first = new_overlay(lower, upper, work, !in_user_namespace, in_user_namespace);
    let context = match first {
        Err(libc::EINVAL) => new_overlay(lower, upper, work, false, in_user_namespace),
        other => other,
    }?;
    // SAFETY: system calls on descriptors that this function owns, and strings.
    unsafe {
        let tree = check(libc::syscall(
            libc::SYS_fsmount,
            context,
            FSMOUNT_CLOEXEC,
            attributes,
        ));
        libc::close(context);
        attach(tree?, target)
    }
}

/// A configured overlay that is not mounted yet.
fn new_overlay(
    lower: &CStr,
    upper: &CStr,
    work: &CStr,
    redirect: bool,
    user_xattr: bool,
) -> Sys<c_int> {
    // SAFETY: system calls on strings and the descriptor made here.
    unsafe {
        let fd = check(libc::syscall(
            libc::SYS_fsopen,
            c"overlay".as_ptr(),
            FSOPEN_CLOEXEC,
        ))?;
        let set = |key: &CStr, value: &CStr| {
            check(libc::syscall(
                libc::SYS_fsconfig,
                fd,
                FSCONFIG_SET_STRING,
                key.as_ptr(),
                value.as_ptr(),
                0,
            ))
        };
        let configure = || {
            set(c"source", c"corewise")?;
            set(c"lowerdir", lower)?;
            set(c"upperdir", upper)?;
            set(c"workdir", work)?;
            if redirect {
                set(c"redirect_dir", c"on")?;
            }
            if user_xattr {
                check(libc::syscall(
                    libc::SYS_fsconfig,
                    fd,
                    FSCONFIG_SET_FLAG,
                    c"userxattr".as_ptr(),
                    null::<u8>(),
                    0,
                ))?;
            }
            check(libc::syscall(
                libc::SYS_fsconfig,
                fd,
                FSCONFIG_CMD_CREATE,
                null::<u8>(),
                null::<u8>(),
                0,
            ))
        };
        match configure() {
            Ok(_) => Ok(descriptor(fd)),
            Err(error) => {
                libc::close(descriptor(fd));
                Err(error)
            }
        }
    }
}

/// A read-only view of `source` with everything mounted under it.
fn read_only(source: &CStr, target: &CStr, more: u64) -> Sys<()> {
    let attributes = MountAttr {
        set: MOUNT_ATTR_RDONLY | more,
        clear: 0,
        propagation: 0,
        userns: 0,
    };
    // SAFETY: system calls on strings, the descriptor made here and a struct of the stated size.
    unsafe {
        let tree = check(libc::syscall(
            libc::SYS_open_tree,
            libc::AT_FDCWD,
            source.as_ptr(),
            OPEN_TREE_CLONE
                | libc::O_CLOEXEC
                | libc::AT_RECURSIVE
                | libc::AT_NO_AUTOMOUNT
                | libc::AT_SYMLINK_NOFOLLOW,
        ))?;
        let changed = check(libc::syscall(
            libc::SYS_mount_setattr,
            tree,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<MountAttr>(),
        ));
        if let Err(error) = changed {
            libc::close(descriptor(tree));
            return Err(error);
        }
        attach(tree, target)
    }
}

/// A read-only view of one file. Devices keep working: `/dev` is made of such views.
fn file(source: &CStr, target: &CStr) -> Sys<()> {
    // SAFETY: a system call on a string.
    let made = check(c_long::from(unsafe {
        libc::mknod(target.as_ptr(), libc::S_IFREG | 0o644, 0)
    }));
    match made {
        Ok(_) | Err(libc::EEXIST) => read_only(source, target, 0),
        Err(error) => Err(error),
    }
}

fn copy(source: &CStr, target: &CStr) -> Sys<()> {
    // SAFETY: system calls on strings, and on descriptors made here.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let from = descriptor(check(c_long::from(libc::open(source.as_ptr(), flags)))?);
        let flags = libc::O_WRONLY | libc::O_CLOEXEC | libc::O_CREAT | libc::O_EXCL;
        let to = match check(c_long::from(libc::open(target.as_ptr(), flags, 0o600))) {
            Ok(to) => descriptor(to),
            Err(error) => {
                libc::close(from);
                return Err(error);
            }
        };
        let result = loop {
            match check(libc::sendfile(to, from, std::ptr::null_mut(), 1 << 20) as c_long) {
                Ok(0) => break Ok(()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        libc::close(from);
        libc::close(to);
        match result {
            Ok(()) => take_attributes(source, target),
            Err(error) => {
                libc::unlink(target.as_ptr());
                Err(error)
            }
        }
    }
}

/// Gives `target` the mode of `like`, and its owner where that is possible.
fn take_attributes(like: &CStr, target: &CStr) -> Sys<()> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the struct is zeroed and filled by the kernel; otherwise strings.
    unsafe {
        check(c_long::from(libc::lstat(like.as_ptr(), stat.as_mut_ptr())))?;
        let stat = stat.assume_init();
        libc::chown(target.as_ptr(), stat.st_uid, stat.st_gid);
        check(c_long::from(libc::chmod(
            target.as_ptr(),
            stat.st_mode & 0o7777,
        )))
        .map(drop)
    }
}

fn attach(tree: c_long, target: &CStr) -> Sys<()> {
    // SAFETY: system calls on a descriptor that is ours to close, and strings.
    unsafe {
        let moved = check(libc::syscall(
            libc::SYS_move_mount,
            tree,
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        ));
        libc::close(descriptor(tree));
        moved.map(drop)
    }
}

fn mkdir(path: &CStr, mode: u32) -> Sys<()> {
    // SAFETY: a system call on a string.
    match check(c_long::from(unsafe { libc::mkdir(path.as_ptr(), mode) })) {
        Ok(_) | Err(libc::EEXIST) => Ok(()),
        Err(error) => Err(error),
    }
}

fn mount(
    source: &CStr,
    target: &CStr,
    fs_type: Option<&CStr>,
    flags: libc::c_ulong,
    data: Option<&CStr>,
) -> Sys<()> {
    // SAFETY: strings, or null where the kernel takes null.
    check(c_long::from(unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            fs_type.map_or(null(), CStr::as_ptr),
            flags,
            data.map_or(null(), |d| d.as_ptr().cast()),
        )
    }))
    .map(drop)
}

/// Descriptors come back in a wider type.
fn descriptor(value: c_long) -> c_int {
    value as c_int
}
