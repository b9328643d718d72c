//! The sandbox: an interpreter without anything that reaches out of it, and with a limit on everything.
//!
//! What bounds a script's memory. A value, with all that is in it, has at most [`MAX_ARRAY`] elements of
//! arrays, [`MAX_MAP`] of maps and [`MAX_STRING`] bytes of text, which is below half a megabyte, and is
//! at most [`MAX_DEPTH`] deep. At most [`MAX_CALLS`] calls are open, each with at most [`MAX_VARIABLES`]
//! variables. The language checks only what an operation gives, not what it changes by way of an index
//! (`a[0] = a`), so all variables of a function are checked whenever one of them is named; and
//! nothing can be changed without naming a variable: there is no `this`, closures do not capture,
//! functions are not curried, and `state` checks what it is given. The worst script that the tests know
//! stays below 128 MiB.

use super::desk::SharedDesk;
use super::error::Exceeded;
use super::{data, functions, objects, state};
use crate::policy::Order;
use rhai::packages::{
    ArithmeticPackage, BasicArrayPackage, BasicFnPackage, BasicIteratorPackage, BasicMapPackage,
    BasicMathPackage, BasicStringPackage, LogicPackage, MoreStringPackage, Package as _,
};
use rhai::{Dynamic, Engine, OptimizationLevel};

/// Operations in one event, about one for each name, number and operator that is evaluated. Some
/// milliseconds of usual ones.
pub const MAX_OPERATIONS: u64 = 100_000;

/// Elements of an array, together with those of the arrays in it.
pub const MAX_ARRAY: usize = 2_048;

/// Entries of a map, together with those of the maps in it.
pub const MAX_MAP: usize = 512;

/// Bytes of a string; of all strings in an array or a map.
pub const MAX_STRING: usize = 1_024;

/// Calls of functions within each other.
pub const MAX_CALLS: usize = 8;

/// Variables of a function at the same time.
pub const MAX_VARIABLES: usize = 24;

/// Orders in one event.
pub const MAX_ORDERS: usize = 4_096;

/// Bytes of a name in a map.
pub const MAX_NAME: usize = 64;

/// Arrays and maps within each other.
pub const MAX_DEPTH: usize = 16;

/// Expressions within each other, in the text.
const MAX_NESTING: usize = 32;

/// Functions of a script.
const MAX_FUNCTIONS: usize = 256;

/// What the language knows and a script here does not: `eval` could define what the checks have not
/// seen; `Fn`, `curry` and `call` make values of functions, which hold arguments that no limit counts;
/// `this` changes a caller's data without naming a variable.
const DISABLED: [&str; 5] = ["eval", "Fn", "curry", "call", "this"];

/// An interpreter for one script, which looks and orders at `desk`.
pub(super) fn sandbox(desk: &SharedDesk) -> Engine {
    let mut engine = Engine::new_raw();
    // Package by package: the language's core has `sleep`, its standard has the clock.
    ArithmeticPackage::new().register_into_engine(&mut engine);
    LogicPackage::new().register_into_engine(&mut engine);
    BasicMathPackage::new().register_into_engine(&mut engine);
    BasicIteratorPackage::new().register_into_engine(&mut engine);
    BasicFnPackage::new().register_into_engine(&mut engine);
    BasicStringPackage::new().register_into_engine(&mut engine);
    MoreStringPackage::new().register_into_engine(&mut engine);
    BasicArrayPackage::new().register_into_engine(&mut engine);
    BasicMapPackage::new().register_into_engine(&mut engine);
    for symbol in DISABLED {
        engine.disable_symbol(symbol);
    }
    // No folding: what is said of a line is about the line as it was written.
    engine.set_optimization_level(OptimizationLevel::None);
    limit(&mut engine, desk);
    names(&mut engine, desk);
    notes(&mut engine, desk);
    objects::register(&mut engine);
    state::register(&mut engine);
    functions::register(&mut engine, desk);
    engine
}

fn limit(engine: &mut Engine, desk: &SharedDesk) {
    engine
        .set_max_operations(0) // Counted below.
        // Twice ours, so that what doubles meets ours first, which know the line.
        .set_max_array_size(2 * MAX_ARRAY)
        .set_max_map_size(2 * MAX_MAP)
        .set_max_string_size(2 * MAX_STRING)
        .set_max_call_levels(MAX_CALLS)
        .set_max_variables(MAX_VARIABLES)
        .set_max_functions(MAX_FUNCTIONS)
        .set_max_expr_depths(MAX_NESTING, MAX_NESTING);
    let operations = desk.lock().operations.clone();
    engine.on_progress(move |_| (!operations.take_one()).then_some(Dynamic::UNIT));
}

/// Called whenever a variable is named: checks all variables of the function, and knows the names that
/// the script has not defined itself.
fn names(engine: &mut Engine, desk: &SharedDesk) {
    let desk = desk.clone();
    let operations = desk.lock().operations.clone();
    #[expect(
        deprecated,
        reason = "not deprecated, as its documentation says, but apt to change"
    )]
    engine.on_var(move |name, index, context| {
        if operations.used() > MAX_OPERATIONS {
            return Err(desk.lock().exceeded(Exceeded::operations()));
        }
        for (_, _, value) in context.scope().iter_raw() {
            let mut size = data::Size::default();
            let fits = size.add(value, 0);
            operations.take(size.operations());
            if let Err(exceeded) = fits {
                return Err(desk.lock().exceeded(exceeded));
            }
        }
        // What a function has defined itself comes first.
        if index > 0 || context.scope().contains(name) {
            return Ok(None);
        }
        desk.resolve(name)
    });
}

/// `print` goes to the journal: standard output is the program's, and the manager has none.
fn notes(engine: &mut Engine, desk: &SharedDesk) {
    let note = |desk: &SharedDesk, text: &str| {
        // There is no way to fail here: what is one too many is not said.
        let _ = desk
            .lock()
            .order(Order::Note(data::cut(text, MAX_STRING).to_owned()));
    };
    let printed = desk.clone();
    engine.on_print(move |text| note(&printed, text));
    let debugged = desk.clone();
    engine.on_debug(move |text, _, position| note(&debugged, &format!("{position:?}: {text}")));
}
