//! Libraries whose own demand for a number of threads (a `num_threads` clause) may be answered with
//! fewer, and which may keep data of their own in each thread: of each it is proven, by a test that
//! compares what a program computes, that they give the same result.

/// A part of the path of a library, and why it is safe.
const LISTED: [(&[u8], &str); 3] = [
    (
        b"/lib_lightgbm.so",
        "asks for omp_get_max_threads() on every region; loops over rows and features",
    ),
    (
        b"/sklearn/",
        "Cython's prange with num_threads: a loop, whoever runs it; sums in each thread's buffer",
    ),
    (
        b"/numba/np/ufunc/omppool.",
        "a loop over the pieces of a generalised ufunc, cut before the region begins",
    ),
];

/// Whether the library at `path` is on the list.
pub(crate) fn is_listed(path: &[u8]) -> bool {
    let contains = |part: &[u8]| path.windows(part.len()).any(|window| window == part);
    LISTED.iter().any(|(part, _)| contains(part))
}
