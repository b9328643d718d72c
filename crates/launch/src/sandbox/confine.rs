//! What the sandbox's first process does to itself: user and group numbers, the loopback interface,
//! core dumps, privileges.
//!
//! # Safety
//! As in `init`: system calls only, on strings and structs that live through the call, and on
//! descriptors made here.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_long};
use std::mem::MaybeUninit;

use super::carry_out::check;

/// Capabilities that a program of root's keeps: those whose effects end at the sandbox's walls.
const KEPT_CAPABILITIES: &[u32] = &[
    0,  // CHOWN
    1,  // DAC_OVERRIDE
    2,  // DAC_READ_SEARCH
    3,  // FOWNER
    4,  // FSETID
    5,  // KILL
    6,  // SETGID
    7,  // SETUID
    8,  // SETPCAP
    10, // NET_BIND_SERVICE
    18, // SYS_CHROOT
    29, // AUDIT_WRITE
    31, // SETFCAP
];

/// Maps this process's user and group to themselves in its new user namespace.
pub(crate) fn map_ids((uid, gid): &(CString, CString)) -> Result<(), i32> {
    write_file(c"/proc/self/setgroups", c"deny")?;
    write_file(c"/proc/self/uid_map", uid)?;
    write_file(c"/proc/self/gid_map", gid)
}

fn write_file(path: &CStr, text: &CStr) -> Result<(), i32> {
    // SAFETY: system calls on strings and the descriptor made here.
    unsafe {
        let fd = check(c_long::from(libc::open(
            path.as_ptr(),
            libc::O_WRONLY | libc::O_CLOEXEC,
        )))? as c_int;
        let written = check(libc::write(fd, text.as_ptr().cast(), text.to_bytes().len()) as c_long);
        libc::close(fd);
        written.map(drop)
    }
}

/// Programs may talk to themselves over the loopback interface.
pub(crate) fn loopback_up() -> Result<(), i32> {
    let mut request = MaybeUninit::<libc::ifreq>::zeroed();
    // SAFETY: a zeroed request with a short name; the descriptor is made and closed here.
    unsafe {
        let request = request.assume_init_mut();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
        let fd = check(c_long::from(libc::socket(
            libc::AF_INET,
            libc::SOCK_DGRAM | libc::SOCK_CLOEXEC,
            0,
        )));
        let fd = match fd {
            Ok(fd) => fd as c_int,
            Err(libc::EAFNOSUPPORT) => return Ok(()),
            Err(error) => return Err(error),
        };
        let result = check(c_long::from(libc::ioctl(
            fd,
            libc::SIOCSIFFLAGS,
            &raw const *request,
        )));
        libc::close(fd);
        result.map(drop)
    }
}

/// A crash in a probe must not leave a core file, nor wake the machine's crash collector: a limit of
/// one byte is what the kernel takes as "no" for both (zero would still start the collector).
pub(crate) fn no_core_dump() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a struct that lives through both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_CORE, &raw mut limit) == 0 && limit.rlim_max >= 1 {
            limit = libc::rlimit {
                rlim_cur: 1,
                rlim_max: 1,
            };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const limit);
        }
    }
}

/// Leaves only [`KEPT_CAPABILITIES`], for this process and whatever it executes.
pub(crate) fn drop_capabilities() -> Result<(), i32> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let mut kept = 0u64;
    for capability in KEPT_CAPABILITIES {
        kept |= 1 << capability;
    }
    let mut data = [Data {
        effective: 0,
        permitted: 0,
        inheritable: 0,
    }; 2];
    let header = Header {
        version: VERSION_3,
        pid: 0,
    };
    // SAFETY: structs of the kernel's layout that live through the calls.
    unsafe {
        for capability in 0..64 {
            // Unknown capabilities are refused, which is as good as dropped.
            if kept & (1 << capability) == 0 {
                libc::prctl(libc::PR_CAPBSET_DROP, capability as libc::c_ulong, 0, 0, 0);
            }
        }
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        );
        check(libc::syscall(
            libc::SYS_capget,
            &raw const header,
            data.as_mut_ptr(),
        ))?;
        for (half, data) in [kept as u32, (kept >> 32) as u32]
            .into_iter()
            .zip(&mut data)
        {
            data.effective &= half;
            data.permitted &= half;
            data.inheritable &= half;
        }
        check(libc::syscall(
            libc::SYS_capset,
            &raw const header,
            data.as_ptr(),
        ))
        .map(drop)
    }
}
