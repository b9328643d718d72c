//! Which files are mapped where: by the loader's own list, whenever it changed.
//!
//! **Why it is sound.** The loader calls back with a list that it keeps still meanwhile; only plain fields
//! and strings of it are read. Its lock for that list is one that it never holds while it runs a library's
//! code, so that waiting for it is short.
#![allow(unsafe_code, reason = "see the module's head")]

use crate::region::{Entered, Module};
use libc::{c_int, c_void, dl_phdr_info};
use std::ffi::CStr;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The loader's list as it was seen last.
#[derive(Debug, Default)]
pub struct Seen {
    /// Libraries that came and went so far.
    changes: AtomicU64,
    /// Where each known file begins, by a number made of its name.
    known: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Seen {
    /// Enters what is new.
    pub fn look(&self, entered: &Entered<'_>) {
        let mut changes = 0_u64;
        // SAFETY: a function of ours, with what it expects.
        unsafe {
            libc::dl_iterate_phdr(Some(changes_so_far), (&raw mut changes).cast());
        }
        if self.changes.swap(changes, Ordering::AcqRel) == changes {
            return;
        }
        let mut now = Vec::<Module>::new();
        // SAFETY: as above.
        unsafe {
            libc::dl_iterate_phdr(Some(collect), (&raw mut now).cast());
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for mut module in now {
            let name = (module.bias, module.path.clone());
            if known.contains(&name) {
                continue;
            }
            known.push(name);
            if module.path.is_empty()
                && let Ok(path) = std::fs::read_link("/proc/self/exe")
            {
                module.path = path.into_os_string().into_vec();
            }
            entered.add_module(&module);
        }
    }
}

/// From where to where the file is mapped that this address is in.
pub fn around(address: u64) -> Option<(u64, u64)> {
    let mut modules = Vec::<Module>::new();
    // SAFETY: as above.
    unsafe {
        libc::dl_iterate_phdr(Some(collect), (&raw mut modules).cast());
    }
    let found = modules
        .into_iter()
        .find(|module| (module.start..module.end).contains(&address));
    found.map(|module| (module.start, module.end))
}

unsafe extern "C" fn changes_so_far(
    info: *mut dl_phdr_info,
    _: libc::size_t,
    changes: *mut c_void,
) -> c_int {
    // SAFETY: the loader's structure, and the number that `look` handed down.
    unsafe {
        let info = &*info;
        *changes.cast::<u64>() = info.dlpi_adds + info.dlpi_subs;
    }
    1
}

unsafe extern "C" fn collect(
    info: *mut dl_phdr_info,
    _: libc::size_t,
    modules: *mut c_void,
) -> c_int {
    // SAFETY: the loader's structures, and the list that `look` handed down.
    unsafe {
        let info = &*info;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        let loaded = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD);
        let ends = loaded.map(|h| {
            (
                info.dlpi_addr + h.p_vaddr,
                info.dlpi_addr + h.p_vaddr + h.p_memsz,
            )
        });
        let range = ends.reduce(|all, next| (all.0.min(next.0), all.1.max(next.1)));
        let path = match info.dlpi_name.is_null() {
            true => Vec::new(),
            false => CStr::from_ptr(info.dlpi_name).to_bytes().to_vec(),
        };
        if let Some((start, end)) = range {
            (*modules.cast::<Vec<Module>>()).push(Module {
                bias: info.dlpi_addr,
                start,
                end,
                path,
            });
        }
    }
    0
}
