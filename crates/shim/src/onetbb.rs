//! The adapter for oneTBB (2021.11 and later): its workers join and leave as the claim changes.
//!
//! oneTBB asks a *permit manager*, where there is one, how many workers each of its arenas may have, and is
//! told when that changes. It looks for it by the name `libtcm.so.1`, which this library has (`build.rs`):
//! the loader gives it the one that is loaded already, before it looks into any folder. That holds for
//! wheels, which bring Intel's own manager along (switched off, unless somebody sets `TCM_ENABLE=1`), and
//! for a system's oneTBB alike; nothing has to be installed. Without a claim to follow we decline the
//! connection, and oneTBB works by itself, as it does where there is no such library.
//!
//! - [`permits`]: the states of permits; [`request`]: what can be asked for; [`settle`]: whom a change
//!   concerns; [`share`]: what each is given. All of this is pure.
//! - [`place`]: the lock, and calling back; [`masks`]: sets of CPUs; [`abi`]: the interface's types.
//!
//! One lock guards the permits. It is never held while a client is called back, since that calls us again;
//! so a permit can be given back at the same time: that waits for a callback which has begun, and none
//! begins afterwards. The new handle is stored in the client's memory before anybody can be called back
//! about it. Numbers for callbacks are not handed over: the client reads them, and so always the latest.
//!
//! Safety: pointers come from the client, as the interface defines them: null, or valid for the call. A
//! handle is a number that was never used before, and is looked up, never followed.

mod abi;
mod masks;
mod permits;
mod place;
mod request;
mod settle;
mod share;

use crate::follower;
use crate::link;
use crate::loaded::Library;
use abi::{
    AS_INACTIVE, AUTOMATIC, Answer, INVALID_ARGUMENT, PermitHandle, RIGID, SUCCESS, UNKNOWN,
};
use libc::{c_char, c_void};
use masks::Hwloc;
use permits::{Client, Notice, Permits};
use place::{call_back, handle, look, pointer, report, shared, thread, wait_for_callbacks};
use request::{Invalid, PartRequest, Request};

pub(crate) use place::bound;

/// Does something to permits under the lock, and calls back without it.
fn change(work: impl FnOnce(&mut Permits) -> Result<Vec<Notice>, Invalid>) -> Answer {
    let mut shared = shared();
    let mut notices = look(&mut shared);
    let worked = work(&mut shared.permits);
    report(&shared.permits);
    drop(shared);
    let answer = worked.map_or(INVALID_ARGUMENT, |more| {
        notices.extend(more);
        SUCCESS
    });
    call_back(&notices);
    answer
}

/// Whose function a callback is.
enum Kind {
    OneTbb,
    /// A runtime that has an adapter of its own here.
    OpenMp,
    Other,
}

impl Kind {
    fn of(callback: usize) -> Kind {
        let Some(library) = Library::at(callback) else {
            return Kind::Other;
        };
        let path = library.path().to_bytes();
        let name = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
        match name {
            name if name.starts_with(b"libtbb") => Kind::OneTbb,
            name if name.starts_with(b"libiomp") || name.starts_with(b"libomp") => Kind::OpenMp,
            _ => Kind::Other,
        }
    }
}

/// A client comes. Declines, so that it does without, where no claim can be followed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tcmConnect(callback: *mut c_void, client: *mut u64) -> Answer {
    if client.is_null() {
        return INVALID_ARGUMENT;
    }
    if link::claim().is_none_or(|claim| claim.keeper_has_died()) {
        return UNKNOWN;
    }
    let workers_only = match Kind::of(callback.addr()) {
        Kind::OneTbb => true,
        Kind::Other => false,
        Kind::OpenMp => return UNKNOWN,
    };
    if !follower::follow() {
        return UNKNOWN;
    }
    let callback = callback.addr();
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let hwloc = Hwloc::find();
    let mut shared = shared();
    shared.hwloc = hwloc;
    let client_of = Client {
        callback,
        workers_only,
    };
    let number = shared
        .permits
        .connect(client_of, u32::try_from(cpus).unwrap_or(u32::MAX));
    let notices = look(&mut shared);
    drop(shared);
    // SAFETY: not null, and valid by the interface.
    unsafe { client.write(number) };
    call_back(&notices);
    SUCCESS
}

/// A client goes, and its permits with it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tcmDisconnect(client: u64) -> Answer {
    let mut shared = shared();
    let Ok((gone, notices)) = shared.permits.disconnect(client) else {
        return INVALID_ARGUMENT;
    };
    wait_for_callbacks(shared, &gone);
    call_back(&notices);
    SUCCESS
}

/// Asks for a permit, or for something else for one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tcmRequestPermit(
    client: u64,
    asked: abi::Request,
    argument: *mut c_void,
    permit_handle: *mut PermitHandle,
    permit: *mut abi::Permit,
) -> Answer {
    if permit_handle.is_null() {
        return INVALID_ARGUMENT;
    }
    let mut shared = shared();
    // SAFETY: not null, and valid by the interface.
    let old = handle(unsafe { permit_handle.read() });
    let parts = old.and_then(|old| shared.permits.parts(old));
    if old.is_some() && parts != usize::try_from(asked.constraints_size).ok() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the client's constraints are valid for the call.
    let Ok(request) = (unsafe { request(&asked, shared.hwloc) }) else {
        return INVALID_ARGUMENT;
    };
    let mut notices = look(&mut shared);
    let (permits, argument) = (&mut shared.permits, argument.expose_provenance());
    let asked = permits.request(client, old, request, argument, thread());
    let Ok((number, more)) = asked else {
        drop(shared);
        call_back(&notices);
        return INVALID_ARGUMENT;
    };
    // It is about to read what became of it.
    notices.retain(|notice| notice.handle != number);
    notices.extend(more);
    report(&shared.permits);
    // Under the lock: nobody can be called back about it yet.
    // SAFETY: as above.
    unsafe { permit_handle.write(pointer(number)) };
    drop(shared);
    call_back(&notices);
    match permit.is_null() {
        true => SUCCESS,
        // SAFETY: valid by the interface.
        false => unsafe { tcmGetPermitData(pointer(number), permit) },
    }
}

/// Reads a request.
///
/// # Safety
/// Its constraints must be valid.
unsafe fn request(asked: &abi::Request, hwloc: Option<Hwloc>) -> Result<Request, Invalid> {
    let number = |number: i32| match number {
        AUTOMATIC => Ok(None),
        number => u32::try_from(number).map(Some).map_err(|_| Invalid),
    };
    let count = usize::try_from(asked.constraints_size).map_err(|_| Invalid)?;
    let constraints = match (asked.cpu_constraints.is_null(), count) {
        (true, 0) => &[],
        (true, _) | (false, 0) => return Err(Invalid),
        // SAFETY: so many, by the interface.
        (false, count) => unsafe { std::slice::from_raw_parts(asked.cpu_constraints, count) },
    };
    let mut parts = Vec::with_capacity(count);
    for constraint in constraints {
        parts.push(PartRequest {
            min: number(constraint.min_concurrency)?,
            max: number(constraint.max_concurrency)?,
            mask: masks::of_constraint(constraint, hwloc),
            any: constraint.mask.is_null() && constraint.numa_id == abi::ANY,
        });
    }
    Ok(Request {
        min: number(asked.min_sw_threads)?,
        max: number(asked.max_sw_threads)?,
        priority: asked.priority,
        rigid: asked.flags & RIGID != 0,
        as_inactive: asked.flags & AS_INACTIVE != 0,
        parts,
    })
}

/// Tells what a permit is now.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tcmGetPermitData(
    permit_handle: PermitHandle,
    permit: *mut abi::Permit,
) -> Answer {
    let Some(number) = handle(permit_handle).filter(|_| !permit.is_null()) else {
        return UNKNOWN;
    };
    let shared = shared();
    let Some(data) = shared.permits.data(number) else {
        return UNKNOWN;
    };
    // SAFETY: not null, and valid by the interface, with as many numbers, and masks if any, as it has
    // room for by its own word.
    unsafe {
        let permit = &mut *permit;
        let room = usize::try_from(permit.size).unwrap_or(0);
        for (i, given) in data.given.iter().enumerate().take(room) {
            permit.concurrencies.add(i).write(*given);
        }
        if let Some(hwloc) = shared.hwloc.filter(|_| !permit.cpu_masks.is_null()) {
            for (i, mask) in data.masks.iter().enumerate().take(room) {
                let bitmap = permit.cpu_masks.add(i).read();
                if !bitmap.is_null() {
                    hwloc.write(bitmap, mask.as_ref().unwrap_or(&masks::of_process()));
                }
            }
        }
        permit.size = u32::try_from(data.given.len()).unwrap_or(permit.size);
        permit.state = data.state as u8;
        permit.flags =
            (RIGID * u32::from(data.rigid)) | (AS_INACTIVE * u32::from(data.as_inactive));
    }
    SUCCESS
}

/// Gives a permit back, and waits until nobody is called back about it any more.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tcmReleasePermit(permit_handle: PermitHandle) -> Answer {
    let mut shared = shared();
    let released = handle(permit_handle).and_then(|number| {
        let notices = shared.permits.release(number).ok()?;
        Some((number, notices))
    });
    let Some((number, notices)) = released else {
        return INVALID_ARGUMENT;
    };
    wait_for_callbacks(shared, &[number]);
    call_back(&notices);
    SUCCESS
}

/// A permit has no work just now.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tcmIdlePermit(permit_handle: PermitHandle) -> Answer {
    match handle(permit_handle) {
        Some(handle) => change(|permits| permits.idle(handle)),
        None => UNKNOWN,
    }
}

/// A permit has no work, and none in sight.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tcmDeactivatePermit(permit_handle: PermitHandle) -> Answer {
    match handle(permit_handle) {
        Some(handle) => change(|permits| permits.deactivate(handle)),
        None => UNKNOWN,
    }
}

/// A permit has work again.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tcmActivatePermit(permit_handle: PermitHandle) -> Answer {
    match handle(permit_handle) {
        Some(handle) => change(|permits| permits.activate(handle, thread())),
        None => UNKNOWN,
    }
}

/// The calling thread begins to work for a permit.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tcmRegisterThread(permit_handle: PermitHandle) -> Answer {
    let Some(handle) = handle(permit_handle) else {
        return UNKNOWN;
    };
    shared().permits.register(handle, thread());
    SUCCESS
}

/// The calling thread ends the latest such work.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tcmUnregisterThread() -> Answer {
    shared().permits.unregister(thread());
    SUCCESS
}

/// Says who this is, for people; as much as there is room for, and a zero.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn tcmGetVersionInfo(buffer: *mut c_char, size: u32) -> Answer {
    const WHO: &str = concat!("TCM: corewise ", env!("CARGO_PKG_VERSION"), "\n");
    let (Ok(size), false) = (usize::try_from(size), buffer.is_null()) else {
        return INVALID_ARGUMENT;
    };
    let Some(room) = size.checked_sub(1) else {
        return INVALID_ARGUMENT;
    };
    let length = room.min(WHO.len());
    // SAFETY: no more than the client has room for.
    unsafe {
        std::ptr::copy_nonoverlapping(WHO.as_ptr(), buffer.cast(), length);
        buffer.add(length).write(0);
    }
    SUCCESS
}
