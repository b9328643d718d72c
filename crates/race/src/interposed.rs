//! Functions of the C library that are called as they would have been, with something of ours before and
//! after.
//!
//! **Why it is sound.** The arguments are those in registers, as many as there can be beside the place of the
//! call: they are passed on as they came, and only looked at by who knows their types. A function of fewer has
//! other values in the rest, which nobody looks at. Some may be cancelled or call the program back: the frames
//! have nothing that would have to be cleaned up.

/// A call as it came.
pub(crate) struct Call {
    /// The arguments; those that the function has not are anything.
    pub(crate) arguments: [u64; 5],
    /// The address behind the call.
    pub(crate) code: u64,
}

/// What the functions look like from here.
pub(crate) type Real = unsafe extern "C-unwind" fn(u64, u64, u64, u64, u64) -> i64;

/// Nothing, before or after a call.
pub(crate) fn nothing_before(_: &Call) {}

/// As above.
pub(crate) fn nothing_after(_: &Call, _: i64) {}

/// Exports functions of up to five arguments: each with its name, what is done before the real one, and after
/// it with its answer. The number first is the answer where there is no real one.
macro_rules! interposed {
    ($missing:expr; $($name:ident $text:literal $before:ident $after:ident;)*) => {$(
        const _: () = {
            unsafe extern "C-unwind" fn body(
                a: u64, b: u64, c: u64, d: u64, e: u64, code: u64,
            ) -> i64 {
                static NEXT: corewise_analyses::inside::Next =
                    corewise_analyses::inside::Next::new($text);
                let Some(real) = NEXT.get() else {
                    return $missing as i64;
                };
                let call = $crate::interposed::Call { arguments: [a, b, c, d, e], code };
                $before(&call);
                // SAFETY: a function of this name takes what came.
                let answer = unsafe {
                    std::mem::transmute::<*mut std::ffi::c_void, $crate::interposed::Real>(real)(
                        a, b, c, d, e,
                    )
                };
                $after(&call, answer);
                answer
            }
            $crate::entry::told_where! {
                /// The C library's.
                $name => body;
            }
        };
    )*};
}
pub(crate) use interposed;
