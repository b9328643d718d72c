//! libcorewise: what C and C++ programs link. `include/corewise.h` is its documentation: each function
//! there is one here, over the crate corewise-program. `include/corewise.hpp` stands on corewise.h alone.
//!
//! - [`process`]: what the library keeps for its process.
//! - [`claim`], [`change`], [`work`], [`openmp`]: the functions, in the header's order.
//! - [`defer`]: the functions of corewise_defer.h, over the crate corewise-defer.
//! - [`answer`]: no panic gets out into C.

mod answer;
mod change;
mod claim;
mod defer;
mod openmp;
mod process;
mod work;
