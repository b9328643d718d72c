//! The last step of starting a program: everything `execve` needs, laid out before the new process
//! exists, because between `clone` and `exec` nothing may be allocated or locked.
//!
//! # Safety
//! The pointer arrays point into strings that the same struct owns and never changes.
#![allow(unsafe_code)]

use std::ffi::{CString, OsStr};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;

use crate::command::Command;
use crate::signals::Inherited;

/// A command ready to be executed.
pub(crate) struct ExecImage {
    program: CString,
    argv: Pointers,
    /// The same as a script for the shell, for files without an interpreter line, as execvp has it.
    shell_argv: Pointers,
    envp: Pointers,
    affinity: Option<Vec<libc::c_ulong>>,
    inherit: Vec<RawFd>,
    signals: &'static Inherited,
}

/// A string of the command holds a zero byte.
#[derive(Debug, thiserror::Error)]
#[error("an argument or variable of the program holds a zero byte, which no program can be given")]
pub struct ZeroByte;

struct Pointers {
    _strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl Pointers {
    fn new(strings: Vec<CString>) -> Self {
        let pointers = strings
            .iter()
            .map(|s| s.as_ptr())
            .chain([std::ptr::null()])
            .collect();
        Self {
            _strings: strings,
            pointers,
        }
    }
}

impl ExecImage {
    /// Lays the command out, with this process's environment below the command's variables.
    pub(crate) fn new(command: &Command) -> Result<Self, ZeroByte> {
        let c = |s: &OsStr| CString::new(s.as_bytes()).map_err(|_| ZeroByte);
        let program = c(command.program.as_os_str())?;
        let args = command
            .args
            .iter()
            .map(|a| c(a))
            .collect::<Result<Vec<_>, _>>()?;
        let mut argv = vec![c(&command.arg0)?];
        argv.extend(args.iter().cloned());
        let mut shell_argv = vec![c"sh".into(), program.clone()];
        shell_argv.extend(args);
        let env = command
            .environment(std::env::vars_os())
            .into_iter()
            .map(|(mut name, value)| {
                name.push("=");
                name.push(value);
                c(&name)
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            program,
            argv: Pointers::new(argv),
            shell_argv: Pointers::new(shell_argv),
            envp: Pointers::new(env),
            affinity: command.affinity.as_deref().map(mask_of),
            inherit: command.inherit.clone(),
            signals: Inherited::get(),
        })
    }

    /// Sets the CPUs that the calling process may use. Only a system call; returns the error number.
    pub(crate) fn apply_affinity(&self) -> Result<(), i32> {
        let Some(mask) = &self.affinity else {
            return Ok(());
        };
        // SAFETY: the kernel reads as many bytes as the slice has.
        let result = unsafe {
            libc::syscall(
                libc::SYS_sched_setaffinity,
                0,
                std::mem::size_of_val(mask.as_slice()),
                mask.as_ptr(),
            )
        };
        if result < 0 { Err(errno()) } else { Ok(()) }
    }

    /// Restores the inherited signals and becomes the program. Returns the error number if that
    /// fails. Only system calls, in a process of its own: other programs that are started from here do not
    /// get the descriptors.
    pub(crate) fn exec(&self) -> i32 {
        for descriptor in &self.inherit {
            // SAFETY: a system call. On a descriptor that is not open it does nothing.
            unsafe { libc::fcntl(*descriptor, libc::F_SETFD, 0) };
        }
        self.signals.restore();
        // SAFETY: null-terminated arrays of null-terminated strings that `self` owns.
        unsafe {
            libc::execve(
                self.program.as_ptr(),
                self.argv.pointers.as_ptr(),
                self.envp.pointers.as_ptr(),
            );
            let error = errno();
            if error == libc::ENOEXEC {
                libc::execve(
                    c"/bin/sh".as_ptr(),
                    self.shell_argv.pointers.as_ptr(),
                    self.envp.pointers.as_ptr(),
                );
            }
            error
        }
    }
}

/// CPUs as the kernel's bit mask, as long as it must be.
fn mask_of(cpus: &[u32]) -> Vec<libc::c_ulong> {
    let bits = libc::c_ulong::BITS;
    let words = cpus.iter().max().map_or(1, |&m| m / bits + 1);
    let mut mask = vec![0; words as usize];
    for cpu in cpus {
        mask[(cpu / bits) as usize] |= 1 << (cpu % bits);
    }
    mask
}

/// The calling thread's error number.
pub(crate) fn errno() -> i32 {
    // SAFETY: the C library's own place for it, valid in every thread.
    unsafe { *libc::__errno_location() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_mask_is_as_long_as_the_highest_cpu_asks() {
        assert_eq!(mask_of(&[0, 3]), [0b1001]);
        let wide = mask_of(&[1, 2000]);
        assert_eq!(wide.len(), 2000 / 64 + 1);
        assert_eq!((wide[0], wide[31]), (2, 1 << 16));
    }

    #[test]
    fn a_zero_byte_is_refused() {
        let command = Command::new("/bin/true").unwrap().args(["a\0b"]);
        assert!(ExecImage::new(&command).is_err());
    }
}
