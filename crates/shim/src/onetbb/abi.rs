//! The permit manager interface's types, as oneTBB 2021.11 and later has them in memory (tcm.h).

use libc::{c_int, c_void};

/// What every function answers.
pub(crate) type Answer = c_int;
pub(crate) const SUCCESS: Answer = 0;
pub(crate) const INVALID_ARGUMENT: Answer = 0x7800_0004;
pub(crate) const UNKNOWN: Answer = 0x7fff_fffe;

/// "Choose for me", in every number of a request.
pub(crate) const AUTOMATIC: i32 = -1;
/// "Any one of them", in a constraint.
pub(crate) const ANY: i32 = -2;

/// Bits of the flags of a permit and of a request.
pub(crate) const RIGID: u32 = 1 << 1;
pub(crate) const AS_INACTIVE: u32 = 1 << 3;

/// Bits of the flags of a callback.
pub(crate) const NEW_NUMBER: u32 = 1;
pub(crate) const NEW_STATE: u32 = 1 << 1;

/// Names a permit. Nobody follows it as a pointer.
pub(crate) type PermitHandle = *mut c_void;

/// A set of CPUs that belongs to the client's copy of hwloc.
pub(crate) type Bitmap = *mut c_void;

/// Called when a permit has changed: the permit, the argument of its request, and why, a bit each.
pub(crate) type Callback = unsafe extern "C" fn(PermitHandle, *mut c_void, u32) -> Answer;

/// What a permit is: the client brings the room for the numbers, and for the masks if it wants them.
#[repr(C)]
pub(crate) struct Permit {
    pub(crate) concurrencies: *mut u32,
    pub(crate) cpu_masks: *mut Bitmap,
    pub(crate) size: u32,
    pub(crate) state: u8,
    pub(crate) flags: u32,
}

/// Where a part of a permit's threads must run.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Constraints {
    pub(crate) min_concurrency: i32,
    pub(crate) max_concurrency: i32,
    pub(crate) mask: Bitmap,
    pub(crate) numa_id: i32,
    pub(crate) core_type_id: i32,
    pub(crate) threads_per_core: i32,
}

/// What is asked for.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) min_sw_threads: i32,
    pub(crate) max_sw_threads: i32,
    pub(crate) cpu_constraints: *const Constraints,
    pub(crate) constraints_size: u32,
    pub(crate) priority: i32,
    pub(crate) flags: u32,
    pub(crate) reserved: [u8; 4],
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(
    size_of::<Permit>() == 32 && size_of::<Constraints>() == 32 && size_of::<Request>() == 32
);
